"""Traced values that follow NumPy: the methods and attributes of its arrays."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _core
from .._graph.source import NotTraced
from .._graph.values import STATE
from .._ops import activations, contractions, views
from .._ops import primitives as p
from .._spec import dtype_name
from . import dtype_names, numpy_calls, numpy_stored, refusals, stored_numbers
from .dispatch import Dispatched
from .indexing import getitem
from .library_checks import compared
from .numpy_functions import array_function
from .numpy_ufuncs import POWERS, elementwise
from .traced import power


class NumpyValue(Dispatched, library="numpy"):
    """A traced NumPy array, or one of a library like it."""

    __slots__ = ("__weakref__", *STATE)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance(x, np.ndarray) answers as for the array itself; NumPy's C asks for type(x)
        array = next((i.array for i in self._tracer.inputs if i.array is not None), None)
        return np.ndarray if array is None or isinstance(array, np.ndarray) else type(array)

    def __getattr__(self, name: str) -> Any:
        """Methods of NumPy's arrays that NumPy has as functions too; those that return nothing change the value."""
        if name in _IN_PLACE:
            return functools.partial(_changed, self, name)
        function = getattr(np, name, None) if callable(getattr(np.ndarray, name, None)) else None
        if name.startswith("__") or function is None or refusals.is_impossible(name):
            return super().__getattr__(name)
        return lambda *args, **kwargs: array_function(function, (self, *args), kwargs)

    def __getitem__(self, key: Any) -> Any:
        return compared("numpy.getitem", operator.getitem, (self, key), {}, lambda: self._item(key))

    def _item(self, key: Any) -> Any:
        try:
            made = getitem(self, _with_wide_positions(key))
            return self._tracer.copy(made) if _is_scalar(made, key) else made
        except NotTraced:
            return numpy_calls.numpy_call(operator.getitem, "numpy.getitem", (self, key), {})

    def _assign(self, key: Any, value: Any) -> None:
        given = self, key, value
        self._write("[...]", numpy_calls.numpy_call(numpy_calls.assigned, "numpy.setitem", given, {}))

    def _operation(self, op: str, *operands: Any) -> Any:
        if any(map(dtype_names.is_complex, operands)):
            return numpy_calls.numpy_result(getattr(np, op), f"numpy.{op}", operands, {})
        return compared(f"numpy.{op}", getattr(np, op), operands, {}, lambda: _operated(op, operands))

    @property
    def dtype(self) -> Any:
        """NumPy's dtype; the name where NumPy does not know it (bfloat16 without ml_dtypes)."""
        try:
            return np.dtype(self._dtype)
        except TypeError:
            return self._dtype

    @property
    def real(self) -> Any:
        """The value itself: graphs of NumPy's arrays have no complex numbers."""
        return self

    @property
    def imag(self) -> Any:
        """Zeros."""
        return views.full_like(self, 0)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.itemsize

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        """Means numpy.reshape; the extents may be given one by one."""
        return array_function(np.reshape, (self, shape[0] if len(shape) == 1 else shape), {"order": order})

    def transpose(self, *axes: Any) -> Any:
        """Means numpy.transpose; the axes may be given one by one."""
        return views.transpose(self, axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None)

    def flatten(self, order: str = "C") -> Any:
        """A copy with one axis."""
        flat = array_function(np.ravel, (self,), {"order": order})
        return flat._tracer.copy(flat)

    def astype(
        self, dtype: Any, order: str = "K", casting: Any = "unsafe", subok: bool = True, copy: bool = True
    ) -> Any:
        """The values in another dtype."""
        if casting != "unsafe" and not np.can_cast(self.dtype, dtype, casting):
            raise TypeError(f"kfusion.astype: {self._dtype} cannot be cast to {dtype} by the rule {casting!r}")
        if stored_numbers.is_stored(dtype):
            return numpy_stored.cast(self, dtype)
        return self if not copy and dtype_name(dtype) == self._dtype else views.astype(self, dtype)

    def dot(self, other: Any) -> Any:
        """Means numpy.dot."""
        return array_function(np.dot, (self, other), {})

    def copy(self, order: str = "C") -> Any:
        """A copy of the values."""
        return self._tracer.copy(self)


def _operated(op: str, operands: Any) -> Any:
    try:
        return _in_graph(op, *operands)
    except NotTraced:
        function = operator.pow if op == "power" else getattr(np, op)  # which has dtypes of its own for bools
        return numpy_calls.numpy_call(function, f"numpy.{op}", operands, {})


def _in_graph(op: str, *operands: Any) -> Any:
    if op == "matmul":
        return contractions.matmul(*operands)
    if op == "power":
        x, y = operands
        return power(x, y, POWERS)
    return elementwise(op, op, operands)


def _is_scalar(item: Any, key: Any) -> bool:
    """Whether NumPy gives a scalar, which is no view."""
    return item.ndim == 0 and not any(k is Ellipsis or k is None for k in (key if isinstance(key, tuple) else (key,)))


def _with_wide_positions(key: Any) -> Any:
    """An index with int64 in place of small and unsigned integers, as NumPy takes them."""
    if isinstance(key, tuple):
        return tuple(map(_with_wide_positions, key))
    return key.astype(np.int64) if dtype_names.is_complex(key) and key.dtype.kind in "iu" else key


def _method(function: Any) -> Callable[..., Any]:
    def method(self: NumpyValue, *args: Any, **kwargs: Any) -> Any:
        return array_function(function, (self, *args), kwargs)

    method.__name__ = function.__name__
    method.__doc__ = f"As numpy.{function.__name__}."
    return method


def _as_compared(name: str) -> Callable[..., Any]:
    """A method of its own, which the checking mode compares with NumPy's."""
    own, of_numpy = vars(NumpyValue)[name], getattr(np.ndarray, name)

    @functools.wraps(own)
    def method(self: NumpyValue, *args: Any, **kwargs: Any) -> Any:
        build = functools.partial(own, self, *args, **kwargs)
        return compared(f"numpy.ndarray.{name}", of_numpy, (self, *args), kwargs, build)

    return method


def _changed(x: NumpyValue, name: str, *args: Any, **kwargs: Any) -> None:
    x._write(name, _IN_PLACE[name](x, *args, **kwargs))


# Methods that change the array, as functions of it that give the new one.
_IN_PLACE: dict[str, Callable[..., Any]] = {
    "sort": lambda x, *args, **kwargs: array_function(np.sort, (x, *args), kwargs),
    "partition": lambda x, *args, **kwargs: array_function(np.partition, (x, *args), kwargs),
    "fill": views.full_like,
}

# Methods of arrays that take what the function of the same name takes.
_SHARED = "all any argmax argmin clip max mean min prod ravel repeat round squeeze std sum swapaxes take var"
for _name in _SHARED.split():
    setattr(NumpyValue, _name, _method(getattr(np, _name)))

for _name in ("astype", "copy", "dot", "flatten", "reshape", "transpose"):
    setattr(NumpyValue, _name, _as_compared(_name))

# What arrays lack and chains of calls like: x.relu(), x.exp(), x.softmax(-1).
for _row in _core.op_table():
    if _row["kind"] == "map" and _row["arity"] == 1:
        for _name in {_row["name"], *_row["other_names"]} - vars(NumpyValue).keys():
            setattr(NumpyValue, _name, p.MAPS[_name])
for _name in activations.__all__:
    setattr(NumpyValue, _name, getattr(activations, _name))
