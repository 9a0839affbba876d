"""The elementwise functions and the reductions: one per row of the op table, under all of its names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import _core
from .._graph.sizes import integer
from .._graph.source import TraceError
from .._tables import wrapped
from .operation import Array, Axes, composite, operation

_UNARY_DOC = """{doc}.

    {call} = {doc}, element by element

Args:
{arguments}

Returns:
    Array of {gives}, in x's shape.

Raises:
    TypeError: the dtype is none of these.

Source: the row `{name}` of cpp/kfusion/ops/ops.def.
"""

_MAP_DOC = """{doc}.

    {call} = {doc}, element by element

Args:
{arguments}

Returns:
    Array of {gives}, in the broadcast shape.

Raises:
    ValueError: the shapes do not broadcast.
    TypeError: a dtype is none of these, or the arrays come from different libraries.

Source: the row `{name}` of cpp/kfusion/ops/ops.def.
"""

_REDUCE_DOC = """{doc}, along some axes or all.

    {name}(x, axis) = {doc}

Args:
    x: array of {takes}.
    axis: the axis or axes to reduce; None means all.
    keepdims: whether reduced axes stay, with extent 1.

Returns:
    Array of {gives}. Half types are accumulated in float32.

Raises:
    ValueError: no such axis, one axis twice, or no elements where the result needs one.
    TypeError: a dtype is none of these.

Source: the row `{name}` of cpp/kfusion/ops/ops.def.
"""


def _unary(op: str) -> Callable[..., Any]:
    def builder(x: Array) -> Array:
        return x._tracer.map(op, x)

    return builder


def _binary(op: str) -> Callable[..., Any]:
    def builder(x: Array, y: Array) -> Array:
        return x._tracer.map(op, x, y)

    return builder


def _ternary(op: str) -> Callable[..., Any]:
    def builder(x: Array, y: Array, z: Array) -> Array:
        return x._tracer.map(op, x, y, z)

    return builder


def _clip(op: str) -> Callable[..., Any]:
    def builder(x: Array, min: Array | None = None, max: Array | None = None) -> Array:
        if min is None or max is None:
            x = x._tracer.copy(x) if min is None else x._tracer.map("maximum", x, min)
            return x if max is None else x._tracer.map("minimum", x, max)
        return x._tracer.map(op, x, min, max)

    return builder


def _where(op: str) -> Callable[..., Any]:
    def builder(condition: Array, x: Array, y: Array) -> Array:
        return x._tracer.map(op, condition, x, y)

    return builder


def _reduction(op: str) -> Callable[..., Any]:
    def builder(x: Array, axis: Axes = None, keepdims: bool = False) -> Array:
        return x._tracer.add("reduce", op, x, axes_of(op, axis), bool(keepdims))

    return builder


def axes_of(op: str, axis: Any) -> list[int] | None:
    """The list of axes that None, an integer or several stand for (None: all of them)."""
    return None if axis is None else integers(op, "axis", axis)


def integers(op: str, name: str, value: Any) -> list[int]:
    """One integer or several.

    Raises:
        TypeError: naming the function and the argument.
    """
    try:
        value = value.tolist() if type(value) is np.ndarray and value.ndim else value
        return [integer(n) for n in (value if isinstance(value, (tuple, list)) else (value,))]
    except TraceError:  # says more of a traced value
        raise
    except TypeError:
        raise TypeError(f"kfusion.{op}: {name} must be integers, got {value!r}") from None


_SPECIAL = {"clip": _clip, "where": _where}


def _function(row: dict[str, Any]) -> Callable[..., Any]:
    name, is_map = row["name"], row["kind"] == "map"
    plain = (_unary, _binary, _ternary)[row["arity"] - 1] if is_map else _reduction
    builder = _SPECIAL.get(name, plain)(name)
    names = builder.__code__.co_varnames[: builder.__code__.co_argcount]
    takes, gives = row["takes"], row["gives"]
    builder.__name__ = builder.__qualname__ = name
    form = _REDUCE_DOC if not is_map else _UNARY_DOC if row["arity"] == 1 else _MAP_DOC
    builder.__doc__ = form.format(
        name=name,
        doc=_in_terms_of(names, row["doc"]) if is_map else row["doc"],
        call=f"{name}({', '.join(names)})",
        arguments=_arguments(names, takes),
        takes=takes,
        gives=gives,
    )
    return (operation if name == "clip" else composite)(builder)


def _in_terms_of(names: Sequence[str], doc: str) -> str:
    """What ops.def says of x, y and z, in the function's own names: where(condition, x, y)."""
    return re.sub(r"\b[xyz]\b", lambda match: names["xyz".index(match[0])], doc)


def _arguments(names: Sequence[str], takes: str) -> str:
    if len(names) == 1:
        return wrapped(f"{names[0]}: array of {takes}.", 100, "    ", "        ")
    numbers = "Python numbers take the dtype of what they meet. Shapes broadcast."
    return wrapped(f"{', '.join(names)}: arrays of {takes}. {numbers}", 100, "    ", "        ")


MAPS: dict[str, Callable[..., Any]] = {}
REDUCTIONS: dict[str, Callable[..., Any]] = {}
for _row in _core.op_table():
    if _row["kind"] in ("map", "reduce"):
        _made = _function(_row)
        for _name in (_row["name"], *_row["other_names"]):
            (MAPS if _row["kind"] == "map" else REDUCTIONS)[_name] = _made

__all__ = [*MAPS, *REDUCTIONS]


def __getattr__(name: str) -> Callable[..., Any]:
    """`primitives.exp`, without `sum` or `max` hiding Python's own in here."""
    try:
        return MAPS[name] if name in MAPS else REDUCTIONS[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
