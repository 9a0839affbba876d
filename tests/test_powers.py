"""Powers by a literal exponent, three of which are products: special values, errors, the same bits fused and not."""

import itertools

import numpy as np
import pytest

import kfusion as kf
import vector_maps
from graph_runs import wide
from kinds import DTYPES, np_dtype
from sweeps import sweep

pytestmark = pytest.mark.native

PRODUCTS = (3, 4, -2)
EXPONENTS = (*PRODUCTS, 0, 1, 2, -1, 0.5, -0.5, 5, -3, -4, 1.5, 2.5, 7, 3.5)


def bits(x):
    return np.ascontiguousarray(x).view(f"u{x.itemsize}")


def arguments(dtype, rng):
    """Numbers of all sizes, of both signs, about 1, at the ends of the range, and what is no number."""
    t = np_dtype(dtype)
    range_of = np.finfo(t) if dtype != "bfloat16" else np.finfo(np.float32)
    sizes, end, tiny = (
        2.0 ** rng.uniform(range_of.minexp - 30, range_of.maxexp, 3000),
        float(range_of.max),
        float(range_of.smallest_subnormal),
    )
    roots = end ** np.array([1 / 3, 0.25, 0.5])
    numbers = [
        sizes,
        rng.normal(1, 0.01, 1000),
        rng.normal(0, 3, 1000),
        [0, 1, 2, 3, end, *roots, 1 / end, *1 / roots, tiny, np.inf],
    ]
    x = np.concatenate(numbers)
    with np.errstate(over="ignore"):
        return np.concatenate([x, -x, [np.nan]]).astype(t)


def power_of(x, exponent):
    return np.asarray(kf.fuse(lambda x: x**exponent)(x))


def exact_power(x, exponent):
    wider = np.longdouble if x.dtype == np.float64 else np.float64
    with np.errstate(all="ignore"):
        if exponent == 0.5:  # as in NumPy: a power would be +0 of -0, and infinite of -infinity
            return np.sqrt(x.astype(wider))
        return np.power(x.astype(wider), wider(exponent))


def test_errors(isa, rng):
    def check(dtype, exponent):
        x = arguments(dtype, rng)
        errors = vector_maps.ulp_errors(power_of(x, exponent), exact_power(x, exponent))
        worst = errors.argmax()
        assert errors[worst] <= (4 if dtype == "float64" else 2), (x[worst], errors[worst])

    sweep(check, itertools.product(("float32", "float64"), EXPONENTS))


def test_halves_are_rounded_once(isa):
    """Powers are products in float32."""

    def check(dtype, exponent):
        x = np.arange(2**16, dtype=np.uint16).view(np_dtype(dtype))
        with np.errstate(all="ignore"):
            y = x.astype(np.float32)
            want = {3: y * y * y, 4: (y * y) * (y * y), -2: (1 / y) * (1 / y)}[exponent].astype(x.dtype)
            exact = exact_power(x, exponent).astype(np.float32).astype(x.dtype)
        got = power_of(x, exponent)
        np.testing.assert_array_equal(wide(got), wide(want))
        numbers = ~np.isnan(wide(exact))
        np.testing.assert_array_equal(np.isnan(wide(got)), ~numbers)
        assert abs(bits(got)[numbers].astype(int) - bits(exact)[numbers].astype(int)).max() <= 1

    sweep(check, itertools.product(("float16", "bfloat16"), PRODUCTS))


def test_special_values(isa):
    """Signs of zeros and of infinities among them."""

    def check(dtype, exponent):
        tiny = float(np.finfo(np_dtype(dtype) if dtype != "bfloat16" else np.float32).smallest_subnormal)
        x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, tiny, -tiny]).astype(np_dtype(dtype))
        got = wide(power_of(x, exponent))
        with np.errstate(all="ignore"):
            want = wide(exact_power(x, exponent).astype(x.dtype))
        numbers, special = ~np.isnan(want), ~np.isfinite(want) | (want == 0)
        np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])
        np.testing.assert_array_equal(got[special], want[special])
        np.testing.assert_array_equal(np.isnan(got), ~numbers)

    sweep(check, itertools.product(DTYPES, EXPONENTS))


def test_fused_and_unfused_have_the_same_bits(isa, some, rng):
    """Alone and, where nothing is rounded in between, amid other ops; of any number of elements."""

    def check(dtype, exponent):
        x = arguments(dtype, rng)
        amid = kf.fuse(lambda x: kf.relu(x**exponent) + x * (x**exponent))
        for f in [kf.fuse(lambda x: x**exponent)] + [amid] * (x.itemsize > 2):
            for n in (1, 7, 33, 130, len(x)):
                a, b = f(x[:n]), np.asarray(f.unfused(x[:n]))
                numbers = ~np.isnan(wide(b))
                np.testing.assert_array_equal(np.isnan(wide(a)), ~numbers)
                np.testing.assert_array_equal(bits(a)[numbers], bits(b)[numbers])

    sweep(check, some(itertools.product(DTYPES, EXPONENTS), 24))


def test_integers_wrap_around(isa, rng):
    def check(dtype, exponent):
        x = rng.integers(-(2**31), 2**31 - 1, 500).astype(dtype)
        np.testing.assert_array_equal(power_of(x, exponent), x**exponent)

    sweep(check, itertools.product(("int32", "int64"), range(6)))


def test_exponents_in_arrays_and_powers_in_rows(isa, rng):
    """Exponents of each element, and one that is an argument."""
    x, f = rng.uniform(0.1, 3, 300).astype(np.float32), kf.fuse(lambda x, y: x**y)
    for exponent, given in itertools.product(PRODUCTS, (lambda e: np.full(300, e, np.float32), np.float32)):
        np.testing.assert_allclose(f(x, given(exponent)), exact_power(x, exponent), rtol=3e-7)
    x = rng.standard_normal((37, 300)).astype(np.float32)
    exact = wide(x)
    np.testing.assert_allclose(kf.fuse(lambda x: (x**4).sum(axis=1))(x), (exact**4).sum(1), rtol=1e-6)
    by_row = kf.fuse(lambda x: x * (x * x).sum(axis=1, keepdims=True) ** -2)
    np.testing.assert_allclose(by_row(x), exact * (exact**2).sum(1, keepdims=True) ** -2, rtol=2e-6)
