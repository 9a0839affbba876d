"""A fused function called inside of jax.jit, vmap, grad or shard_map: its program, bound to JAX's tracers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .. import _arrays
from .._environment.state import taken_apart_once
from .._graph.structure import holds_arrays, leaves, walk
from .._spec import Spec, dtype_name, is_array
from .._tracing.trace import Trace, name_of, signature_of, trace
from . import jaxprs, primitive, widths
from .program import Program

_KINDS = ("jax", "numpy")


@dataclass(frozen=True)
class _Given(Spec):
    """An argument of a call, by number."""

    number: int = -1


def call(
    function: Callable[..., Any], options: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """What the function returns for these arguments, as JAX's tracers.

    Raises:
        TypeError: it has a dtype that kfusion does not have, or draws random numbers, or writes to its arguments.
        NotImplementedError: a part of it is a function of another array library.
        TraceError: the function does something that a graph cannot hold.
    """
    who = f"kfusion.{name_of(function)}"
    arrays: list[Any] = []

    def seen(path: str, leaf: Any) -> Any:
        if isinstance(leaf, np.generic) or not is_array(leaf):
            return leaf
        if _arrays.kind(leaf) not in _KINDS:
            raise TypeError(f"{who}: {path} must be an array of JAX or NumPy as others are, got {_arrays.kind(leaf)}'s")
        arrays.append(strong(jax.numpy.asarray(leaf)))
        dtype = dtype_name(arrays[-1].dtype, f"{who}: {path}'s dtype")
        return _Given(tuple(arrays[-1].shape), dtype, number=len(arrays) - 1)

    strong = _strong_as([args, kwargs])
    signature = signature_of(function)
    apart = taken_apart_once(function, signature, args, kwargs)
    names = itertools.chain(signature.parameters, itertools.repeat("an argument"))
    specs = [walk(a, seen, name, enters=holds_arrays) for a, name in zip(apart.args, names, strict=False)]
    named = {n: walk(a, seen, n, enters=holds_arrays) for n, a in apart.kwargs.items()}
    traced, no_gradient = _traced(function, lambda f: trace(f, *specs, **named))
    _require_pure(who, traced)
    operands = [arrays[i.spec.number] if isinstance(i.spec, _Given) else i.array for i in traced.inputs]
    program = widths.narrowed(Program.of(traced.graph, no_gradient, traced.library_calls))
    chosen = json.dumps({k: options[k] for k in ("fuse", "allow", "forbid") if options.get(k)} | _fuse(options))
    return apart.put_back(traced.returned(primitive.bind(program, [jax.numpy.asarray(o) for o in operands], chosen)))


def _strong_as(arguments: Any) -> Callable[[Any], Any]:
    """Gives Python's floats that jax.jit has made arrays of the dtype of the float arrays that they meet, as JAX does:
    where these are all of one.
    """
    floats = {
        jax.numpy.dtype(leaf.dtype)
        for leaf in leaves(arguments)
        if is_array(leaf)
        and _arrays.kind(leaf) in _KINDS
        and jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)
        and not _is_weak(leaf)
    }

    def strong(array: Any) -> Any:
        is_float = jax.numpy.issubdtype(array.dtype, jax.numpy.floating)
        return array.astype(next(iter(floats))) if is_float and _is_weak(array) and len(floats) == 1 else array

    return strong


def _is_weak(array: Any) -> bool:
    return bool(getattr(jax.typeof(array), "weak_type", False))


def _traced(function: Callable[..., Any], attempt: Callable[[Callable[..., Any]], Trace]) -> tuple[Trace, str]:
    """The function's trace, by its own values, or by JAX's where it calls functions of JAX. And why it has no gradient,
    where that is so.
    """
    try:
        return attempt(function), ""
    except RecursionError:
        raise
    except Exception as error:
        traced, through = jaxprs.through_jax(function, attempt, error)
        return traced, through.no_gradient


def _fuse(options: Mapping[str, Any]) -> dict[str, bool]:
    return {} if options.get("fuse", True) else {"fuse": False}


def _require_pure(who: str, traced: Trace) -> None:
    if traced.written:
        name = traced.inputs[traced.written[0].input].name
        raise TypeError(f"{who}: it writes to {name}, and arrays of JAX are immutable: return the new values")
    if traced.is_random:
        raise TypeError(f"{who}: it draws random numbers, of which jax.jit knows nothing: draw them by jax.random")
