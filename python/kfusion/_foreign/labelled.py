"""A call with arrays that have labels (xarray, pandas, polars): the function runs on values with these labels.

While the function is traced, its labelled arguments are values that do what their library says. An array of xarray's is
one of xarray's own, which holds a traced value; `values.Table` stands for those of pandas and polars. Kernels get the
arrays without labels, and results their labels back. A trace holds for the labels that it was made with.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._environment.guards import guarded
from .._environment.reach import reached
from .._environment.state import Snapshot
from .._graph.axes import axes_of
from .._graph.source import trace_error
from .._graph.structure import FOREIGN, containers, foreign_library, leaves, may_hold_results, walk
from .._graph.values import Traced
from .._spec import dtype_name, is_array
from .._tracing.trace import signature_of
from .calls import Operands, by_path, lazy_spec

_MODULES = {"xarray": "xarrays", "pandas": "pandas_values", "polars": "polars_values"}
_MOST_LABELS = 16  # of a function: sets of labels that it keeps traces for


def _module(library: str) -> Any:
    return importlib.import_module(f"{__package__}.{_MODULES[library]}")


def _library(value: Any) -> str | None:
    library = foreign_library(type(value))
    return library if library in _MODULES else None


def _is_operand(value: Any) -> bool:
    return foreign_library(type(value)) in FOREIGN or is_array(value)


@dataclass(frozen=True)
class Result:
    """A result with labels: its array, and what makes it of that."""

    array: Any
    made: Callable[[Any], Any]


class Labelled:
    """The user's function, of arrays without labels: it is called with values that have them.

    Args:
        function: the user's.
        given: what is known of each labelled argument, by its path: `wrapped(traced)` gives it its labels.
        library: its name.
    """

    def __init__(self, function: Any, given: Mapping[str, Any], library: str) -> None:
        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.given = given
        self._signature = signature_of(function)
        self._module = _module(library)

    def holds_for(self, given: Mapping[str, Any]) -> bool:
        """Whether what is traced with these labels is right for others."""
        pairs: list[tuple[Any, Any]] = [(self.given.get(path), x) for path, x in given.items()]
        return len(given) == len(self.given) and all(type(x) is type(y) and x.is_like(y) for x, y in pairs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        def wrapped(path: str, leaf: Any) -> Any:
            return self.given[path].wrapped(leaf) if path in self.given else leaf

        given, named = by_path(self._signature, args, kwargs, wrapped)
        module = self._module

        def result(path: str, leaf: Any) -> Any:
            return Result(*module.taken_off(leaf)) if module.is_labelled(leaf) else leaf

        with self._setting_nothing([*given, *named.values()]):
            returned = self.__wrapped__(*given, **named)
        return walk(returned, result, enters=may_hold_results, is_leaf=module.is_labelled)

    @contextlib.contextmanager
    def _setting_nothing(self, given: Sequence[Any]) -> Iterator[None]:
        """Raises TraceError where the function sets what has labels, or anything in lists and dicts that it is given,
        which are copies: calls set only what arrays are made of. All is then as it was.
        """
        copies = (value for x in given for value in containers(x))
        with Snapshot([self.__wrapped__, *guarded(given)], copies) as snapshot:
            yield
            found = snapshot.changed(self.__name__)
            held = reached(f.target.value() for f in found if f.target is not None)[0]
            if any(f.target is None for f in found) or any(map(_is_labelled_value, held)):
                what = f"{self.__name__}, which is called with labelled arrays, sets something beside its results"
                raise trace_error(what, "return it, or call it with arrays without labels", "")


class Known:
    """What is kept of a function that was called with labelled arguments: `Labelled` for some sets of labels."""

    def __init__(self) -> None:
        self._functions: list[tuple[Labelled, Any]] = []

    def clear(self) -> None:
        """Forgets all."""
        self._functions.clear()

    def function(self, fused: Any, operands: Operands, labelled: Mapping[int, Any]) -> tuple[Labelled, Any]:
        """The function of arrays with these labels, and that fused."""
        given = {operands.names[k]: x for k, x in labelled.items()}
        for known in self._functions:
            if known[0].holds_for(given):
                return known
        first = next(iter(given.values()))
        first.join(list(given.values()))
        made = Labelled(fused.__wrapped__, given, first.library)
        self._functions = [*self._functions[1 - _MOST_LABELS :], (made, type(fused)(made, fused._options))]
        return self._functions[-1]


def call(fused: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The function's results, with the labels that its library gives them.

    Raises:
        TypeError: an argument is no array of numbers; the message says what to pass.
        TraceError: a function or method is not known for labelled arguments.
        ValueError: labels differ.
    """
    if (made := placed(fused.__wrapped__, args, kwargs)) is not NotImplemented:
        return made
    operands = Operands(fused, args, kwargs, _is_operand)
    labelled = _labelled(operands)
    arrays = [labelled[k].array if k in labelled else x for k, x in enumerate(operands.arrays)]
    _, function = fused._labelled.function(fused, operands, labelled)
    given, named = operands.replaced(arrays)
    made = function(*given, **named)

    def whole(_: str, leaf: Any) -> Any:
        return leaf.made(leaf.array) if _is_result(leaf) else leaf

    return walk(made, whole, enters=may_hold_results, is_leaf=_is_result)


