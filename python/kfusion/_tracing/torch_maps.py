"""torch's elementwise functions that are rows of the op table, where torch and NumPy differ as torch has them."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable
from typing import Any

from .. import _core
from .._graph.number import is_integer, is_number, read
from .._graph.sizes import is_int, is_size
from .._graph.source import not_traced
from .._graph.tracer import constant
from .._graph.values import Traced, stage, tracer_of
from .._ops import primitives as p
from .._ops import views
from .._ops.gradients import taken, with_derivatives
from .._spec import FLOATS, HALF, INTEGERS, is_array
from . import promoted, ranges, refusals
from .torch_functions import FUNCTIONS, dtype_of, is_float, named, require_dtypes, require_no_axes
from .traced import BINARY, power

_SIGNATURES = {row["name"]: row["signature"] for row in _core.op_table() if row["kind"] == "map"}


def _unary(op: str) -> Callable[..., Any]:
    def unary(input: Any) -> Any:
        require_dtypes(op, input)
        return input._tracer.map(op, input)

    return unary


def _binary(op: str) -> Callable[..., Any]:
    return lambda input, other: _map(op, input, other)


def _reflected(op: str) -> Callable[..., Any]:
    return lambda input, other: FUNCTIONS[op](other, input)


def _map(op: str, x: Any, y: Any) -> Any:
    """A row of the op table. Python's integers become tensors of the other's dtype, in which they wrap."""
    require_dtypes(op, x, y)
    x, y = _known(x, y), _known(y, x)
    x, y = wrapped(op, x, y), wrapped(op, y, x)
    x, y = _cast(op, x, y), _as_divisor(y, x) if op in _AS_IT_IS else _cast(op, y, x)
    is_integer_tensor = isinstance(y, Traced) and y.ndim == 0 and y._dtype in INTEGERS and dtype_of(x) == "float16"
    if op in ("multiply", "divide") and (is_integer_tensor or _is_out_of_range(x, y) or _is_out_of_range(y, x)):
        return _in_float32(op, x, y)
    return tracer_of(x, y).map(op, x, y)  # type: ignore[union-attr]


_AS_IT_IS = ("multiply", "divide", "floor_divide")  # which take a second tensor without axes so


def _cast(op: str, value: Any, other: Any) -> Any:
    """A number or a float tensor without axes in the half type of what it meets, to which torch casts it."""
    if not isinstance(other, Traced) or other._dtype not in HALF:
        return value
    value = other._tracer.lift(value, "torch") if is_array(value) else value
    if not isinstance(value, Traced):
        is_rounded = op == "remainder" or (op in _ROUNDING and not is_cuda(other))
        return _as_half(value, other) if is_rounded else value
    is_cast = value.ndim == 0 and value._dtype in FLOATS and value._dtype != other._dtype and other.ndim > 0
    return _as_half(value, other) if is_cast else value


_ROUNDING = ("add", "subtract", "floor_divide")  # which on the CPU have Python's numbers in the half type


def _as_half(value: Any, other: Any) -> Any:
    """Rounded within a stage, too."""
    return other._tracer.add("cast", other._tracer.lift(value, "torch"), other._dtype, True)


def is_cuda(value: Any) -> bool:
    return bool(getattr(value, "is_cuda", False))


def _as_divisor(value: Any, other: Any) -> Any:
    """A tensor without axes by which torch divides half types as it is."""
    is_half = isinstance(other, Traced) and other.ndim > 0 and other._dtype in HALF
    is_other = isinstance(value, Traced) and value.ndim == 0 and value._dtype != dtype_of(other)
    return views.astype(value, "float32") if is_half and is_other else value


def _known(value: Any, other: Any) -> Any:
    """An int argument by its value, unless it meets floats."""
    return read(value) if is_integer(value) and dtype_of(other) not in FLOATS else value


def wrapped(op: str, value: Any, other: Any) -> Any:
    """Python's integers in the range of those they meet. Those of 64 bits without a sign are floats else."""
    dtype, is_divided = dtype_of(other), _SIGNATURES.get(op) == "FF_F"
    if dtype == "int32" and not is_divided and is_int(value) and -(2**63) <= value < 2**64:
        return (value + 2**31) % 2**32 - 2**31
    if type(value) is not int or not 2**63 <= value < 2**64 or dtype not in (*INTEGERS, *FLOATS):
        return value
    return float(value) if is_divided or dtype in FLOATS else value - 2**64


