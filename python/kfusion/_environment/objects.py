"""Lists, dicts and objects among the arguments, such as a cache of keys and values, and whatever a function sets: taken
apart before a call, put together for the function while it is traced (`functional.py`), and given what it sets after.

A call `f(x, cache)` becomes `g(x, Parts)`: the attributes by name, with parts for the lists, dicts and objects that
they hold. So an array in an object is an argument, and what else it holds decides which kernels run, as the arguments
do. The trace of g calls f with an object of the same class that holds traced values, and returns what changed.
"""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np

from .._graph.appended import Appended
from .._graph.memory import Path, viewed
from .._graph.number import Computed, IntArgument, is_int, is_number, registers
from .._graph.sizes import is_size
from .._graph.structure import ATOMS, foreign_library, is_plain_type, leaves, may_hold_results, walk
from .._spec import is_array
from .contents import contents, set_contents, surely
from .reach import reached

_CONTAINERS = (list, dict, OrderedDict, defaultdict)


class ClassKey:
    """The key of an object's class among its parts."""


class FactoryKey:
    """The key of what a defaultdict makes of a key that it does not have."""


class Parts(dict[Any, Any]):
    """An object's attributes by name, a list's items by number or a dict's by key; at ClassKey its class."""


@dataclass(frozen=True)
class Whole:
    """The caller's object of this number: in results, or where an argument is met again."""

    number: int


_WHOLES: dict[int, Whole] = {}  # of each number one: signatures name them by identity


def whole_of(number: int) -> Whole:
    """The one `Whole` of a number."""
    return _WHOLES.setdefault(number, Whole(number))


@dataclass(frozen=True)
class Given:
    """The array of this number among the call's, which the function has set somewhere."""

    number: int


@dataclass(frozen=True)
class Value:
    """The value of this number: one array, wherever the function has put it."""

    number: int


@dataclass(frozen=True)
class View:
    """A view of what another of these gives, and how it is made."""

    of: Given | Value
    path: Path


@dataclass(frozen=True)
class Returned:
    """What a function that sets something returns: the values that it computes, its result, what lists, dicts and
    objects hold that it changed, by number, and what is in those targets that it set, by number. An unchanged item is a
    `Whole` below 0.
    """

    values: tuple[Any, ...]
    result: Any
    changed: dict[int, dict[Any, Any]]
    placed: dict[int, Any]


Key = tuple[int, str]  # of a target: whose it is, by id, and what it is called there


class Target(Protocol):
    """Where a function may set something beside its arguments."""

    @property
    def key(self) -> Key:
        """What identifies the target while its owner lives."""

    def value(self) -> Any:
        """What is there, or ABSENT."""

    def set(self, value: Any) -> None:
        """Puts something there."""


@dataclass
class Learned:
    """What calls have shown of the lists, dicts and objects that are taken apart, by their numbers."""

    counters: set[tuple[int, Any]] = field(default_factory=set)  # ints that they have set, with their keys
    appended: set[int] = field(default_factory=set)  # lists that they have appended to
    read: set[int] = field(default_factory=set)  # of these, those that they read as well
    named: frozenset[str] = frozenset()  # attributes that the function's code sets
    own: WeakValueDictionary[int, Any] = field(default_factory=WeakValueDictionary)  # by id: what it reaches by names


