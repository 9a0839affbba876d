"""pandas' Series and DataFrames, and polars' Series: an index for each axis."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._graph.structure import foreign_library

_KINDS = "biuf"  # bools, integers, floats


@dataclass(frozen=True)
class Labels:
    """The labels along an axis: an index of pandas', None for polars' rows."""

    index: Any
    name: None = None  # axes meet by place alone

    def differs_from(self, other: Labels) -> str | None:
        """What of two axes that are one axis of a call does not agree, and what to do about it."""
        if self.index is None or self.index is other.index or self.index.equals(other.index):
            return None
        return "their index: pass the results of x.align(y)"


class Labelled:
    """An argument: its array, and `Labels` for each axis."""

    how = "to_numpy()"

    def __init__(self, who: str, name: str, x: Any) -> None:
        self.whole = x
        library = foreign_library(type(x))
        shown = f"{who}: {name}"
        self.array, self.axes = (_of_pandas if library == "pandas" else _of_polars)(shown, name, x)


def _of_pandas(shown: str, name: str, x: Any) -> tuple[Any, tuple[Labels, ...]]:
    pandas = sys.modules["pandas"]
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
    return x.to_numpy(), tuple(map(Labels, x.axes))


def _of_polars(shown: str, name: str, x: Any) -> tuple[Any, tuple[Labels, ...]]:
    polars = sys.modules["polars"]
    if not isinstance(x, polars.Series):
        hint = f'{name}.to_numpy(), or its columns one by one, {name}["a"]'
        raise TypeError(f"{shown} must be an array or a Series, got {type(x).__name__}: pass {hint}")
    if x.null_count():
        raise TypeError(f"{shown} has nulls: pass {name}.fill_null(value) or {name}.drop_nulls()")
    if not (x.dtype.is_integer() or x.dtype.is_float() or x.dtype == polars.Boolean):
        raise TypeError(f"{shown} must have numbers, got {x.dtype}: pass {name}.cast(polars.Float64)")
    return x.to_numpy(), (Labels(None),)


def labelled(who: str, array: Any, axes: Sequence[Labels], given: Sequence[Labelled]) -> Any:
    """A Series or DataFrame; what has no axis stays a number."""
    if not axes:
        return array
    names = list(dict.fromkeys(getattr(x.whole, "name", None) for x in given))
    if len(axes) > 2 or (axes[0].index is None and len(axes) > 1):
        raise ValueError(f"{who}: a result has {len(axes)} axes: pass x.to_numpy()")
    if axes[0].index is None:
        return sys.modules["polars"].Series(names[0], array)
    pandas = sys.modules["pandas"]
    if len(axes) == 2:
        return pandas.DataFrame(array, index=axes[0].index, columns=axes[1].index, copy=False)
    is_along_rows = any(x.whole.ndim == 1 for x in given)
    return pandas.Series(
        array, index=axes[0].index, name=names[0] if len(names) == 1 and is_along_rows else None, copy=False
    )
