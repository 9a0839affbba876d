"""torch's elementwise functions that are no row of the op table: small formulas of one stage."""

from __future__ import annotations

import math
from typing import Any

from .._graph.source import not_traced
from .._graph.values import stage
from .._ops import formulas, views
from .._ops import primitives as p
from .._ops.erfc import erfc, ndtr
from .._ops.gradients import taken, with_derivatives
from .._spec import FLOATS, HALF
from .torch_functions import FUNCTIONS, dtype_of, named
from .torch_maps import require_divisor, wrapped
from .torch_stages import Tensor, computed

# ---- sums of products ----


@computed("lerp", same=True, method=True)
def _lerp(input: Tensor, end: Tensor, weight: Tensor | float) -> Any:
    d = end - input
    y = p.where(p.absolute(weight) < 0.5, input + d * weight, end - d * (1.0 - weight))
    return with_derivatives(y, (input, 1.0 - weight), (end, weight), (weight, d))


@computed("addcmul", takes="numbers", method=True)
def _addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Any:
    return input + _times(tensor1, value) * tensor2


@computed("addcdiv", method=True)
def _addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Any:
    x, y = _times(tensor1, value), tensor2
    if not taken(input):
        return input + x / y
    return with_derivatives(input + x / y, (input, 1.0), (tensor1, _times(1.0 / y, value)), (y, -x / (y * y)))


def _times(x: Any, value: Any) -> Any:
    if type(value) is float and x._dtype not in FLOATS:
        raise TypeError(f"kfusion.addcmul: value must be an integer for {x._dtype}, got {value}")
    return x if type(value) is int and value == 1 else x * value


# ---- quotients ----


@computed("fmod", takes="numbers", method=True)
def _computed_fmod(input: Tensor, other: Tensor) -> Any:
    return formulas.fmod(input, other)


@named("fmod")
def _fmod(input: Any, other: Any) -> Any:
    require_divisor("fmod", input, other)
    return _computed_fmod(input, wrapped("fmod", other, input))


@computed("trunc_divide", takes="numbers")
def _trunc_divide(input: Tensor, other: Tensor | float) -> Any:
    return formulas.trunc_divide(input, other)


# ---- parts of a number, and questions ----


@named("signbit")
def _signbit(input: Any) -> Any:
    with stage(input, "signbit"):
        return formulas.signbit(input) if input._dtype != "bool" else p.not_equal(input, input)


@computed("frac", method=True)
def _frac(input: Tensor) -> Any:
    return input - p.trunc(input)


@computed("round", takes="numbers", method=True)
def _round(input: Tensor, *, decimals: int = 0) -> Any:
    if decimals and input._dtype not in FLOATS:
        raise TypeError(f"kfusion.round: torch wants floats where decimals is not 0, got {input._dtype}")
    return formulas.rounded(input, decimals)


@computed("heaviside", takes="anything", same=True, method=True)
def _heaviside(input: Tensor, values: Tensor) -> Any:
    return formulas.heaviside(input, values)


@named("nan_to_num")
def _nan_to_num(input: Any, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    with stage(input, "nan_to_num"):
        return formulas.nan_to_num(input, nan, posinf, neginf)


named("isposinf")(lambda input: formulas.isposinf(input))
named("isneginf")(lambda input: formulas.isneginf(input))


@named("isreal")
def _isreal(input: Any) -> Any:
    return p.equal(0, views.full_like(input, 0))


@computed("isclose", takes="made floats", same=True)
def _computed_isclose(input: Tensor, other: Tensor, rtol: float, atol: float, equal_nan: bool) -> Any:
    is_finite = p.isfinite(input) | (input == other) | (p.isnan(input) & equal_nan)  # an infinite tolerance is no match
    return formulas.isclose(input, other, rtol, atol, equal_nan) & is_finite


@named("isclose")
def _isclose(input: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    if not (rtol >= 0 and atol >= 0):
        raise ValueError(f"kfusion.isclose: rtol and atol must be at least 0, got {rtol} and {atol}")
    if dtype_of(input) in HALF:
        raise not_traced("torch.isclose rounds half types in each of its steps", "write x.float()")
    return _computed_isclose(input, other, rtol, atol, equal_nan)


FUNCTIONS["fix"] = FUNCTIONS["trunc"]

# ---- functions of floats ----

_OF_ONE = {
    "deg2rad": lambda x: x * (math.pi / 180),
    "rad2deg": lambda x: x * (180 / math.pi),
    "sinc": formulas.sinc,
    "entr": formulas.entr,
    "erfc": erfc,
    "ndtr": ndtr,
}
_OF_TWO = {
    "logaddexp2": (formulas.logaddexp2, "floats"),
    "xlogy": (formulas.xlogy, "made floats"),
    "xlog1py": (formulas.xlog1py, "made floats"),
}


def _of_one(name: str) -> None:
    @computed(name, takes="made floats", method=name not in ("entr", "ndtr"))
    def function(input: Tensor) -> Any:
        return _OF_ONE[name](input)


def _of_two(name: str) -> None:
    formula, takes = _OF_TWO[name]

    @computed(name, takes=takes, method=name != "xlog1py")
    def function(input: Tensor, other: Tensor) -> Any:
        return formula(input, other)


for _name in _OF_ONE:
    _of_one(_name)
for _name in _OF_TWO:
    _of_two(_name)


@computed("logit", takes="made floats", method=True)
def _logit(input: Tensor, eps: float | None = None) -> Any:
    if eps is None or eps < 0:
        return formulas.logit(input)
    return formulas.logit(p.where(input < eps, eps, p.where(input > 1.0 - eps, 1.0 - eps, input)))  # NaN stays


@named("float_power")
def _float_power(input: Any, exponent: Any) -> Any:
    x, y = (views.astype(v, "float64") if hasattr(v, "_tracer") else float(v) for v in (input, exponent))
    return FUNCTIONS["pow"](x, y)
