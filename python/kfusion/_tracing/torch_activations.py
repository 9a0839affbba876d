"""Activations of torch.nn.functional beyond those of kfusion's own: small formulas of one stage."""

from __future__ import annotations

import math
from typing import Any

from .._graph.tracer import constant
from .._graph.values import stage
from .._ops import activations, formulas, joins, views
from .._ops import primitives as p
from .._ops.gradients import clipped, taken, unless, with_derivatives
from . import refusals
from .torch_functions import named
from .torch_nn import along
from .torch_stages import Tensor, computed

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@computed("hardswish")
def _hardswish(input: Tensor) -> Any:
    y = input * p.clip(input + 3.0, 0.0, 6.0) / 6.0
    if not taken(input):
        return y
    slope = p.where(input <= -3.0, 0.0, p.where(input < 3.0, input / 3.0 + 0.5, 1.0))
    return p.where(input <= -3.0, constant(y), with_derivatives(y, (input, slope)))  # 0, of an infinite gradient too


@computed("hardsigmoid")
def _hardsigmoid(input: Tensor) -> Any:
    y = p.clip(input + 3.0, 0.0, 6.0) / 6.0
    return p.where(p.absolute(input) < 3.0, (input + 3.0) / 6.0, constant(y)) if taken(input) else y


@computed("hardtanh", takes="numbers")
def _hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    if min_val > max_val:
        raise ValueError(f"kfusion.hardtanh: min_val must be at most max_val, got {min_val} and {max_val}")
    if input._dtype in ("int32", "int64"):
        min_val, max_val = int(min_val), int(max_val)
    return clipped(input, min_val, max_val)


@computed("mish")
def _mish(input: Tensor) -> Any:
    t = p.tanh(p.log1p(p.exp(input)))
    if not taken(input):
        return input * t
    return with_derivatives(input * t, (input, t + input * p.sigmoid(input) * (1.0 - t * t)))


@computed("selu")
def _selu(input: Tensor) -> Any:
    return activations.scaled_elu(input, _SELU_ALPHA, _SELU_SCALE)


@computed("celu")
def _celu(input: Tensor, alpha: float = 1.0) -> Any:
    if alpha == 0:
        raise ZeroDivisionError("kfusion.celu: alpha must not be 0")
    return activations.scaled_elu(input, alpha, divisor=alpha)


@computed("prelu", same=True, method=True)
def _prelu(input: Tensor, weight: Tensor) -> Any:
    count, channels = math.prod(weight.shape), input.shape[1] if input.ndim > 1 else 1
    if weight.ndim > 1 or count not in (1, channels):
        raise ValueError(f"kfusion.prelu: weight must have shape (1,) or ({channels},), got {weight.shape}")
    shape = (count, *(1,) * (input.ndim - 2)) if count > 1 else ()
    return p.where(input > 0, input, unless(input > 0, input) * views.reshape(weight, shape))


@computed("glu")
def _glu(input: Tensor, dim: int = -1) -> Any:
    values, gates = halves("glu", input, dim)
    return values * p.sigmoid(gates)


def halves(name: str, x: Any, dim: int) -> tuple[Any, Any]:
    """The first and the second half along an axis, which must have an even extent."""
    axis = views.axis_of(x, dim, name)
    n = x.shape[axis]
    if n % 2:
        raise ValueError(f"kfusion.{name}: axis {dim} must have an even extent, got shape {x.shape}")
    first, second = joins.parts(x, [0, n // 2, n], axis)
    return first, second


@computed("log_sigmoid", "logsigmoid")
def _log_sigmoid(input: Tensor) -> Any:
    return formulas.log_sigmoid(input)


@computed("softsign", takes="numbers")
def _softsign(input: Tensor) -> Any:
    return input / (p.absolute(input) + 1)


@computed("tanhshrink", takes="numbers")
def _tanhshrink(input: Tensor) -> Any:
    return input - p.tanh(input)


@computed("softshrink")
def _softshrink(input: Tensor, lambd: float = 0.5) -> Any:
    if not 0 <= lambd < math.inf:
        raise ValueError(f"kfusion.softshrink: lambd must be at least 0 and finite, got {lambd}")
    between = constant(input * 0.0) if taken(input) else input * 0.0
    return p.where(input > lambd, input - lambd, p.where(input >= -lambd, between, input + lambd))


@computed("hardshrink", method=True)
def _hardshrink(input: Tensor, lambd: Tensor = 0.5) -> Any:  # lambd is of the input's dtype
    return p.where((input >= -lambd) & (input <= lambd), 0.0, input)


@computed("threshold", "_threshold", takes="numbers")
def _threshold(input: Tensor, threshold: float, value: float) -> Any:
    if input._dtype in ("int32", "int64"):
        threshold, value = int(threshold), int(value)
    return p.where(input <= threshold, value, input)


@computed("rrelu")
def _rrelu(input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False) -> Any:
    if training:
        raise refusals.refused("torch.rrelu")
    if not -math.inf < lower <= upper < math.inf:
        raise ValueError(f"kfusion.rrelu: lower must be at most upper, and both finite, got {lower} and {upper}")
    return p.where(input > 0, input, input * ((lower + upper) / 2))


@named("softmin", method=False)
def _softmin(input: Any, dim: int | None = None, dtype: Any = None, *, _stacklevel: int = 3) -> Any:
    with stage(input, "softmin"):
        return activations.softmax(*along("softmin", -input, dim, dtype))
