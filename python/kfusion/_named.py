"""The named kernels: `fused_softmax` and `unfused_softmax`, and so on, each made of the function that it computes.

To add one, write it (or take a function that there is) and list it in KERNELS.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ._fuse import FusedFunction, fuse
from ._ops.activations import gelu, log_softmax, softmax
from ._ops.linear_losses import linear_cross_entropy
from ._ops.losses import cross_entropy, mse
from ._ops.norms import layernorm, of_channels, relu_layernorm, rmsnorm
from ._ops.operation import Array, Axes, composite
from ._ops.primitives import MAPS


def bias_relu_log(x: Array, bias: Array) -> Array:
    """Logarithm of what is left above 0. Stages: add, relu, log.

        y = log(max(x + bias, 0))

    Args:
        x: numbers of any shape; integers and bools give float64.
        bias: numbers whose shape broadcasts with x's.

    Returns:
        Array of the broadcast shape and the promoted dtype; -inf where x + bias <= 0.

    Raises:
        ValueError: the shapes do not broadcast.
        TypeError: the arrays come from different libraries.
    """
    return MAPS["log"](MAPS["relu"](x + bias))


def mul_add_relu(x: Array, scale: Array, bias: Array) -> Array:
    """A scaled and shifted array, nothing of it below 0. Stages: multiply, add, relu.

        y = max(x * scale + bias, 0)

    Args:
        x: numbers of any shape.
        scale: a number, or an array whose shape broadcasts with x's.
        bias: likewise.

    Returns:
        Array of the broadcast shape and the promoted dtype.

    Raises:
        ValueError: the shapes do not broadcast.
        TypeError: the arrays come from different libraries.
    """
    return MAPS["relu"](x * scale + bias)


def add_layernorm(
    x: Array,
    residual: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    axis: Axes = -1,
    eps: float = 1e-5,
) -> tuple[Array, Array]:
    """A residual connection and the layer normalisation behind it, as a transformer's block begins.
    Stages: add, layernorm.mean, .var, .centre, .scale.

        s = x + residual;  y = (s - mean(s)) / sqrt(var(s) + eps) [* weight] [+ bias]

    Args:
        x: floats of any shape.
        residual: floats of x's shape.
        weight: of the shape of the normalised axes, x's dtype or float32; or None.
        bias: likewise.
        axis: the axis or axes to normalise.
        eps: added to the variance.

    Returns:
        s, which the next block adds to, and y; both of x's shape and dtype.

    Raises:
        ValueError: weight or bias has another shape, no such axis, or eps < 0.
        TypeError: x is no float, or weight or bias has another dtype.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016; Vaswani et al., "Attention Is All You Need", 2017.
    """
    total = x + residual
    return total, layernorm(total, weight, bias, axis=axis, eps=eps)


def add_rmsnorm(
    x: Array, residual: Array, weight: Array | None = None, *, axis: Axes = -1, eps: float = 1e-5
) -> tuple[Array, Array]:
    """A residual connection and the root-mean-square normalisation behind it, as most language models' blocks begin.
    Stages: add, rmsnorm.mean_square, rmsnorm.scale.

        s = x + residual;  y = s / sqrt(mean(s^2) + eps) [* weight]

    Args:
        x: floats of any shape.
        residual: floats of x's shape.
        weight: of the shape of the normalised axes, x's dtype or float32; or None.
        axis: the axis or axes to normalise.
        eps: added to the mean square.

    Returns:
        s, which the next block adds to, and y; both of x's shape and dtype.

    Raises:
        ValueError: weight has another shape, no such axis, or eps < 0.
        TypeError: x is no float, or weight has another dtype.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    total = x + residual
    return total, rmsnorm(total, weight, axis=axis, eps=eps)


def batchnorm(
    x: Array,
    mean: Array,
    var: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    axis: int = 1,
    eps: float = 1e-5,
) -> Array:
    """Batch normalisation at inference: with statistics of the training data.

        y = (x - mean) / sqrt(var + eps) [* weight] [+ bias]

    Args:
        x: floats, with channels along `axis`.
        mean: (channels,), x's dtype or float32.
        var: likewise; the biased variance.
        weight: likewise; or None.
        bias: likewise; or None.
        axis: of the channels.
        eps: added to the variance.

    Returns:
        Array of x's shape and dtype.

    Raises:
        ValueError: a parameter has another shape, no such axis, or eps < 0.
        TypeError: x is no float, or a parameter has another dtype.

    Source: Ioffe and Szegedy, "Batch Normalization", 2015.
    """
    return of_channels(x, mean, var, weight, bias, axis, eps)


def _in_steps(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a stage for each operation inside, where it would else be one: unfused softmax is five."""
    builder: Callable[..., Any] = inspect.unwrap(function)
    return composite(builder)


_ONE_RESULT: tuple[Callable[..., Any], ...] = (
    *(relu_layernorm, layernorm, rmsnorm, softmax, log_softmax, batchnorm),
    *(gelu, bias_relu_log, mul_add_relu),
    *(mse, cross_entropy, linear_cross_entropy),
)
KERNELS = (*map(_in_steps, _ONE_RESULT), add_layernorm, add_rmsnorm)

_KEYWORDS = """
    out: what to write the result into instead of a new array (a tuple of arrays for several results); an argument of
        the same shape, dtype and kind may be its own result.
    stream: CUDA stream to run on, a number or a library's object; None is the arrays' library's current one."""
_HOW = {
    "fused": "As few kernels as possible; `kfusion.{name}.plan(...)` shows which.",
    "unfused": "One kernel for each step: what `kfusion.fused_{function}` is measured against.",
}


def _named(made: Any, version: str, function: Callable[..., Any]) -> FusedFunction:
    name = f"{version}_{function.__name__}"
    made.__name__ = made.__qualname__ = name
    made.__module__ = "kfusion"
    made.__signature__ = _with_keywords(inspect.signature(function))
    how = _HOW[version].format(name=name, function=function.__name__)
    doc = inspect.getdoc(function)
    made.__doc__ = _documented(doc, how) if doc else None  # python -OO keeps none
    return made  # type: ignore[no-any-return]


def _with_keywords(signature: inspect.Signature) -> inspect.Signature:
    keyword = inspect.Parameter.KEYWORD_ONLY
    given = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    added = [inspect.Parameter(name, keyword, default=None) for name in ("out", "stream")]
    return signature.replace(parameters=[*given, *added], return_annotation=inspect.Signature.empty)


def _documented(doc: str, how: str) -> str:
    """The function's own documentation, with how it runs before its arguments, and two arguments more."""
    summary, arguments = doc.split("\n\nArgs:", 1)
    arguments = arguments.replace("\n\nReturns:", f"{_KEYWORDS}\n\nReturns:", 1)
    return f"{summary}\n\n{how}\n\nArgs:{arguments}"


__all__ = []
for _function in KERNELS:
    _fused = fuse(_function)
    for _version, _made in (("fused", _fused), ("unfused", _fused.unfused)):
        globals()[f"{_version}_{_function.__name__}"] = _named(_made, _version, _function)
        __all__.append(f"{_version}_{_function.__name__}")
