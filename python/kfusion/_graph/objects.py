"""Lists, dicts and objects among the arguments, such as a cache of keys and values, and whatever a function sets: taken
apart before a call, put together for the function while it is traced, and given what the function sets after the call.

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

import numpy as np

from .._spec import is_array
from .appended import Appended, ReadsItems
from .contents import changed, contents, kinds, remembered, same, set_contents, surely
from .number import Computed, IntArgument, computed, is_int, is_number, registers
from .reach import reached
from .sizes import is_size
from .source import SetsState
from .structure import ATOMS, blank, containers, foreign_library, is_plain_type, leaves, may_hold_results, walk
from .values import Traced

_CONTAINERS = (list, dict, OrderedDict, defaultdict)


class _Class:
    """The key of an object's class among its parts."""


class _Factory:
    """The key of what a defaultdict makes of a key that it does not have."""


class Parts(dict[Any, Any]):
    """An object's attributes by name, a list's items by number or a dict's by key; at _Class its class."""


@dataclass(frozen=True)
class Whole:
    """The caller's object of this number: in results, or where an argument is met again."""

    number: int


_WHOLES: dict[int, Whole] = {}  # of each number one: signatures name them by identity


def _whole(number: int) -> Whole:
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
class Returned:
    """What a function that sets something returns: the values that it computes, its result, what lists, dicts and
    objects hold that it changed, by number, and what is in those places that it set, by number. An unchanged item is a
    `Whole` below 0.
    """

    values: tuple[Any, ...]
    result: Any
    changed: dict[int, dict[Any, Any]]
    placed: dict[int, Any]


Key = tuple[int, str]  # of a place: whose it is, by id, and what it is called there


class Place(Protocol):
    """Where a function may set something beside its arguments."""

    @property
    def key(self) -> Key:
        """What identifies the place while its owner lives."""

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


class TakenApart:
    """A call's arguments, behind what is in places, with parts for lists, dicts and objects. The instance that a method
    is of stays as it is, unless `takes_self`.

    Ints that are arguments, in places, or among those which calls have set so far are parameters.
    """

    def __init__(
        self,
        signature: inspect.Signature,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        places: Sequence[Place] = (),
        learned: Learned | None = None,
        *,
        takes_self: bool = False,
    ) -> None:
        self._learned = Learned() if learned is None else learned
        self.hides_items = False  # of lists that are only appended to
        self._wholes: list[Any] = []
        self._given: list[Parts] = []  # of each its parts
        self._numbers: dict[int, int] = {}
        self._places = places
        self.is_traced = False  # a traced value is in an object: the call is part of another function's trace
        self.has_objects = False  # beside lists and dicts
        stays = not takes_self and next(iter(signature.parameters), "") == "self"
        self.args = [self._argument(place.value()) for place in places]
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
            if self._given[number][_Class] is Appended:
                new = [filled(v) for k, v in items.items() if k not in kept]
                steps.append(functools.partial(whole.extend, iter(new)))  # which is at its end the second time
                continue
            self._learn(number, before, items, kept)
            after = {k: before[k] if k in kept else filled(v) for k, v in items.items() if k in before or k not in kept}
            after = after if isinstance(whole, list) else _joined(after, before, self._given[number])
            steps.append(functools.partial(set_contents, whole, after))
        steps += [functools.partial(self._places[n].set, filled(value)) for n, value in returned.placed.items()]
        result = filled(returned.result)
        surely(steps)
        return result

    def _learn(self, number: int, before: Mapping[Any, Any], items: Mapping[Any, Any], kept: set[Any]) -> None:
        self._learned.counters |= {(number, key) for key in items.keys() - kept if is_int(before.get(key))}
        count = len(self._given[number]) - 1
        if self._given[number][_Class] is list and len(items) > count and kept == set(range(count)):
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
        number = self._numbers.setdefault(id(value), len(self._wholes))
        if number < len(self._wholes):
            return _whole(number)
        self._wholes.append(value)
        made = Parts({_Class: kind} | ({_Factory: value.default_factory} if kind is defaultdict else {}))
        self._given.append(made)
        if kind is list and number in self._learned.appended - self._learned.read:
            made[_Class] = Appended
            self.hides_items = True
            return made
        for key, item in contents(value).items():
            made[key] = self._argument(item) if (number, key) in self._learned.counters else self._part(item)
        return made

    def _filler(self, values: Sequence[Any]) -> Callable[[Any], Any]:
        """What puts the caller's objects and arrays, and values, in their places."""
        call = self.args, self.kwargs
        numbers = functools.cache(lambda: registers(*call))
        arrays = functools.cache(lambda: [v for v in leaves(call) if is_array(v) and not isinstance(v, np.generic)])
        forms: dict[type, Callable[[Any], Any]] = {
            Whole: lambda whole: self._wholes[whole.number],
            Given: lambda given: arrays()[given.number],
            Value: lambda value: values[value.number],
            Computed: lambda computed: computed.value(numbers()),
        }

        def is_form(v: Any) -> bool:
            return type(v) in forms

        def visit(_: str, v: Any) -> Any:
            return forms[type(v)](v) if is_form(v) else v

        def filled(value: Any) -> Any:
            if not is_form(value) and not holds(value, is_form):
                return value
            return walk(value, visit, enters=may_hold_results, is_leaf=is_form)

        return filled


