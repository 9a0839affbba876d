"""torch's functions and methods on traced values, by name, each with torch's own parameters and meaning.

`torch.sum(x, 1)`, `x.sum(1)` and, from `torch.nn.functional`, `F.softmax(x, 1)` all arrive here by the function's name.
This file has the mechanism, elementwise functions, reductions and products; views are in torch_views.py and the
functions of neural networks in torch_nn.py. Parameters without a meaning in a graph (memory_format, cudnn_enable) are
accepted; one that changes the result and is not honoured is refused.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .. import _core
from .._graph.number import is_integer, is_number, read
from .._graph.sizes import is_int
from .._graph.source import NoForm, TraceError, no_form, trace_error
from .._graph.values import Traced, stage, tracer_of
from .._ops import activations, contractions, extremes, norms, views
from .._ops import primitives as p
from .._ops.gradients import taken
from .._spec import FLOATS
from . import autocast, library_calls, library_trials, refusals, writing
from .traced import BINARY, power

_RENAMED = {"axis": "dim", "keepdims": "keepdim", "x": "input"}
_SEVERAL = {"dims", "shape", "size"}  # extents or axes, given one by one or as one tuple

# The functions that take 0 and -1 for an axis of a tensor that has none.
_OF_NO_AXES = (
    *("sum", "mean", "prod", "any", "all", "amax", "amin", "max", "min", "argmax", "argmin", "var", "std"),
    *("logsumexp", "softmax", "log_softmax", "norm", "vector_norm", "squeeze"),
    *("nansum", "nanmean", "count_nonzero", "var_mean", "std_mean"),
)

_VIEWS = ("t", "transpose", "swapaxes", "swapdims", "squeeze", "unsqueeze")  # whose in-place forms write no elements

FUNCTIONS: dict[str, Callable[..., Any]] = {}
NO_METHODS: set[str] = set()  # names of FUNCTIONS that tensors do not have as methods


def named(*names: str, method: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function under torch's names for it."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS.update(dict.fromkeys(names, function))
        NO_METHODS.update(() if method else names)
        return function

    return enter


def torch_function(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], function: Callable[..., Any] | None = None
) -> Any:
    """What torch's function of that name is on traced values; a method that differs from it is "Tensor.where".

    What has no form in a graph is a node that `function` computes, by default the method of that name.

    Raises:
        TraceError: what it gives depends on data.
    """
    short = name.removeprefix("Tensor.")
    if short.endswith("_") and not short.endswith("__"):
        return _in_place(short, args, kwargs, function)
    if kwargs.get("inplace") is True:
        return args[0]._write(short, torch_function(name, args, kwargs | {"inplace": False}, function))
    function = function or getattr(getattr(sys.modules.get("torch"), "Tensor", None), short, None)
    if isinstance(out := kwargs.get("out"), Traced):
        made = torch_function(name, args, {k: v for k, v in kwargs.items() if k != "out"}, function)
        if isinstance(made, Traced) and made.shape == out.shape:
            return out._write("out", made)  # type: ignore[attr-defined]
    try:
        return library_calls.with_form(function, f"torch.{short}", args, kwargs, lambda: _in_graph(name, args, kwargs))
    except NoForm:
        if function is None:
            raise
    except TraceError:
        raise
    except (ValueError, IndexError, TypeError) as error:
        return _unless_torch_refuses(error, function, f"torch.{short}", args, kwargs)
    return library_calls.torch_call(function, f"torch.{short}", args, kwargs)


def _unless_torch_refuses(error: Exception, function: Any, name: str, args: Any, kwargs: Any) -> Any:
    """A call of the library, for shapes and dtypes that torch takes and kernels do not. Where torch takes them neither,
    or is not imported, the first error says more.
    """
    if function is not None:
        with contextlib.suppress(Exception):
            return library_calls.torch_call(function, name, args, kwargs, is_tried=True)
    raise error from None


def _in_place(short: str, args: tuple[Any, ...], kwargs: dict[str, Any], function: Any) -> Any:
    """x.add_(y): x itself changes. As a function's, x can be a keyword."""
    name = short[:-1]
    if name in _VIEWS and args and isinstance(args[0], Traced):
        return writing.become(args[0], torch_function(f"Tensor.{name}", args, kwargs), short)
    if (name in FUNCTIONS or f"Tensor.{name}" in FUNCTIONS) and args and isinstance(args[0], Traced):
        return args[0]._write(short, torch_function(f"Tensor.{name}", args, kwargs))  # type: ignore[attr-defined]
    function = function or getattr(sys.modules["torch"].Tensor, short)
    return library_calls.torch_call(function, f"torch.{short}", args, kwargs)


