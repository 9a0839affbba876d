"""The kinds of array that the tests run on: each knows how to make one from float64 values and how to read one back."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

os.environ.setdefault("JAX_ENABLE_X64", "1")  # float64 arrays
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import kfusion as kf
from kfusion import _core

_core.testing.poison_memory(True)  # what no kernel writes is seen

DTYPES = ("float16", "bfloat16", "float32", "float64")
ALL_DTYPES = (*DTYPES, "bool", "int32", "int64")
HAVE_GPU = _core.cuda_device_count() > 0
# The C++ is under AddressSanitizer: not optimised, and with an allocator of its own.
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
# A thread that is just starting may hold a lock of the sanitizer at the fork; the child's first thread waits for it.
forks_among_threads = pytest.mark.skipif(
    SANITIZED, reason="a child would wait for a lock in AddressSanitizer that a thread of the parent holds"
)

# Relative spacing of each stored type; sums of the half types and float32 run in float32.
SPACING = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
# The least value above zero.
TINY = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}


def np_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


class OnlyDlpack:
    """A producer that speaks DLPack and nothing else."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@dataclass(frozen=True)
class Kind:
    name: str
    make: Callable[[np.ndarray], Any]  # from a NumPy array of the wanted dtype
    back: Callable[[Any], np.ndarray]  # to float64
    cuda: bool = False
    needs: str | None = None
    dtypes: tuple[str, ...] = DTYPES
    immutable: bool = False

    def require(self) -> None:
        if self.cuda and not HAVE_GPU:
            pytest.skip("needs an NVIDIA GPU")
        if self.needs:
            module = pytest.importorskip(self.needs)
            if self.cuda and self.needs == "torch" and not module.cuda.is_available():
                pytest.skip("torch without CUDA")
            if self.cuda and self.needs == "jax" and module.default_backend() != "gpu":
                pytest.skip("JAX without CUDA")


def _torch(device: str) -> Callable[[np.ndarray], Any]:
    def make(x: np.ndarray) -> Any:
        torch = importlib.import_module("torch")
        name = str(x.dtype)
        wide = torch.from_numpy(np.ascontiguousarray(x.astype(np.float64)).copy()).reshape(x.shape)
        return wide.to(getattr(torch, name)).to(device)

    return make


def _jax(platform: str) -> Callable[[np.ndarray], Any]:
    def make(x: np.ndarray) -> Any:
        jax = importlib.import_module("jax")
        return jax.device_put(x, jax.devices(platform)[0])

    return make


def _cupy(x: np.ndarray) -> Any:
    return importlib.import_module("cupy").asarray(x)


def _numba(x: np.ndarray) -> Any:
    return importlib.import_module("numba.cuda").to_device(np.ascontiguousarray(x))


def _float64(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


KINDS = {
    k.name: k
    for k in (
        Kind("numpy", lambda x: x, _float64),
        Kind("torch", _torch("cpu"), lambda t: t.double().numpy(), needs="torch"),
        Kind("jax", _jax("cpu"), _float64, needs="jax", immutable=True),
        Kind("dlpack", OnlyDlpack, _float64, dtypes=("float16", "float32", "float64")),
        Kind("own", lambda x: kf.to_device(x), lambda a: _float64(a.numpy()), cuda=True),
        Kind("torch-cuda", _torch("cuda"), lambda t: t.double().cpu().numpy(), cuda=True, needs="torch"),
        Kind(
            "cupy",
            _cupy,
            lambda a: _float64(a.get()),
            cuda=True,
            needs="cupy",
            dtypes=("float16", "float32", "float64"),
        ),
        Kind("jax-cuda", _jax("gpu"), _float64, cuda=True, needs="jax", immutable=True),
        Kind(
            "numba",
            _numba,
            lambda a: _float64(a.copy_to_host()),
            cuda=True,
            needs="numba.cuda",
            dtypes=("float16", "float32", "float64"),
        ),
    )
}
FRAMEWORKS = [pytest.param(k, id=k.name, marks=[pytest.mark.cuda] if k.cuda else []) for k in KINDS.values()]
