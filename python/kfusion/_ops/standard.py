"""Functions of the array API standard that are others by another name, or short compositions of them."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _arrays
from .._graph.values import Traced
from .._spec import is_array
from . import formulas, statistics
from . import primitives as p
from .contractions import matmul
from .joins import concatenate, unbind
from .operation import Array, Arrays, Axes, composite, operation
from .views import astype, axis_of, broadcast_to, full_like, reshape, transpose

__all__ = [
    "broadcast_arrays",
    "broadcast_shapes",
    "concat",
    "count_nonzero",
    "diff",
    "isdtype",
    "meshgrid",
    "ones_like",
    "permute_dims",
    "result_type",
    "signbit",
    "tensordot",
    "unstack",
    "vecdot",
    "zeros_like",
]


@operation
def concat(arrays: Arrays, axis: int | None = 0) -> Array:
    """Arrays one behind the other: `concatenate` by the standard's name.

    Args:
        arrays: tuple or list of arrays that have the same extents but along the axis.
        axis: along which; None joins all elements in C order.

    Returns:
        Array of the promoted dtype.

    Raises:
        ValueError: no such axis, or other extents differ.

    Source: the array API standard's `concat`.
    """
    return concatenate(arrays, axis)


@composite
def permute_dims(x: Array, axes: tuple[int, ...]) -> Array:
    """Axes in another order: `transpose` by the standard's name.

        y.shape[i] = x.shape[axes[i]]

    Args:
        x: array of any dtype.
        axes: a permutation of x's axes.

    Returns:
        Array of x's dtype: a view, which moves no bytes.

    Raises:
        ValueError: axes does not name each axis once.

    Source: the array API standard's `permute_dims`.
    """
    return transpose(x, axes)


@composite
def unstack(x: Array, axis: int = 0) -> list[Array]:
    """The elements along an axis, each without that axis: `unbind` by the standard's name.

    Args:
        x: array of any dtype.
        axis: along which.

    Returns:
        List of arrays of x's dtype: slices, which move no bytes.

    Raises:
        ValueError: no such axis.

    Source: the array API standard's `unstack`.
    """
    return unbind(x, axis)


@operation
def signbit(x: Array) -> Array:
    """Whether elements are negative; -0 and NaNs with a sign are.

    Args:
        x: numbers of any shape.

    Returns:
        Array of bool of x's shape.

    Source: the array API standard's `signbit`.
    """
    return formulas.signbit(x)


@operation
def count_nonzero(x: Array, axis: Axes = None, keepdims: bool = False) -> Array:
    """How many elements are not 0.

        y = sum(x != 0)

    Args:
        x: array of any dtype.
        axis: the axis or axes to count along; None means all.
        keepdims: whether these stay, with extent 1.

    Returns:
        Array of int64.

    Raises:
        ValueError: no such axis.

    Source: the array API standard's `count_nonzero`.
    """
    return statistics.count_nonzero(x, axis, keepdims)


@operation
def diff(x: Array, n: int = 1, axis: int = -1, *, prepend: Array | None = None, append: Array | None = None) -> Array:
    """n times the differences of neighbours.

        y[..., i, ...] = x[..., i + 1, ...] - x[..., i, ...]

    Args:
        x: array of any dtype; of bools the result says where they differ.
        n: how often.
        axis: along which.
        prepend: what stands before x along the axis.
        append: what stands behind it.

    Returns:
        Array of the promoted dtype, shorter by n along the axis.

    Raises:
        ValueError: no such axis, or n is below 0.

    Source: the array API standard's `diff`.
    """
    parts = [v for v in (prepend, x, append) if v is not None]
    return statistics.diff(concatenate(parts, axis) if len(parts) > 1 else x, n, axis)


@composite
def ones_like(x: Array, dtype: Any = None) -> Array:
    """1 everywhere, in x's shape; x is not read.

    Args:
        x: array of any dtype.
        dtype: of the result; x's own by default.

    Returns:
        Array of x's shape.

    Raises:
        TypeError: the dtype is none of kfusion's seven.

    Source: the array API standard's `ones_like`.
    """
    return full_like(x, 1, dtype)


@composite
def zeros_like(x: Array, dtype: Any = None) -> Array:
    """0 everywhere, in x's shape; x is not read.

    Args:
        x: array of any dtype.
        dtype: of the result; x's own by default.

    Returns:
        Array of x's shape.

    Raises:
        TypeError: the dtype is none of kfusion's seven.

    Source: the array API standard's `zeros_like`.
    """
    return full_like(x, 0, dtype)


@operation
def vecdot(x: Array, y: Array, axis: int = -1) -> Array:
    """Products of vectors along an axis.

        z = sum(x * y, axis)

    Args:
        x: numbers of any shape.
        y: numbers whose shape broadcasts with x's.
        axis: of the vectors, below 0: counted after broadcasting.

    Returns:
        Array of the broadcast shape without the axis, of the promoted dtype.

    Raises:
        ValueError: the shapes do not broadcast, or no such axis.

    Source: the array API standard's `vecdot`.
    """
    product = x * y
    return astype(p.sum(product, axis), product._dtype)


@operation
def tensordot(x: Array, y: Array, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """Products summed over axes of both arrays.

        z[i..., j...] = sum over k...: x[i..., k...] * y[k..., j...]

    Args:
        x: numbers.
        y: numbers of x's dtype.
        axes: how many of x's last and y's first axes are summed, or which of each.

    Returns:
        Array of x's other axes, then y's.

    Raises:
        ValueError: the extents of axes differ, there are no such, or not as many of each.

    Source: the array API standard's `tensordot`.
    """
    of_x, of_y = _summed(x, y, axes)
    if len(of_x) != len(of_y) or [x.shape[a] for a in of_x] != [y.shape[a] for a in of_y]:
        raise ValueError(f"kfusion.tensordot: axes {axes} of shapes {x.shape} and {y.shape} do not match")
    rest_of_x = [a for a in range(x.ndim) if a not in of_x]
    rest_of_y = [a for a in range(y.ndim) if a not in of_y]
    rows, columns = tuple(x.shape[a] for a in rest_of_x), tuple(y.shape[a] for a in rest_of_y)
    n = math.prod(x.shape[a] for a in of_x)
    left = reshape(transpose(x, (*rest_of_x, *of_x)), (math.prod(rows), n))
    right = reshape(transpose(y, (*of_y, *rest_of_y)), (n, math.prod(columns)))
    return reshape(matmul(left, right), (*rows, *columns))


def _summed(x: Traced, y: Traced, axes: Any) -> tuple[list[int], list[int]]:
    if isinstance(axes, int):
        if not 0 <= axes <= min(x.ndim, y.ndim):
            raise ValueError(f"kfusion.tensordot: axes must be between 0 and {min(x.ndim, y.ndim)}, got {axes}")
        return list(range(x.ndim - axes, x.ndim)), list(range(axes))
    of_each = [
        [axis_of(v, a, "tensordot") for a in ([given] if isinstance(given, int) else given)]
        for v, given in zip((x, y), axes, strict=True)
    ]
    if any(len(set(named)) < len(named) for named in of_each):
        raise ValueError(f"kfusion.tensordot: axes {axes} name one twice")
    return of_each[0], of_each[1]


def broadcast_arrays(*arrays: Any) -> list[Any]:
    """Arrays of one shape, that which theirs broadcast to.

    Args:
        arrays: of any dtypes.

    Returns:
        List of arrays of the given dtypes.

    Raises:
        ValueError: the shapes do not broadcast.
        TypeError: one is no array.

    Source: the array API standard's `broadcast_arrays`.
    """
    shape = _common_shape("broadcast_arrays", [_shape("broadcast_arrays", a) for a in arrays])
    return [broadcast_to(a, shape) for a in arrays]


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Any]:
    """Coordinates of a grid from those along each axis.

        y[k][i_0, i_1, ...] = x[k][i_k]

    Args:
        arrays: one axis each.
        indexing: "ij"; or "xy", for which the first two axes of the results are exchanged.

    Returns:
        List of as many arrays, with an axis for each of them.

    Raises:
        ValueError: an array has not one axis, or indexing is neither.
        TypeError: one is no array.

    Source: the array API standard's `meshgrid`.
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f'kfusion.meshgrid: indexing must be "xy" or "ij", got {indexing!r}')
    if any(len(_shape("meshgrid", a)) != 1 for a in arrays):
        raise ValueError("kfusion.meshgrid: arrays must have one axis")
    n = len(arrays)
    order = [1, 0, *range(2, n)] if indexing == "xy" and n > 1 else list(range(n))
    shaped = [reshape(a, tuple(-1 if order[i] == k else 1 for i in range(n))) for k, a in enumerate(arrays)]
    return broadcast_arrays(*shaped)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that shapes broadcast to.

    Args:
        shapes: tuples of extents.

    Returns:
        Tuple of extents.

    Raises:
        ValueError: they do not broadcast.

    Source: the array API standard's `broadcast_shapes`.
    """
    return _common_shape("broadcast_shapes", shapes)


_KINDS = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float16", "bfloat16", "float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
_KINDS["integral"] = _KINDS["signed integer"] + _KINDS["unsigned integer"]
_KINDS["numeric"] = _KINDS["integral"] + _KINDS["real floating"] + _KINDS["complex floating"]


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind.

    Args:
        dtype: of any library.
        kind: "bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric",
            a dtype, or a tuple of these.

    Returns:
        Whether it is one of them.

    Raises:
        ValueError: a text is no kind.

    Source: the array API standard's `isdtype`.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if not isinstance(kind, str):
        return _name(dtype) == _name(kind)
    if kind not in _KINDS:
        raise ValueError(f"kfusion.isdtype: kind must be a dtype or one of {', '.join(_KINDS)}, got {kind!r}")
    return _name(dtype) in _KINDS[kind]


def result_type(*arrays_and_dtypes: Any) -> Any:
    """The dtype that arithmetic gives, by the rules of the library that the arrays or dtypes are from.

    Args:
        arrays_and_dtypes: arrays, traced values, dtypes and numbers, at least one of them no number. An array is among
            them where dtypes are neither NumPy's nor torch's.

    Returns:
        A dtype of that library: torch's, the namespace's of an array that has one, else NumPy's.

    Raises:
        TypeError: the library has no such promotion.

    Source: the array API standard's `result_type`.
    """
    given = [v.dtype if isinstance(v, (Traced, np.ndarray)) or _is_tensor_of_torch(v) else v for v in arrays_and_dtypes]
    namespace = next((v.__array_namespace__() for v in given if hasattr(type(v), "__array_namespace__")), None)
    if namespace is not None:
        return namespace.result_type(*given)
    torch = sys.modules.get("torch")
    if torch is None or not any(isinstance(v, torch.dtype) for v in given):
        return np.result_type(*given)
    dtypes = [v for v in given if isinstance(v, torch.dtype)]
    made = functools.reduce(torch.promote_types, dtypes)
    numbers = [v for v in given if not isinstance(v, torch.dtype)]
    return functools.reduce(lambda d, v: torch.result_type(torch.empty((1,), dtype=d), v), numbers, made)


def _is_tensor_of_torch(value: Any) -> bool:
    """Whether value is one of torch's tensors."""
    return is_array(value) and _arrays.kind(value) == "torch"


def _name(dtype: Any) -> str:
    """A dtype's name, of any library."""
    if isinstance(dtype, (str, type, np.dtype)):
        return np.dtype(dtype).name if dtype != "bfloat16" else "bfloat16"
    return str(dtype).rpartition(".")[2]


def _shape(who: str, array: Any) -> tuple[int, ...]:
    if not hasattr(array, "shape"):
        raise TypeError(f"kfusion.{who}: arrays must be arrays, got {type(array).__name__}")
    return tuple(array.shape)


def _common_shape(who: str, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        raise ValueError(f"kfusion.{who}: shapes {', '.join(map(str, shapes))} do not broadcast") from None


for _function in (broadcast_arrays, broadcast_shapes, isdtype, meshgrid, result_type):
    _function.__module__ = "kfusion"
