"""The mean and the variance of rows, taken in one sweep: as exact as in two, of every kind of row, and whatever rows
lie beside it. Rows of large arrays are stored while the next ones are read, with the same bits."""

from __future__ import annotations

import itertools
from typing import ClassVar

import numpy as np
import pytest

import kfusion as kf
from graph_runs import assert_close, wide
from kinds import SANITIZED, SPACING, np_dtype
from sweeps import sweep

pytestmark = pytest.mark.native

WIDTHS = (1, 2, 3, 15, 16, 17, 40, 64, 100, 127, 128, 129, 250, 1000, 1023, 4096, 4097, 9000)
BYTES = 25 << 20  # of a result: 24 MB and more go past the caches
EPS = 1e-20


def normalized(x):
    mean = x.mean(axis=1, keepdims=True)
    variance = kf.square(x - mean).mean(axis=1, keepdims=True)
    return (x - mean) * (1 / kf.sqrt(variance + EPS)), mean, variance


def normalized_relu(x):
    return normalized(kf.relu(x))


FUNCTIONS = {"plain": normalized, "relu": normalized_relu}


def bits(x):
    return np.ascontiguousarray(x).view(f"u{x.itemsize}")


def assert_same_bits(got, want):
    for a, b in zip(got, want, strict=True):
        numbers = ~np.isnan(wide(b))
        np.testing.assert_array_equal(np.isnan(wide(a)), ~numbers)
        np.testing.assert_array_equal(bits(a)[numbers], bits(b)[numbers])


# By name: rows of so many columns.
ROWS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "a hundred deviations away": lambda rng, n: 100 + rng.standard_normal(n),
    "ten thousand deviations away": lambda rng, n: 1e4 + rng.standard_normal(n),
    "of neighbouring numbers": lambda rng, n: 2.0**20 + 0.125 * rng.integers(0, 3, n),
    "large first elements": lambda rng, n: np.where(np.arange(n) < 128, 1e3, 0) + rng.standard_normal(n),
    "a large first element": lambda rng, n: np.where(np.arange(n) < 1, 1e6, 0) + rng.standard_normal(n),
    "a large last element": lambda rng, n: np.where(np.arange(n) == n - 1, 1e6, 0) + rng.standard_normal(n),
    "rising": lambda rng, n: np.arange(n) * 1.5,
    "large terms that cancel": lambda rng, n: np.where(np.arange(n) % 2, 1e4, -1e4) + rng.standard_normal(n),
    "small": lambda rng, n: 1e-15 * rng.standard_normal(n),
    "zeros": lambda rng, n: np.zeros(n),
    "constant": lambda rng, n: np.full(n, 3.3),
}


def check(x, y, mean, variance):
    """Against float64: the mean, the variance about the mean that was found, and the rows with both."""
    spacing = SPACING[str(x.dtype)]
    exact, about = wide(x), wide(mean)
    assert (abs(about - exact.mean(1, keepdims=True)) <= spacing * abs(exact).max(1, keepdims=True)).all()
    squares = np.square(exact - about).mean(1, keepdims=True)
    assert (abs(wide(variance) - squares) <= (4 + spacing * 2**24) * 2.0**-23 * squares).all()
    want = (exact - about) / np.sqrt(squares + EPS)
    assert (abs(wide(y) - want) <= 4 * spacing * np.maximum(abs(want), spacing)).all()


