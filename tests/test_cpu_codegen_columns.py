"""Generated loops whose lanes are columns: reductions over outer axes, against a float64 oracle and the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

import kfusion as kf
from graph_runs import draw, wide
from kinds import ALL_DTYPES, DTYPES
from test_cpu_codegen import assert_close, assert_same_bits, generated, loops_by, pytestmark  # noqa: F401

# Few rows are taken in tiles, more in blocks; columns are around registers, tiles of them and blocks.
SHAPES = [(1, 40), (3, 16), (7, 17), (64, 63), (65, 64), (66, 65), (130, 333), (9, 2100), (70, 2049), (300, 1)]
PARTS = [(9000, 70), (70000, 5), (4200, 300)]


def variance(g: Any, x: int) -> int:
    away = g.map("subtract", [x, g.reduce("mean", x, [0], True)])
    return g.reduce("mean", g.map("square", [away]), [0])


def softmax(g: Any, x: int) -> int:
    shifted = g.map("exp", [g.map("subtract", [x, g.reduce("max", x, [0], True)])])
    return g.map("divide", [shifted, g.reduce("sum", shifted, [0], True)])


def layernorm(g: Any, x: int, weight: int) -> list[int]:
    mean = g.reduce("mean", x, [0], True)
    away = g.map("subtract", [x, mean])
    deviation = g.map("sqrt", [g.reduce("mean", g.map("square", [away]), [0], True)])
    return [g.map("multiply", [g.map("divide", [away, deviation]), weight]), mean, deviation]


class TestReductions:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_sums(self, shape, dtype, isa, rng):
        x = (1 + draw(rng, dtype, shape) % 0.01).astype(draw(rng, dtype, (1,)).dtype)
        got = generated(lambda g, i: [g.reduce(op, i, [0]) for op in ("sum", "mean", "prod")], x)
        for op, y in zip(("sum", "mean", "prod"), got, strict=True):
            assert_close(y, getattr(np, op)(wide(x), axis=0), dtype)

    @pytest.mark.parametrize("dtype", ALL_DTYPES)
    @pytest.mark.parametrize("shape", [(5, 70), (200, 33), (4200, 300)], ids=str)
    def test_extremes_and_truth_are_exact(self, shape, dtype, isa, rng):
        x = draw(rng, dtype, shape)
        if x.dtype.kind not in "bi":
            x[1, ::7], x[2, 1::7], x[3, 2::7], x[:, 3::7] = np.nan, np.inf, -np.inf, -0.0
        ops = ["any", "all"] if dtype == "bool" else ["max", "min", "any", "all"]
        assert_same_bits(lambda g, i: [g.reduce(op, i, [0]) for op in ops], x)

    @pytest.mark.parametrize("dtype", ["int32", "int64", "bool"])
    def test_integers(self, dtype, isa, rng):
        for shape in ((5, 70), (200, 33), (4200, 300)):
            x = draw(rng, dtype, shape)
            got = generated(lambda g, i: [g.reduce("sum", i, [0]), g.reduce("mean", i, [0])], x)
            np.testing.assert_array_equal(got[0], x.sum(0))
            np.testing.assert_allclose(got[1], x.mean(0), rtol=1e-14, atol=1e-14)

    @pytest.mark.parametrize("shape", PARTS, ids=str)
    def test_parts_of_rows(self, shape, isa, rng):
        x = rng.standard_normal(shape).astype(np.float32)
        got = generated(lambda g, i: [g.reduce("sum", i, [0]), variance(g, i)], x)
        for y, want in zip(got, (wide(x).sum(0), wide(x).var(0)), strict=True):
            np.testing.assert_allclose(y, want, rtol=2e-6, atol=1e-4)

    @pytest.mark.parametrize("shape", [(1700, 1100), (370, 5003), (3, 130, 5003)], ids=str)
    def test_rows_from_memory(self, shape, isa, rng):
        """More than caches hold, with accumulators that the first-level cache holds or not."""
        x = rng.standard_normal(shape).astype(np.float32)
        axes = tuple(range(len(shape) - 1))

        def build(g: Any, i: int) -> list[int]:
            away = g.map("subtract", [i, g.reduce("mean", i, list(axes), True)])
            return [g.reduce("sum", i, list(axes)), g.reduce("mean", g.map("square", [away]), list(axes))]

        for y, want in zip(generated(build, x), (wide(x).sum(axes), wide(x).var(axes)), strict=True):
            np.testing.assert_allclose(y, want, rtol=2e-6, atol=1e-4)


class TestSweeps:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [*SHAPES, (9000, 70), (4200, 300)], ids=str)
    def test_softmax(self, shape, dtype, rng):
        x = draw(rng, dtype, shape)
        (got,) = generated(softmax, x)
        e = np.exp(wide(x) - wide(x).max(0))
        assert_close(got, e / e.sum(0), dtype)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(3, 16), (66, 65), (130, 2100), (9000, 70)], ids=str)
    def test_values_of_columns_beside_elements(self, shape, dtype, isa, rng):
        x, weight = draw(rng, dtype, shape), draw(rng, dtype, shape[:1]).reshape(-1, 1)
        got, mean, deviation = generated(layernorm, x, weight)
        assert_close(mean[0], wide(x).mean(0), dtype)
        assert_close(deviation[0], wide(x).std(0), dtype)
        if dtype in ("float32", "float64"):  # half means are rounded
            assert_close(got, (wide(x) - wide(x).mean(0)) / wide(x).std(0) * wide(weight), dtype)

    def test_positions(self, isa, rng):
        for shape in ((5, 70), (300, 129), (4200, 300)):
            x = draw(rng, "float32", shape).round(1)  # several rows have the largest
            x[2, ::5] = x[3, ::5] = np.nan

            def argmax(g: Any, i: int, shape: tuple[int, int] = shape) -> int:
                largest = g.reduce("max", i, [0], True)
                is_it = g.map("logical_or", [g.map("equal", [i, largest]), g.map("not_equal", [i, i])])
                place = g.map("where", [is_it, g.iota(shape, 0, "int64"), g.scalar(shape[0])])
                return g.reduce("min", place, [0])

            np.testing.assert_array_equal(generated(argmax, x)[0], x.argmax(0))


class TestRowsSideBySide:
    """Rows of few columns are one row; the last ones fill it in part."""

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(65, 5), (257, 3), (1000, 20), (997, 50), (1300, 129), (9001, 24)], ids=str)
    def test_values_of_columns_are_repeated(self, shape, dtype, isa, rng):
        x, weight, bias = draw(rng, dtype, shape), draw(rng, dtype, shape[1:]), draw(rng, dtype, shape[1:])

        def build(g: Any, i: int, w: int, b: int) -> list[int]:
            mean = g.reduce("mean", i, [0], True)
            away = g.map("multiply", [g.map("subtract", [i, mean]), w])
            everywhere = g.map("where", [g.map("equal", [i, i]), b, b])
            return [away, g.reduce("mean", g.map("square", [away]), [0]), mean, everywhere]

        away, squares, mean, everywhere = generated(build, x, weight, bias)
        assert_close(mean[0], wide(x).mean(0), dtype)
        np.testing.assert_array_equal(everywhere, np.broadcast_to(bias, shape))
        if dtype in ("float32", "float64"):  # half means are rounded
            want = (wide(x) - wide(x).mean(0)) * wide(weight)
            assert_close(away, want, dtype)
            assert_close(squares, (want**2).mean(0), dtype)

    @pytest.mark.parametrize("dtype", ALL_DTYPES)
    def test_extremes_and_truth_are_exact(self, dtype, isa, rng):
        for shape in ((70, 3), (1001, 6), (515, 100)):
            ops = ["any", "all"] if dtype == "bool" else ["max", "min", "any", "all"]
            assert_same_bits(lambda g, i, ops=ops: [g.reduce(op, i, [0]) for op in ops], draw(rng, dtype, shape))

    def test_of_several_groups(self, isa, rng):
        x, weight = draw(rng, "float32", (3, 501, 6)), draw(rng, "float32", (3, 1, 6))

        def build(g: Any, i: int, w: int) -> int:
            return g.map("multiply", [g.map("subtract", [i, g.reduce("max", i, [1], True)]), w])

        np.testing.assert_array_equal(generated(build, x, weight)[0], (x - x.max(1, keepdims=True)) * weight)

    def test_past_the_caches(self, isa, rng):
        x = rng.standard_normal((300001, 30), np.float32)
        (got,) = generated(lambda g, i: g.map("subtract", [i, g.reduce("max", i, [0], True)]), x)
        np.testing.assert_array_equal(got, x - x.max(0))


class TestLayouts:
    LAYOUTS: ClassVar[dict[str, Callable[[Callable[..., np.ndarray]], np.ndarray]]] = {
        "every third row": lambda make: make((210, 70))[::3, 5:-7],
        "reversed": lambda make: make((25, 333))[::-1],
        "one row": lambda make: np.broadcast_to(make((333,)), (25, 333)),
        "one column": lambda make: np.broadcast_to(make((333, 1)), (333, 64)),
        "strided columns": lambda make: make((80, 150))[:, ::-2],
        "two axes": lambda make: make((5, 22, 333))[:, ::2],
        "short axes": lambda make: make((9, 3, 333))[::-1, :, 1:],
        "many short axes": lambda make: make((50, 3, 65))[:, ::-1, 1:],
        "no rows in turn": lambda make: make((11, 7, 200)).transpose(1, 0, 2),
    }

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_any(self, layout, isa, rng):
        x = self.LAYOUTS[layout](lambda shape: draw(rng, "float32", shape))
        y = x.copy()
        axes = list(range(x.ndim - 1))

        def build(g: Any, i: int, j: int) -> list[int]:
            largest = g.reduce("max", i, axes, True)
            away = g.map("subtract", [j, largest])
            return [g.reduce("sum", g.map("square", [away]), axes), away]

        got = generated(build, x, y)
        largest = x.max(tuple(axes))
        np.testing.assert_allclose(got[0], ((wide(y) - largest) ** 2).sum(tuple(axes)), rtol=1e-6)
        np.testing.assert_array_equal(got[1], y - largest)

    @pytest.mark.parametrize("axes", [[1], [0, 2], [1, 2], [0, 1]], ids=str)
    @pytest.mark.parametrize("shape", [(4, 9, 5, 40), (3, 70, 3, 33), (30, 2, 2, 100)], ids=str)
    def test_several_kept_axes(self, axes, shape, isa, rng):
        x, y = draw(rng, "float32", shape), draw(rng, "float32", shape[-1:])

        def build(g: Any, i: int, j: int) -> list[int]:
            total = g.reduce("sum", g.map("multiply", [i, j]), axes, True)
            return [total, g.map("add", [i, total])]

        got = generated(build, x, y)
        want = (wide(x) * wide(y)).sum(tuple(axes), keepdims=True)
        np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(got[1], x + want, rtol=1e-5, atol=1e-4)

    def test_past_the_caches(self, isa, rng):
        for shape in ((40, 300000), (3000, 2560), (2000, 2561)):
            x = rng.standard_normal(shape, np.float32)
            (got,) = generated(lambda g, i: g.map("subtract", [i, g.reduce("max", i, [0], True)]), x)
            np.testing.assert_array_equal(got, x - x.max(0))

    def test_sums_of_what_goes_past_the_caches(self, isa, rng):
        """A row's first register is masked up to a line, and shares columns with the next one."""
        x = rng.standard_normal((70, 100001), np.float32)[:, 1:]

        def build(g: Any, i: int) -> list[int]:
            twice = g.map("add", [i, i])
            signs = g.map("less", [twice, g.scalar(2.0)])
            return [twice, g.reduce("sum", twice, [0]), g.reduce("max", twice, [0]), g.reduce("all", signs, [0])]

        got = generated(build, x)
        np.testing.assert_array_equal(got[0], x + x)
        np.testing.assert_allclose(got[1], wide(x).sum(0) * 2, rtol=1e-6, atol=1e-5)
        np.testing.assert_array_equal(got[2], x.max(0) * 2)
        np.testing.assert_array_equal(got[3], (x + x < 2).all(0))


