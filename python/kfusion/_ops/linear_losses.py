"""Losses of a linear layer, whose product is never stored whole."""

from __future__ import annotations

import math
import operator
import sys
from typing import Any, NamedTuple

from .._graph.values import stage
from .._spec import FLOATS
from . import primitives as p
from .chunk_products import wide_of
from .contractions import linear
from .logit_chunks import Chunks, Losses, LossesAndGradients, WithoutGradient
from .losses import (
    class_losses,
    cross_entropy,
    of_classes,
    require_classes,
    require_integer,
    require_reduction,
    require_smoothing,
)
from .operation import Array, composite
from .views import astype, reshape

__all__ = ["linear_cross_entropy"]

_NAME = "linear_cross_entropy"


@composite
def linear_cross_entropy(
    x: Array,
    weight: Array,
    targets: Array,
    bias: Array | None = None,
    *,
    class_weight: Array | None = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    chunk_rows: int | None = None,
) -> Array:
    """Cross entropy of softmax(x weight^T + bias) against class numbers, as a language model's head computes it.

    Stages: linear.matmul, linear.bias, those of cross_entropy; with gradients: linear_cross_entropy.

        loss = cross_entropy(linear(x, weight, bias), targets, weight=class_weight)
        p = softmax(x weight^T + bias) - onehot(targets)
        dx = p weight / rows;  dweight = p^T x / rows;  dbias = sum over rows of p / rows

    (each row of p as often as the weight of its class says, and rows their sum).

    With gradients, rows go through it in chunks: a chunk's logits, their gradient in the same memory, and what it adds
    to the gradients of x, weight and bias. Those of weight and bias are summed in float32 for half types. Where the
    loss is a number, gradients are computed with it, in one pass with three products, and are multiplied with the
    loss's own gradient in the backward pass. With reduction "none" the backward pass computes the logits again. Second
    derivatives are refused, and the gradient of class_weight, as torch refuses it.

    Args:
        x: floats, (..., k).
        weight: (classes, k), of x's dtype.
        targets: int32 or int64, of shape x.shape[:-1].
        bias: (classes,), of x's dtype; or None.
        class_weight: as `weight` of `cross_entropy`: (classes,), of x's dtype.
        ignore_index: as of `cross_entropy`.
        label_smoothing: as of `cross_entropy`.
        reduction: as of `cross_entropy`.
        chunk_rows: rows of a chunk; None: as many as have logits of 1 GB on a GPU and 64 MB on a CPU.

    Returns:
        Array without axes (of targets' shape with reduction "none"), of x's dtype. Under torch.autocast x, weight and
        bias are cast to its dtype, class_weight to float32, and the loss is float32.

    Raises:
        ValueError: the shapes do not fit, label_smoothing is not from 0 to 1, reduction is none of the three, or
            chunk_rows is less than 1.
        TypeError: x is no float, weight, bias or class_weight has another dtype, targets are no integers; the gradient
            of class_weight is wanted.

    Source: torch's `nn.functional.cross_entropy`; chunks of rows: Hsu et al., "Liger Kernel: Efficient Triton Kernels
        for LLM Training", 2024.
    """
    require_reduction(_NAME, reduction)
    require_smoothing(_NAME, label_smoothing)
    require_integer(_NAME, "ignore_index", ignore_index)
    require_integer(_NAME, "chunk_rows", chunk_rows)
    x, weight, bias, is_cast = _as_autocast(x, weight, bias)
    _require_fitting(x, weight, targets, bias)
    if chunk_rows is not None and operator.index(chunk_rows) < 1:
        raise ValueError(f"kfusion.{_NAME}: chunk_rows must be at least 1, got {chunk_rows}")
    given = wide_of(x._dtype) if is_cast else x._dtype
    if class_weight is not None:
        class_weight = astype(class_weight, given) if is_cast else class_weight
        _require_one_each("class_weight", class_weight, weight, given)
    if x._tracer.wants_gradients and 0 not in (*x.shape[:-1], weight.shape[0]):
        return head_loss(
            x,
            weight,
            targets,
            bias,
            class_weight,
            given,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction=reduction,
            chunk_rows=chunk_rows,
        )
    logits = linear(x, weight, bias)
    return cross_entropy(
        astype(logits, given) if is_cast else logits,
        targets,
        weight=class_weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )


def head_loss(
    x: Any,
    weight: Any,
    targets: Any,
    bias: Any,
    class_weight: Any,
    dtype: str,
    *,
    ignore_index: Any,
    label_smoothing: Any,
    reduction: str,
    chunk_rows: Any = None,
    is_strict: bool = False,
) -> Any:
    """The loss of that dtype, of arguments that fit, with its gradients by chunks. is_strict: as of `class_losses`."""
    ignored = None if ignore_index is None else operator.index(ignore_index)  # no number that a call would read
    step = None if chunk_rows is None else operator.index(chunk_rows)
    chunks = Chunks(ignored, float(label_smoothing), step, bias is not None, class_weight is not None, is_strict)
    wide = wide_of(x._dtype)
    if class_weight is not None:
        class_weight = astype(class_weight, wide)
    make = _rows if reduction == "none" else _number
    return astype(make(chunks, _Head(x, weight, targets, bias, class_weight, wide), reduction), dtype)


