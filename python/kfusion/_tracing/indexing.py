"""x[...] of a traced value: slices are views, one array of integers is a gather, anything else has no fixed shape."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np

from .._graph.source import no_form, trace_error
from .._graph.tracer import Traced, stage
from .._ops.contractions import take
from .._ops.views import reshape
from .._spec import is_array

_Range = tuple[int, int, int]


class _Plan(NamedTuple):
    """What an index means: a slice of every axis, the extents after it, and an index array with its axis there."""

    slices: list[_Range]
    shape: list[int]
    array: Any
    axis: int


def getitem(x: Traced, key: Any) -> Traced:
    """x[key].

    Raises:
        TraceError: the key is no mix of integers, slices, None, ... and at most one array of integers.
        IndexError: as NumPy.
    """
    plan = _plan(x, _expanded(x, key if isinstance(key, tuple) else (key,)))
    y = x
    if plan.slices != [(0, n, 1) for n in x.shape]:
        with stage(x, "slice"):
            y = x._tracer.view("slice", x, plan.slices)
            y = y if y.shape == tuple(plan.shape) else reshape(y, tuple(plan.shape))
    elif x.shape != tuple(plan.shape):
        y = reshape(x, tuple(plan.shape))
    if plan.array is not None:
        return take(y, plan.array, plan.axis)  # type: ignore[no-any-return]
    return x._tracer.view("reshape", x, list(x.shape)) if y is x else y


def part(x: Traced, key: Any) -> tuple[list[_Range], list[int]]:
    """The slices of x that x[key] is, of steps of 1, and the extents of x[key].

    Raises:
        NoForm: the key is no mix of integers, slices, None and ....
        IndexError: as NumPy.
    """
    keys = key if isinstance(key, tuple) else (key,)
    if any(dtype_of(k) or isinstance(k, (bool, list, range)) for k in keys):
        raise no_form("x[key] = y is traced for integers and slices", "write kf.where(mask, y, x) instead")
    plan = _plan(x, _expanded(x, keys))
    if plan.array is not None or any(step != 1 for _, _, step in plan.slices):
        raise no_form("x[key] = y is traced for slices with a step of 1", "write kf.where(mask, y, x) instead")
    return plan.slices, plan.shape


def _expanded(x: Traced, keys: tuple[Any, ...]) -> list[Any]:
    """The key with full slices in place of `...` and at the end."""
    for key in keys:
        _check(key)
    dots = [i for i, key in enumerate(keys) if key is Ellipsis]
    taken = sum(key is not None and key is not Ellipsis for key in keys)
    if taken > x.ndim:
        raise IndexError(f"too many indices for array: array is {x.ndim}-dimensional, but {taken} were indexed")
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    at = dots[0] if dots else len(keys)
    return [*keys[:at], *[slice(None)] * (x.ndim - taken), *keys[at + 1 :]]


def _plan(x: Traced, keys: list[Any]) -> _Plan:
    slices: list[_Range] = []
    shape: list[int] = []
    array, axis = None, 0
    for key in keys:
        if key is None:
            shape.append(1)
            continue
        n = x.shape[len(slices)]
        if isinstance(key, slice):
            slices.append(_range(x, key, n))
            shape.append(len(range(*slices[-1])))
        elif hasattr(key, "__index__") and not isinstance(key, Traced) and not is_array(key):
            i = _position(operator.index(key), n, len(slices))
            slices.append((i, i + 1, 1))
        else:
            if array is not None or any(isinstance(k, (int, np.integer)) for k in keys):
                raise no_form("an index array beside other integers is not traced", "write x[i][j] instead")
            array, axis = key, len(shape)
            slices.append((0, n, 1))
            shape.append(n)
    return _Plan(slices, shape, array, axis)


def _check(key: Any) -> None:
    if isinstance(key, (list, range)):
        raise no_form(f"a {type(key).__name__} as an index is not traced", "write an array of integers instead")
    if isinstance(key, (bool, np.bool_)) or dtype_of(key) == "bool":
        raise trace_error("the shape of x[mask] depends on data", "write kf.where(mask, x, 0) and a reduction instead")


def dtype_of(key: Any) -> str:
    """The dtype's name; "" for what is no array."""
    return key._dtype if isinstance(key, Traced) else str(getattr(key, "dtype", "")).removeprefix("torch.")


def _range(x: Traced, key: slice, n: int) -> _Range:
    if x._library == "torch" and key.step is not None and operator.index(key.step) < 1:
        raise ValueError("step must be greater than zero")  # as torch says it
    return key.indices(n)


def _position(i: int, n: int, axis: int) -> int:
    if not -n <= i < n:
        raise IndexError(f"index {i} is out of bounds for axis {axis} with size {n}")
    return i % n