def planned(fused: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """The function to trace for a plan, and its arguments, where some of these have labels."""
    operands = Operands(fused, args, kwargs, _is_operand)
    labelled = _labelled(operands)
    function, _ = fused._labelled.function(fused, operands, labelled)
    arrays = [labelled[k].array if k in labelled else x for k, x in enumerate(operands.arrays)]
    named = zip(operands.names, arrays, strict=True)
    return function, *operands.replaced([_in_memory(operands.who, *pair) for pair in named])


def _is_result(value: Any) -> bool:
    return type(value) is Result


def _labelled(operands: Operands) -> dict[int, Any]:
    """What is known of arrays with labels, by their numbers."""
    found = {}
    for k, (name, x) in enumerate(zip(operands.names, operands.arrays, strict=True)):
        if (library := _library(x)) is not None:
            found[k] = _module(library).Given(operands.who, name, x)
            dtype_name(found[k].array.dtype, f"{operands.who}: {name}'s dtype")
    return found


def _in_memory(who: str, name: str, x: Any) -> Any:
    """The array, or for a lazy one what stands for it in a trace."""
    return lazy_spec(who, name, x) if foreign_library(type(x)) == "dask" else x


def _data_of(x: Any) -> Any:
    """What an array of xarray's holds."""
    return getattr(getattr(x, "variable", None), "_data", None) if foreign_library(type(x)) == "xarray" else None


def placed(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What `by_place` gives while a function is traced; NotImplemented where no argument holds a traced value."""
    is_traced = any(isinstance(_data_of(leaf), Traced) for leaf in leaves((list(args), dict(kwargs))))
    return by_place(function, args, kwargs) if is_traced else NotImplemented


def by_place(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A function of kfusion on labelled values: axes meet by place, and those of results have the labels of theirs.

    Raises:
        ValueError: axes with different labels meet.
    """
    found: list[Any] = []

    def plain(_: str, leaf: Any) -> Any:
        module = _module_of_value(leaf)
        if module is None:
            return leaf
        found.append(module.Placed(leaf))
        return found[-1].value

    is_leaf = _is_labelled_value
    args, kwargs = walk((list(args), dict(kwargs)), plain, is_leaf=is_leaf)
    made = function(*args, **kwargs)
    return walk(made, lambda _, leaf: _placed(leaf, found) if isinstance(leaf, Traced) else leaf)


def _module_of_value(leaf: Any) -> Any:
    if hasattr(type(leaf), "__kfusion_by_place__"):
        return importlib.import_module(type(leaf).__module__)
    return _module("xarray") if isinstance(_data_of(leaf), Traced) else None


def _is_labelled_value(leaf: Any) -> bool:
    return _module_of_value(leaf) is not None


def _placed(value: Traced, found: Sequence[Any]) -> Any:
    """A result with the labels of the axes that its axes are; without, where one of them is none of an argument's."""
    tracer = value._tracer
    labels = axes_of(tracer.graph.to_dict()).labels
    known: dict[int, Any] = {}
    for x in found:
        for label, axis in zip(labels[tracer.node(x.value)], x.axes, strict=True):
            other = known.setdefault(label, axis)
            if (why := axis.differs_from(other)) is not None:
                raise ValueError(f"kfusion.{tracer.name}: the arguments of a function of kfusion differ in {why}")
            if other.index is None:
                known[label] = axis
    axes = [known.get(label) for label in labels[tracer.node(value)]]
    return value if None in axes or not axes else found[0].labelled(value, axes, found)
