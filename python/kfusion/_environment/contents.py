"""What containers hold, to be compared and put back: lists, dicts and others, and objects without weak references."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from threading import local
from types import MemberDescriptorType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from .._graph.appended import Appended
from .._graph.source import trace_error
from .._graph.structure import ATOMS, HEAP_TYPE, attributes, containers

_AN = (*"aeiouAEIOU", "nd", "HASH")  # before these it is "an"


class _Absent:
    """What is in a target where there is nothing."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()


class _Attribute:
    """The key of an attribute of a list or dict."""

    def __init__(self, name: str) -> None:
        self.name = name


_attribute = functools.cache(_Attribute)  # of each name one: what containers hold is compared by keys


def is_container(value: Any) -> bool:
    """Whether a value holds others that may change, and is not looked at as an object with attributes."""
    if issubclass(type(value), np.ndarray):  # what stands for an array says that it is one
        return bool(value.dtype == object)
    return isinstance(value, (list, dict, set, deque, SimpleNamespace, local, ContextVar)) or _is_slotted(type(value))


def containers_in(values: Iterable[Any]) -> list[Any]:
    """The containers among the values and within them, each once."""
    return list(filter(is_container, looked_through(values)))


def looked_through(values: Iterable[Any]) -> list[Any]:
    """The values and what is in containers and tuples among them and within them, each once, but for atoms."""
    found: dict[int, Any] = {}
    todo = list(values)
    while todo:
        value = todo.pop()
        if type(value) in ATOMS or id(value) in found:
            continue
        found[id(value)] = value
        if isinstance(value, (tuple, frozenset)):
            todo += value
        elif is_container(value):
            todo += contents(value).values()
    return list(found.values())


def contents(value: Any) -> dict[Any, Any]:
    """What a container holds, or an object's attributes."""
    if isinstance(value, np.ndarray):
        return {index: value[index] for index in np.ndindex(value.shape)}
    if isinstance(value, ContextVar):
        return {"value": value.get(ABSENT)}
    if isinstance(value, (list, set, deque)):
        items: dict[Any, Any] = dict(enumerate(list.__iter__(value) if type(value) is Appended else value))
    elif isinstance(value, dict):
        items = dict(value)
    else:
        return dict(_slots(value)) | attributes(value) if _members(type(value)) else dict(attributes(value))
    return items | {_attribute(name): held for name, held in getattr(value, "__dict__", {}).items()}


def set_contents(value: Any, items: Mapping[Any, Any]) -> None:
    """Makes it hold these and nothing else."""
    own = {key.name: held for key, held in items.items() if isinstance(key, _Attribute)}
    items = {key: held for key, held in items.items() if not isinstance(key, _Attribute)}
    if isinstance(value, ContextVar):
        if items["value"] is not ABSENT:  # else a context of its own ends with the trace
            value.set(items["value"])
    elif isinstance(value, np.ndarray):
        for index, held in items.items():
            value[index] = held
    elif isinstance(value, list):
        value[:] = items.values()
    elif isinstance(value, deque):
        value.clear()
        value.extend(items.values())
    elif isinstance(value, set):
        value.clear()
        value.update(items.values())
    elif isinstance(value, dict):
        _set_items(value, items)
    else:
        own = _set_slots(value, items)
    if hasattr(value, "__dict__"):
        _set_items(vars(value), own)


def _set_items(held: dict[Any, Any], items: Mapping[Any, Any]) -> None:
    """What stays is there all the time: other threads read it."""
    for key in held.keys() - items.keys():
        held.pop(key, None)
    if list(items)[: len(held)] != list(held):  # another order of keys
        held.clear()
    for key, value in items.items():
        if held.get(key, ABSENT) is not value:
            held[key] = value


def surely(steps: Iterable[Callable[[], None]]) -> None:
    """Does all of them, also where an exception from outside (Ctrl-C) comes between: the step before it is done again,
    and then it is raised. Nothing is done where it comes before the first one.
    """
    todo = list(steps)[::-1]
    interrupted: BaseException | None = None
    while todo:
        try:
            while todo:
                todo[-1]()
                todo.pop()
        except KeyboardInterrupt as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted


def same(x: Mapping[Any, Any], y: Mapping[Any, Any]) -> bool:
    """Whether two states are one."""
    return list(x) == list(y) and all(x[key] is y[key] for key in x)


def remembered(values: Iterable[Any]) -> list[tuple[Any, dict[Any, Any]]]:
    """Containers, and what each holds."""
    return [(value, contents(value)) for value in values]


def changed(before: Iterable[tuple[Any, dict[Any, Any]]]) -> list[Any]:
    """Containers that were `remembered` and hold something else now."""
    return [value for value, held in before if not same(held, contents(value))]


def require_items_only(argument: Any) -> None:
    """Lists among the arguments are made anew while they are traced, of their items.

    Raises:
        TraceError: one of a class of the user's has attributes beside them.
    """
    for held in containers(argument):
        if isinstance(held, list) and type(held) is not list and (own := getattr(held, "__dict__", {})):
            what = f"an argument is or holds {kinds([held])}, a list with attributes ({', '.join(own)})"
            raise trace_error(what, "pass these as arguments of their own", "")


def kinds(values: Iterable[Any]) -> str:
    """What messages call containers: "a Counter, an ndarray"."""
    names = dict.fromkeys(type(value).__name__ for value in values)
    return ", ".join(f"{'an' if name.startswith(_AN) else 'a'} {name}" for name in names)


def _is_slotted(kind: type) -> bool:
    """Whether objects of a class have attributes, and no weak references: none can be a target's owner."""
    if kind.__weakrefoffset__ or not kind.__flags__ & HEAP_TYPE or issubclass(kind, (tuple, int, str)):
        return False
    return any("__slots__" in vars(base) for base in kind.__mro__)


_known_members: WeakKeyDictionary[type, dict[str, MemberDescriptorType]] = WeakKeyDictionary()


def _members(kind: type) -> dict[str, MemberDescriptorType]:
    """A class's slots, by name."""
    known = _known_members.get(kind)
    if known is None:
        scopes = [vars(base) for base in reversed(kind.__mro__) if base.__flags__ & HEAP_TYPE]
        found = [(n, member) for scope in scopes for n, member in scope.items()]
        known = _known_members[kind] = {n: m for n, m in found if isinstance(m, MemberDescriptorType)}
    return known


def _slots(value: Any) -> Iterator[tuple[str, Any]]:
    for name, member in _members(type(value)).items():
        with contextlib.suppress(AttributeError):  # where it is not set
            yield name, member.__get__(value)


def _set_slots(value: Any, items: Mapping[str, Any]) -> dict[str, Any]:
    """Sets those that are slots, and gives the others."""
    members, known = _members(type(value)), dict(_slots(value))
    for name, member in members.items():
        if name in items:
            member.__set__(value, items[name])
        elif name in known:
            member.__delete__(value)
    return {name: held for name, held in items.items() if name not in members}
