"""Variance, and the normalisations built on it.

The variance is two-pass, mean((x - mean)^2): E[x^2] - mean^2 cancels. Row statistics of half types are float32, as
torch's are: rounded to bfloat16 they would be wrong in the third digit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .._graph.tracer import constant
from .._graph.values import stage
from .._spec import FLOATS, described
from . import primitives as p
from .gradients import along_kept, root, share_of_extremes, taken, with_derivatives
from .operation import Array, Axes, composite, operation
from .views import astype, axes_or_all, axes_tuple, reshape, wide

__all__ = ["batchnorm", "layernorm", "norm", "relu_layernorm", "rmsnorm", "std", "var"]


@operation
def var(x: Array, axis: Axes = None, *, correction: float = 0, keepdims: bool = False) -> Array:
    """Variance.

        y = sum((x - mean(x))^2) / (n - correction)

    Args:
        x: floats; integers and bools give float64.
        axis: the axis or axes to reduce; None means all.
        correction: 0 is NumPy's default, 1 torch's.
        keepdims: whether reduced axes stay, with extent 1.

    Returns:
        Array of x's dtype.

    Raises:
        ValueError: no such axis.
    """
    axis = axes_or_all(x, axis, "var")
    squares = p.square(x - constant(p.mean(x, axis, keepdims=True)))  # of which the variance is smallest: 0 is exact
    if correction == 0:
        return p.mean(squares, axis, keepdims)
    axes = range(x.ndim) if axis is None else axis
    count = math.prod(x.shape[a] for a in axes)
    return p.sum(squares, axis, keepdims) / max(count - float(correction), 0.0)


@operation
def std(x: Array, axis: Axes = None, *, correction: float = 0, keepdims: bool = False) -> Array:
    """Standard deviation.

        y = sqrt(sum((x - mean(x))^2) / (n - correction))

    Args:
        x: floats; integers and bools give float64.
        axis: the axis or axes to reduce; None means all.
        correction: 0 is NumPy's default, 1 torch's.
        keepdims: whether reduced axes stay, with extent 1.

    Returns:
        Array of x's dtype.

    Raises:
        ValueError: no such axis.
    """
    axis = axes_or_all(x, axis, "std")
    return root(var(x, axis, correction=correction, keepdims=keepdims))


@operation
def norm(x: Array, ord: float = 2, axis: Axes = None, keepdims: bool = False) -> Array:
    """Length of vectors.

        y = sum(|x|^ord)^(1 / ord)        max(|x|) for inf, min(|x|) for -inf, the number of x != 0 for 0

    Args:
        x: floats; integers and bools give float64.
        ord: a number.
        axis: the axis or axes to reduce, taken as one vector; None means all.
        keepdims: whether reduced axes stay, with extent 1.

    Returns:
        Array of x's dtype.

    Raises:
        ValueError: no such axis.
        TypeError: ord is no number.

    Source: NumPy's `linalg.vector_norm`.
    """
    x = x if x._dtype in FLOATS else astype(x, "float64")
    axis = axes_or_all(x, axis, "norm")
    if not hasattr(type(ord), "__float__") or hasattr(ord, "shape"):
        got = repr(ord) if isinstance(ord, str) else described(getattr(ord, "array", ord), "ord")
        raise TypeError(f"kfusion.norm: ord must be a number, got {got}")
    if ord == 2:
        return root(p.sum(p.square(x), axis, keepdims))
    ord = float(ord)
    if ord == 0:
        return p.sum(astype(p.not_equal(x, 0), x._dtype), axis, keepdims)
    reductions = {1: "sum", math.inf: "max", -math.inf: "min"}
    if ord in reductions:
        length = p.REDUCTIONS[reductions[ord]]
        if taken(x) and ord != 1:
            return along_kept(lambda axes: _extreme_length(length, x, axes), x, axis, keepdims)
        return length(p.absolute(x), axis, keepdims)
    w = wide(x)
    return astype(along_kept(lambda axes: _power_length(w, ord, axes), w, axis, keepdims), x._dtype)


def _power_length(x: Array, ord: float, axis: Axes) -> Array:
    """As torch has them, the gradients of 0 and of rows of the length 0 are 0."""
    sizes = p.absolute(x)
    y = p.power(p.sum(p.power(sizes, ord), axis, True), 1.0 / ord)
    if not taken(x):
        return y
    share = p.where(x == 0, 0.0, p.sign(x) * p.power(sizes, ord - 1.0))
    return with_derivatives(y, (x, share * p.where(y == 0, 0.0, p.power(y, 1.0 - ord))))


def _extreme_length(length: Callable[..., Array], x: Array, axis: Axes) -> Array:
    sizes = p.absolute(x)
    y = length(sizes, axis, True)
    share = share_of_extremes(sizes, y)
    return with_derivatives(y, (x, p.where(x > 0, share, p.where(x < 0, -share, 0.0))))


@composite
def layernorm(
    x: Array, weight: Array | None = None, bias: Array | None = None, *, axis: Axes = -1, eps: float = 1e-5
) -> Array:
    """Layer normalisation. Stages: layernorm.mean, .var, .centre, .scale.

        y = (x - mean(x)) / sqrt(var(x) + eps) [* weight] [+ bias]

    Args:
        x: floats of any shape.
        weight: of the shape of the normalised axes, x's dtype or float32; or None.
        bias: likewise.
        axis: the axis or axes to normalise; (-2, -1) is torch's normalized_shape of two extents.
        eps: added to the variance.

    Returns:
        Array of x's shape and dtype.

    Raises:
        ValueError: weight or bias has another shape, no such axis, or eps < 0.
        TypeError: x is no float, or weight or bias has another dtype.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    return _layernorm("layernorm", x, weight, bias, axis, eps)