def _in_graph(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    short = name.removeprefix("Tensor.").removeprefix("special_").removeprefix("linalg_")
    function = FUNCTIONS.get(name) or FUNCTIONS.get(short)
    if function is None:
        raise refusals.refused(f"torch.{short}")
    given = {_RENAMED.get(k, k): v for k, v in kwargs.items() if not _says_nothing(k, v, args)}
    args += tuple(given.pop(k) for k in _SEVERAL & given.keys() - _keywords(function))
    bound = _bound(function, f"torch.{short}", args, given)
    traced = next((v for v in (*bound.args, *bound.kwargs.values()) if isinstance(v, Traced)), None)
    bound.arguments.update(autocast.cast(short, bound.arguments))
    if traced is None or "input" not in bound.arguments:
        return function(*bound.args, **bound.kwargs)
    x = traced._tracer.lift(bound.arguments["input"], "torch", f"torch.{short}: input")
    bound.arguments["input"] = x
    if bound.arguments.get("dtype") is None:  # else it is in that one that it computes
        _require_dtypes(short, x)
    if x.ndim > 0 or short not in _OF_NO_AXES or not _names_axes(bound.arguments.get("dim")):
        return function(*bound.args, **bound.kwargs)
    bound.arguments["input"] = views.reshape(x, (1,))
    return _without_axes(function(*bound.args, **bound.kwargs))


def _says_nothing(keyword: str, value: Any, args: tuple[Any, ...]) -> bool:
    """Whether a keyword asks for what is so anyway: no gradients, and the device of what is given."""
    if keyword == "device" and args and isinstance(args[0], Traced):
        return library_trials.lies_on(args[0], value)
    return keyword in ("inplace", "requires_grad", "pin_memory") and value is False


@functools.cache
def _keywords(function: Any) -> frozenset[str]:
    """Parameters that a call may name."""
    parameters = _signature(function).parameters.values()
    return frozenset(p.name for p in parameters if p.kind is not p.VAR_POSITIONAL)


def _names_axes(dim: Any) -> bool:
    return bool(dim) if isinstance(dim, (tuple, list)) else isinstance(dim, int) and not isinstance(dim, bool)


def _without_axes(result: Any) -> Any:
    """A result of one element, or torch's pair with one, as it is of a value without axes."""
    if type(result) is tuple:
        return tuple(map(_without_axes, result))
    if isinstance(result, ValuesAndIndices):
        later = _Later(lambda: _without_axes(result.indices))
        return type(result)((_without_axes(result.values), later))
    return views.reshape(result, ())


def _bound(function: Any, name: str, args: Any, given: dict[str, Any]) -> inspect.BoundArguments:
    signature = _signature(function)
    for keyword in [k for k in given if k not in signature.parameters]:
        if given.pop(keyword) is not None:  # out=None, dtype=None
            raise refusals.refused_keyword(name, keyword)
    try:
        return signature.bind(*args, **given)
    except TypeError as error:
        raise trace_error(f"{name}: {error}") from None


@functools.cache
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)


# ---- elementwise ----


def _unary(op: str) -> Callable[..., Any]:
    def unary(input: Any) -> Any:
        _require_dtypes(op, input)
        return input._tracer.map(op, input)

    return unary


def _binary(op: str) -> Callable[..., Any]:
    return lambda input, other: _map(op, input, other)


def _reflected(op: str) -> Callable[..., Any]:
    return lambda input, other: FUNCTIONS[op](other, input)


