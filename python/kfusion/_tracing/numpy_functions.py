"""NumPy's functions on traced values: each call is bound to NumPy's own signature, then made kfusion's.

What a call sets beyond the defaults must be a parameter of kfusion's function too: else it is refused, not dropped.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._graph.number import read
from .._graph.sizes import broadcast_shapes
from .._graph.source import NotTraced, TraceError, not_traced, trace_error
from .._graph.structure import leaves, walk
from .._graph.values import Traced, stage, tracer_of
from .._ops import contractions, extremes, formulas, norms, views
from .._ops import primitives as p
from .._spec import FLOATS, INTEGERS
from . import dtype_names, library_checks, numpy_calls, numpy_joins, refusals, writing
from .numpy_composites import COMPOSITES, with_dtype

_X = ("a", "ary", "arr", "array", "A", "m", "x1", "prototype")  # what NumPy calls kfusion's x
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
    """The position of the largest or smallest element; without axes along 0 or -1, too."""

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
    if isinstance(indices, (list, tuple, range)):
        indices = np.asarray(indices)
    return contractions.take(x, indices, None if x.ndim == 0 and axis in (0, -1) else axis)


def _take_along_axis(x: Traced, indices: Any, axis: int | None = -1) -> Any:
    return contractions.take_along_axis(x, indices, axis)


def _clip(x: Any, min: Any = None, max: Any = None) -> Any:
    tracer = tracer_of(x, min, max)
    assert tracer is not None
    x = x if isinstance(x, Traced) else tracer.lift(np.asarray(read(x))[()], "numpy")  # NumPy makes an array of it
    if x._dtype == "bool" and min is max is None:  # NumPy takes the positive of x then
        raise TypeError("kfusion.clip: bools need a bound, as in NumPy, got none")
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
        raise not_traced("numpy.linalg.norm of matrices with ord= is not traced", "write linalg.vector_norm instead")
    return norms.norm(x, 2 if ord in (None, "fro") else ord, axis, keepdims)


def _dot(x: Any, y: Any) -> Any:
    if max(getattr(x, "ndim", 0), getattr(y, "ndim", 0)) > 2:
        raise not_traced("numpy.dot of more than 2 axes is not traced", "write numpy.matmul instead")
    return contractions.matmul(x, y)


def _reshape(x: Traced, shape: Any, order: str = "C") -> Any:
    if order == "C":
        return views.reshape(x, shape)
    if order != "F":  # that of the elements in memory, which nobody knows of a value
        raise not_traced(f"numpy.reshape with order={order!r} is not traced", 'write order="C" or order="F"')
    turned = views.reshape(views.transpose(x), shape if isinstance(shape, int) else tuple(shape)[::-1])
    return views.transpose(turned)


def _ravel(x: Traced, order: str = "C") -> Any:
    return _reshape(x, -1, order)


def _broadcast_arrays(*args: Any) -> Any:
    arrays = _lifted(args)
    shape = broadcast_shapes(*(a.shape for a in arrays))
    return tuple(views.broadcast_to(a, shape) for a in arrays)


def _lifted(arrays: Sequence[Any]) -> list[Any]:
    tracer = tracer_of(*arrays)
    assert tracer is not None
    return [tracer.lift(a if isinstance(a, Traced) else np.asarray(a), "numpy") for a in arrays]


def _meshgrid(*xi: Any, sparse: bool = False, indexing: str = "xy", copy: bool = True) -> Any:
    if indexing not in ("xy", "ij"):
        raise ValueError(f'kfusion.meshgrid: indexing must be "xy" or "ij", got {indexing!r}')
    axes = list(range(len(xi)))
    if indexing == "xy" and len(axes) > 1:
        axes[:2] = 1, 0
    along = zip(_lifted(xi), axes, strict=True)
    arrays = [views.reshape(a, tuple(-1 if i == axis else 1 for i in range(len(xi)))) for a, axis in along]
    made = arrays if sparse else _broadcast_arrays(*arrays)
    return tuple(a._tracer.copy(a) for a in made) if copy else tuple(made)


def _at_least(ndim: int) -> Callable[..., Any]:
    def at_least(*arys: Any) -> Any:
        made = [a if a.ndim >= ndim else views.reshape(a, _SHAPES[ndim](a.shape)) for a in _lifted(arys)]
        return made[0] if len(made) == 1 else tuple(made)

    return at_least


_SHAPES: dict[int, Callable[[tuple[int, ...]], tuple[int, ...]]] = {  # of what has fewer axes
    1: lambda shape: (1,),
    2: lambda shape: (1, *shape) if shape else (1, 1),
    3: lambda shape: (*shape, 1) if len(shape) == 2 else (1, *(shape or (1,)), 1),
}


def filled(value: float) -> Callable[..., Any]:
    """zeros_like (0) and ones_like (1)."""
    return lambda x, dtype=None: views.full_like(x, value, dtype)


_FUNCTIONS: dict[str, Any] = {
    **p.REDUCTIONS,
    **{name: _reduction(name) for name in ("max", "min", "amax", "amin", "any", "all")},
    **{name: with_dtype(name, _reduction(name)) for name in ("sum", "prod")},
    "mean": with_dtype("mean", p.REDUCTIONS["mean"]),
    **COMPOSITES,
    **{name: getattr(views, name) for name in ("transpose", "matrix_transpose", "swapaxes", "moveaxis")},
    **{name: getattr(views, name) for name in ("expand_dims", "broadcast_to", "flip", "astype")},
    "reshape": _reshape,
    "ravel": _ravel,
    "broadcast_arrays": _broadcast_arrays,
    "meshgrid": _meshgrid,
    **{f"atleast_{n}d": _at_least(n) for n in (1, 2, 3)},
    "real": lambda val: val,
    "imag": lambda val: views.full_like(val, 0),
    "squeeze": _squeeze,
    "fliplr": lambda x: views.flip(x, 1),
    "flipud": lambda x: views.flip(x, 0),
    "copy": lambda x: x._tracer.copy(x),
    **numpy_joins.FUNCTIONS,
    "full_like": views.full_like,
    "zeros_like": filled(0),
    "ones_like": filled(1),
    "empty_like": filled(0),
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
# Whose results share the memory of their arguments, where elements need not move; all others copy.
VIEWS = frozenset(
    (
        *("transpose", "permute_dims", "matrix_transpose", "swapaxes", "moveaxis", "reshape", "ravel", "squeeze"),
        *("expand_dims", "broadcast_to", "broadcast_arrays", "atleast_1d", "atleast_2d", "atleast_3d", "meshgrid"),
        *("flip", "fliplr", "flipud", "real", "split", "array_split", "hsplit", "vsplit", "dsplit", "unstack"),
    )
)
# By NumPy's own functions; older versions lack some.
_TARGETS = {
    getattr(module, name.rpartition(".")[2]): target
    for name, target in _FUNCTIONS.items()
    if hasattr(module := np.linalg if name.startswith("linalg.") else np, name.rpartition(".")[2])
}


# Functions that write to their first argument and return nothing.
_WRITING = (np.put, np.place, np.putmask, np.fill_diagonal, np.put_along_axis)


def array_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `function(*args, **kwargs)` is on traced values: nodes, or one that NumPy computes.

    Raises:
        TraceError: what it gives depends on data, or an argument would not be honoured.
    """
    name = f"{function.__module__}.{function.__name__}"
    if function in _OF_DTYPES:
        return function(*(getattr(v, "dtype", v) for v in args), **kwargs)
    return library_checks.compared(name, function, args, kwargs, lambda: _made(function, name, args, kwargs))