@composite
def relu_layernorm(
    x: Array, weight: Array | None = None, bias: Array | None = None, *, axis: Axes = -1, eps: float = 1e-5
) -> Array:
    """relu, then layer normalisation: what `fused_relu_layernorm` computes. Five stages: relu_layernorm.relu, .mean,
    .var, .centre, .scale.

        r = max(x, 0);  y = (r - mean(r)) / sqrt(var(r) + eps) [* weight] [+ bias]

    Args:
        x: floats of any shape.
        weight: of the shape of the normalised axes, x's dtype or float32; or None.
        bias: likewise.
        axis: the axis or axes to normalise.
        eps: added to the variance.

    Returns:
        Array of x's shape and dtype.

    Raises:
        ValueError: weight or bias has another shape, no such axis, or eps < 0.
        TypeError: x is no float, or weight or bias has another dtype.
    """
    with stage(x, "relu_layernorm.relu"):
        r = p.relu(x)
    return _layernorm("relu_layernorm", r, weight, bias, axis, eps)


@composite
def rmsnorm(x: Array, weight: Array | None = None, *, axis: Axes = -1, eps: float = 1e-5) -> Array:
    """Root-mean-square normalisation. Stages: rmsnorm.mean_square, rmsnorm.scale.

        y = x / sqrt(mean(x^2) + eps) [* weight]

    Args:
        x: floats of any shape.
        weight: of the shape of the normalised axes, x's dtype or float32; or None.
        axis: the axis or axes to normalise.
        eps: added to the mean square.

    Returns:
        Array of x's shape and dtype.

    Raises:
        ValueError: weight has another shape, no such axis, or eps < 0.
        TypeError: x is no float, or weight has another dtype.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    axes = checked("rmsnorm", x, axis, eps)
    weight = parameter("rmsnorm", "weight", weight, x, axes)
    with stage(x, "rmsnorm.mean_square"):
        mean_square = p.mean(p.square(wide(x)), axes, keepdims=True)
    with stage(x, "rmsnorm.scale"):
        return affine(x * p.rsqrt(mean_square + eps), weight, None, x)


@composite
def batchnorm(
    x: Array,
    mean: Array | None = None,
    var: Array | None = None,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    axis: int = 1,
    eps: float = 1e-5,
) -> Array:
    """Batch normalisation: at inference one stage, batchnorm; with x's own statistics (training) three:
    batchnorm.mean, batchnorm.var, batchnorm.scale.

        y = (x - mean) / sqrt(var + eps) [* weight] [+ bias]

    Args:
        x: floats, with channels along `axis`.
        mean: (channels,), of training data; None, and var None too, means x's own over all axes but `axis`.
        var: (channels,), likewise; the biased variance.
        weight: (channels,), x's dtype or float32; or None.
        bias: likewise.
        axis: of the channels.
        eps: added to the variance.

    Returns:
        Array of x's shape and dtype.

    Raises:
        ValueError: a parameter has another shape, only one of mean and var is given, no such axis, or eps < 0.
        TypeError: x is no float, or a parameter has another dtype.

    Source: Ioffe and Szegedy, "Batch Normalization", 2015.
    """
    if (mean is None) != (var is None):
        raise ValueError("kfusion.batchnorm: mean and var must be given both or neither")
    if mean is not None and var is not None:
        with stage(x, "batchnorm"):
            return of_channels(x, mean, var, weight, bias, axis, eps)
    channel = checked("batchnorm", x, axis, eps)
    return of_own_moments("batchnorm", x, [a for a in range(x.ndim) if a not in channel], weight, bias, axis, eps)[0]


def of_own_moments(
    name: str, x: Array, axes: Sequence[int], weight: Array | None, bias: Array | None, axis: int, eps: float
) -> tuple[Array, Array, Array]:
    """x with mean 0 and variance 1 along some axes, times a weight and plus a bias along one; the moments, too."""
    channel = checked(name, x, axis, eps)
    weight, bias = (parameter(name, n, v, x, channel) for n, v in (("weight", weight), ("bias", bias)))
    mean, var = moments(name, x, tuple(axes))
    with stage(x, f"{name}.scale"):
        if taken(x):
            return _scaled_by_sums(x, mean, var, weight, bias, eps), mean, var
        return affine((x - mean) * p.rsqrt(var + eps), weight, bias, x), mean, var


def _scaled_by_sums(x: Array, mean: Array, var: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    """x scaled so that its gradients need two sums along the axes, of g and of g (x - mean), which are of one pass:
    the gradient by the mean is that by the shift, which is 0, times the scale.
    """
    scale = p.rsqrt(var + eps) if weight is None else p.rsqrt(var + eps) * weight
    fixed = constant(mean)
    shift = (fixed - mean) * scale
    return affine((x - fixed) * scale, None, shift if bias is None else shift + bias, x)


def of_channels(
    x: Array, mean: Array, var: Array, weight: Array | None, bias: Array | None, axis: int, eps: float
) -> Array:
    """Batch normalisation with the statistics of training data, in no stage of its own."""
    channel = checked("batchnorm", x, axis, eps)
    given = {"mean": mean, "var": var, "weight": weight, "bias": bias}
    mean, var, weight, bias = (parameter("batchnorm", name, v, x, channel) for name, v in given.items())
    return affine((x - mean) * p.rsqrt(var + eps), weight, bias, x)


def _layernorm(name: str, x: Array, weight: Array | None, bias: Array | None, axis: Axes, eps: float) -> Array:
    axes = checked(name, x, axis, eps)
    weight, bias = (parameter(name, n, v, x, axes) for n, v in (("weight", weight), ("bias", bias)))
    mean, variance = moments(name, x, axes)
    with stage(x, f"{name}.centre"):
        centred = astype(x - mean, x._dtype)
    with stage(x, f"{name}.scale"):
        return affine(centred * p.rsqrt(variance + eps), weight, bias, x)


def moments(name: str, x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Mean and variance along axes, which stay with extent 1."""
    with stage(x, f"{name}.mean"):
        mean = p.mean(wide(x), axes, keepdims=True)
    with stage(x, f"{name}.var"):
        return mean, p.mean(p.square(wide(x) - constant(mean)), axes, keepdims=True)


