"""What a function sets beside its results: attributes of objects, entries of lists and dicts, globals, closures.

While it is traced, what it can reach is looked at before and after. What it sets to a value of the trace, or in each of
two traces, is a `Target`: from then on the function is called as one of what is in its targets, which returns what is
to be there (`functional.Functional`).
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .._graph.source import NamesObjects, NothingReturned, RandomDraw, SetsState, TraceError, message, trace_error
from .._graph.structure import is_plain, leaves
from . import guards, parts
from .advanced import Positions, States
from .alone import alone
from .code_names import names_of
from .contents import ABSENT, containers_in, contents, kinds, looked_through, remembered, same, set_contents, surely
from .elements import Changed, Elements
from .functional import Functional
from .objects import Learned, TakenApart, holds_traced, is_taken_apart
from .targets import Target, scopes

_Made = TypeVar("_Made")
_CLOCK = "{} computes with the time, or with what is another each time: every call would see the same"
_HINT = "return it, or set it in a list, a dict or an attribute of an object with a `__dict__`"


class SetTargets:
    """What calls of a function set beside their results, as far as its code and its traces have shown."""

    def __init__(self, function: Any = None) -> None:
        self._function = function
        self.version = 0  # how often they were learned
        self._targets: list[Target] = []
        self._takes_self = False  # the instance that a method is of is taken apart, too
        code = getattr(function, "__code__", None)
        self._learned = Learned(named=names_of(code).stored if code else frozenset())

    @property
    def are_known(self) -> bool:
        """Whether calls are taken apart."""
        return self.version > 0

    def take_self(self) -> None:
        """From now on the instance that a method is of is taken apart, too."""
        self._takes_self = True

    def learn(self, found: SetsState, function: str, args: Sequence[Any], version: int) -> None:
        """From now on calls are taken apart, and targets are arguments of theirs. Nothing new where another thread has
        learned since the call that found it took what was known, of that `version`.

        Raises:
            TraceError: what a trace has found was known before.
        """
        if version != self.version:
            return
        known = {target.key for target in self._targets}
        fresh = list({target.key: target for target in found.targets if target.key not in known}.values())
        may_take = bool(args) and not self._takes_self and is_taken_apart(args[0])
        may_take = may_take and id(args[0]) not in self._learned.own
        own = [target for target in fresh if may_take and target.owner() is args[0]]
        if self.are_known and not fresh:
            raise cannot_set(function, found.what)
        self._takes_self = self._takes_self or bool(own)
        self._targets = [*self._targets, *(target for target in fresh if target not in own)]
        self.version += 1

    def apart(
        self, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any], *, whole: bool = False
    ) -> TakenApart:
        """A call's arguments, with those for targets. `whole`: with what lists hold that are only appended to, too."""
        if whole:
            self._learned.own.update(own_objects(self._function))
        learned = Learned(own=self._learned.own) if whole else self._learned
        return TakenApart(signature, args, kwargs, self._targets, learned, takes_self=self._takes_self)

    def read(self, number: int | None = None) -> None:
        """From now on what that list holds is an argument, or that of all lists."""
        self._learned.read |= self._learned.appended if number is None else {number}

    def functional(self, function: Any, name: str, signature: inspect.Signature, has_out: bool) -> Functional:
        """The function of these arguments."""
        before = functools.partial(_require_own_known, function, self._learned.own)
        return Functional(function, name, signature, tuple(self._targets), has_out=has_out, before=before)


