"""Generated kernels of more operations than one function should have: links of them that leave values for each other.
They have the bits of the interpreter, whose stack does not grow with them."""

import itertools

import numpy as np
import pytest

import kfusion as kf
from graph_runs import draw, wide
from kinds import DTYPES
from loops_by import GENERATED, as_list, assert_same_bits, generated, generated_all, loops_by
from sweeps import sweep

pytestmark = GENERATED

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


def quotients(x):
    for _ in range(30):
        x = 3 / (x * x + 1)
    return x


def alternate(x):
    """Kernels go row by row, or over all rows."""
    for k in range(200):
        x = x - x.max(k % 2 - 1 if x.ndim == 1 else -1, keepdims=True) * 0.5
    return x


@pytest.mark.parametrize("dtype", DTYPES)
def test_maps(dtype, isa, rng):
    shape = ((1000,), (3, 1500), (5, 70), (2, 40, 3), (1,), (7, 31))[rng.integers(6)]
    x, y = draw(rng, dtype, shape), draw(rng, dtype, shape)
    assert_same_bits(chain, x, y)
    assert_same_bits(chain, x[..., ::-1], y[..., :1])


def of_integers(x, i):
    y = kf.take(x, i, 0)
    z = y + 1
    for _ in range(300):
        z = kf.maximum(z * 3 - y, y) ^ z
    return z + kf.take(x, -1 - i, 0), y


def of_rows(x, i):
    row = quotients(kf.take(x, i, 0).max(-1, keepdims=True))
    return chain(kf.take(x, i, 0), row), row


def test_what_is_taken(isa, rng):
    """Indices are of elements and of rows."""
    for f, x, count in (
        (of_integers, draw(rng, "int64", (9, 200)), 2100),
        (of_rows, draw(rng, "float32", (30, 67)), 30),
    ):
        i = rng.integers(-len(x), len(x), count)
        assert_same_bits(f, x, i)
        i[count // 3] = len(x)
        with pytest.raises(IndexError, match=f"take: index {len(x)} is out of bounds for axis 0 with size {len(x)}"):
            generated(f, x, i)


def behind_a_reduction(x, y):
    """Values of rows, elements and reductions of elements, each after many steps."""
    top = x.max(-1, keepdims=True)
    for _ in range(30):
        top = 3 / (top * top + y[..., :1])
    z = chain(x - top, y)
    z = z - z.max(-1, keepdims=True)
    return chain(z, y * top) * 0.5, top[..., 0], z.sum(-1)


def over(axis):
    """The chain over columns: along the first axis, or along all of them."""
    return lambda x, y: tuple(
        np.moveaxis(v, -1, axis) if v.ndim == x.ndim else v
        for v in behind_a_reduction(np.moveaxis(x, axis, -1), np.moveaxis(y, axis, -1))
    )


# Functions, shapes of which one is drawn, and which results are sums: these alone differ in their last bits.
REDUCED = {
    "softmax": (lambda x, y: kf.softmax(chain(x, y), -1) * y[:, :1], [(20, 1300)], [0]),
    "several axes": (lambda x, y: chain(x, y[::-1]).max((1, 2)), [(20, 9, 70)], []),
    **{
        f"over {axes}": (
            lambda x, y, axes=axes: (chain(x, y).max(axes), chain(x, y).sum(axes)),
            [(300, 70), (4, 9000), (3, 100_000), (90_000,), (500, 7), (40, 6, 50)],
            [1],
        )
        for axes in ((0,), (-1,), None)
    },
    **{f"behind {axis}": (over(axis), [(3, 4, 70), (40, 3, 65), (2, 5, 3)], [2]) for axis in (0, 1, 2)},
    "many reductions": (lambda x, y: alternate(x), [(30, 67)], []),
    "behind everything": (lambda x, y: quotients(x.max()), [(30, 67)], []),
    "behind columns": (lambda x, y: (quotients(x.max(0)), x * 2), [(30, 67)], []),
    "sums of parts": (lambda x, y: ((z := chain(kf.softmax(x, -1), y[0])).sum(0), z.max(-1)), [(4000, 256)], [0, 1]),
}


def test_reductions(threads, isa, some, rng):
    """Columns, long and few rows, short ones and everything; stages, each over everything, behind a reduction."""

    def check(name, dtype):
        f, shapes, sums = REDUCED[name]
        shape = shapes[rng.integers(len(shapes))]
        x, y = rng.uniform(-4, 4, (2, *shape)).astype(dtype)
        with loops_by("interpreted"):
            want = as_list(kf.fuse(lambda x, y: f(x, y))(x, y))
        for n in (1, 2):
            threads(n)
            for k, (a, b) in enumerate(zip(generated_all(f, x, y), want, strict=True)):
                if k in sums:
                    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4 * np.sqrt(x.size / max(np.size(b), 1)))
                else:
                    np.testing.assert_array_equal(a, b)

    sweep(check, some(itertools.product(REDUCED, ("float32", "float64")), 6))


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

    np.testing.assert_allclose(generated(f, x), wide(x) * 2, rtol=1e-6)
