"""The operators of aten that losses of classes consist of. Taken apart, their gradient would be scattered into an array
of all classes, which a forward pass would keep; and the logarithms that a target is read of would be stored.
"""

from __future__ import annotations

from typing import Any

from .._graph.source import no_form
from .._ops import losses, views
from .._ops import primitives as p
from .._spec import INTEGERS
from .aten import ROWS, row

_NONE, _MEAN, _SUM = range(3)  # torch's numbers of reductions


@row("nll_loss_forward", "nll_loss2d_forward")
def _forward(logs: Any, targets: Any, weight: Any, reduction: int, ignore_index: int) -> Any:
    """The loss, and what the targets count together."""
    axis = _axis_of_classes(logs, targets)
    logits = _logits(logs, axis)
    values = views.wide(views.moveaxis(logs if logits is None else logits, axis, -1))
    wide_weight = None if weight is None else views.wide(weight)
    if logits is None:
        each = losses.nll(values, targets, wide_weight, ignore_index, "none")
    else:
        each = losses.class_losses(values, targets, wide_weight, ignore_index, 0.0, "none", is_strict=True)
    if reduction == _NONE and logs.ndim > 1:
        return views.narrow(each, logs._dtype), ROWS["new_zeros"](logs, ())
    is_known = p.not_equal(targets, ignore_index)
    if weight is None:
        counts = views.astype(is_known, values._dtype)
    else:
        counts = p.where(is_known, losses.of_classes(wide_weight, targets), 0.0)
    count = p.sum(counts)
    loss = each if reduction == _NONE else p.sum(each) / count if reduction == _MEAN else p.sum(each)
    return views.narrow(loss, logs._dtype), views.astype(count, logs._dtype)


@row("nll_loss_backward", "nll_loss2d_backward")
def _backward(
    gradient: Any, logs: Any, targets: Any, weight: Any, reduction: int, ignore_index: int, count: Any
) -> Any:
    """Of the logarithms: nothing but at the targets. That these are classes has been seen in the forward pass."""
    axis = _axis_of_classes(logs, targets)
    given = views.wide(gradient)
    if reduction == _MEAN:
        given = given / views.wide(count)
    if given.ndim:
        given = views.expand_dims(given, axis)
    if weight is not None:
        given = given * views.reshape(views.wide(weight), [-1 if a == axis else 1 for a in range(logs.ndim)])
    own = views.expand_dims(p.where(p.equal(targets, ignore_index), -1, targets), axis)
    of_own = p.equal(views.positions(logs, axis), own)
    return views.astype(p.where(of_own, -given, 0.0), logs._dtype)


def _axis_of_classes(logs: Any, targets: Any) -> int:
    axis = min(logs.ndim - 1, 1)
    if 0 in logs.shape or targets.ndim != logs.ndim - 1 or targets._dtype not in INTEGERS:
        raise no_form("of no elements, of bytes, or of one row and an array of one target")
    return axis


def _logits(logs: Any, axis: int) -> Any:
    """What logs are the log_softmax of along that axis; None where nobody knows."""
    tracer = logs._tracer
    for call in reversed(tracer.calls):
        if call.name == "log_softmax" and call.result == tracer.node(logs):
            x, along = call.arguments["x"], call.arguments["axis"]
            return tracer.of_library(tracer.value(x.id), "torch") if along % logs.ndim == axis else None
    return None
