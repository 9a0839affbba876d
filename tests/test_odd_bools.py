"""Bools whose bytes are neither 0 nor 1: any byte but 0 is true, in memory of any kind and in every op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kinds import SANITIZED

pytestmark = pytest.mark.native

LENGTHS = (1, 7, 16, 33, 130, 1000)

# Functions of two arrays of bools and one of floats.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "not": lambda a, b, x: kf.logical_not(a),
    "and": lambda a, b, x: kf.logical_and(a, b),
    "or": lambda a, b, x: kf.logical_or(a, b),
    "xor": lambda a, b, x: kf.logical_xor(a, b),
    "bitwise and": lambda a, b, x: a & b,
    "bitwise or": lambda a, b, x: a | b,
    "bitwise xor": lambda a, b, x: a ^ b,
    "invert": lambda a, b, x: ~a,
    "equal": lambda a, b, x: a == b,
    "not equal": lambda a, b, x: a != b,
    "less": lambda a, b, x: a < b,
    "greater or equal": lambda a, b, x: a >= b,
    "maximum": lambda a, b, x: kf.maximum(a, b),
    "sum of both": lambda a, b, x: a + b,
    "product of both": lambda a, b, x: a * b,
    "where": lambda a, b, x: kf.where(a, x, -x),
    "where of bools": lambda a, b, x: kf.where(a, b, x > 0),
    "times a float": lambda a, b, x: a * x,
    "compared with a float": lambda a, b, x: a < x,
    "of a comparison": lambda a, b, x: (x > 0) & a,
    "as float32": lambda a, b, x: a.astype("float32"),
    "as float64": lambda a, b, x: a.astype("float64"),
    "as float16": lambda a, b, x: a.astype("float16"),
    "as int64": lambda a, b, x: a.astype("int64"),
    "as int32": lambda a, b, x: a.astype("int32"),
    "sum": lambda a, b, x: a.sum(),
    "mean": lambda a, b, x: a.mean(),
    "max": lambda a, b, x: a.max(),
    "any": lambda a, b, x: a.any(),
    "all": lambda a, b, x: a.all(),
}


def bytes_of_all_kinds(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.choice(np.array([0, 0, 1, 2, 127, 128, 254, 255], np.uint8), n)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_byte_but_zero_is_true(name, isa, rng):
    f = kf.fuse(FUNCTIONS[name])
    for n in LENGTHS:
        a, b = bytes_of_all_kinds(rng, n), bytes_of_all_kinds(rng, n)
        x = rng.uniform(-2, 2, n).astype(np.float32)
        for call in (f, f.unfused):
            got, want = (np.atleast_1d(call(*masks, x)) for masks in ((a.view(bool), b.view(bool)), (a != 0, b != 0)))
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))  # results are 0 or 1


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["sum", "any", "all", "max", "mean"])
def test_rows_and_columns(name, axis, isa, rng):
    f = kf.fuse(lambda a: getattr(a, name)(axis=axis))
    for shape in ((5, 300), (300, 5), (40, 129)):
        a = bytes_of_all_kinds(rng, shape[0] * shape[1]).reshape(shape)
        for part in (a, a[::2, 1:], np.ascontiguousarray(a.T).T):
            np.testing.assert_array_equal(f(part.view(bool)), getattr(part != 0, name)(axis=axis))


def test_masks_of_strides_and_broadcasts(isa, rng):
    x = rng.standard_normal((40, 300)).astype(np.float32)
    f = kf.fuse(lambda mask, x: kf.where(mask, x, 0).sum(axis=1) + kf.where(mask, 0, x).max(axis=1))
    wide = bytes_of_all_kinds(rng, 80 * 600).reshape(80, 600)
    for mask in (wide[:40, :300], wide[::2, ::-2], wide[:1, 3:303], wide[:40, 5:6]):
        np.testing.assert_array_equal(f(mask.view(bool), x), f(mask != 0, x))


@pytest.mark.parametrize("n", [100] if SANITIZED else [100, 30_000_000])
def test_comparisons_and_bytes_as_results(n, isa, rng):
    """Those that go past the caches, too."""
    x = np.resize(rng.standard_normal(100_003).astype(np.float32), n)
    a = np.resize(bytes_of_all_kinds(rng, 100_001), n)
    got = kf.fuse(lambda a, x: (x > 0.5) ^ a)(a.view(bool), x)
    np.testing.assert_array_equal(got.view(np.uint8), ((x > 0.5) ^ (a != 0)).view(np.uint8))
