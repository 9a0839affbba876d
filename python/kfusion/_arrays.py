"""What `compare` needs to know about other libraries' arrays, outside any timed region.

A kind is the name of the library that an array comes from. Nothing here imports a library that is not imported
already, except when a conversion to it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _core

# Relative spacing of each stored type; np.finfo knows bfloat16 only when ml_dtypes is installed.
SPACING = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
_CUDA_DEVICES = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged


def kind(x: Any) -> str:
    """The library that x's type belongs to: "numpy", "torch", "cupy", "jax", "kfusion", ..."""
    return _core.array_library(x)


def on_cuda(x: Any) -> bool:
    """Whether x's data is on a CUDA device."""
    if hasattr(x, "__dlpack_device__"):
        return int(x.__dlpack_device__()[0]) in _CUDA_DEVICES
    return hasattr(x, "__cuda_array_interface__")


def cuda_index(x: Any) -> int:
    """The number of the CUDA device that holds x."""
    return int(x.__dlpack_device__()[1]) if hasattr(x, "__dlpack_device__") else 0


def dtype_name(x: Any) -> str:
    """ "float32" for NumPy's, torch's and everybody else's float32."""
    return str(x.dtype).rpartition(".")[2]  # "torch.float32"


def mutable(x: Any) -> bool:
    """Whether arrays of x's kind can be written to, and so be an `out=`."""
    return kind(x) != "jax"


def host(x: Any, index: tuple[np.ndarray, ...] = ()) -> np.ndarray:
    """x, or the points of its leading axes that `index` names, as a NumPy array: floats as float64."""
    if kind(x) == "torch":
        import torch

        picked = (x[tuple(torch.from_numpy(i).to(x.device) for i in index)] if index else x).detach().cpu()
        return np.asarray((picked.double() if picked.is_floating_point() else picked).numpy())
    if kind(x) == "kfusion":
        x = x.numpy()
    picked = x[index] if index else x
    found = np.asarray(picked.get() if kind(picked) == "cupy" else picked)
    return found if found.dtype.kind in "bi" else found.astype(np.float64)


def poison(out: Any) -> None:
    """Fills out with NaN, so that an element that is never written cannot pass a check; whole numbers with their -1."""
    value = float("nan") if dtype_name(out) in SPACING else -1
    if kind(out) == "torch":
        out.fill_(value)
    elif kind(out) == "kfusion":
        _core.copy(_core.to_device(np.full(out.shape, value).astype(out.dtype)), out=out)
    else:
        out.fill(value)


def convert(x: Any, to: str) -> Any:
    """x as an array of the library `to` on x's device, without a copy where the library allows it.

    Raises:
        ImportError: the library is not installed.
        Exception: whatever the library raises where it has no such dtype or device.
    """
    if x is None or kind(x) == to:
        return x
    if on_cuda(x):
        return _from_dlpack(x, to)
    return _from_numpy(_to_numpy(x), to)


def _from_dlpack(x: Any, to: str) -> Any:
    if to == "torch":
        import torch

        return torch.utils.dlpack.from_dlpack(x)
    if to == "cupy":
        import cupy

        return cupy.from_dlpack(x)
    if to == "jax":
        import jax

        return jax.dlpack.from_dlpack(x)
    raise TypeError(f"{to} cannot take a CUDA array here")


def _to_numpy(x: Any) -> np.ndarray:
    if kind(x) == "torch" and dtype_name(x) == "bfloat16":
        import ml_dtypes
        import torch

        return np.asarray(x.view(torch.int16)).view(ml_dtypes.bfloat16)
    return np.asarray(x) if kind(x) in ("numpy", "torch", "jax") else np.from_dlpack(x)


def _from_numpy(x: np.ndarray, to: str) -> Any:
    if to == "torch":
        import torch

        if not x.flags.writeable or min(x.strides, default=0) < 0:
            x = x.copy()  # torch warns about the first and refuses the second
        if dtype_name(x) == "bfloat16":
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(x)
    if to == "jax":
        import jax.numpy as jnp

        return jnp.asarray(x)
    if to == "numpy":
        return x
    raise TypeError(f"{to} has no arrays on the CPU")


def imported(name: str) -> bool:
    """Whether the caller's program has imported the library already."""
    return name in sys.modules


def apart(result: Any, given: Sequence[Any]) -> Any:
    """A result of a function of arrays, or a copy of it where it shares memory with an argument: kernels use the memory
    of arguments again.
    """
    alike = [g for g in given if type(g) is type(result)]
    library = kind(result)
    if library == "torch":
        place = result.untyped_storage().data_ptr()
        return result.clone() if any(g.untyped_storage().data_ptr() == place for g in alike) else result
    if library not in ("numpy", "cupy"):
        return result
    shares = sys.modules[library].may_share_memory
    return result.copy() if any(shares(result, g) for g in alike) else result