def _is_out_of_range(value: Any, other: Any) -> bool:
    """A factor or divisor of float16 that this would make 0, infinity or inexact, known now or when it runs."""
    if is_number(value) or is_size(value):
        return dtype_of(other) == "float16"
    is_beyond = (is_int(value) or type(value) is float) and value != 0 and not 2.0**-14 <= abs(value) <= 65504
    return is_beyond and dtype_of(other) == "float16"


def _in_float32(op: str, x: Any, y: Any) -> Any:
    """Factors of half types stay what they are in torch: x / 65536 is not x / inf."""
    tracer = tracer_of(x, y)
    with tracer.stage(op):  # type: ignore[union-attr]
        wide = [views.astype(v, "float32") if isinstance(v, Traced) else v for v in (x, y)]
        return views.astype(tracer.map(op, *wide), "float16")  # type: ignore[union-attr]


for _name, _function in p.MAPS.items():
    _arity = len(inspect.signature(_function).parameters)
    if _arity < 3:
        FUNCTIONS[_name] = (_unary, _binary)[_arity - 1](_function.__name__)
del FUNCTIONS["equal"]  # torch.equal gives a Python bool
for _name, (_, _op) in BINARY.items():
    FUNCTIONS[f"__{_name}__"], FUNCTIONS[f"__r{_name}__"] = _binary(_op), _reflected(_op)
FUNCTIONS["__div__"], FUNCTIONS["__rdiv__"] = FUNCTIONS["__truediv__"], FUNCTIONS["__rtruediv__"]


@named("positive")
def _positive(input: Any) -> Any:
    if input._dtype == "bool":
        raise TypeError("kfusion.positive: torch wants numbers other than bools, got bool")
    return input


@named("add")
def _add(input: Any, other: Any, *, alpha: float = 1) -> Any:
    return _map("add", input, _scaled(input, other, alpha))


@named("sub", "subtract")
def _sub(input: Any, other: Any, *, alpha: float = 1) -> Any:
    require_dtypes("subtract", input, other)
    return _map("subtract", input, _scaled(input, other, alpha))


@named("rsub")
def _rsub(input: Any, other: Any, *, alpha: float = 1) -> Any:
    return _sub(other, input, alpha=alpha)


def _scaled(x: Any, y: Any, alpha: float) -> Any:
    """alpha * y in the dtype of x + alpha * y: of bools alpha is one, and of integers it is an integer."""
    alpha = wrapped("multiply", _known(_known(alpha, x), y), y if isinstance(y, Traced) else x)
    dtypes = {dtype_of(x), dtype_of(y)}
    if type(alpha) is bool and dtypes - {"bool"}:
        raise TypeError(f"kfusion.add: alpha must be a number for {' and '.join(sorted(dtypes))}, got {alpha}")
    if (is_int(alpha) or type(alpha) is bool) and alpha == 1:
        return y
    if isinstance(alpha, float) and not any(map(is_float, dtypes)):
        raise TypeError(f"kfusion.add: alpha must be an integer for {' and '.join(sorted(dtypes))}, got {alpha}")
    if dtypes == {"bool"}:
        return y and bool(alpha) if type(y) is bool else y * bool(alpha)
    if isinstance(x, Traced) and isinstance(y, Traced) and x._dtype != y._dtype:
        y = views.astype(y, promoted.result_type([x, y]))
    elif is_int(alpha) and is_float(dtype_of(x)):
        alpha = float(alpha)
    like = y if isinstance(y, Traced) else x
    return _cast("add", y, like) * _cast("add", alpha, like)


@named("div", "divide", "true_divide")
def _div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return _map("divide", input, other)
    if rounding_mode not in ("floor", "trunc"):
        raise ValueError(f'kfusion.div: rounding_mode must be None, "floor" or "trunc", got {rounding_mode!r}')
    require_divisor("div", input, other)
    if rounding_mode == "floor":
        return _floor_divide(input, other)
    if promoted.result_type([v for v in (input, other) if isinstance(v, Traced)]) in HALF:
        raise not_traced("torch.div of half types rounds quotients before it drops their fractions", "write x.float()")
    return FUNCTIONS["trunc_divide"](wrapped("div", input, other), _as_divisor(wrapped("div", other, input), input))


@named("floor_divide", "__floordiv__")
def _floor_divide(input: Any, other: Any) -> Any:
    require_divisor("floor_divide", input, other)
    return _map("floor_divide", input, other)