_SIGNATURES = {row["name"]: row["signature"] for row in _core.op_table() if row["kind"] == "map"}
_NEVER_BOOLS = ("subtract", "absolute", "floor", "ceil", "rint", "trunc", "relu6", "argmax", "argmin")
_FLOATS_ONLY = (
    *("hypot", "logaddexp", "gelu", "silu", "softplus", "leaky_relu", "elu", "softmax", "softmin", "log_softmax"),
    *("layer_norm", "rms_norm", "batch_norm", "normalize", "norm", "vector_norm", "linalg_norm"),
    *("cross_entropy", "mse_loss"),
)


def _map(op: str, x: Any, y: Any) -> Any:
    """A row of the op table. Python's integers become tensors of the other's dtype, in which they wrap."""
    _require_dtypes(op, x, y)
    x, y = _known(x, y), _known(y, x)
    if _SIGNATURES[op] != "FF_F":
        x, y = _wrapped(x, y), _wrapped(y, x)
    if op in ("multiply", "divide") and (_is_out_of_range(x, y) or _is_out_of_range(y, x)):
        return _in_float32(op, x, y)
    return tracer_of(x, y).map(op, x, y)  # type: ignore[union-attr]


def _known(value: Any, other: Any) -> Any:
    """An int argument by its value, unless it meets floats."""
    return read(value) if is_integer(value) and dtype_of(other) not in FLOATS else value


def _wrapped(value: Any, other: Any) -> Any:
    if not is_int(value) or getattr(other, "_dtype", "") != "int32" or not -(2**63) <= value < 2**64:
        return value
    return (value + 2**31) % 2**32 - 2**31


def _is_out_of_range(value: Any, other: Any) -> bool:
    """A factor or divisor of float16 that this would make 0, infinity or inexact, known now or when it runs."""
    if is_number(value):
        return dtype_of(other) == "float16"
    is_beyond = (is_int(value) or type(value) is float) and value != 0 and not 2.0**-14 <= abs(value) <= 65504
    return is_beyond and dtype_of(other) == "float16"


def _in_float32(op: str, x: Any, y: Any) -> Any:
    """Factors of half types stay what they are in torch: x / 65536 is not x / inf."""
    tracer = tracer_of(x, y)
    with tracer.stage(op):  # type: ignore[union-attr]
        wide = [views.astype(v, "float32") if isinstance(v, Traced) else v for v in (x, y)]
        return views.astype(tracer.map(op, *wide), "float16")  # type: ignore[union-attr]


def _require_dtypes(op: str, *operands: Any) -> None:
    """Raises a TypeError where torch has no such function of such dtypes, and NumPy has."""
    if op not in _NEVER_BOOLS and op not in _FLOATS_ONLY:
        return
    dtypes = [dtype_of(x) for x in operands]
    if op in _NEVER_BOOLS and "bool" in dtypes:
        raise TypeError(f"kfusion.{op}: torch wants numbers other than bools, got {', '.join(dtypes)}")
    if op in _FLOATS_ONLY and not any(map(_is_float, dtypes)):
        raise TypeError(f"kfusion.{op}: torch wants floats, got {', '.join(dtypes)}")


def _is_float(dtype: str) -> bool:
    return dtype in FLOATS or dtype == "float"


def dtype_of(x: Any) -> str:
    """ "float32" and its likes; of Python's numbers the name of their type."""
    return x._dtype if isinstance(x, Traced) else str(getattr(x, "dtype", x.__class__.__name__)).removeprefix("torch.")


for _name, _function in p.MAPS.items():
    _arity = len(inspect.signature(_function).parameters)
    if _arity < 3:
        FUNCTIONS[_name] = (_unary, _binary)[_arity - 1](_function.__name__)
del FUNCTIONS["equal"]  # torch.equal gives a Python bool
for _name, (_, _op) in BINARY.items():
    FUNCTIONS[f"__{_name}__"], FUNCTIONS[f"__r{_name}__"] = _binary(_op), _reflected(_op)
FUNCTIONS["__div__"], FUNCTIONS["__rdiv__"] = FUNCTIONS["__truediv__"], FUNCTIONS["__rtruediv__"]


@named("add")
def _add(input: Any, other: Any, *, alpha: float = 1) -> Any:
    return _map("add", input, _scaled(input, other, alpha))


@named("sub", "subtract")
def _sub(input: Any, other: Any, *, alpha: float = 1) -> Any:
    return _map("subtract", input, _scaled(input, other, alpha))