def affine(y: Array, weight: Array | None, bias: Array | None, x: Array) -> Array:
    """y [* weight] [+ bias], stored as x is."""
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y if y._dtype == x._dtype else astype(y, x._dtype)


def checked(name: str, x: Array, axis: Axes, eps: float) -> tuple[int, ...]:
    """The axes, counted from the front, in order."""
    if x._dtype not in FLOATS:
        raise TypeError(f"kfusion.{name}: x must be floats, got {x._dtype}")
    if not hasattr(type(eps), "__float__"):
        raise TypeError(f"kfusion.{name}: eps must be a number, got {type(eps).__name__}")
    if not (math.isfinite(eps) and eps >= 0):
        raise ValueError(f"kfusion.{name}: eps must be finite and >= 0, got {eps}")
    return tuple(sorted(range(x.ndim) if axis is None else axes_tuple(x, axis, name)))


def parameter(name: str, what: str, value: Array | None, x: Array, axes: tuple[int, ...]) -> Array | None:
    """A parameter of the extents of x's axes `axes`, in a shape that broadcasts with x."""
    if value is None:
        return None
    shape = tuple(x.shape[a] for a in axes)
    if value.shape != shape:
        raise ValueError(f"kfusion.{name}: {what} must have shape {shape}, got {value.shape}")
    dtypes = dict.fromkeys((x._dtype, "float32"))
    if value._dtype not in dtypes:
        raise TypeError(f"kfusion.{name}: {what} must be {' or '.join(dtypes)}, got {value._dtype}")
    if axes == tuple(range(x.ndim - len(axes), x.ndim)):
        return value
    return reshape(value, tuple(n if a in axes else 1 for a, n in enumerate(x.shape)))
