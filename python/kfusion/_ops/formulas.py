"""Elementwise functions that NumPy, SciPy and torch have alike, made of primitives, on traced values.

They take values of one dtype and open no stage: whoever enters them under a library's name does both.
"""

from __future__ import annotations

import math
from typing import Any

from .._spec import FLOATS
from . import primitives as p
from .gradients import infinitely_steep, taken, with_backward, with_derivatives
from .views import astype

LARGEST = {"float16": 65504.0, "bfloat16": (2 - 2.0**-7) * 2.0**127, "float32": (2 - 2.0**-23) * 2.0**127}
LARGEST["float64"] = (2 - 2.0**-52) * 2.0**1023
_LN2 = math.log(2)

# ---- quotients ----


def fmod(x: Any, y: Any) -> Any:
    """x - y trunc(x / y), exact and of x's sign; an integer modulo 0 gives 0."""
    if x._dtype in FLOATS:
        r = p.copysign(p.remainder(p.absolute(x), p.absolute(y)), x)
        return with_derivatives(r, (x, 1.0), (y, -p.trunc(x / y))) if taken(x) else r
    r = p.remainder(x, y)
    return p.where((r != 0) & ((x < 0) ^ (y < 0)), r - y, r)


def trunc_divide(x: Any, y: Any) -> Any:
    """The quotient without its fraction."""
    if x._dtype in FLOATS:
        return p.trunc(x / y)
    is_below = (p.remainder(x, y) != 0) & ((x < 0) ^ (y < 0))
    return p.floor_divide(x, y) + astype(is_below, x._dtype)


def floor_divmod(x: Any, y: Any) -> tuple[Any, Any]:
    """x // y and x % y."""
    return p.floor_divide(x, y), p.remainder(x, y)


# ---- parts of a number ----


def signbit(x: Any) -> Any:
    """Whether x is negative; -0 and NaNs with a sign are."""
    return p.copysign(1.0, x) < 0 if x._dtype in FLOATS else x < 0


def magnitude(x: Any) -> Any:
    """|x|."""
    return p.absolute(x)


def modf(x: Any) -> tuple[Any, Any]:
    """The fraction and the whole part, both of x's sign."""
    whole = p.trunc(x)
    return p.copysign(p.where(p.isinf(x), 0.0, x - whole), x), whole


def rounded(x: Any, decimals: int) -> Any:
    """The nearest number of so many decimals; halves to even."""
    if decimals == 0:
        return p.rint(x)
    scale = 10.0 ** abs(decimals)
    return p.rint(x * scale) / scale if decimals > 0 else p.rint(x / scale) * scale


def heaviside(x: Any, at_zero: Any) -> Any:
    """0 below 0 and for NaN, 1 above it, `at_zero` there."""
    return p.where(x == 0, at_zero, astype(x > 0, x._dtype))


def heaviside_of_nan(x: Any, at_zero: Any) -> Any:
    """NumPy's heaviside, which leaves NaN."""
    return p.where(p.isnan(x), x, heaviside(x, at_zero))


