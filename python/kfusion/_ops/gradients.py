"""What formulas need so that their gradients are those of the functions that they stand for, at all points.

A gradient passes through every part of an expression: where one overflows that `where` does not choose, it is infinity
times 0. In traces that take no gradients all of these are the plain expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._graph.sizes import broadcast_shapes
from .._graph.tracer import constant
from .._graph.values import Traced
from .._spec import FLOATS
from . import primitives as p
from .views import astype, broadcast_to, full_like, squeeze


def taken(x: Any) -> bool:
    """Whether x is in a trace that takes gradients."""
    return bool(x._tracer.takes_gradients)


def unless(condition: Any, x: Any) -> Any:
    """x, of which nothing is used where the condition is true."""
    return p.where(condition, 0.0, x) if taken(x) else x


def with_derivatives(y: Any, *derivatives: tuple[Any, Any]) -> Any:
    """y, whose gradient by each x is g times its derivative, whatever computes y: pairs of both. What is no float has
    none. Shapes broadcast: of maps x to y's, of reductions y to x's.
    """
    if not taken(y):
        return y
    known = []
    for x, derivative in derivatives:
        if isinstance(x, Traced) and x._dtype in FLOATS:
            slope = astype(derivative, x._dtype) if isinstance(derivative, Traced) else full_like(x, derivative)
            known.append([broadcast_to(v, broadcast_shapes(x.shape, y.shape)) for v in (x, slope)])
    return y._tracer.with_gradients(y, [x for x, _ in known], [d for _, d in known])


def with_backward(y: Any, values: Sequence[Any], backward: Callable[[Any], Sequence[Any]]) -> Any:
    """y, whose gradients by values of its dtype, which broadcast to its shape, are those that backward(g) gives: for
    what is no product of g.
    """
    if not taken(y):
        return y
    known = [broadcast_to(x, y.shape) for x in values]
    return y._tracer.with_backward([y], lambda g: list(zip(known, backward(g[0]), strict=True)))[0]


def along_kept(function: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    """function(axis) of x, whose reduced axes stay, with them or without."""
    y = function(axis)
    return y if keepdims else squeeze(y, tuple(range(x.ndim)) if axis is None else axis)


def share_of_extremes(values: Any, extreme: Any) -> Any:
    """The derivative of an extreme, whose reduced axes stay: equal parts to the values that are it, or NaN as it is."""
    is_it = p.logical_or(p.equal(values, extreme), p.logical_and(p.isnan(values), p.isnan(extreme)))
    count = p.sum(astype(is_it, values._dtype), [a for a in range(values.ndim) if extreme.shape[a] == 1], True)
    return p.where(is_it, 1.0 / count, 0.0)


def passed(y: Any, x: Any) -> Any:
    """y, whose gradient is x's, as of what is clamped where no gradients are taken."""
    return with_derivatives(y, (x, 1.0))


def root(x: Any) -> Any:
    """The square root, with a gradient of 0 at 0."""
    if not taken(x):
        return p.sqrt(x)
    is_0 = x == 0
    return p.where(is_0, 0.0, p.sqrt(p.where(is_0, 1.0, x)))


def infinitely_steep(x: Any, is_0: Any) -> Any:
    """0 with an infinite gradient where x is 0, as `is_0` says; anything elsewhere, with a gradient of 0."""
    return p.sqrt(p.where(is_0, x, 1.0) + 0.0)  # the root of -0 falls


def clipped(x: Any, low: Any, high: Any) -> Any:
    """min(max(x, low), high), with a gradient of 0 at the bounds too, and that of x where it is NaN."""
    y = p.clip(x, low, high)
    return p.where(p.logical_or(x <= low, x >= high), constant(y), passed(y, x)) if taken(x) else y
