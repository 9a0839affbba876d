"""Rows of logits in chunks, with their losses and gradients: functions that plans call between their kernels.

Products are the array library's. Between them are two fused functions: one reads the logits for statistics of each row,
one writes the gradient over them. So all chunks share one array.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._spec import ITEM_BYTES
from . import primitives as p
from .contractions import matmul
from .losses import cross_entropy, is_class
from .operation import Array, Eager
from .views import astype, expand_dims, matrix_transpose, positions

_HALF = ("float16", "bfloat16")
_BYTES = {"cuda": 1 << 28, "cpu": 1 << 26}  # of a chunk's logits
_BLOCK_BYTES = 1 << 25  # of what is added at once, where the library's products do not add
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
        x, weight, *bias, targets = map(_as_own, arrays)
        g, library = _as_own(g), _library_of(x)
        with library.plain():
            return self._run(library, [x, weight, *(bias or [None]), targets], g, wanted)

    def _run(self, library: _Library, arrays: Sequence[Any], g: Any, wanted: dict[int, Any]) -> dict[int, Any]:
        x, weight, bias, targets = arrays
        made = {n: library.empty(x, *self._type(n, x, weight)) if a is None else a for n, a in wanted.items()}
        bias = None if bias is None else astype(bias, wide_of(library.dtype(x)))
        options = {"ignore_index": self.ignore_index, "label_smoothing": self.label_smoothing}
        step = self.rows or _rows_of(library, x, len(weight))
        chunk = library.rows_of(x, min(step, len(x)), len(weight))
        for first in range(0, len(x), step):
            part = slice(first, min(first + step, len(x)))
            z = chunk[: part.stop - first]
            library.product(x[part], weight, z)
            losses = made[LOSSES][part] if LOSSES in made else None
            if set(made) == {LOSSES}:
                fused()["row_losses"](z, bias, targets[part], **options, out=losses)
                continue
            given = g if g is None or g.ndim == 0 else g[part]
            turn(z, bias, targets[part], given, options, losses)
            if DX in made:
                library.times(z, weight, made[DX][part])
            if DWEIGHT in made:
                library.add_product(made[DWEIGHT], z, x[part], first == 0)
            if DBIAS in made:
                library.add(made[DBIAS], fused()["column_sums"](z), first == 0)
        return made

    @staticmethod
    def _type(number: int, x: Any, weight: Any) -> tuple[str, tuple[int, ...]]:
        dtype = _library_of(x).dtype(x)
        shapes = {LOSSES: (len(x),), DX: tuple(x.shape), DWEIGHT: tuple(weight.shape), DBIAS: (len(weight),)}
        return dtype if number == DX else wide_of(dtype), shapes[number]


def turn(z: Any, bias: Any, targets: Any, g: Any, options: dict[str, Any], losses: Any) -> Any:
    """Writes the gradient of the losses over the logits; gives the losses, in the array for them, if there is one."""
    found, *rows = fused()["row_statistics"](z, bias, targets, g, **options)
    fused()["turned"](z, bias, targets, *rows, label_smoothing=options["label_smoothing"], out=z)
    if losses is None:
        return found
    losses[...] = found
    return losses


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
        made = self._chunks.run(given, _as_own(g).reshape(-1), dict.fromkeys(numbers.values()))
        found = {}
        for i, n in numbers.items():
            found[i] = astype(made[n], library.dtype(given[0]))
            if wanted[i] is not None:
                wanted[i][...] = found[i]
        return found


# ---- the fused functions ----


def _logits(z: Any, bias: Any) -> Any:
    logits = astype(z, wide_of(z._dtype))
    return logits if bias is None else logits + bias


def row_losses(
    z: Array, bias: Array | None, targets: Array, *, ignore_index: int | None, label_smoothing: float
) -> Array:
    """Cross entropy of each row of z + bias."""
    return cross_entropy(
        _logits(z, bias), targets, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none"
    )


def row_statistics(
    z: Array,
    bias: Array | None,
    targets: Array,
    g: Array | None,
    *,
    ignore_index: int | None,
    label_smoothing: float,
) -> tuple[Array, ...]:
    """The losses, and what `turned` needs of each row: the largest logit, g over the sum of exponentials, and g. g is
    what a row's loss counts: 1 by default, and 0 of rows that are ignored or have no class."""
    logits = _logits(z, bias)
    losses = cross_entropy(
        logits, targets, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none"
    )
    largest = p.max(logits, -1)
    total = p.sum(p.exp(logits - expand_dims(largest, -1)), -1)
    counts = is_class(targets, z.shape[-1])
    if ignore_index is not None:
        counts = p.logical_and(counts, p.not_equal(targets, ignore_index))
    g = astype(p.where(counts, 1.0 if g is None else astype(g, logits._dtype), 0.0), logits._dtype)
    return losses, largest, g / total, g