class Functional:
    """A function that returns what another one sets: in its arguments, and in places, whose values come before them.
    `has_out`: callers give arrays for its results, which what it sets must not become.
    """

    def __init__(
        self,
        function: Any,
        name: str,
        signature: inspect.Signature,
        places: Sequence[Place] = (),
        *,
        has_out: bool = False,
    ) -> None:
        self.__wrapped__ = function
        self.__name__ = name
        self.places = places
        self._has_out = has_out
        first = [inspect.Parameter(f"_{i}", inspect.Parameter.POSITIONAL_ONLY) for i in range(len(places))]
        self.__signature__ = signature.replace(parameters=[*first, *signature.parameters.values()])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        together = PutTogether((args, kwargs))
        made = list(map(together.made_of, args))
        named = {name: together.made_of(value) for name, value in kwargs.items()}
        count = len(self.places)
        with ValuesInPlaces(self.places, made[:count]) as values:
            result = self.__wrapped__(*made[count:], **named)
        if others := changed(together.copies):
            raise SetsState(self.__name__, what=kinds(others))
        returned = together.returned(result, values.found)
        if self._has_out and together.sets_values:
            what = f"kfusion.{self.__name__}: out= is for results, and it sets other arrays beside them"
            raise ValueError(f"{what}: call it without out=")
        return returned


class ValuesInPlaces:
    """While it is entered, values stand in places. `found` are those that are there at the end, by number, where they
    are others.
    """

    def __init__(self, places: Sequence[Place], values: Sequence[Any]) -> None:
        self._places, self._values = places, values
        self._before: list[Any] = []
        self.found: dict[int, Any] = {}

    def __enter__(self) -> ValuesInPlaces:
        self._before = [place.value() for place in self._places]
        for place, value in zip(self._places, self._values, strict=True):
            place.set(value)
        return self

    def __exit__(self, *error: object) -> None:
        now = [place.value() for place in self._places]
        for place, value in zip(self._places, self._before, strict=True):
            place.set(value)
        pairs = enumerate(zip(now, self._values, strict=True))
        self.found = {number: value for number, (value, given) in pairs if value is not given}


class PutTogether:
    """Objects made of parts, for a function that is traced. `copies`: of other lists and dicts, in which calls can set
    nothing, and what is in them.
    """

    def __init__(self, call: tuple[Any, Any] = ((), {})) -> None:
        self.copies: list[tuple[Any, dict[Any, Any]]] = []
        self._call = call
        self._values: dict[int, Any] = {}  # that it returns or sets, by id
        self.sets_values = False  # beside arguments
        self._made: list[Any] = []
        self._before: list[dict[Any, Any]] = []

    def returned(self, result: Any, placed: Mapping[int, Any]) -> Any:
        """The function's result, and what it changed in objects and set in places. The result itself where there are
        none.
        """
        if not self._made and not placed:
            return result
        result = self._numbered(result, is_set=False)
        changed = {}
        for number, (made, before) in enumerate(zip(self._made, self._before, strict=True)):
            if type(made) is Appended and made.is_read:
                raise ReadsItems(number)
            after = contents(made)
            if not same(before, after):
                kept = {key for key in after if key in before and after[key] is before[key]}
                changed[number] = {k: _whole(-1) if k in kept else self._numbered(v) for k, v in after.items()}
        set_in_places = {n: self._numbered(v) for n, v in placed.items()}
        values = list(self._values.values())
        if not values:  # a function of arrays computes something
            self.sets_values = True
            values = [v for v in leaves(self._call) if is_traced(v)][:1]
        return Returned(tuple(values), result, changed, set_in_places)

    def made_of(self, argument: Any) -> Any:
        """An argument with objects in place of parts; itself where it has none."""
        if type(argument) is IntArgument:
            return int(argument)
        parts: list[Any] = []

        def visit(_: str, leaf: Any) -> Any:
            if isinstance(leaf, (Parts, Whole)):
                parts.append(leaf)
            return self._one(leaf)

        made = walk(argument, visit, is_leaf=lambda v: isinstance(v, Parts))
        if not parts:
            return argument
        numbered = set(map(id, self._made))
        self.copies += remembered(v for v in containers(made) if id(v) not in numbered)
        return made

    def _one(self, value: Any) -> Any:
        if isinstance(value, Whole):
            return self._made[value.number]
        if not isinstance(value, Parts):
            return value
        number = len(self._made)
        made = Appended(number) if value[_Class] is Appended else blank(value[_Class])
        if _Factory in value:
            made.default_factory = value[_Factory]
        self._made.append(made)
        self._before.append(contents(made))
        if type(made) is Appended:
            return made
        items = {key: item for key, item in value.items() if key not in (_Class, _Factory)}
        self._before[number] = {key: self.made_of(item) for key, item in items.items()}
        set_contents(made, self._before[number])
        return made

    def _numbered(self, value: Any, *, is_set: bool = True) -> Any:
        """With a form for what calls put there; what is set, and not returned, are arguments and numbers themselves."""
        numbers = {id(made): number for number, made in enumerate(self._made)}

        def test(v: Any) -> bool:
            return id(v) in numbers or is_traced(v) or (is_set and is_number(v))

        def leaf(_: str, v: Any) -> Any:
            if id(v) in numbers:
                return _whole(numbers[id(v)])
            if is_traced(v):
                given = self._arguments.get(id(v), -1) if is_set else -1
                self.sets_values = self.sets_values or (is_set and given < 0)
                return Value(self._number(v)) if given < 0 else Given(given)
            return computed(v) if is_set and is_number(v) else v

        return walk(value, leaf, enters=lambda v: may_hold_results(v) and holds(v, test), is_leaf=test)

    def _number(self, value: Any) -> int:
        self._values.setdefault(id(value), value)
        return list(self._values).index(id(value))

    @functools.cached_property
    def _arguments(self) -> dict[int, int]:
        """By id what stands for arrays of the call, and their numbers."""
        return {id(v): v._tracer.number_of(v) for v in leaves(self._call) if isinstance(v, Traced)}


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
