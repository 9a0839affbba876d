"""Objects among the arguments, such as a cache of keys and values: taken apart before a call, put together for the
function while it is traced, and given what the function sets in them after the call.

A call `f(x, cache)` becomes `f(x, Parts)`: the attributes by name, with parts for the lists, dicts and objects that
they hold. So an array in an object is an argument, and what else it holds decides which kernels run, as the arguments
do. The trace calls the function with an object of the same class that holds traced values, and looks at what changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .structure import blank, is_plain, may_hold_results, walk

_CLASS = ""  # among the items of parts: no attribute has that name
_CONTAINERS = (list, dict)


class Parts(dict[Any, Any]):
    """An object's attributes by name, a list's items by number or a dict's by key; at _CLASS its class."""


@dataclass(frozen=True)
class Whole:
    """The caller's object of this number: in results, or where an argument is met again."""

    number: int


KEPT = Whole(-1)  # an item that the function did not change


@dataclass(frozen=True)
class Returned:
    """What a traced function of objects returns: its result, and what the objects hold that it changed, by number."""

    result: Any
    changed: dict[int, dict[Any, Any]]


class TakenApart:
    """A call's arguments with parts in the place of objects. The instance that a method is of stays as it is."""

    def __init__(self, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._wholes: list[Any] = []
        self._numbers: dict[int, int] = {}
        self.is_traced = False  # a traced value is in an object: the call is part of another function's trace
        method = next(iter(signature.parameters), "") == "self"
        self.args = [a if method and i == 0 else self._apart(a) for i, a in enumerate(args)]
        # Objects are numbered in the order in which the trace binds them.
        places = {name: i for i, name in enumerate(signature.parameters)}
        bound = {n: self._apart(kwargs[n]) for n in sorted(kwargs, key=lambda n: places.get(n, len(places)))}
        self.kwargs = {name: bound[name] for name in kwargs}

    def put_back(self, returned: Any) -> Any:
        """Leaves the caller's objects as the function does, and gives its result."""
        if not isinstance(returned, Returned):
            return returned
        for number, items in returned.changed.items():
            whole = self._wholes[number]
            before = _state(whole)
            after = {key: before[key] if item is KEPT else self._with_wholes(item) for key, item in items.items()}
            _set_state(whole, after)
        return self._with_wholes(returned.result)

    def _apart(self, argument: Any) -> Any:
        return walk(argument, lambda _, leaf: self._part(leaf) if is_plain(leaf) else leaf)

    def _part(self, value: Any) -> Any:
        if type(value) is tuple:
            return tuple(map(self._part, value))
        if type(value) not in _CONTAINERS and not is_plain(value):
            self.is_traced = self.is_traced or hasattr(type(value), "__kfusion_traced__")
            return value
        number = self._numbers.setdefault(id(value), len(self._wholes))
        if number < len(self._wholes):
            return Whole(number)
        self._wholes.append(value)
        return Parts({_CLASS: type(value)} | {key: self._part(item) for key, item in _state(value).items()})

    def _with_wholes(self, value: Any) -> Any:
        def leaf(path: str, value: Any) -> Any:
            return self._wholes[value.number] if isinstance(value, Whole) else value

        return walk(value, leaf, enters=lambda v: may_hold_results(v) and holds(v, _is_whole), is_leaf=_is_whole)


class PutTogether:
    """Arguments with objects made of parts, for a function that is traced."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._made: list[Any] = []
        self._before: list[dict[Any, Any]] = []
        self.arguments = {name: self._together(a) for name, a in arguments.items()}
        self._numbers = {id(made): number for number, made in enumerate(self._made)}

    def returned(self, result: Any) -> Any:
        """The function's result and what it changed in objects. The result itself where there are none."""
        if not self._made:
            return result
        changed = {}
        for number, (made, before) in enumerate(zip(self._made, self._before, strict=True)):
            after = _state(made)
            if not _same(before, after):
                kept = {key for key in after if key in before and after[key] is before[key]}
                changed[number] = {k: KEPT if k in kept else self._numbered(v) for k, v in after.items()}
        return Returned(self._numbered(result), changed)

    def _together(self, argument: Any) -> Any:
        return walk(argument, lambda _, leaf: self._made_of(leaf), is_leaf=lambda v: isinstance(v, Parts))

    def _made_of(self, value: Any) -> Any:
        if isinstance(value, Whole):
            return self._made[value.number]
        if type(value) is tuple:
            return tuple(map(self._made_of, value))
        if not isinstance(value, Parts):
            return value
        kind = value[_CLASS]
        made = blank(kind)
        number = len(self._made)
        self._made.append(made)
        self._before.append({})
        self._before[number] = {key: self._made_of(item) for key, item in value.items() if key != _CLASS}
        _set_state(made, self._before[number])
        return made

    def _numbered(self, value: Any) -> Any:
        def is_made(v: Any) -> bool:
            return id(v) in self._numbers

        def leaf(path: str, v: Any) -> Any:
            return Whole(self._numbers[id(v)]) if is_made(v) else v

        return walk(value, leaf, enters=lambda v: may_hold_results(v) and holds(v, is_made), is_leaf=is_made)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Whole)


def holds(value: Any, test: Callable[[Any], bool], depth: int = 4) -> bool:
    """Whether what an object holds passes the test, or holds such a thing."""
    if isinstance(value, (tuple, list)):
        held: Any = value
    elif isinstance(value, dict) or may_hold_results(value):
        held = [*(value.values() if isinstance(value, dict) else ()), *getattr(value, "__dict__", {}).values()]
    else:
        return False
    return any(test(v) or (depth > 0 and holds(v, test, depth - 1)) for v in held)


def _state(value: Any) -> dict[Any, Any]:
    if isinstance(value, list):
        return dict(enumerate(value))
    return dict(value if isinstance(value, dict) else vars(value))


def _set_state(value: Any, items: Mapping[Any, Any]) -> None:
    if isinstance(value, list):
        value[:] = items.values()
        return
    held = value if isinstance(value, dict) else vars(value)
    held.clear()
    held.update(items)


def _same(x: Mapping[Any, Any], y: Mapping[Any, Any]) -> bool:
    return list(x) == list(y) and all(x[key] is y[key] for key in x)
