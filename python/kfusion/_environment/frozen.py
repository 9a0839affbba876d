"""What a function depends on beside its arguments, as the forward pass has read it: backward passes read that again."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from threading import local
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from .._graph.structure import ATOMS, blank
from . import parts
from .alone import alone
from .contents import ABSENT, contents, is_container, set_contents
from .guards import Guard
from .targets import Target, scopes

_SOMETHING = object()  # stands for whatever is there
_IMMUTABLE = (tuple, frozenset)
_IN_PLACE = (set, deque, local, ContextVar, np.ndarray)  # containers that are set as they were; others are made anew


class _Weak(weakref.ref[Any]):
    """Stands for an object."""

    __slots__ = ()


class _Items:
    """What a container holds, and its class."""

    def __init__(self, value: Any) -> None:
        self.kind = type(value)
        self.made_by = getattr(value, "default_factory", None)
        self.held: dict[Any, Any] = {}


class _Scope(NamedTuple):
    """What names of an owner are bound to. `whole`: these are all its names."""

    owner: weakref.ref[Any]
    kind: str
    values: dict[Any, Any]
    whole: bool = False


class Frozen:
    """The values that guards compare, as they are when this is made. Like guards, it keeps no array alive, unless
    `keeps`.
    """

    def __init__(self, guards: list[Guard], *, keeps: bool = False) -> None:
        self._keeps = keeps
        self._environments = [_core.Environment(guards)]
        self._known: dict[int, tuple[Any, Any]] = {}  # by id, while this is made
        self._contents: list[tuple[Any, _Items]] = []
        self._scopes = [
            scope._replace(values={name: self._kept(value) for name, value in scope.values.items()})
            for guard in guards
            for scope in _scopes(guard)
        ]
        self._known = {}

    def is_like(self, other: Frozen) -> bool:
        """Whether it holds now, and has what another one has that was just made."""
        if len(self._scopes) != len(other._scopes) or not self._holds():
            return False
        pairs = zip(self._scopes, other._scopes, strict=True)
        return all(x.owner() is y.owner() and x.kind == y.kind and x.values.keys() == y.values.keys() for x, y in pairs)

    def after(self, guards: list[Guard]) -> None:
        """What the function has left, such as results that `functools.lru_cache` keeps, may be there as well."""
        if not self._holds():
            self._environments.append(_core.Environment(guards))

    def _holds(self) -> bool:
        return any(environment.holds() for environment in self._environments)

    @contextlib.contextmanager
    def again(self, who: str) -> Iterator[None]:
        """A context in which names are bound to what they were bound to.

        Raises:
            RuntimeError: to something that is gone, or other things that guards compare have changed. `who` begins it.
        """
        with alone():
            made = _Made(who)
            changed = [(target, target.value(), made.of(was, target.name)) for target, was in self._changed()]
            others = ((v, {k: made.of(x, type(v).__name__) for k, x in was.items()}) for v, was in self._others())
            held = [(value, contents(value), items) for value, items in others]
            try:
                for target, _, was in changed:
                    target.set(was)
                for value, _, items in held:
                    set_contents(value, items)
                if not self._holds():
                    what = "what it depends on beside its arguments was changed after the forward pass"
                    raise RuntimeError(f"{who}: {what}")
                yield
            finally:
                for value, now, _ in held:
                    set_contents(value, now)
                for target, now, was in changed:
                    if target.value() is was:  # no other thread has set it since
                        target.set(now)

    def _changed(self) -> Iterator[tuple[Target, Any]]:
        """What is bound to something else now, and what stands for what it was."""
        for weak, kind, values, is_whole in self._scopes:
            if (owner := weak()) is None:
                continue
            now = dict(scopes(owner))[kind]
            others = (name for name, was in values.items() if not _is(now.get(name, ABSENT), was, set()))
            yield from ((Target(weak, kind, name), values[name]) for name in others)
            yield from ((Target(weak, kind, name), ABSENT) for name in now if is_whole and name not in values)

    def _others(self) -> Iterator[tuple[Any, dict[Any, Any]]]:
        return ((value, was.held) for value, was in self._contents if not _holds(value, was, set()))

    def _kept(self, value: Any) -> Any:
        """What stands for a value: for a container what it holds, for another object a weak reference, if possible."""
        if type(value) in ATOMS or value is ABSENT or value is _SOMETHING:
            return value
        if id(value) not in self._known:
            if isinstance(value, _IMMUTABLE) or is_container(value):
                items, stays = _Items(value), isinstance(value, _IN_PLACE)
                self._known[id(value)] = value, value if stays else items
                items.held |= {key: self._kept(item) for key, item in _items(value).items()}
                self._contents += [(value, items)] * stays
            else:
                holds_none = type(value) is FunctionType and not value.__closure__
                stays = self._keeps or holds_none or not type(value).__weakrefoffset__
                self._known[id(value)] = value, value if stays else _Weak(value)
        return self._known[id(value)][1]


def _scopes(guard: Guard) -> Iterator[_Scope]:
    """The values that a guard compares, but for what a library tells when it is asked."""
    owner = guard.owner
    if guard.asks:
        return
    known = dict(scopes(owner))
    if isinstance(owner, FunctionType):
        cells = [owner.__code__.co_freevars[i] for i in guard.cells]
        names = {"global": guard.names, "cell": cells, "attribute": known["attribute"] if guard.whole else ()}
        for kind, held in known.items():
            yield _Scope(weakref.ref(owner), kind, {n: held.get(n, ABSENT) for n in names.get(kind, held)})
        return
    own = known["attribute"]
    if guard.whole:
        values = {name: _SOMETHING if name in guard.names else value for name, value in own.items()}
        yield _Scope(weakref.ref(owner), "attribute", values, whole=True)
        return
    yield _Scope(weakref.ref(owner), "attribute", {name: own.get(name, ABSENT) for name in guard.names})
    kinds = () if isinstance(owner, ModuleType) else parts.classes(owner)
    for name in guard.names:
        for of_class in [of_class for of_class in kinds if name in vars(of_class)][:1]:
            yield _Scope(weakref.ref(of_class), "attribute", {name: vars(of_class)[name]})


def _items(value: Any) -> dict[Any, Any]:
    return dict(enumerate(value)) if isinstance(value, _IMMUTABLE) else contents(value)


def _is(value: Any, kept: Any, met: set[tuple[int, int]]) -> bool:
    """Whether that stands for the value. `met`: what is being compared."""
    if type(kept) is _Items:
        return type(value) is kept.kind and _holds(value, kept, met)
    if type(kept) is _Weak:
        return kept() is value
    if kept is _SOMETHING:
        return value is not ABSENT
    return value is kept or (type(value) is type(kept) and type(value) in ATOMS and repr(value) == repr(kept))


def _holds(value: Any, kept: _Items, met: set[tuple[int, int]]) -> bool:
    pair = id(value), id(kept)
    if pair in met:
        return True
    met.add(pair)
    items = _items(value)
    return list(items) == list(kept.held) and all(_is(items[key], was, met) for key, was in kept.held.items())


class _Made:
    """Values by what stands for them."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._known: dict[int, Any] = {}  # by id, the containers that were made

    def of(self, kept: Any, name: Any) -> Any:
        """The value of that name."""
        if type(kept) is _Weak and kept() is None:
            raise RuntimeError(f"{self._who}: what it has read as `{name}` in the forward pass is gone")
        if type(kept) is not _Items:
            return kept() if type(kept) is _Weak else kept
        known, kind = self._known, kept.kind
        if id(kept) not in known and issubclass(kind, _IMMUTABLE):
            base: Any = tuple if issubclass(kind, tuple) else frozenset
            known[id(kept)] = base.__new__(kind, [self.of(item, name) for item in kept.held.values()])
        elif id(kept) not in known:
            known[id(kept)] = blank(kind)
            if kept.made_by is not None:
                known[id(kept)].default_factory = kept.made_by
            set_contents(known[id(kept)], {key: self.of(item, name) for key, item in kept.held.items()})
        return known[id(kept)]
