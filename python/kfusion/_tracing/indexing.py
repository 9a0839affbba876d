"""x[...] of a traced value: slices are views, arrays of integers are a gather, anything else has no fixed shape."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._graph.sizes import indices, integer, length
from .._graph.source import not_traced, trace_error
from .._graph.values import Traced, stage
from .._ops.views import reshape
from .._spec import is_array
from .index_arrays import IndexArray, taken

_Range = tuple[int, int, int]


class _Plan(NamedTuple):
    """What an index means: a slice of every axis, the extents after it, and index arrays with their axes there."""

    slices: list[_Range]
    shape: list[int]
    arrays: list[IndexArray]


def getitem(x: Traced, key: Any) -> Traced:
    """x[key].

    Raises:
        TraceError: the key is no mix of integers, slices, None, ... and arrays of integers.
        IndexError: as NumPy.
    """
    keys = key if isinstance(key, tuple) else (key,)
    plan = _plan(x, _expanded(x, keys))
    y = x
    if plan.slices != [(0, n, 1) for n in x.shape]:
        with stage(x, "slice"):
            y = x._tracer.view("slice", x, plan.slices)
            y = y if y.shape == tuple(plan.shape) else reshape(y, tuple(plan.shape))
    elif x.shape != tuple(plan.shape):
        y = reshape(x, tuple(plan.shape))
    if plan.arrays:
        return taken(y, plan.arrays, in_front=_is_parted(x, keys))
    return x._tracer.view("reshape", x, list(x.shape)) if y is x else y


def part(x: Traced, key: Any) -> tuple[list[_Range], list[int]]:
    """The slices of x that x[key] is, of steps of 1, and the extents of x[key].

    Raises:
        NotTraced: the key is no mix of integers, slices, None and ....
        IndexError: as NumPy.
    """
    keys = key if isinstance(key, tuple) else (key,)
    if any(dtype_of(k) or isinstance(k, (bool, list, range)) for k in keys):
        raise not_traced("x[key] = y is traced for integers and slices", "write kf.where(mask, y, x) instead")
    plan = _plan(x, _expanded(x, keys))
    if plan.arrays or any(step != 1 for _, _, step in plan.slices):
        raise not_traced("x[key] = y is traced for slices with a step of 1", "write kf.where(mask, y, x) instead")
    return plan.slices, plan.shape


def _expanded(x: Traced, keys: tuple[Any, ...]) -> list[Any]:
    """The key with full slices in place of `...` and at the end."""
    refuse_masks(keys)
    for key in keys:
        if isinstance(key, (list, range)):
            raise not_traced(f"a {type(key).__name__} as an index is not traced", "write an array of integers instead")
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
    arrays: list[IndexArray] = []
    for key in keys:
        if key is None:
            shape.append(1)
            continue
        n = x.shape[len(slices)]
        if isinstance(key, slice):
            slices.append(_range(x, key, n))
            shape.append(length(*slices[-1]))
        elif _is_integer(key):
            i = _position(integer(key), n, len(slices))
            slices.append((i, i + 1, 1))
        else:
            arrays.append(IndexArray(key, len(shape)))
            slices.append((0, n, 1))
            shape.append(n)
    return _Plan(slices, shape, arrays)


def _is_parted(x: Traced, keys: tuple[Any, ...]) -> bool:
    """Whether there is something between index arrays, so that their axes come first in the result. NumPy takes
    integers beside them for arrays, and `...` for something even where it stands for no axis.
    """
    if x._library == "torch":
        taken = sum(key is not None and key is not Ellipsis for key in keys)
        keys = tuple(k for k in keys if not _is_integer(k) and (k is not Ellipsis or taken < x.ndim))
        keys = tuple(k for k in keys if getattr(k, "shape", None) != ())
    fixed = [k is None or k is Ellipsis or isinstance(k, slice) for k in keys]
    of_arrays = [i for i, is_fixed in enumerate(fixed) if not is_fixed]
    return any(fixed[of_arrays[0] : of_arrays[-1]]) if of_arrays else False


def _is_integer(key: Any) -> bool:
    return hasattr(key, "__index__") and not isinstance(key, Traced) and not is_array(key)


def refuse_masks(keys: tuple[Any, ...]) -> None:
    """Raises for what makes the shape of x[keys] depend on data."""
    for key in keys:
        if isinstance(key, (bool, np.bool_)) or dtype_of(key) == "bool":
            raise trace_error(
                "the shape of x[mask] depends on data", "write kf.where(mask, x, 0) and a reduction instead"
            )


def dtype_of(key: Any) -> str:
    """The dtype's name; "" for what is no array."""
    return key._dtype if isinstance(key, Traced) else str(getattr(key, "dtype", "")).removeprefix("torch.")


def _range(x: Traced, key: slice, n: int) -> _Range:
    if x._library == "torch" and key.step is not None and integer(key.step) < 1:
        raise ValueError("step must be greater than zero")  # as torch says it
    return indices(key, n)


def _position(i: int, n: int, axis: int) -> int:
    if not -n <= i < n:
        raise IndexError(f"index {i} is out of bounds for axis {axis} with size {n}")
    return i % n
