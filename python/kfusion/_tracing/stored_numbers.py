"""Numbers that graphs have no dtype for: complex ones as pairs of floats, others as a dtype of their size.

What stands for arrays of them while a function is traced are classes of torch's (`torch_complex.py`) and NumPy's
(`numpy_stored.py`). Calls of the library take and give such values, and know of them what is here.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .._graph.tracer import Tracer
from .._graph.values import Traced
from .._spec import Spec

# By torch's and NumPy's dtype: the dtype of graphs that has elements of its size, or of half of it.
STORED = {
    **{"complex64": "float32", "complex128": "float64"},
    **{"uint8": "bool", "int8": "bool", "int16": "float16", "uint16": "float16", "uint32": "int32", "uint64": "int64"},
}
_CLASSES: dict[str, Callable[[Traced, str], Any]] = {}


def makes_numbers(library: str) -> Callable[[Callable[[Traced, str], Any]], Any]:
    """Enters what makes the numbers of a dtype that a value stands for."""

    def enter(kind: Callable[[Traced, str], Any]) -> Any:
        _CLASSES[library] = kind
        return kind

    return enter


def numbers(library: str, stored: Traced, dtype: str) -> Any:
    """The library's numbers of a dtype that a value stands for."""
    return _CLASSES[library](stored, dtype)


# ---- torch's tensors ----


def torch_spec(array: Any) -> Spec | None:
    """The spec of what stands for a tensor whose numbers graphs have no dtype for."""
    dtype = str(getattr(array, "dtype", "")).removeprefix("torch.")
    if dtype not in STORED or not hasattr(array, "is_conj"):
        return None
    shape = (*array.shape, 2) if dtype.startswith("complex") else tuple(array.shape)
    return Spec(shape, STORED[dtype], "torch", str(array.device))


def torch_numbers(array: Any, tracer: Tracer) -> Any:
    """A tensor of such numbers that the function names: its elements are read when the kernels run."""
    torch, dtype = sys.modules["torch"], str(array.dtype).removeprefix("torch.")
    with torch._C.DisableTorchFunction():
        stored = torch.view_as_real(array.resolve_conj()) if array.is_complex() else array.view(_kept(array.dtype))
    return numbers("torch", tracer.lift(stored, "torch"), dtype)


def torch_seen(tensor: Any, dtype: str) -> Any:
    """A tensor as it is stored, or is already, as numbers of a dtype."""
    torch = sys.modules["torch"]
    if STORED.get(dtype) and not dtype.startswith("complex"):
        return tensor.view(getattr(torch, dtype))
    if tensor.numel() == 0 and not tensor.is_complex():  # whose strides may be none of pairs
        tensor = tensor.new_empty(tensor.shape)
    return tensor if tensor.is_complex() else torch.view_as_complex(tensor)


def torch_stored(tensor: Any) -> Any:
    """A result of torch's as it is stored."""
    if tensor.is_complex():
        return sys.modules["torch"].view_as_real(tensor.resolve_conj())
    kept = _kept(tensor.dtype)
    return tensor if kept is None else tensor.contiguous().view(kept)


@functools.cache
def _kept(dtype: Any) -> Any:
    """torch's dtype of what stands for such integers; None for what graphs have a dtype for."""
    kept = STORED.get(str(dtype).removeprefix("torch."))
    return kept and getattr(sys.modules["torch"], kept)


# ---- NumPy's arrays ----


def is_stored(dtype: Any) -> bool:
    """Whether NumPy has such a dtype and graphs have not."""
    try:
        return np.dtype(dtype).name in STORED
    except TypeError:
        return False


def numpy_spec(array: Any) -> Spec | None:
    """The spec of what stands for an array whose numbers graphs have no dtype for."""
    if not isinstance(array, np.ndarray) or array.dtype.name not in STORED or not array.dtype.isnative:
        return None
    pair = (2,) if array.dtype.kind == "c" else ()
    return Spec((*array.shape, *pair), STORED[array.dtype.name])


def numpy_seen(array: Any, dtype: np.dtype[Any]) -> Any:
    """An array as it is stored, or is already, as numbers of a dtype."""
    if array.dtype == dtype:
        return array
    return array.view(dtype)[..., 0] if dtype.kind == "c" else array.view(dtype)


def numpy_stored(array: np.ndarray) -> np.ndarray:
    """A result of NumPy's as it is stored.

    Raises:
        NotImplementedError: it is JAX's, whose views as bool are whether a number is not 0.
    """
    kept = STORED.get(array.dtype.name)
    if kept is None:
        return array
    if kept == "bool" and type(array).__module__.partition(".")[0] in ("jax", "jaxlib"):
        raise NotImplementedError(f"kfusion: kernels have no {array.dtype}: call it outside of jax.jit, on arrays")
    if array.dtype.kind != "c":
        return array.view(kept)
    pairs = np.empty((*array.shape, 2), kept)
    pairs[..., 0], pairs[..., 1] = array.real, array.imag
    return pairs
