"""One function, two lives: on traced values it adds nodes, on arrays it computes.

A builder is written once, for traced values. `operation` makes a public function of it, which runs the builder at once
where an argument is traced, and else traces that one call and executes its graph.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np

from . import _arrays, _core
from ._spec import spec_of
from ._tracer import Traced, Tracer, tracer_of

Array: TypeAlias = Any
"""Annotates the parameters that are arrays, and the results: a builder sees `Traced` values there, callers arrays."""

Axes: TypeAlias = int | tuple[int, ...] | None

_Function = TypeVar("_Function", bound=Callable[..., Any])


def operation(builder: _Function) -> _Function:
    """A public function of one stage, named after the builder."""
    return _public(builder, lambda tracer: tracer.stage(builder.__name__))


def composite(builder: _Function) -> _Function:
    """A public function whose builder opens its own stages, or makes a single node, which is a stage of its own."""
    return _public(builder, lambda tracer: contextlib.nullcontext())


def _public(builder: _Function, stage: Callable[[Tracer], contextlib.AbstractContextManager[None]]) -> _Function:
    signature = inspect.signature(builder)
    arrays = [p.name for p in signature.parameters.values() if str(p.annotation).startswith("Array")]
    who = f"kfusion.{builder.__name__}"

    @functools.wraps(builder)
    def function(*args: Any, **kwargs: Any) -> Any:
        bound = bind(who, signature, args, kwargs)
        given = {n: bound.arguments[n] for n in arrays if bound.arguments.get(n) is not None}
        tracer = tracer_of(*given.values())
        if tracer is None:
            return _compute(who, function, given, bound)
        library = next(v._library for v in given.values() if isinstance(v, Traced))
        for name, value in given.items():
            bound.arguments[name] = tracer.lift(value, library, f"{name} of {who}")
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        with stage(tracer):
            result = builder(*bound.args, **bound.kwargs)
        tracer.record(builder.__name__, arguments, result)
        return result

    function.__module__ = "kfusion"
    return function  # type: ignore[return-value]


def _compute(who: str, function: Callable[..., Any], given: Mapping[str, Any], bound: inspect.BoundArguments) -> Any:
    """Traces the one call and executes its graph."""
    tracer = Tracer(who.removeprefix("kfusion."), eager=True)
    for name, value in given.items():
        if not isinstance(value, (bool, int, float)) or isinstance(value, np.generic):
            array = np.asarray(value) if isinstance(value, np.generic) else value
            bound.arguments[name] = tracer.input(name, spec_of(array, f"{who}: {name}"), array)
    if not tracer.inputs:
        raise TypeError(f"{who}: at least one argument must be an array")
    require_one_kind(who, {i.name: i.array for i in tracer.inputs})
    tracer.close([("", function(*bound.args, **bound.kwargs))])
    return run(tracer)[0]


def bind(who: str, signature: inspect.Signature, args: Any, kwargs: Any) -> inspect.BoundArguments:
    """The arguments by name; a TypeError says whose they are."""
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{who}: {error}") from None


def run(tracer: Tracer) -> list[Any]:
    """Executes a closed tracer's graph on the arrays that its inputs stand for."""
    return _core.run_graph(tracer.graph, [i.array for i in tracer.inputs], tracer.name)


def require_one_kind(who: str, arrays: Mapping[str, Any]) -> None:
    """Refuses arrays of different libraries in one call.

    Raises:
        TypeError: naming the first that differs.
    """
    names = list(arrays)
    kinds = [_arrays.kind(a) for a in arrays.values()]
    for name, kind in zip(names, kinds, strict=True):
        if kind != kinds[0]:
            raise TypeError(f"{who}: {name} must be an array of {kinds[0]} as {names[0]} is, got one of {kind}")
