"""polars' Series: rows without labels, and which methods kernels compute."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars

from .._graph.number import read
from .._graph.source import trace_error
from .._graph.values import Traced
from .._spec import FLOATS
from .traced_tables import MOST, Method, PlacedTable, Shown, Table, is_table, method_of, require_dtype


@dataclass(frozen=True)
class Rows:
    """The rows of a Series: only how many there are."""

    count: int
    index: None = None

    @property
    def stand_in(self) -> range:
        """Those of a stand-in."""
        return range(min(self.count, MOST))

    def __len__(self) -> int:
        return self.count

    def differs_from(self, other: Rows) -> str | None:
        """What of two axes that meet does not agree."""
        return None if other == self else f"their lengths ({self.count} and {other.count})"


class Given:
    """An argument: its array, and its name."""

    library = "polars"

    def __init__(self, who: str, name: str, x: Any) -> None:
        shown = f"{who}: {name}"
        if not isinstance(x, polars.Series):
            hint = f'{name}.to_numpy(), or its columns one by one, {name}["a"]'
            raise TypeError(f"{shown} must be an array or a Series, got {type(x).__name__}: pass {hint}")
        if x.null_count():
            raise TypeError(f"{shown} has nulls: pass {name}.fill_null(value) or {name}.drop_nulls()")
        if not (x.dtype.is_integer() or x.dtype.is_float() or x.dtype == polars.Boolean):
            raise TypeError(f"{shown} must have numbers, got {x.dtype}: pass {name}.cast(polars.Float64)")
        self.array, self._name = x.to_numpy(), x.name

    def is_like(self, other: Given) -> bool:
        """Whether the other has the same name."""
        return bool(self._name == other._name)

    def join(self, others: Sequence[Given]) -> None:
        """Nothing is shared between arguments."""

    def wrapped(self, value: Any) -> Any:
        """What stands for the argument while the function is traced."""
        return PolarsValue(value, (Rows(value.shape[0]),), self._name)


# ---- how kernels compute methods ----


def _reduction(function: Callable[..., Any]) -> Method:
    return method_of()(lambda x: function(x._value) if x.shape[0] else NotImplemented)


def _spread(function: Callable[..., Any]) -> Method:
    return method_of("ddof")(lambda x, ddof: function(x._value, ddof=ddof) if x.shape[0] > ddof else NotImplemented)


def _without_nan(plain: Callable[..., Any], without: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: without(x) if x._dtype in FLOATS else plain(x)


def _elementwise(function: Callable[..., Any]) -> Method:
    return method_of()(lambda x: function(x._value) if x._value._dtype in FLOATS else NotImplemented)


def _is_nan(x: Any) -> Any:
    x = read(x)
    return np.isnan(x) if not isinstance(x, Traced) or x._dtype in FLOATS else np.bool_(False)


def _clip(x: Any, lower_bound: Any = None, upper_bound: Any = None) -> Any:
    bounds = [b for b in (lower_bound, upper_bound) if b is not None]
    if x._value._dtype not in FLOATS or not bounds or any(type(b) not in (int, float) or b != b for b in bounds):
        return NotImplemented
    return x._like(x._value.clip(lower_bound, upper_bound)) if bounds == sorted(bounds) else NotImplemented


def _log(x: Any, base: Any = math.e) -> Any:
    return np.log(x._value) if x._value._dtype in FLOATS and type(base) is float and base == math.e else NotImplemented


_ELEMENTWISE = "exp log1p sqrt floor ceil sin cos tan sinh cosh tanh arcsin arccos arctan arcsinh arccosh arctanh"
_CALL_NAMES = """
    cum_sum cum_prod cum_max cum_min median quantile arg_max arg_min skew kurtosis rank reverse sort ewm_mean log
    log10 cbrt round sign dot interpolate is_sorted
