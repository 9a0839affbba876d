"""pandas' Series and DataFrames: an index for each axis, operators and attributes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas

from .._graph.number import read
from .._graph.source import trace_error
from .._graph.values import Traced
from .._spec import FLOATS
from . import pandas_methods
from .traced_tables import MOST, PlacedTable, Shown, Table, is_table, require_dtype

_KINDS = "biuf"  # bools, integers, floats


class Axis:
    """The index along an axis, and what stands for it in stand-ins. Within a trace, equal ones are one object."""

    def __init__(self, index: Any, number: int, known: list[Axis]) -> None:
        self.index = index
        self.stand_in = pandas.Index([f"{number}:{k}" for k in range(min(len(index), MOST))], dtype=object)
        self.known = known

    def __len__(self) -> int:
        return len(self.index)

    def differs_from(self, other: Axis) -> str | None:
        """What of two axes that meet does not agree, and what to do about it."""
        return None if other is self else "their index: pass the results of x.align(y)"


def _axis_of(index: Any, known: list[Axis]) -> Axis:
    for axis in known:
        if _is_same(axis.index, index):
            return axis
    known.append(Axis(index, len(known), known))
    return known[-1]


def _is_same(x: Any, y: Any) -> bool:
    return x is y or bool(type(x) is type(y) and x.dtype == y.dtype and x.identical(y))


class Given:
    """An argument: its array, and what its labels are."""

    library = "pandas"

    def __init__(self, who: str, name: str, x: Any) -> None:
        self.array = _numbers(f"{who}: {name}", name, x)
        self._indexes = tuple(x.axes)
        self._name = x.name if x.ndim == 1 else None
        self._known: list[Axis] = []

    def is_like(self, other: Given) -> bool:
        """Whether the other has the same labels."""
        pairs = zip(self._indexes, other._indexes, strict=False)
        is_named = type(self._name) is type(other._name) and self._name == other._name
        return is_named and self.array.ndim == other.array.ndim and all(_is_same(*pair) for pair in pairs)

    def join(self, others: Sequence[Given]) -> None:
        """Makes equal labels of these arguments one object."""
        for x in others:
            x._known = self._known

    def wrapped(self, value: Any) -> Any:
        """What stands for the argument while the function is traced."""
        return PandasValue(value, [_axis_of(index, self._known) for index in self._indexes], self._name)


def _numbers(shown: str, name: str, x: Any) -> Any:
    if not isinstance(x, (pandas.Series, pandas.DataFrame)):
        raise TypeError(f"{shown} must be an array, a Series or a DataFrame, got {type(x).__name__}; {name}.to_numpy()")
    is_table = isinstance(x, pandas.DataFrame)
    dtypes = list(dict.fromkeys(x.dtypes)) if is_table else [x.dtype]
    for dtype in dtypes:
        if not isinstance(dtype, np.dtype) or dtype.kind not in _KINDS:
            select = f' or {name}.select_dtypes("number")' * is_table
            raise TypeError(f'{shown} must have numbers, got {dtype}: pass {name}.astype("float64"){select}')
    if len(dtypes) > 1:
        found = ", ".join(map(str, dtypes))
        raise TypeError(f'{shown} must have columns of one dtype, got {found}: pass {name}.astype("float64")')
    return x.to_numpy()


class PandasValue(Table):
    """A traced Series or DataFrame."""

    __slots__ = ()
    _library = "pandas"
    _methods = pandas_methods.METHODS
    _calls = pandas_methods.CALLS

    @property
    def _kind(self) -> Any:
        return pandas.Series if len(self._axes) == 1 else pandas.DataFrame

    def _stand_in(self) -> Any:
        ones = np.ones([len(axis.stand_in) for axis in self._axes], self._value._dtype)
        labels = dict(zip(("index", "columns"), (axis.stand_in for axis in self._axes), strict=False))
        return self._kind(ones, **labels, **({"name": self._name} if len(self._axes) == 1 else {}))

    def _whole(self) -> Callable[[Any], Any]:
        labels = dict(zip(("index", "columns"), (axis.index for axis in self._axes), strict=False))
        return functools.partial(self._kind, copy=False, **labels)

    def _shown(self, like: Any, who: str) -> Shown:
        who = self._who(who)
        if not isinstance(like, (pandas.Series, pandas.DataFrame)):
            dtype = getattr(np.asarray(like), "dtype", None)
            return Shown(require_dtype(dtype, who), (), None)
        dtypes = list(dict.fromkeys(like.dtypes)) if like.ndim == 2 else [like.dtype]
        if len(dtypes) != 1:
            raise trace_error(f"{who} gives columns of several dtypes, which is not traced", "call it outside")
        name = like.name if like.ndim == 1 else None
        return Shown(require_dtype(dtypes[0], who), tuple(self._axis_like(index, who) for index in like.axes), name)

    def _axis_like(self, index: Any, who: str) -> Axis:
        """The axis that a stand-in's is."""
        known: list[Axis] = self._axes[0].known
        axis: Axis
        for axis in (*self._axes, *known):
            if axis.stand_in.equals(index):
                return axis
        marks = {mark for axis in known for mark in axis.stand_in}
        if any(label in marks for label in index):
            raise trace_error(f"{who} gives other labels than its argument's, which is not traced", "call it outside")
        return _axis_of(index, known)

    def _met(self, other: Any, op: str, axis: Any = None, *, is_right: bool = False) -> Any:
        if is_table(other) and other._value.ndim > self._value.ndim:
            return NotImplemented
        if (why := self._depends_on_data(other, op, is_right)) is not None:
            raise trace_error(
                f"{op} of these values of pandas, {why}, is not traced", 'write x.astype("float64") first'
            )
        return self._met_table(other, op, axis) if is_table(other) else self._met_plain(other, axis)

    def _met_table(self, other: Any, op: str, axis: Any) -> Any:
        along = self._axes if other._value.ndim == self._value.ndim else self._axes[:1] if axis == 0 else self._axes[1:]
        for mine, theirs in zip(along, other._axes, strict=True):
            if (why := mine.differs_from(theirs)) is not None:
                raise ValueError(f"kfusion.{self._value._tracer.name}: the operands of {op} differ in {why}")
        return other._value[:, None] if axis == 0 and other._value.ndim == 1 else other._value

    def _met_plain(self, other: Any, axis: Any) -> Any:
        if isinstance(other, (list, tuple, dict, set, range)):
            what = f"a {type(other).__name__} beside a {self._kind.__name__} is not traced"
            raise trace_error(what, "write np.array(...) of it")
        if not hasattr(other, "shape") or other.shape == ():
            return other
        rows, columns = self.shape[0], self.shape[-1]
        wide = (self.shape, (rows, 1), (1, columns), (columns,)) if self._value.ndim == 2 else (self.shape,)
        if tuple(other.shape) not in wide or axis is not None:
            what = f"an array of shape {tuple(other.shape)} beside a {self._kind.__name__} of shape {self.shape}"
            raise ValueError(f"kfusion.{self._value._tracer.name}: {what}: pass one of its shape")
        return other

    def _depends_on_data(self, other: Any, op: str, is_right: bool) -> str | None:
        """Why the dtype of an operator's result, or an error, depends on elements; None where it does not."""
        plain = other._value if is_table(other) else other
        wide = [v._dtype for v in (self._value, plain) if isinstance(v, Traced)]
        if op in ("floordiv", "mod") and set(wide) != {"float64"}:
            is_known = not is_right and type(read(plain)) in (int, float) and read(plain) != 0
            return None if is_known else "which are float64 where one divides by 0"
        if op == "pow" and not set(wide) & set(FLOATS):
            is_known = not is_right and type(read(plain)) in (int, float)
            return None if is_known else "which must have no negative exponents"
        return None

    def _asked_along(self, op: str, small: Any, axis: Any) -> Any:
        return getattr(self._stand_in(), op)(small, axis=axis)

    def _by_library(self, name: str, args: Any, kwargs: Any) -> Any:
        if name == "quantile" and self._value._dtype == "float32":  # float64 where no element is NaN
            raise self._refused(name)
        return super()._by_library(name, args, kwargs)

    # ---- attributes ----

    def __getattr__(self, name: str) -> Any:
        if name in _ATTRIBUTES and hasattr(self._kind, name):
            return _ATTRIBUTES[name](self)
        if not hasattr(self._kind, name) and len(self._axes) == 2 and name in self._axes[1].index:
            return self[name]
        return super().__getattr__(name)

    def __getitem__(self, key: Any) -> Any:
        if is_table(key) or isinstance(key, (Traced, np.ndarray, slice)):
            raise self._refused_key(key)
        index = self._axes[-1].index
        is_list = type(key) is list and len(self._axes) == 2
        try:
            place = index.get_indexer_for(key) if is_list else index.get_loc(key)
        except (TypeError, pandas.errors.InvalidIndexError):
            place = None
        if is_list and len(place) == len(key) and not any(isinstance(k, (bool, np.bool_)) for k in key):
            if -1 in place:
                raise KeyError(f"{[k for k, at in zip(key, place, strict=True) if at < 0]} not in index")
            return type(self)(self._value[:, place], (self._axes[0], _axis_of(index[place], self._axes[0].known)))
        if type(place) is not int:
            raise self._refused_key(key)
        return self._value[place] if len(self._axes) == 1 else type(self)(self._value[:, place], self._axes[:1], key)

    def _refused_key(self, key: Any) -> Exception:
        kind = getattr(key, "_kind", type(key)).__name__
        what = f"x[{kind}] of a {self._kind.__name__} of pandas is not traced"
        return trace_error(what, "write x[label] or x[[label, ...]], x.where(condition), or x.to_numpy()[...]")

    def __contains__(self, key: Any) -> bool:
        return key in self._axes[-1].index

    def __iter__(self) -> Any:
        return iter(self._axes[1].index if len(self._axes) == 2 else self._value)

    def pipe(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """function(self, *args, **kwargs)."""
        return function(self, *args, **kwargs)

    def items(self) -> Any:
        """The columns of a DataFrame by their labels, or the elements of a Series."""
        if len(self._axes) == 1:
            return zip(self._axes[0].index, self._value, strict=True)
        return ((label, self[label]) for label in self._axes[1].index)

    def to_numpy(self, dtype: Any = None, copy: bool = False) -> Any:
        """The elements, as NumPy's array."""
        return self._value if dtype is None else self._value.astype(dtype)


# What is known of a table without its elements, and its elements.
_ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "T": lambda x: x._call("transpose"),
    "values": lambda x: x._value,
    "index": lambda x: x._axes[0].index,
    "columns": lambda x: x._axes[1].index,
    "axes": lambda x: [axis.index for axis in x._axes],
    "ndim": lambda x: len(x._axes),
    "size": lambda x: math.prod(x.shape),
    "empty": lambda x: 0 in x.shape,
    "dtype": lambda x: np.dtype(x._value._dtype),
    "dtypes": lambda x: x._whole()(np.broadcast_to(np.zeros((), x._value._dtype), x.shape)).dtypes,
    "name": lambda x: x._name,
}


is_labelled = is_table  # for labelled.py


def taken_off(value: PandasValue) -> tuple[Any, Callable[[Any], Any]]:
    """A result's traced value, and what makes the result of its array."""
    return value._value, functools.partial(value._whole(), **({"name": value._name} if len(value._axes) == 1 else {}))


class Placed(PlacedTable):
    """A Series or DataFrame among the arguments of a function of kfusion."""

    def labelled(self, value: Any, axes: Sequence[Axis], given: Sequence[Placed]) -> Any:
        """A result, by the axes that its axes are."""
        if len(axes) > 2:
            return value
        names = {repr(x._name): x._name for x in given if x.value.ndim == 1}
        name = next(iter(names.values())) if len(axes) == 1 and len(names) == 1 else None
        return PandasValue(value, axes, name)