def test_threads_do_not_change_bits(threads, isa, rng):
    for shape in ((40, 9000), (2000, 300), (100, 5000), (9000, 70), (6, 70, 300)):
        x = rng.standard_normal(shape).astype(np.float32)
        axis = [x.ndim - 2]

        def build(g: Any, i: int, axis: list[int] = axis) -> list[int]:
            total = g.reduce("sum", i, axis, True)
            return [total, g.reduce("sum", g.map("exp", [g.map("subtract", [i, total])]), axis)]

        results = []
        for n in (1, 2, 3):
            threads(n)
            results.append(generated(build, x))
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(a, b)


class TestTables:
    @pytest.mark.parametrize("rows", [5, 100, 3000])
    def test_rows_that_are_taken(self, rows, isa, rng):
        x, i = draw(rng, "float32", (50, 300)), rng.integers(-50, 50, rows)
        (got,) = generated(lambda g, t, k: g.reduce("sum", g.take(t, k, 0), [0]), x, i)
        np.testing.assert_allclose(got, wide(x)[i].sum(0), rtol=1e-5, atol=1e-4)

    def test_elements_that_are_taken(self, isa, rng):
        x, i = draw(rng, "float32", (40, 300)), rng.integers(-40, 40, (70, 300))
        (got,) = generated(lambda g, t, k: g.reduce("max", g.take_along_axis(t, k, 0), [0]), x, i)
        np.testing.assert_array_equal(got, np.take_along_axis(x, i, 0).max(0))


