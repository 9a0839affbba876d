"""NumPy's arrays of small, unsigned and complex numbers in traced functions, as torch's are (`torch_complex`).

Graphs have no dtypes for them. They are shown to the graph in a dtype whose elements have their size, complex ones as
pairs of floats, and no kernel looks at those: NumPy's own functions compute with them, each as a call of its own, until
a dtype comes out that kernels compute in.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .._graph.values import Traced
from . import indexing, refusals
from .numpy_calls import numpy_result, refuse_to_write
from .numpy_functions import array_function
from .stored_numbers import makes_numbers
from .traced import BINARY, COMPARISONS, UNARY, refuse

# What arrays have that is a function of them, and looks at no values.
_METHOD_NAMES = """
    all any argmax argmin argsort astype clip conj conjugate copy cumprod cumsum diagonal dot flatten max mean min prod
    ravel repeat reshape round searchsorted squeeze std sum swapaxes take trace transpose var
"""
_METHODS = frozenset(_METHOD_NAMES.split())
_ATTRIBUTES = ("T", "mT", "real", "imag")
_WIDE = {"uint8": "int32", "int8": "int32", "int16": "int32", "uint16": "int32"}


@makes_numbers("numpy")
class Stored:
    """A traced array of NumPy's of such a dtype. `pairs` is the traced value that it is stored in."""

    __kfusion_traced__ = __kfusion_complex__ = True

    def __init__(self, stored: Traced, dtype: str) -> None:
        self.pairs = stored
        self.dtype = np.dtype(dtype)
        self.shape = stored.shape[:-1] if self.dtype.kind == "c" else stored.shape

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance(x, np.ndarray) answers as for the array itself
        return np.ndarray

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        name = f"numpy.{ufunc.__name__}"
        if method == "at":
            raise refusals.refused(f"{name}.at")
        return numpy_result(ufunc if method == "__call__" else getattr(ufunc, method), name, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return array_function(function, args, kwargs)

    def __getitem__(self, key: Any) -> Any:
        indexing.refuse_masks(key if isinstance(key, tuple) else (key,))
        return numpy_result(operator.getitem, "numpy.getitem", (self, key), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        refuse_to_write("x[...] = y")

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            return lambda *args, **kwargs: numpy_result(_Method(name), f"numpy.ndarray.{name}", (self, *args), kwargs)
        if name in _ATTRIBUTES:
            return numpy_result(operator.attrgetter(name), f"numpy.ndarray.{name}", (self,), {})
        if name.startswith("__"):
            raise AttributeError(name)
        raise refusals.refused_attribute(name)

    def __repr__(self) -> str:
        return f"<traced {self.dtype}{list(self.shape)}>"


class _Method:
    """A method of arrays as a function of the array."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(x, self._name)(*args, **kwargs)


def cast(x: Any, dtype: Any) -> Any:
    """x.astype(dtype), where x has or is to have one of these dtypes."""
    return numpy_result(_Method("astype"), "numpy.ndarray.astype", (x, np.dtype(dtype)), {})


def result(x: Stored) -> tuple[Traced, Callable[[Any], Any]]:
    """An output of the graph, and what makes the function's result of it. Kernels may copy outputs, and keep the bits
    of floats and of integers that they have a dtype for only.
    """
    name = x.dtype.name
    if name in _WIDE:
        return cast(x, _WIDE[name]), _Narrowed(x.dtype)
    return x.pairs, _Shown(x.dtype)


class _Narrowed:
    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype

    def __call__(self, wide: Any) -> Any:
        return wide.astype(self._dtype)


class _Shown:
    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype

    def __call__(self, shown: Any) -> Any:
        if self._dtype.kind == "c":
            return np.ascontiguousarray(shown).view(self._dtype)[..., 0][()]
        return shown.view(self._dtype)


def _define(name: str, method: Callable[..., Any]) -> None:
    method.__name__ = f"__{name}__"
    setattr(Stored, method.__name__, method)


def _operator(name: str, symbol: str, ufunc: Any) -> None:
    what = f"numpy.{ufunc.__name__}"
    _define(name, lambda x, *y: numpy_result(ufunc, what, (x, *y), {}))
    if symbol:
        _define(f"r{name}", lambda x, y: numpy_result(ufunc, what, (y, x), {}))
        _define(f"i{name}", lambda x, y: refuse_to_write(f"x {symbol}= y"))


for _name, (_symbol, _op) in (BINARY | {"matmul": ("@", "matmul"), "divmod": ("divmod", "divmod")}).items():
    _operator(_name, _symbol, getattr(np, _op))
for _name, _op in (COMPARISONS | UNARY).items():
    _operator(_name, "", getattr(np, _op))
refuse(Stored)