@named("rsub")
def _rsub(input: Any, other: Any, *, alpha: float = 1) -> Any:
    return _map("subtract", other, _scaled(other, input, alpha))


def _scaled(x: Any, y: Any, alpha: float) -> Any:
    """alpha * y, for x + alpha * y: of bools alpha is one, and of integers it is an integer."""
    alpha = _known(_known(alpha, x), y)
    if (is_int(alpha) or type(alpha) is bool) and alpha == 1:
        return y
    dtypes = {dtype_of(x), dtype_of(y)}
    if isinstance(alpha, float) and not any(map(_is_float, dtypes)):
        raise TypeError(f"kfusion.add: alpha must be an integer for {' and '.join(sorted(dtypes))}, got {alpha}")
    return y * (bool(alpha) if dtypes == {"bool"} else alpha)


@named("div", "divide", "true_divide")
def _div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return _map("divide", input, other)
    if rounding_mode not in ("floor", "trunc"):
        raise ValueError(f'kfusion.div: rounding_mode must be None, "floor" or "trunc", got {rounding_mode!r}')
    require_divisor("div", input, other)
    return _floor_divide(input, other) if rounding_mode == "floor" else FUNCTIONS["trunc_divide"](input, other)


@named("floor_divide", "__floordiv__")
def _floor_divide(input: Any, other: Any) -> Any:
    require_divisor("floor_divide", input, other)
    return _map("floor_divide", input, other)


@named("remainder", "__mod__")
def _remainder(input: Any, other: Any) -> Any:
    """A result of 0 has input's sign here, other's in NumPy."""
    require_divisor("remainder", input, other)
    if not _is_float(dtype_of(input)) and not _is_float(dtype_of(other)):
        return _map("remainder", input, other)
    with tracer_of(input, other).stage("remainder"):  # type: ignore[union-attr]
        r = _map("remainder", input, other)
        if taken(r):  # whose gradient copysign has not
            return r
        return p.where(p.equal(r, 0), p.copysign(r, input), r)


def require_divisor(name: str, x: Any, y: Any) -> None:
    """torch raises an error where it divides an integer by 0. A kernel gives 0, but of a number it is known here."""
    y = _known(y, x)
    if is_int(y) and getattr(x, "_dtype", "") not in FLOATS and _wrapped(y, x) == 0:
        raise ZeroDivisionError(f"kfusion.{name}: integer division by zero")


@named("sign", "sgn")
def _sign(input: Any) -> Any:
    """0 for NaN, which is NaN in NumPy."""
    if input._dtype not in FLOATS:
        return input._tracer.map("sign", input)
    with stage(input, "sign"):
        return p.where(p.isnan(input), 0.0, p.sign(input))


_POWERS = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}


@named("pow", "power", "__pow__")
def _pow(input: Any, exponent: Any) -> Any:
    is_half = dtype_of(input) == "float16" and not input.is_cuda  # which torch's CPU code takes through pow itself
    return power(input, exponent, {} if is_half else _POWERS)


@named("where")
def _where(condition: Any, input: Any = None, other: Any = None) -> Any:
    if input is None or other is None:
        raise refusals.refused("torch.nonzero")
    return _chosen("where", condition, input, other)


@named("Tensor.where")
def _where_method(input: Any, condition: Any, other: Any) -> Any:
    return _chosen("where", condition, input, other)


@named("masked_fill")
def _masked_fill(input: Any, mask: Any, value: Any) -> Any:
    """The dtype stays: value is converted to it."""
    tracer = input._tracer
    filling = tracer.add("cast", tracer.lift(value, "torch"), input._dtype)
    return _chosen("masked_fill", tracer.lift(mask, "torch"), filling, input)


def _chosen(name: str, condition: Any, x: Any, y: Any) -> Any:
    if dtype_of(condition) != "bool":
        raise TypeError(f"kfusion.{name}: the condition must be bools, got {dtype_of(condition)}")
    return tracer_of(condition, x, y).map("where", condition, x, y)  # type: ignore[union-attr]


@named("clamp", "clip")
def _clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    if taken(input) and input._dtype in FLOATS and (min is None) != (max is None):
        return _bounded(input, min, max)
    return p.clip(input, min, max)


