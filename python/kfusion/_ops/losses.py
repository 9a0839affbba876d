"""Losses: one number from predictions and targets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._graph.number import read
from .._graph.tracer import constant
from .._graph.values import stage
from .._spec import FLOATS, INTEGERS
from . import primitives as p
from .contractions import take, take_along_axis
from .operation import Array, composite
from .views import astype, broadcast_to, expand_dims, narrow, positions, squeeze, wide

__all__ = ["cross_entropy", "mse"]


@composite
def mse(x: Array, y: Array, *, reduction: str = "mean") -> Array:
    """Mean squared error. Stages: mse.sub, mse.square, mse.mean (or mse.sum).

        loss = mean((x - y)^2)

    Args:
        x: floats of any shape.
        y: floats whose shape broadcasts with x's.
        reduction: "mean", "sum", or "none" for the squares themselves.

    Returns:
        Array without axes, of the promoted dtype; NaN as the mean of no elements.

    Raises:
        ValueError: the shapes do not broadcast, or reduction is none of the three.
    """
    require_reduction("mse", reduction)
    with stage(x, "mse.sub"):
        d = x - y
    with stage(x, "mse.square"):
        squares = p.square(d)
    return _reduced("mse", squares, reduction)


@composite
def cross_entropy(
    logits: Array,
    targets: Array,
    *,
    weight: Array | None = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Array:
    """Cross entropy of softmax(logits) against class numbers.

    Stages: cross_entropy.logsumexp, .pick, .mean (or .sum).

        loss = mean over rows of log(sum(exp(logits - max))) - (logits[row, targets[row]] - max)

    A row's own logit is the one element that is read at its target. The loss of a row whose target is neither a class
    nor ignore_index is NaN, and so is the mean; nothing is read for it.

    Args:
        logits: floats, (..., classes).
        targets: int32 or int64, of shape logits.shape[:-1].
        weight: (classes,), of logits' dtype: what a row of each class counts, in the sum and in the number of rows.
        ignore_index: rows with this target count neither in the sum nor in the number of rows; None means all count.
        label_smoothing: the share of the target that is spread evenly over all classes, from 0 to 1.
        reduction: "mean", "sum", or "none" for the rows' own losses.

    Returns:
        Array without axes, of logits' dtype.

    Raises:
        ValueError: the shapes do not fit, label_smoothing is not from 0 to 1, or reduction is none of the three.
        TypeError: logits are no floats, targets no integers, or weight has another dtype.
    """
    return class_losses(logits, targets, weight, ignore_index, label_smoothing, reduction)


def class_losses(
    logits: Any,
    targets: Any,
    weight: Any,
    ignore_index: Any,
    label_smoothing: Any,
    reduction: str,
    *,
    is_strict: bool = False,
) -> Any:
    """Means what `cross_entropy` means. is_strict: whether a target that is no class is an index out of bounds, as in
    torch.
    """
    require_reduction("cross_entropy", reduction)
    _require_classes("cross_entropy", logits, targets, weight)
    require_smoothing("cross_entropy", label_smoothing)
    require_integer("cross_entropy", "ignore_index", ignore_index)
    with stage(logits, "cross_entropy.logsumexp"):
        x = wide(logits)  # so that what is kept of a row for backward is not rounded
        largest = constant(p.max(x, -1, keepdims=True))
        log_sum = p.log(p.sum(p.exp(x - largest), -1))
    with stage(logits, "cross_entropy.pick"):
        strict = _strict(targets, ignore_index) if is_strict else None
        losses = log_sum - (wide(_own(logits, targets, logits, strict)) - squeeze(largest, -1))
        counts = None if weight is None else wide(_own(logits, targets, weight, strict))
        losses = losses if counts is None else losses * counts
        if label_smoothing:
            spread = _of_all(logits, log_sum + squeeze(largest, -1), weight)
            losses = losses * (1.0 - label_smoothing) + spread * label_smoothing
        losses = _of_known(losses, targets, logits.shape[-1], ignore_index)
    return narrow(_mean_of_rows("cross_entropy", losses, reduction, targets, ignore_index, counts), logits._dtype)


def _of_all(logits: Any, log_sum: Any, weight: Any) -> Any:
    """The mean over all classes of -log(softmax(logits)), each as often as weight says. Its sums need no other one of
    the row first, so that they take no sweep of their own."""
    if weight is None:
        return log_sum - p.mean(wide(logits), -1)
    weights = wide(p.sum(broadcast_to(weight, logits.shape), -1))
    return (log_sum * weights - p.sum(wide(logits * weight), -1)) / logits.shape[-1]


def nll(logs: Any, targets: Any, weight: Any, ignore_index: int, reduction: str) -> Any:
    """The logarithms of probabilities (..., classes) at the targets, negated. A target that is no class is an
    index out of bounds.
    """
    require_reduction("nll_loss", reduction)
    _require_classes("nll_loss", logs, targets, weight)
    with stage(logs, "nll_loss.pick"):
        strict = _strict(targets, ignore_index)
        counts = None if weight is None else _own(logs, targets, weight, strict)
        losses = -_own(logs, targets, logs, strict)
        losses = losses if counts is None else losses * counts
        losses = _of_known(losses, targets, logs.shape[-1], ignore_index)
    return _mean_of_rows("nll_loss", losses, reduction, targets, ignore_index, counts)


def multi_margin(x: Any, targets: Any, order: int, margin: float, weight: Any) -> Any:
    """For each row of x (..., classes) the mean of max(0, margin - x[target] + x)^order over the other classes."""
    _require_classes("multi_margin_loss", x, targets, weight)
    differences = margin - expand_dims(_own(x, targets, x, targets), -1) + x
    beyond = p.where(differences > 0, differences, 0.0)  # none at the margin, nor of NaN
    beyond = beyond if order == 1 else p.square(beyond)
    beyond = beyond if weight is None else beyond * expand_dims(_own(x, targets, weight, targets), -1)
    others = p.where(p.equal(positions(x, -1), expand_dims(targets, -1)), 0.0, beyond)
    return _of_known(p.sum(others, -1) / x.shape[-1], targets, x.shape[-1], None)


def require_classes(name: str, rows: Any, targets: Any) -> None:
    """Raises where there is no target for each of rows (..., n)."""
    if rows.ndim == 0:
        raise ValueError(f"kfusion.{name}: logits must have an axis of classes, got none")
    if targets.shape != rows.shape[:-1]:
        wanted, got = tuple(rows.shape[:-1]), tuple(targets.shape)
        raise ValueError(f"kfusion.{name}: targets must have shape {wanted}, got {got}")
    if rows._dtype not in FLOATS:
        raise TypeError(f"kfusion.{name}: logits must be floats, got {rows._dtype}")
    if targets._dtype not in INTEGERS:
        raise TypeError(f"kfusion.{name}: targets must be int32 or int64, got {targets._dtype}")


def _require_classes(name: str, logits: Any, targets: Any, weight: Any) -> None:
    require_classes(name, logits, targets)
    if weight is not None and (weight.shape != logits.shape[-1:] or weight._dtype != logits._dtype):
        wanted, got = (f"{v._dtype} of shape {s}" for v, s in ((logits, logits.shape[-1:]), (weight, weight.shape)))
        error = TypeError if weight._dtype != logits._dtype else ValueError
        raise error(f"kfusion.{name}: weight must be {wanted}, got {got}")


def _strict(targets: Any, ignore_index: int | None) -> Any:
    """The targets as indices of classes, any class for those to be ignored."""
    return targets if ignore_index is None else p.where(p.equal(targets, ignore_index), 0, targets)


def _own(logits: Any, targets: Any, values: Any, strict: Any = None) -> Any:
    """From values along the classes, for each row or for all, each row's at its target; any one where that is none.
    strict: indices in the place of the targets, none of which may be out of bounds.
    """
    if logits.shape[-1] == 0:
        return p.sum(logits, -1)  # no class has a value
    if strict is not None:
        if values.ndim == 1 and logits.ndim > 1:
            return values._tracer.add("take", values, strict, 0, True)
        return squeeze(values._tracer.add("take_along_axis", values, expand_dims(strict, -1), -1, True), -1)
    if values.ndim == 1 and logits.ndim > 1:
        return of_classes(values, targets)
    safe = p.where(is_class(targets, logits.shape[-1]), targets, 0)
    return squeeze(take_along_axis(values, expand_dims(safe, -1), -1), -1)


def of_classes(values: Any, targets: Any) -> Any:
    """From values (classes,) each target's; any one where that is no class."""
    return take(values, p.where(is_class(targets, values.shape[0]), targets, 0), 0)