def turned(
    z: Array, bias: Array | None, targets: Array, largest: Array, share: Array, g: Array, *, label_smoothing: float
) -> Array:
    """The gradient of z, element by element, so that it may be written over z."""
    largest, share, g = (expand_dims(v, -1) for v in (largest, share, g))
    own = p.equal(positions(z, -1), expand_dims(targets, -1))
    dz = p.exp(_logits(z, bias) - largest) * share - p.where(own, g * (1.0 - label_smoothing), 0.0)
    return astype(dz - g * (label_smoothing / z.shape[-1]) if label_smoothing else dz, z._dtype)


def column_sums(dz: Array) -> Array:
    """Sums of columns, wide."""
    return p.sum(astype(dz, wide_of(dz._dtype)), 0)


def rows_times(x: Array, weight: Array) -> Array:
    """x weight^T."""
    return matmul(x, matrix_transpose(weight))


def product_added(total: Array | None, dz: Array, x: Array) -> Array:
    """total + dz^T x, wide."""
    product = astype(matmul(matrix_transpose(dz), x), wide_of(x._dtype))
    return product if total is None else total + product


@functools.cache
def fused() -> dict[str, Any]:
    """The functions above, by name."""
    functions = (row_losses, row_statistics, turned, column_sums, rows_times, product_added, matmul)
    return {f.__name__: Eager.fuse(f) for f in functions}


# ---- the libraries ----


def wide_of(dtype: str) -> str:
    """The dtype that it is computed in."""
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
        return "cuda" if _is_cupys(x) else "cpu"

    def empty(self, x: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        """A new array beside x."""
        library = sys.modules["cupy"] if _is_cupys(x) else np
        return library.empty(shape, x.dtype if dtype == self.dtype(x) else dtype)

    def rows_of(self, x: Any, rows: int, columns: int) -> Any:
        """A new array of x's dtype."""
        return self.empty(x, self.dtype(x), (rows, columns))

    def product(self, x: Any, weight: Any, out: Any) -> None:
        """x weight^T."""
        fused()["rows_times"](x, weight, out=out)

    def times(self, dz: Any, weight: Any, out: Any) -> None:
        """dz weight."""
        fused()["matmul"](dz, weight, out=out)

    def add_product(self, total: Any, dz: Any, x: Any, is_first: bool) -> None:
        """Adds dz^T x to the total, or sets it."""
        wide = self.dtype(total)
        step = max(1, _BLOCK_BYTES // max(1, x.shape[1] * ITEM_BYTES[wide]))
        for first in range(0, len(total), step):
            part = slice(first, first + step)
            if self.dtype(x) == wide:
                self.add(total[part], dz[:, part].T @ x, is_first)
            else:
                total[part] = fused()["product_added"](None if is_first else total[part], dz[:, part], x)

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
        elif _addswide_of(self._torch):
            beta = 0 if is_first else 1
            self._torch.addmm(total, dz.t(), x, out_dtype=total.dtype, beta=beta, out=total)
        else:
            self.add(total, self._torch.mm(dz.t(), x), is_first)

    def _is_slow(self, x: Any) -> bool:
        return not x.is_cuda and self.dtype(x) in _HALF


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
    """Without gradients and autocast."""
    stack = contextlib.ExitStack()
    stack.enter_context(torch.no_grad())
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


def _as_own(array: Any) -> Any:
    """An array of NumPy's of one whose library writes to none, such as JAX."""
    if array is None or isinstance(_library_of(array), _Torch) or _is_cupys(array):
        return array
    return np.asarray(array)


def _is_cupys(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "cupy"


def _library_of(x: Any) -> _Library:
    torch = sys.modules.get("torch")
    return _Torch(torch) if torch is not None and isinstance(x, torch.Tensor) else _Library()
