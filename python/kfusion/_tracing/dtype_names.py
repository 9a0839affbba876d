"""Names of dtypes of tensors and traced values, and which of these stand for complex numbers."""

from __future__ import annotations

from typing import Any

from .._graph.source import trace_error
from .._spec import DTYPES


def is_complex(value: Any) -> bool:
    """Whether value stands for complex numbers."""
    return hasattr(type(value), "__kfusion_complex__")


def dtype_of(array: Any, name: str) -> str:
    dtype = str(array.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise trace_error(
            f"{name} gives {dtype}, and values of a traced function are of {', '.join(DTYPES)}",
            "convert it within a function that kf.call calls",
        )
    return dtype


def name_of_dtype(tensor: Any) -> str:
    """ "uint8", without the name of torch."""
    return name_of(tensor.dtype)


def name_of(dtype: Any) -> str:
    """The name of one of torch's dtypes."""
    return str(dtype).removeprefix("torch.")