class _Head(NamedTuple):
    """What the losses are computed of, and the dtype that they are computed in."""

    x: Any
    weight: Any
    targets: Any
    bias: Any
    class_weight: Any  # in that dtype
    wide: str

    @property
    def values(self) -> list[Any]:
        """Those that have gradients, x as rows."""
        return [_as_rows(self.x), self.weight, *([] if self.bias is None else [self.bias])]

    @property
    def weights(self) -> list[Any]:
        """That of the classes, if there is one."""
        return [] if self.class_weight is None else [self.class_weight]


def _number(chunks: Chunks, head: _Head, reduction: str) -> Any:
    """The sum or mean, with its gradients from the same pass. Those of half types are the sum's as yet: divided by the
    number of rows they might be too small for float16."""
    x, wide, values = head.x, head.wide, head.values
    tracer, labels = x._tracer, reshape(head.targets, (-1,))
    types = [(wide, labels.shape), (x._dtype, values[0].shape), *((wide, v.shape) for v in values[1:])]
    weights = head.weights and tracer.with_adjoint(head.weights, head.weights, f"kfusion.{_NAME}", WithoutGradient())
    with stage(x, f"{_NAME}.{reduction}"):
        mean = None if reduction == "sum" else _mean_over(labels, weights, chunks.ignore_index, wide)
        share = None if mean is None or x._dtype != wide else 1.0 / mean.divisor
    run = LossesAndGradients(chunks, scaled=share is not None)
    given = [*values, *weights, labels, *([] if share is None else [share])]
    losses, *gradients = tracer.library_call(f"kfusion.{_NAME}", run, given, types, 3 * _flops(*values[:2]))
    with stage(x, f"{_NAME}.{reduction}"):
        total = p.sum(losses)
        if share is None:
            total = _with_gradients(total, values, gradients, weights)
        if mean is not None:
            total = total / mean.divisor
            total = total if mean.is_empty is None else p.where(mean.is_empty, math.nan, total)
        return total if share is None else _with_gradients(total, values, gradients, weights)


def _with_gradients(total: Any, values: list[Any], gradients: list[Any], weights: list[Any]) -> Any:
    """Whoever wants the weights' is told that there is none."""
    nothing = [w * 0.0 for w in weights]
    return total._tracer.with_gradients(total, [*values, *weights], [*gradients, *nothing])


class _Mean(NamedTuple):
    """What a sum is divided by, and whether no row counts: then the mean is NaN, and gradients are 0."""

    divisor: Any
    is_empty: Any  # None: some do


def _mean_over(labels: Any, weights: list[Any], ignore_index: int | None, dtype: str) -> _Mean:
    """The mean over the rows that count, each as often as its class's weight says."""
    counted = None if ignore_index is None else p.not_equal(labels, ignore_index)
    if counted is None:
        rows = astype(labels._tracer.lift(1.0, labels._library), dtype) * labels.shape[0]
    else:
        rows = p.sum(astype(counted, dtype))
    is_empty = None if counted is None else p.equal(rows, 0.0)
    if not weights:
        return _Mean(rows if counted is None else p.maximum(rows, 1.0), is_empty)
    counts = of_classes(weights[0], labels)
    if counted is None:
        return _Mean(p.sum(counts), None)
    return _Mean(p.where(is_empty, 1.0, p.sum(p.where(counted, counts, 0.0))), is_empty)


def _rows(chunks: Chunks, head: _Head, _: str) -> Any:
    """A loss for each row, whose gradients compute the logits again."""
    logits = linear(head.x, head.weight, head.bias)
    losses = class_losses(
        astype(logits, head.wide),
        head.targets,
        head.class_weight,
        chunks.ignore_index,
        chunks.label_smoothing,
        "none",
        is_strict=chunks.is_strict,
    )
    values = [*head.values, *head.weights, reshape(head.targets, (-1,))]
    flops = 4 * _flops(*head.values[:2])
    return head.x._tracer.with_adjoint([losses], values, f"kfusion.{_NAME}", Losses(chunks), flops)[0]


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
    if weight._dtype != x._dtype:
        raise TypeError(f"kfusion.{_NAME}: weight must be {x._dtype} as x is, got {weight._dtype}")
    if bias is not None:
        _require_one_each("bias", bias, weight, x._dtype)
    require_classes(_NAME, x, targets)


def _require_one_each(name: str, value: Any, weight: Any, dtype: str) -> None:
    """Raises where there is no number for each class."""
    if value.shape != weight.shape[:1]:
        raise ValueError(f"kfusion.{_NAME}: {name} must have shape {tuple(weight.shape[:1])}, got {tuple(value.shape)}")
    if value._dtype != dtype:
        raise TypeError(f"kfusion.{_NAME}: {name} must be {dtype} as x is, got {value._dtype}")
