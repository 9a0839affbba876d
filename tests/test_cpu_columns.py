"""Reductions over the first axes on the CPU: whole tiles of columns take several rows at once, the rest overlaps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from graph_runs import assert_close, draw, wide
from kinds import DTYPES
from test_cpu_kernels import bits, centred, run

pytestmark = pytest.mark.native

ROWS = (1, 7, 8, 9, 23, 60)  # few enough to be one part
COLUMNS = (9, 15, 16, 100, 127, 128, 129, 255, 1000, 4095, 5000)  # around tiles and blocks


def in_order(terms: np.ndarray) -> np.ndarray:
    """Sums over the first axis in double precision, row after row."""
    return np.cumsum(terms, axis=0, dtype=np.float64)[-1]


class TestOneSweep:
    """Sums have the bits of a loop over the rows, whatever is taken at once."""

    def check(self, x: np.ndarray, y: np.ndarray, w: np.ndarray) -> None:
        axes = list(range(x.ndim - 1))
        x2, y2 = x.reshape(-1, x.shape[-1]), y.reshape(-1, x.shape[-1])
        n = np.float64(len(x2))
        cases: list[tuple[Callable[..., Any], np.ndarray]] = [
            (lambda g, i, j, k: g.reduce("sum", i, axes), in_order(x2)),
            (lambda g, i, j, k: g.reduce("mean", i, axes), in_order(x2) / n),
            (lambda g, i, j, k: g.reduce("max", i, axes), x2.max(0)),
            (lambda g, i, j, k: g.reduce("min", i, axes), x2.min(0)),
            (lambda g, i, j, k: g.reduce("sum", g.map("square", [i]), axes), in_order(x2 * x2)),
            (lambda g, i, j, k: g.reduce("sum", g.map("multiply", [i, j]), axes), in_order(x2 * y2)),
            (lambda g, i, j, k: g.reduce("mean", g.map("multiply", [i, k]), axes), in_order(x2 * w) / n),
            (lambda g, i, j, k: g.reduce("mean", g.map("square", [g.map("subtract", [i, k])]), axes),
             in_order((x2 - w) * (x2 - w)) / n),
            (lambda g, i, j, k: g.reduce("sum", g.map("exp", [g.map("subtract", [i, i])]), axes), in_order(x2 * 0 + 1)),
        ]  # fmt: skip
        for build, want in cases:
            np.testing.assert_array_equal(run(build, x, y, w)[0], want.astype(np.float32))

    @pytest.mark.parametrize("rows", ROWS)
    def test_sizes(self, rows, isa, rng):
        for cols in COLUMNS:
            self.check(*(draw(rng, "float32", s) for s in ((rows, cols), (rows, cols), (cols,))))

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
    def test_types(self, dtype, isa, rng):
        for shape in itertools.product((1, 9, 40), (60, 129, 1000)):
            x = draw(rng, dtype, shape)
            results: dict[str, np.ndarray] = {
                "sum": in_order(wide(x)),
                "mean": in_order(wide(x)) / shape[0],
                "max": wide(x).max(0),
                "min": wide(x).min(0),
            }
            for name, want in results.items():
                (got,) = run(lambda g, i, n=name: g.reduce(n, i, [0]), x)
                if dtype != "float64":
                    want = want.astype(np.float32)  # and then rounded to the half type
                np.testing.assert_array_equal(wide(got), wide(want.astype(x.dtype)))

    LAYOUTS: ClassVar[dict[str, Callable[[Callable[..., np.ndarray]], np.ndarray]]] = {
        "every third row": lambda make: make((70, 700))[::3, 5:-7],
        "reversed": lambda make: make((25, 333))[::-1],
        "one row": lambda make: np.broadcast_to(make((333,)), (25, 333)),
        "two axes": lambda make: make((5, 22, 333))[:, ::2],
        "short axes": lambda make: make((9, 3, 333))[::-1, :, 1:],
        "no rows in turn": lambda make: make((11, 5, 200)).transpose(1, 0, 2),
    }

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("other", ["dense", "same"])
    def test_layouts(self, layout, other, isa, rng):
        x, y = (self.LAYOUTS[layout](lambda shape: draw(rng, "float32", shape)) for _ in range(2))
        self.check(x, y if other == "same" else y.copy(), draw(rng, "float32", x.shape[-1:]))

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_special_values(self, dtype, isa, rng):
        x = draw(rng, dtype, (20, 300))
        x[3, ::7], x[12, 1::7], x[13, 2::7], x[:, 3::7] = np.nan, np.inf, -np.inf, -0.0
        x[:, 4::7], x[:, 5::7] = np.inf, -np.inf
        results: dict[str, np.ndarray] = {"sum": in_order(wide(x)), "max": wide(x).max(0), "min": wide(x).min(0)}
        for name, want in results.items():
            (got,) = run(lambda g, i, n=name: g.reduce(n, i, [0]), x)
            assert_close(got, want)
            assert np.signbit(got[3::7]).all()

    def test_values_of_columns_meet_rows(self, isa, rng):
        """What a program takes beside its array may be a row, or an array of its own."""
        x = draw(rng, "float32", (30, 333))

        def build(g: Any, i: int) -> int:
            largest = g.reduce("max", i, [0], True)
            return g.reduce("sum", g.map("square", [g.map("subtract", [i, largest])]), [0])

        d = x - x.max(0)
        np.testing.assert_array_equal(run(build, x)[0], in_order(d * d).astype(np.float32))


def variance(g: Any, x: int) -> int:
    return g.reduce("mean", g.map("square", [centred(g, x, [0])]), [0])


def of_two_widths(g: Any, x: int) -> list[int]:
    """Narrow accumulators beside wide ones."""
    return [g.reduce("max", x, [0]), g.reduce("sum", g.cast(x, "float64"), [0])]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "float64"])
@pytest.mark.parametrize("shape", [(2000, 300), (900, 1001), (40, 5000), (9000, 70)])
def test_rows_in_parts(shape, dtype, threads, rng):
    """Parts of rows depend on the shape alone, blocks of columns do not change a bit."""
    x = draw(rng, dtype, shape)
    exact = x.astype(np.longdouble)
    builds: list[tuple[Callable[..., Any], Any, Any]] = [
        (lambda g, i: g.reduce("sum", i, [0]), exact.sum(0), abs(exact).sum(0)),
        (lambda g, i: g.reduce("max", i, [0]), exact.max(0), 0),
        (variance, exact.var(0), 0),
        (of_two_widths, exact.max(0), 0),
    ]
    for build, want, scale in builds:
        results = []
        for n in (1, 2, 3, 5):
            threads(n)
            results.append(run(build, x)[0])
        assert_close(results[0], want, scale, spacings=1000 if results[0].dtype == np.float64 else 8)
        for got in results[1:]:
            np.testing.assert_array_equal(bits(got), bits(results[0]))
