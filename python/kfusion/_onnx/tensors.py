"""Arrays of callers as torch's tensors, which a model is computed with where torch is installed, and back."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from .. import _arrays
from .._spec import is_array
from .values import as_dtype, is_graph_dtype

_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}  # by bytes: dtypes that NumPy and torch have


@functools.cache
def torch() -> Any:
    """The package; None where it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


def is_tensor(x: Any) -> bool:
    """Whether x is torch's."""
    return _arrays.kind(x) == "torch"


def dtype_of(x: Any) -> np.dtype[Any]:
    """The NumPy dtype of an array or a tensor."""
    if isinstance(x, np.ndarray):
        found: np.dtype[Any] = x.dtype
        return found
    name = _arrays.dtype_name(x)
    try:
        return as_dtype(name)
    except TypeError:  # one of ml_dtypes'
        import ml_dtypes

        found = np.dtype(getattr(ml_dtypes, name))
        return found


def torch_dtype(dtype: np.dtype[Any]) -> Any:
    """torch's dtype of a NumPy dtype; None where it has none."""
    found = getattr(torch(), dtype.name, None)
    return found if isinstance(found, torch().dtype) else None


def from_numpy(array: np.ndarray, device: Any) -> Any:
    """An array as a tensor: on the CPU of the same memory.

    Raises:
        TypeError: torch has no such dtype.
    """
    dtype = torch_dtype(array.dtype)
    if dtype is None:
        raise TypeError(f"kfusion.onnx: torch has no {array.dtype.name}: pass NumPy arrays")
    if any(step < 0 or step % array.itemsize for step in array.strides):
        array = array.copy()  # torch has no such strides
    is_numpys = array.dtype.isbuiltin == 1 and array.dtype.kind != "V"
    bits = array if is_numpys else array.view(_BITS[array.dtype.itemsize])
    if bits.flags.writeable:
        made = torch().from_numpy(bits)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # arrays of files are read-only, and kernels do not write to inputs
            made = torch().from_numpy(bits)
    return (made if is_numpys else made.view(dtype)).to(device)


def to_numpy(tensor: Any) -> np.ndarray:
    """A tensor as an array: of the CPU's with the same memory. NumPy's arrays stay what they are."""
    if isinstance(tensor, (np.ndarray, np.generic)):
        return np.asarray(tensor)
    dtype, host = dtype_of(tensor), tensor.detach().cpu()
    if dtype.isbuiltin == 1 and dtype.kind != "V":
        array: np.ndarray = host.numpy()
        return array
    bits: np.ndarray = host.contiguous().view(getattr(torch(), _BITS[dtype.itemsize])).numpy()
    return bits.view(dtype)


def stored(tensor: Any, carrier: str) -> Any:
    """A tensor as its carrier holds it."""
    if is_graph_dtype(dtype_of(tensor)):
        return tensor
    return tensor.contiguous().view(getattr(torch(), carrier))


def seen(tensor: Any, dtype: np.dtype[Any]) -> Any:
    """A tensor of a carrier as what it stands for, where torch has that."""
    own = torch_dtype(dtype)
    return tensor if own is None or tensor.dtype == own else tensor.contiguous().view(own)


def taken(x: Any, name: str) -> Any:
    """A tensor, or an array on a GPU as one of the same memory.

    Raises:
        TypeError: torch is not installed, or x requires grad.
    """
    if torch() is None:
        raise TypeError(f"kfusion.onnx: {name} is an array on a GPU, which torch has to be installed for")
    if not is_tensor(x):
        return torch().from_dlpack(x)
    if x.requires_grad and torch().is_grad_enabled():
        raise TypeError(f"kfusion.onnx: {name} requires grad, which models do not give: pass {name}.detach()")
    return x


def library_of(arrays: Iterable[Any]) -> str:
    """The library that results are arrays of: torch, another one on GPUs, else NumPy."""
    kinds = [_arrays.kind(a) for a in arrays if is_tensor(a) or (is_array(a) and _arrays.on_cuda(a))]
    return "torch" if "torch" in kinds else next(iter(kinds), "numpy")


def of_one_kind(given: dict[str, Any]) -> dict[str, Any]:
    """Arrays of one library: torch's tensors on one device where torch is installed, or else NumPy's.

    Raises:
        ValueError: tensors are on several devices.
    """
    devices = {a.device for a in given.values() if not isinstance(a, np.ndarray)}
    if len(devices) > 1:
        raise ValueError(f"kfusion.onnx: inputs are on several devices: {', '.join(sorted(map(str, devices)))}")
    if torch() is None or not all(isinstance(a, np.ndarray) is False or torch_dtype(a.dtype) for a in given.values()):
        return {n: to_numpy(a) for n, a in given.items()}
    device = next(iter(devices), "cpu")
    return {n: from_numpy(a, device) if isinstance(a, np.ndarray) else a for n, a in given.items()}


def made(array: np.ndarray, library: str, device: Any) -> Any:
    """An array that is known as one of the caller's library."""
    return array if library == "numpy" else back(from_numpy(array, device), library)


def back(result: Any, library: str) -> Any:
    """A result as an array of the library whose arrays were given."""
    if library == "numpy":
        return to_numpy(result)
    tensor = from_numpy(result, "cpu") if isinstance(result, np.ndarray) else result
    return tensor if library == "torch" else importlib.import_module(library).from_dlpack(tensor)
