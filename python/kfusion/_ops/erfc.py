"""1 - erf(x) without cancellation.

    erfc(x) = exp(-x^2) / (1 + 2 x) P(s)        for x >= 1/2, s running over [-1, 1] as (scale x - shift) / (x + 3)

P is the polynomial through the values of exp(x^2) erfc(x) (1 + 2 x) at Chebyshev points of s, up to where erfc
underflows. x^2 is split, so that the exponential does not multiply its rounding error: (a part of x with so few bits
that its square is exact)^2, and the rest. The error is within 5 units in the last place.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from . import primitives as p
from .gradients import taken, with_derivatives


class _Fit(NamedTuple):
    """Constants of a dtype: what makes s, P's coefficients from the constant on, and 2 to half its bits, plus 1."""

    scale: float
    shift: float
    coefficients: tuple[float, ...]
    splitter: float


_FITS = {
    "float32": _Fit(
        1.729166667,
        4.364583333,
        (
            *(1.264249081, -0.07802344719, -0.03426194037, 0.04364570967, -0.02356860561),
            *(0.007926722989, -0.001523900896, 1.986331616e-5, 5.487957653e-5),
        ),
        2.0**12 + 1,
    ),
    "float64": _Fit(
        1.26415094339622642,
        4.13207547169811321,
        (
            *(1.24711817848658231, -0.105257944557837916, -0.0184336326997504274, 0.0479252740672697362),
            *(-0.0345997199162052652, 0.0155019130318351156, -0.00431794951552934942, 0.000445685751178639154),
            *(0.000170729789215239821, -0.0000664166380455448597, -2.85030274404287981e-6, 5.84809151666435543e-6),
            *(-2.21727641449712949e-7, -5.33155660959297044e-7, 3.15520417637693119e-8, 5.40904805347650849e-8),
            *(-1.59800599790484169e-9, -5.53736920217709747e-9, -1.75859916293103447e-10, 4.00282965242878636e-10),
            3.73988915054189863e-11,
        ),
        2.0**27 + 1,
    ),
}


def erfc(x: Any) -> Any:
    """1 - erf(x), of float32 or float64."""
    tail = _tail(p.clip(p.absolute(x), 0.5, 30.0), _FITS[x._dtype])  # erfc(30) is 0 in both
    y = p.where(p.absolute(x) < 0.5, 1.0 - p.erf(x), p.where(x < 0, 2.0 - tail, tail))
    return with_derivatives(y, (x, p.exp(-(x * x)) * (-2 / math.sqrt(math.pi)))) if taken(x) else y


def ndtr(x: Any) -> Any:
    """The share of a normal distribution below x."""
    return erfc(x * -math.sqrt(0.5)) * 0.5


def _tail(x: Any, fit: _Fit) -> Any:
    """erfc(x) for x from 1/2 on."""
    s = (x * fit.scale - fit.shift) / (x + 3.0)
    *rest, value = fit.coefficients
    for coefficient in reversed(rest):
        value = s * value + coefficient
    scaled = x * fit.splitter
    coarse = scaled - (scaled - x)  # Dekker's: x rounded to half its bits
    exponential = p.exp(-coarse * coarse) * p.exp((coarse - x) * (coarse + x))
    return exponential * value / (x * 2.0 + 1.0)
