"""x[rows, cols]: elements at positions of several axes. They are taken of these axes merged into one, by the number
that the positions give there, which has no place in that axis if one of the positions has none in its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .._graph.sizes import broadcast_shapes
from .._graph.values import Traced
from .._ops.contractions import take
from .._ops.views import astype, moveaxis, positions, reshape
from .._spec import INTEGERS


class IndexArray(NamedTuple):
    """An array of integers in an index, and the axis whose positions it has."""

    array: Any
    axis: int


def taken(x: Traced, arrays: Sequence[IndexArray], *, in_front: bool) -> Traced:
    """x indexed by arrays that broadcast: their axes are where the first one's axis was, or `in_front` of all others.

    Raises:
        IndexError: they do not broadcast, or are no integers.
    """
    lifted = [IndexArray(x._tracer.lift(i.array, x._library), i.axis) for i in arrays]
    if x._library == "torch" and any(i.array.ndim for i in lifted):
        x, lifted = _with_integers_taken(x, lifted)
    made = take(x, *lifted[0]) if len(lifted) == 1 else _taken_of_several(x, lifted)
    if not in_front:
        return made
    first, count = lifted[0].axis, max(i.array.ndim for i in lifted)
    return moveaxis(made, tuple(range(first, first + count)), tuple(range(count)))  # type: ignore[no-any-return]


def _with_integers_taken(x: Traced, arrays: Sequence[IndexArray]) -> tuple[Traced, list[IndexArray]]:
    """Tensors without axes are integers to torch, which have no part in the broadcast: x at these, and the others."""
    for i in [i for i in arrays if i.array.ndim == 0][::-1]:
        x = take(x, i.array, i.axis)
        arrays = [IndexArray(k.array, k.axis - (k.axis > i.axis)) for k in arrays if k.axis != i.axis]
    return x, list(arrays)


def _taken_of_several(x: Traced, arrays: Sequence[IndexArray]) -> Traced:
    _require_integers_that_broadcast(arrays)
    first, last = arrays[0].axis, arrays[-1].axis
    extent = math.prod(x.shape[first : last + 1])
    with x._tracer.stage("x[i, j]"):
        merged = reshape(x, (*x.shape[:first], extent, *x.shape[last + 1 :]))
        return x._tracer.add("take", merged, _numbers(x, arrays, extent), first)


def _require_integers_that_broadcast(arrays: Sequence[IndexArray]) -> None:
    for i in arrays:
        if i.array._dtype not in INTEGERS:
            raise IndexError(f"kfusion: arrays used as indices must be of integers, got {i.array._dtype}")
    try:
        broadcast_shapes(*(i.array.shape for i in arrays))
    except ValueError:
        shapes = " ".join(str(i.array.shape) for i in arrays)
        raise IndexError(f"kfusion: indexing arrays could not be broadcast together with shapes {shapes}") from None


def _numbers(x: Traced, arrays: Sequence[IndexArray], extent: int) -> Traced:
    """Positions in the merged axis: the axes of the arrays, then those between them; `extent` for one outside x."""
    of_axis = {i.axis: i.array for i in arrays}
    first, last = arrays[0].axis, arrays[-1].axis
    between = [axis for axis in range(first, last) if axis not in of_axis]
    number: Any = 0
    inside: Any = True
    for axis in range(first, last + 1):
        n = x.shape[axis]
        if axis in of_axis:
            index = astype(of_axis[axis], "int64")
            index = reshape(index, (*index.shape, *(1,) * len(between)))
            inside = inside & (index >= -n) & (index < n)
            position = x._tracer.map("where", index < 0, index + n, index)
        else:
            behind = sum(other > axis for other in between)
            position = reshape(positions(x, axis), (n, *(1,) * behind))
        number = number * n + position
    return x._tracer.map("where", inside, number, extent)
