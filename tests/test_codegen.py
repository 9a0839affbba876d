"""Generated CUDA C++: its text, and what it computes, on a host that plays the GPU."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import kfusion as kf
import loops
import reference_ops
from conftest import ALL_DTYPES, DTYPES, np_dtype
from graph_strategies import cases
from host_cuda import DEVICE, HAVE_COMPILER, HostKernels
from kfusion import _core
from running import assert_close, draw, wide
from test_reference_ops import TABLE, takes
from test_reference_ops import TestMaps as Maps

needs_compiler = pytest.mark.skipif(not HAVE_COMPILER, reason="needs g++")
Build = Callable[..., Any]
MOST_SHARED = 232448  # bytes that a block of an H200 can have


def graph_of(build: Build, *arrays: np.ndarray) -> _core.Graph:
    g = _core.Graph()
    ids = [
        g.input(f"x{i}", a.shape, str(a.dtype), strides=[s // a.itemsize for s in a.strides])
        for i, a in enumerate(arrays)
    ]
    outputs = build(g, *ids)
    g.set_outputs([(str(i), n) for i, n in enumerate(outputs if isinstance(outputs, list) else [outputs])])
    return g


def empty(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """An array of any size that takes no memory."""
    strides = np.cumprod([1, *shape[:0:-1]])[::-1] * np_dtype(dtype).itemsize
    return np.lib.stride_tricks.as_strided(np.empty(1, np_dtype(dtype)), shape, strides)


def sources(build: Build, *arrays: np.ndarray, **options: Any) -> list[str]:
    return [k.source for k in _core.cuda_kernels(graph_of(build, *arrays), DEVICE, **options)]


def chain(g: _core.Graph, x: int, b: int) -> int:
    return g.map("log", [g.map("add", [g.map("relu", [g.map("add", [x, b])]), g.scalar(1.5)])])


def normalized(g: _core.Graph, x: int, axis: int = 1) -> int:
    d = g.map("subtract", [x, g.reduce("mean", x, [axis], True)])
    variance = g.reduce("mean", g.map("square", [d]), [axis], True)
    return g.map("divide", [d, g.map("sqrt", [g.map("add", [variance, g.scalar(1e-5)])])])


def weighted(g: _core.Graph, x: int, weight: int, bias: int) -> int:
    """Columns, with parameters that go along them."""
    return g.map("add", [g.map("multiply", [normalized(g, x, 0), weight]), bias])


def softmax(g: _core.Graph, x: int, axis: int = 1) -> int:
    e = g.map("exp", [g.map("subtract", [x, g.reduce("max", x, [axis], True)])])
    return g.map("divide", [e, g.reduce("sum", e, [axis], True)])


def variance(g: _core.Graph, x: int, axes: Any = None) -> int:
    d = g.map("subtract", [x, g.reduce("mean", x, axes, True)])
    return g.reduce("mean", g.map("square", [d]), axes)


def skeleton(source: str) -> str:
    return re.findall(r"  (\w+)<Fused", source)[-1]


class TestText:
    def test_another_batch_size_is_the_same_text(self):
        # Of elements there are two texts: of few, which all have a thread at once, and of many.
        for build, arguments, rows in (
            (chain, (empty((1000,)),), (64, 500)),
            (chain, (empty((1000,)),), (5000, 100_001)),
            (normalized, (), (64, 100_001)),
            (softmax, (), (64, 100_001)),
        ):
            (one,), (other,) = (sources(build, empty((n, 1000)), *arguments) for n in rows)
            assert one == other
        (one,), (other,) = (sources(lambda g, x: g.map("exp", [x]), empty((n,))) for n in (64, 10_001))
        assert one == other
        (one,), (other,) = (sources(lambda g, x: g.reduce("sum", x, [0]), empty((n, 512))) for n in (64, 10_001))
        assert one == other

    def test_another_scalar_is_the_same_text(self):
        def scaled(factor: float) -> Build:
            return lambda g, x: g.map("multiply", [x, g.scalar(factor)])

        assert sources(scaled(2.0), empty((64,))) == sources(scaled(-7.5), empty((64,)))

    def test_what_is_large_has_wide_indices(self):
        (narrow,), (large,) = (sources(lambda g, x: g.map("exp", [x]), empty((n,))) for n in (2**30, 2**32))
        assert "using Index = int;" in narrow
        assert "using Index = i64;" in large

    def test_no_kernel_asks_for_more_shared_memory_than_there_is(self):
        h200 = kf.device("h200").to_dict()
        for operands, cols, rows in itertools.product((1, 2, 3, 5, 8), (2**14, 2**16, 2**17, 2**18, 2**20), (4, 200)):

            def build(g: _core.Graph, *x: int) -> int:
                return softmax(g, functools.reduce(lambda a, b: g.map("add", [a, b]), x))

            for k in _core.cuda_kernels(graph_of(build, *[empty((rows, cols))] * operands), h200):
                assert k.launch["shared_bytes"] <= MOST_SHARED, (operands, cols, rows, skeleton(k.source))

    @pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
    def test_rings_hold_their_rows(self, dtype, rng):
        """What each warp has of a row, as it finds it itself, is no more than its text has room for."""
        h200 = kf.device("h200").to_dict()
        rings = 0
        item = np_dtype(dtype).itemsize
        some = (63, 65, 80, 129, 200, 257, 400, 513, 700, 1025, 2047, 2049, 4100)
        for kib, more in itertools.product(some, (0, int(rng.integers(-15, 16)))):
            cols = kib * 1024 // item + more
            x, w = empty((200, cols), dtype), empty((cols,), dtype)
            for build, arrays in (
                (softmax, [x]),
                (weighted, [x, w, w]),
                (lambda g, *i: normalized(g, functools.reduce(lambda a, b: g.map("add", [a, b]), i)), [x, x, x]),
                (
                    lambda g, i, j: softmax(g, g.map("multiply", [i, j])),
                    [empty((200, 1), dtype), empty((1, cols), dtype)],
                ),
            ):
                for k in _core.cuda_kernels(graph_of(build, *arrays), h200):
                    assert k.launch["shared_bytes"] <= MOST_SHARED
                    ring = re.search(r"ring_rows<Fused, (\d+), (\d+), false", k.source)
                    if ring is None:
                        continue
                    segments, vectors = map(int, ring.groups())
                    width = int(re.findall(r"kWidth = (\d+)", k.source)[0])
                    warps = k.launch["cluster"] * k.launch["block"][0] // 32
                    assert -(-cols // (32 * vectors * width)) <= segments * warps, (cols, k.launch)
                    assert k.launch["grid"][0] % k.launch["cluster"] == 0
                    rings += 1
        assert rings >= 30

    def test_short_rows_of_many_arrays_ask_for_no_more_shared_memory_than_there_is(self):
        def build(g: _core.Graph, mask: int, *x: int) -> int:
            total = functools.reduce(lambda a, b: g.map("add", [a, b]), x)
            return normalized(g, g.map("where", [mask, total, x[0]]))

        for operands in (2, 6, 20):
            arrays = [empty((1000, 99), "bool"), *[empty((1000, 99), "float64")] * operands]
            for k in _core.cuda_kernels(graph_of(build, *arrays), kf.device("h200").to_dict()):
                assert k.launch["shared_bytes"] <= MOST_SHARED, (operands, skeleton(k.source))

    @pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
    def test_columns_ask_for_no_more_shared_memory_than_there_is(self, dtype):
        h200 = kf.device("h200").to_dict()
        for rows, cols in itertools.product([*range(16, 4096, 240), *range(4096, 70_000, 3000)], (100, 4096)):
            x, w = empty((rows, cols), dtype), empty((rows, 1), dtype)
            for build, arrays in ((lambda g, i: normalized(g, i, 0), [x]), (weighted, [x, w, w])):
                for k in _core.cuda_kernels(graph_of(build, *arrays), h200, clusters=True):
                    assert k.launch["shared_bytes"] <= MOST_SHARED, (rows, cols, skeleton(k.source))

    def test_vectors_have_sixteen_bytes_where_arrays_allow_it(self):
        def width(x: np.ndarray, **options: Any) -> int:
            (text,) = sources(lambda g, i: g.map("negative", [i]), x, **options)
            return int(re.findall(r"kWidth = (\d+)", text)[0])

        assert {d: width(empty((8, 64), d)) for d in DTYPES} == {
            "float16": 8, "bfloat16": 8, "float32": 4, "float64": 2
        }  # fmt: skip
        assert width(empty((8, 64)), aligned=False) == 1
        assert width(np.empty((8, 64), np.float32)[:, ::2]) == 1
        assert width(np.empty((8, 65), np.float32)[:, :64]) == 1
        assert width(np.empty((8, 68), np.float32)[:, :64]) == 4

    def test_rows_are_held_by_what_has_room_for_them(self):
        for cols, expected in ((64, "short_rows"), (1024, "team_rows"), (2**18, "ring_rows")):
            assert skeleton(sources(normalized, empty((100, cols)))[0]) == expected
        assert skeleton(sources(normalized, empty((100, 2**23)))[0]) == "long_rows"
        assert skeleton(sources(variance, empty((2**20,)))[0]) == "split_rows"
        for rows, expected in ((100, "tiles"), (14_000, "tiles"), (100_000, "columns")):
            assert skeleton(sources(lambda g, x: normalized(g, x, 0), empty((rows, 300)))[0]) == expected
        assert skeleton(sources(lambda g, x: variance(g, x, [0]), empty((100, 300)))[0]) == "columns"

    def test_it_reads_in_the_users_names(self):
        g = _core.Graph()
        x = g.input("pixels", (4, 8), "float32")
        g.begin_stage("brighten", "f.py:3: brighten(pixels)")
        y = g.map("exp", [x])
        g.end_stage()
        g.set_outputs([("", y)])
        (kernel,) = _core.cuda_kernels(g, DEVICE)
        assert "in_pixels" in kernel.source
        assert "// brighten" in kernel.source
        assert "brighten" in kernel.entry


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


@needs_compiler
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
            d = wide(x) - wide(x).mean(1, keepdims=True)
            e = np.exp(wide(x) - wide(x).max(1, keepdims=True))
            want = d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5)
            batch.add(normalized, x, check=close_to(want, 1, 8))
            batch.add(softmax, x, check=close_to(e / e.sum(1, keepdims=True), 0, 16))
            w = rng.standard_normal((2, cols)).astype(np_dtype(dtype))
            weighted = lambda g, i, j: g.map("multiply", [normalized(g, i), j])  # noqa: E731
            batch.add(weighted, x, w[0], check=close_to(want * wide(w[0]), 1 + abs(wide(w[0])), 8))
            batch.add(
                lambda g, i, j, k, f=weighted: g.map("add", [f(g, i, j), k]),
                x,
                *w,
                check=close_to(want * wide(w[0]) + wide(w[1]), 1 + abs(wide(w)).sum(0), 8),
            )
        kernels = batch.run(tmp_path, clusters=True, multiprocessors=multiprocessors)
        assert {skeleton(own[0].source) for own in kernels.kernels} == {f"{used}_rows"}

    @pytest.mark.parametrize(("dtype", "cols"), [("float32", 20_000), ("float32", 50_000), ("bfloat16", 70_000)])
    def test_long_rows_of_several_arrays(self, dtype, cols, rng, tmp_path):
        batch = Batch()
        for operands in (2, 3, 5):
            x = rng.standard_normal((operands, 5, cols)).astype(np_dtype(dtype))
            total = wide(x).sum(0)
            d = total - total.mean(1, keepdims=True)
            want = d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5)
            add = lambda g, *i: normalized(g, functools.reduce(lambda a, b: g.map("add", [a, b]), i))  # noqa: E731
            batch.add(add, *x, check=close_to(want, abs(wide(x)).sum(0) + 1, 8))
        kernels = batch.run(tmp_path, clusters=True, multiprocessors=4)
        assert {skeleton(own[0].source) for own in kernels.kernels} == {"ring_rows"}

    def test_long_rows_of_nothing_that_is_held(self, rng, tmp_path):
        """An element a row, times weights: no row is as large as the result."""
        batch = Batch()
        for cols in (70_000, 140_000):
            x, w = rng.standard_normal((5, 1)).astype(np.float32), rng.standard_normal((1, cols)).astype(np.float32)
            e = np.exp(wide(x) * wide(w) - (wide(x) * wide(w)).max(1, keepdims=True))
            product = lambda g, i, j: softmax(g, g.map("multiply", [i, j]))  # noqa: E731
            batch.add(product, x, w, check=close_to(e / e.sum(1, keepdims=True), 0, 64))
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
                e = np.exp(wide(x) - wide(x).max(1, keepdims=True))
            batch.add(softmax, x, check=close_to(e / e.sum(1, keepdims=True), 0, 16))
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
            s = np.exp(wide(y)) / np.exp(wide(y)).sum(1, keepdims=True)
            d = s - s.mean(1, keepdims=True)
            want = d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5)
            batch.add(lambda g, i: normalized(g, softmax(g, i)), y, check=close_to(want, 1, 8))
        batch.run(tmp_path, clusters=True, multiprocessors=4)

    @pytest.mark.parametrize("dtype", ALL_DTYPES)
    def test_every_op(self, dtype, rng, tmp_path):
        batch = Batch()
        for name in reference_ops.MAPS:
            if dtype not in takes(name):
                continue
            arrays = [draw(rng, dtype, 77) for _ in range(TABLE[name]["arity"])]
            if dtype in DTYPES and name in Maps.DOMAIN:
                arrays = [Maps.DOMAIN[name](wide(x)).astype(x.dtype) for x in arrays]
            if name == "power" and dtype in ("int32", "int64"):
                arrays[1] = np.abs(arrays[1])
            with np.errstate(all="ignore"):
                want = reference_ops.MAPS[name](*map(wide, arrays))
            scale = 4 if name == "logaddexp" else 0
            batch.add(lambda g, *ids, n=name: g.map(n, list(ids)), *arrays, check=close_to(want, scale))
        for to in ALL_DTYPES:
            x = draw(rng, dtype, 33)
            batch.add(lambda g, i, t=to: g.cast(i, t), x, check=close_to(wide(wide(x).astype(np_dtype(to)))))
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
            w = wide(x).astype(np.longdouble)
            e = np.exp(w - w.max(1, keepdims=True))
            batch.add(softmax, x, check=close_to(e / e.sum(1, keepdims=True), 0, 24))
            batch.add(
                lambda g, i, j: g.map("multiply", [softmax(g, i), j]),
                x,
                y,
                check=close_to(e / e.sum(1, keepdims=True) * wide(y), 0, 28),
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
        run = {0: loops.Memory(memory, 1), 1: loops.Memory(np.zeros(1005, np.float32), 1)}
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


def test_names_that_end_like_others():
    """Values a, a_1, a[1] and so on, with strides of their own, in one kernel."""
    g = _core.Graph()
    names = ("a", "a_1", "a[1]", "a_1_1", "a 1", "a", "", "1")
    inputs = [g.input(name, (6, 5), "float32", strides=(1, 20)) for name in names]
    y = inputs[0]
    for x in inputs[1:]:
        y = g.map("add", [g.map("multiply", [y, g.broadcast(g.slice(x, [(0, 6, 1), (0, 1, 1)]), (6, 5))]), x])
    g.set_outputs([("", y)])
    (kernel,) = _core.cuda_kernels(g, DEVICE)
    members = re.findall(r"^  [^(]*?(\w+);", kernel.source.split("struct Parameters {")[1].split("};")[0], re.MULTILINE)
    assert len(members) == len(set(members)) > 2 * len(names)