def nan_to_num(x: Any, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """x with numbers in place of NaN and the infinities: the largest of the dtype where they are None."""
    if x._dtype not in FLOATS:
        return x._tracer.copy(x)
    largest = LARGEST[x._dtype]
    y = p.where(x == math.inf, _stored(largest if posinf is None else posinf, x), x)
    y = p.where(x == -math.inf, _stored(-largest if neginf is None else neginf, x), y)
    y = p.where(p.isnan(x), _stored(0.0 if nan is None else nan, x), y)
    return with_derivatives(y, (x, p.isfinite(x))) if taken(x) else y


def _stored(value: Any, x: Any) -> Any:
    """A value as it is written into x."""
    return x._tracer.add("cast", x._tracer.lift(value, x._library), x._dtype)


def isposinf(x: Any) -> Any:
    """Whether x is the infinity above."""
    return p.equal(x, math.inf)


def isneginf(x: Any) -> Any:
    """Whether x is the infinity below."""
    return p.equal(x, -math.inf)


def isclose(x: Any, y: Any, rtol: Any, atol: Any, equal_nan: bool) -> Any:
    """|x - y| <= atol + rtol |y|, or equal."""
    close = (p.absolute(x - y) <= p.absolute(y) * rtol + atol) & p.isfinite(y) | (x == y)
    return close | (p.isnan(x) & p.isnan(y)) if equal_nan else close


# ---- logarithms and others ----


def logaddexp2(x: Any, y: Any) -> Any:
    """log2(2^x + 2^y) without overflow."""
    if taken(x):
        return p.logaddexp(x * _LN2, y * _LN2) * (1 / _LN2)
    d = p.absolute(x - y)
    both = p.maximum(x, y) + p.log1p(p.exp2(-d)) * (1 / _LN2)
    return p.where(x == y, x + 1.0, both)  # infinities, whose difference is NaN


def xlogy(x: Any, y: Any) -> Any:
    """x log(y); 0 where x is 0, unless y is NaN."""
    return _x_log(x, y, p.log, 0.0)


def xlog1py(x: Any, y: Any) -> Any:
    """x log(1 + y); 0 where x is 0, unless y is NaN."""
    return _x_log(x, y, p.log1p, -1.0)


def _x_log(x: Any, y: Any, log: Any, least: float) -> Any:
    """x log(y). At x = 0 its gradient is log(y) too, and 0 where y is no more than `least`, as torch's."""

    def product(factor: Any) -> Any:
        return p.where((factor == 0) & ~p.isnan(y), 0.0, factor * log(y))

    def backward(g: Any) -> list[Any]:
        return [p.where((x == 0) & (y <= least), 0.0, product(g)), g * x / (y - least)]

    return with_backward(product(x), [x, y], backward)


def times_log(x: Any, logarithm: Any) -> Any:
    """x times a logarithm, 0 where x is 0 and that infinite; with the logarithm as x's gradient there too."""
    is_0 = (x == 0) & p.isinf(logarithm)
    root = infinitely_steep(x, is_0)
    product = x * p.where(is_0, 1.0, logarithm) + 0.0  # no -0
    return p.where(is_0, p.where(logarithm > 0, root, 0.0 - root), product)


def entr(x: Any) -> Any:
    """-x log(x); 0 at 0, -inf below it."""
    y = p.where(x > 0, -x * p.log(x), p.where(x == 0, 0.0, p.where(x < 0, -math.inf, x)))
    return with_derivatives(y, (x, -(p.log(x) + 1.0))) if taken(x) else y


def xlogx(x: Any) -> Any:
    """x log(x), 0 at 0, with gradients there and at infinity too."""
    at_0, is_inf = x == 0, x == math.inf
    inside = p.where(at_0 | is_inf, 1.0, x)
    ends = p.where(at_0, 0.0 - infinitely_steep(x, at_0), x * x)
    return p.where(at_0 | is_inf, ends, inside * p.log(inside))


def logit(x: Any) -> Any:
    """log(x / (1 - x)), the inverse of sigmoid."""
    y, is_inside = p.log(x / (1.0 - x)), (x >= 0) & (x <= 1)
    return with_backward(y, [x], lambda g: [p.where(is_inside, g / (x * (1.0 - x)), math.nan)])


def sinc(x: Any) -> Any:
    """sin(pi x) / (pi x); 1 at 0."""
    angle = x * math.pi
    y = p.where(x == 0, 1.0, p.sin(angle) / angle)
    if not taken(x):
        return y
    divisor = x * x * math.pi
    slope = (angle * p.cos(angle) - p.sin(angle)) / divisor
    return with_backward(y, [x], lambda g: [p.where(divisor == 0, 0.0, g * slope)])


def log_sigmoid(x: Any) -> Any:
    """log(1 / (1 + exp(-x))), without overflow."""
    is_negative = x < 0
    e = p.exp(p.where(is_negative, x, -x))
    y = p.where(is_negative, x, 0.0) - p.log1p(e)
    if not taken(x):
        return y
    share = e / (e + 1.0)
    return with_derivatives(y, (x, p.where(is_negative, 1.0 - share, share)))
