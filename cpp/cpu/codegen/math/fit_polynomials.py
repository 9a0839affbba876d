"""Fits the polynomials of these headers and prints them, lowest power first.

Each is the polynomial whose largest weighted error on an interval is smallest: Remez's exchange algorithm (E. Ya.
Remez, 1934; see N. Brisebarre and S. Chevillard, "Efficient polynomial L-infinity approximations", 2007), in 60 digits
with mpmath. The weights make the errors relative to the function that is computed.

Run: python fit_polynomials.py [name...]
"""

import sys

from mpmath import asin, atan, atanh, cos, erf, erfc, expm1, log, log1p, lu_solve, matrix, mp, mpf, pi, sin, sqrt, tanh

mp.dps = 60


def fit(f, weight, low, high, degree):
    """Coefficients c and the largest error of weight(t) (f(t) - sum c_k t^k) over low <= t <= high."""
    low, high = mpf(low), mpf(high)
    middle, half = (low + high) / 2, (high - low) / 2
    count = degree + 2
    points = [middle - half * cos(pi * (k + mpf(1) / 2) / count) for k in range(count)]
    grid = [middle - half * cos(pi * (k + mpf(1) / 2) / (40 * count)) for k in range(40 * count)]
    values = [(t, f(t), weight(t)) for t in grid]
    for _ in range(12):
        a = matrix(count, count)
        b = matrix(count, 1)
        for i, t in enumerate(points):
            for k in range(degree + 1):
                a[i, k] = t**k
            a[i, degree + 1] = (-1) ** i / weight(t)
            b[i] = f(t)
        c = list(lu_solve(a, b))[:-1]
        errors = [w * (y - sum(x * t**k for k, x in enumerate(c))) for t, y, w in values]
        points, worst = extremes(grid, errors, count)
    return c, worst


def extremes(grid, errors, count):
    """The point of largest error in each run of one sign; of too many, the largest neighbours."""
    runs = []
    for t, e in zip(grid, errors, strict=True):
        if runs and (runs[-1][1] > 0) == (e > 0):
            if abs(e) > abs(runs[-1][1]):
                runs[-1] = (t, e)
        else:
            runs.append((t, e))
    while len(runs) > count:
        runs.pop(0 if abs(runs[0][1]) < abs(runs[-1][1]) else -1)
    assert len(runs) == count, "the errors do not alternate: another degree"
    return [t for t, _ in runs], max(abs(e) for _, e in runs)


def near(f, t, *limit):
    """f(t), by its value at 0 there."""
    return f(t) if abs(t) > mpf(10) ** -25 else mpf(limit[0])


HALF_LN2 = log(2) / 2 * mpf("1.0001")
QUARTER = (pi / 4 * mpf("1.001")) ** 2
TINY = mpf("1e-9")


def exp_rest(r):
    return near(lambda r: (expm1(r) - r) / r**2, r, 0.5)


def exp_weight(r):
    return near(lambda r: abs(r**2 / expm1(r)), r, 0)


def odd_rest(f):
    """(f(x) - x) / x^3 of t = x^2, and its weight."""
    return lambda t: (f(sqrt(t)) / sqrt(t) - 1) / t, lambda t: t * sqrt(t) / f(sqrt(t))


def exp2_part(r):
    return near(lambda r: expm1(r * log(2)) / r, r, log(2))


# name: function of t, weight, interval, degree
FITS = {
    # e^r = 1 + r + r^2 p(r)
    "exp": (exp_rest, exp_weight, -HALF_LN2, HALF_LN2 * mpf("0.99999"), 4),
    "exp, double": (exp_rest, exp_weight, -HALF_LN2, HALF_LN2 * mpf("0.99999"), 9),
    # 2^r = 1 + r p(r)
    "exp2": (exp2_part, lambda r: near(lambda r: 1 / exp2_part(r), r, 1 / log(2)), -0.5, 0.5, 5),
    # the same to 2^-18, 0 <= r < 1 (quick.hpp)
    "exp2, quick": (exp2_part, lambda r: r / mpf(2) ** r, TINY, mpf(1), 3),
    # log(1 + f) = f - f^2 / 2 + f^3 p(f)
    "log": (
        lambda f: (log1p(f) - f + f**2 / 2) / f**3,
        lambda f: abs(f**3 / log1p(f)),
        mpf(-1) / 4,
        mpf(1) / 2,
        7,
    ),
    # 2 atanh(s) = 2 s + s^3 p(s^2)
    "log, double": (
        lambda t: 2 * (atanh(sqrt(t)) / sqrt(t) - 1) / t,
        lambda t: t * sqrt(t) / atanh(sqrt(t)) / 2,
        TINY,
        mpf("0.201") ** 2,
        7,
    ),
    # tanh(x) = x + x^3 p(x^2)
    "tanh": (*odd_rest(tanh), TINY, mpf("0.6") ** 2, 4),
    "tanh, double": (*odd_rest(tanh), TINY, mpf("0.6") ** 2, 11),
    # erf(x) = x + x p(x^2)
    "erf": (lambda t: erf(sqrt(t)) / sqrt(t) - 1, lambda t: sqrt(t) / erf(sqrt(t)), TINY, mpf("0.9375") ** 2, 5),
    # erf(x) = 1 - exp(p(x)), x > 0
    "erfc": (lambda x: log(erfc(x)), lambda x: erfc(x) / erf(x), mpf("0.93"), mpf("4"), 6),
    # sin(r) = r + r^3 p(r^2), cos(r) = 1 - r^2 / 2 + r^4 p(r^2)
    "sin": (lambda t: odd_rest(sin)[0](t), lambda t: t, TINY, QUARTER, 2),
    "cos": (lambda t: (cos(sqrt(t)) - 1 + t / 2) / t**2, lambda t: t**2, TINY, QUARTER, 2),
    # atan(x) = x + x^3 p(x^2), asin(x) = x + x^3 p(x^2)
    "atan": (*odd_rest(atan), TINY, mpf(1), 8),
    "asin": (*odd_rest(asin), TINY, mpf(1) / 4, 5),
}

if __name__ == "__main__":
    for name in sys.argv[1:] or FITS:
        coefficients, worst = fit(*FITS[name])
        print(f"{name}: error {float(worst):.1e} = 2^{float(log(worst, 2)):.1f}")
        for c in coefficients:
            print(f"    {mp.nstr(c, 20)}")
