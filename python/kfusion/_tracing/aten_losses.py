"""The operators of aten that losses of classes consist of. Taken apart, their gradient would be scattered into an array
of all classes, which a forward pass would keep; and the logarithms that a target is read of would be stored.
"""

from __future__ import annotations

from typing import Any

from .._graph.source import not_traced
from .._graph.values import Call, Node
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
    """The gradients by the logarithms: nothing but at the targets. That these are classes has been seen in the forward
    pass.
    """
    axis = _axis_of_classes(logs, targets)
    given = views.wide(gradient)
    if reduction == _MEAN:
        given = given / views.wide(count)
    if given.ndim:
        given = views.expand_dims(given, axis)
    is_ignored = views.expand_dims(p.equal(targets, ignore_index), axis)
    at_targets = -given
    if weight is not None:
        own_weights = losses.of_classes(views.wide(weight), targets)
        at_targets = at_targets * views.expand_dims(own_weights, axis)
    at_targets = views.astype(p.where(is_ignored, 0.0, at_targets), logs._dtype)
    is_own = p.equal(views.positions(logs, axis), views.expand_dims(targets, axis))
    made = p.where(is_own, at_targets, 0.0)
    logs._tracer.record(_BACKWARD, {"axis": axis, "sums": at_targets}, made)  # the others are 0
    return made


def sums_of_gradient(gradient: Any, axis: int) -> Any:
    """The sums along an axis, of a gradient that a loss of classes has given: one element each. Else None."""
    call = _made_by(_BACKWARD, gradient)
    if call is None or call.arguments["axis"] != axis % gradient.ndim:
        return None
    return _value(gradient._tracer, call.arguments["sums"])


_BACKWARD = "nll_loss_backward"


def _axis_of_classes(logs: Any, targets: Any) -> int:
    if 0 in logs.shape:
        raise not_traced("of no elements")
    if targets.ndim != logs.ndim - 1:
        raise not_traced("of one row and an array of one target")
    if targets._dtype not in INTEGERS:
        raise not_traced("of targets that are bytes")
    return 1 if logs.ndim > 1 else 0


def _logits(logs: Any, axis: int) -> Any:
    """What logs are the log_softmax of along that axis; None where nobody knows."""
    call = _made_by("log_softmax", logs)
    if call is None or call.arguments["axis"] % logs.ndim != axis:
        return None
    return _value(logs._tracer, call.arguments["x"])


def _made_by(name: str, value: Any) -> Call | None:
    tracer = value._tracer
    node = tracer.node(value)
    return next((c for c in reversed(tracer.calls) if c.name == name and c.result == node), None)


def _value(tracer: Any, node: Node) -> Any:
    return tracer.of_library(tracer.value(node.id), "torch")