@named("remainder", "__mod__")
def _remainder(input: Any, other: Any) -> Any:
    """A result of 0 has input's sign here, other's in NumPy."""
    require_divisor("remainder", input, other)
    input, other = _cast("remainder", input, other), _cast("remainder", other, input)
    if not is_float(dtype_of(input)) and not is_float(dtype_of(other)):
        return _map("remainder", input, other)
    with tracer_of(input, other).stage("remainder"):  # type: ignore[union-attr]
        r = _map("remainder", input, other)
        if taken(r):  # whose gradient copysign has not
            return r
        return p.where(p.equal(r, 0), p.copysign(r, input), r)


def require_divisor(name: str, x: Any, y: Any) -> None:
    """torch raises an error where it divides an integer by 0. A kernel gives 0, but of a number it is known here."""
    y = _known(y, x)
    y = int(y) if type(y) is bool else y
    if is_int(y) and getattr(x, "_dtype", "") not in FLOATS and wrapped(name, y, x) == 0:
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
    input, exponent = _base_or_exponent(input, exponent), _base_or_exponent(read(exponent), input)
    # Torch's CPU code takes float16 through pow itself. A base that is a number lies nowhere, and has no other way.
    is_half = dtype_of(input) == "float16" and not is_cuda(input)
    shortcuts = {} if is_half else _POWERS
    made = power(input, exponent, shortcuts)
    if type(exponent) is not float or exponent not in (-0.5, 1.5):
        return made
    return with_derivatives(made, (input, exponent * power(input, exponent - 1, shortcuts)))  # torch's, at -inf, too


def _base_or_exponent(value: Any, other: Any) -> Any:
    """Also a number becomes one of the half type of what it meets."""
    is_half = isinstance(other, Traced) and other._dtype in HALF
    if not is_half or not (is_int(value) or isinstance(value, float)):
        return _cast("power", value, other)
    if is_number(value) or is_size(value):
        return _as_half(value, other)
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction():
        stored = torch.tensor(value, dtype=torch.float64).to(getattr(torch, other._dtype)).item()
    return value if stored == value else stored


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
    require_no_axes("masked_fill", value)
    tracer = input._tracer
    if _may_be_beyond(tracer, value, input._dtype):
        what = f"torch.masked_fill raises an error where {input._dtype} has no place for the value"
        raise not_traced(what, "write value.to(x.dtype)")
    filling = tracer.add("cast", tracer.lift(value, "torch"), input._dtype)
    return _chosen("masked_fill", tracer.lift(mask, "torch"), filling, input)


def _may_be_beyond(tracer: Any, value: Any, dtype: str) -> bool:
    """Whether a dtype may have no place for a tensor's element. Of a tensor that every call makes anew it is known."""
    if not (isinstance(value, Traced) or is_array(value)) or ranges.holds(dtype, dtype_of(value)):
        return False
    is_sized = tracer.recorded is not None and tracer.recorded.is_made_of_sizes(value)
    if isinstance(value, Traced) or is_sized or not tracer.is_made(value) or tracer.stand_in(value) is not None:
        return True
    return not ranges.fits(value.item(), dtype)


def _chosen(name: str, condition: Any, x: Any, y: Any) -> Any:
    if dtype_of(condition) != "bool":
        raise TypeError(f"kfusion.{name}: the condition must be bools, got {dtype_of(condition)}")
    return tracer_of(condition, x, y).map("where", condition, x, y)  # type: ignore[union-attr]


@named("clamp", "clip")
def _clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    if (min is None) != (max is None):
        min, max = _without_nan(min, -math.inf), _without_nan(max, math.inf)
    if taken(input) and input._dtype in FLOATS and (min is None) != (max is None):
        return _bounded(input, min, max)
    return p.clip(input, min, max)


def _without_nan(bound: Any, instead: float) -> Any:
    """A bound alone; some versions of torch (2.11) take no notice of NaN there."""
    may_be = is_number(bound) or (type(bound) is float and bound != bound)
    return instead if may_be and _ignores_nan() and bound != bound else bound


@functools.cache
def _ignores_nan() -> bool:
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    with torch._C.DisableTorchFunction():
        return not bool(torch.zeros(1).clamp(max=math.nan).isnan())


def _bounded(x: Any, low: Any, high: Any) -> Any:
    """Clamps to one bound: at the bound the gradient is x's, and nobody's where either is NaN."""
    bound = low if high is None else high
    beyond, inside = (p.less, p.greater_equal) if high is None else (p.greater, p.less_equal)
    return p.where(beyond(x, bound), bound, p.where(inside(x, bound), x, constant(p.clip(x, low, high))))


@named("clamp_min")
def _clamp_min(input: Any, min: Any) -> Any:
    return _clamp(input, min, None)


@named("clamp_max")
def _clamp_max(input: Any, max: Any) -> Any:
    return _clamp(input, None, max)
