"""The primitives of JAX's functions by nodes of ours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import _core
from .._ops import contractions, extremes, formulas, views
from .._ops import primitives as p
from .._ops.erfc import erfc
from .._spec import FLOATS, HALF, INTEGERS

Rule = Callable[..., Any]  # of the values and the primitive's parameters


class NoRule(Exception):
    """A primitive, or a use of one, that graphs have no nodes for."""


_ROWS = [(name, row["name"], row["kind"]) for row in _core.op_table() for name in row["lax"]]


def _map(op: str) -> Rule:
    return lambda *values, **_: values[0]._tracer.map(op, *values)


def _reduction(op: str) -> Rule:
    def rule(x: Any, *, axes: Sequence[int], **_: Any) -> Any:
        if op in ("all", "any") and x._dtype != "bool":
            raise NoRule("a bitwise reduction of integers")
        made = x._tracer.add("reduce", op, x, list(axes), False) if axes else x
        return cast(made, x._dtype)  # NumPy's sums of int32 are int64

    return rule


def cast(x: Any, dtype: str) -> Any:
    """x in a dtype, rounded."""
    return x if x._dtype == dtype else x._tracer.add("cast", x, dtype)


def shaped(x: Any, shape: Sequence[int]) -> Any:
    """x with other extents in C order."""
    return x if x.shape == tuple(shape) else x._tracer.add("reshape", x, list(shape))


def _divide(x: Any, y: Any, **_: Any) -> Any:
    """Integers are cut, not rounded down, and give -1 by 0."""
    if x._dtype in FLOATS:
        return p.divide(x, y)
    down = p.floor_divide(x, y)
    is_cut = p.logical_and(p.not_equal(down * y, x), p.not_equal(p.less(x, 0), p.less(y, 0)))
    return p.where(p.equal(y, 0), -1, p.where(is_cut, down + 1, down))


def _rem(x: Any, y: Any, **_: Any) -> Any:
    """The remainder with x's sign; x by 0, of integers."""
    if x._dtype in FLOATS:
        rest = p.remainder(p.absolute(x), p.absolute(y))
        is_zero = p.logical_and(p.equal(x, 0), p.equal(rest, 0))  # of x's sign
        return p.where(is_zero, x, p.where(p.less(x, 0), p.negative(rest), rest))
    rest = p.remainder(x, y)
    is_other = p.logical_and(p.not_equal(rest, 0), p.not_equal(p.less(x, 0), p.less(y, 0)))
    return p.where(p.equal(y, 0), x, p.where(is_other, rest - y, rest))


def _round(x: Any, *, rounding_method: Any, **_: Any) -> Any:
    if int(rounding_method) == 1:
        return p.rint(x)
    whole = p.trunc(x)
    return p.where(p.absolute(x - whole) >= 0.5, whole + p.copysign(1.0, x), whole)


def _integer_pow(x: Any, *, y: int, **_: Any) -> Any:
    return p.square(x) if y == 2 else cast(p.power(x, y), x._dtype)


def _bits(logical: str, bitwise: str) -> Rule:
    return lambda *values, **_: values[0]._tracer.map(logical if values[0]._dtype == "bool" else bitwise, *values)


def _select(which: Any, *cases: Any, **_: Any) -> Any:
    if which._dtype != "bool" or len(cases) != 2:
        raise NoRule("select_n by integers")
    return p.where(which, cases[1], cases[0])


def _clamp(least: Any, x: Any, most: Any, **_: Any) -> Any:
    """Gradients pass to x between the bounds, and to a bound beyond it."""
    cut = p.clip(x, least, most)
    if x._dtype not in FLOATS:
        return cut
    bound = p.where(p.less(most, x), most, _stop(cut))
    bound = p.where(p.logical_and(p.less(x, least), p.less_equal(least, most)), least, bound)
    return p.where(p.logical_and(p.less(least, x), p.less(x, most)), x, bound)


def _abs(x: Any, **_: Any) -> Any:
    """|x| with the gradient 1 at 0, and of NaN."""
    if x._dtype not in FLOATS:
        return p.absolute(x)
    return p.where(p.less(x, 0), p.negative(x), x + 0.0)  # 0 of -0


def relu6(x: Any) -> Any:
    """min(max(x, 0), 6), with the gradient 0 at both ends."""
    is_inside = p.logical_and(p.less(0, x), p.less(x, 6))
    return p.where(is_inside, x, _stop(p.clip(x, 0, 6)))


def logaddexp2(x: Any, y: Any) -> Any:
    """log2(2**x + 2**y), with halves as gradients where both are one."""
    apart = x - y
    more = p.log1p(p.exp2(p.negative(p.absolute(apart)))) * (1 / math.log(2))
    return p.where(p.isnan(apart), x + y, p.maximum(x, y) + more)


def xlogy(x: Any, y: Any) -> Any:
    """x * log(y), and 0 where x is 0."""
    return formulas.times_log(x, p.log(y))