def _bounded(x: Any, low: Any, high: Any) -> Any:
    """With one bound: at the bound the gradient is x's. A bound of NaN gives NaN."""
    bound = low if high is None else high
    beyond = p.less(x, bound) if high is None else p.greater(x, bound)
    if isinstance(bound, Traced):
        beyond = p.logical_or(beyond, p.isnan(bound))
    return p.clip(x, low, high) if isinstance(bound, float) and math.isnan(bound) else p.where(beyond, bound, x)


@named("clamp_min")
def _clamp_min(input: Any, min: Any) -> Any:
    return _clamp(input, min, None)


@named("clamp_max")
def _clamp_max(input: Any, max: Any) -> Any:
    return _clamp(input, None, max)


# ---- reductions ----


def plain_axes(dim: Any) -> Any:
    """None for no axes at all, of which torch's reductions take all."""
    return None if dim is None or (isinstance(dim, (tuple, list)) and not dim) else dim


def _reduction(op: str) -> Callable[..., Any]:
    def reduction(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        if dtype is None:
            return p.REDUCTIONS[op](input, plain_axes(dim), keepdim)
        made = p.REDUCTIONS[op](views.astype(input, dtype), plain_axes(dim), keepdim)
        return views.astype(made, dtype)  # of integers, which wrap, and bools

    return reduction


def _largest(op: str) -> Callable[..., Any]:
    return lambda input, dim=None, keepdim=False: p.REDUCTIONS[op](input, plain_axes(dim), keepdim)


def _truth(op: str) -> Callable[..., Any]:
    def truth(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is not None and plain_axes(dim) is None:  # no axis, where sum and its likes take all
            return views.astype(input, "bool")
        return p.REDUCTIONS[op](input, dim, keepdim)

    return truth


for _name in ("sum", "mean", "prod"):
    FUNCTIONS[_name] = _reduction(_name)
for _name in ("any", "all"):
    FUNCTIONS[_name] = _truth(_name)
for _name in ("amax", "amin"):
    FUNCTIONS[_name] = _largest(_name)


class _Later:
    """A value that is computed when it is first asked for."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.value = functools.cache(compute)


class Pair(tuple[Any, Any]):
    """Two results of a function that has a class for them, `torch.return_types.NAME`."""

    __slots__ = ()
    name = ""

    @property
    def __kfusion_stands_for__(self) -> Any:
        """The class of a pair of results outside the traced function."""
        return getattr(getattr(sys.modules.get("torch"), "return_types", None), self.name, tuple)


class ValuesAndIndices(Pair):
    """What torch's max and min along an axis return; the indices are computed where somebody asks for them."""

    __slots__ = ()
    values = property(operator.itemgetter(0))
    indices = property(operator.itemgetter(1))

    def __getitem__(self, i: Any) -> Any:
        item = tuple(self)[i] if isinstance(i, slice) else super().__getitem__(i)
        return item.value() if isinstance(item, _Later) else item

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(2))


class _Max(ValuesAndIndices):
    __slots__ = ()
    name = "max"


class _Min(ValuesAndIndices):
    __slots__ = ()
    name = "min"


_ABSENT: Any = object()


def _extreme_along(op: str, x: Any, dim: int, kept: bool) -> Any:
    """Gradients go to the element that the indices name, not to all that are equal."""
    if not taken(x) or x._dtype not in FLOATS or x.ndim == 0:
        return p.REDUCTIONS[op](x, dim, kept)
    found = contractions.take_along_axis(x, FUNCTIONS[f"arg{op}"](x, dim, True), dim)
    return found if kept else views.squeeze(found, dim)


def _extreme(op: str, elementwise: str, pair: type[ValuesAndIndices]) -> Callable[..., Any]:
    def extreme(input: Any, dim: Any = _ABSENT, keepdim: Any = _ABSENT, *, other: Any = _ABSENT) -> Any:
        if dim is _ABSENT and keepdim is _ABSENT:
            return p.REDUCTIONS[op](input) if other is _ABSENT else _map(elementwise, input, other)
        if isinstance(dim, int):
            kept = False if keepdim is _ABSENT else keepdim
            indices = _Later(lambda: FUNCTIONS[f"arg{op}"](input, dim, kept))
            return pair((_extreme_along(op, input, dim, kept), indices))
        if dim is _ABSENT or dim is None or keepdim is not _ABSENT:
            raise trace_error(
                f"torch.{op} takes keepdim= beside a dim only", f"write torch.a{op}(x, keepdim=...) instead"
            )
        return _map(elementwise, input, dim)

    return extreme


FUNCTIONS["max"], FUNCTIONS["min"] = _extreme("max", "maximum", _Max), _extreme("min", "minimum", _Min)


def _position(op: str) -> Callable[..., Any]:
    function = getattr(extremes, f"arg{op}")
    return lambda input, dim=None, keepdim=False: function(input, dim, keepdim)


FUNCTIONS["argmax"], FUNCTIONS["argmin"] = _position("max"), _position("min")


def _spread(function: Callable[..., Any]) -> Callable[..., Any]:
    def spread(
        input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
    ) -> Any:
        if isinstance(dim, bool):  # x.var(False)
            dim, unbiased = None, dim
        given = correction if correction is not None else unbiased
        return function(input, plain_axes(dim), correction=1 if given is None else given, keepdims=keepdim)

    return spread


FUNCTIONS["var"], FUNCTIONS["std"] = _spread(norms.var), _spread(norms.std)


@named("logsumexp")
def _logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Any:
    if plain_axes(dim) is None:
        raise ValueError("kfusion.logsumexp: dim must name an axis")
    x = views.astype(input, "float32") if input._dtype == "bool" else input
    return activations.logsumexp(x, dim, keepdim)


@named("linalg_norm")
def _linalg_norm(input: Any, ord: Any = None, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is not None and plain_axes(dim) is None:
        raise ValueError("kfusion.linalg.norm: dim must name an axis")
    vectors = input.ndim == 1 if dim is None else isinstance(dim, int)
    if ord is not None and not vectors:
        raise no_form("torch.linalg.norm of matrices with ord= is not traced", "write linalg.vector_norm instead")
    return _length(input, 2 if ord is None else ord, plain_axes(dim), keepdim)


@named("norm", "vector_norm")
def _norm(input: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, p: Any = None) -> Any:
    ord = p if ord is None else ord
    if isinstance(ord, str) and ord != "fro":
        raise no_form(f"torch.norm with p={ord!r} is not traced", "write torch.linalg.svdvals(x).sum(-1) instead")
    return _length(input, 2 if ord in (None, "fro") else ord, plain_axes(dim), keepdim)


def _length(x: Any, ord: Any, axis: Any, keepdim: bool) -> Any:
    """torch takes the absolute value, whose powers do not overflow, of vectors with one element."""
    axes = range(x.ndim) if axis is None else views.axes_tuple(x, axis, "norm")
    is_one = math.prod(x.shape[a] for a in axes) == 1
    return norms.norm(x, math.inf if is_one and ord != 0 else ord, axis, keepdim)


# ---- products and questions ----


def _product(name: str, *ndims: int) -> Callable[..., Any]:
    def product(input: Any, other: Any) -> Any:
        given = (input.ndim, other.ndim)
        if given != ndims:
            raise ValueError(f"kfusion.{name}: arguments must have {ndims[0]} and {ndims[1]} axes, got {given}")
        return contractions.matmul(input, other)

    return product


FUNCTIONS["matmul"] = lambda input, other: contractions.matmul(input, other)
for _name, _ndims in {"mm": (2, 2), "bmm": (3, 3), "mv": (2, 1), "dot": (1, 1)}.items():
    FUNCTIONS[_name] = _product(_name, *_ndims)


@named("addmm")
def _addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    product = contractions.matmul(mat1, mat2)
    return _add(product if alpha == 1 else product * alpha, input, alpha=beta)


@named("dim", "ndimension")
def _dim(input: Any) -> int:
    return int(input.ndim)


@named("numel", "nelement")
def _numel(input: Any) -> int:
    return math.prod(input.shape)


@named("is_floating_point")
def _is_floating_point(input: Any) -> bool:
    return input._dtype in FLOATS


@named("is_complex")
def _is_complex(input: Any) -> bool:
    return False
