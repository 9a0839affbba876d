"""Bools whose bytes are neither 0 nor 1: any byte but 0 is true, in memory of any kind and in every op."""

import itertools

import numpy as np
import pytest

import kfusion as kf
from kinds import SANITIZED
from sweeps import sweep

pytestmark = pytest.mark.native

OF_TWO = (
    "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor equal not_equal less greater_equal maximum"
)
OF_ONE = "logical_not invert sum mean max any all"
# Functions of two arrays of bools and one of floats.
FUNCTIONS = {
    **{name: lambda a, b, x, name=name: getattr(kf, name)(a, b) for name in [*OF_TWO.split(), "add", "multiply"]},
    **{name: lambda a, b, x, name=name: getattr(kf, name)(a) for name in OF_ONE.split()},
    **{t: lambda a, b, x, t=t: a.astype(t) for t in ("float32", "float64", "float16", "int64", "int32")},
    "where": lambda a, b, x: kf.where(a, x, -x),
    "where of bools": lambda a, b, x: kf.where(a, b, x > 0),
    "times a float": lambda a, b, x: a * x,
    "compared with a float": lambda a, b, x: a < x,
    "of a comparison": lambda a, b, x: (x > 0) & a,
}


def bytes_of_all_kinds(rng, n):
    return rng.choice(np.array([0, 0, 1, 2, 127, 128, 254, 255], np.uint8), n)


def test_any_byte_but_zero_is_true(isa, rng):
    def check(name):
        f = kf.fuse(FUNCTIONS[name])
        for n in (1, 7, 16, 33, 130, 1000):
            a, b = bytes_of_all_kinds(rng, n), bytes_of_all_kinds(rng, n)
            x = rng.uniform(-2, 2, n).astype(np.float32)
            for call in (f, f.unfused):
                got, want = (
                    np.atleast_1d(call(*masks, x)) for masks in ((a.view(bool), b.view(bool)), (a != 0, b != 0))
                )
                assert got.dtype == want.dtype
                np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))  # results are 0 or 1

    sweep(check, [(name,) for name in FUNCTIONS])


def test_rows_and_columns(isa, rng):
    def check(name, axis, shape):
        f, a = (
            kf.fuse(lambda a: getattr(a, name)(axis=axis)),
            bytes_of_all_kinds(rng, shape[0] * shape[1]).reshape(shape),
        )
        for part in (a, a[::2, 1:], np.ascontiguousarray(a.T).T):
            np.testing.assert_array_equal(f(part.view(bool)), getattr(part != 0, name)(axis=axis))

    shapes = ((5, 300), (300, 5), (40, 129))
    sweep(check, itertools.product(("sum", "any", "all", "max", "mean"), (0, 1), shapes))


def test_masks_of_strides_and_broadcasts(isa, rng):
    x = rng.standard_normal((40, 300)).astype(np.float32)
    f = kf.fuse(lambda mask, x: kf.where(mask, x, 0).sum(axis=1) + kf.where(mask, 0, x).max(axis=1))
    wide = bytes_of_all_kinds(rng, 80 * 600).reshape(80, 600)
    for mask in (wide[:40, :300], wide[::2, ::-2], wide[:1, 3:303], wide[:40, 5:6]):
        np.testing.assert_array_equal(f(mask.view(bool), x), f(mask != 0, x))


def test_comparisons_and_bytes_as_results(isa, rng):
    """Those that go past the caches, too."""
    for n in [100] if SANITIZED else [100, 30_000_000]:
        x = np.resize(rng.standard_normal(100_003).astype(np.float32), n)
        a = np.resize(bytes_of_all_kinds(rng, 100_001), n)
        got = kf.fuse(lambda a, x: (x > 0.5) ^ a)(a.view(bool), x)
        np.testing.assert_array_equal(got.view(np.uint8), ((x > 0.5) ^ (a != 0)).view(np.uint8))
