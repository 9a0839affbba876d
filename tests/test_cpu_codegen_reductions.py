"""Reductions that are generated for the CPU, of rows along several axes and of rows that go by in pieces, against
float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kfusion as kf
from graph_runs import draw, wide
from kinds import ALL_DTYPES, DTYPES, np_dtype
from layouts import laid_out
from loops_by import generated_all
from test_cpu_codegen import assert_close, generated, interpreted, loops_by, pytestmark  # noqa: F401

SHAPES = [(20, 17, 5, 7), (3, 20, 1, 65), (4, 33, 3, 32), (2, 18, 40, 2)]  # all axes but the second are reduced
AXES = [0, 2, 3]


OFFSETS = [*((d, 0) for d in DTYPES), ("float32", 1e4), ("float64", 1e4)]  # half types have no digits to spare


def positive(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.uniform(0.5, 1.5, shape)).astype(np_dtype(dtype))


def normalized(g: Any, x: int, axes: list[int]) -> list[int]:
    mean = g.reduce("mean", x, axes, True)
    away = g.map("subtract", [x, mean])
    variance = g.reduce("mean", g.map("multiply", [away, away]), axes, True)
    return [g.map("divide", [away, g.map("sqrt", [variance])]), mean, variance]


def check_normalized(x: np.ndarray, axes: list[int], dtype: str) -> None:
    y, mean, variance = generated(lambda g, a: normalized(g, a, axes), x)
    away = wide(x) - wide(mean)
    squares = np.square(away).mean(tuple(axes), keepdims=True)
    assert_close(mean, wide(x).mean(tuple(axes), keepdims=True), dtype)
    assert_close(variance, squares, dtype)
    assert_close(y, away / np.sqrt(squares), dtype)


def softmax(g: Any, x: int, axes: list[int]) -> int:
    e = g.map("exp", [g.map("subtract", [x, g.reduce("max", x, axes, True)])])
    return g.map("divide", [e, g.reduce("sum", e, axes, True)])


def softmax_of(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        e = np.exp(wide(x) - wide(x).max(axes, keepdims=True))
        return e / e.sum(axes, keepdims=True)


class TestSeveralAxes:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_sums(self, shape, dtype, isa, rng):
        x = positive(rng, dtype, shape)
        got = generated(lambda g, a: [g.reduce(op, a, AXES) for op in ("sum", "mean")], x)
        for value, op in zip(got, (np.sum, np.mean), strict=True):
            assert_close(value, op(wide(x), tuple(AXES)), dtype)

    @pytest.mark.parametrize("dtype", ALL_DTYPES)
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_extremes_have_the_interpreters_bits(self, shape, dtype, isa, rng):
        x = draw(rng, dtype, shape)

        def build(g: Any, a: int) -> list[int]:
            return [g.reduce(op, a, AXES) for op in ("max", "min", "any", "all")]

        for got, want in zip(generated(build, x), interpreted(build, x), strict=True):
            np.testing.assert_array_equal(wide(got), wide(want))

    @pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (1, 3, 2, 0)])
    def test_any_strides(self, order, isa, rng):
        x = laid_out(draw(rng, "float32", SHAPES[0]), (list(order), [1, -1, 2, -2]))
        y = draw(rng, "float32", (SHAPES[0][0], 1, 1, 1))  # one for each run
        got = generated(lambda g, a, b: g.reduce("sum", g.map("multiply", [a, g.map("exp", [b])]), AXES), x, y)[0]
        assert_close(got, (wide(x) * np.exp(wide(y))).sum(tuple(AXES)), "float32")

    @pytest.mark.parametrize(("dtype", "offset"), OFFSETS)
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_variances(self, shape, dtype, offset, isa, rng):
        x = (rng.standard_normal(shape) + offset).astype(np_dtype(dtype))
        check_normalized(x, AXES, dtype)

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_values_that_are_kept(self, shape, isa, rng):
        x = rng.standard_normal(shape).astype(np.float32)

        assert_close(generated(lambda g, a: softmax(g, a, AXES), x)[0], softmax_of(x, tuple(AXES)), "float32")


# Rows that threads share, and long ones; pieces have 16384 elements.
PIECES = [(4097,), (16385,), (3, 20_001), (2, 5, 70_001), (17, 65_537), (2, 300, 70)]


class TestLanes:
    @pytest.mark.parametrize("cols", [1, 8, 64, 70, 5000])
    @pytest.mark.parametrize("rows", [1, 3])
    def test_each_is_taken_once(self, rows, cols, isa):
        """LLVM 22.1 took a lane twice and its neighbour never, with AVX-512, where all lanes were shuffled to add them
        up and the sum was then compared, as a cast to float16 does."""
        x = np.zeros((16, rows, cols))
        for lane in range(16):
            x[lane, :, lane % cols] = 5
        for v in x:
            got = generated(lambda g, a: g.cast(g.reduce("sum", a, [1]), "float16"), v)[0]
            np.testing.assert_array_equal(got, np.full(rows, 5, np.float16))


class TestPieces:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(1,), (5,), (64,), *PIECES], ids=str)
    def test_whole_arrays(self, shape, dtype, isa, rng):
        x = positive(rng, dtype, shape)
        if dtype == "float16":
            x *= np.float16(2.0**-6)  # all of them add up to less than 65504
        ops = ("sum", "mean", "max", "min")
        got = generated(lambda g, a: [g.reduce(op, a, None) for op in ops], x)
        for value, op in zip(got, ops, strict=True):
            assert_close(value, getattr(np, op)(wide(x)), dtype)

    @pytest.mark.parametrize("dtype", ALL_DTYPES)
    @pytest.mark.parametrize("shape", PIECES, ids=str)
    def test_extremes_have_the_interpreters_bits(self, shape, dtype, isa, rng):
        x = draw(rng, dtype, shape)

        def build(g: Any, a: int) -> list[int]:
            return [g.reduce(op, a, [len(shape) - 1]) for op in ("max", "min", "any", "all")]

        for got, want in zip(generated(build, x), interpreted(build, x), strict=True):
            np.testing.assert_array_equal(wide(got), wide(want))

    @pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (1, 0, 2)])
    @pytest.mark.parametrize("axes", [None, [0, 2]])
    def test_any_strides(self, axes, order, isa, rng):
        shape = (7, 15, 800)
        x = laid_out(draw(rng, "float32", shape), (list(order), [-1, 2, 1]))
        y = draw(rng, "float32", (7, 1, 1))
        got = generated(lambda g, a, b: g.reduce("sum", g.map("multiply", [a, g.map("exp", [b])]), axes), x, y)[0]
        assert_close(got, (wide(x) * np.exp(wide(y))).sum(None if axes is None else tuple(axes)), "float32")

    @pytest.mark.parametrize(("dtype", "offset"), OFFSETS)
    @pytest.mark.parametrize("shape", PIECES, ids=str)
    def test_variances(self, shape, dtype, offset, isa, rng):
        x = (rng.standard_normal(shape) + offset).astype(np_dtype(dtype))
        axes = [0, len(shape) - 1] if shape == PIECES[-1] else [len(shape) - 1]

        check_normalized(x, axes, dtype)

    @pytest.mark.parametrize(
        ("dtype", "special"), [*((d, None) for d in DTYPES), *(("float32", s) for s in (np.nan, np.inf, -np.inf))]
    )
    @pytest.mark.parametrize("shape", PIECES, ids=str)
    def test_softmax(self, shape, dtype, special, isa, rng):
        x = (10 * rng.standard_normal(shape)).astype(np_dtype(dtype))
        if special is not None:
            x[..., 100:40_000:3] = special  # a piece of them alone is beside others
            x[..., 16384 : 2 * 16384] = special
        axes = [0, len(shape) - 1] if shape == PIECES[-1] else [len(shape) - 1]
        got, want = generated(lambda g, a: softmax(g, a, axes), x)[0], softmax_of(x, tuple(axes))
        np.testing.assert_array_equal(np.isnan(wide(got)), np.isnan(want))
        assert_close(np.nan_to_num(wide(got)), np.nan_to_num(want), dtype)
        if dtype in ("float32", "float64"):  # small ones, too
            rtol = 2e-5 if dtype == "float32" else 1e-13
            np.testing.assert_allclose(wide(got), want, rtol=rtol, atol=1e-37)

    @pytest.mark.parametrize("zero", [0.0, -0.0])
    def test_signed_zeros(self, zero, isa):
        x = np.full((2, 40_000), zero, np.float32)
        for whole in (None, [1]):
            got = generated(lambda g, a, whole=whole: [g.reduce(op, a, whole) for op in ("max", "min", "mean")], x)
            assert all((np.signbit(v) == np.signbit(zero)).all() for v in got)

    @pytest.mark.parametrize("dtype", [*DTYPES, "int32"])
    @pytest.mark.parametrize("at", [0, 5, 16383, 16384, 70_000])
    def test_searches(self, at, dtype, isa, rng):
        """Pieces without the extreme are not searched."""
        x = draw(rng, dtype, (3, 70_001))
        x[0, at:] = 99
        x[1, at] = 99
        if dtype != "int32":
            x[2, at::1000] = np.nan
        got = generated_all(lambda v: (kf.argmax(v, axis=1), kf.argmin(v, axis=1)), x)
        for value, want in zip(got, (wide(x).argmax(1), wide(x).argmin(1)), strict=True):
            np.testing.assert_array_equal(value, want)

    def test_a_mean_of_two_pairs(self, isa, rng):
        x = rng.standard_normal((20, 100)).astype(np.float32)
        for v in (x, np.tile(x, (1, 700))):

            def build(g: Any, a: int) -> list[int]:
                away = g.map("subtract", [a, g.reduce("mean", a, [1], True)])
                square = g.map("multiply", [away, away])
                return [g.reduce("mean", square, [1]), g.reduce("sum", square, [1])]

            for value, want in zip(generated(build, v), (wide(v).var(1), wide(v).var(1) * v.shape[1]), strict=True):
                assert_close(value, want, "float32")

    @pytest.mark.parametrize("shape", [(300_001,), (3, 80_000), (9, 70_000)])
    def test_threads_do_not_change_bits(self, shape, threads, isa, rng):
        x = rng.standard_normal(shape).astype(np.float32)
        axes, results = [len(shape) - 1], []
        for n in (1, 2, 3):
            threads(n)
            results.append(generated(lambda g, a: [*normalized(g, a, axes), softmax(g, a, axes)], x))
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(a, b)

    def test_past_the_caches(self, isa, rng):
        x = rng.standard_normal((3, 2_000_001)).astype(np.float32)  # no row but the first begins at a line
        got = generated(lambda g, a: softmax(g, a, [1]), x)[0]
        assert_close(1e5 * got, 1e5 * softmax_of(x, (1,)), "float32")


def gradient(x: Any, w: Any, b: Any, g: Any) -> Any:
    """Gradients of layer norm; its weights' are sums over rows."""
    return kf.vjp(kf.layernorm, x, w, b)[1](g)


