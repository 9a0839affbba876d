"""Ufuncs of NumPy and scipy.special, and CuPy's elementwise functions, on traced values."""

from __future__ import annotations

import functools
import math
import operator
import sys
from typing import Any

import numpy as np

from .._graph.number import read
from .._graph.sizes import is_int
from .._graph.source import NotTraced
from .._graph.values import Traced, tracer_of
from .._ops import contractions, formulas, views
from .._ops import primitives as p
from .._ops.erfc import erfc, ndtr
from .._spec import HALF, dtype_name
from . import dtype_names, numpy_calls, refusals
from .promoted import narrow, rounded, together
from .traced import power

POWERS = {2: "square", 0.5: "sqrt", -1: "reciprocal"}

# By name: the formula, and what it takes. "made floats": integers and bools become floats; "no bools": of those NumPy
# makes an int8.
_FORMULAS: dict[str, tuple[Any, str]] = {
    "fmod": (formulas.fmod, "no bools"),
    "divmod": (formulas.floor_divmod, "no bools"),
    "modf": (formulas.modf, "made floats"),
    "signbit": (formulas.signbit, "made floats"),
    "fabs": (formulas.magnitude, "made floats"),
    "heaviside": (formulas.heaviside_of_nan, "made floats"),
    "logaddexp2": (formulas.logaddexp2, "made floats"),
    **dict.fromkeys(("deg2rad", "radians"), (lambda x: x * (math.pi / 180), "made floats")),
    **dict.fromkeys(("rad2deg", "degrees"), (lambda x: x * (180 / math.pi), "made floats")),
    "logit": (formulas.logit, "made floats"),
    "log_expit": (formulas.log_sigmoid, "made floats"),
    "xlogy": (formulas.xlogy, "made floats"),
    "xlog1py": (formulas.xlog1py, "made floats"),
    "entr": (formulas.entr, "made floats"),
    "erfc": (erfc, "made floats"),
    "ndtr": (ndtr, "made floats"),
}
_FOLDS = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_and": "all",
    "logical_or": "any",
}


