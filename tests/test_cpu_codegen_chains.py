"""Generated kernels of more operations than one function should have: links of them that leave values for each other.
They have the bits of the interpreter, whose stack does not grow with them."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

import kfusion as kf
from graph_runs import draw, wide
from kinds import DTYPES
from loops_by import assert_same_bits, generated, generated_all, loops_by

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(find_spec("llvmlite") is None, reason="llvmlite compiles generated loops"),
]

STEPS = 650  # some links; compiling one takes some hundredths of a second


def chain(x, y, steps=STEPS):
    """Values that wait long, and conditions."""
    early, condition = x * 0.5 + y, x > y
    for k in range(steps // 3):
        x = kf.maximum(x * 0.75 + y, y) - x * 0.25
        if k % 40 == 7:
            x = kf.where(condition, x, early)
            condition = x > early
    return x + early


@pytest.mark.parametrize("dtype", DTYPES)
def test_maps(dtype, isa, rng):
    shape = ((1000,), (3, 1500), (5, 70), (2, 40, 3), (1,), (7, 31))[rng.integers(6)]
    x, y = draw(rng, dtype, shape), draw(rng, dtype, shape)
    assert_same_bits(chain, x, y, by="interpreted")
    assert_same_bits(chain, x[..., ::-1], y[..., :1], by="interpreted")


def test_integers_and_what_is_taken(isa, rng):
    x, i = draw(rng, "int64", (9, 200)), rng.integers(-9, 9, 2100)

    def f(x, i):
        y = kf.take(x, i, 0)
        z = y + 1
        for _ in range(300):
            z = kf.maximum(z * 3 - y, y) ^ z
        return z + kf.take(x, -1 - i, 0), y

    got = generated_all(f, x, i)
    with loops_by("interpreted"):
        want = kf.fuse(lambda x, i: f(x, i))(x, i)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    i[700] = 9
    with pytest.raises(IndexError, match="take: index 9 is out of bounds for axis 0 with size 9"):
        generated(f, x, i)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows(dtype, isa, rng):
    x, y = draw(rng, dtype, (20, 1300)), draw(rng, dtype, (20, 1300))
    got = generated(lambda x, y: kf.softmax(chain(x, y), -1) * y[:, :1], x, y)
    with loops_by("interpreted"):
        want = kf.fuse(lambda x, y: kf.softmax(chain(x, y), -1) * y[:, :1])(x, y)
    np.testing.assert_allclose(got, want, rtol=1e-5 if dtype == "float32" else 1e-12)
    x, y = draw(rng, dtype, (20, 9, 70)), draw(rng, dtype, (20, 9, 70))
    top = generated(lambda x, y: chain(x, y[::-1]).max((1, 2)), x, y)
    with loops_by("interpreted"):
        want = kf.fuse(lambda x, y: chain(x, y[::-1]).max((1, 2)))(x, y)
    np.testing.assert_array_equal(top, want)


WHOLE = [(300, 70), (4, 9000), (3, 100_000), (90_000,), (500, 7), (40, 6, 50)]


@pytest.mark.parametrize("axes", [(0,), (-1,), None], ids=str)
def test_reductions_that_take_no_whole_rows(axes, threads, isa, rng):
    """Columns, long and few rows, short ones and everything."""
    shape = WHOLE[rng.integers(len(WHOLE))]
    x, y = rng.uniform(-4, 4, (2, *shape)).astype(np.float32)
    f = kf.fuse(lambda x, y: (chain(x, y).max(axes), chain(x, y).sum(axes)))
    with loops_by("interpreted"):
        want = f(x, y)
    for n in (1, 2):
        threads(n)
        got = generated_all(lambda x, y: (chain(x, y).max(axes), chain(x, y).sum(axes)), x, y)
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_allclose(got[1], want[1], rtol=1e-5, atol=1e-4 * np.sqrt(x.size))


def test_threads_numbers_and_in_place(threads, isa, rng):
    x, y = rng.standard_normal((2, 100_003)).astype(np.float32)
    f = kf.fuse(lambda x, y, a: chain(x * a, y))
    results = []
    with loops_by("generated"):
        for n in (1, 2, 3):
            threads(n)
            results.append(f(x, y, 1.5).tobytes())
            out = x.copy()
            assert f(out, y, 1.5, out=out) is out
            results.append(out.tobytes())
        other = f(x, y, 0.5)
    assert len(set(results)) == 1
    with loops_by("interpreted"):
        g = kf.fuse(lambda x, y, a: chain(x * a, y))
        assert g(x, y, 1.5).tobytes() == results[0]
        np.testing.assert_array_equal(g(x, y, 0.5), other)


def test_compiling_takes_linear_time(rng):
    """Parts that are alike are one text: a chain of 20,000 operations is compiled at all (16 s as one function)."""
    x = rng.standard_normal(3000).astype(np.float32)

    def f(x):
        y = x
        for _ in range(10_000):
            y = y * 0.5 + x
        return y

    want = wide(x) * 2
    np.testing.assert_allclose(generated(f, x), want, rtol=1e-6)
