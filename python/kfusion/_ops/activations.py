"""Activation functions made of primitives, and softmax: one stage each."""

from __future__ import annotations

import math

from .._graph.tracer import constant
from .._spec import FLOATS
from . import primitives as p
from .gradients import taken, unless, with_derivatives
from .operation import Array, Axes, operation
from .views import axes_or_all, narrow, squeeze, wide

__all__ = ["elu", "gelu", "leaky_relu", "log_softmax", "logsumexp", "silu", "softmax", "softplus"]


@operation
def silu(x: Array) -> Array:
    """x times its sigmoid, also called swish.

        y = x / (1 + exp(-x))

    Args:
        x: floats of any shape.

    Returns:
        Array of x's shape and dtype.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
    """
    s = p.sigmoid(x)
    return with_derivatives(x * s, (x, s * (x * (1.0 - s) + 1.0))) if taken(x) else x * s


@operation
def gelu(x: Array, *, approximate: str = "none") -> Array:
    """Gaussian error linear unit.

        y = x (1 + erf(x / sqrt(2))) / 2
        y = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2        (approximate="tanh")

    Args:
        x: floats of any shape.
        approximate: "none" or "tanh".

    Returns:
        Array of x's shape and dtype.

    Raises:
        ValueError: approximate is neither.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
    """
    half = x * 0.5
    if approximate == "none":
        t = p.erf(x * math.sqrt(0.5))
    elif approximate == "tanh":
        t = p.tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi))
    else:
        raise ValueError(f'kfusion.gelu: approximate must be "none" or "tanh", got {approximate!r}')
    y = half * (t + 1.0)
    return with_derivatives(y, (x, _slope_of_gelu(x, t, approximate))) if taken(x) else y


def _slope_of_gelu(x: Array, t: Array, approximate: str) -> Array:
    """t: the erf or tanh of gelu(x)."""
    if approximate == "none":
        return (t + 1.0) * 0.5 + x * (p.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi)))
    inner = (x * x * (3 * 0.044715) + 1.0) * math.sqrt(2 / math.pi)
    return (t + 1.0) * 0.5 + x * 0.5 * (1.0 - t * t) * inner


@operation
def softplus(x: Array, *, beta: float = 1.0, threshold: float = 20.0) -> Array:
    """A smooth relu.

        y = log(1 + exp(beta x)) / beta where beta x <= threshold, else x

    Args:
        x: floats of any shape.
        beta: sharpness.
        threshold: where y and x no longer differ in float32.

    Returns:
        Array of x's shape and dtype.

    Source: torch's `nn.functional.softplus`.
    """
    scaled = x * beta
    is_above = scaled > threshold
    y = p.where(is_above, x, p.log1p(p.exp(scaled)) / beta)
    if not taken(x):
        return y
    e = p.exp(scaled)
    return with_derivatives(y, (x, p.where(is_above, 1.0, e / (e + 1.0))))


@operation
def leaky_relu(x: Array, negative_slope: float = 0.01) -> Array:
    """relu with a slope below 0.

        y = x where x > 0, else negative_slope x

    Args:
        x: floats of any shape.
        negative_slope: a number.

    Returns:
        Array of x's shape and dtype.

    Source: torch's `nn.functional.leaky_relu`.
    """
    return p.where(x > 0, x, unless(x > 0, x) * negative_slope)


@operation
def elu(x: Array, alpha: float = 1.0) -> Array:
    """Exponential linear unit.

        y = alpha (exp(x) - 1) where x < 0, else x

    Args:
        x: floats of any shape.
        alpha: a number.

    Returns:
        Array of x's shape and dtype.

    Source: Clevert, Unterthiner and Hochreiter, "Fast and Accurate Deep Network Learning by ELUs", 2015.
    """
    return scaled_elu(x, alpha)


def scaled_elu(x: Array, alpha: float, scale: float | None = None, divisor: float | None = None) -> Array:
    """scale alpha (exp(x / divisor) - 1) where x < 0, else scale x. The slope at 0 is the one below."""
    below, factor = x if divisor is None else x / divisor, alpha if scale is None else alpha * scale
    y = p.where(x < 0, p.expm1(below) * factor, x if scale is None else x * scale)
    if not taken(x):
        return y
    slope = p.exp(below) * (factor if divisor is None else factor / divisor)
    return with_derivatives(y, (x, p.where(x <= 0, slope, 1.0 if scale is None else scale)))


@operation
def softmax(x: Array, axis: Axes = -1) -> Array:
    """Exponentials as shares of their sum.

        y = exp(x - max(x)) / sum(exp(x - max(x)))

    Args:
        x: floats; subtracting the maximum keeps every exponential at or below 1.
        axis: the axis or axes that sum to 1; None means all.

    Returns:
        Array of x's shape and dtype.

    Raises:
        ValueError: no such axis, or it has no elements.
    """
    axis, dtype = axes_or_all(x, axis, "softmax"), x._dtype
    x = wide(x)  # so that what is kept of a row for backward is not rounded
    e = p.exp(x - constant(p.max(x, axis, keepdims=True)))
    return narrow(e / p.sum(e, axis, keepdims=True), dtype)


@operation
def log_softmax(x: Array, axis: Axes = -1) -> Array:
    """Logarithm of softmax, without its underflow.

        y = x - max(x) - log(sum(exp(x - max(x))))

    Args:
        x: floats.
        axis: the axis or axes over which exp(y) sums to 1; None means all.

    Returns:
        Array of x's shape and dtype.

    Raises:
        ValueError: no such axis, or it has no elements.
    """
    axis, dtype = axes_or_all(x, axis, "log_softmax"), x._dtype
    x = wide(x)
    d = x - constant(p.max(x, axis, keepdims=True))
    return narrow(d - p.log(p.sum(p.exp(d), axis, keepdims=True)), dtype)


@operation
def logsumexp(x: Array, axis: Axes = None, keepdims: bool = False) -> Array:
    """Logarithm of the sum of exponentials, without overflow.

        y = max(x) + log(sum(exp(x - max(x))))

    Args:
        x: floats.
        axis: the axis or axes to sum; None means all.
        keepdims: whether summed axes stay, with extent 1.

    Returns:
        Array of x's dtype.

    Raises:
        ValueError: no such axis, or it has no elements.
    """
    axis, dtype = axes_or_all(x, axis, "logsumexp"), x._dtype
    x = wide(x)
    largest = constant(p.max(x, axis, keepdims=True))
    if dtype not in FLOATS:
        largest = largest + 0.0  # differences of integers may not fit theirs
    total = p.sum(p.exp(x - largest), axis, keepdims=True)
    total = p.where(p.isfinite(largest), total, 1.0)  # rows of nothing but -inf, or with an inf, give it back
    total = narrow(p.log(total) + largest, dtype)
    return total if keepdims else squeeze(total, axis)
