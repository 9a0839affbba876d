"""Matrix products, convolutions, and elements at positions."""

from __future__ import annotations

import operator
from typing import Any

from .._graph.values import stage
from .operation import Array, composite
from .views import matrix_transpose, ravel, reshape

__all__ = ["conv2d", "linear", "matmul", "take", "take_along_axis"]


@composite
def matmul(x: Array, y: Array) -> Array:
    """Matrix product over the last two axes; leading axes broadcast.

        z[..., i, j] = sum_k x[..., i, k] y[..., k, j]

    Args:
        x: array of numbers, (..., m, k); one axis counts as a row.
        y: array of numbers, (..., k, n); one axis counts as a column.

    Returns:
        Array (..., m, n) of the promoted dtype, without the axes that were added.

    Raises:
        ValueError: the inner extents differ, leading axes do not broadcast, or an argument has no axes.
        TypeError: torch's values of different dtypes.

    Source: NumPy's `matmul`.
    """
    return x._tracer.add("matmul", x, y)


@composite
def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """A dense layer: x weight^T + bias. Stages: linear.matmul, linear.bias.

    Args:
        x: floats, (..., k).
        weight: floats, (n, k), as torch stores it.
        bias: (n,) or None.

    Returns:
        Array (..., n) of the promoted dtype.

    Raises:
        ValueError: the shapes do not fit.

    Source: torch's `nn.functional.linear`.
    """
    if weight.ndim != 2 or weight.shape[1:] != x.shape[-1:]:
        raise ValueError(
            f"kfusion.linear: weight must have shape (n, k) for x (..., k), got {weight.shape} for {x.shape}"
        )
    with stage(x, "linear.matmul"):
        y = matmul(x, matrix_transpose(weight))
    if bias is None:
        return y
    if bias.shape != weight.shape[:1]:
        raise ValueError(f"kfusion.linear: bias must have shape {weight.shape[:1]}, got {bias.shape}")
    with stage(x, "linear.bias"):
        return y + bias


@composite
def conv2d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> Array:
    """Convolution over images, as deep learning means it (without flipping).

    Stages: conv2d and, with a bias, conv2d.bias.

        y[n, o, i, j] = bias[o] + sum_crs weight[o, c, r, s] x[n, c, i stride + r dilation - padding, ...]

    Args:
        x: floats, (N, C, H, W).
        weight: floats, (O, C / groups, R, S).
        bias: (O,) or None.
        stride: steps between windows, one number or (rows, columns).
        padding: zeros around x.
        dilation: steps within a window.
        groups: parts of the channels that do not mix.

    Returns:
        Array (N, O, H', W') with H' = (H + 2 padding - dilation (R - 1) - 1) // stride + 1.

    Raises:
        ValueError: the shapes do not fit, or the window is larger than the padded image.
        TypeError: a dtype is no float.

    Source: torch's `nn.functional.conv2d`.
    """
    windows = [pair(v, name) for v, name in ((stride, "stride"), (padding, "padding"), (dilation, "dilation"))]
    with stage(x, "conv2d"):
        y = x._tracer.add("conv2d", x, weight, *windows, operator.index(groups))
    if bias is None:
        return y
    if bias.shape != weight.shape[:1]:
        raise ValueError(f"kfusion.conv2d: bias must have shape {weight.shape[:1]}, got {bias.shape}")
    with stage(x, "conv2d.bias"):
        return y + reshape(bias, (-1, 1, 1))


@composite
def take(x: Array, indices: Array, axis: int | None = None) -> Array:
    """Elements at positions along an axis.

        y[..., i, ...] = x[..., indices[i], ...]

    Args:
        x: array of any dtype.
        indices: int32 or int64, of any shape; negative ones count from the end.
        axis: None means along all elements of x in C order.

    Returns:
        Array of x's dtype, with the indices' axes in place of `axis`.

    Raises:
        ValueError: no such axis.
        TypeError: indices are no integers.
        IndexError: when it runs on the CPU, an index outside the axis. On CUDA, where nobody waits for kernels, the
            elements at such an index are NaN, 0 of integers and bools. Nothing is read outside x.

    Source: NumPy's `take`.
    """
    x, axis = (ravel(x), 0) if axis is None else (x, operator.index(axis))
    return x._tracer.add("take", x, indices, axis)


@composite
def take_along_axis(x: Array, indices: Array, axis: int | None = -1) -> Array:
    """Elements of x, each at a position of its own along an axis.

        y[..., i, ...] = x[..., indices[..., i, ...], ...]

    Args:
        x: array of any dtype.
        indices: int32 or int64, with as many axes as x; all but `axis` broadcast. Negative ones count from the end.
        axis: None means along all elements of x in C order; indices then have one axis.

    Returns:
        Array of x's dtype and, along `axis`, of the indices' extent.

    Raises:
        ValueError: no such axis, or the shapes do not broadcast.
        TypeError: indices are no integers.
        IndexError: as of `take`.

    Source: NumPy's `take_along_axis`.
    """
    x, axis = (ravel(x), 0) if axis is None else (x, operator.index(axis))
    return x._tracer.add("take_along_axis", x, indices, axis)


@composite
def taken(x: Array, indices: Array, axis: int, function: str, *, along: bool = False) -> Array:
    """`take`, or `take_along_axis`, for functions that refuse negative indices: torch's. One stage, `function`."""
    with stage(x, function):
        return x._tracer.add("take_along_axis" if along else "take", x, indices, axis, True)


def pair(value: Any, name: str) -> tuple[int, int]:
    pair = value if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2:
        raise ValueError(f"kfusion.conv2d: {name} must be one number or two, got {value}")
    return operator.index(pair[0]), operator.index(pair[1])
