"""NumPy's functions on traced values: each call is bound to NumPy's own signature, then made kfusion's.

What a call sets beyond the defaults must be a parameter of kfusion's function too: else it is refused, not dropped.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._graph.number import read
from .._graph.source import NoForm, no_form, trace_error
from .._graph.structure import leaves
from .._graph.tracer import Traced, stage
from .._ops import contractions, extremes, formulas, norms, views
from .._ops import primitives as p
from .._spec import FLOATS, INTEGERS
from . import library_calls, numpy_joins, numpy_stored, refusals, writing
from .numpy_composites import COMPOSITES, with_dtype

_X = ("a", "ary", "arr", "array", "A", "m", "x1")  # what NumPy calls kfusion's x
_RENAMED = dict.fromkeys(_X, "x") | {
    "b": "y",
    "x2": "y",
    "ddof": "correction",
    "a_min": "min",
    "a_max": "max",
    "newshape": "shape",
    "tup": "arrays",
}


def _round(x: Traced, decimals: int = 0) -> Any:
    if x._dtype in INTEGERS and decimals >= 0:
        return x._tracer.copy(x)
    if x._dtype not in FLOATS and decimals != 0:
        raise trace_error(f"numpy.round of {x._dtype} with decimals= is not traced", "write x.astype('float64') first")
    with stage(x, "round"):
        return formulas.rounded(x, decimals)


def _reduction(op: str) -> Callable[..., Any]:
    """Reductions that are a ufunc's: of an array without axes they take 0 and -1, unlike mean."""

    def reduction(x: Traced, axis: Any = None, keepdims: bool = False) -> Any:
        is_absent = x.ndim == 0 and isinstance(axis, (int, np.integer)) and axis in (0, -1)
        return p.REDUCTIONS[op](x, () if is_absent else axis, keepdims)

    return reduction


def _position(op: str) -> Callable[..., Any]:
    """Of the largest or smallest element; of an array without axes along 0 or -1, too."""

    def position(x: Traced, axis: Any = None, keepdims: bool = False) -> Any:
        is_absent = x.ndim == 0 and isinstance(axis, (int, np.integer)) and axis in (0, -1)
        return getattr(extremes, f"arg{op}")(x, None if is_absent else axis, keepdims)

    return position


def _squeeze(x: Traced, axis: Any = None) -> Any:
    return views.squeeze(x, None if x.ndim == 0 and axis in (0, -1) else axis)


def _copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    if not isinstance(dst, Traced):
        hint = "pass it as an argument, or make it with np.zeros(shape, like=x)"
        raise trace_error("numpy.copyto writes into an array that is no argument", hint)
    kind = np.dtype(getattr(src, "dtype", type(read(src))))
    if not np.can_cast(kind, np.dtype(dst._dtype), casting):
        raise TypeError(f"kfusion.copyto: src must be castable to {dst._dtype} by the rule {casting!r}, got {kind}")
    writing.copy(dst, src, None if where is True else where)


def _take(x: Traced, indices: Any, axis: int | None = None) -> Any:
    return contractions.take(x, indices, None if x.ndim == 0 and axis in (0, -1) else axis)


def _take_along_axis(arr: Traced, indices: Any, axis: int | None = -1) -> Any:
    return contractions.take_along_axis(arr, indices, axis)


def _clip(x: Traced, min: Any = None, max: Any = None) -> Any:
    if x._dtype == "int32":  # bounds beyond its ends are none
        min, max = read(min), read(max)
        min = None if type(min) is int and min < -(2**31) else min
        max = None if type(max) is int and max >= 2**31 else max
    return p.clip(x, min, max)


