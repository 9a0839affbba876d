"""Reductions that NumPy and torch have alike, made of primitives, on traced values: without NaN, spreads, differences.

They open no stage: whoever enters them under a library's name does.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from .._spec import FLOATS
from . import norms, views
from . import primitives as p
from .gradients import root
from .operation import Axes


def without_nan(x: Any, value: float) -> Any:
    """x with `value` in place of NaN; integers as they are."""
    return p.where(p.isnan(x), value, x) if x._dtype in FLOATS else x


def _count(x: Any, axis: Axes, keepdims: bool) -> Any:
    """How many elements of floats are no NaN, in their dtype."""
    return p.sum(views.astype(p.logical_not(p.isnan(x)), x._dtype), axis, keepdims)


def nansum(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Sum without NaN."""
    return p.sum(without_nan(x, 0.0), axis, keepdims)


def nanprod(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Product without NaN."""
    return p.prod(without_nan(x, 1.0), axis, keepdims)


def nanmean(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Mean of what is no NaN; NaN where nothing is left."""
    if x._dtype not in FLOATS:  # sums of integers would wrap
        return p.mean(x, axis, keepdims)
    w = views.wide(x)
    return views.narrow(nansum(w, axis, keepdims) / _count(w, axis, keepdims), x._dtype)


def nanvar(x: Any, axis: Axes = None, correction: float = 0, keepdims: bool = False) -> Any:
    """Variance of what is no NaN; NaN where no more than `correction` elements are left."""
    if x._dtype not in FLOATS:
        return norms.var(x, axis, correction=correction, keepdims=keepdims)
    w = views.wide(x)
    mean = nansum(w, axis, True) / _count(w, axis, True)
    squares = p.sum(p.where(p.isnan(x), 0.0, p.square(w - mean)), axis, keepdims)
    left = _count(w, axis, keepdims) - float(correction)
    return views.narrow(p.where(left > 0, squares / left, math.nan), x._dtype)


def nanstd(x: Any, axis: Axes = None, correction: float = 0, keepdims: bool = False) -> Any:
    """Standard deviation of what is no NaN."""
    return views.narrow(root(nanvar(views.wide(x), axis, correction, keepdims)), x._dtype)


def nanmax(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Largest element that is no NaN; NaN where there is none."""
    return _extreme("max", -math.inf, x, axis, keepdims)


def nanmin(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Smallest element that is no NaN; NaN where there is none."""
    return _extreme("min", math.inf, x, axis, keepdims)


def _extreme(op: str, least: float, x: Any, axis: Axes, keepdims: bool) -> Any:
    found = p.REDUCTIONS[op](without_nan(x, least), axis, keepdims)
    return p.where(p.all(p.isnan(x), axis, keepdims), math.nan, found) if x._dtype in FLOATS else found


def count_nonzero(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """How many elements are not 0, as int64."""
    return p.sum(p.not_equal(x, 0), axis, keepdims)


def ptp(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Largest minus smallest element."""
    return p.subtract(p.max(x, axis, keepdims), p.min(x, axis, keepdims))


def neighbours(x: Any, axis: int) -> tuple[Any, Any]:
    """All elements but the last, and all but the first, along an axis."""
    place = views.axis_of(x, axis, "diff")
    before: list[Any] = [slice(None)] * x.ndim
    after = list(before)
    before[place], after[place] = slice(None, -1), slice(1, None)
    return x[tuple(before)], x[tuple(after)]


def diff(x: Any, n: int = 1, axis: int = -1) -> Any:
    """n times the differences of neighbours; of bools, whether they differ."""
    if n < 0:
        raise ValueError(f"kfusion.diff: n must be at least 0, got {n}")
    for _ in itertools.repeat(None, n):
        before, after = neighbours(x, axis)
        x = p.not_equal(after, before) if x._dtype == "bool" else after - before
    return x


def twice_trapezoids(y: Any, x: Any, dx: Any, axis: int = -1) -> Any:
    """Twice the areas under the straight lines between neighbours, which lie at places x, or dx apart where that is
    None.
    """
    before, after = neighbours(y, axis)
    if x is not None:
        dx = diff(x, axis=-1 if x.ndim == 1 else axis)
        place = views.axis_of(y, axis, "trapezoid")
        dx = views.reshape(dx, (-1, *(1,) * (y.ndim - 1 - place))) if x.ndim == 1 else dx
    return (before + after) * dx


def var_mean(x: Any, axis: Axes, correction: float, keepdims: bool) -> tuple[Any, Any]:
    """Variance and mean."""
    return norms.var(x, axis, correction=correction, keepdims=keepdims), p.mean(x, axis, keepdims)
