"""What generated CUDA C++ computes, on a host that plays the GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import reference_ops
from graph_runs import assert_close, draw, rounded, wide
from graph_strategies import cases
from host_cuda import HAVE_COMPILER, HostKernels
from kernel_graphs import (
    Build,
    graph_of,
    normalized,
    scaled,
    skeleton,
    softmax,
    softmax_of_product,
    total,
    variance,
    weighted,
)
from kfusion import _core
from kinds import ALL_DTYPES, DTYPES, SPACING, TINY, np_dtype
from test_reference_ops import arguments, takes

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAVE_COMPILER, reason="needs g++")]


class Batch:
    """Calls and what they should give, compiled together."""

    def __init__(self) -> None:
        self.cases: list[tuple[_core.Graph, list[np.ndarray], Callable[[list[np.ndarray]], None]]] = []

    def add(self, build: Build, *arrays: np.ndarray, check: Callable[[list[np.ndarray]], None]) -> None:
        self.cases.append((graph_of(build, *arrays), list(arrays), check))

    def run(self, folder: Path, **options: Any) -> HostKernels:
        kernels = HostKernels([g for g, _, _ in self.cases], folder, **options)
        for i, (_, arrays, check) in enumerate(self.cases):
            check(kernels.run(i, arrays))
        return kernels


def close_to(want: np.ndarray, scale: Any = 0, spacings: float = 4) -> Callable[[list[np.ndarray]], None]:
    return lambda got: assert_close(got[0], want, scale, spacings=spacings)


def normalized_rows(x: np.ndarray) -> np.ndarray:
    d = x - x.mean(1, keepdims=True)
    return d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5)


def softmax_rows(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


class TestNumbers:
    @hypothesis.settings(max_examples=3, deadline=None, phases=[hypothesis.Phase.generate], derandomize=True)
    @hypothesis.given(st.lists(cases(), min_size=15, max_size=15), st.booleans())
    def test_random_graphs(self, tmp_path_factory, some, fuse):
        kernels = HostKernels([c.graph for c in some], tmp_path_factory.mktemp("random"), fuse=fuse)
        for i, case in enumerate(some):
            case.check(kernels.run(i, case.inputs))

    @pytest.mark.parametrize(
        ("used", "multiprocessors", "shapes"),
        [("ring", 4, [("float32", 3, 40_000), ("bfloat16", 3, 65_544), ("float16", 3, 10**5), ("float64", 3, 20_000)]),
         ("spread", 8, [("float32", 2, 40_000), ("bfloat16", 1, 65_544)])],
    )  # fmt: skip
    def test_rows_that_stay_on_chip(self, used, multiprocessors, shapes, rng, tmp_path):
        """Many are fed by rings of copies, and few taken at once; the last segment and vectors are not whole."""
        batch = Batch()
        for dtype, rows, cols in shapes:
            x = rng.standard_normal((rows, cols)).astype(np_dtype(dtype))
            want = normalized_rows(wide(x))
            batch.add(normalized, x, check=close_to(want, 1, 8))
            batch.add(softmax, x, check=close_to(softmax_rows(wide(x)), 0, 16))
            w = rng.standard_normal((2, cols)).astype(np_dtype(dtype))
            batch.add(scaled, x, w[0], check=close_to(want * wide(w[0]), 1 + abs(wide(w[0])), 8))
            shifted = want * wide(w[0]) + wide(w[1])
            batch.add(scaled, x, *w, check=close_to(shifted, 1 + abs(wide(w)).sum(0), 8))
        kernels = batch.run(tmp_path, clusters=True, multiprocessors=multiprocessors)
        assert {skeleton(own[0].source) for own in kernels.kernels} == {f"{used}_rows"}

    def test_rows_of_odd_width_with_weights(self, rng, tmp_path):
        """Lanes of a warp, a warp, several or a cluster of blocks share a row; some weights begin at odd addresses."""
        batch = Batch()
        for dtype, rows, cols in (
            ("bfloat16", 2050, 101), ("float16", 2048, 257), ("bfloat16", 2051, 1537), ("float32", 5, 20_001),
            ("float32", 5, 70_003),
        ):  # fmt: skip
            x = rng.standard_normal((rows, cols)).astype(np_dtype(dtype))
            w = rng.standard_normal((2, cols + 1)).astype(np_dtype(dtype))
            want = normalized_rows(wide(x))
            for own in (w[:, 1:], w[:, :-1]):
                shifted = want * wide(own[0]) + wide(own[1])
                batch.add(scaled, x, *own, check=close_to(shifted, 1 + abs(wide(own)).sum(0), 8))
        kernels = batch.run(tmp_path, clusters=True, multiprocessors=2)
        assert {skeleton(own[0].source) for own in kernels.kernels} == {"weighted_rows", "ring_rows"}
        assert all("Planes" in own[0].source for own in kernels.kernels)

    def test_elements_by_their_numbers(self, rng, tmp_path):
        """Picked by a reduction, or changed in the sweep that stores them, as in the gradient of a loss."""
        batch = Batch()
        for dtype, cols, other in (
            ("float32", 33, 0.0), ("bfloat16", 1001, 0.0), ("float32", 1024, 2.0), ("bfloat16", 40_000, 0.0)
        ):  # fmt: skip
            x = rng.standard_normal((4, cols)).astype(np_dtype(dtype))
            x[:, 5] = np.nan, np.inf, 1, 2
            t = np.array([[0], [cols - 1], [5], [-1]])
            far = np.array([[2**32 + 7], [-(2**63)], [-(2**32) + cols - 2], [cols]])  # of a word that is a column's

            def pick(g, i, j, cols=cols, other=other):
                own = g.map("equal", [g.iota((4, cols), 1, "int64"), j])
                return g.reduce("sum", g.map("where", [own, i, g.scalar(other)]), [1])

            for numbers in (t, far):
                want = np.where(np.arange(cols) == numbers, wide(x), other).sum(1)
                batch.add(pick, x, numbers, check=close_to(want, abs(want), 8))
        for cols, integer in ((3, "int32"), (33, "int64"), (1001, "int32"), (1024, "int64"), (131_080, "int32")):
            x = rng.standard_normal((5, cols)).astype(np_dtype("bfloat16"))
            t = np.array([[0], [cols - 1], [2], [-1], [cols]], integer)

            def put(g, i, j, cols=cols, integer=integer):
                own = g.map("equal", [j, g.iota((5, cols), 1, integer)])
                less = g.map("subtract", [i, g.reduce("max", i, [1], True)])
                return g.map("where", [own, g.map("negative", [less]), less])

            less = wide(x) - wide(x).max(1, keepdims=True)
            batch.add(put, x, t, check=close_to(np.where(np.arange(cols) == t, -less, less), abs(less) + 1, 8))
        kernels = batch.run(tmp_path)
        assert all("which_is<i" in own[0].source for own in kernels.kernels)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_quotients_by_a_value_of_the_row_are_rounded_once(self, dtype, rng, tmp_path):
        """Where x and the quotient are within 2^-100 and 2^100; else to two last bits."""
        x = np.ldexp(rng.standard_normal((64, 300)), rng.integers(-60, 40, (64, 300)))
        x *= np.ldexp(1.0, np.linspace(-70, 70, 64).astype(int))[:, None]  # divisors of all sizes
        x = x.astype(dtype)
        x[:, :6] = [0.0, -0.0, 1.0, np.finfo(dtype).smallest_normal, np.finfo(dtype).smallest_subnormal, -1.0]
        special = x.copy()
        special[:, 6:9] = [np.inf, -np.inf, np.nan]
        for rows in (x, special):
            with np.errstate(all="ignore"):
                want = rows / rows.max(1, keepdims=True)

            def check(results, want=want, rows=rows):
                (got,) = results
                size = np.fmin(abs(want), abs(rows))
                inside = ~((size > 0) & (size < 2.0**-98))
                assert np.array_equal(got[inside], want[inside], equal_nan=True)
                assert np.array_equal(np.signbit(got), np.signbit(want)) or np.isnan(want).any()
                np.testing.assert_allclose(got, want, rtol=4 * SPACING[dtype], atol=4 * TINY[dtype])

            batch = Batch()
            batch.add(lambda g, x: g.map("divide", [x, g.reduce("max", x, [1], True)]), rows, check=check)
            batch.run(tmp_path)

    def test_softmax_of_what_takes_long_to_compute(self, rng, tmp_path):
        """It is computed once, and the exponentials take the place of what it is computed from."""

        def capped(g, i):
            return softmax(g, g.map("multiply", [g.map("tanh", [g.map("divide", [i, g.scalar(3)])]), g.scalar(9)]))

        batch = Batch()
        for dtype, cols in (("float32", 96), ("bfloat16", 1001), ("float32", 8192)):
            x = rng.standard_normal((2, cols)).astype(np_dtype(dtype))
            x[0, :3] = np.inf, -np.inf, 0
            batch.add(capped, x, check=close_to(softmax_rows(9 * np.tanh(wide(x) / 3)), 0, 64))
        assert all("kept" in own[0].source for own in batch.run(tmp_path).kernels)

    def test_long_rows_of_several_arrays(self, rng, tmp_path):
        """And of nothing that is held: an element a row, times weights; no row is as large as the result."""
        batch = Batch()
        for dtype, cols, operands in (("float32", 20_000, 5), ("float32", 50_000, 3), ("bfloat16", 70_000, 2)):
            x = rng.standard_normal((operands, 5, cols)).astype(np_dtype(dtype))
            want = normalized_rows(wide(x).sum(0))
            build = lambda g, *i: normalized(g, total(g, *i))  # noqa: E731
            batch.add(build, *x, check=close_to(want, abs(wide(x)).sum(0) + 1, 8))
        x, w = rng.standard_normal((5, 1)).astype(np.float32), rng.standard_normal((1, 70_000)).astype(np.float32)
        batch.add(softmax_of_product, x, w, check=close_to(softmax_rows(wide(x) * wide(w)), 0, 64))
        kernels = batch.run(tmp_path, clusters=True, multiprocessors=4)
        assert {skeleton(own[0].source) for own in kernels.kernels[:3]} == {"ring_rows"}

    @pytest.mark.parametrize(("cols", "multiprocessors"), [(100, 4), (3000, 4), (40_000, 4), (40_000, 16)])
    def test_softmax_where_much_is_masked(self, cols, multiprocessors, rng, tmp_path):
        """What a thread holds may all be -inf, while the largest of the row is far from 0."""
        batch = Batch()
        for dtype in ("float32", "bfloat16", "float16", "float64"):
            x = (rng.standard_normal((4, cols)) - 300).astype(np_dtype(dtype))
            x[0, 7:], x[1, :-5], x[2] = -np.inf, -np.inf, -np.inf
            x[3, 50] = np.nan
            with np.errstate(invalid="ignore"):
                batch.add(softmax, x, check=close_to(softmax_rows(wide(x)), 0, 16))
        batch.run(tmp_path, clusters=True, multiprocessors=multiprocessors)

    @pytest.mark.parametrize(("shape", "axis"), [((6, 1024), 1), ((5, 3000), 1), ((6, 40_000), 1), ((300, 12), 0)])
    def test_exponentials_that_are_results(self, shape, axis, rng, tmp_path):
        """With their maximum, of rows that are not a number somewhere, or -inf everywhere, or infinite."""

        def exponentials(g: _core.Graph, x: int) -> list[int]:
            largest = g.reduce("max", x, [axis], True)
            e = g.map("exp", [g.map("subtract", [x, largest])])
            return [largest, e, g.reduce("sum", e, [axis])]

        x = rng.standard_normal(shape).astype(np.float32)
        rows = x if axis == 1 else x.T
        rows[0, 70], rows[1], rows[2, 3], rows[3, 9:] = np.nan, -np.inf, np.inf, -np.inf
        with np.errstate(invalid="ignore"):
            largest = wide(x).max(axis, keepdims=True)
            e = np.exp(wide(x) - largest)

        def check(got: list[np.ndarray]) -> None:
            for one, want in zip(got, (largest, e, e.sum(axis)), strict=True):
                assert_close(one, want, 0, spacings=16)

        batch = Batch()
        batch.add(exponentials, x, check=check)
        if shape == (6, 40_000):  # two rounds of messages, of other sizes
            y = rng.standard_normal(shape).astype(np.float32)
            want = normalized_rows(softmax_rows(wide(y)))
            batch.add(lambda g, i: normalized(g, softmax(g, i)), y, check=close_to(want, 1, 8))
        batch.run(tmp_path, clusters=True, multiprocessors=4)

    @pytest.mark.parametrize("dtype", ALL_DTYPES)
    def test_every_op(self, dtype, rng, tmp_path):
        batch = Batch()
        for name in reference_ops.MAPS:
            if dtype not in takes(name):
                continue
            arrays = arguments(name, dtype, lambda: draw(rng, dtype, 77))
            with np.errstate(all="ignore"):
                want = reference_ops.MAPS[name](*map(wide, arrays))
            scale = 4 if name == "logaddexp" else 0
            batch.add(lambda g, *ids, n=name: g.map(n, list(ids)), *arrays, check=close_to(want, scale))
        for to in ALL_DTYPES:
            x = draw(rng, dtype, 33)
            batch.add(lambda g, i, t=to: g.cast(i, t), x, check=close_to(wide(rounded(wide(x), to))))
        batch.run(tmp_path)

    @pytest.mark.parametrize("dtype", ["bool", "bfloat16", "float32", "float64"])
    def test_crossed_operands(self, dtype, rng, tmp_path):
        def largest(g, *ids):
            return functools.reduce(lambda a, b: g.map("maximum", [a, b]), ids)

        def add_largest(*arrays):
            batch.add(largest, *arrays, check=close_to(functools.reduce(np.maximum, map(wide, arrays))))

        batch = Batch()
        axes = [((96, 48), (1, 0)), ((3, 32, 80), (0, 2, 1)), ((2, 16, 5, 16), (0, 2, 3, 1)), ((32, 3, 64), (2, 1, 0))]
        for shape, order in axes:
            x = draw(rng, dtype, shape).transpose(order)
            add_largest(x, draw(rng, dtype, x.shape))
        odd = [draw(rng, dtype, (33, 51)).T, draw(rng, dtype, (51, 33))]
        for pair in (odd, [a[:48, :32] for a in odd], [draw(rng, dtype, (32, 51)).T, draw(rng, dtype, (51, 32))]):
            add_largest(*pair)
        sees = draw(rng, "bool", (32, 512, 17))
        both = [draw(rng, dtype, (32, 17, 512)).transpose(0, 2, 1) for _ in range(2)]  # more than is not
        want = np.where(sees, wide(both[0]), wide(both[1]))
        batch.add(lambda g, *ids: g.map("where", list(ids)), sees, *both, check=close_to(want))
        turned = len(batch.cases)
        x, y = draw(rng, dtype, (48, 96)).T, draw(rng, dtype, (96, 48))
        add_largest(x, y, *(np.broadcast_to(draw(rng, dtype, s), x.shape) for s in ((1, 48), (96, 1))))
        if dtype != "bool":
            w = np.maximum(wide(x), wide(y)).astype(np.longdouble)
            deviation = np.sqrt(w.var(0) + 1e-5)
            want, scale = (w - w.mean(0)) / deviation, 1 + abs(w.mean(0)) / deviation
            batch.add(lambda g, *ij: normalized(g, largest(g, *ij), 0), x, y, check=close_to(want, scale, 8))
            batch.add(lambda g, *ij: variance(g, largest(g, *ij), [0]), x, y, check=close_to(w.var(0), 1, 8))
            want = softmax_rows(wide(x).astype(np.longdouble))
            batch.add(softmax, x, check=close_to(want, 0, 24))
            product = lambda g, i, j: g.map("multiply", [softmax(g, i), j])  # noqa: E731
            batch.add(product, x, y, check=close_to(want * wide(y), 0, 28))
        kernels = batch.run(tmp_path)
        assert all(skeleton(k.source) in ("columns", "tiles") for ks in kernels.kernels for k in ks)
        assert all("transpose(rows" in k.source for ks in kernels.kernels[:4] + kernels.kernels[turned:] for k in ks)

    SHAPES = ((5, 3), (4, 16), (7, 304), (7, 704), (3, 1504), (130, 8), (3, 1023), (6, 1024), (3, 4100), (2, 4097),
              (2, 40_000), (1, 70_000))  # fmt: skip

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_rows_and_columns(self, dtype, rng, tmp_path):
        batch = Batch()
        for shape in self.SHAPES:
            for axis in (1, 0):
                x = draw(rng, dtype, shape if axis else shape[::-1])
                w = wide(x).astype(np.longdouble)
                mean = w.mean(axis, keepdims=True)
                e = np.exp(w - w.max(axis, keepdims=True))
                deviation = np.sqrt(w.var(axis, keepdims=True) + 1e-5)
                want, scale = (w - mean) / deviation, 1 + abs(mean) / deviation
                batch.add(lambda g, i, a=axis: normalized(g, i, a), x, check=close_to(want, scale, 8))
                want = e / e.sum(axis, keepdims=True)
                # exp of a rounded x - max
                batch.add(lambda g, i, a=axis: softmax(g, i, a), x, check=close_to(want, 0, 24))
        kernels = batch.run(tmp_path)
        seen = {skeleton(k.source) for ks in kernels.kernels for k in ks}
        assert seen >= {"short_rows", "team_rows", "long_rows", "columns", "tiles"}

    def test_clusters(self, rng, tmp_path):
        """Rows and columns that several blocks hold together."""
        batch = Batch()
        for shape, axis in (((9, 40_000), 1), ((1100, 140), 0), ((2500, 3), 0), ((9001, 8), 0), ((33_000, 3), 0)):
            x = draw(rng, "float32", shape)
            want = (x - wide(x).mean(axis, keepdims=True)) / np.sqrt(wide(x).var(axis, keepdims=True) + 1e-5)
            batch.add(lambda g, i, a=axis: normalized(g, i, a), x, check=close_to(want, 1, 8))
            weight, bias = (draw(rng, "float32", (shape[0], 1)) for _ in range(2))
            if axis == 0:
                scale = 1 + abs(weight * want) + abs(bias)
                batch.add(weighted, x, weight, bias, check=close_to(want * weight + bias, scale, 8))
        kernels = batch.run(tmp_path, clusters=True, multiprocessors=16, on_chip_bytes=1 << 30)
        assert all(k.launch["cluster"] > 1 for ks in kernels.kernels for k in ks)
        assert {skeleton(k.source) for ks in kernels.kernels for k in ks} == {"ring_rows", "tiles", "columns"}

    def test_special_reductions(self, rng, tmp_path):
        """All of an array, around a mean; values for each row, which have no stride along the lanes; sweeps without
        end; elements of tables that are wider than results."""
        batch = Batch()
        big = draw(rng, "float32", 100_003) + np.float32(100)
        batch.add(variance, big, check=close_to(wide(big).var(), 1, 8))
        x, per_row = rng.integers(-9, 9, (2, 16, 64)), rng.integers(-9, 9, (2, 16, 1))
        for dtype in ("float32", "float64"):
            given = [a.astype(dtype) for a in (x, per_row)]
            build = lambda g, x, y: g.reduce("sum", g.map("multiply", [x, y]), [0])  # noqa: E731
            batch.add(build, *given, check=close_to((x * per_row).sum(0).astype(float)))
        x = rng.integers(-99, 99, (24, 40)).astype(np.float64)
        for axis in (1, 0):
            want = x
            for _ in range(34):  # more than a word has bits
                want = want - want.max(axis, keepdims=True) * 0.5

            def sweeps(g: _core.Graph, x: int, axis: int = axis) -> int:
                for _ in range(34):
                    x = g.map("subtract", [x, g.map("multiply", [g.reduce("max", x, [axis], True), g.scalar(0.5)])])
                return x

            batch.add(sweeps, x, check=close_to(want))
        rows = np.array([-1, 1, 1], np.int32)
        for table, to in (("float64", "float16"), ("float64", "float32"), ("int64", "int32"), ("float32", "bfloat16")):
            x = draw(rng, table, (4, 32))
            build = lambda g, x, i, to=to: g.cast(g.take(x, i, 0), to)  # noqa: E731
            batch.add(build, x, rows, check=close_to(wide(x)[rows], spacings=1))
        batch.run(tmp_path)

    def test_special_values(self, tmp_path):
        x = np.array([[1, np.nan, 3], [-np.inf, 2, np.inf], [-0.0, -0.0, -0.0], [np.nan] * 3])
        batch = Batch()
        for name, oracle in reference_ops.REDUCTIONS.items():
            for y, axis in ((x, 1), (x.T.copy(), 0), (np.repeat(x, 100, 1), 1)):
                with np.errstate(invalid="ignore"):
                    want = oracle(y, axis=axis)
                batch.add(lambda g, i, n=name, a=axis: g.reduce(n, i, [a]), y, check=close_to(want))
        batch.run(tmp_path)