def _linalg_norm(x: Traced, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    if axis == ():
        raise ValueError("kfusion.linalg.norm: axis must name an axis")
    vectors = x.ndim == 1 if axis is None else not (isinstance(axis, tuple) and len(axis) > 1)
    if ord is not None and not vectors and not (ord == "fro" and (x.ndim if axis is None else len(axis)) == 2):
        raise no_form("numpy.linalg.norm of matrices with ord= is not traced", "write linalg.vector_norm instead")
    return norms.norm(x, 2 if ord in (None, "fro") else ord, axis, keepdims)


def _dot(x: Any, y: Any) -> Any:
    if max(getattr(x, "ndim", 0), getattr(y, "ndim", 0)) > 2:
        raise no_form("numpy.dot of more than 2 axes is not traced", "write numpy.matmul instead")
    return contractions.matmul(x, y)


def filled(value: float) -> Callable[..., Any]:
    """zeros_like (0) and ones_like (1)."""
    return lambda x, dtype=None: views.full_like(x, value, dtype)


_FUNCTIONS: dict[str, Any] = {
    **p.REDUCTIONS,
    **{name: _reduction(name) for name in ("max", "min", "amax", "amin", "any", "all")},
    **{name: with_dtype(name, _reduction(name)) for name in ("sum", "prod")},
    "mean": with_dtype("mean", p.REDUCTIONS["mean"]),
    **COMPOSITES,
    **{name: getattr(views, name) for name in ("transpose", "matrix_transpose", "swapaxes", "moveaxis", "reshape")},
    **{name: getattr(views, name) for name in ("ravel", "expand_dims", "broadcast_to", "flip", "astype")},
    "squeeze": _squeeze,
    "fliplr": lambda x: views.flip(x, 1),
    "flipud": lambda x: views.flip(x, 0),
    "copy": lambda x: x._tracer.copy(x),
    **numpy_joins.FUNCTIONS,
    "full_like": views.full_like,
    "zeros_like": filled(0),
    "ones_like": filled(1),
    "where": p.MAPS["where"],
    "clip": _clip,
    "round": _round,
    "around": _round,
    "fix": p.MAPS["trunc"],
    "argmax": _position("max"),
    "argmin": _position("min"),
    "var": norms.var,
    "std": norms.std,
    "linalg.norm": _linalg_norm,
    "linalg.vector_norm": norms.norm,
    "dot": _dot,
    "linalg.matmul": contractions.matmul,
    "take": _take,
    "take_along_axis": _take_along_axis,
    "copyto": _copyto,
    "shape": lambda x: x.shape,
    "ndim": lambda x: x.ndim,
    "size": lambda x: math.prod(x.shape),
    "iscomplexobj": lambda x: False,
    "isrealobj": lambda x: True,
}
# By NumPy's own functions; older versions lack some.
_TARGETS = {
    getattr(module, name.rpartition(".")[2]): target
    for name, target in _FUNCTIONS.items()
    if hasattr(module := np.linalg if name.startswith("linalg.") else np, name.rpartition(".")[2])
}


def array_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `function(*args, **kwargs)` is on traced values: nodes, or one that NumPy computes.

    Raises:
        TraceError: what it gives depends on data, or an argument would not be honoured.
    """
    name = f"{function.__module__}.{function.__name__}"
    if any(map(library_calls.is_complex, leaves((args, kwargs)))):
        return _of_stored(function, name, args, kwargs)
    try:
        return _in_graph(function, args, kwargs)
    except NoForm as error:
        try:
            return library_calls.numpy_call(function, name, args, kwargs)
        except NoForm:
            raise error from None


_ASKED = ("shape", "ndim", "size", "iscomplexobj", "isrealobj")
_OF_VALUES = ("copyto", "put_along_axis", "allclose")


def _of_stored(function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As `array_function`, where kernels have no dtype for an array among the arguments."""
    short = name.removeprefix("numpy.")
    if short in _ASKED and not kwargs and len(args) == 1:
        return args[0].dtype.kind == "c" if short == "iscomplexobj" else _asked(short, args[0])
    is_nonzero = function is np.where and len(args) + len(kwargs) == 1
    if is_nonzero or short in _OF_VALUES or not (function in _TARGETS or library_calls.has_numpy(short)):
        raise refusals.refused("numpy.nonzero" if is_nonzero else name)
    return numpy_stored.called(function, name, args, kwargs)


def _asked(name: str, x: Any) -> Any:
    return x.dtype.kind != "c" if name == "isrealobj" else getattr(x, name)


def _in_graph(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = f"{function.__module__}.{function.__name__}".removeprefix("numpy.")  # for messages
    target = _TARGETS.get(function)
    if target is not None and function is np.where and len(args) + len(kwargs) == 1:
        raise refusals.refused("numpy.nonzero")
    if target is None:
        raise refusals.refused(f"numpy.{name}")
    given = _beyond_defaults(_signature(function, target).bind(*args, **kwargs))
    for keyword in [k for k in given if k not in _signature(target).parameters]:
        raise refusals.refused_keyword(f"numpy.{name}", keyword)
    return target(**given)


@functools.cache
def _signature(function: Any, target: Any = None) -> inspect.Signature:
    """Of a function; of what it becomes where Python knows none (functions in C of NumPy before 2.4)."""
    try:
        return inspect.signature(function)
    except ValueError:
        return inspect.signature(target)


def _beyond_defaults(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Arguments that are not NumPy's own defaults, under kfusion's names."""
    parameters = bound.signature.parameters
    given = {}
    for name, value in bound.arguments.items():
        default = parameters[name].default
        plain = value is None or isinstance(value, (bool, int, float, str))
        if value is not default and not (plain and type(value) is type(default) and value == default):
            given[_RENAMED.get(name, name)] = value
    return given
