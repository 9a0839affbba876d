"""Powers by a literal exponent, three of which are products: special values, errors, the same bits fused and not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import kfusion as kf
import vector_maps
from graph_runs import wide
from kinds import DTYPES, np_dtype
from sweeps import sweep

pytestmark = pytest.mark.native

PRODUCTS = (3, 4, -2)
OTHERS = (0, 1, 2, -1, 0.5, -0.5, 5, -3, -4, 1.5, 2.5, 7, 3.5)


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(f"u{x.itemsize}")


def arguments(dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Numbers of all sizes, of both signs, about 1, at the ends of the range, and what is no number."""
    t = np_dtype(dtype)
    range_of = np.finfo(t) if dtype != "bfloat16" else np.finfo(np.float32)
    sizes = 2.0 ** rng.uniform(range_of.minexp - 30, range_of.maxexp, 3000)
    cube_of_end, end = float(range_of.max) ** np.array([1 / 3, 0.25, 0.5]), float(range_of.max)
    special = [0, 1, 2, 3, end, *cube_of_end, 1 / end, *1 / cube_of_end, float(range_of.smallest_subnormal), np.inf]
    all_of = np.concatenate([sizes, rng.normal(1, 0.01, 1000), rng.normal(0, 3, 1000), special])
    with np.errstate(over="ignore"):
        return np.concatenate([all_of, -all_of, [np.nan]]).astype(t)


def power_of(x: np.ndarray, exponent: float) -> np.ndarray:
    return np.asarray(kf.fuse(lambda x: x**exponent)(x))


def exact_power(x: np.ndarray, exponent: float) -> np.ndarray:
    wider: Any = np.longdouble if x.dtype == np.float64 else np.float64
    with np.errstate(all="ignore"):
        if exponent == 0.5:  # as in NumPy: a power would be +0 of -0, and infinite of -infinity
            return np.sqrt(x.astype(wider))
        return np.power(x.astype(wider), wider(exponent))


def each(check: Callable[[float], None], exponents: Sequence[float] = (*PRODUCTS, *OTHERS)) -> None:
    sweep(check, [(exponent,) for exponent in exponents])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors(dtype, isa, rng):
    x = arguments(dtype, rng)

    def check(exponent):
        errors = vector_maps.ulp_errors(power_of(x, exponent), exact_power(x, exponent))
        worst = errors.argmax()
        assert errors[worst] <= (4 if dtype == "float64" else 2), (x[worst], errors[worst])

    each(check)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_rounded_once(dtype, isa):
    """Powers are products in float32."""
    each(lambda exponent: check_half(np.arange(2**16, dtype=np.uint16).view(np_dtype(dtype)), exponent), PRODUCTS)


def check_half(x, exponent):
    with np.errstate(all="ignore"):
        y = x.astype(np.float32)
        want = {3: y * y * y, 4: (y * y) * (y * y), -2: (1 / y) * (1 / y)}[exponent].astype(x.dtype)
        exact = exact_power(x, exponent).astype(np.float32).astype(x.dtype)
    got = power_of(x, exponent)
    np.testing.assert_array_equal(wide(got), wide(want))
    numbers = ~np.isnan(wide(exact))
    np.testing.assert_array_equal(np.isnan(wide(got)), ~numbers)
    steps = bits(got)[numbers].astype(int) - bits(exact)[numbers].astype(int)
    assert abs(steps).max() <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(dtype, isa):
    """Signs of zeros and of infinities among them."""
    each(lambda exponent: check_special(dtype, exponent))


def check_special(dtype, exponent):
    tiny = float(np.finfo(np_dtype(dtype) if dtype != "bfloat16" else np.float32).smallest_subnormal)
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, tiny, -tiny]).astype(np_dtype(dtype))
    got = wide(power_of(x, exponent))
    with np.errstate(all="ignore"):
        want = wide(exact_power(x, exponent).astype(x.dtype))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    numbers = ~np.isnan(want)
    ordinary = np.isfinite(want) & (want != 0)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])
    np.testing.assert_array_equal(got[numbers & ~ordinary], want[numbers & ~ordinary])


@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_and_unfused_have_the_same_bits(dtype, isa, rng):
    """Alone and, where nothing is rounded in between, amid other ops; of any number of elements."""
    each(lambda exponent: check_bits(arguments(dtype, rng), exponent))


def check_bits(x, exponent):
    amid = kf.fuse(lambda x: kf.relu(x**exponent) + x * (x**exponent))
    for f in [kf.fuse(lambda x: x**exponent)] + [amid] * (x.itemsize > 2):
        for n in (1, 7, 33, 130, len(x)):
            a, b = f(x[:n]), np.asarray(f.unfused(x[:n]))
            np.testing.assert_array_equal(np.isnan(wide(a)), np.isnan(wide(b)))
            numbers = ~np.isnan(wide(b))
            np.testing.assert_array_equal(bits(a)[numbers], bits(b)[numbers])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_wrap_around(dtype, isa, rng):
    x = rng.integers(-(2**31), 2**31 - 1, 500).astype(dtype)
    each(lambda exponent: np.testing.assert_array_equal(power_of(x, exponent), x**exponent), range(6))


@pytest.mark.parametrize("exponent", [3, 4, -2])
def test_exponents_in_arrays(exponent, isa, rng):
    """Those of each element, and one that is an argument."""
    x = rng.uniform(0.1, 3, 300).astype(np.float32)
    f = kf.fuse(lambda x, y: x**y)
    want = exact_power(x, exponent)
    np.testing.assert_allclose(f(x, np.full(300, exponent, np.float32)), want, rtol=3e-7)
    np.testing.assert_allclose(f(x, np.float32(exponent)), want, rtol=3e-7)


def test_powers_in_reductions_and_rows(isa, rng):
    x = rng.standard_normal((37, 300)).astype(np.float32)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(kf.fuse(lambda x: (x**4).sum(axis=1))(x), (exact**4).sum(1), rtol=1e-6)
    np.testing.assert_allclose(kf.fuse(lambda x: (x**3).mean())(x), (exact**3).mean(), atol=1e-6)
    by_row = kf.fuse(lambda x: x * (x * x).sum(axis=1, keepdims=True) ** -2)
    np.testing.assert_allclose(by_row(x), exact * (exact**2).sum(1, keepdims=True) ** -2, rtol=2e-6)
