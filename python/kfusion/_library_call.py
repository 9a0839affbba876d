"""`kfusion.call`: any function of arrays inside a traced one, run as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _arrays
from ._graph.source import trace_error
from ._graph.values import Traced, tracer_of
from ._spec import Spec, is_array, spec_of

_WHO = "kfusion.call"


def call(function: Callable[..., Any], *arrays: Any, result: Any) -> Any:
    """Calls a function that a graph has no ops for, in a traced function as a kernel of its own.

        call(f, x, y, result=spec) = f(x, y)

    It runs each time that the traced function does, in its place among the kernels, on arrays of the caller's library
    (NumPy's, for JAX). Outside of a traced function it is called at once. It must not write to its arrays.

    Args:
        function: takes as many arrays as are given.
        arrays: what it reads, at least one; other arguments belong into the function itself (functools.partial).
        result: a `kfusion.spec` of what it returns, or an array like it; a tuple of them for a tuple of results.

    Returns:
        What the function returns: arrays of the shapes and dtypes of `result`.

    Raises:
        TypeError: result is no spec, or no array is given.
        ValueError: the function returned something else, when the kernels run.
    """
    several = isinstance(result, (tuple, list))
    specs = [_spec(r) for r in (result if several else (result,))]
    if not arrays or not specs:
        raise TypeError(f"{_WHO}: there must be at least one array and one result")
    name = f"{_WHO}({getattr(function, '__name__', type(function).__name__)})"

    def run(*given: Any) -> list[Any]:
        draws = getattr(run, "draws", None)
        with draws.first() if draws is not None else contextlib.nullcontext():
            found = function(*given)
        listed = list(found) if several else [found]
        if len(listed) != len(specs):
            raise ValueError(f"{name} must return {len(specs)} results, got {len(listed)}")
        return [_arrays.apart(a if is_array(a) else np.asarray(a), given) for a in listed]

    tracer = tracer_of(*arrays)
    if tracer is None:
        made = run(*arrays)
        for a, wanted in zip(made, specs, strict=True):
            got = spec_of(a, name)
            if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
                raise ValueError(f"{name} must return {wanted.dtype} {wanted.shape}, got {got.dtype} {got.shape}")
    else:
        library = next(a._library for a in arrays if isinstance(a, Traced))
        values = [tracer.lift(a, library, f"an array of {_WHO}") for a in arrays]
        if library == "torch":
            device = tracer.graph.node(tracer.node(values[0]))["device"]
            run.draws = tracer.library_draws((), device)  # type: ignore[attr-defined]
        made = tracer.library_call(name, run, values, [(s.dtype, s.shape) for s in specs])
    return tuple(made) if several else made[0]


def _spec(result: Any) -> Spec:
    if isinstance(result, Spec):
        return result
    if isinstance(result, Traced):
        return Spec(result.shape, result._dtype)
    if not is_array(result):
        raise trace_error(f"{_WHO}: result must be a spec or an array, got {type(result).__name__}", "", "")
    return spec_of(result, f"{_WHO}: result")
