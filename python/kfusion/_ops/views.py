"""Elements in another arrangement: no kernel, only how a kernel reads. And casts, fills and positions."""

from __future__ import annotations

import math
import operator
from typing import Any

from .._graph.tracer import Tracer, current
from .._graph.values import Traced
from .._spec import HALF, dtype_name
from .operation import Array, composite, operation, run
from .primitives import integers

__all__ = [
    "astype",
    "broadcast_to",
    "expand_dims",
    "flip",
    "full_like",
    "iota",
    "matrix_transpose",
    "moveaxis",
    "ravel",
    "reshape",
    "squeeze",
    "swapaxes",
    "transpose",
]


@composite
def transpose(x: Array, axes: tuple[int, ...] | None = None) -> Array:
    """Axes in another order.

        y = transpose(x, axes);  y.shape[i] = x.shape[axes[i]]

    Args:
        x: array of any dtype.
        axes: a permutation of x's axes; None reverses them.

    Returns:
        Array of x's dtype: a view, which moves no bytes.

    Raises:
        ValueError: axes does not name each axis once.
    """
    order = list(range(x.ndim)[::-1]) if axes is None else integers("transpose", "axes", axes)
    return x._tracer.view("transpose", x, order)


@composite
def matrix_transpose(x: Array) -> Array:
    """The last two axes exchanged.

    Args:
        x: array of any dtype with at least two axes.

    Returns:
        Array of shape (..., n, m) for x of shape (..., m, n): a view.

    Raises:
        ValueError: x has fewer than two axes.
    """
    if x.ndim < 2:
        raise ValueError(f"kfusion.matrix_transpose: x must have at least 2 axes, got shape {x.shape}")
    return swapaxes(x, -1, -2)


@composite
def swapaxes(x: Array, axis1: int, axis2: int) -> Array:
    """Two axes exchanged.

    Args:
        x: array of any dtype.
        axis1: one axis.
        axis2: the other.

    Returns:
        Array of x's dtype: a view.

    Raises:
        ValueError: no such axis.
    """
    order = list(range(x.ndim))
    i, j = axis_of(x, axis1, "swapaxes"), axis_of(x, axis2, "swapaxes")
    order[i], order[j] = j, i
    return transpose(x, tuple(order))


@composite
def moveaxis(x: Array, source: int | tuple[int, ...], destination: int | tuple[int, ...]) -> Array:
    """Axes at other positions, the rest in their order.

    Args:
        x: array of any dtype.
        source: the axis or axes to move.
        destination: where to, one for each.

    Returns:
        Array of x's dtype: a view.

    Raises:
        ValueError: no such axis, one twice, or source and destination differ in length.
    """
    goals, origins = (axes_tuple(x, a, "moveaxis") for a in (destination, source))
    if len(goals) != len(origins):
        raise ValueError(
            f"kfusion.moveaxis: destination must name {len(origins)} axes as source does, got {len(goals)}"
        )
    order = [a for a in range(x.ndim) if a not in origins]
    for goal, origin in sorted(zip(goals, origins, strict=True)):
        order.insert(goal, origin)
    return transpose(x, tuple(order))


@composite
def reshape(x: Array, shape: int | tuple[int, ...]) -> Array:
    """Other extents over the same elements in C order.

    Args:
        x: array of any dtype.
        shape: the new extents; one may be -1 and follows from the others.

    Returns:
        Array of x's dtype and of this shape.

    Raises:
        ValueError: the shape holds another number of elements.
    """
    return x._tracer.view("reshape", x, integers("reshape", "shape", shape))


@composite
def ravel(x: Array) -> Array:
    """All elements in C order, along one axis.

    Args:
        x: array of any dtype.

    Returns:
        Array of shape (x.size,).
    """
    return reshape(x, math.prod(x.shape))


@composite
def expand_dims(x: Array, axis: int | tuple[int, ...]) -> Array:
    """New axes of extent 1.

    Args:
        x: array of any dtype.
        axis: where they stand in the result.

    Returns:
        Array of x's dtype: a view.

    Raises:
        ValueError: no such axis, or one twice.
    """
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    ndim = x.ndim + len(axes)
    new = {_normal(a, ndim, "expand_dims") for a in axes}
    if len(new) < len(axes):
        raise ValueError("kfusion.expand_dims: axis must not name an axis twice")
    old = iter(x.shape)
    return reshape(x, tuple(1 if i in new else next(old) for i in range(ndim)))


