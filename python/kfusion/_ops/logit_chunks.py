"""Rows of logits in chunks, with their losses and gradients: functions that plans call between their kernels.

Products are the array library's, and what is between them is a fused function. Of a chunk there are the logits and
their gradient, in two arrays that all chunks share.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._spec import ITEM_BYTES
from .contractions import matmul
from .losses import cross_entropy
from .operation import Array, Eager
from .views import astype, broadcast_to, matrix_transpose

_HALF = ("float16", "bfloat16")
_BYTES = {"cuda": 1 << 28, "cpu": 1 << 26}  # of a chunk's logits
_BLOCK_BYTES = 1 << 24  # of what is added at once, where the library's products do not add
_LINE_BYTES = 16  # rows that start at multiples have products six times as fast on GPUs

LOSSES, DX, DWEIGHT, DBIAS = range(4)


class Chunks(NamedTuple):
    """What is computed of rows of logits. `rows`: of a chunk; None: by their bytes."""

    ignore_index: int | None
    label_smoothing: float
    rows: int | None
    has_bias: bool

    def run(self, arrays: Sequence[Any], g: Any, wanted: dict[int, Any]) -> dict[int, Any]:
        """Those results that are wanted, each in the array that is given for it, if any.

        Args:
            arrays: x (n, k), weight (classes, k), a bias if there is one, targets (n,).
            g: of the losses, the gradient: of each its own, or one for all; None: 1.
            wanted: by number: LOSSES, DX, DWEIGHT, DBIAS.
        """
        x, weight, *bias, targets = arrays
        library = _library_of(x)
        with library.plain():
            return self._run(library, [x, weight, *(bias or [None]), targets], g, wanted)

    def _run(self, library: _Library, arrays: Sequence[Any], g: Any, wanted: dict[int, Any]) -> dict[int, Any]:
        x, weight, bias, targets = arrays
        made = {n: library.empty(x, *self._type(n, x, weight)) if a is None else a for n, a in wanted.items()}
        bias = None if bias is None else astype(bias, _wide(library.dtype(x)))
        options = {"ignore_index": self.ignore_index, "label_smoothing": self.label_smoothing}
        step = self.rows or _rows_of(library, x, len(weight))
        logits, gradients = (library.rows_of(x, min(step, len(x)), len(weight)) for _ in range(2))
        for first in range(0, len(x), step):
            part = slice(first, min(first + step, len(x)))
            z, dz = (a[: part.stop - first] for a in (logits, gradients))
            library.product(x[part], weight, z)
            losses = made[LOSSES][part] if LOSSES in made else None
            if set(made) == {LOSSES}:
                _losses()(z, bias, targets[part], **options, out=losses)
                continue
            db = library.empty(x, _wide(library.dtype(x)), (len(weight),)) if DBIAS in made else None
            out = tuple(a for a in (dz, db, losses) if a is not None)
            given = g if g is None or g.ndim == 0 else g[part]
            flags = {"of_bias": db is not None, "with_losses": losses is not None}
            _gradients()(z, bias, targets[part], given, **options, **flags, out=out if len(out) > 1 else out[0])
            if DX in made:
                library.times(dz, weight, made[DX][part])
            if DWEIGHT in made:
                library.add_product(made[DWEIGHT], dz, x[part], first == 0)
            if db is not None:
                library.add(made[DBIAS], db, first == 0)
        return made

    @staticmethod
    def _type(number: int, x: Any, weight: Any) -> tuple[str, tuple[int, ...]]:
        dtype = _library_of(x).dtype(x)
        shapes = {LOSSES: (len(x),), DX: tuple(x.shape), DWEIGHT: tuple(weight.shape), DBIAS: (len(weight),)}
        return dtype if number == DX else _wide(dtype), shapes[number]


class LossesAndGradients:
    """Losses of rows, and the gradients of their sum, `scaled` by a number that is the last argument."""

    def __init__(self, chunks: Chunks, *, scaled: bool = False) -> None:
        self._chunks = chunks
        self._scaled = scaled

    def into(self, wanted: dict[int, Any], *arrays: Any) -> dict[int, Any]:
        """As `Tracer.library_call` says."""
        *given, g = arrays if self._scaled else (*arrays, None)
        return self._chunks.run(given, g, wanted)

    def adjoint(self, arguments: tuple[int, ...]) -> Any:
        """Raises: its results are gradients."""
        raise TypeError("kfusion.grad: linear_cross_entropy has no second derivatives")


class Losses:
    """Losses of rows, each with a gradient of its own."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks

    def adjoint(self, arguments: tuple[int, ...]) -> _Gradients:
        """The gradients by those of x, weight and bias."""
        return _Gradients(self._chunks, arguments)


class _Gradients(LossesAndGradients):
    """Gradients of x, weight and bias, for that of the losses."""

    def __init__(self, chunks: Chunks, arguments: tuple[int, ...]) -> None:
        super().__init__(chunks)
        self._arguments = arguments

    def into(self, wanted: dict[int, Any], *arrays: Any) -> dict[int, Any]:
        """As `Tracer.library_call` says."""
        *given, g = arrays
        library = _library_of(given[0])
        numbers = {i: DX + self._arguments[i] for i in wanted}
        made = self._chunks.run(given, g, dict.fromkeys(numbers.values()))
        found = {}
        for i, n in numbers.items():
            found[i] = astype(made[n], library.dtype(given[0]))
            if wanted[i] is not None:
                wanted[i][...] = found[i]
        return found


# ---- the fused functions ----


