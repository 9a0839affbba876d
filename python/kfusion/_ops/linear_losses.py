"""Losses of a linear layer, whose product is never stored whole."""

from __future__ import annotations

import math
import operator
import sys
from typing import Any

from .._graph.tracer import stage
from .._spec import FLOATS
from . import primitives as p
from .contractions import linear
from .logit_chunks import Chunks, Losses, LossesAndGradients
from .losses import cross_entropy, require_classes, require_reduction, require_smoothing
from .operation import Array, composite
from .views import astype, reshape

__all__ = ["linear_cross_entropy"]

_NAME = "linear_cross_entropy"
_HALF = ("float16", "bfloat16")


@composite
def linear_cross_entropy(
    x: Array,
    weight: Array,
    targets: Array,
    bias: Array | None = None,
    *,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    chunk_rows: int | None = None,
) -> Array:
    """Cross entropy of softmax(x weight^T + bias) against class numbers, as a language model's head computes it.

    Stages: linear.matmul, linear.bias, those of cross_entropy; with gradients: linear_cross_entropy.

        loss = cross_entropy(linear(x, weight, bias), targets)
        p = softmax(x weight^T + bias) - onehot(targets)
        dx = p weight / rows;  dweight = p^T x / rows;  dbias = sum over rows of p / rows

    With gradients, rows go through it in chunks: a chunk's logits, their gradient in the same memory, and what it adds
    to the gradients of x, weight and bias. Those of weight and bias are summed in float32 for half types. Where the
    loss is a number, gradients are computed with it, in one pass with three products, and are multiplied with the
    loss's own gradient in the backward pass. With reduction "none" the backward pass computes the logits again. Second
    derivatives are refused.

    Args:
        x: floats, (..., k).
        weight: (classes, k), of x's dtype.
        targets: int32 or int64, of shape x.shape[:-1].
        bias: (classes,), of x's dtype; or None.
        ignore_index: as of `cross_entropy`.
        label_smoothing: as of `cross_entropy`.
        reduction: as of `cross_entropy`.
        chunk_rows: rows of a chunk; None: as many as have logits of 1 GB on a GPU and 64 MB on a CPU.

    Returns:
        Array without axes (of targets' shape with reduction "none"), of x's dtype. Under torch.autocast x, weight and
        bias are cast to its dtype, and the loss is float32.

    Raises:
        ValueError: the shapes do not fit, label_smoothing is not from 0 to 1, reduction is none of the three, or
            chunk_rows is less than 1.
        TypeError: x is no float, weight or bias has another dtype, targets are no integers.

    Source: torch's `nn.functional.cross_entropy`; chunks of rows: Hsu et al., "Liger Kernel: Efficient Triton Kernels
        for LLM Training", 2024.
    """
    require_reduction(_NAME, reduction)
    require_smoothing(_NAME, label_smoothing)
    x, weight, bias, is_cast = _as_autocast(x, weight, bias)
    _require_fitting(x, weight, targets, bias)
    if chunk_rows is not None and operator.index(chunk_rows) < 1:
        raise ValueError(f"kfusion.{_NAME}: chunk_rows must be at least 1, got {chunk_rows}")
    wide = "float32" if x._dtype in _HALF else x._dtype
    given = wide if is_cast else x._dtype
    if not x._tracer.wants_gradients or 0 in (*x.shape[:-1], weight.shape[0]):
        logits = linear(x, weight, bias)
        logits = astype(logits, given) if is_cast else logits
        return cross_entropy(
            logits, targets, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
        )
    ignored = None if ignore_index is None else operator.index(ignore_index)  # no number that a call would read
    step = None if chunk_rows is None else operator.index(chunk_rows)
    chunks = Chunks(ignored, float(label_smoothing), step, bias is not None)
    make = _rows if reduction == "none" else _number
    return astype(make(chunks, x, weight, targets, bias, wide, reduction), given)