def is_class(targets: Any, classes: int) -> Any:
    """Whether each target is the number of a class."""
    return p.logical_and(p.greater_equal(targets, 0), p.less(targets, classes))


def _of_known(losses: Any, targets: Any, classes: int, ignore_index: int | None) -> Any:
    """0 for targets to be ignored, NaN for those that are no class."""
    known = is_class(targets, classes)
    if ignore_index is not None:
        ignored = p.equal(targets, ignore_index)
        losses, known = p.where(ignored, 0.0, losses), p.logical_or(known, ignored)
    return p.where(known, losses, math.nan)


def _mean_of_rows(
    name: str, losses: Any, reduction: str, targets: Any, ignore_index: int | None, counts: Any = None
) -> Any:
    """Reduces as `_reduced` does, but the mean is one over the rows that count, each as often as `counts` says."""
    if reduction != "mean" or (ignore_index is None and counts is None):
        return _reduced(name, losses, reduction)
    with stage(losses, f"{name}.mean"):
        if ignore_index is None:
            return p.sum(losses) / p.sum(counts)
        counted = p.not_equal(targets, ignore_index)
        if counts is None:
            return p.mean(losses) / p.mean(astype(counted, losses._dtype))
        return p.sum(losses) / p.sum(p.where(counted, counts, 0.0))


def _reduced(name: str, losses: Any, reduction: str) -> Any:
    if reduction == "none":
        return losses
    with stage(losses, f"{name}.{reduction}"):
        return p.REDUCTIONS[reduction](losses)


def require_integer(name: str, option: str, value: Any) -> None:
    """Raises where an option is neither an integer nor None. Its value is not looked at."""
    if value is not None and not isinstance(value, (int, np.integer)):
        raise TypeError(f"kfusion.{name}: {option} must be an integer or None, got {read(value)!r}")


def require_smoothing(name: str, label_smoothing: float) -> None:
    """Raises where it is no share."""
    if not isinstance(label_smoothing, (int, float, np.number)):
        raise TypeError(f"kfusion.{name}: label_smoothing must be a number, got {label_smoothing!r}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"kfusion.{name}: label_smoothing must be from 0 to 1, got {label_smoothing}")


def require_reduction(name: str, reduction: str) -> None:
    """Raises where it is none of the three."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'kfusion.{name}: reduction must be "mean", "sum" or "none", got {reduction!r}')
