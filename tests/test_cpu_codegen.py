"""Loops that are generated for the CPU: the interpreter's bits where these are promised, and a float64 oracle.
Each test sees to it that its kernels are generated: else it would compare the interpreter with itself."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from cpu_kernels import Kernels
from graph_runs import draw, graph_of, wide
from kfusion import _core
from kinds import ALL_DTYPES, DTYPES
from layouts import laid_out
from loops_by import all_generated, assert_equal_bits, loops_by

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(find_spec("llvmlite") is None, reason="llvmlite compiles generated loops"),
]

SHAPES = [(1,), (0,), (63,), (64,), (1000,), (3, 33), (2, 3, 100), (5, 1, 65), (2, 1, 3, 40)]
RELATIVE = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


def generated(build: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    """What generated kernels give for a graph, as for the next ones."""
    with all_generated():
        kernels = Kernels(graph_of(build, *arrays), True)
    return kernels(*arrays)


def interpreted(build: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    with loops_by("interpreted"):
        return Kernels(graph_of(build, *arrays), True)(*arrays)


def assert_same_bits(build: Callable[..., Any], *arrays: np.ndarray) -> None:
    assert_equal_bits(generated(build, *arrays), interpreted(build, *arrays))


def assert_close(got: np.ndarray, want: np.ndarray, dtype: str) -> None:
    scale = max(1.0, float(np.max(np.abs(want), initial=0)))
    np.testing.assert_allclose(wide(got) / scale, want / scale, rtol=0, atol=4 * RELATIVE[dtype])


class TestMaps:
    @pytest.mark.parametrize("dtype", ALL_DTYPES)
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_have_the_interpreters_bits(self, shape, dtype, isa, rng):
        x, y = (draw(rng, dtype, int(np.prod(shape))).reshape(shape) for _ in range(2))
        assert_same_bits(lambda g, a, b: [g.map("maximum", [a, b]), g.map("add", [b, a])], x, y)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_any_strides(self, dtype, isa, rng):
        shape = (3, 5, 70)
        x, y = (draw(rng, dtype, int(np.prod(shape))).reshape(shape) for _ in range(2))
        for order, steps in (((0, 1, 2), [1, 1, 2]), ((2, 1, 0), [1, 1, 1]), ((1, 0, 2), [-1, 2, -1])):
            moved = laid_out(x, (list(order), list(steps)))
            assert_same_bits(lambda g, a, b: g.map("add", [g.map("multiply", [a, b]), a]), moved, y)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_values_of_rows_are_broadcast(self, dtype, isa, rng):
        x = draw(rng, dtype, 7 * 45).reshape(7, 45)
        row, column = draw(rng, dtype, 45).reshape(1, 45), abs(draw(rng, dtype, 7)).reshape(7, 1)
        assert_same_bits(
            lambda g, a, b, c: g.map("add", [g.map("multiply", [a, g.map("sqrt", [c])]), b]), x, row, column
        )

    def test_past_the_caches(self, isa, rng):
        x = rng.standard_normal((9_000_001,), np.float32)[1:]  # no array begins at a line
        assert_same_bits(lambda g, a: [g.map("sqrt", [a]), g.map("negative", [a])], abs(x))


class TestRows:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(17, 64), (20, 65), (33, 300), (18, 1023), (1, 100)], ids=str)
    @pytest.mark.parametrize("op", ["sum", "mean", "max", "min", "prod"])
    def test_reductions(self, op, shape, dtype, isa, rng):
        x = (1 + draw(rng, dtype, int(np.prod(shape))).reshape(shape) % 0.01).astype(draw(rng, dtype, 1).dtype)
        got = generated(lambda g, a: g.reduce(op, a, [1]), x)[0]
        assert_close(got, getattr(np, op)(wide(x), axis=1), dtype)

    @pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
    def test_special_values(self, op, special, isa, rng):
        x = rng.standard_normal((20, 130)).astype(np.float32)
        x[::3, 129] = special
        got = generated(lambda g, a: g.reduce(op, a, [1]), x)[0]
        want = getattr(np, op)(x, axis=1)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(np.isinf(got), np.isinf(want))

    @pytest.mark.parametrize("offset", [0, 1e4])
    @pytest.mark.parametrize("cols", [64, 100, 1023, 4096])
    def test_variance_far_from_zero(self, cols, offset, isa, rng):
        x = (rng.standard_normal((18, cols)) + offset).astype(np.float32)
        with loops_by("generated"):
            got = kf.fuse(lambda v: kf.layernorm(v))(x)
        wanted = wide(x)
        want = (wanted - wanted.mean(-1, keepdims=True)) / np.sqrt(wanted.var(-1, keepdims=True) + 1e-5)
        spacing = np.spacing(np.abs(x).max())  # an element's own error, where the mean is far from 0
        assert np.abs(got - want).max() <= 2e-6 + spacing

    def test_threads_do_not_change_bits(self, threads, isa, rng):
        x = rng.standard_normal((257, 1000)).astype(np.float32)
        results = []
        for n in (1, 2, 3):
            threads(n)
            results.append(generated(lambda g, a: [g.reduce("sum", a, [1]), g.reduce("mean", a, [1])], x))
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(a, b)


class TestChoice:
    def test_both_executors_have_kernels_of_their_own(self, rng):
        """Ready kernels of one graph are shared: never between executors."""
        x = rng.standard_normal((64, 332)).astype(np.float32)

        def chain(v):
            v = v.sum(0)
            for _ in range(30):
                v = np.sin(v)
            return v

        with loops_by("interpreted"):
            interpreted = kf.fuse(chain)(x)
        with loops_by("generated"):
            assert (kf.fuse(chain)(x) != interpreted).any(), "the last bits of sin"

    def test_other_names_are_refused(self):
        with pytest.raises(ValueError, match="generated or interpreted, got 'fast'"):
            _core.testing.set_loops_by("fast")