class TestSearches:
    """The first row of the largest and the smallest, in one sweep."""

    @pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64"])
    @pytest.mark.parametrize("shape", [(5, 70), (300, 129), (4200, 300), (40, 9), (3000, 20)], ids=str)
    def test_positions(self, shape, dtype, isa, rng):
        x = np.asarray(draw(rng, dtype, shape).round(0))  # several rows have the largest
        if x.dtype.kind == "f":
            x[2, ::5] = x[3, ::5] = np.nan
            x[:, 1::5] = -np.inf
            x[:, 3::5] = np.inf
        with loops_by("generated"):
            f = kf.fuse(lambda v: [v.argmax(0), v.argmin(0), v[:, :8].argmax(1), v[:, :8].argmin(1)])
            got = f(x)
        want = [x.argmax(0), x.argmin(0), x[:, :8].argmax(1), x[:, :8].argmin(1)]
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)

    def test_what_else_uses_the_extreme(self, isa, rng):
        x = draw(rng, "float32", (70, 130)).round(0)
        with loops_by("generated"):
            largest, where, shifted = kf.fuse(lambda v: [v.max(0), v.argmax(0), v - v.max(0)])(x)
        np.testing.assert_array_equal(largest, x.max(0))
        np.testing.assert_array_equal(where, x.argmax(0))
        np.testing.assert_array_equal(shifted, x - x.max(0))
