"""Rows of logits in chunks, with their losses and gradients: functions that plans call between their kernels.

Products are the array library's. Between them are two fused functions: one reads the logits for statistics of each row,
one writes the gradient over them. So all chunks share one array.

Where rows of logits would be unaligned (half types on a GPU), the weight is copied with rows of zeros behind it, and
chunks have as many more columns.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import primitives as p
from .chunk_products import Library, as_own, library_of, missing_columns, rows_of_chunk, wide_of
from .losses import cross_entropy, is_class, of_classes
from .operation import Array, Eager
from .views import astype, expand_dims, positions

LOSSES, DX, DWEIGHT, DBIAS = range(4)


class Chunks(NamedTuple):
    """What is computed of rows of logits. `rows`: of a chunk; None: by their bytes."""

    ignore_index: int | None
    label_smoothing: float
    rows: int | None
    has_bias: bool
    has_weights: bool  # of classes
    is_strict: bool = False  # targets on the CPU that are no classes are an error

    def run(self, arrays: Sequence[Any], g: Any, wanted: dict[int, Any]) -> dict[int, Any]:
        """Those results that are wanted, each in the array that is given for it, if any.

        Args:
            arrays: x (n, k), weight (classes, k), a bias and what the classes weigh, if there are such, targets (n,).
            g: of the losses, the gradient: of each its own, or one for all; None: 1.
            wanted: by number: LOSSES, DX, DWEIGHT, DBIAS.
        """
        x, weight, *others, targets = map(as_own, arrays)
        if self.is_strict and str(targets.device) == "cpu":
            _require_classes(targets, len(weight), self.ignore_index)
        bias = others.pop(0) if self.has_bias else None
        weights = others.pop(0) if self.has_weights else None
        g, library = as_own(g), library_of(x)
        with library.plain():
            return self._run(library, [x, weight, bias, weights, targets], g, wanted)

    def _run(self, library: Library, arrays: Sequence[Any], g: Any, wanted: dict[int, Any]) -> dict[int, Any]:
        x, weight, bias, weights, targets = arrays
        classes = len(weight)
        step = self.rows or rows_of_chunk(library, x, classes)
        more = missing_columns(library.device(x), library.dtype(x), classes)
        weight = library.with_rows_of_zeros(weight, more)
        made = {
            n: library.empty(x, *self._type(n, x, weight, classes)) if a is None or (more and n == DWEIGHT) else a
            for n, a in wanted.items()
        }
        bias = None if bias is None else astype(bias, wide_of(library.dtype(x)))
        options = {"ignore_index": self.ignore_index, "label_smoothing": self.label_smoothing}
        chunk = library.empty(x, library.dtype(x), (min(step, len(x)), len(weight)))
        for first in range(0, len(x), step):
            part = slice(first, min(first + step, len(x)))
            whole = chunk[: part.stop - first]
            z = whole[:, :classes]
            library.product(x[part], weight, whole)
            if more:
                whole[:, classes:] = 0  # zero times infinity is NaN
            losses = made[LOSSES][part] if LOSSES in made else None
            if set(made) == {LOSSES}:
                fused()["row_losses"](z, bias, weights, targets[part], **options, out=losses)
                continue
            given = g if g is None or g.ndim == 0 else g[part]
            turn(z, bias, weights, targets[part], given, options, losses)
            if DX in made:
                library.times(whole, weight, made[DX][part])
            if DWEIGHT in made:
                library.add_product(made[DWEIGHT], whole, x[part], first == 0)
            if DBIAS in made:
                library.add(made[DBIAS], fused()["column_sums"](z), first == 0)
        if more and DWEIGHT in made:
            made[DWEIGHT] = _stored_in(wanted[DWEIGHT], made[DWEIGHT][:classes])
        return made

    @staticmethod
    def _type(number: int, x: Any, weight: Any, classes: int) -> tuple[str, tuple[int, ...]]:
        dtype = library_of(x).dtype(x)
        shapes = {LOSSES: (len(x),), DX: tuple(x.shape), DWEIGHT: tuple(weight.shape), DBIAS: (classes,)}
        return dtype if number == DX else wide_of(dtype), shapes[number]


def _stored_in(given: Any, value: Any) -> Any:
    """A value, in the array that is given for it, if any."""
    if given is None:
        return value
    given[...] = value
    return given


def _require_classes(targets: Any, classes: int, ignore_index: int | None) -> None:
    wrong = (targets < 0) | (targets >= classes)
    if ignore_index is not None:
        wrong &= targets != ignore_index
    if bool(wrong.any()):
        found = int(targets[wrong][0])
        raise IndexError(f"kfusion.cross_entropy: index {found} is out of bounds for axis 1 with size {classes}")


def turn(z: Any, bias: Any, weights: Any, targets: Any, g: Any, options: dict[str, Any], losses: Any) -> Any:
    """Writes the gradient of the losses over the logits; gives the losses, in the array for them, if there is one."""
    found, *rows = fused()["row_statistics"](z, bias, weights, targets, g, **options)
    fused()["turned"](z, bias, weights, targets, *rows, label_smoothing=options["label_smoothing"], out=z)
    return _stored_in(losses, found)


class LossesAndGradients:
    """Losses of rows, and the gradients of their sum, `scaled` by a number that is the last argument."""

    def __init__(self, chunks: Chunks, *, scaled: bool = False) -> None:
        self._chunks = chunks
        self._scaled = scaled

    def into(self, wanted: dict[int, Any], *arrays: Any) -> dict[int, Any]:
        """Writes into results, as `Tracer.library_call` says."""
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
        """The gradients by those of x, weight and bias.

        Raises: those of what the classes weigh.
        """
        if max(arguments) >= 2 + self._chunks.has_bias:
            raise _no_gradient_of_weights()
        return _Gradients(self._chunks, arguments)


class WithoutGradient:
    """Stands for what the classes weigh, which has no gradient."""

    def adjoint(self, arguments: tuple[int, ...]) -> Any:
        """Raises: it has none."""
        raise _no_gradient_of_weights()


def _no_gradient_of_weights() -> TypeError:
    return TypeError("kfusion.linear_cross_entropy: class_weight has no gradient, as in torch")


class _Gradients(LossesAndGradients):
    """Gradients of x, weight and bias, for that of the losses."""

    def __init__(self, chunks: Chunks, arguments: tuple[int, ...]) -> None:
        super().__init__(chunks)
        self._arguments = arguments

    def into(self, wanted: dict[int, Any], *arrays: Any) -> dict[int, Any]:
        """Writes into results, as `Tracer.library_call` says."""
        *given, g = arrays
        library = library_of(given[0])
        numbers = {i: DX + self._arguments[i] for i in wanted}
        made = self._chunks.run(given, as_own(g).reshape(-1), dict.fromkeys(numbers.values()))
        found = {}
        for i, n in numbers.items():
            found[i] = _stored_in(wanted[i], astype(made[n], library.dtype(given[0])))
        return found


# ---- the fused functions ----


def _logits(z: Any, bias: Any) -> Any:
    logits = astype(z, wide_of(z._dtype))
    return logits if bias is None else logits + bias


def row_losses(
    z: Array,
    bias: Array | None,
    weights: Array | None,
    targets: Array,
    *,
    ignore_index: int | None,
    label_smoothing: float,
) -> Array:
    """Cross entropy of each row of z + bias."""
    return cross_entropy(
        _logits(z, bias),
        targets,
        weight=weights,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="none",
    )


def row_statistics(
    z: Array,
    bias: Array | None,
    weights: Array | None,
    targets: Array,
    g: Array | None,
    *,
    ignore_index: int | None,
    label_smoothing: float,
) -> tuple[Array, ...]:
    """The losses, and what `turned` needs of each row: the largest logit, what the row's loss counts over the sum of
    exponentials, and what it counts, g: 1 by default, and 0 of rows that are ignored or have no class. With weights
    also g times that of its own class."""
    logits = _logits(z, bias)
    losses = row_losses(z, bias, weights, targets, ignore_index=ignore_index, label_smoothing=label_smoothing)
    largest = p.max(logits, -1)
    total = p.sum(p.exp(logits - expand_dims(largest, -1)), -1)
    counts = is_class(targets, z.shape[-1])
    if ignore_index is not None:
        counts = p.logical_and(counts, p.not_equal(targets, ignore_index))
    g = astype(p.where(counts, 1.0 if g is None else astype(g, logits._dtype), 0.0), logits._dtype)
    if weights is None:
        return losses, largest, g / total, g
    own = g * of_classes(weights, targets)
    every = own * (1.0 - label_smoothing) + g * (p.sum(weights) * (label_smoothing / z.shape[-1]))
    return losses, largest, (every if label_smoothing else own) / total, g, own


def turned(
    z: Array,
    bias: Array | None,
    weights: Array | None,
    targets: Array,
    largest: Array,
    share: Array,
    g: Array,
    own: Array | None = None,
    *,
    label_smoothing: float,
) -> Array:
    """The gradient of z, element by element, so that it may be written over z."""
    largest, share, g, own = (expand_dims(v, -1) for v in (largest, share, g, g if own is None else own))
    classes = p.where(is_class(targets, z.shape[-1]), targets, -1)  # in 32 bits, as each element compares them
    is_own = p.equal(positions(z, -1, "int32"), expand_dims(astype(classes, "int32"), -1))
    dz = p.exp(_logits(z, bias) - largest) * share - p.where(is_own, own * (1.0 - label_smoothing), 0.0)
    if label_smoothing:
        spread = g * (label_smoothing / z.shape[-1])
        dz = dz - (spread if weights is None else spread * weights)
    return astype(dz, z._dtype)


def column_sums(dz: Array) -> Array:
    """Sums of columns, wide."""
    return p.sum(astype(dz, wide_of(dz._dtype)), 0)


@functools.cache
def fused() -> dict[str, Any]:
    """The functions above, by name."""
    return {f.__name__: Eager.fuse(f) for f in (row_losses, row_statistics, turned, column_sums)}
