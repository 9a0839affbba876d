"""torch's losses of classes: negative log likelihood and cross entropy, of class numbers and of probabilities."""

from __future__ import annotations

from typing import Any

from .._ops import activations, losses, views
from .._ops import primitives as p
from .._spec import FLOATS
from . import torch_heads
from .dtype_names import name_of_dtype
from .torch_functions import named
from .torch_losses import loss, reduced_by, reduction_of, require_same_shape
from .torch_stages import Tensor, computed


def _rows(x: Any) -> Any:
    """Classes last."""
    return views.moveaxis(x, 1, -1) if x.ndim > 2 else x


def _classes(input: Any, target: Any) -> Any:
    """Class numbers: torch takes int64 and uint8. int32 is taken too, as by all that reads elements at indices."""
    if name_of_dtype(target) == "uint8":
        target = target.long()
    return input._tracer.lift(target, "torch")


@loss("multi_margin_loss")
def _multi_margin_loss(input: Tensor, target: Any, *, p: int = 1, margin: float = 1.0, weight: Tensor = None) -> Any:
    if p not in (1, 2):
        raise ValueError(f"kfusion.multi_margin_loss: p must be 1 or 2, got {p}")
    return losses.multi_margin(input, input._tracer.lift(target, "torch"), p, margin, weight)


@named("nll_loss", method=False)
def _nll_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    *,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: Any = "mean",
) -> Any:
    how = reduction_of("nll_loss", size_average, reduce, reduction)
    target = _classes(input, target)
    weight = None if weight is None else input._tracer.lift(weight, "torch")
    return losses.nll(_rows(input), target, weight, ignore_index, how)


@named("cross_entropy", method=False)
def _cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    *,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: Any = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    how = reduction_of("cross_entropy", size_average, reduce, reduction)
    target = _classes(input, target)
    if target._dtype in FLOATS:
        return _soft_cross_entropy(input, target, weight, label_smoothing=label_smoothing, reduction=how)
    options: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": how}
    rows = _rows(input)
    found = torch_heads.without_logits(rows, target, weight, options)
    if found is not None:
        return found
    weight = None if weight is None else input._tracer.lift(weight, "torch")
    made = losses.class_losses(rows, target, weight, **options, is_strict=True)
    input._tracer.record("cross_entropy", {"logits": rows, "targets": target, "weight": weight, **options}, made)
    return made


@computed("soft_cross_entropy", same=True)
def _soft_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor = None, *, label_smoothing: float, reduction: str
) -> Any:
    """Targets are probabilities of the classes."""
    require_same_shape("cross_entropy", input, target)
    x, shares = _rows(input), _rows(target)
    if label_smoothing > 0:  # of others torch takes no notice here
        losses.require_smoothing("cross_entropy", label_smoothing)
        shares = shares * (1.0 - label_smoothing) + label_smoothing / x.shape[-1]
    terms = activations.log_softmax(x) * shares
    values = -p.sum(terms if weight is None else terms * weight, -1)
    return reduced_by(values, reduction)
