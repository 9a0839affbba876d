"""Who runs a call with arrays of another kind, and what all of them need: the call's arrays, and its trace by specs."""

from __future__ import annotations

import importlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._graph.structure import ATOMS, FOREIGN, foreign_library, walk
from .._graph.values import Argument
from .._spec import Spec, dtype_name, is_array, require_plain
from .._tracing.trace import Trace, trace

_ENGINES = {"dask": "kfusion._dask.arrays", "torch": "kfusion._foreign.sharded"}
_LABELLED = "kfusion._foreign.labelled"


def is_meant(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether arrays of another kind are among the arguments."""
    return any(name in sys.modules for name in FOREIGN) and bool(libraries_of(args, kwargs))


def libraries_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """The libraries of such arrays, in order."""
    found: dict[str, None] = {}

    def visit(path: str, leaf: Any) -> Any:
        if (name := foreign_library(type(leaf))) is not None:
            found[name] = None
        return leaf

    walk((list(args), dict(kwargs)), visit)
    return list(found)


def run(fused: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, stream: Any) -> Any:
    """The call, by the module that knows the kind of array. Labels are taken off first: lazy arrays may be within.

    Raises:
        TypeError: arrays of several such libraries, or out= or stream= with them.
    """
    names = libraries_of(args, kwargs)
    who = f"kfusion.{fused.__name__}"
    labelled = [name for name in names if name not in _ENGINES]
    if len(labelled or names) > 1:
        raise TypeError(f"{who}: arrays must be of one library, got some of {' and '.join(labelled or names)}")
    if out is not None or stream is not None:
        raise TypeError(f"{who}: out= and stream= are for arrays in memory, got arrays of {names[0]}")
    module = importlib.import_module(_LABELLED if labelled else _ENGINES[names[0]])
    return module.call(fused, args, kwargs)


def planned(fused: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """The function to trace for a plan of a call with such arrays, and its arguments: for lazy ones their kinds."""
    if any(name not in _ENGINES for name in libraries_of(args, kwargs)):
        module = importlib.import_module(_LABELLED)
        function, args, kwargs = module.planned(fused, args, kwargs)
        return function, args, kwargs

    def spec(path: str, leaf: Any) -> Any:
        return lazy_spec(f"kfusion.{fused.__name__}", path, leaf) if foreign_library(type(leaf)) == "dask" else leaf

    return fused.__wrapped__, *by_path(fused.__signature__, args, kwargs, spec)


class Operands:
    """The arrays of a call, in the order in which they come.

    Args:
        fused: the function.
        args: its arguments.
        kwargs: its arguments by name.
        is_operand: whether a leaf is an array.
    """

    def __init__(
        self,
        fused: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        is_operand: Callable[[Any], bool] = is_array,
    ) -> None:
        self.fused = fused
        self.who = f"kfusion.{fused.__name__}"
        self.arrays: list[Any] = []
        self.names: list[str] = []
        self._is_operand = is_operand
        self._args, self._kwargs = args, kwargs
        self._replaced(self._met)

    @property
    def structure(self) -> Any:
        """What a call is known by beside its arrays: numbers and strings, which are fixed parts of a trace. None where
        there is more than these.
        """
        values = (*self._args, *self._kwargs.values())
        if not all(self._is_operand(v) or type(v) in ATOMS for v in values):
            return None
        parts = ("array" if self._is_operand(v) else (type(v), repr(v)) for v in values)
        return len(self._args), tuple(self._kwargs), tuple(parts)

    def _met(self, path: str, leaf: Any) -> Any:
        self.names.append(path)
        self.arrays.append(leaf)
        return leaf

    def replaced(self, arrays: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The call's arguments, with other arrays in the places of these."""
        rest = iter(arrays)
        return self._replaced(lambda *_: next(rest))

    def _replaced(self, made: Callable[[str, Any], Any]) -> tuple[list[Any], dict[str, Any]]:
        def visit(path: str, leaf: Any) -> Any:
            return made(path, leaf) if self._is_operand(leaf) else leaf

        return by_path(self.fused.__signature__, self._args, self._kwargs, visit, self._is_operand)

    def traced(self, arrays: Sequence[Any]) -> Trace:
        """The trace of other arrays, or specs, in the places of these.

        Raises:
            TypeError: the function writes to its arguments, or draws random numbers.
        """
        rest = iter(enumerate(arrays))

        def stand_in(*_: Any) -> Argument:
            number, array = next(rest)
            return Argument(array, number)

        args, kwargs = self._replaced(stand_in)
        traced = trace(self.fused.__wrapped__, *args, **kwargs)
        if traced.written:
            name = traced.inputs[traced.written[0].input].name
            raise TypeError(f"{self.who}: it writes to {name}, which such arrays do not allow: return the new value")
        if traced.is_random:
            raise TypeError(f"{self.who}: it draws random numbers, which such arrays do not allow")
        return traced


def by_path(
    signature: inspect.Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    visit: Callable[[str, Any], Any],
    is_leaf: Callable[[Any], bool] = lambda _: False,
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments with `visit(path, leaf)` in place of each leaf; a path begins with the parameter's name."""
    parameters = [*signature.parameters][: len(args)]
    names = parameters + [f"argument {k + 1}" for k in range(len(parameters), len(args))]
    made = [walk(a, visit, n, is_leaf=is_leaf) for n, a in zip(names, args, strict=True)]
    return made, {n: walk(a, visit, n, is_leaf=is_leaf) for n, a in kwargs.items()}


def graph_of(traced: Trace) -> dict[str, Any]:
    """A trace's graph as a dict, without what is computed twice."""
    graph: dict[str, Any] = traced.graph.simplify().to_dict()
    return graph


def lazy_spec(who: str, name: str, x: Any) -> Spec:
    """What a call is traced with in the place of a dask array, or of an array of NumPy's beside it."""
    require_plain(getattr(x, "_meta", x), f"{who}: {name}'s blocks")
    if any(math.isnan(n) for n in x.shape):
        raise ValueError(f"{who}: {name} has chunks of unknown sizes: call {name}.compute_chunk_sizes() before")
    return Spec(tuple(int(n) for n in x.shape), dtype_name(x.dtype, f"{who}: {name}'s dtype"))
