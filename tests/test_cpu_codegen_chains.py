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
    assert_same_bits(chain, x, y)
    assert_same_bits(chain, x[..., ::-1], y[..., :1])


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


def behind_a_reduction(x, y):
    """Values of rows, elements and reductions of elements, each after many steps."""
    top = x.max(-1, keepdims=True)
    for _ in range(30):
        top = 3 / (top * top + y[..., :1])
    z = chain(x - top, y)
    z = z - z.max(-1, keepdims=True)
    return chain(z, y * top) * 0.5, z.sum(-1), top[..., 0]


def over(axis):
    """The chain over columns: along the first axis, or along all of them."""
    return lambda x, y: tuple(
        np.moveaxis(v, -1, axis) if v.ndim == x.ndim else v
        for v in behind_a_reduction(np.moveaxis(x, axis, -1), np.moveaxis(y, axis, -1))
    )


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_behind_reductions(dtype, axis, threads, isa, rng):
    """Stages, each over everything, of what is behind a reduction; sums alone differ in their last bits."""
    shape = ((3, 4, 70), (40, 3, 65), (2, 5, 3))[rng.integers(3)]
    x, y = rng.uniform(-4, 4, (2, *shape)).astype(dtype)
    with loops_by("interpreted"):
        want = kf.fuse(lambda x, y: over(axis)(x, y))(x, y)
    for n in (1, 2):
        threads(n)
        got = generated_all(over(axis), x, y)
        for k in (0, 2):
            np.testing.assert_array_equal(got[k], want[k])
        np.testing.assert_allclose(got[1], want[1], rtol=1e-5, atol=1e-4)


def test_many_reductions_and_what_is_taken(isa, rng):
    """Kernels go row by row, or over all rows; indices are of elements and of rows."""

    def alternate(x):
        for k in range(200):
            x = x - x.max(k % 2 - 1 if x.ndim == 1 else -1, keepdims=True) * 0.5
        return x

    x = rng.standard_normal((30, 67)).astype(np.float32)
    assert_same_bits(alternate, x)
    assert_same_bits(lambda x: quotients(x.max()), x)
    assert_same_bits(lambda x: (quotients(x.max(0)), x * 2), x)

    i = rng.integers(-30, 30, 30)

    def taken(x, i):
        row = quotients(kf.take(x, i, 0).max(-1, keepdims=True))
        return chain(kf.take(x, i, 0), row), row

    assert_same_bits(taken, x, i)
    i[3] = 30  # beyond the last
    with pytest.raises(IndexError, match="take: index 30 is out of bounds for axis 0 with size 30"):
        generated(taken, x, i)


def quotients(x):
    for _ in range(30):
        x = 3 / (x * x + 1)
    return x


def test_sums_of_parts_behind_reductions(rng):
    """Gradients of weights, summed over parts of the rows."""

    def f(x, w):
        y = chain(kf.softmax(x, -1), w)
        return y.sum(0), y.max(-1)

    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((4000, 256), (256,)))
    got = generated_all(f, x, w)
    with loops_by("interpreted"):
        want = kf.fuse(lambda x, w: f(x, w))(x, w)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
