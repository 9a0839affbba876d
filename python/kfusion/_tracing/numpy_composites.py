"""NumPy's functions that are composites here too, by kfusion's names of their parameters."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._graph.source import not_traced
from .._graph.values import Traced, stage, tracer_of
from .._ops import formulas, statistics, views
from .._ops import primitives as p
from .._spec import FLOATS, HALF, dtype_name
from .promoted import narrow, result_type, together

_MOST_VALUES = 64  # of isin: each is a comparison

# ---- elementwise ----


def _sinc(x: Traced) -> Any:
    (wide,), dtype = together([x if x._dtype in FLOATS else views.astype(x, "float64")])
    return narrow(formulas.sinc(wide), dtype)


def _isclose(x: Any, y: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    """NumPy's, which computes the bound of Python's numbers in Python, and rounds half types in each of its steps."""
    tracer = tracer_of(x, y, rtol, atol)
    assert tracer is not None
    is_number = isinstance(y, (int, float)) and not isinstance(y, np.generic)
    left, right = (tracer.lift(v, "numpy") for v in (x, y * 1.0 if is_number else y))
    # The smallest integer has no absolute value.
    right = right if right._dtype in FLOATS else views.astype(right, "float64")
    # Within a stage nothing is rounded but what is stored.
    is_half = p.subtract(left, right)._dtype in HALF
    with contextlib.nullcontext() if is_half else tracer.stage("isclose"):
        if is_number:
            limit, is_finite = atol + rtol * abs(y), abs(y) < math.inf
        else:
            limit = _rounded(p.add, _rounded(p.multiply, p.absolute(right), rtol), atol)
            is_finite = p.isfinite(right)
        close = (p.absolute(_rounded(p.subtract, left, right)) <= limit) & is_finite | (left == right)
        return close | (p.isnan(left) & p.isnan(right)) if equal_nan else close


def _rounded(function: Callable[..., Any], x: Any, y: Any) -> Any:
    """function(x, y), rounded also where it is of a half type, which kernels keep in float32."""
    made = function(x, y)
    if made._dtype not in HALF:
        return made
    lifted = [views.astype(v, made._dtype) for v in (x, x._tracer.lift(y, "numpy"))]
    return views.astype(function(*(views.astype(v, "float32") for v in lifted)), made._dtype)


def _select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    if len(condlist) != len(choicelist) or not condlist:
        lengths = f"{len(choicelist)} and {len(condlist)}"
        raise ValueError(f"kfusion.select: choicelist must be as long as condlist, and not empty, got {lengths}")
    tracer = tracer_of(*condlist, *choicelist, default)
    assert tracer is not None
    values = [tracer.lift(v, "numpy") for v in (*choicelist, default)]
    dtype = result_type(values)
    *choices, chosen = (views.astype(v, dtype) for v in values)
    for condition, choice in zip(reversed(condlist), reversed(choices), strict=True):
        condition = tracer.lift(condition, "numpy")
        if condition._dtype != "bool":
            raise TypeError(f"kfusion.select: the conditions must be bools, got {condition._dtype}")
        chosen = p.where(condition, choice, chosen)
    return chosen


def _isin(element: Traced, test_elements: Any, invert: bool = False) -> Any:
    values = () if isinstance(test_elements, Traced) else np.asarray(test_elements).ravel()
    if not isinstance(element, Traced) or isinstance(values, tuple) or len(values) > _MOST_VALUES:
        what = f"numpy.isin of traced values, or of more than {_MOST_VALUES}, is not traced"
        raise not_traced(what, "pass a short list of numbers, or call it outside")
    hits = [p.equal(element, value) for value in values]
    found = functools.reduce(p.logical_or, hits, views.full_like(element, False, "bool"))
    return p.logical_not(found) if invert else found


# ---- reductions ----


def with_dtype(name: str, reduction: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction with dtype=, in which it is computed."""

    def reduced(x: Traced, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Any:
        if dtype is None:
            return reduction(x, axis, keepdims)
        to = dtype_name(dtype, f"numpy.{name}: dtype")
        if to == "bool" or (name.endswith("mean") and to not in FLOATS):
            raise not_traced(f"numpy.{name} with dtype={to} is not traced", "write .astype(...) after the call")
        with stage(x, name):
            return views.astype(reduction(views.astype(x, to), axis, keepdims), to)

    return reduced


def _average(x: Any, axis: Any = None, weights: Any = None, returned: bool = False, keepdims: bool = False) -> Any:
    if weights is None:
        mean = p.mean(x, axis, keepdims)
        count = math.prod(x.shape) / max(math.prod(mean.shape), 1)
        return (mean, views.full_like(mean, count)) if returned else mean
    tracer = tracer_of(x, weights)
    assert tracer is not None
    x, weights = (tracer.lift(v if isinstance(v, Traced) else np.asarray(v), "numpy") for v in (x, weights))
    if x._dtype not in FLOATS and weights._dtype != "bfloat16":
        x = views.astype(x, "float64")  # which averages of integers and bools are, whatever their weights
    (x, weights), dtype = together([x, _weights_of(x, weights, axis)])
    share = p.sum(weights, axis, keepdims)
    average = p.sum(x * weights, axis, keepdims) / share
    return narrow((average, views.broadcast_to(share, average.shape)) if returned else average, dtype)


def _weights_of(x: Traced, weights: Traced, axis: Any) -> Any:
    """The weights in a shape that broadcasts with x."""
    if weights.shape == x.shape:
        return weights
    if axis is None:
        raise TypeError(f"kfusion.average: axis must be given where weights have another shape, got {weights.shape}")
    axes = views.axes_tuple(x, axis, "average")
    if weights.shape != tuple(x.shape[a] for a in axes):
        raise ValueError(f"kfusion.average: weights must have x's extents along {axis}, got shape {weights.shape}")
    weights = views.transpose(weights, tuple(int(i) for i in np.argsort(axes)))
    return views.reshape(weights, tuple(n if a in axes else 1 for a, n in enumerate(x.shape)))


def _trapezoid(y: Any, x: Any = None, dx: float = 1.0, axis: int = -1) -> Any:
    tracer = tracer_of(y, x)
    assert tracer is not None
    places = None if x is None else tracer.lift(x if isinstance(x, Traced) else np.asarray(x), "numpy")
    return p.sum(statistics.twice_trapezoids(tracer.lift(y, "numpy"), places, dx, axis) / 2.0, axis)


def _ptp(x: Traced, axis: Any = None, keepdims: bool = False) -> Any:
    return statistics.ptp(x, axis, keepdims)


def _staged(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def in_stage(*args: Any, **kwargs: Any) -> Any:
        tracer = next((v._tracer for v in _flat((args, kwargs)) if isinstance(v, Traced)), None)
        assert tracer is not None
        with tracer.stage(name):
            return function(*args, **kwargs)

    return in_stage


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list, dict)):
        return [leaf for part in (value.values() if isinstance(value, dict) else value) for leaf in _flat(part)]
    return [value]


_NAN = {name: getattr(statistics, name) for name in ("nansum", "nanprod", "nanmean")}
COMPOSITES: dict[str, Callable[..., Any]] = {
    name: _staged(name, function)
    for name, function in {
        "nan_to_num": formulas.nan_to_num,
        "sinc": _sinc,
        "isposinf": formulas.isposinf,
        "isneginf": formulas.isneginf,
        "select": _select,
        "isin": _isin,
        **{name: with_dtype(name, function) for name, function in _NAN.items()},
        **{name: getattr(statistics, name) for name in ("nanvar", "nanstd", "nanmax", "nanmin", "count_nonzero")},
        "ptp": _ptp,
        "average": _average,
        "diff": statistics.diff,
        "trapezoid": _trapezoid,
    }.items()
} | {"isclose": _isclose}
