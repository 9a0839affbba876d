"""Rows of reductions, and of normalisations along axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._ops.operation import Axes
from .._spec import FLOATS, INTEGERS
from .functions import kf
from .rows_elementwise import dtype, floats, wide
from .table import row
from .values import NoRow, integers, shape_of


def _axes(node: Any, axes: Any) -> tuple[int, ...] | None:
    """The axes of a reduction, an attribute or an input; None for all, () for none."""
    given = node.attr("axes", None) if axes is None else integers(node.known(axes))
    if given:
        return tuple(given)
    return () if node.attr("noop_with_empty_axes", 0) else None


def _sum(x: Any, axis: Axes, keepdims: bool) -> Any:
    return kf.astype(kf.sum(x, axis, keepdims), x._dtype)  # NumPy widens small integers


def _prod(x: Any, axis: Axes, keepdims: bool) -> Any:
    return kf.astype(kf.prod(x, axis, keepdims), x._dtype)


def _mean(x: Any, axis: Axes, keepdims: bool) -> Any:
    return kf.mean(floats(x), axis, keepdims)


def _l1(x: Any, axis: Axes, keepdims: bool) -> Any:
    return _sum(kf.absolute(x), axis, keepdims)


def _l2(x: Any, axis: Axes, keepdims: bool) -> Any:
    return kf.sqrt(_sum(kf.square(floats(x)), axis, keepdims))


def _sum_square(x: Any, axis: Axes, keepdims: bool) -> Any:
    return _sum(kf.square(x), axis, keepdims)


def _log_sum(x: Any, axis: Axes, keepdims: bool) -> Any:
    return kf.log(_sum(floats(x), axis, keepdims))


def _log_sum_exp(x: Any, axis: Axes, keepdims: bool) -> Any:
    if 0 in shape_of(x):
        raise NoRow
    return kf.logsumexp(floats(x), axis, keepdims)


def _extreme(function: Any, empty: float) -> Any:
    def reduce(x: Any, axis: Axes, keepdims: bool) -> Any:
        if 0 in shape_of(x):
            raise NoRow
        return function(x, axis, keepdims)

    return reduce


def _reduction(function: Any) -> Any:
    def build(at: Any, node: Any, x: Any, axes: Any = None) -> Any:
        if dtype(x) not in (*FLOATS, *INTEGERS):
            raise NoRow
        axis = _axes(node, axes)
        if axis == () or (axis is None and not shape_of(x)):
            if node.op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
                return at.lift(x)
            raise NoRow
        return function(at.lift(x), axis, bool(node.attr("keepdims", 1)))

    return build


for _op, _function in {
    **{"ReduceSum": _sum, "ReduceMean": _mean, "ReduceProd": _prod, "ReduceL1": _l1, "ReduceL2": _l2},
    **{"ReduceSumSquare": _sum_square, "ReduceLogSum": _log_sum, "ReduceLogSumExp": _log_sum_exp},
    **{"ReduceMax": _extreme(kf.max, -math.inf), "ReduceMin": _extreme(kf.min, math.inf)},
}.items():
    row(_op, one=_op not in ("ReduceSum", "ReduceMean", "ReduceProd"))(_reduction(_function))


def _position(function: Any) -> Any:
    def build(at: Any, node: Any, x: Any) -> Any:
        dtype(x)
        axis, keepdims = node.attr("axis", 0), bool(node.attr("keepdims", 1))
        x = at.lift(x)
        if not node.attr("select_last_index", 0):
            return function(x, axis, keepdims)
        return x.shape[axis] - 1 - function(kf.flip(x, axis), axis, keepdims)

    return build


row("ArgMax")(_position(kf.argmax))
row("ArgMin")(_position(kf.argmin))


# ---- along axes ----


def _of_rows(function: Any) -> Any:
    def build(at: Any, node: Any, x: Any) -> Any:
        x = at.lift(floats(x))
        if node.version >= 13:
            return function(x, node.attr("axis", -1))
        axis = node.attr("axis", 1) % max(x.ndim, 1)  # a row is all of this axis and those behind it
        return function(x, tuple(range(axis, x.ndim)))

    return build


row("Softmax")(_of_rows(kf.softmax))
row("LogSoftmax")(_of_rows(kf.log_softmax))


@row("Hardmax", since=13, one=True)
def _hardmax(at: Any, node: Any, x: Any) -> Any:
    x, axis = at.lift(floats(x)), node.attr("axis", -1)
    found = kf.argmax(x, axis, True)
    return kf.astype(kf.equal(_positions(x, axis), found), x._dtype)


def _positions(x: Any, axis: int) -> Any:
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    return kf.iota(tuple(shape), axis)


@row("LpNormalization", one=True)
def _lp_normalization(at: Any, node: Any, x: Any) -> Any:
    x, axis = at.lift(floats(x)), node.attr("axis", -1)
    if node.attr("p", 2) not in (1, 2):
        raise NoRow
    size = _l1(x, axis, True) if node.attr("p", 2) == 1 else _l2(x, axis, True)
    return kf.where(kf.equal(size, 0.0), 0.0, x / size)


@row("LayerNormalization", since=17)
def _layer_normalization(at: Any, node: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    if dtype(weight) != dtype(x):
        raise NoRow
    y = _normalized(at, node, x, weight, bias)
    if not any(node.proto.output[1:]):
        return y
    along, wide = _along(node, x), _wide(at.lift(floats(x)))
    axes = along["axis"]
    scale = kf.rsqrt(kf.var(wide, axis=axes, keepdims=True) + along["eps"])
    return [y, kf.mean(wide, axis=axes, keepdims=True), scale]


def _wide(x: Any) -> Any:
    """Converts x to the dtype of the statistics, float32."""
    return kf.astype(x, "float32") if x._dtype != "float32" else x


def _normalized(at: Any, node: Any, x: Any, weight: Any, bias: Any) -> Any:
    along, given = _along(node, x), [v for v in (weight, bias) if v is not None]
    if all(_is_along(v, node, x) for v in given):
        return kf.layernorm(at.lift(x), *_parameters(at, node, floats(x), weight, bias), **along)
    if any(np.broadcast_shapes(shape_of(v), shape_of(x)) != shape_of(x) for v in given):
        raise ValueError("its weights have extents that its input has not")
    y = kf.layernorm(at.lift(floats(x)), **along) * at.lift(weight)
    return y if bias is None else y + at.lift(bias)


@row("RMSNormalization", since=23)
def _rms_normalization(at: Any, node: Any, x: Any, weight: Any) -> Any:
    (weight,) = _parameters(at, node, floats(x), weight)
    if dtype(weight) != dtype(x) or node.attr("stash_type", 1) != 1:
        raise NoRow
    return kf.rmsnorm(at.lift(x), weight, **_along(node, x))


def _along(node: Any, x: Any) -> dict[str, Any]:
    first = node.attr("axis", -1)
    if node.attr("stash_type", 1) != 1 or not -x.ndim <= first < x.ndim:
        raise NoRow
    return {"axis": tuple(range(first % x.ndim, x.ndim)), "eps": node.attr("epsilon", 1e-5)}


def _parameters(at: Any, node: Any, x: Any, *given: Any) -> list[Any]:
    """Weights of the extents of the normalised axes, which may have leading axes of extent 1."""
    if not all(v is None or _is_along(v, node, x) for v in given):
        raise NoRow
    shape = shape_of(x)[node.attr("axis", -1) :]
    found = [None if v is None else at.lift(v) for v in given]
    return [v if v is None or v.shape == shape else kf.reshape(v, shape) for v in found]


def _is_along(v: Any, node: Any, x: Any) -> bool:
    shape = shape_of(x)[node.attr("axis", -1) :]
    lead = max(0, len(v.shape) - len(shape))
    return shape_of(v) == (1,) * lead + shape


@row("GroupNormalization", since=21)
def _group_normalization(at: Any, node: Any, x: Any, weight: Any, bias: Any) -> Any:
    if node.attr("stash_type", 1) != 1 or dtype(weight) != dtype(floats(x)):
        raise NoRow
    given = at.lift(x), node.attr("num_groups"), at.lift(weight), at.lift(bias)
    return kf.groupnorm(*given, eps=node.attr("epsilon", 1e-5))


@row("InstanceNormalization")
def _instance_normalization(at: Any, node: Any, x: Any, weight: Any, bias: Any) -> Any:
    x = at.lift(floats(x))
    return kf.groupnorm(x, x.shape[1], at.lift(weight), at.lift(bias), eps=node.attr("epsilon", 1e-5))


@row("BatchNormalization", since=9)
def _batch_normalization(at: Any, node: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any) -> Any:
    if node.attr("training_mode", 0) or len([n for n in node.proto.output if n]) > 1:
        raise NoRow
    given = [at.lift(v) for v in (x, mean, var, weight, bias)]
    if len({v._dtype for v in given}) > 1:
        raise NoRow
    return kf.batchnorm(*given, axis=1, eps=node.attr("epsilon", 1e-5))


@row("MeanVarianceNormalization", since=9, one=True)
def _mean_variance(at: Any, node: Any, x: Any) -> Any:
    x, axes = at.lift(floats(x)), tuple(node.attr("axes", [0, 2, 3]))
    centred = x - kf.mean(x, axes, True)
    return centred / (kf.sqrt(kf.mean(kf.square(centred), axes, True)) + 1e-9)


@row("LRN", one=True)
def _lrn(at: Any, node: Any, x: Any) -> Any:
    x, size = at.lift(floats(x)), node.attr("size")
    if size > 32:
        raise NoRow
    before = (size - 1) // 2
    widths = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
    squares = kf.pad(kf.square(wide(x)), widths)
    n = x.shape[1]
    total = squares[:, :n]
    for i in range(1, size):
        total = total + squares[:, i : i + n]
    scale = node.attr("bias", 1.0) + (node.attr("alpha", 1e-4) / size) * total
    return kf.astype(wide(x) / kf.power(scale, node.attr("beta", 0.75)), x._dtype)
