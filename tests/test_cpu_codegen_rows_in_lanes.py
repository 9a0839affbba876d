"""Generated loops over short rows, each in a lane of its own: their elements change places in registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kfusion as kf
from graph_runs import draw, wide
from kinds import ALL_DTYPES, DTYPES
from layouts import laid_out
from loops_by import generated_all as of_functions
from test_cpu_codegen import assert_close, assert_same_bits, generated, pytestmark  # noqa: F401

COLUMNS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 63)  # around squares
ROWS = (1, 7, 16, 40, 131)  # around registers and tiles


def softmax(g: Any, x: int) -> int:
    shifted = g.map("exp", [g.map("subtract", [x, g.reduce("max", x, [1], True)])])
    return g.map("divide", [shifted, g.reduce("sum", shifted, [1], True)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
def test_sums_and_softmax(rows, dtype, isa, rng):
    for cols in COLUMNS if rows == 40 else (2, 3, 5, 9):
        x = draw(rng, dtype, (rows, cols))
        total, soft = generated(lambda g, i: [g.reduce("sum", i, [1]), softmax(g, i)], x)
        assert_close(total, wide(x).sum(1), dtype)
        e = np.exp(wide(x) - wide(x).max(1, keepdims=True))
        assert_close(soft, e / e.sum(1, keepdims=True), dtype)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("cols", [2, 3, 4, 6, 8, 11, 40])
def test_extremes_and_what_is_moved_are_exact(cols, dtype, isa, rng):
    x = draw(rng, dtype, (77, cols))
    if x.dtype.kind not in "bi":
        x[::7, 1], x[1::7, 1], x[2::7], x[3::7, 0] = np.nan, -np.inf, -0.0, np.inf

    def build(g: Any, i: int) -> list[int]:
        largest = g.reduce("any" if dtype == "bool" else "max", i, [1], True)
        return [largest, g.map("maximum", [i, largest])]

    assert_same_bits(build, x)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32", "bool"])
@pytest.mark.parametrize("cols", [2, 4, 5, 12])
def test_rows_that_lie_apart(cols, dtype, isa, rng):
    x = draw(rng, dtype, (70, cols))
    weight, scale = draw(rng, "float32", (1, cols)), draw(rng, "float32", (70, 1))

    def build(g: Any, i: int, j: int, k: int) -> list[int]:
        y = g.map("add", [g.map("multiply", [g.cast(i, "float32"), j]), k])
        return [g.reduce("sum", y, [1]), y, g.cast(g.map("subtract", [y, g.reduce("max", y, [1], True)]), "float16")]

    want = wide(x) * wide(weight) + wide(scale)
    for order, steps in (((0, 1), [1, 1]), ((0, 1), [2, 1]), ((0, 1), [1, 2]), ((0, 1), [-1, -1]), ((0, 1), [-3, 1])):
        got = generated(build, laid_out(x, (list(order), list(steps))), weight, scale)
        assert_close(got[0], want.sum(1), "float32")
        assert_close(got[1], want, "float32")
        assert_close(got[2], want - want.max(1, keepdims=True), "float16")


@pytest.mark.parametrize("shape", [(6, 50, 7), (50, 3, 2), (2, 5, 3, 4), (3, 40, 5, 6)], ids=str)
def test_several_axes(shape, isa, rng):
    x, bias = draw(rng, "float32", shape), draw(rng, "float32", shape[1:])
    for axes in ([len(shape) - 1], [len(shape) - 2, len(shape) - 1]):
        got = generated(
            lambda g, i, j, axes=axes: g.map("subtract", [i, g.reduce("sum", g.map("add", [i, j]), axes, True)]),
            x,
            bias,
        )
        np.testing.assert_allclose(got[0], x - (wide(x) + bias).sum(tuple(axes), keepdims=True), rtol=1e-5, atol=1e-4)


def test_threads_and_large_results(threads, isa, rng):
    x = rng.standard_normal((300_000, 9)).astype(np.float32)
    results = []
    for n in (1, 2, 3):
        threads(n)
        results.append(generated(lambda g, i: [softmax(g, i), g.reduce("mean", i, [1])], x))
    np.testing.assert_allclose(results[0][1], wide(x).mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(results[0][0].sum(1), 1, rtol=1e-6)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("cols", [2, 4, 8, 33])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_rows_of_tables(dtype, cols, isa, rng):
    """An index for each row: the elements of a table lie where they are, whatever changes places beside them."""
    x, y = draw(rng, dtype, (6, 9, cols)), draw(rng, dtype, (40, 9, cols))
    i = rng.integers(-6, 6, 40).astype(np.int32)
    got = of_functions(lambda x, y, i: (kf.take(x, i, 0).max(axis=2), (kf.take(x, i, 0) + y).max(axis=2)), x, y, i)
    np.testing.assert_array_equal(got[0], x[i].max(2))
    np.testing.assert_array_equal(got[1], (x[i] + y).max(2))
