"""Operands of a function that is made of several nodes, brought to the dtype in which a library computes it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from .._graph.values import Traced, is_weak
from .._ops import primitives as p
from .._ops import views
from .._spec import HALF


def together(values: Sequence[Traced], *, floats: bool = False) -> tuple[list[Traced], str]:
    """Values in the dtype that they promote to by their library's rules (half types: float32), and that dtype's name.

    `floats`: integers and bools become floats, as for the library's sine.
    """
    dtype = result_type(values, floats)
    inside = "float32" if dtype in HALF else dtype
    return [v if v._dtype == inside and not is_weak(v) else views.astype(v, inside) for v in values], dtype


def rounded(values: Sequence[Traced], *, floats: bool = False) -> list[Traced]:
    """The values, those of other dtypes rounded to the half type that all promote to, as torch casts arguments.
    For outside of a stage: within one, casts say how values are stored.
    """
    dtypes = {v._dtype for v in values}
    if len(dtypes) < 2 or not dtypes & set(HALF) or (dtype := result_type(values, floats)) not in HALF:
        return list(values)
    return [v if v._dtype == dtype else views.astype(v, dtype) for v in values]


def result_type(values: Sequence[Traced], floats: bool = False) -> str:
    """The dtype that values promote to, found by nodes that nothing reads."""
    first, *rest = sorted(values, key=lambda v: (is_weak(v), v.ndim == 0))  # torch: axes outrank none
    joined = functools.reduce(p.maximum, (v for v in rest if v._dtype != first._dtype), first)
    return str((p.sigmoid(joined) if floats else joined)._dtype)


def narrow(result: Any, dtype: str) -> Any:
    """A result, or several, that is of the half type `dtype` outside."""
    if isinstance(result, tuple):
        return tuple(narrow(r, dtype) for r in result)
    return views.astype(result, dtype) if dtype in HALF and result._dtype == "float32" else result
