"""Functions that return what others set, in arguments and targets: what is traced of a function with state."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._graph.appended import Appended, ReadsItems
from .._graph.number import IntArgument, computed, is_number
from .._graph.source import SetsState
from .._graph.structure import blank, containers, leaves, may_hold_results, walk
from .._graph.values import Traced
from .contents import changed, contents, kinds, remembered, same, set_contents
from .objects import (
    ClassKey,
    FactoryKey,
    Given,
    Parts,
    Returned,
    Target,
    Value,
    View,
    Whole,
    holds,
    is_traced,
    whole_of,
)


class Functional:
    """A function that returns what another one sets: in its arguments, and in targets, whose values come before them.
    `has_out`: callers give arrays for its results, which what it sets must not become. `before` is called first.
    """

    def __init__(
        self,
        function: Any,
        name: str,
        signature: inspect.Signature,
        targets: Sequence[Target] = (),
        *,
        has_out: bool = False,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.__wrapped__ = function
        self.__name__ = name
        self.targets = targets
        self._has_out = has_out
        self._before = before
        first = [inspect.Parameter(f"_{i}", inspect.Parameter.POSITIONAL_ONLY) for i in range(len(targets))]
        self.__signature__ = signature.replace(parameters=[*first, *signature.parameters.values()])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._before()
        together = PutTogether((args, kwargs))
        made = list(map(together.made_of, args))
        named = {name: together.made_of(value) for name, value in kwargs.items()}
        count = len(self.targets)
        with ValuesInTargets(self.targets, made[:count]) as values:
            result = self.__wrapped__(*made[count:], **named)
        if others := changed(together.copies):
            raise SetsState(self.__name__, what=kinds(others))
        returned = together.returned(result, values.found)
        if self._has_out and together.sets_values:
            what = f"kfusion.{self.__name__}: out= is for results, and it sets other arrays beside them"
            raise ValueError(f"{what}: call it without out=")
        return returned


class ValuesInTargets:
    """While it is entered, values stand in targets. `found` are those that are there at the end, by number, where they
    are others.
    """

    def __init__(self, targets: Sequence[Target], values: Sequence[Any]) -> None:
        self._targets, self._values = targets, values
        self._before: list[Any] = []
        self.found: dict[int, Any] = {}

    def __enter__(self) -> ValuesInTargets:
        self._before = [target.value() for target in self._targets]
        for target, value in zip(self._targets, self._values, strict=True):
            target.set(value)
        return self

    def __exit__(self, *error: object) -> None:
        now = [target.value() for target in self._targets]
        for target, value in zip(self._targets, self._before, strict=True):
            target.set(value)
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
        self._memories: dict[int, dict[int, Traced]] = {}  # by id: the values that are set
        self._made: list[Any] = []
        self._returns_made = False
        self._before: list[dict[Any, Any]] = []

    def returned(self, result: Any, placed: Mapping[int, Any]) -> Any:
        """The function's result, and what it changed in objects and set in targets. The result itself where that is all
        and no such object is in it.
        """
        if not self._made and not placed:
            return result
        numbered = self._numbered(result, is_set=False)
        self._note_memories(placed)
        changed = {}
        for number, (made, before) in enumerate(zip(self._made, self._before, strict=True)):
            if type(made) is Appended and made.is_read:
                raise ReadsItems(number)
            after = contents(made)
            if not same(before, after):
                kept = {key for key in after if key in before and after[key] is before[key]}
                changed[number] = {k: whole_of(-1) if k in kept else self._numbered(v) for k, v in after.items()}
        if not changed and not placed and not self._returns_made:
            return result
        set_in_targets = {n: self._numbered(v) for n, v in placed.items()}
        values = list(self._values.values())
        if not values:  # a function of arrays computes something
            self.sets_values = True
            values = [v for v in leaves(self._call) if is_traced(v)][:1]
        return Returned(tuple(values), numbered, changed, set_in_targets)

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
        made: Any = Appended(number) if value[ClassKey] is Appended else blank(value[ClassKey])
        if FactoryKey in value:
            made.default_factory = value[FactoryKey]
        self._made.append(made)
        self._before.append(contents(made))
        if type(made) is Appended:
            return made
        items = {key: item for key, item in value.items() if key not in (ClassKey, FactoryKey)}
        self._before[number] = {key: self.made_of(item) for key, item in items.items()}
        set_contents(made, self._before[number])
        return made

    def _numbered(self, value: Any, *, is_set: bool = True) -> Any:
        """With what calls put there; what is set, and not returned, are arguments and numbers themselves."""
        numbers = {id(made): number for number, made in enumerate(self._made)}

        def test(v: Any) -> bool:
            return id(v) in numbers or is_traced(v) or (is_set and is_number(v))

        def leaf(_: str, v: Any) -> Any:
            if id(v) in numbers:
                self._returns_made = self._returns_made or not is_set
                return whole_of(numbers[id(v)])
            if is_traced(v):
                source = self._set_source(v) if is_set else Value(self._number(v))
                of = source.of if isinstance(source, View) else source
                self.sets_values = self.sets_values or (is_set and isinstance(of, Value))
                return source
            return computed(v) if is_set and is_number(v) else v

        return walk(value, leaf, enters=lambda v: may_hold_results(v) and holds(v, test), is_leaf=test)

    def _note_memories(self, placed: Mapping[int, Any]) -> None:
        """Finds which of the values that are set share memory."""
        made = set(map(id, self._made))

        def is_leaf(v: Any) -> bool:
            return id(v) in made or is_traced(v)

        def note(_: str, v: Any) -> Any:
            if isinstance(v, Traced):
                self._memories.setdefault(id(v._memory), {})[id(v)] = v
            return v

        for held in (*map(contents, self._made), placed):
            walk(list(held.values()), note, enters=lambda v: may_hold_results(v) and holds(v, is_leaf), is_leaf=is_leaf)

    def _set_source(self, v: Any) -> Given | Value | View:
        """What is set: an argument, a value, or a view of one that somebody else has as well."""
        if (given := self._arguments.get(id(v), -1)) >= 0:
            return Given(given)
        if not isinstance(v, Traced) or not v._path or v._tracer.takes_gradients:
            return Value(self._number(v))
        if (given := v._tracer.number_of(v)) >= 0:
            return self._view(Given(given), v)
        mine = self._memories.setdefault(id(v._memory), {})
        others = [x for x in (*mine.values(), *self._values.values()) if x is not v]
        whole = next((x for x in others if isinstance(x, Traced) and x._memory is v._memory and x._path == ()), None)
        if whole is None and any(x._path for x in mine.values() if x is not v):
            node = v._memory.node
            whole = v._tracer.value(node, v._memory, ()) if isinstance(node, int) else None
            mine |= {} if whole is None else {id(whole): whole}
        return Value(self._number(v)) if whole is None else self._view(Value(self._number(whole)), v)

    def _view(self, whole: Given | Value, v: Traced) -> View:
        if v._tracer.recorded is not None:  # how views are made of sizes is not recorded
            raise v._tracer.recorded.failed()
        assert v._path is not None
        return View(whole, v._path)

    def _number(self, value: Any) -> int:
        self._values.setdefault(id(value), value)
        return list(self._values).index(id(value))

    @functools.cached_property
    def _arguments(self) -> dict[int, int]:
        """By id what stands for arrays of the call, and their numbers."""
        return {id(v): v._tracer.number_of(v) for v in leaves(self._call) if isinstance(v, Traced)}