def _row_losses(z: Any, bias: Any, targets: Any, ignore_index: int | None, label_smoothing: float) -> Any:
    logits = astype(z, _wide(z._dtype))
    logits = logits if bias is None else logits + bias
    return cross_entropy(logits, targets, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none")


def logits_losses(
    z: Array, bias: Array | None, targets: Array, *, ignore_index: int | None, label_smoothing: float
) -> Array:
    """Cross entropy of each row of z + bias."""
    return _row_losses(z, bias, targets, ignore_index, label_smoothing)


def logits_gradients(
    z: Array,
    bias: Array | None,
    targets: Array,
    g: Array | None,
    *,
    ignore_index: int | None,
    label_smoothing: float,
    of_bias: bool,
    with_losses: bool,
) -> Any:
    """The gradient of the sum of them by z, if asked for that by bias and the losses, too; g: what each row counts."""
    tracer = z._tracer
    own = [tracer.itself(z)] + ([tracer.itself(bias)] if of_bias else [])
    losses = _row_losses(own[0], own[1] if of_bias else bias, targets, ignore_index, label_smoothing)
    g = astype(tracer.lift(1.0, z._library) if g is None else g, losses._dtype)
    made = [*tracer.vjp([losses], [broadcast_to(g, losses.shape)], own), *([losses] if with_losses else [])]
    return tuple(made) if len(made) > 1 else made[0]


def _rows_times(x: Array, weight: Array) -> Array:
    return matmul(x, matrix_transpose(weight))


@functools.cache
def _losses() -> Any:
    return Eager.fuse(logits_losses)


@functools.cache
def _gradients() -> Any:
    return Eager.fuse(logits_gradients)


@functools.cache
def _products() -> tuple[Any, Any]:
    return Eager.fuse(_rows_times), Eager.fuse(matmul)


# ---- the libraries ----


def _wide(dtype: str) -> str:
    return "float32" if dtype in _HALF else dtype


def _rows_of(library: _Library, x: Any, classes: int) -> int:
    """As many rows for each chunk, but for the last one."""
    most = max(1, _BYTES[library.device(x)] // (classes * ITEM_BYTES[library.dtype(x)]))
    chunks = -(-len(x) // most)
    rows = -(-len(x) // chunks)
    return min(most, -(-rows // 64) * 64)


class _Library:
    """Products of a library of NumPy's kind."""

    def plain(self) -> Any:
        """A context in which functions compute as they are written."""
        return contextlib.nullcontext()

    def dtype(self, x: Any) -> str:
        """Its name."""
        return str(x.dtype)

    def device(self, x: Any) -> str:
        """Of what kind it is."""
        return "cpu" if isinstance(x, np.ndarray) else "cuda"

    def empty(self, x: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        """A new array beside x."""
        library = sys.modules[type(x).__module__.partition(".")[0]]
        return library.empty(shape, x.dtype if dtype == self.dtype(x) else dtype)

    def rows_of(self, x: Any, rows: int, columns: int) -> Any:
        """A new array of x's dtype."""
        return self.empty(x, self.dtype(x), (rows, columns))

    def product(self, x: Any, weight: Any, out: Any) -> None:
        """x weight^T."""
        _products()[0](x, weight, out=out)

    def times(self, dz: Any, weight: Any, out: Any) -> None:
        """dz weight."""
        _products()[1](dz, weight, out=out)

    def add_product(self, total: Any, dz: Any, x: Any, is_first: bool) -> None:
        """Adds dz^T x to the total, or sets it."""
        wide = self.dtype(total)
        x = x if self.dtype(x) == wide else astype(x, wide)
        step = max(1, _BLOCK_BYTES // max(1, x.shape[1] * ITEM_BYTES[wide]))
        for first in range(0, len(total), step):
            part = slice(first, first + step)
            block = dz[:, part] if self.dtype(dz) == wide else astype(dz[:, part], wide)
            self.add(total[part], block.T @ x, is_first)

    def add(self, total: Any, part: Any, is_first: bool) -> None:
        """Adds a part to the total, or sets it."""
        if is_first:
            total[...] = part
        else:
            total += part


class _Torch(_Library):
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

    def rows_of(self, x: Any, rows: int, columns: int) -> Any:
        whole = _LINE_BYTES // x.element_size() if x.is_cuda else 1
        padded = -(-columns // whole) * whole
        return self._torch.empty((rows, padded), dtype=x.dtype, device=x.device)[:, :columns]

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
        elif _adds_wide(self._torch):
            beta = 0 if is_first else 1
            self._torch.addmm(total, dz.t(), x, out_dtype=total.dtype, beta=beta, out=total)
        else:
            self.add(total, self._torch.mm(dz.t(), x), is_first)

    def _is_slow(self, x: Any) -> bool:
        return not x.is_cuda and self.dtype(x) in _HALF


@functools.cache
def _adds_wide(torch: Any) -> bool:
    """Whether products of half types on a GPU add to float32 arrays: from torch 2.8 on."""
    x = torch.zeros((16, 16), dtype=torch.bfloat16, device="cuda")
    total = torch.zeros((16, 16), device="cuda")
    try:
        torch.addmm(total, x, x, out_dtype=torch.float32, out=total)
    except (TypeError, RuntimeError):
        return False
    return True


def _plain(torch: Any) -> Any:
    """Without gradients and autocast."""
    stack = contextlib.ExitStack()
    stack.enter_context(torch.no_grad())
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


def _library_of(x: Any) -> _Library:
    torch = sys.modules.get("torch")
    return _Torch(torch) if torch is not None and isinstance(x, torch.Tensor) else _Library()