def gradient_of(x: np.ndarray, w: np.ndarray, b: np.ndarray, g: np.ndarray) -> list[np.ndarray]:
    x, w, g = wide(x), wide(w), wide(g)
    scale = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    y = (x - x.mean(-1, keepdims=True)) * scale
    of_y = g * w
    of_x = scale * (of_y - of_y.mean(-1, keepdims=True) - y * (of_y * y).mean(-1, keepdims=True))
    return [of_x, (g * y).sum(0), g.sum(0)]


class TestSumsOfParts:
    """Rows are read once, and what is summed over them is added up by parts."""

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(64, 128), (101, 1023), (500, 130)])
    def test_gradients(self, shape, dtype, threads, isa, rng):
        wanted = (shape, shape[1:], shape[1:], shape)
        arrays = [rng.standard_normal(s).astype(np_dtype(dtype)) for s in wanted]
        results = []
        for n in (1, 2):
            threads(n)
            with loops_by("generated"):
                results.append(kf.fuse(gradient)(*arrays))
        for got, again, want in zip(*results, gradient_of(*arrays), strict=True):
            assert_close(got, want, dtype)
            np.testing.assert_array_equal(got, again)

    def test_kernels_are_generated(self, isa, rng):
        x, g = (rng.standard_normal((70, 129)).astype(np.float32) for _ in range(2))

        def build(graph: Any, a: int, b: int) -> list[int]:
            return [softmax(graph, a, [1]), graph.reduce("sum", graph.map("multiply", [a, b]), [0])]

        y, total = generated(build, x, g)
        assert_close(y, softmax_of(x, (1,)), "float32")
        assert_close(total, (wide(x) * wide(g)).sum(0), "float32")

    def test_reversed_and_strided(self, isa, rng):
        x = laid_out(rng.standard_normal((70, 131)).astype(np.float32), ([0, 1], [-1, 2]))

        def build(graph: Any, a: int) -> list[int]:
            return [softmax(graph, a, [1]), graph.reduce("sum", a, [0])]

        y, total = generated(build, x)
        assert_close(y, softmax_of(x, (1,)), "float32")
        assert_close(total, wide(x).sum(0), "float32")