class TakenApart:
    """A call's arguments, behind what is in targets, with parts for lists, dicts and objects. The instance of a method
    stays as it is, unless `takes_self`, and so do objects without arrays that the function reaches by names,
    too: it may compare them.

    Ints that are arguments, in targets, or among those which calls have set so far, or code sets, are parameters.
    """

    def __init__(
        self,
        signature: inspect.Signature,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        targets: Sequence[Target] = (),
        learned: Learned | None = None,
        *,
        takes_self: bool = False,
    ) -> None:
        self._learned = Learned() if learned is None else learned
        self.hides_items = False  # of lists that are only appended to
        self._wholes: list[Any] = []
        self._given: list[Parts] = []  # of each its parts
        self._numbers: dict[int, int] = {}
        self._targets = targets
        self._own: Mapping[int, Any] = {}
        self.is_traced = False  # a traced value is in an object: the call is part of another function's trace
        self.has_objects = False  # beside lists and dicts
        stays = not takes_self and next(iter(signature.parameters), "") == "self"
        self.args = [self._argument(target.value()) for target in targets]
        self._own = self._learned.own
        self.args += [a if stays and i == 0 else self._argument(a) for i, a in enumerate(args)]
        # Objects are numbered in the order in which the trace binds them.
        order = {name: i for i, name in enumerate(signature.parameters)}
        bound = {n: self._argument(kwargs[n]) for n in sorted(kwargs, key=lambda n: order.get(n, len(order)))}
        self.kwargs = {name: bound[name] for name in kwargs}

    def put_back(self, returned: Any) -> Any:
        """Leaves the caller's objects as the function does, and gives its result."""
        if not isinstance(returned, Returned):
            return returned
        filled = self._filler(returned.values)
        steps: list[Callable[[], None]] = []
        for number, items in returned.changed.items():
            whole = self._wholes[number]
            before, kept = contents(whole), {key for key, value in items.items() if _is_kept(value)}
            if self._given[number][ClassKey] is Appended:
                new = [filled(v) for k, v in items.items() if k not in kept]
                steps.append(functools.partial(whole.extend, iter(new)))  # which is at its end the second time
                continue
            self._learn(number, before, items, kept)
            after = {k: before[k] if k in kept else filled(v) for k, v in items.items() if k in before or k not in kept}
            after = after if isinstance(whole, list) else _joined(after, before, self._given[number])
            steps.append(functools.partial(set_contents, whole, after))
        steps += [functools.partial(self._targets[n].set, filled(value)) for n, value in returned.placed.items()]
        result = filled(returned.result)
        surely(steps)
        return result

    def _learn(self, number: int, before: Mapping[Any, Any], items: Mapping[Any, Any], kept: set[Any]) -> None:
        self._learned.counters |= {(number, key) for key in items.keys() - kept if is_int(before.get(key))}
        count = len(self._given[number]) - 1
        if self._given[number][ClassKey] is list and len(items) > count and kept == set(range(count)):
            self._learned.appended.add(number)

    def _argument(self, value: Any) -> Any:
        return IntArgument(value) if is_int(value) else self._part(value)

    def _part(self, value: Any) -> Any:
        kind = type(value)
        if kind in ATOMS:
            return value
        if kind is tuple:
            return tuple(map(self._part, value))
        if not is_taken_apart(value):
            self.is_traced = self.is_traced or is_traced(value)
            is_other = isinstance(value, (tuple, list, dict)) and not isinstance(value, Parts)
            return walk(value, lambda _, v: self._part(v), is_leaf=is_taken_apart) if is_other else value
        self.has_objects = self.has_objects or kind not in _CONTAINERS
        if id(value) in self._own and id(value) not in self._numbers and not holds(value, is_array):
            return value
        number = self._numbers.setdefault(id(value), len(self._wholes))
        if number < len(self._wholes):
            return whole_of(number)
        self._wholes.append(value)
        made = Parts({ClassKey: kind} | ({FactoryKey: value.default_factory} if kind is defaultdict else {}))
        self._given.append(made)
        if kind is list and number in self._learned.appended - self._learned.read:
            made[ClassKey] = Appended
            self.hides_items = True
            return made
        for key, item in contents(value).items():
            is_set = (number, key) in self._learned.counters or key in self._learned.named
            made[key] = self._argument(item) if is_set else self._part(item)
        return made

    def _filler(self, values: Sequence[Any]) -> Callable[[Any], Any]:
        """What puts the caller's objects and arrays, and values, in their targets."""
        call = self.args, self.kwargs
        numbers = functools.cache(lambda: registers(*call))
        arrays = functools.cache(lambda: [v for v in leaves(call) if is_array(v) and not isinstance(v, np.generic)])

        def array(source: Given | Value) -> Any:
            return values[source.number] if isinstance(source, Value) else arrays()[source.number]

        sources: dict[type, Callable[[Any], Any]] = {
            Whole: lambda whole: self._wholes[whole.number],
            Given: array,
            Value: array,
            View: lambda view: viewed(view.path, array(view.of)),
            Computed: lambda computed: computed.value(numbers()),
        }

        def is_source(v: Any) -> bool:
            return type(v) in sources

        def visit(_: str, v: Any) -> Any:
            return sources[type(v)](v) if is_source(v) else v

        def filled(value: Any) -> Any:
            if not is_source(value) and not holds(value, is_source):
                return value
            return walk(value, visit, enters=lambda v: may_hold_results(v) and holds(v, is_source), is_leaf=is_source)

        return filled


def is_taken_apart(value: Any) -> bool:
    """Whether what a value holds is an argument in its place."""
    kind = type(value)
    return kind in _CONTAINERS or (is_plain_type(kind) and foreign_library(kind) is None)


def is_traced(value: Any) -> bool:
    """Whether it stands for an array while a function is traced."""
    return hasattr(type(value), "__kfusion_traced__")


def _is_kept(item: Any) -> bool:
    return isinstance(item, Whole) and item.number < 0


def _joined(after: dict[Any, Any], before: Mapping[Any, Any], given: Parts) -> dict[Any, Any]:
    """What a call leaves in an object, and what another thread has put there since the call took it apart."""
    others = {key: value for key, value in before.items() if key not in given and key not in after}
    if not others:
        return after
    own = {key: value for key, value in after.items() if key in given}
    return own | others | {key: value for key, value in after.items() if key not in given}


def holds(value: Any, test: Callable[[Any], bool], depth: int = 4) -> bool:
    """Whether what an object holds passes the test, or holds such a thing."""
    if isinstance(value, (tuple, list)):
        held: Any = value
    elif isinstance(value, dict) or may_hold_results(value):
        held = [*(value.values() if isinstance(value, dict) else ()), *getattr(value, "__dict__", {}).values()]
    else:
        return False
    return any(test(v) or (depth > 0 and holds(v, test, depth - 1)) for v in held)


def holds_traced(values: Iterable[Any]) -> bool:
    """Whether something of a trace is behind one of the values."""
    return any(is_traced(v) or is_number(v) or is_size(v) for v in reached(values)[0])