def array_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `ufunc.method(*inputs, **kwargs)` is on traced values, for NumPy's ufuncs and scipy.special's.

    Raises:
        TraceError: it has no ops in a graph, or a keyword would not be honoured.
    """
    name = ufunc.__name__
    library = next((m for m in ("numpy", "scipy.special") if getattr(sys.modules.get(m), name, None) is ufunc), "")
    called = f"{library}.{name}".removeprefix(".")
    if method != "at" and any(map(dtype_names.is_complex, inputs)):
        function = ufunc if method == "__call__" else getattr(ufunc, method)
        return numpy_calls.numpy_result(function, called, inputs, kwargs)
    try:
        return _in_graph(ufunc, method, library, called, inputs, kwargs)
    except NotTraced:
        if kwargs.get("out") is None and "where" in kwargs and method == "__call__":  # nobody knows what is elsewhere
            raise
    function = ufunc if method == "__call__" else getattr(ufunc, method)
    name = called if function is ufunc else f"{called}.{method}"
    out = kwargs.get("out") or (inputs[:1] if method == "at" else None)
    if out is None:
        return numpy_calls.numpy_call(function, name, inputs, kwargs)
    numpy_calls.numpy_writes(function, name, inputs, kwargs, out)
    return None if method == "at" else out[0] if len(out) == 1 else out


def _in_graph(ufunc: Any, method: str, library: str, called: str, inputs: tuple[Any, ...], kwargs: Any) -> Any:
    name = ufunc.__name__
    if method == "reduce" and library and name in _FOLDS:
        return _folded(called, _FOLDS[name], *inputs, **kwargs)
    if method != "__call__":
        raise refusals.refused(f"{called}.{method}")
    out, dtype = kwargs.get("out"), kwargs.get("dtype")
    for keyword in kwargs.keys() - {"out", "dtype"}:
        raise refusals.refused_keyword(called, keyword)
    of_numpy = all(x._library == "numpy" for x in inputs if isinstance(x, Traced))
    if dtype is not None and not of_numpy:
        raise refusals.refused_keyword(called, "dtype")
    if dtype is not None or (of_numpy and library == "scipy.special"):  # whose ufuncs have no loops for half types
        inputs = _as_resolved(ufunc, inputs, dtype)
    result = elementwise(name if library else "", called, inputs)
    return result if out is None else _written(called, result, out)


def _folded(called: str, op: str, x: Any, axis: Any = 0, **kwargs: Any) -> Any:
    keepdims = kwargs.pop("keepdims", False)
    for keyword in [k for k, v in kwargs.items() if v is not None]:
        raise refusals.refused_keyword(f"{called}.reduce", keyword)
    return p.REDUCTIONS[op](x, axis, keepdims)


def _kind(x: Any) -> Any:
    """What NumPy knows an operand by."""
    if is_int(x) or type(x) is float:
        return int if is_int(x) else float
    return np.dtype(getattr(x, "dtype", type(x)))


def _as_resolved(ufunc: Any, inputs: tuple[Any, ...], dtype: Any) -> tuple[Any, ...]:
    """The inputs cast as NumPy casts them for this ufunc (and a result of this dtype), which may refuse it."""
    inputs = tuple(map(read, inputs))
    kinds = [_kind(x) for x in inputs]
    results = [None if dtype is None else np.dtype(dtype)] * ufunc.nout
    resolved = ufunc.resolve_dtypes((*kinds, *[None] * ufunc.nout), signature=(*[None] * ufunc.nin, *results))
    tracer = tracer_of(*inputs)
    assert tracer is not None
    lifted = [tracer.lift(x, "numpy") for x in inputs]
    return tuple(views.astype(x, dtype_name(d.name)) for x, d in zip(lifted, resolved, strict=False))


def _written(called: str, result: Any, out: tuple[Any, ...]) -> Any:
    """out=, of a value that the function made: from now on that value is the result."""
    target = out[0]
    if len(out) != 1 or not isinstance(target, Traced) or isinstance(result, tuple):
        raise refusals.refused_keyword(called, "out")
    if not np.can_cast(result._dtype, target._dtype, "same_kind"):
        raise TypeError(f"kfusion.{called}: out must hold {result._dtype}, got {target._dtype}")
    if result.shape != target.shape:
        raise ValueError(f"kfusion.{called}: out must have shape {result.shape}, got {target.shape}")
    return target._write("out", result)  # type: ignore[attr-defined]


def elementwise(name: str, called: str, inputs: tuple[Any, ...]) -> Any:
    """The row of the op table of that name on inputs, their matrix product, or a formula.

    Raises:
        TraceError: there is none; `called` is the function's name for the message.
    """
    if name == "matmul":
        return contractions.matmul(*inputs)
    if name in ("power", "pow"):
        x, y = inputs
        return power(x, y, POWERS if _power_has_shortcuts() and getattr(x, "_dtype", "") not in HALF else {})
    if name == "float_power":
        return functools.reduce(operator.pow, (_as_float64(x) for x in inputs))
    tracer = tracer_of(*inputs)
    if name in _FORMULAS:
        return _formula(name, inputs)
    if name not in p.MAPS or tracer is None:
        raise refusals.refused(called)
    return tracer.map(name, *inputs)


def _as_float64(x: Any) -> Any:
    return views.astype(x, "float64") if isinstance(x, Traced) else float(x)


def _formula(name: str, inputs: tuple[Any, ...]) -> Any:
    """One stage, in NumPy's dtypes; half types are rounded once."""
    formula, takes = _FORMULAS[name]
    tracer = tracer_of(*inputs)
    assert tracer is not None
    library = next(x._library for x in inputs if isinstance(x, Traced))
    lifted = rounded([tracer.lift(x, library) for x in inputs], floats=takes == "made floats")
    with tracer.stage(name):
        values, dtype = together(lifted, floats=takes == "made floats")
        if dtype == "bool":
            raise TypeError(f"kfusion.{name}: arguments must be numbers other than bools, got bools")
        return narrow(formula(*values), dtype)


@functools.cache
def _power_has_shortcuts() -> bool:
    """Whether numpy.power of float32 and float64, as the operator, takes roots for powers of 0.5: newer versions do."""
    with np.errstate(invalid="ignore"):
        return bool(np.isnan(np.power(np.array([-np.inf]), 0.5))[0])