def _number(chunks: Chunks, x: Any, weight: Any, targets: Any, bias: Any, wide: str, reduction: str) -> Any:
    """The sum or mean, with its gradients from the same pass. Those of half types are the sum's as yet: divided by the
    number of rows they might be too small for float16."""
    tracer, rows, labels = x._tracer, _as_rows(x), reshape(targets, (-1,))
    values = [rows, weight] if bias is None else [rows, weight, bias]
    types = [(wide, labels.shape), (x._dtype, rows.shape), (wide, weight.shape)]
    if bias is not None:
        types.append((wide, bias.shape))
    with stage(x, f"{_NAME}.{reduction}"):
        count = _count(labels, chunks.ignore_index, wide, reduction)
        share = None if count is None or x._dtype != wide else 1.0 / p.maximum(count, 1.0)
    run = LossesAndGradients(chunks, scaled=share is not None)
    given = [*values, labels, *([] if share is None else [share])]
    losses, *gradients = tracer.library_call(f"kfusion.{_NAME}", run, given, types, 3 * _flops(rows, weight))
    with stage(x, f"{_NAME}.{reduction}"):
        total = p.sum(losses)
        if share is None:
            total = tracer.with_gradients(total, values, gradients)
        if count is not None:  # of no rows it is NaN, and gradients are 0
            total = p.where(p.equal(count, 0.0), math.nan, total / p.maximum(count, 1.0))
        return total if share is None else tracer.with_gradients(total, values, gradients)


def _count(labels: Any, ignore_index: int | None, dtype: str, reduction: str) -> Any:
    """The number of rows of which there is a mean; None: there is none."""
    if reduction == "sum":
        return None
    if ignore_index is None:
        return astype(labels._tracer.lift(1.0, labels._library), dtype) * labels.shape[0]
    return p.sum(astype(p.not_equal(labels, ignore_index), dtype))


def _rows(chunks: Chunks, x: Any, weight: Any, targets: Any, bias: Any, wide: str, _: str) -> Any:
    """A loss for each row, whose gradients compute the logits again."""
    logits = linear(x, weight, bias)
    losses = cross_entropy(
        astype(logits, wide),
        targets,
        ignore_index=chunks.ignore_index,
        label_smoothing=chunks.label_smoothing,
        reduction="none",
    )
    rows, labels = _as_rows(x), reshape(targets, (-1,))
    values = [rows, weight, *([] if bias is None else [bias]), labels]
    name = f"kfusion.{_NAME}"
    return x._tracer.with_adjoint(losses, values, name, Losses(chunks), 4 * _flops(rows, weight))


def _as_rows(x: Any) -> Any:
    return x if x.ndim == 2 else reshape(x, (-1, x.shape[-1]))


def _flops(rows: Any, weight: Any) -> Any:
    return 2 * rows.shape[0] * weight.shape[0] * weight.shape[1]


def _as_autocast(x: Any, weight: Any, bias: Any) -> tuple[Any, Any, Any, bool]:
    """x, weight and bias as torch's `linear` casts them, and whether torch.autocast is on for them."""
    torch = sys.modules.get("torch")
    if torch is None or x._library != "torch":
        return x, weight, bias, False
    kind = str(x.device).partition(":")[0]
    if not torch.is_autocast_enabled(kind):
        return x, weight, bias, False
    dtype = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
    x, weight, bias = (v if v is None or v._dtype == "float64" else astype(v, dtype) for v in (x, weight, bias))
    return x, weight, bias, True


def _require_fitting(x: Any, weight: Any, targets: Any, bias: Any) -> None:
    if x._dtype not in FLOATS:
        raise TypeError(f"kfusion.{_NAME}: x must be floats, got {x._dtype}")
    if weight.ndim != 2 or x.ndim == 0 or weight.shape[1] != x.shape[-1]:
        raise ValueError(
            f"kfusion.{_NAME}: weight must have shape (classes, k) for x (..., k), got {tuple(weight.shape)} for "
            f"{tuple(x.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"kfusion.{_NAME}: bias must have shape {tuple(weight.shape[:1])}, got {tuple(bias.shape)}")
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None and value._dtype != x._dtype:
            raise TypeError(f"kfusion.{_NAME}: {name} must be {x._dtype} as x is, got {value._dtype}")
    require_classes(_NAME, x, targets)
