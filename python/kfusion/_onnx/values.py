"""What stands for a tensor of a model while it is traced.

A value is one of: a NumPy array, which is known; a `Traced`; a `Held`, of a dtype that graphs have not; None, for an
optional input that is left out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._graph.values import Traced
from .._spec import ITEM_BYTES
from .refusals import refused_type

_CARRIERS = {1: "bool", 2: "float16", 4: "int32", 8: "int64"}  # by bytes: dtypes of graphs whose elements have as many


class NeedsValues(BaseException):
    """A shape or an attribute depends on values of these inputs of the model: it is to be traced again with them.

    No code on the way may take it for an error of its own.
    """

    def __init__(self, names: frozenset[str], who: str) -> None:
        super().__init__(f"{who} needs values of {', '.join(sorted(names))}")
        self.names = names
        self.who = who


class AllKnown(BaseException):
    """Nothing is left to compute when the model is called: the function has the results."""

    def __init__(self, function: Any) -> None:
        super().__init__("every result is known when the model is traced")
        self.function = function


class NoRow(Exception):
    """A row of the table does not have the case at hand: the operator's function body, or the library, has."""


class Held:
    """A traced array of a dtype that graphs have not: `value` has its bits, and no kernel looks at them."""

    def __init__(self, value: Traced, dtype: np.dtype[Any]) -> None:
        self.value = value
        self.dtype = dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self.value.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)


def is_unknown(value: Any) -> bool:
    """Whether the value's elements are known only when the kernels run."""
    return issubclass(type(value), (Traced, Held))  # isinstance asks the value, which takes long


def is_known(value: Any) -> bool:
    """Whether the value is an array of which the elements are known; traced values of NumPy's claim to be arrays."""
    return issubclass(type(value), np.ndarray)


def shape_of(value: Any) -> tuple[int, ...]:
    """The extents of a value, as plain integers."""
    return tuple(int(n) for n in value.shape)


def size_of(value: Any) -> int:
    """The number of elements."""
    return math.prod(shape_of(value))


def dtype_of(value: Any) -> np.dtype[Any]:
    """The NumPy dtype of a value, ml_dtypes' ones too."""
    return as_dtype(value._dtype) if issubclass(type(value), Traced) else value.dtype


def as_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a name of kfusion's."""
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes  # the onnx package brings it

    made: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return made


def is_graph_dtype(dtype: np.dtype[Any]) -> bool:
    """Whether graphs have the dtype."""
    return dtype.name in ITEM_BYTES


def carrier(dtype: np.dtype[Any], what: str) -> str:
    """The graph's dtype that an array of another one is stored in.

    Raises:
        Refused: there is none: strings, complex numbers.
    """
    if is_graph_dtype(dtype):
        return str(dtype.name)
    if dtype.kind in "OSUc" or dtype.itemsize not in _CARRIERS:
        kind = "strings" if dtype.kind in "OSU" else dtype.name
        raise refused_type(what, f"of {kind}")
    return _CARRIERS[dtype.itemsize]


def stored(array: np.ndarray) -> np.ndarray:
    """An array as its carrier holds it."""
    return array if is_graph_dtype(array.dtype) else array.view(as_dtype(carrier(array.dtype, "an array")))


def seen(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """An array of a carrier, or already of its own dtype, as what it stands for."""
    return array if array.dtype == dtype else array.view(dtype)


def integers(array: Any) -> list[int]:
    """The elements of a known array of integers."""
    return [int(n) for n in np.asarray(array).ravel()]
