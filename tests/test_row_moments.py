"""The mean and the variance of rows, taken in one sweep: as exact as in two, of every kind of row, and whatever rows
lie beside it. Rows of large arrays are stored while the next ones are read, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

import kfusion as kf
from graph_runs import assert_close, wide
from kinds import SANITIZED, SPACING, np_dtype

pytestmark = pytest.mark.native

WIDTHS = (1, 2, 3, 15, 16, 17, 40, 64, 100, 127, 128, 129, 250, 1000, 1023, 4096, 4097, 9000)
BYTES = 25 << 20  # of a result: 24 MB and more go past the caches
EPS = 1e-20


def normalized(x: Any) -> tuple[Any, Any, Any]:
    mean = x.mean(axis=1, keepdims=True)
    variance = kf.square(x - mean).mean(axis=1, keepdims=True)
    return (x - mean) * (1 / kf.sqrt(variance + EPS)), mean, variance


def normalized_relu(x: Any) -> tuple[Any, Any, Any]:
    return normalized(kf.relu(x))


FUNCTIONS: dict[str, Callable[..., Any]] = {"plain": normalized, "relu": normalized_relu}


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(f"u{x.itemsize}")


def assert_same_bits(got: Any, want: Any) -> None:
    for a, b in zip(got, want, strict=True):
        numbers = ~np.isnan(wide(b))
        np.testing.assert_array_equal(np.isnan(wide(a)), ~numbers)
        np.testing.assert_array_equal(bits(a)[numbers], bits(b)[numbers])


# By name: rows of so many columns.
ROWS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
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


def check(x: np.ndarray, y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> None:
    """Against float64: the mean, the variance about the mean that was found, and the rows with both."""
    spacing = SPACING[str(x.dtype)]
    exact, about = wide(x), wide(mean)
    assert (abs(about - exact.mean(1, keepdims=True)) <= spacing * abs(exact).max(1, keepdims=True)).all()
    squares = np.square(exact - about).mean(1, keepdims=True)
    assert (abs(wide(variance) - squares) <= (4 + spacing * 2**24) * 2.0**-23 * squares).all()
    want = (exact - about) / np.sqrt(squares + EPS)
    assert (abs(wide(y) - want) <= 4 * spacing * np.maximum(abs(want), spacing)).all()


@pytest.mark.parametrize("kind", ROWS)
def test_whole_arrays(kind, isa, rng):
    """One sweep too: chunk by chunk, each about its own mean."""
    f = kf.fuse(lambda x: ((mean := x.mean()), kf.square(x - mean).mean()))
    for n in WIDTHS:
        x = ROWS[kind](rng, n).astype(np.float32)
        mean, variance = f(x)
        exact = wide(x)
        assert abs(mean - exact.mean()) <= SPACING["float32"] * abs(exact).max()
        squares = np.square(exact - wide(mean)).mean()
        assert abs(variance - squares) <= 5 * 2.0**-23 * squares
        x[n // 2] = np.inf
        assert np.isinf(f(x)[0])
        assert np.isnan(f(x)[1])


@pytest.mark.parametrize("kind", ["ten thousand deviations away", "large first elements", "rising"])
def test_whole_arrays_of_computed_values(kind, isa, rng):
    """Chunks that no loop takes, merged in the same way. Threads take some of them."""
    f = kf.fuse(lambda x: ((y := x * 0.5 + 64).var(), y.std()))
    for n in (1, 4096, 4097, 9000, 600_000):
        x = ROWS[kind](rng, n).astype(np.float32)
        y = x * np.float32(0.5) + np.float32(64)
        want = wide(y).var() + (wide(y).mean() * 2.0**-24) ** 2 * np.array([-1, 1])  # the mean is rounded
        variance, deviation = (wide(v) for v in f(x))
        assert want[0] * (1 - 5 * 2.0**-23) <= variance <= want[1] * (1 + 5 * 2.0**-23)
        assert abs(deviation - np.sqrt(variance)) <= 2.0**-23 * deviation


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_kind_of_row(kind, function, isa, rng):
    f = kf.fuse(FUNCTIONS[function])
    for n in WIDTHS:
        x = np.stack([ROWS[kind](rng, n) for _ in range(9)]).astype(np.float32)
        got = f(x)
        check(np.maximum(x, 0) if function == "relu" else x, *got)
        if kind == "constant":
            assert not got[0].any()
            assert not got[2].any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_other_dtypes(dtype, weighted, isa, rng):
    """Means of half types are of float32 within a normalisation."""
    for n in WIDTHS:
        x = (3 + rng.standard_normal((9, n))).astype(np_dtype(dtype))
        w = rng.uniform(1, 2, n).astype(np_dtype(dtype))
        y = kf.fuse(lambda x, w: kf.layernorm(x, w, w, eps=0.01))(x, w) if weighted else kf.fuse(kf.layernorm)(x)
        exact, eps = wide(x), 0.01 if weighted else 1e-5
        deviation = np.sqrt(exact.var(1, keepdims=True) + eps)
        want = (exact - exact.mean(1, keepdims=True)) / deviation
        if weighted:
            want = want * wide(w) + wide(w)
        assert_close(y, want, scale=abs(exact).max(1, keepdims=True) / deviation, spacings=8)


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

    def rows(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Special values at the ends and inside of rows, between rows without any."""
        x = rng.standard_normal((4 * len(self.SPECIAL) + 3, n)).astype(np.float32)
        for i, values in enumerate(self.SPECIAL.values()):
            some = np.array(values, np.float32)[:n]
            x[4 * i, : len(some)], x[4 * i + 1, n - len(some) :] = some, some
            x[4 * i + 2, rng.permutation(n)[: len(some)]] = some
        x[-2], x[-3, : n // 2] = -0.0, -0.0
        return x

    @pytest.mark.parametrize("function", FUNCTIONS)
    @pytest.mark.parametrize("n", [1, 3, 17, 100, 128, 1000, 5000])
    def test_a_row_depends_on_itself_alone(self, function, n, isa, rng):
        f = kf.fuse(FUNCTIONS[function])
        x = self.rows(rng, n)
        got = f(x)
        for i in range(len(x)):  # twice: a single row is a kernel of another kind
            assert_same_bits([a[[i, i]] for a in got], f(x[[i, i]]))

    @pytest.mark.parametrize("n", [3, 17, 100, 128, 1000, 5000])
    def test_values(self, n, isa, rng):
        x = self.rows(rng, n)
        y, mean, variance = kf.fuse(normalized)(x)
        with np.errstate(all="ignore"):
            want = wide(x).mean(1, keepdims=True)
            about = (x - mean).astype(np.float32)  # overflows as float32 does
            squares = np.square(about).astype(np.float64).mean(1, keepdims=True).astype(np.float32)
            of_rows = about * (1 / np.sqrt(squares + np.float32(EPS)))
        assert_close(mean, want, scale=np.nan_to_num(abs(wide(x)), posinf=0).max(1, keepdims=True))
        np.testing.assert_allclose(variance, squares, rtol=1e-6)
        np.testing.assert_allclose(y, of_rows, rtol=4e-6, atol=1e-6)

    def test_means_of_negative_zeros(self, isa):
        for n in WIDTHS:
            x = np.full((3, n), -0.0, np.float32)
            x[1, -1] = 0.0
            _, mean, _ = kf.fuse(normalized)(x)
            assert list(np.signbit(mean[:, 0])) == [True, False, True]


class TestPastTheCaches:
    """Groups are stored while the next one's moments are taken."""

    @staticmethod
    def matrix(rng: np.random.Generator, rows: int, cols: int, dtype: str = "float32") -> np.ndarray:
        return np.resize(rng.standard_normal(100_003).astype(np_dtype(dtype)), (rows, cols))

    @staticmethod
    def in_parts(f: Callable[..., Any], x: np.ndarray, parts: int = 2) -> list[np.ndarray]:
        """By calls whose results are too small to go past the caches."""
        step = -(-len(x) // parts)
        got = [f(x[i : i + step]) for i in range(0, len(x), step)]
        return [np.concatenate(of) for of in zip(*got, strict=True)]

    @pytest.mark.parametrize("function", FUNCTIONS)
    @pytest.mark.parametrize("cols", [33, 1023] if SANITIZED else [33, 64, 100, 1023, 1024, 4096, 5000])
    def test_special_rows(self, function, cols, isa, threads, rng):
        threads(int(rng.integers(1, 4)))
        f = kf.fuse(FUNCTIONS[function])
        x = self.matrix(rng, BYTES // (4 * cols) + 1, cols)
        at = rng.permutation(len(x))[: min(300, len(x) // 3)]
        x[at, rng.integers(0, cols, len(at))] = rng.choice([np.nan, np.inf, 3e38, 1e25, -0.0], len(at))
        x[:2, 0], x[-2:, -1], x[len(x) // 2, :] = 3e38, np.nan, -0.0
        y = np.full_like(x, 7)
        mean, variance = (np.full((len(x), 1), 7, np.float32) for _ in range(2))
        got = f(x, out=(y, mean, variance))
        assert got[0] is y
        assert_same_bits((y, mean, variance), self.in_parts(f, x))

    @pytest.mark.parametrize("rows", [3] if SANITIZED else [2, 3, 5])
    def test_few_rows(self, rows, isa, threads, rng):
        """There are as many rows as threads, one more, and fewer."""
        x = self.matrix(rng, rows, BYTES // (4 * rows) + 1)
        f = kf.fuse(normalized)
        check(x, *f(x))
        want = f(x)
        for n in (1, 2, rows, rows + 1):
            threads(n)
            assert_same_bits(f(x), want)

    @pytest.mark.parametrize("group", [1000, 2048])
    def test_rows_of_one_more_than_the_groups_of_a_thread(self, group, isa, threads, rng):
        threads(1)
        f = kf.fuse(normalized)
        for more in (0, 1):
            per_group = max(1, 8192 // (4 * group))
            rows = -(-BYTES // (4 * group) // per_group) * per_group + more
            x = self.matrix(rng, rows, group)
            assert_same_bits(f(x), self.in_parts(f, x))

    LAYOUTS: ClassVar[dict[str, Callable[[np.ndarray], np.ndarray]]] = {
        "odd start": lambda x: np.pad(x.reshape(-1), (3, 0))[3:].reshape(x.shape),
        "columns of a wider matrix": lambda x: np.pad(x, ((0, 0), (5, 8)))[:, 5:-8],
        "from the last row": lambda x: x[::-1].copy()[::-1],
        "every second row": lambda x: np.repeat(x, 2, 0)[::2],
        "from the last column": lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
        "transposed": lambda x: np.ascontiguousarray(x.T).T,
    }

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_layouts(self, layout, isa, threads, rng):
        threads(2)
        f = kf.fuse(normalized)
        x = self.matrix(rng, BYTES // (4 * 601) + 1, 601)
        got = f(self.LAYOUTS[layout](x))
        check(x, *got)
        if layout != "transposed":  # whose results lie as it does, so that it is another kernel
            assert_same_bits(got, self.in_parts(f, x))

    def test_a_reduction_beside_the_store(self, rng):
        """Which is another loop of the same sweep."""

        def f(x):
            y, mean, variance = normalized(x)
            return y, kf.exp(x - (mean + variance)).sum(-1)

        x = self.matrix(rng, BYTES // (4 * 601) + 1, 601)
        y, sums = kf.fuse(f)(x)
        want = np.exp(wide(x) - (wide(x).mean(1) + wide(x).var(1))[:, None]).sum(1)
        np.testing.assert_allclose(sums, want, rtol=1e-4)
        np.testing.assert_array_equal(y, kf.fuse(normalized)(x)[0])

    def test_one_row_many_times(self, isa, rng):
        row = rng.standard_normal(700).astype(np.float32)
        x = np.broadcast_to(row, (BYTES // (4 * 700) + 1, 700))
        f = kf.fuse(normalized)
        want = f(np.stack([row, row]))
        assert_same_bits(f(x), [np.broadcast_to(w[:1], (len(x), w.shape[1])) for w in want])

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_stored_over_the_input(self, dtype, isa, threads, rng):
        """All of it, and rows that lie some elements or some rows before or behind."""
        threads(2)
        cols, f = 1000, kf.fuse(kf.layernorm)
        rows = BYTES // (np_dtype(dtype).itemsize * cols) + 1
        for shift in (0, 16, -16, 3, 8 * cols, -8 * cols):
            memory = self.matrix(rng, rows + 16, cols, dtype).reshape(-1)
            x = memory[8 * cols :][: rows * cols].reshape(rows, cols)
            y = memory[8 * cols + shift :][: rows * cols].reshape(rows, cols)
            half = rows // 2
            want = np.concatenate([f(x[:half].copy()), f(x[half:].copy())])
            f(x, out=y)
            np.testing.assert_array_equal(bits(y), bits(want))

    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    def test_weights_that_are_copied(self, dtype, isa, threads, rng):
        threads(2)
        cols = 515
        x = self.matrix(rng, BYTES // (np_dtype(dtype).itemsize * cols) + 1, cols, dtype)
        w = rng.standard_normal(2 * cols).astype(np_dtype(dtype))
        f = kf.fuse(lambda x, w, b: kf.layernorm(x, w, b))
        half = len(x) // 2
        for weight, bias in ((w[:cols], w[cols:]), (w[::2], w[1::2]), (w[:cols][::-1], w[:cols])):
            want = np.concatenate([f(part, weight, bias) for part in (x[:half], x[half:])])
            np.testing.assert_array_equal(bits(f(x, weight, bias)), bits(want))
