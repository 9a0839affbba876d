"""Generated maps whose last axis is short: blocks of rows, of which copies are made where arrays do not lie in one go.
They have the interpreter's bits, and NumPy's."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

import kfusion as kf
from graph_runs import draw
from kinds import ALL_DTYPES, DTYPES
from loops_by import assert_same_bits, generated, loops_by

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(find_spec("llvmlite") is None, reason="llvmlite compiles generated loops"),
]

LONG = [2, 3, 7, 8, 15, 16, 17, 31]


@pytest.fixture
def shape(rng):
    """(images, rows, short rows): fewer and more rows than a block has."""
    return int(rng.choice([1, 2, 5])), int(rng.choice([2, 63, 64, 65, 300])), int(rng.choice(LONG))


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_what_is_read_lies_otherwise(dtype, shape, isa, rng):
    n, m, c = shape
    x, y = draw(rng, dtype, (n, m, c)), draw(rng, dtype, (m, n, c))
    got = assert_same_bits(lambda x, y: kf.maximum(x.transpose(1, 0, 2), y), x, y)
    np.testing.assert_array_equal(got, np.maximum(x.transpose(1, 0, 2), y))
    for f in (
        lambda x, y: kf.maximum(x[:, :, ::-1].transpose(1, 0, 2), y),  # strided along the row
        lambda x, y: kf.maximum(x.transpose(2, 1, 0), y.transpose(2, 0, 1)),
        lambda x, y: kf.maximum(x, y[:, :1, :1].reshape(1, m, 1)),  # one number for each row
        lambda x, y: kf.maximum(x, y[0, :1]),  # the same row
        lambda x, y: kf.maximum(x, y[:1, :, :].transpose(1, 0, 2)),  # the same row, another one for each image
        lambda x, y: kf.maximum(x[..., :1], y[:1, :, ::-1].transpose(1, 0, 2)),
    ):
        assert_same_bits(f, x, y)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_results_lie_otherwise(dtype, shape, isa, rng):
    """Parts of a join, and a result without the last axis or without both."""
    n, m, c = shape
    x, y = draw(rng, dtype, (n, m, c)), draw(rng, dtype, (n, m, 1))
    assert_same_bits(lambda x, y: kf.concatenate((kf.maximum(x, y), x, x[..., ::-1]), 2), x, y)
    both = assert_same_bits(lambda x, y: (kf.maximum(y, y[0, 0, 0]), kf.maximum(x, y)), x, y)
    np.testing.assert_array_equal(both, np.maximum(y, y[0, 0, 0]))
    assert_same_bits(lambda x, y: (kf.maximum(y[:, 0], y[0, 0, 0]), kf.maximum(x, y[:, :1])), x, y)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_results_without_an_axis_of_long_rows(dtype, isa, threads, rng):
    x, y = draw(rng, dtype, (5, 300)), draw(rng, dtype, (5, 1))
    for n in (1, 2):
        threads(n)
        assert_same_bits(lambda x, y: (kf.maximum(x, y), kf.maximum(y, y[:1])), x, y)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_and_tables(dtype, shape, isa, rng):
    n, m, c = shape
    x = draw(rng, dtype, (n, m, c))
    counted = assert_same_bits(lambda x: x * kf.iota((m, c), 0).astype(dtype) + kf.iota((m, c), 1).astype(dtype), x)
    assert counted.shape == x.shape
    i, j = rng.integers(-m, m, 70), rng.integers(-c, c, (n, m, 5))
    got = assert_same_bits(lambda x, i: kf.take(x, i, 1), x, i)
    np.testing.assert_array_equal(got, x[:, i])
    got = assert_same_bits(lambda x, j: kf.take_along_axis(x, j, 2), x, j)
    np.testing.assert_array_equal(got, np.take_along_axis(x, j, 2))
    across = rng.integers(-m, m, (n, 9, c))
    got = assert_same_bits(lambda x, j: kf.take_along_axis(x, j, 1), x, across)
    np.testing.assert_array_equal(got, np.take_along_axis(x, across, 1))
    with pytest.raises(IndexError, match=f"index {m} is out of bounds"):
        generated(lambda x, i: kf.take(x, i, 1), x, np.append(i, m))


def test_threads_and_stores_past_the_caches(threads, isa, rng):
    x, y = rng.standard_normal((3000, 900, 3), np.float32), rng.standard_normal((900, 3000, 3), np.float32)
    want = (x.transpose(1, 0, 2) + y).tobytes()
    for n in (1, 2, 3):
        threads(n)
        assert generated(lambda x, y: x.transpose(1, 0, 2) + y, x, y).tobytes() == want
        assert generated(lambda x, y: x + y, x[:1, 1:, ::-1], y[:, :1].transpose(1, 0, 2)[:, 1:]).tobytes() == (
            (x[:1, 1:, ::-1] + y[:, :1].transpose(1, 0, 2)[:, 1:]).tobytes()
        )


def test_in_place(isa, rng):
    x, y = rng.standard_normal((50, 40, 3)).astype(np.float32), rng.standard_normal((40, 50, 3)).astype(np.float32)
    want = x.transpose(1, 0, 2) + y * 2
    got = y.copy()
    f = kf.fuse(lambda x, y: x.transpose(1, 0, 2) + y * 2)
    with loops_by("generated"):
        assert f(x, got, out=got) is got
    np.testing.assert_array_equal(got, want)
