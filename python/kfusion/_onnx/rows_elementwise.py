"""Rows of operators that compute element by element."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from .. import _core
from .._graph.values import Traced
from .._spec import FLOATS, INTEGERS
from .functions import kf
from .library import onnx
from .refusals import RANDOM, refused
from .table import row
from .values import Held, NoRow, dtype_of, is_graph_dtype, is_known


def _unary(function: Any) -> Any:
    return lambda at, node, x: function(at.lift(x))


def _binary(function: Any) -> Any:
    return lambda at, node, x, y: function(*operands(at, x, y))


for _row in _core.op_table():
    _function = getattr(kf, _row["name"], None)
    for _op in _row["onnx"]:
        row(_op, since=(1, 7)[_row["arity"] - 1])((_unary, _binary)[_row["arity"] - 1](_function))


def operands(at: Any, *values: Any) -> list[Any]:
    """Operands of one dtype: numbers stay numbers, but not all of them."""
    found = [at.operand(v) for v in values]
    return found if any(isinstance(v, Traced) for v in found) else [at.lift(v) for v in values]


def dtype(x: Any) -> str:
    """The name of the dtype of a value that graphs have a dtype for."""
    name = str(dtype_of(x).name)
    if not is_graph_dtype(dtype_of(x)):
        raise NoRow
    return name


def floats(x: Any) -> Any:
    """x, which must be of floats."""
    if dtype(x) not in FLOATS:
        raise NoRow
    return x


def wide(x: Any) -> Any:
    """x, half types as float32."""
    return kf.astype(x, "float32") if x._dtype in ("float16", "bfloat16") else x


@row("Div", since=7, one=True)
def _div(at: Any, node: Any, x: Any, y: Any) -> Any:
    is_whole = dtype(x) in INTEGERS
    x, y = operands(at, x, y)
    if not is_whole:
        return kf.divide(x, y)
    quotient = kf.floor_divide(x, y)  # ONNX cuts towards 0
    is_short = kf.logical_and(kf.less(quotient, 0), kf.not_equal(kf.multiply(quotient, y), x))
    return kf.where(is_short, quotient + 1, quotient)


@row("Mod", since=10)
def _mod(at: Any, node: Any, x: Any, y: Any) -> Any:
    if node.attr("fmod", 0) or dtype(x) not in INTEGERS:
        raise NoRow
    return kf.remainder(*operands(at, x, y))


@row("Pow", since=7)
def _pow(at: Any, node: Any, x: Any, y: Any) -> Any:
    kind = dtype(x)
    exponent = at.operand(y)
    if isinstance(exponent, (int, float)) and not isinstance(exponent, bool) and kind in FLOATS:
        x = at.lift(x)
        if exponent == 2:
            return kf.square(x)
        if exponent == 1:
            return x
        if exponent == 0.5:
            return kf.astype(kf.power(x, 0.5), kind)
        return kf.astype(kf.power(x, float(exponent)), kind)
    if kind not in FLOATS or dtype(y) != kind:
        raise NoRow
    return kf.power(at.lift(x), at.lift(y))


def _fold(function: Any) -> Any:
    def build(at: Any, node: Any, *values: Any) -> Any:
        if len(values) == 1:
            return at.lift(values[0])
        return functools.reduce(lambda x, y: function(*operands(at, x, y)), values)

    return build


row("Sum", since=8)(_fold(kf.add))
row("Max", since=8)(_fold(kf.maximum))
row("Min", since=8)(_fold(kf.minimum))


@row("Mean", since=8, one=True)
def _mean(at: Any, node: Any, *values: Any) -> Any:
    total = _fold(kf.add)(at, node, *values)
    return kf.divide(total, float(len(values)))


@row("Where", since=9)
def _where(at: Any, node: Any, condition: Any, x: Any, y: Any) -> Any:
    if dtype(x) != dtype(y):
        raise NoRow
    x, y = operands(at, x, y)
    return kf.where(at.lift(condition), x, y)


@row("Clip", since=6, one=True)
def _clip(at: Any, node: Any, x: Any, low: Any = None, high: Any = None) -> Any:
    kind = dtype(x)
    low, high = (node.attr(n, None) if v is None else at.operand(v) for n, v in (("min", low), ("max", high)))
    x = at.lift(x)
    if low is not None:
        x = kf.maximum(x, low)
    x = x if high is None else kf.minimum(x, high)
    return kf.astype(x, kind)


@row("Cast", since=6)
def cast(at: Any, node: Any, x: Any) -> Any:
    return _cast_to(at, x, np.dtype(onnx().helper.tensor_dtype_to_np_dtype(node.attr("to"))))


@row("CastLike", since=15)
def _cast_like(at: Any, node: Any, x: Any, like: Any) -> Any:
    return _cast_to(at, x, dtype_of(like))


def _cast_to(at: Any, x: Any, to: np.dtype[Any]) -> Any:
    if is_known(x) and is_graph_dtype(to) and is_graph_dtype(x.dtype) and to.kind not in "iu":
        return x.astype(to)
    if isinstance(x, Held) or not is_graph_dtype(to) or (dtype(x) in FLOATS and to.kind in "iu"):
        raise NoRow  # what overflows is the reference's
    return kf.astype(at.lift(x), to.name)


@row("IsInf", since=10)
def _isinf(at: Any, node: Any, x: Any) -> Any:
    x = at.lift(x)
    signs = bool(node.attr("detect_negative", 1)), bool(node.attr("detect_positive", 1))
    if signs == (True, True):
        return kf.isinf(x)
    if signs == (False, False):
        return kf.astype(kf.full_like(x, 0), "bool")
    return kf.equal(x, math.inf if signs[1] else -math.inf)


# ---- activations ----


@row("Gelu", domain="")
def _gelu(at: Any, node: Any, x: Any) -> Any:
    return kf.gelu(at.lift(floats(x)), approximate=node.attr("approximate", "none"))


row("Gelu", domain="com.microsoft")(lambda at, node, x: kf.gelu(at.lift(floats(x))))


@row("Swish", one=True)
def _swish(at: Any, node: Any, x: Any) -> Any:
    x, alpha = at.lift(floats(x)), node.attr("alpha", 1.0)
    return kf.silu(x) if alpha == 1 else x * kf.sigmoid(x * alpha)


@row("LeakyRelu")
def _leaky_relu(at: Any, node: Any, x: Any) -> Any:
    return kf.leaky_relu(at.lift(floats(x)), node.attr("alpha", 0.01))


@row("Elu")
def _elu(at: Any, node: Any, x: Any) -> Any:
    return kf.elu(at.lift(floats(x)), node.attr("alpha", 1.0))


@row("Celu", one=True)
def _celu(at: Any, node: Any, x: Any) -> Any:
    x, alpha = at.lift(floats(x)), node.attr("alpha", 1.0)
    return kf.maximum(x, 0.0) + kf.minimum(alpha * kf.expm1(x / alpha), 0.0)


@row("Selu", since=6, one=True)
def _selu(at: Any, node: Any, x: Any) -> Any:
    alpha, gamma = node.attr("alpha", 1.67326319217681884765625), node.attr("gamma", 1.05070102214813232421875)
    return gamma * kf.elu(at.lift(floats(x)), alpha)


@row("Softplus", one=True)
def _softplus(at: Any, node: Any, x: Any) -> Any:
    return kf.logaddexp(at.lift(floats(x)), 0.0)


@row("Softsign", one=True)
def _softsign(at: Any, node: Any, x: Any) -> Any:
    x = at.lift(floats(x))
    return x / (1.0 + kf.absolute(x))


@row("HardSigmoid", one=True)
def _hard_sigmoid(at: Any, node: Any, x: Any) -> Any:
    x = at.lift(floats(x))
    return kf.clip(x * node.attr("alpha", 0.2) + node.attr("beta", 0.5), 0.0, 1.0)


@row("HardSwish", one=True)
def _hard_swish(at: Any, node: Any, x: Any) -> Any:
    x = at.lift(floats(x))
    return x * kf.clip(x * (1 / 6) + 0.5, 0.0, 1.0)


@row("Mish", one=True)
def _mish(at: Any, node: Any, x: Any) -> Any:
    x = at.lift(floats(x))
    return x * kf.tanh(kf.logaddexp(x, 0.0))


@row("PRelu", since=7, one=True)
def _prelu(at: Any, node: Any, x: Any, slope: Any) -> Any:
    if dtype(x) not in FLOATS:
        raise NoRow
    x, slope = operands(at, x, slope)
    return kf.where(kf.less(x, 0.0), x * slope, x)


@row("ThresholdedRelu", one=True)
def _thresholded(at: Any, node: Any, x: Any) -> Any:
    x = at.lift(floats(x))
    return kf.where(kf.greater(x, node.attr("alpha", 1.0)), x, 0.0)


@row("Shrink", one=True)
def _shrink(at: Any, node: Any, x: Any) -> Any:
    x = at.lift(floats(x))
    bias, border = node.attr("bias", 0.0), node.attr("lambd", 0.5)
    return kf.where(kf.less(x, -border), x + bias, kf.where(kf.greater(x, border), x - bias, 0.0))


@row("Dropout", since=7)
def _dropout(at: Any, node: Any, x: Any, ratio: Any = None, training: Any = None) -> Any:
    trains = training is not None and bool(node.known(training).ravel()[0])
    p = 0.5 if ratio is None else float(node.known(ratio).ravel()[0]) if trains else 0.0
    if trains and p != 0:
        raise refused(node, RANDOM)
    x = at.lift(x)
    everything = kf.astype(kf.full_like(x, 1), "bool") if len(node.proto.output) > 1 else None
    return [x, everything]