def test_whole_arrays(isa, rng):
    """One sweep too: chunk by chunk, each about its own mean."""
    f = kf.fuse(lambda x: ((mean := x.mean()), kf.square(x - mean).mean()))

    def checked(kind, n):
        x = ROWS[kind](rng, n).astype(np.float32)
        mean, variance = f(x)
        exact = wide(x)
        assert abs(mean - exact.mean()) <= SPACING["float32"] * abs(exact).max()
        squares = np.square(exact - wide(mean)).mean()
        assert abs(variance - squares) <= 5 * 2.0**-23 * squares
        x[n // 2] = np.inf
        assert np.isinf(f(x)[0])
        assert np.isnan(f(x)[1])

    sweep(checked, itertools.product(ROWS, WIDTHS))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_kind_of_row(function, isa, rng):
    f = kf.fuse(FUNCTIONS[function])

    def checked(kind, n):
        x = np.stack([ROWS[kind](rng, n) for _ in range(9)]).astype(np.float32)
        got = f(x)
        check(np.maximum(x, 0) if function == "relu" else x, *got)
        if kind == "constant":
            assert not got[0].any()
            assert not got[2].any()

    sweep(checked, itertools.product(ROWS, WIDTHS))


def check_special(x, y, mean, variance):
    with np.errstate(all="ignore"):
        want = wide(x).mean(1, keepdims=True)
        about = (x - mean).astype(np.float32)  # overflows as float32 does
        squares = np.square(about).astype(np.float64).mean(1, keepdims=True).astype(np.float32)
        of_rows = about * (1 / np.sqrt(squares + np.float32(EPS)))
    assert_close(mean, want, scale=np.nan_to_num(abs(wide(x)), posinf=0).max(1, keepdims=True))
    np.testing.assert_allclose(variance, squares, rtol=1e-6)
    np.testing.assert_allclose(y, of_rows, rtol=4e-6, atol=1e-6)


class TestSpecialRows:
    SPECIAL: ClassVar[dict[str, tuple[float, ...]]] = {
        "nan": (np.nan,),
        "inf": (np.inf,),
        "-inf": (-np.inf,),
        "both infinities": (np.inf, -np.inf),
        "a sum that overflows": (3e38,) * 16,
        "squares that overflow": (1e25, -1e25),
        "terms that overflow and cancel": (3e38, -3e38) * 8,
    }

    def rows(self, rng, n):
        """Special values at the ends and inside of rows, between rows without any."""
        x = rng.standard_normal((4 * len(self.SPECIAL) + 3, n)).astype(np.float32)
        for i, values in enumerate(self.SPECIAL.values()):
            some = np.array(values, np.float32)[:n]
            x[4 * i, : len(some)], x[4 * i + 1, n - len(some) :] = some, some
            x[4 * i + 2, rng.permutation(n)[: len(some)]] = some
        x[-2], x[-3, : n // 2] = -0.0, -0.0
        return x

    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_a_row_depends_on_itself_alone(self, function, isa, rng):
        def checked(n):
            x = self.rows(rng, n)
            got = f(x)
            for i in range(len(x)):  # twice: a single row is a kernel of another kind
                assert_same_bits([a[[i, i]] for a in got], f(x[[i, i]]))
            check_special(np.maximum(x, 0) if function == "relu" else x, *got)

        f = kf.fuse(FUNCTIONS[function])
        sweep(checked, [(n,) for n in (3, 17, 100, 128, 1000, 5000)])

    def test_means_of_negative_zeros(self, isa):
        for n in WIDTHS:
            x = np.full((3, n), -0.0, np.float32)
            x[1, -1] = 0.0
            _, mean, _ = kf.fuse(normalized)(x)
            assert list(np.signbit(mean[:, 0])) == [True, False, True]


def matrix(rng, rows, cols, dtype="float32"):
    return np.resize(rng.standard_normal(100_003).astype(np_dtype(dtype)), (rows, cols))


def in_parts(f, x, *more):
    """By calls whose results are too small to go past the caches."""
    half = -(-len(x) // 2)
    both = [f(part, *more) for part in (x[:half].copy(), x[half:].copy())]
    return [np.concatenate(of) for of in zip(*(r if isinstance(r, tuple) else (r,) for r in both), strict=True)]


class TestPastTheCaches:
    """Groups are stored while the next one's moments are taken."""

    @pytest.mark.parametrize("function", FUNCTIONS)
    @pytest.mark.parametrize("cols", [33, 1023] if SANITIZED else [33, 64, 100, 1023, 1024, 4096, 5000])
    def test_special_rows(self, function, cols, isa, threads, rng):
        threads(int(rng.integers(1, 4)))
        f = kf.fuse(FUNCTIONS[function])
        x = matrix(rng, BYTES // (4 * cols) + int(rng.integers(1, 3)), cols)
        at = rng.permutation(len(x))[: min(300, len(x) // 3)]
        x[at, rng.integers(0, cols, len(at))] = rng.choice([np.nan, np.inf, 3e38, 1e25, -0.0], len(at))
        x[:2, 0], x[-2:, -1], x[len(x) // 2, :] = 3e38, np.nan, -0.0
        out = np.full_like(x, 7), *(np.full((len(x), 1), 7, np.float32) for _ in range(2))
        got = f(x, out=out)
        assert got[0] is out[0]
        assert_same_bits(out, in_parts(f, x))

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_stored_over_the_input(self, dtype, isa, threads, rng):
        """All of it, and rows that lie some elements or some rows before or behind."""
        threads(2)
        cols, f = 1000, kf.fuse(kf.layernorm)
        rows = BYTES // (np_dtype(dtype).itemsize * cols) + 1
        for shift in (0, 16, -16, 3, 8 * cols, -8 * cols):
            memory = matrix(rng, rows + 16, cols, dtype).reshape(-1)
            x = memory[8 * cols :][: rows * cols].reshape(rows, cols)
            y = memory[8 * cols + shift :][: rows * cols].reshape(rows, cols)
            (want,) = in_parts(f, x)
            f(x, out=y)
            np.testing.assert_array_equal(bits(y), bits(want))
