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

import kernel_loops
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
        [
            (
                "ring",
                4,
                [("float32", 3, 40_000), ("bfloat16", 3, 65_544), ("float16", 3, 100_000), ("float64", 3, 20_000)],
            ),
            ("spread", 8, [("float32", 2, 40_000), ("bfloat16", 1, 65_544)]),
        ],
    )
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

    def test_stores_into_slices(self, rng, tmp_path):
        """Vectors into aligned slices, elements into others; columns and rows that are parts of a join."""

        def turned(g: _core.Graph, x: int) -> int:
            rows, cols = g.shape(x)
            halves = [g.slice(x, [(0, rows, 1), r]) for r in ((cols // 2, cols, 1), (0, cols // 2, 1))]
            return g.map("add", [x, g.concatenate([g.map("negative", [halves[0]]), halves[1]], 1)])

        def in_pairs(g: _core.Graph, x: int) -> int:
            rows, cols = g.shape(x)
            parts = [g.slice(x, [(0, rows, 1), (i, cols, 2)]) for i in (1, 0)]
            parts = [g.reshape(p, (rows, cols // 2, 1)) for p in (g.map("negative", [parts[0]]), parts[1])]
            return g.map("add", [x, g.reshape(g.concatenate(parts, 2), (rows, cols))])

        def beside(g: _core.Graph, x: int) -> list[int]:
            y = g.concatenate([softmax(g, x), x, g.broadcast(g.cast(g.scalar(1), g.dtype(x)), (g.shape(x)[0], 3))], 1)
            return [y, g.concatenate([softmax(g, x, 0), g.reduce("max", x, [0], True)], 0)]

        batch = Batch()
        for dtype, cols in (("float32", 64), ("bfloat16", 64), ("float32", 10), ("float16", 22), ("float64", 6)):
            x = rng.standard_normal((9, cols)).astype(np_dtype(dtype))
            half = cols // 2
            halves = np.concatenate((-wide(x)[:, half:], wide(x)[:, :half]), 1)
            pairs = np.stack((-wide(x)[:, 1::2], wide(x)[:, ::2]), -1).reshape(x.shape)
            batch.add(turned, x, check=close_to(wide(x) + halves, abs(halves)))
            batch.add(in_pairs, x, check=close_to(wide(x) + pairs, abs(pairs)))
            along = np.concatenate((softmax_rows(wide(x)), wide(x), np.ones((9, 3))), 1)
            across = np.concatenate((softmax_rows(wide(x).T).T, wide(x).max(0)[None]))
            batch.add(lambda g, x: beside(g, x)[0], x, check=close_to(along, 1))
            batch.add(lambda g, x: beside(g, x)[1], x, check=close_to(across, 1))
        kernels = batch.run(tmp_path)
        assert [len(own) for own in kernels.kernels[:2]] == [1, 1]

    def test_rows_of_odd_width_with_weights(self, rng, tmp_path):
        """Lanes of a warp, a warp, several or a cluster of blocks share a row; some weights begin at odd addresses."""
        batch = Batch()
        for dtype, rows, cols in (
            ("bfloat16", 2050, 101),
            ("float16", 2048, 257),
            ("bfloat16", 2051, 1537),
            ("float32", 5, 20_001),
            ("float32", 5, 70_003),
        ):
            x = rng.standard_normal((rows, cols)).astype(np_dtype(dtype))
            w = rng.standard_normal((2, cols + 1)).astype(np_dtype(dtype))
            want = normalized_rows(wide(x))
            for own in (w[:, 1:], w[:, :-1]):
                shifted = want * wide(own[0]) + wide(own[1])
                batch.add(scaled, x, *own, check=close_to(shifted, 1 + abs(wide(own)).sum(0), 8))
        kernels = batch.run(tmp_path, clusters=True, multiprocessors=2)
        assert {skeleton(own[0].source) for own in kernels.kernels} == {"weighted_rows", "ring_rows"}
        assert all("Planes" in own[0].source for own in kernels.kernels)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_softmax_of_what_takes_long_to_compute(self, dtype, rng, tmp_path):
        """It is computed once, and the exponentials take the place of what it is computed from."""

        def capped(g, i):
            return softmax(g, g.map("multiply", [g.map("tanh", [g.map("divide", [i, g.scalar(3)])]), g.scalar(9)]))

        batch = Batch()
        for rows, cols in ((3, 96), (2, 1024), (2, 1001), (2, 8192), (2, 40_000)):
            x = rng.standard_normal((rows, cols)).astype(np_dtype(dtype))
            x[0, :3] = np.inf, -np.inf, 0
            batch.add(capped, x, check=close_to(softmax_rows(9 * np.tanh(wide(x) / 3)), 0, 64))
            m = rng.standard_normal(x.shape).astype(np_dtype(dtype))
            batch.add(softmax_of_product, x[1:], m[1:], check=close_to(softmax_rows(wide(x[1:]) * wide(m[1:])), 0, 64))
        kernels = batch.run(tmp_path)
        assert all("kept" in own[0].source for own in kernels.kernels[:4])

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_what_is_picked_by_its_number(self, dtype, rng, tmp_path):
        batch = Batch()
        for cols, other in ((33, 0.0), (1001, 0.0), (1024, 0.0), (1024, 2.0), (40_000, 0.0)):
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
        kernels = batch.run(tmp_path)
        assert all("which_is<i64>" in own[0].source for own in kernels.kernels)

    @pytest.mark.parametrize("integer", ["int32", "int64"])
    def test_elements_that_have_the_number_of_their_row(self, integer, rng, tmp_path):
        """In the sweep that stores them, as in the gradient of a loss by class numbers."""
        batch = Batch()
        for cols in (3, 33, 1001, 1024, 40_000, 131_080):
            x = rng.standard_normal((5, cols)).astype(np_dtype("bfloat16"))
            t = np.array([[0], [cols - 1], [2], [-1], [cols]], integer)

            def put(g, i, j, cols=cols):
                own = g.map("equal", [j, g.iota((5, cols), 1, integer)])
                less = g.map("subtract", [i, g.reduce("max", i, [1], True)])
                return g.map("where", [own, g.map("negative", [less]), less])

            less = wide(x) - wide(x).max(1, keepdims=True)
            batch.add(put, x, t, check=close_to(np.where(np.arange(cols) == t, -less, less), abs(less) + 1, 8))
        x = rng.standard_normal(1001).astype(np.float32)

        def one(g, i):
            own = g.map("equal", [g.iota((1001,), 0, integer), g.scalar(9)])
            return g.map("where", [own, g.scalar(0.0), i])

        batch.add(one, x, check=close_to(np.where(np.arange(1001) == 9, 0, wide(x))))
        kernels = batch.run(tmp_path)
        code = "i32" if integer == "int32" else "i64"
        assert all(f"which_is<{code}>" in own[0].source for own in kernels.kernels)

    def test_columns_with_a_value_for_each_row(self, rng, tmp_path):
        """It has no stride along the lanes, and lies along the rows in whole vectors."""
        x, per_row = rng.integers(-9, 9, (2, 16, 64)), rng.integers(-9, 9, (2, 16, 1))
        batch = Batch()
        for dtype in ("float32", "float64"):
            given = [a.astype(dtype) for a in (x, per_row)]
            build = lambda g, x, y: g.reduce("sum", g.map("multiply", [x, y]), [0])  # noqa: E731
            batch.add(build, *given, check=close_to((x * per_row).sum(0).astype(float)))
        batch.run(tmp_path)

    def test_more_sweeps_than_a_word_has_bits(self, rng, tmp_path):
        x = rng.integers(-99, 99, (24, 40)).astype(np.float64)
        batch = Batch()
        for axis in (1, 0):
            want = x
            for _ in range(34):
                want = want - want.max(axis, keepdims=True) * 0.5

            def build(g: _core.Graph, x: int, axis: int = axis) -> int:
                for _ in range(34):
                    x = g.map("subtract", [x, g.map("multiply", [g.reduce("max", x, [axis], True), g.scalar(0.5)])])
                return x

            batch.add(build, x, check=close_to(want))
        batch.run(tmp_path)

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

    @pytest.mark.parametrize(("dtype", "cols"), [("float32", 20_000), ("float32", 50_000), ("bfloat16", 70_000)])
    def test_long_rows_of_several_arrays(self, dtype, cols, rng, tmp_path):
        batch = Batch()
        for operands in (2, 3, 5):
            x = rng.standard_normal((operands, 5, cols)).astype(np_dtype(dtype))
            want = normalized_rows(wide(x).sum(0))
            build = lambda g, *i: normalized(g, total(g, *i))  # noqa: E731
            batch.add(build, *x, check=close_to(want, abs(wide(x)).sum(0) + 1, 8))
        kernels = batch.run(tmp_path, clusters=True, multiprocessors=4)
        assert {skeleton(own[0].source) for own in kernels.kernels} == {"ring_rows"}

    def test_long_rows_of_nothing_that_is_held(self, rng, tmp_path):
        """An element a row, times weights: no row is as large as the result."""
        batch = Batch()
        for cols in (70_000, 140_000):
            x, w = rng.standard_normal((5, 1)).astype(np.float32), rng.standard_normal((1, cols)).astype(np.float32)
            batch.add(softmax_of_product, x, w, check=close_to(softmax_rows(wide(x) * wide(w)), 0, 64))
        batch.run(tmp_path, clusters=True, multiprocessors=4)

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

    def test_layouts(self, rng, tmp_path):
        batch = Batch()
        layouts = [
            lambda make: make(()),
            lambda make: make((70, 60))[::2, 1::3],
            lambda make: make((40, 30))[::-1, ::-2],
            lambda make: make((20, 30, 40)).transpose(2, 0, 1),
            lambda make: make((3, 700))[:, 5:-7],
            lambda make: make((3, 704))[:, 4:-8],
            lambda make: make((300, 7))[:, 2:5],
            lambda make: np.broadcast_to(make((30, 1)), (20, 30, 40)),
            lambda make: np.broadcast_to(make((1, 40)), (20, 30, 40)),
        ]
        for layout in layouts:
            for dtype in ("bool", "bfloat16", "float32", "int64"):
                x = layout(lambda shape, d=dtype: draw(rng, d, shape))
                y = np.ascontiguousarray(x[..., ::-1] if x.ndim else x)
                batch.add(lambda g, i, j: g.map("maximum", [i, j]), x, y, check=close_to(np.maximum(wide(x), wide(y))))
        batch.run(tmp_path)

    @pytest.mark.parametrize("dtype", ["bool", "bfloat16", "float32", "float64"])
    def test_crossed_operands(self, dtype, rng, tmp_path):
        batch = Batch()
        axes = [((96, 48), (1, 0)), ((3, 32, 80), (0, 2, 1)), ((2, 16, 5, 16), (0, 2, 3, 1)), ((32, 3, 64), (2, 1, 0))]
        for shape, order in axes:
            x = draw(rng, dtype, shape).transpose(order)
            y = draw(rng, dtype, x.shape)
            batch.add(lambda g, i, j: g.map("maximum", [i, j]), x, y, check=close_to(np.maximum(wide(x), wide(y))))
        odd = [draw(rng, dtype, (33, 51)).T, draw(rng, dtype, (51, 33))]
        for x, y in (odd, [a[:48, :32] for a in odd], [draw(rng, dtype, (32, 51)).T, draw(rng, dtype, (51, 32))]):
            batch.add(lambda g, i, j: g.map("maximum", [i, j]), x, y, check=close_to(np.maximum(wide(x), wide(y))))
        sees = draw(rng, "bool", (32, 512, 17))
        both = [draw(rng, dtype, (32, 17, 512)).transpose(0, 2, 1) for _ in range(2)]  # more than is not
        want = np.where(sees, wide(both[0]), wide(both[1]))
        batch.add(lambda g, *ids: g.map("where", list(ids)), sees, *both, check=close_to(want))
        turned = len(batch.cases)
        row, column = draw(rng, dtype, (1, 48)), draw(rng, dtype, (96, 1))
        x, y = draw(rng, dtype, (48, 96)).T, draw(rng, dtype, (96, 48))
        want = np.maximum(np.maximum(wide(x), wide(y)), np.maximum(wide(row), wide(column)))
        broadcast = [np.broadcast_to(row, x.shape), np.broadcast_to(column, x.shape)]
        batch.add(
            lambda g, *ids: functools.reduce(lambda a, b: g.map("maximum", [a, b]), ids),
            x,
            y,
            *broadcast,
            check=close_to(want),
        )
        if dtype != "bool":
            w = np.maximum(wide(x), wide(y)).astype(np.longdouble)
            deviation = np.sqrt(w.var(0) + 1e-5)
            scale = 1 + abs(w.mean(0)) / deviation
            batch.add(
                lambda g, i, j: normalized(g, g.map("maximum", [i, j]), 0),
                x,
                y,
                check=close_to((w - w.mean(0)) / deviation, scale, 8),
            )
            batch.add(lambda g, i, j: variance(g, g.map("maximum", [i, j]), [0]), x, y, check=close_to(w.var(0), 1, 8))
            want = softmax_rows(wide(x).astype(np.longdouble))
            batch.add(softmax, x, check=close_to(want, 0, 24))
            batch.add(
                lambda g, i, j: g.map("multiply", [softmax(g, i), j]),
                x,
                y,
                check=close_to(want * wide(y), 0, 28),
            )
        kernels = batch.run(tmp_path)
        assert all(skeleton(k.source) in ("columns", "tiles") for ks in kernels.kernels for k in ks)
        assert all("transpose(rows" in k.source for ks in kernels.kernels[:4] + kernels.kernels[turned:] for k in ks)

    def test_arrays_at_any_address(self, rng, tmp_path):
        x = draw(rng, "float32", 1003)
        batch = Batch()
        batch.add(lambda g, i: g.map("negative", [i]), x, check=lambda got: None)
        kernels = batch.run(tmp_path, aligned=False)
        memory = np.zeros(1005, np.float32)
        memory[1:1004] = x
        (function,), (kernel,) = kernels.functions[0], kernels.kernels[0]
        run = {0: kernel_loops.Memory(memory, 1), 1: kernel_loops.Memory(np.zeros(1005, np.float32), 1)}
        lowered = kernels.lowered[0]["kernels"][0]
        kernels._run(function, kernel, lowered, run)
        np.testing.assert_array_equal(run[1].elements[1:1004], -x)

    SHAPES = (
        (5, 3),
        (4, 16),
        (7, 304),
        (7, 704),
        (3, 1504),
        (130, 8),
        (3, 1023),
        (6, 1024),
        (3, 4100),
        (2, 4097),
        (2, 40_000),
        (1, 70_000),
    )

    def test_tables_of_wider_elements_than_results(self, rng, tmp_path):
        """Whole vectors of a table may have more bytes than a load has."""
        batch, rows = Batch(), np.array([-1, 1, 1], np.int32)
        for table, result in (
            ("float64", "float16"),
            ("float64", "float32"),
            ("int64", "int32"),
            ("float32", "bfloat16"),
        ):
            x = draw(rng, table, (4, 32))
            batch.add(
                lambda g, x, i, to=result: g.cast(g.take(x, i, 0), to),
                x,
                rows,
                check=close_to(wide(x)[rows], spacings=1),
            )
        batch.run(tmp_path)

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

    @pytest.mark.parametrize("clusters", [False, True])
    def test_columns_of_several_axes_with_weights_along_some(self, clusters, rng, tmp_path):
        batch = Batch()
        for shape, *weights in (
            ((24, 3, 8), (24, 3, 1), (24, 1, 8), (24, 1, 1), (1, 3, 1)),
            ((40, 2, 4, 8), (40, 2, 1, 1), (40, 1, 4, 1), (40, 2, 1, 8)),
        ):
            x = draw(rng, "float32", shape)
            want = (x - wide(x).mean(0, keepdims=True)) / np.sqrt(wide(x).var(0, keepdims=True) + 1e-5)
            for w in (draw(rng, "float32", s) for s in weights):
                batch.add(
                    lambda g, i, j: g.map("multiply", [normalized(g, i, 0), j]),
                    x,
                    w,
                    check=close_to(want * w, (1 + abs(want)) * abs(w), 8),
                )
        kernels = batch.run(tmp_path, clusters=clusters, multiprocessors=16)
        assert {skeleton(k.source) for ks in kernels.kernels for k in ks} == {"tiles"}

    @pytest.mark.parametrize("dtype", ["bool", "int32", "bfloat16", "float32"])
    def test_reductions(self, dtype, rng, tmp_path):
        batch = Batch()
        for name, oracle in reference_ops.REDUCTIONS.items():
            for shape in ((300, 20), (2, 20_001)):
                for axes in (None, [0], [1]):
                    x = draw(rng, dtype, shape)
                    if name == "prod" and dtype in DTYPES:
                        x = (1 + wide(x) / 4096).astype(x.dtype)
                    axis = None if axes is None else tuple(axes)
                    with np.errstate(all="ignore"):
                        want = oracle(wide(x), axis=axis)
                        scale = oracle(np.abs(wide(x)), axis=axis) if name == "sum" else 1 if name == "mean" else 0
                    batch.add(
                        lambda g, i, n=name, a=axes: g.reduce(n, i, a),
                        x,
                        check=close_to(want, scale, 4000 if name == "prod" else 4),
                    )
        batch.run(tmp_path)

    def test_reductions_of_several_axes_and_of_everything(self, rng, tmp_path):
        batch = Batch()
        x = draw(rng, "float32", (6, 70, 50))
        for axes in ([0], [1], [2], [0, 1], [0, 2], [1, 2], None):
            axis = None if axes is None else tuple(axes)
            for y in (x, x.transpose(2, 0, 1)[::2, ::-1, 3:]):
                total, scale = wide(y).sum(axis), abs(wide(y)).sum(axis)
                batch.add(lambda g, i, a=axes: g.reduce("sum", i, a), y, check=close_to(total, scale))
                batch.add(lambda g, i, a=axes: variance(g, i, a), y, check=close_to(wide(y).var(axis), 1, 8))
        big = draw(rng, "float32", 100_003) + np.float32(100)
        batch.add(variance, big, check=close_to(wide(big).var(), 1, 8))
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
