"""Products of chunks of rows: the array library's, or kernels where it has none that is quick, or none that adds."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any

import numpy as np

from .._spec import HALF, ITEM_BYTES
from .contractions import matmul
from .operation import Array, Eager
from .views import astype, matrix_transpose

_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}  # of a chunk's logits
_BLOCK_BYTES = 1 << 25  # of what is added at once, where the library's products do not add
_ROW_ALIGNMENT = 16  # bytes, as kRowAlignment of the planner's devices: other rows have slow products on GPUs


def rows_times(x: Array, weight: Array) -> Array:
    """x weight^T."""
    return matmul(x, matrix_transpose(weight))


def product_added(total: Array | None, dz: Array, x: Array) -> Array:
    """total + dz^T x, wide."""
    product = astype(matmul(matrix_transpose(dz), x), wide_of(x._dtype))
    return product if total is None else total + product


@functools.cache
def _fused() -> dict[str, Any]:
    """The functions above, by name."""
    return {f.__name__: Eager.fuse(f) for f in (rows_times, product_added, matmul)}


def wide_of(dtype: str) -> str:
    """The dtype that it is computed in."""
    return "float32" if dtype in HALF else dtype


def rows_of_chunk(library: Library, x: Any, classes: int) -> int:
    """The rows of each chunk but the last one."""
    most = max(1, bytes_of_chunk(library.device(x)) // (classes * ITEM_BYTES[library.dtype(x)]))
    chunks = -(-len(x) // most)
    rows = -(-len(x) // chunks)
    return min(most, -(-rows // 64) * 64)


def bytes_of_chunk(device: str) -> int:
    """The bytes of a chunk of logits, on a device of that name ("cuda:0")."""
    return _BYTES["cpu" if device == "cpu" else "cuda"]


def missing_columns(device: str, dtype: str, columns: int) -> int:
    """Columns that are missing to a multiple of 16 bytes; 0 where products do not need it."""
    return -columns % (_ROW_ALIGNMENT // ITEM_BYTES[dtype]) if device != "cpu" and dtype in HALF else 0


class Library:
    """Products of a library of NumPy's kind."""

    def plain(self) -> Any:
        """A context in which functions compute as they are written."""
        return contextlib.nullcontext()

    def dtype(self, x: Any) -> str:
        """Its name."""
        return str(x.dtype)

    def device(self, x: Any) -> str:
        """The kind of device."""
        return "cuda" if _is_cupys(x) else "cpu"

    def empty(self, x: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        """A new array beside x."""
        library = sys.modules["cupy"] if _is_cupys(x) else np
        return library.empty(shape, x.dtype if dtype == self.dtype(x) else dtype)

    def with_rows_of_zeros(self, x: Any, rows: int) -> Any:
        """A copy of an array with so many rows of zeros behind it; itself for none."""
        if rows == 0:
            return x
        padded = self.empty(x, self.dtype(x), (len(x) + rows, *x.shape[1:]))
        padded[: len(x)] = x
        padded[len(x) :] = 0
        return padded

    def product(self, x: Any, weight: Any, out: Any) -> None:
        """x weight^T."""
        _fused()["rows_times"](x, weight, out=out)

    def times(self, dz: Any, weight: Any, out: Any) -> None:
        """dz weight."""
        _fused()["matmul"](dz, weight, out=out)

    def add_product(self, total: Any, dz: Any, x: Any, is_first: bool) -> None:
        """Adds dz^T x to the total, or sets it."""
        wide = self.dtype(total)
        step = max(1, _BLOCK_BYTES // max(1, x.shape[1] * ITEM_BYTES[wide]))
        for first in range(0, len(total), step):
            part = slice(first, first + step)
            if self.dtype(x) == wide:
                self.add(total[part], dz[:, part].T @ x, is_first)
            else:
                total[part] = _fused()["product_added"](None if is_first else total[part], dz[:, part], x)

    def add(self, total: Any, part: Any, is_first: bool) -> None:
        """Adds a part to the total, or sets it."""
        if is_first:
            total[...] = part
        else:
            total += part


class _Torch(Library):
    """Products of torch."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def plain(self) -> Any:
        return _plain(self._torch)

    def dtype(self, x: Any) -> str:
        return str(x.dtype).removeprefix("torch.")

    def device(self, x: Any) -> str:
        return "cuda" if x.is_cuda else "cpu"

    def empty(self, x: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        return self._torch.empty(shape, dtype=getattr(self._torch, dtype), device=x.device)

    def product(self, x: Any, weight: Any, out: Any) -> None:
        if self._is_slow(x):
            return super().product(x, weight, out)
        self._torch.mm(x, weight.t(), out=out)
        return None

    def times(self, dz: Any, weight: Any, out: Any) -> None:
        if self._is_slow(dz):
            return super().times(dz, weight, out)
        self._torch.mm(dz, weight, out=out)
        return None

    def add_product(self, total: Any, dz: Any, x: Any, is_first: bool) -> None:
        if total.dtype == x.dtype:
            self._torch.addmm(total, dz.t(), x, beta=0 if is_first else 1, out=total)
        elif not total.is_cuda:
            super().add_product(total, dz, x, is_first)
        elif _addswide_of(self._torch):
            beta = 0 if is_first else 1
            self._torch.addmm(total, dz.t(), x, out_dtype=total.dtype, beta=beta, out=total)
        else:
            self.add(total, self._torch.mm(dz.t(), x), is_first)

    def _is_slow(self, x: Any) -> bool:
        return not x.is_cuda and self.dtype(x) in HALF


@functools.cache
def _addswide_of(torch: Any) -> bool:
    """Whether products of half types on a GPU add to float32 arrays: from torch 2.8 on."""
    x = torch.zeros((16, 16), dtype=torch.bfloat16, device="cuda")
    total = torch.zeros((16, 16), device="cuda")
    try:
        torch.addmm(total, x, x, out_dtype=torch.float32, out=total)
    except (TypeError, RuntimeError):
        return False
    return True


def _plain(torch: Any) -> Any:
    """A context without gradients and autocast."""
    stack = contextlib.ExitStack()
    stack.enter_context(torch.no_grad())
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


def as_own(array: Any) -> Any:
    """An array of NumPy's of one whose library writes to none, such as JAX."""
    if array is None or isinstance(library_of(array), _Torch) or _is_cupys(array):
        return array
    return np.asarray(array)


def _is_cupys(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "cupy"


def library_of(x: Any) -> Library:
    torch = sys.modules.get("torch")
    return _Torch(torch) if torch is not None and isinstance(x, torch.Tensor) else Library()
