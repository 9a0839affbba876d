"""Rows along several axes, generated for the CPU, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph_runs import draw, wide
from kinds import ALL_DTYPES, DTYPES, np_dtype
from layouts import laid_out
from test_cpu_codegen import assert_close, compiled, generated, pytestmark  # noqa: F401

SHAPES = [(20, 17, 5, 7), (3, 20, 1, 65), (4, 33, 3, 32), (2, 18, 40, 2)]  # all axes but the second are reduced
AXES = [0, 2, 3]


def positive(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.uniform(0.5, 1.5, shape)).astype(np_dtype(dtype))


def normalized(g: Any, x: int) -> list[int]:
    mean = g.reduce("mean", x, AXES, True)
    away = g.map("subtract", [x, mean])
    variance = g.reduce("mean", g.map("multiply", [away, away]), AXES, True)
    return [g.map("divide", [away, g.map("sqrt", [variance])]), mean, variance]


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
    def test_extremes_have_the_bits_of_compiled_steps(self, shape, dtype, isa, rng):
        x = draw(rng, dtype, shape)

        def build(g: Any, a: int) -> list[int]:
            return [g.reduce(op, a, AXES) for op in ("max", "min", "any", "all")]

        for got, want in zip(generated(build, x), compiled(build, x), strict=True):
            np.testing.assert_array_equal(wide(got), wide(want))

    @pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (1, 3, 2, 0)])
    def test_any_strides(self, order, isa, rng):
        x = laid_out(draw(rng, "float32", SHAPES[0]), (list(order), [1, -1, 2, -2]))
        y = draw(rng, "float32", (SHAPES[0][0], 1, 1, 1))  # one for each run
        got = generated(lambda g, a, b: g.reduce("sum", g.map("multiply", [a, g.map("exp", [b])]), AXES), x, y)[0]
        assert_close(got, (wide(x) * np.exp(wide(y))).sum(tuple(AXES)), "float32")

    @pytest.mark.parametrize("offset", [0, 1e4])
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_variances(self, shape, dtype, offset, isa, rng):
        x = (rng.standard_normal(shape) + (offset if dtype.startswith("float3") else 0)).astype(np_dtype(dtype))
        y, mean, variance = generated(normalized, x)
        exact, about = wide(x), wide(mean)
        assert_close(mean, exact.mean(tuple(AXES), keepdims=True), dtype)
        assert_close(variance, np.square(exact - about).mean(tuple(AXES), keepdims=True), dtype)
        assert_close(y, (exact - about) / np.sqrt(np.square(exact - about).mean(tuple(AXES), keepdims=True)), dtype)

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_values_that_are_kept(self, shape, isa, rng):
        x = rng.standard_normal(shape).astype(np.float32)

        def softmax(g: Any, a: int) -> int:
            e = g.map("exp", [g.map("subtract", [a, g.reduce("max", a, AXES, True)])])
            return g.map("divide", [e, g.reduce("sum", e, AXES, True)])

        e = np.exp(wide(x) - wide(x).max(tuple(AXES), keepdims=True))
        assert_close(generated(softmax, x)[0], e / e.sum(tuple(AXES), keepdims=True), "float32")
