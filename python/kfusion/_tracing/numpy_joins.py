"""NumPy's functions that join, pad, repeat and split, on traced values. Parameters have NumPy's own names."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._graph.source import not_traced
from .._graph.values import Traced
from .._ops import joins, views
from .._spec import is_array
from . import refusals


def _listed(arrays: Any) -> Sequence[Any]:
    """The arrays of a list, or along the first axis of one."""
    return joins.unbind(arrays) if isinstance(arrays, Traced) else arrays


def concatenate(
    arrays: Any, axis: int | None = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Any:
    """Means numpy.concatenate, whose own parameters Python knows from NumPy 2.4 on."""
    for keyword, refused in (
        ("out", out is not None),
        ("dtype", dtype is not None),
        ("casting", casting != "same_kind"),
    ):
        if refused:
            raise refusals.refused_keyword("numpy.concatenate", keyword)
    return joins.concatenate(_listed(arrays), axis)


def stack(arrays: Any, axis: int = 0) -> Any:
    """Means numpy.stack."""
    return joins.stack(_listed(arrays), axis)


def at_least(x: Any, ndim: int) -> Any:
    """Means numpy.atleast_1d, atleast_2d and atleast_3d: axes of extent 1 before, the third one behind."""
    x = x if hasattr(x, "shape") else np.asarray(x)
    shape = tuple(x.shape)
    if len(shape) >= ndim:
        return x
    shape = (1,) * (min(ndim, 2) - len(shape)) + shape
    return x.reshape(shape + (1,) * (ndim - len(shape)))


def hstack(arrays: Any) -> Any:
    """Means numpy.hstack."""
    parts = [at_least(x, 1) for x in _listed(arrays)]
    return joins.concatenate(parts, 0 if parts and parts[0].ndim == 1 else 1)


def vstack(arrays: Any) -> Any:
    """Means numpy.vstack."""
    return joins.concatenate([at_least(x, 2) for x in _listed(arrays)], 0)


def dstack(arrays: Any) -> Any:
    """Means numpy.dstack."""
    return joins.concatenate([at_least(x, 3) for x in _listed(arrays)], 2)


def column_stack(arrays: Any) -> Any:
    """Means numpy.column_stack."""
    made = [at_least(x, 1) for x in _listed(arrays)]
    return joins.concatenate([x if x.ndim > 1 else x.reshape((-1, 1)) for x in made], 1)


def append(x: Any, values: Any, axis: int | None = None) -> Any:
    """Means numpy.append."""
    given = [v if isinstance(v, Traced) or is_array(v) else np.asarray(v) for v in (x, values)]
    return joins.concatenate(given, axis)


_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def pad(x: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    """Means numpy.pad, for a constant and for modes that repeat elements of x."""
    kwargs = kwargs.get("kwargs", kwargs)
    if mode not in _MODES:
        raise not_traced(f"numpy.pad with mode={mode!r} is not traced", f"modes are {', '.join(_MODES)}")
    for keyword, value in kwargs.items():
        if keyword != "constant_values" or isinstance(value, (tuple, list)) or np.ndim(value):
            raise refusals.refused_keyword("numpy.pad", keyword)
    if isinstance(pad_width, np.ndarray):
        pad_width = pad_width.tolist()
    return joins.pad(x, pad_width, mode, **kwargs)


def split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Means numpy.split."""
    n = x.shape[views.axis_of(x, axis, "split")]
    if isinstance(indices_or_sections, (int, np.integer)) and n % indices_or_sections:
        raise ValueError("array split does not result in an equal division")
    return array_split(x, indices_or_sections, axis)


def array_split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Means numpy.array_split: the first parts are one longer where extents do not divide."""
    n = x.shape[views.axis_of(x, axis, "array_split")]
    if not isinstance(indices_or_sections, (int, np.integer)):
        return joins.split(x, list(indices_or_sections), axis)
    if indices_or_sections < 1:
        raise ValueError("number sections must be larger than 0.")
    step, longer = divmod(n, int(indices_or_sections))
    extents = [step + (i < longer) for i in range(indices_or_sections)]
    return joins.split(x, list(itertools.accumulate(extents))[:-1], axis)


def along(axis: int) -> Callable[..., list[Any]]:
    """hsplit (1), vsplit (0) and dsplit (2); hsplit cuts the first axis of what has one."""

    def split_along(x: Any, indices_or_sections: Any) -> list[Any]:
        least = {0: 2, 1: 1, 2: 3}[axis]
        if x.ndim < least:
            raise ValueError(f"the array must have {least} or more dimensions, got shape {x.shape}")
        return split(x, indices_or_sections, min(axis, x.ndim - 1))

    return split_along


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "concatenate": concatenate,
    "concat": concatenate,
    "stack": stack,
    "hstack": hstack,
    "vstack": vstack,
    "row_stack": vstack,
    "dstack": dstack,
    "column_stack": column_stack,
    "append": append,
    "pad": pad,
    "roll": joins.roll,
    "repeat": joins.repeat,
    "tile": joins.tile,
    "tril": joins.tril,
    "triu": joins.triu,
    "split": split,
    "array_split": array_split,
    "hsplit": along(1),
    "vsplit": along(0),
    "dsplit": along(2),
    "unstack": lambda x, axis=0: tuple(joins.unbind(x, axis)),
}