def xlog1py(x: Any, y: Any) -> Any:
    """x * log(1 + y), and 0 where x is 0."""
    return formulas.times_log(x, p.log1p(y))


def _convert(x: Any, *, new_dtype: Any, **_: Any) -> Any:
    dtype = str(new_dtype)
    if dtype == "bool" and x._dtype != "bool":
        return p.not_equal(x, 0)
    return _whole(x, dtype) if dtype in INTEGERS and x._dtype in FLOATS else cast(x, dtype)


def _whole(x: Any, dtype: str) -> Any:
    """A float cut to an integer: the nearest one that there is, and 0 for NaN."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    wide = cast(x, "float32") if x._dtype in HALF else x
    inside = p.logical_and(p.greater_equal(wide, float(least)), p.less(wide, -float(least)))
    made = cast(p.where(inside, wide, 0.0), dtype)
    made = p.where(p.less(wide, float(least)), int(least), made)
    return p.where(p.greater_equal(wide, -float(least)), int(most), made)


def _broadcast_in_dim(x: Any, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_: Any) -> Any:
    extents = [1] * len(shape)
    for axis, dimension in enumerate(broadcast_dimensions):
        extents[dimension] = x.shape[axis]
    made = shaped(x, extents)
    return made if made.shape == tuple(shape) else x._tracer.add("broadcast", made, list(shape))


def _reshape(x: Any, *, new_sizes: Sequence[int], dimensions: Any = None, **_: Any) -> Any:
    if dimensions is not None:
        raise NoRule("reshape in another order")
    return shaped(x, new_sizes)


def _squeeze(x: Any, *, dimensions: Sequence[int], **_: Any) -> Any:
    return shaped(x, [s for a, s in enumerate(x.shape) if a not in dimensions])


def _expand_dims(x: Any, *, dimensions: Sequence[int], **_: Any) -> Any:
    rest = iter(x.shape)
    return shaped(x, [1 if a in dimensions else next(rest) for a in range(x.ndim + len(dimensions))])


def _transpose(x: Any, *, permutation: Sequence[int], **_: Any) -> Any:
    return x._tracer.add("transpose", x, list(permutation))


def _rev(x: Any, *, dimensions: Sequence[int], **_: Any) -> Any:
    return views.flip(x, tuple(dimensions)) if dimensions else x


def _sliced(x: Any, ranges: Sequence[tuple[int, int, int]]) -> Any:
    return x._tracer.add("slice", x, [tuple(map(int, r)) for r in ranges])


def _slice(x: Any, *, start_indices: Any, limit_indices: Any, strides: Any, **_: Any) -> Any:
    steps = strides or [1] * x.ndim
    return _sliced(x, list(zip(start_indices, limit_indices, steps, strict=True)))


def _split(x: Any, *, sizes: Sequence[int], axis: int, **_: Any) -> list[Any]:
    ends = np.cumsum([0, *sizes])
    whole = [(0, s, 1) for s in x.shape]
    return [_sliced(x, [*whole[:axis], (a, b, 1), *whole[axis + 1 :]]) for a, b in itertools.pairwise(ends)]


def _concatenate(*parts: Any, dimension: int, **_: Any) -> Any:
    return parts[0]._tracer.add("concatenate", list(parts), dimension)


def _pad(x: Any, value: Any, *, padding_config: Any, **_: Any) -> Any:
    for axis, (low, high, inner) in enumerate(padding_config):
        if inner:
            raise NoRule("padding between elements")
        size = x.shape[axis]
        ranges = [(0, s, 1) for s in x.shape]
        ranges[axis] = (max(0, -low), max(size - max(0, -high), max(0, -low)), 1)
        x = _sliced(x, ranges) if ranges[axis] != (0, size, 1) else x
        ends = [[*x.shape[:axis], max(0, int(n)), *x.shape[axis + 1 :]] for n in (low, high)]
        filled = [x._tracer.add("broadcast", value, e) if e[axis] else None for e in ends]
        parts = [f for f in (filled[0], x, filled[1]) if f is not None]
        x = _concatenate(*parts, dimension=axis) if len(parts) > 1 else x
    return x


def _search(find: Rule) -> Rule:
    def rule(x: Any, *, axes: Sequence[int], index_dtype: Any, **_: Any) -> Any:
        return cast(find(x, axes[0]), str(index_dtype))

    return rule


def _dot_general(x: Any, y: Any, *, dimension_numbers: Any, preferred_element_type: Any, **_: Any) -> Any:
    (over_x, over_y), (batch_x, batch_y) = dimension_numbers
    if x._dtype in INTEGERS or y._dtype in INTEGERS or x._dtype == "bool":
        raise NoRule("dot_general of integers")
    free_x = [a for a in range(x.ndim) if a not in (*over_x, *batch_x)]
    free_y = [a for a in range(y.ndim) if a not in (*over_y, *batch_y)]
    batch = [x.shape[a] for a in batch_x]
    rows, columns = [x.shape[a] for a in free_x], [y.shape[a] for a in free_y]
    inner = math.prod(x.shape[a] for a in over_x)
    wide = str(preferred_element_type or x._dtype)
    if wide != x._dtype and x._dtype in ("float16", "bfloat16"):  # ours are stored as the factors are
        x, y = cast(x, wide), cast(y, wide)
    left = _permuted(x, [*batch_x, *free_x, *over_x])
    right = _permuted(y, [*batch_y, *over_y, *free_y])
    left = shaped(left, [*batch, *_matrix(rows, math.prod(rows)), inner])
    right = shaped(right, [*batch, inner, *_matrix(columns, math.prod(columns))])
    return cast(shaped(contractions.matmul(left, right), [*batch, *rows, *columns]), wide)


def _matrix(extents: Sequence[int], count: int) -> list[int]:
    return list(extents) if len(extents) == 1 else [count]


def _permuted(x: Any, axes: Sequence[int]) -> Any:
    return x if list(axes) == list(range(x.ndim)) else x._tracer.add("transpose", x, list(axes))


def _gather(
    x: Any, starts: Any, *, dimension_numbers: Any, slice_sizes: Sequence[int], mode: Any, fill_value: Any, **_: Any
) -> Any:
    """Positions along one axis, with all of the others: what x[i] and jnp.take are."""
    numbers, last = dimension_numbers, starts.ndim - 1
    axis = numbers.start_index_map[0] if len(numbers.start_index_map) == 1 else -1
    whole = [1 if a == axis else s for a, s in enumerate(x.shape)]
    if tuple(numbers.collapsed_slice_dims) != (axis,) or list(slice_sizes) != whole or numbers.operand_batching_dims:
        raise NoRule("gather along several axes")
    indices = shaped(starts, starts.shape[:last])
    how = str(mode).rpartition(".")[2]
    inside = p.clip(indices, 0, x.shape[axis] - 1) if how != "PROMISE_IN_BOUNDS" else indices
    made = x._tracer.add("take", x, inside, axis, True)
    if how.startswith("FILL"):
        is_there = p.logical_and(p.greater_equal(indices, 0), p.less(indices, x.shape[axis]))
        seen = [1] * axis + list(indices.shape) + [1] * (x.ndim - axis - 1)
        made = p.where(shaped(is_there, seen), made, _filling(x._dtype, fill_value))
    elif how not in ("CLIP", "PROMISE_IN_BOUNDS"):
        raise NoRule(f"gather in the mode {how}")
    own = list(range(axis, axis + last))  # axes of made: those of the indices, and the others
    others = iter([a for a in range(made.ndim) if a not in own])
    order = [next(others) if a in numbers.offset_dims else own.pop(0) for a in range(made.ndim)]
    return _permuted(made, order)


def _filling(dtype: str, value: Any) -> Any:
    if value is not None:
        return value
    return math.nan if dtype in FLOATS else True if dtype == "bool" else int(np.iinfo(dtype).min)


def _erfc(x: Any, **_: Any) -> Any:
    return erfc(x) if x._dtype in ("float32", "float64") else cast(erfc(cast(x, "float32")), x._dtype)


def _iota(tracer: Any, *, dtype: Any, shape: Sequence[int], dimension: int, **_: Any) -> Any:
    return tracer.add("iota", list(shape), dimension, str(dtype))


def _same(x: Any, **_: Any) -> Any:
    return x


def _stop(x: Any, **_: Any) -> Any:
    return x._tracer.constant(x)


# These are functions whose gradients JAX says, where those of the nodes that they become are others.
WITH_GRADIENTS: dict[str, Rule] = {
    "relu": lambda x: x._tracer.map("relu", x),  # whose gradient at 0 is 0
    "relu6": relu6,
    "logaddexp": lambda x, y: x._tracer.map("logaddexp", x, y),
    "logaddexp2": logaddexp2,
    "xlogy": xlogy,
    "xlog1py": xlog1py,
    "_xlogx": formulas.xlogx,  # in entr
}
RULES: dict[str, Rule] = {
    **{name: (_map if kind == "map" else _reduction)(op) for name, op, kind in _ROWS},
    "div": _divide,
    "rem": _rem,
    "round": _round,
    "integer_pow": _integer_pow,
    "and": _bits("logical_and", "bitwise_and"),
    "or": _bits("logical_or", "bitwise_or"),
    "xor": _bits("logical_xor", "bitwise_xor"),
    "not": _bits("logical_not", "invert"),
    "select_n": _select,
    "abs": _abs,
    "clamp": _clamp,
    "convert_element_type": _convert,
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "expand_dims": _expand_dims,
    "transpose": _transpose,
    "rev": _rev,
    "slice": _slice,
    "split": _split,
    "concatenate": _concatenate,
    "pad": _pad,
    "argmax": _search(extremes.argmax),
    "argmin": _search(extremes.argmin),
    "dot_general": _dot_general,
    "gather": _gather,
    "erfc": _erfc,
    "copy": _same,
    "copy_p": _same,
    "sharding_constraint": _same,
    "stop_gradient": _stop,
}
