"""What formulas need so that their gradients are those of the functions that they stand for, at all points.

A gradient passes through every part of an expression: where one overflows that `where` does not choose, it is infinity
times 0. In traces that take no gradients all of these are the plain expressions.
"""

from __future__ import annotations

from typing import Any

from . import primitives as p


def taken(x: Any) -> bool:
    """Whether x is in a trace that takes gradients."""
    return bool(x._tracer.takes_gradients)


def unless(condition: Any, x: Any, instead: float = 0.0) -> Any:
    """x, of which nothing is used where the condition is true."""
    return p.where(condition, instead, x) if taken(x) else x


def root(x: Any) -> Any:
    """The square root, with a gradient of 0 at 0."""
    return at_0(p.sqrt, x)


def at_0(function: Any, x: Any) -> Any:
    """function(x), which is 0 at 0, with a gradient of 0 there."""
    if not taken(x):
        return function(x)
    is_0 = x == 0
    return p.where(is_0, 0.0, function(p.where(is_0, 1.0, x)))


def infinitely_steep(x: Any, is_0: Any) -> Any:
    """0 with an infinite gradient where x is 0, as `is_0` says; anything elsewhere, with a gradient of 0."""
    return p.sqrt(p.where(is_0, x, 1.0) + 0.0)  # the root of -0 falls


def clipped(x: Any, low: Any, high: Any) -> Any:
    """min(max(x, low), high), with a gradient of 0 at the bounds too."""
    return p.where(x <= low, low, p.where(x >= high, high, x)) if taken(x) else p.clip(x, low, high)
