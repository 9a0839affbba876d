"""How kernels compute methods of pandas' Series and DataFrames, and which methods pandas itself computes in between."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas

from .._graph.number import is_number
from .._spec import FLOATS, INTEGERS
from .traced_tables import Method, method_of


def _axis(x: Any, axis: Any) -> Any:
    """An axis of pandas' as NumPy's; of a Series all."""
    if axis is None or x._value.ndim == 1:
        return None
    return x._kind._get_axis_number(axis)


def _reduction(plain: Callable[..., Any], without_nan: Callable[..., Any], *names: str) -> Method:
    def reduced(x: Any, axis: Any = None, skipna: bool = True, **options: Any) -> Any:
        if type(skipna) is not bool or 0 in x.shape:
            return NotImplemented
        function = without_nan if skipna and x._value._dtype in FLOATS else plain
        return function(x._value, axis=_axis(x, axis), **options)

    return method_of("axis", "skipna", *names)(reduced)


def _spread(function: Callable[..., Any]) -> Callable[..., Any]:
    """var and std; NaN where there are no more elements than ddof."""

    def spread(x: Any, axis: Any, ddof: Any = 1) -> Any:
        x = x if x._dtype in FLOATS else x.astype("float64")
        made = function(x, axis=axis, ddof=ddof)
        return made if math.prod(x.shape) // max(math.prod(made.shape), 1) > ddof else np.full_like(made, math.nan)

    return spread


def _is_nan(x: Any) -> Any:
    return np.isnan(x) if x._dtype in FLOATS else np.zeros_like(x, dtype=bool)


def _any(x: Any, axis: Any) -> Any:
    return np.any((x != 0) & ~_is_nan(x), axis=axis)


def _count(x: Any, axis: Any = 0) -> Any:
    return np.sum(~_is_nan(x._value), axis=_axis(x, axis))


def _chosen(is_kept: bool) -> Callable[..., Any]:
    """where, and mask."""

    def chosen(x: Any, cond: Any, other: Any = math.nan) -> Any:
        cond, other = (v(x) if callable(v) else v for v in (cond, other))
        other = math.nan if other is pandas.api.extensions.no_default else other
        known = [x._value, *(x._met(v, "where") for v in (cond, other))]
        kind = type(other._value) if is_number(other) else type(other)
        fits = kind is int or (kind is float and x._value._dtype in FLOATS)
        fits = fits or getattr(known[2], "_dtype", None) == x._value._dtype
        if x._value._dtype == "bool" or not fits or known[1]._dtype != "bool" or known[1].shape != x.shape:
            return NotImplemented
        return x._like(np.where(known[1], *(known[:1] + known[2:] if is_kept else known[:1:-1] + known[:1])))

    return chosen


def _clip(x: Any, lower: Any = None, upper: Any = None) -> Any:
    if not all(v is None or type(v) in (int, float) for v in (lower, upper)) or x._value._dtype == "bool":
        return NotImplemented
    if lower is not None and upper is not None and lower > upper:
        lower, upper = upper, lower
    if x._value._dtype in INTEGERS and not all(v is None or type(v) is int for v in (lower, upper)):
        return NotImplemented
    if any(v is not None and math.isnan(v) for v in (lower, upper)):
        return NotImplemented
    return x._like(x._value.clip(lower, upper) if (lower, upper) != (None, None) else x._value._tracer.copy(x._value))


def _fillna(x: Any, value: Any = None) -> Any:
    if type(value) not in (int, float) or x._value._dtype not in FLOATS:
        return NotImplemented
    return x._like(np.where(np.isnan(x._value), value, x._value))


def _round(x: Any, decimals: Any = 0) -> Any:
    return np.round(x._value, decimals) if type(decimals) is int and x._value._dtype in FLOATS else NotImplemented


def _astype(x: Any, dtype: Any) -> Any:
    if not isinstance(dtype, (str, type, np.dtype)):
        return NotImplemented
    to = np.dtype(dtype)
    is_cut = x._value._dtype in FLOATS and to.kind in "iu"  # pandas raises where an element is no number
    return NotImplemented if is_cut else x._value.astype(to)


def _flexible(op: str, *, is_right: bool = False) -> Method:
    """x.add(y, axis=...): as the operator, and along rows."""

    def method(x: Any, other: Any, axis: Any = "columns") -> Any:
        is_along_rows = x._value.ndim == 2 and x._kind._get_axis_number(axis) == 0
        return x._operation(op, other, is_right=is_right, axis=0 if is_along_rows else None)

    return method_of("other", "axis")(method)


# Methods that run as calls of pandas: the labels of what they give do not depend on data.
_CALL_NAMES = """
    cumsum cumprod cummax cummin rank quantile median skew kurt kurtosis sem diff shift corr cov autocorr interpolate
    ffill bfill pct_change describe
"""
CALLS = frozenset(_CALL_NAMES.split())
_FLEXIBLE = {"add": "add", "sub": "sub", "mul": "mul", "div": "truediv", "truediv": "truediv", "floordiv": "floordiv",
             "mod": "mod", "pow": "pow", "subtract": "sub", "multiply": "mul", "divide": "truediv"}  # fmt: skip
_REFLECTED = ("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow")
METHODS: dict[str, Method] = {
    "sum": _reduction(np.sum, np.nansum),
    "prod": _reduction(np.prod, np.nanprod),
    "product": _reduction(np.prod, np.nanprod),
    "mean": _reduction(np.mean, np.nanmean),
    "max": _reduction(np.max, np.nanmax),
    "min": _reduction(np.min, np.nanmin),
    "var": _reduction(_spread(np.var), _spread(np.nanvar), "ddof"),
    "std": _reduction(_spread(np.std), _spread(np.nanstd), "ddof"),
    "any": _reduction(lambda x, axis: np.any(x != 0, axis=axis), _any),
    "all": _reduction(lambda x, axis: np.all(x != 0, axis=axis), lambda x, axis: np.all(x != 0, axis=axis)),
    "count": method_of("axis")(_count),
    "where": method_of("cond", "other")(_chosen(True)),
    "mask": method_of("cond", "other")(_chosen(False)),
    "clip": method_of("lower", "upper")(_clip),
    "fillna": method_of("value")(_fillna),
    "round": method_of("decimals")(_round),
    "abs": method_of()(lambda x: np.abs(x._value)),
    "astype": method_of("dtype")(_astype),
    "copy": method_of("deep")(lambda x, deep: x.__copy__() if type(deep) is bool else NotImplemented),
    "transpose": method_of()(lambda x: x._value.T),
    **{name: method_of()(lambda x: _is_nan(x._value)) for name in ("isna", "isnull")},
    **{name: method_of()(lambda x: ~_is_nan(x._value)) for name in ("notna", "notnull")},
    **{name: _flexible(op) for name, op in _FLEXIBLE.items()},
    **{f"r{name}": _flexible(_FLEXIBLE[name], is_right=True) for name in _REFLECTED},
    **{name: _flexible(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