"""
_METHODS: dict[str, Method] = {
    "sum": _reduction(np.sum),
    "mean": _reduction(np.mean),
    "product": _reduction(np.prod),
    "max": _reduction(_without_nan(np.max, np.nanmax)),
    "min": _reduction(_without_nan(np.min, np.nanmin)),
    "var": _spread(np.var),
    "std": _spread(np.std),
    "abs": method_of()(lambda x: np.abs(x._value)),
    "clip": method_of("lower_bound", "upper_bound")(_clip),
    "log": method_of("base")(_log),
    "is_nan": _elementwise(np.isnan),
    "is_not_nan": _elementwise(lambda x: ~np.isnan(x)),
    "is_finite": _elementwise(np.isfinite),
    "is_infinite": _elementwise(np.isinf),
    **{name: _elementwise(getattr(np, name)) for name in _ELEMENTWISE.split()},
}
# NaN is equal to NaN, and larger than every number.
_COMPARISONS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "eq": lambda x, y, no_x, no_y: (x == y) | (no_x & no_y),
    "ne": lambda x, y, no_x, no_y: (x != y) & ~(no_x & no_y),
    "lt": lambda x, y, no_x, no_y: (x < y) | (no_y & ~no_x),
    "le": lambda x, y, no_x, no_y: (x <= y) | no_y,
    "gt": lambda x, y, no_x, no_y: (x > y) | (no_x & ~no_y),
    "ge": lambda x, y, no_x, no_y: (x >= y) | no_x,
}
_UNSAFE = ("floordiv", "mod", "pow")


class PolarsValue(Table):
    """A traced Series."""

    __slots__ = ()
    _library = "polars"
    _methods = _METHODS
    _calls = frozenset(_CALL_NAMES.split())

    @property
    def _kind(self) -> Any:
        return polars.Series

    def _stand_in(self) -> Any:
        return polars.Series(self._name, np.ones(len(self._axes[0].stand_in), self._value._dtype))

    def _whole(self) -> Callable[[Any], Any]:
        return functools.partial(polars.Series, self._name)

    def _shown(self, like: Any, who: str) -> Shown:
        who = self._who(who)
        if not isinstance(like, polars.Series):
            return Shown(require_dtype(np.asarray(like).dtype, who), (), None)
        if like.null_count() or len(like) != len(self._axes[0].stand_in):
            raise trace_error(f"{who} gives nulls, or another number of rows, which is not traced", "call it outside")
        return Shown(require_dtype(like.to_numpy().dtype, who), self._axes, like.name)

    def _met(self, other: Any, op: str, axis: Any = None, *, is_right: bool = False) -> Any:
        if is_table(other):
            if (why := self._axes[0].differs_from(other._axes[0])) is not None:
                raise ValueError(f"kfusion.{self._value._tracer.name}: the operands of {op} differ in {why}")
            other = other._value
        elif getattr(other, "shape", ()) not in ((), self.shape) or isinstance(other, (list, tuple, range)):
            raise trace_error(f"{op} of a Series of polars and values of another shape is not traced",
                              "write np.array(...) of the Series' length")  # fmt: skip
        is_whole = self._value._dtype not in FLOATS
        if op in _UNSAFE and (
            is_whole or is_right or isinstance(other, Traced) or type(read(other)) not in (int, float)
        ):
            raise trace_error(f"{op} of these values of polars is not traced", "write NumPy's function of x.to_numpy()")
        return other

    def _computed(self, op: str, function: Callable[..., Any], value: Any, is_right: bool) -> Any:
        if op not in _COMPARISONS:
            return super()._computed(op, function, value, is_right)
        return _COMPARISONS[op](self._value, value, _is_nan(self._value), _is_nan(value))

    # ---- attributes ----

    def __getattr__(self, name: str) -> Any:
        return _ATTRIBUTES[name](self) if name in _ATTRIBUTES else super().__getattr__(name)

    def __getitem__(self, key: Any) -> Any:
        if type(key) is int:
            return self._value[key]
        what = f"x[{type(key).__name__}] of a Series of polars is not traced"
        raise trace_error(what, "write x[0], or x.to_numpy()[...]")

    def __iter__(self) -> Any:
        return iter(self._value)

    def to_numpy(self) -> Any:
        """The elements, as NumPy's array."""
        return self._value

    def alias(self, name: str) -> Any:
        """This series with another name."""
        return PolarsValue(self._value, self._axes, name)

    rename = alias

    def len(self) -> int:
        """The number of rows."""
        return self.shape[0]


_ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "name": lambda x: x._name,
    "dtype": lambda x: x._stand_in().dtype,
}


is_labelled = is_table  # for labelled.py


def taken_off(value: PolarsValue) -> tuple[Any, Callable[[Any], Any]]:
    """A result's traced value, and what makes the result of its array."""
    return value._value, value._whole()


class Placed(PlacedTable):
    """A Series among the arguments of a function of kfusion."""

    def labelled(self, value: Any, axes: Sequence[Rows], given: Sequence[Placed]) -> Any:
        """A Series of the first argument's name; of more axes the value itself."""
        return PolarsValue(value, axes, self._name) if len(axes) == 1 else value