def _made(function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if any(map(dtype_names.is_complex, leaves((args, kwargs)))):
        return _of_stored(function, name, args, kwargs)
    if function is np.nan_to_num and args and kwargs.get("copy") is False:
        return args[0]._write("nan_to_num", array_function(function, args, kwargs | {"copy": True}))
    if function in _WRITING and isinstance(args[0] if args else None, Traced):
        return numpy_calls.numpy_writes(function, name, args, kwargs, args[:1])
    out, given = _without_out(function, args, kwargs)
    if out is not None:
        return _into(out, function, name, args, kwargs, given)
    try:
        return _in_graph(function, args, kwargs)
    except NotTraced as error:
        try:
            return numpy_calls.numpy_call(function, name, args, kwargs)
        except NotTraced:
            raise error from None
    except TraceError:
        raise
    except (ValueError, IndexError, TypeError) as error:  # shapes and dtypes that kernels do not take
        try:
            return numpy_calls.numpy_call(function, name, args, kwargs)
        except Exception as other:
            raise other if isinstance(other, TraceError) and not isinstance(other, NotTraced) else error from None


def _without_out(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The argument out, and the others; one that is None counts as none. Positions are known of Python's functions."""
    if args and function in _TARGETS:
        bound = _signature(function, _TARGETS[function]).bind(*args, **kwargs)
        out = bound.arguments.pop("out", None)
        return out, (bound.args, bound.kwargs)
    return kwargs.get("out"), (args, {k: v for k, v in kwargs.items() if k != "out"})


def _into(out: Any, function: Any, name: str, args: Any, kwargs: Any, given: Any) -> Any:
    """out=: kernels write a result of its dtype and shape there, NumPy any other that it takes."""
    if isinstance(out, Traced):
        with contextlib.suppress(NotTraced):
            made = _in_graph(function, *given)
            if isinstance(made, Traced) and (made._dtype, made.shape) == (out._dtype, out.shape):
                return out._write("out", made)  # type: ignore[attr-defined]
    numpy_calls.numpy_writes(function, name, args, kwargs, [out])
    return out


_ASKED = ("shape", "ndim", "size", "iscomplexobj", "isrealobj")
_OF_DTYPES = (np.result_type, np.can_cast, np.min_scalar_type)
_OF_VALUES = ("copyto", "put_along_axis", "allclose")


def _of_stored(function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Does what `array_function` does, where kernels have no dtype for an array among the arguments."""
    short = name.removeprefix("numpy.")
    if short in _ASKED and not kwargs and len(args) == 1:
        return args[0].dtype.kind == "c" if short == "iscomplexobj" else _asked(short, args[0])
    is_nonzero = function is np.where and len(args) + len(kwargs) == 1
    if is_nonzero or short in _OF_VALUES or not (function in _TARGETS or numpy_calls.has_numpy(short)):
        raise refusals.refused("numpy.nonzero" if is_nonzero else name)
    return numpy_calls.numpy_result(function, name, args, kwargs)


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
    starred = next((given.pop(k) for k in ("args", "arys", "xi") if k in given), ())
    for keyword in [k for k in given if k not in _signature(target).parameters]:
        raise refusals.refused_keyword(f"numpy.{name}", keyword)
    made = target(*starred, **given)
    if name in VIEWS or name == "diff":  # which of n=0 is the array itself
        return made
    return _apart(made, [v for v in leaves((args, kwargs)) if isinstance(v, Traced)])


def _apart(made: Any, given: Sequence[Traced]) -> Any:
    """Results with memory of their own, as NumPy's are, whatever they are made of."""
    return walk(made, lambda _, v: v._tracer.copy(v) if isinstance(v, Traced) and _is_of(v, given) else v)


def _is_of(value: Traced, given: Sequence[Traced]) -> bool:
    return any(value._memory is v._memory for v in given)


@functools.cache
def _signature(function: Any, target: Any = None) -> inspect.Signature:
    """The signature of a function; of what it becomes where Python knows none (functions in C of NumPy before 2.4)."""
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
