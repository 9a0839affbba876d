"""np.zeros(shape, like=x) of a traced x: an array of the function's own, which it can write traced values into.

Without like= NumPy makes an array of its own at once, and tells nobody what is written to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._graph.number import is_number
from .._graph.values import Traced
from .._ops.primitives import integers
from .._ops.views import broadcast_to
from .._spec import dtype_name
from .refusals import refused_keyword

_FILLED: dict[Any, float] = {np.zeros: 0.0, np.ones: 1.0, np.empty: 0.0}  # what is in an empty array is anybody's guess


def is_fill(function: Any) -> bool:
    """Whether a function of NumPy makes an array of one value."""
    return function in (*_FILLED, np.full)


def filled(x: Traced, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
    """What `function(*args, like=x, **kwargs)` is: np.zeros, np.ones, np.empty or np.full.

    Raises:
        TraceError: an order of axes in memory, or a device.
        TypeError: the dtype is none of kfusion's seven.
    """
    return _full(x, *args, **kwargs) if function is np.full else _constant(x, function, *args, **kwargs)


def _constant(x: Traced, function: Any, shape: Any, dtype: Any = None, order: str = "C", **kwargs: Any) -> Traced:
    return _full(x, shape, _FILLED[function], dtype, order, name=function.__name__, **kwargs)


def _full(
    x: Traced, shape: Any, fill_value: Any, dtype: Any = None, order: str = "C", *, name: str = "full", **kwargs: Any
) -> Traced:
    for keyword in [*kwargs, *["order"] * (order != "C")]:
        if kwargs.get(keyword, order) not in (None, "cpu"):
            raise refused_keyword(f"numpy.{name}", keyword)
    kind = _dtype_of(fill_value) if dtype is None else dtype_name(dtype, f"kfusion.{name}: dtype")
    value = x._tracer.add("cast", x._tracer.lift(fill_value, x._library), kind)
    made = broadcast_to(value, tuple(integers(name, "shape", shape)))
    return x._tracer.of_library(made, x._library)


def _dtype_of(value: Any) -> str:
    """The dtype of the array that NumPy makes of a value."""
    if isinstance(value, Traced):
        return value._dtype
    return dtype_name(np.dtype(value.__class__ if is_number(value) else np.asarray(value).dtype), "kfusion.full: dtype")