def taken_apart_once(
    function: Any, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> TakenApart:
    """A call's arguments, for a trace that no other call uses."""
    apart = TakenApart(signature, args, kwargs)
    own = own_objects(function) if apart.has_objects else {}
    return TakenApart(signature, args, kwargs, learned=Learned(own=weakref.WeakValueDictionary(own))) if own else apart


def own_objects(function: Any) -> dict[int, Any]:
    """The objects, by id, that a function can reach by names, and that calls would take apart."""
    while type(function).__module__.startswith("kfusion.") and hasattr(function, "__wrapped__"):
        function = function.__wrapped__  # the user's own
    found = guards.reached([function]).values
    keys = (key for value in found if isinstance(value, dict) for key in value)
    return {id(v): v for v in (*found, *keys) if is_plain(v) and type(v).__weakrefoffset__}


def _require_own_known(function: Any, known: MutableMapping[int, Any]) -> None:
    """Raises NamesObjects where some are new, which are known from then on."""
    fresh = {number: v for number, v in own_objects(function).items() if number not in known}
    known.update(fresh)
    if fresh:
        raise NamesObjects


def cannot_set(function: str, what: str) -> TraceError:
    """The error of a function that sets what its calls cannot set."""
    return trace_error(f"{function} sets {what} in each call, which calls cannot set", _HINT, "")


def watched(
    function: str,
    roots: Sequence[Any],
    arguments: tuple[Any, Any],
    trace: Callable[[Snapshot], _Made],
    do_one_thing: Callable[[_Made, _Made], bool],
) -> _Made:
    """What `trace(snapshot)` gives. No value of a trace stays in what can be reached from the roots and arguments, nor
    in variables of contexts.

    Where the trace sets anything else, it is done again: what is set again each call must set. What is not, is a cache,
    if both traces do one thing; else this call differs from the next, and each must set that.

    Raises:
        SetsState: the function sets what each call must set.
        TraceError: it puts what it computes into a container that is neither a list nor a dict.
    """

    def twice() -> Any:
        with Snapshot(roots, containers_among(arguments)) as snapshot:
            try:
                made = trace(snapshot)
            except NothingReturned:
                snapshot.require_no_values(function)
                raise
            once = snapshot.changed(function)
            if not once and not snapshot.changes_by_itself:
                return made
            _require_none(function, once if _changes_what_it_reads(once, made) else [])
            with Snapshot(roots, containers_among(arguments)) as again:
                second = _tried(trace, again)
                if second is not None:
                    _require_none(function, again.changed(function))
                if second is None or not do_one_thing(made, second):
                    _require_none(function, once)
                    raise RandomDraw(message(_CLOCK.format(function), "pass such a number as an argument", ""))
        return second

    context = contextvars.copy_context()
    made: _Made = context.run(twice)
    for variable, value in context.items():
        if variable.get(ABSENT) is not value:
            variable.set(value)
    return made


def _tried(trace: Callable[[Snapshot], _Made], snapshot: Snapshot) -> Any:
    """A second trace; None where it fails on what the first one has left."""
    try:
        return trace(snapshot)
    except (RecursionError, RandomDraw):
        raise
    except Exception:
        return None


class Found(NamedTuple):
    """What a trace has set: a target, or a container among the arguments; what it holds; whether that is of a trace,
    and the arrays in it in which something else is now.
    """

    target: Target | None
    value: Any
    is_traced: bool
    arrays: tuple[Changed, ...] = ()
    is_fixed: bool = False  # what calls cannot set


def _changes_what_it_reads(found: Sequence[Found], made: Any) -> bool:
    """Whether arrays that were changed are among a trace's inputs, or too large to be compared by calls: a trace that
    no longer changes them is none of what the first call does.
    """
    changed = [c for f in found for c in f.arrays]
    read = [i.array for i in made.inputs if i.captured]
    shared = any(_share_memory([c.array, array]) for c in changed for array in read)
    return shared or not all(c.may_be_kept for c in changed)


def _require_none(function: str, found: Sequence[Found]) -> None:
    if not found:
        return
    if fixed := kinds(f.value for f in found if f.is_fixed):
        what = f"{function} changes {fixed}: each call would have to, and would read what the one before has left"
        raise RandomDraw(message(what, "do that outside, with what the function returns", ""))
    arrays = {id(changed.array): changed for f in found for changed in f.arrays}
    shared = arrays and _share_memory([changed.array for changed in arrays.values()])
    if shared or not all(changed.as_argument for changed in arrays.values()):
        what = " ".join(dict.fromkeys(_described(f) for f in found if f.arrays)).removesuffix(",")
        past = "which share memory, " if shared else ""
        what = f"{function} changes {what}, {past}where a trace does not see it: each call would have to"
        raise trace_error(what, "pass it as an argument, or keep what changes in an attribute, a list or a dict", "")
    targets = [f.target for f in found if f.target is not None]
    raise SetsState(function, targets, ", ".join(dict.fromkeys(map(_described, found))))


def _share_memory(arrays: Sequence[Any]) -> bool:
    own = [a for a in arrays if isinstance(a, np.ndarray)]
    return any(np.may_share_memory(a, b) for i, a in enumerate(own) for b in own[:i])


def _described(found: Found) -> str:
    kind = kinds([found.value])
    return kind if found.target is None else f"`{found.target.name}`, {kind},"


def containers_among(arguments: tuple[Any, Any]) -> Iterator[Any]:
    """The containers among a call's arguments that are not taken apart, and within them."""
    yield from containers_in(leaf for leaf in leaves(arguments) if not is_taken_apart(leaf))


class Snapshot:
    """What can be reached from roots, and what the given containers hold, as it was when the context began, in which
    no other thread traces. It is restored when the context ends with an error. `always`: also without one.
    """

    def __init__(self, roots: Iterable[Any], given: Iterable[Any] = (), *, always: bool = False) -> None:
        self._always = always
        self._looked_for = roots, given
        self._turn = contextlib.ExitStack()

    def _look(self, roots: Iterable[Any], given: Iterable[Any]) -> None:
        reached = guards.reached(roots)
        self.changes_by_itself = reached.changes_by_itself
        self._sets = reached.sets
        self._positions = Positions(reached.values)
        self._states, self._elements = States(reached.values), Elements(reached.arrays)
        self._before = [(owner, kind, dict(held)) for owner in reached.owners for kind, held in scopes(owner)]
        values = (value for _, _, held in self._before for value in held.values())
        given = list(given)
        self._given = set(map(id, given))
        self._contents = remembered(({id(v): v for v in containers_in(values)} | {id(v): v for v in given}).values())

    def changed(self, function: str) -> list[Found]:
        """The targets that hold something else, or containers that do.

        Raises:
            TraceError: something of a trace is in a container that cannot be set in each call, or an iterator is
                advanced.
        """
        self.require_same_positions()
        arrays = self._elements.changed()
        inside = dict.fromkeys(arrays, False)
        for value, before in self._contents:
            if new := _new(before, contents(value)):
                inside[id(value)] = holds_traced(new)
                if inside[id(value)] and not (isinstance(value, (list, dict)) or is_taken_apart(value)):
                    what = f"{function} puts what it computes into {kinds([value])}, where calls cannot set it"
                    raise trace_error(what, _HINT, "")
        found = []
        in_targets: set[int] = set()
        for owner, kind, before in self._before:
            now = dict(scopes(owner))[kind]
            for name in before.keys() | now.keys():
                was, value = before.get(name, ABSENT), now.get(name, ABSENT)
                held = [v for v in looked_through([was]) if id(v) in inside] if inside else []
                if self._is_set(owner, kind, name, was, value) or held:
                    in_targets |= set(map(id, held))
                    is_traced = any(inside[id(v)] for v in held) or (was is not value and holds_traced([value]))
                    target, own = (
                        Target(weakref.ref(owner), kind, name),
                        (arrays[id(v)] for v in held if id(v) in arrays),
                    )
                    found.append(Found(target, held[-1] if held else value, is_traced, tuple(own)))
        given = (value for value, _ in self._contents if id(value) in inside.keys() & self._given - in_targets)
        found += (Found(None, value, inside[id(value)]) for value in given)
        lost = (changed._replace(as_argument=False) for known, changed in arrays.items() if known not in in_targets)
        found += (Found(None, changed.array, False, (changed,)) for changed in lost)
        return [*found, *(Found(None, value, False, is_fixed=True) for value in self._states.changed())]

    def _is_set(self, owner: Any, kind: str, name: Any, before: Any, value: Any) -> bool:
        """Whether there is another value, which the function may have set. If no code that it reaches sets that name,
        another thread has.
        """
        if value is before or self._sets is None or name in self._sets or holds_traced([value]):
            return value is not before
        is_replaced = kind == "attribute" and before is not ABSENT and value is not ABSENT and _is_own(owner)
        return not (kind in ("global", "cell") or isinstance(owner, ModuleType) or is_replaced)

    def require_no_values(self, function: str) -> None:
        """After a trace. Tensors come back to where only what stands for them has been put: they are written to.

        Raises:
            SetsState: other values of the trace are somewhere.
        """
        self._settle()
        _require_none(function, [found for found in self.changed(function) if found.is_traced])

    def _settle(self) -> None:
        for value, before in self._contents:
            now = contents(value)
            after = {k: before[k] if _stands_for(v, before.get(k, ABSENT)) else v for k, v in now.items()}
            if not same(now, after):
                set_contents(value, after)
        for owner, kind, before in self._before:
            for name, value in dict(scopes(owner))[kind].items():
                if _stands_for(value, before.get(name, ABSENT)):
                    Target(weakref.ref(owner), kind, name).set(before[name])

    def require_same_positions(self) -> None:
        """Raises RandomDraw where an iterator is elsewhere: what it gives next is gone."""
        if moved := self._positions.moved():
            what = f"a traced function advances {kinds(moved)}: every call would see the same values"
            raise RandomDraw(message(what, "pass what it gives as an argument", ""))

    def restore(self) -> None:
        """Everything is as it was.

        Raises:
            RandomDraw: but for an iterator.
        """
        self.require_same_positions()
        self._states.restore()
        self._elements.restore()
        for value, before in self._contents:
            if not same(before, contents(value)):
                set_contents(value, before)
        for owner, kind, before in self._before:
            now = dict(scopes(owner))[kind]
            for name in before.keys() | now.keys():
                if self._is_set(owner, kind, name, before.get(name, ABSENT), now.get(name, ABSENT)):
                    Target(weakref.ref(owner), kind, name).set(before.get(name, ABSENT))

    def __enter__(self) -> Snapshot:
        with contextlib.ExitStack() as stack:
            stack.enter_context(alone())
            self._look(*self._looked_for)
            self._turn = stack.pop_all()
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        with self._turn:
            if self._always or kind is not None:
                surely([self.restore])


def _is_own(owner: Any) -> bool:
    """Whether an object or class has nothing of libraries, whose code is not known."""
    kind = owner if isinstance(owner, type) else type(owner)
    return all(base is object or parts.is_own_class(base) for base in kind.__mro__)


def _stands_for(value: Any, tensor: Any) -> bool:
    """Whether a value is what a trace takes for a tensor that it writes to."""
    is_traced = hasattr(type(value), "__kfusion_traced__") and tensor is not ABSENT and tensor is not value
    return is_traced and value._tracer.stand_in(tensor) is value


def _new(before: Any, after: Any) -> list[Any]:
    """What is in a container now, if that has changed; not empty then."""
    is_other = list(before) != list(after)
    new = [value for key, value in after.items() if key not in before or before[key] is not value]
    return new or [None] * is_other