@composite
def squeeze(x: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """x without axes of extent 1.

    Args:
        x: array of any dtype.
        axis: the axes to take away; None means all of extent 1.

    Returns:
        Array of x's dtype: a view.

    Raises:
        ValueError: an axis named has another extent than 1.
    """
    shape = x.shape
    axes = [i for i, n in enumerate(shape) if n == 1] if axis is None else axes_tuple(x, axis, "squeeze")
    if wrong := [i for i in axes if shape[i] != 1]:
        raise ValueError(f"kfusion.squeeze: axis {wrong[0]} must have extent 1, got shape {shape}")
    return reshape(x, tuple(n for i, n in enumerate(shape) if i not in axes))


@composite
def broadcast_to(x: Array, shape: int | tuple[int, ...]) -> Array:
    """Elements repeated along axes of extent 1 and along new leading axes.

    Args:
        x: array of any dtype.
        shape: the result's extents.

    Returns:
        Array of x's dtype: a view.

    Raises:
        ValueError: x does not broadcast to shape.
    """
    return x._tracer.view("broadcast", x, integers("broadcast_to", "shape", shape))


@operation
def flip(x: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """The order of elements reversed.

        y[..., i, ...] = x[..., n - 1 - i, ...]

    Args:
        x: array of any dtype.
        axis: the axes to reverse; None means all.

    Returns:
        Array of x's dtype: a view.

    Raises:
        ValueError: no such axis.
    """
    axes = range(x.ndim) if axis is None else axes_tuple(x, axis, "flip")
    slices = [(n - 1, -1, -1) if i in axes else (0, n, 1) for i, n in enumerate(x.shape)]
    return x._tracer.view("slice", x, slices)


@composite
def astype(x: Array, dtype: Any) -> Array:
    """The values in another dtype.

    Args:
        x: array of any dtype.
        dtype: a name, or NumPy's or torch's own object.

    Returns:
        Array of that dtype; floats become integers by cutting, anything but 0 becomes true.

    Raises:
        TypeError: the dtype is none of kfusion's seven.
    """
    name = dtype_name(dtype, "kfusion.astype: dtype")
    return x._tracer.copy(x) if name == x._dtype else x._tracer.add("cast", x, name)


@operation
def full_like(x: Array, fill_value: Array, dtype: Any = None) -> Array:
    """One value everywhere, in x's shape; x is not read.

    Args:
        x: array of any dtype.
        fill_value: a number, or an array without axes.
        dtype: of the result; x's own by default.

    Returns:
        Array of x's shape.

    Raises:
        TypeError: the dtype is none of kfusion's seven.
        ValueError: fill_value does not broadcast to x's shape.
    """
    name = x._dtype if dtype is None else dtype_name(dtype, "kfusion.full_like: dtype")
    return x._tracer.like(broadcast_to(x._tracer.add("cast", fill_value, name), x.shape), x)


def iota(shape: int | tuple[int, ...], axis: int = -1, dtype: Any = "int64", *, like: str = "numpy") -> Any:
    """0, 1, 2, ... along one axis: positions, made where they are used, so that they cost no bytes in a kernel.

        iota(shape, axis)[..., i, ...] = i

    Args:
        shape: extents of the result.
        axis: along which the numbers count.
        dtype: integers or floats.
        like: "numpy" or "torch", whose dtype rules the result follows in a traced function.

    Returns:
        Array of that shape and dtype: a traced value while a function is traced, else a NumPy array.

    Raises:
        ValueError: no such axis, or a negative extent.
        TypeError: the dtype is bool or none of kfusion's seven.
    """
    extents, (axis,) = integers("iota", "shape", shape), integers("iota", "axis", axis)
    tracer = current.get()
    if tracer is not None:
        return tracer.add("iota", extents, axis, dtype_name(dtype, "kfusion.iota: dtype"), like)
    tracer = Tracer("iota", eager=True)
    tracer.close([("", tracer.add("iota", extents, axis, dtype_name(dtype, "kfusion.iota: dtype"), "numpy"))])
    return run(tracer)[0]


def positions(x: Array, axis: int, dtype: str = "int64") -> Array:
    """0, 1, 2, ... along an axis of x, with extent 1 along all others."""
    axis = axis_of(x, axis, "iota")
    shape = [n if i == axis else 1 for i, n in enumerate(x.shape)]
    return x._tracer.add("iota", shape, axis, dtype, x._library)


def wide(x: Array) -> Array:
    """x, half types as float32: for steps that would round or overflow."""
    return astype(x, "float32") if x._dtype in HALF else x


def narrow(x: Array, dtype: str) -> Array:
    """What was computed of `wide` values, of the half type that these had."""
    return astype(x, dtype) if dtype in HALF else x


def axis_of(x: Traced, axis: int, who: str) -> int:
    """The axis counted from the front.

    Raises:
        ValueError: x has no such axis.
    """
    return _normal(axis, x.ndim, who)


def axes_tuple(x: Traced, axis: Any, who: str) -> tuple[int, ...]:
    """Several axes (or one), counted from the front.

    Raises:
        ValueError: x has no such axis, or one is named twice.
    """
    axes = tuple(axis_of(x, a, who) for a in (axis if isinstance(axis, (tuple, list)) else (axis,)))
    if len(set(axes)) < len(axes):
        raise ValueError(f"kfusion.{who}: axis must not name an axis twice, got {axis}")
    return axes


def axes_or_all(x: Traced, axis: Any, who: str) -> tuple[int, ...] | None:
    """Gives what `axes_tuple` gives, and None for all."""
    return None if axis is None else axes_tuple(x, axis, who)


def _normal(axis: int, ndim: int, who: str) -> int:
    try:
        axis = operator.index(axis)
    except TypeError:
        raise TypeError(f"kfusion.{who}: axis must be integers, got {axis!r}") from None
    if not -ndim <= axis < ndim:
        raise ValueError(f"kfusion.{who}: axis {axis} is out of bounds for array of dimension {ndim}")
    return axis % ndim
