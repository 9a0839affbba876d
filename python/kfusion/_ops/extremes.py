"""Where the largest and smallest elements stand: the first position whose element is the extreme one.

A composite of reductions: m = max(x), then the smallest position where x is m. Both are sweeps of one kernel,
which reads x once where the cache or the chip holds a row.
"""

from __future__ import annotations

import math
from typing import Any

from .._spec import FLOATS
from . import primitives as p
from .operation import Array, operation
from .views import astype, axis_of, positions, reshape

__all__ = ["argmax", "argmin"]

_LONG = 65536  # elements that caches and chips hold until they are searched; more are taken in parts, and read once
_MAPS = 16  # between a product and what is searched
_PART = range(64, 4097)  # elements of a part that is no whole axis


@operation
def argmax(x: Array, axis: int | None = None, keepdims: bool = False) -> Array:
    """Position of the largest element, the first of equal ones; of the first NaN where there is one.

        y = min(i where x[i] = max(x))

    Args:
        x: array of any dtype.
        axis: along which positions count; None counts all elements in C order.
        keepdims: whether the axis stays (all of them for None), with extent 1.

    Returns:
        Array of int64.

    Raises:
        ValueError: no such axis, or no elements along it.
        TypeError: axis is no integer.

    Source: NumPy's `argmax`.
    """
    return position("max", x, axis, keepdims)


@operation
def argmin(x: Array, axis: int | None = None, keepdims: bool = False) -> Array:
    """Position of the smallest element, the first of equal ones; of the first NaN where there is one.

        y = min(i where x[i] = min(x))

    Args:
        x: array of any dtype.
        axis: along which positions count; None counts all elements in C order.
        keepdims: whether the axis stays (all of them for None), with extent 1.

    Returns:
        Array of int64.

    Raises:
        ValueError: no such axis, or no elements along it.
        TypeError: axis is no integer.

    Source: NumPy's `argmin`.
    """
    return position("min", x, axis, keepdims)


def position(op: str, x: Any, axis: int | None, keepdims: bool) -> Any:
    """The first position of what the reduction `op` (max or min) gives, on a traced value.

    Raises:
        ValueError: no such axis, or no elements along it.
    """
    first = 0 if axis is None else axis_of(x, axis, f"arg{op}")
    last = x.ndim if axis is None else first + 1
    before, searched, behind = x.shape[:first], x.shape[first:last], x.shape[last:]
    if 0 in searched:
        raise ValueError(f"kfusion.arg{op}: there must be an element to find, got shape {x.shape}")
    n = math.prod(searched)
    part = n if behind or _is_of_product(x) else _part(searched)
    y = x if axis is not None else reshape(x, (n,))
    if part < n:
        y = reshape(x, (*before, n // part, part))
    inner = y.ndim - len(behind) - 1
    extremes, found = _search(op, y, positions(y, inner, "int32" if part < 2**31 else "int64"), part, inner)
    found = astype(found, "int64")
    if part < n:
        _, found = _search(op, extremes, found + positions(y, first) * part, n, first)
    return reshape(found, (*before, *(1 for _ in searched), *behind) if keepdims else (*before, *behind))


def _search(op: str, x: Any, at: Any, n: int, axis: int) -> tuple[Any, Any]:
    """The extreme along an axis, which stays, and the smallest of `at` (below n) where x is it."""
    extreme = p.REDUCTIONS[op](x, axis, True)
    is_it = p.equal(x, extreme)
    if x._dtype in FLOATS:
        is_it = p.logical_or(is_it, p.isnan(x))  # an extreme that is NaN equals nothing; else nothing is NaN
    return extreme, p.min(p.where(is_it, at, n), axis, True)


def _is_of_product(x: Any) -> bool:
    """Whether the value is maps of a product, whose tiles are searched where they are made, and never read again."""
    graph, node = x._tracer.graph, x._node
    for _ in range(_MAPS):
        description = graph.node(node)
        if description["op"] == "matmul":
            return True
        node = next((a for a in description["arguments"] if graph.shape(a) == graph.shape(node)), None)
        if node is None:
            break
    return False


def _part(extents: tuple[int, ...]) -> int:
    """How many neighbours of so many elements in C order to search together: all, or whole axes if they are enough."""
    n = math.prod(extents)
    if n <= _LONG:
        return n
    part = 1
    for extent in reversed(extents):
        if part * extent > _LONG:
            break
        part *= extent
    if part in _PART or part > _PART[-1]:
        return part
    divisors = (d for d in range(_PART[-1] // part, 0, -1) if extent % d == 0)
    longer = part * next(divisors)
    return longer if longer in _PART else n
