"""Losses: one number from predictions and targets."""

from __future__ import annotations

import math
from typing import Any

from .._graph.tracer import stage
from .._spec import INTEGERS
from . import primitives as p
from .operation import Array, composite
from .views import astype, expand_dims, positions, squeeze

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
    _require_reduction("mse", reduction)
    with stage(x, "mse.sub"):
        d = x - y
    with stage(x, "mse.square"):
        squares = p.square(d)
    return _reduced("mse", squares, reduction)


@composite
def cross_entropy(logits: Array, targets: Array, *, ignore_index: int | None = None, reduction: str = "mean") -> Array:
    """Cross entropy of softmax(logits) against class numbers.

    Stages: cross_entropy.logsumexp, .pick, .mean (or .sum).

        loss = mean over rows of log(sum(exp(logits - max))) - (logits[row, targets[row]] - max)

    A row's own logit is picked by comparing positions with its target and summing, so that no data decides what is
    read. The loss of a row whose target is neither a class nor ignore_index is NaN, and so is the mean.

    Args:
        logits: floats, (..., classes).
        targets: int32 or int64, of shape logits.shape[:-1].
        ignore_index: rows with this target count neither in the sum nor in the number of rows; None means all count.
        reduction: "mean", "sum", or "none" for the rows' own losses.

    Returns:
        Array without axes, of logits' dtype.

    Raises:
        ValueError: the shapes do not fit, or reduction is none of the three.
        TypeError: logits are no floats, or targets no integers.
    """
    _require_reduction("cross_entropy", reduction)
    if targets.shape != logits.shape[:-1] or logits.ndim == 0:
        raise ValueError(f"kfusion.cross_entropy: targets must have shape {logits.shape[:-1]}, got {targets.shape}")
    if targets._dtype not in INTEGERS:
        raise TypeError(f"kfusion.cross_entropy: targets must be int32 or int64, got {targets._dtype}")
    with stage(logits, "cross_entropy.logsumexp"):
        largest = p.max(logits, -1, keepdims=True)
        log_sum = p.log(p.sum(p.exp(logits - largest), -1))
    with stage(logits, "cross_entropy.pick"):
        own = p.equal(positions(logits, -1), expand_dims(targets, -1))
        losses = log_sum - (p.sum(p.where(own, logits, 0.0), -1) - squeeze(largest, -1))
        if ignore_index is not None:
            losses = p.where(p.equal(targets, ignore_index), 0.0, losses)
        losses = p.where(_known(targets, logits.shape[-1], ignore_index), losses, math.nan)
    return _reduced("cross_entropy", losses, reduction, targets, ignore_index)


def _known(targets: Any, classes: int, ignore_index: int | None) -> Any:
    """Which targets are classes, or to be ignored."""
    known = p.logical_and(p.greater_equal(targets, 0), p.less(targets, classes))
    return known if ignore_index is None else p.logical_or(known, p.equal(targets, ignore_index))


def _reduced(name: str, losses: Any, reduction: str, targets: Any = None, ignore_index: int | None = None) -> Any:
    """Sum, or mean over the rows that count."""
    if reduction == "none":
        return losses
    with stage(losses, f"{name}.{reduction}"):
        total = p.REDUCTIONS[reduction](losses)
        if reduction == "sum" or ignore_index is None:
            return total
        return total / p.mean(astype(p.not_equal(targets, ignore_index), losses._dtype))


def _require_reduction(name: str, reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'kfusion.{name}: reduction must be "mean", "sum" or "none", got {reduction!r}')
