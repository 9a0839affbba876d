"""The CPU executor's kernels: every op, dtype and length, any strides, reductions of all kinds, to the bit where fused
and unfused must agree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import kfusion as kf
import reference_ops
from cpu_kernels import DEVICE, Kernels
from graph_runs import assert_close, draw, graph_of, rounded, wide
from graph_strategies import cases
from kfusion import _core
from kinds import ALL_DTYPES, DTYPES, np_dtype
from test_reference_ops import arguments, takes

pytestmark = pytest.mark.native

# Around the sizes of a register and of a tile of every instruction set.
LENGTHS = (1, 2, 3, 7, 8, 9, 15, 17, 31, 33, 63, 65, 127, 128, 129, 300, 1000)


def run(build: Callable[..., Any], *arrays: np.ndarray, fuse: bool = True) -> list[np.ndarray]:
    """What the kernels make of build(graph, ids of the inputs)."""
    return Kernels(graph_of(build, *arrays), fuse)(*arrays)


def run_map(name: str, *arrays: np.ndarray) -> np.ndarray:
    return run(lambda g, *ids: g.map(name, list(ids)), *arrays)[0]


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(f"u{x.itemsize}")


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(cases(), st.booleans())
def test_random_graphs(case, fuse):
    case.check(Kernels(case.graph, fuse)(*case.inputs))


class TestElements:
    @pytest.mark.parametrize("dtype", ALL_DTYPES)
    def test_every_op_and_length(self, dtype, isa, rng):
        for name in reference_ops.MAPS:
            if dtype not in takes(name):
                continue
            arrays = arguments(name, dtype, lambda: draw(rng, dtype, max(LENGTHS)))
            with np.errstate(all="ignore"):
                want = reference_ops.MAPS[name](*map(wide, arrays))
            whole = run_map(name, *arrays)
            assert_close(whole, want, scale=4 if name == "logaddexp" else 0)
            for n in LENGTHS:  # an element's bits do not depend on its place
                np.testing.assert_array_equal(bits(run_map(name, *[x[:n] for x in arrays])), bits(whole[:n]), name)

    @pytest.mark.parametrize("dtype", ALL_DTYPES)
    def test_casts(self, dtype, isa, rng):
        for to in ALL_DTYPES:
            x = draw(rng, dtype, 333)
            got = run(lambda g, i, t=to: g.cast(i, t), x)[0]
            np.testing.assert_array_equal(wide(got), wide(rounded(wide(x), to)))

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_casts_of_what_no_integer_holds(self, dtype, isa):
        x = np.array([np.nan, np.inf, -np.inf]).astype(np_dtype(dtype))
        for to in ("int32", "int64"):
            np.testing.assert_array_equal(run(lambda g, i, t=to: g.cast(i, t), x)[0], np.iinfo(to).min)

    @pytest.mark.parametrize(("to", "lost_bits"), [("float16", 11), ("bfloat16", 8)])
    def test_doubles_are_rounded_once(self, to, lost_bits, isa):
        half = 2.0**-lost_bits
        x = np.array([1 + half + 2.0**-40, 1 + half - 2.0**-40, 1 + half, -1 - half - 2.0**-40, 1e300, np.inf, np.nan])
        want = [1 + 2 * half, 1, 1, -1 - 2 * half, np.inf, np.inf, np.nan]
        np.testing.assert_array_equal(wide(run(lambda g, i: g.cast(i, to), x)[0]), want)

    def test_bools_of_any_byte(self, isa):
        odd = np.tile(np.array([0, 1, 2, 128, 255], np.uint8), 30)
        (function,) = _core.testing.fused_kernels(graph_of(lambda g, i: g.cast(i, "float32"), odd.view(bool)), DEVICE)
        got = np.empty(odd.size, np.float32)
        function([odd.ctypes.data], [got.ctypes.data])
        np.testing.assert_array_equal(got, odd > 0)


class TestAccess:
    LAYOUTS: ClassVar[dict[str, Callable[..., np.ndarray]]] = {
        "0-d": lambda make: make(()),
        "one": lambda make: make((1,)),
        "strided": lambda make: make((70, 60))[::2, 1::3],
        "reversed": lambda make: make((40, 30))[::-1, ::-2],
        "transposed": lambda make: make((20, 30, 40)).transpose(2, 0, 1),
        "long rows": lambda make: make((3, 700))[:, 5:-7],
        "short rows": lambda make: make((300, 7))[:, 2:5],
        "broadcast": lambda make: np.broadcast_to(make((30, 1)), (20, 30, 40)),
    }

    @pytest.mark.parametrize("dtype", ALL_DTYPES)
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_layouts(self, layout, dtype, isa, rng):
        x = self.LAYOUTS[layout](lambda shape: draw(rng, dtype, shape))
        y = np.ascontiguousarray(x[..., ::-1] if x.ndim else x)
        got = run_map("maximum", x, y)
        assert_close(got, np.maximum(wide(x), wide(y)))

    @pytest.mark.parametrize("shapes", list(itertools.permutations([(5, 1, 300), (40, 1), (5, 40, 300)])))
    def test_broadcasting(self, shapes, isa, rng):
        x, y, z = (draw(rng, "float32", s) for s in shapes)
        got = run(lambda g, i, j, k: g.map("add", [g.map("multiply", [i, j]), k]), x, y, z)[0]
        np.testing.assert_array_equal(got, x * y + z)

    def test_any_byte_may_be_the_first(self, isa, rng):
        x = draw(rng, "float32", 1003)
        (function,) = _core.testing.fused_kernels(graph_of(lambda g, i: g.map("negative", [i]), x), DEVICE)
        for shift in (1, 2, 3, 4, 8, 31, 63):
            source, target = np.zeros(x.nbytes + 64, np.uint8), np.zeros(x.nbytes + 64, np.uint8)
            source[shift : shift + x.nbytes] = x.view(np.uint8)
            function([source.ctypes.data + shift], [target.ctypes.data + shift])
            np.testing.assert_array_equal(target[shift : shift + x.nbytes].view(np.float32), -x)
            assert not target[:shift].any()
            assert not target[shift + x.nbytes :].any()

    def test_in_place(self, isa, rng):
        x = draw(rng, "float32", 1003)
        graph = graph_of(lambda g, i: [g.map("negative", [i]), g.map("add", [i, g.map("square", [i])])], x)
        (function,) = _core.testing.fused_kernels(graph, DEVICE)
        (kernel,) = _core.testing.lower(graph, DEVICE)["kernels"]
        for first in (0, 1):
            y, other = x.copy(), np.empty_like(x)
            targets = [y, other] if first == 0 else [other, y]
            function([y.ctypes.data], [t.ctypes.data for t in targets])
            results = dict(zip([s["step"] for s in kernel["stores"]], targets, strict=True))
            np.testing.assert_array_equal(results[min(results)], -x)
            np.testing.assert_array_equal(results[max(results)], x + x * x)

    def test_numbers_along_axes(self, isa):
        for dtype in ("int32", "int64", "float32", "float64"):
            x = np.zeros((30, 50), np_dtype(dtype))
            for axis in (0, 1):
                got = run(lambda g, i, a=axis, d=dtype: g.map("maximum", [i, g.iota((30, 50), a, d)]), x)[0]
                np.testing.assert_array_equal(got, np.indices((30, 50))[axis].astype(np_dtype(dtype)))

    @pytest.mark.parametrize("rows", [3, 16, 17, 130, 200])
    def test_a_number_for_each_row_of_a_group(self, rows, isa, rng):
        """Groups of more rows than a register has lanes, in row kernels and in elementwise ones that go by rows."""
        shape = (rows, 40)
        numbers = np.arange(rows)[:, None]
        for dtype in ("float32", "float64"):
            x, a = draw(rng, dtype, shape), draw(rng, dtype, (rows, 1))
            for number in (dtype, "int32", "int64"):
                got = kf.fuse(lambda x, n=number: x - kf.max(x, axis=1, keepdims=True) + kf.iota(shape, 0, n))(x)
                np.testing.assert_allclose(got, x - x.max(1, keepdims=True) + numbers, rtol=1e-5, atol=1e-5)
                got = kf.fuse(lambda x, a, n=number: x * (a + 1) + kf.iota(shape, 0, n))(x, a)
                np.testing.assert_allclose(got, x * (a + 1) + numbers, rtol=1e-5, atol=1e-5)

    def test_a_causal_mask_in_softmax(self, isa, rng):
        x = draw(rng, "float32", (64, 64))

        def masked(x):
            seen = kf.iota((64, 64), 0, "int32") >= kf.iota((64, 64), 1, "int32")
            return kf.softmax(kf.where(seen, x, -np.inf))

        want = np.where(np.tri(64, dtype=bool), np.exp(x), 0)
        np.testing.assert_allclose(kf.fuse(masked)(x), want / want.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)


class TestSize:
    def chain(self, g: _core.Graph, x: int, y: int, length: int) -> int:
        for k in range(length):
            x = g.map(("add", "multiply", "subtract", "maximum")[k % 4], [x, y])
        return x

    @pytest.mark.parametrize("fuse", [True, False])
    def test_deep_chains(self, fuse, isa, rng):
        x, y = draw(rng, "float32", 200_001), np.float32(1e-3) * draw(rng, "float32", 200_001)
        (got,) = run(lambda g, i, j: self.chain(g, i, j, 500 if fuse else 5), x, y, fuse=fuse)
        want = x
        for k in range(500 if fuse else 5):
            want = (np.add, np.multiply, np.subtract, np.maximum)[k % 4](want, y)
        np.testing.assert_array_equal(got, want)

    def test_many_inputs_and_outputs(self, isa, rng):
        arrays = [draw(rng, "float32", 1001) for _ in range(60)]

        def build(g: _core.Graph, *ids: int) -> list[int]:
            total, outputs = ids[0], []
            for i, x in enumerate(ids[1:]):
                total = g.map("add", [total, x])
                if i % 4 == 0:
                    outputs.append(total)
            return [*outputs, total]

        got = run(build, *arrays)
        sums = list(itertools.accumulate(arrays))
        want = [*sums[1::4], sums[-1]]
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)

    def test_many_values_that_wait(self, isa, rng):
        x = draw(rng, "float32", 777)

        def build(g: _core.Graph, i: int) -> int:
            values = [g.map("add", [i, g.scalar(float(k))]) for k in range(40)]
            for depth in range(39):
                values = [g.map("maximum", [values[0], values[-1 - depth % 2]]), *values[1:-1]]
            return values[0]

        assert_close(run(build, x)[0], run_reference(build, x))


def run_reference(build: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    return _core.run_graph(graph_of(build, *arrays), list(arrays), "f")[0]


SHAPES = [(1, 5), (3, 1), (7, 3), (5, 16), (4, 100), (3, 129), (2, 1023), (1, 4096), (3, 4097), (2, 20_001), (300, 20)]


class TestReductions:
    @pytest.mark.parametrize("axes", [None, [0], [1]])
    @pytest.mark.parametrize("dtype", ALL_DTYPES)
    @pytest.mark.parametrize("name", reference_ops.REDUCTIONS)
    def test_all(self, name, dtype, axes, isa, rng):
        oracle = reference_ops.REDUCTIONS[name]
        for shape in SHAPES:
            x = draw(rng, dtype, shape)
            if name == "prod" and dtype in DTYPES:
                x = (1 + wide(x) / 4096).astype(x.dtype)
            got = run(lambda g, i: g.reduce(name, i, axes), x)[0]
            with np.errstate(all="ignore"):
                want = oracle(wide(x), axis=None if axes is None else tuple(axes))
                scale = oracle(np.abs(wide(x)), axis=None if axes is None else tuple(axes)) if name == "sum" else 0
            assert_close(got, want, scale or 1 if name == "mean" else scale, spacings=4000 if name == "prod" else 4)

    @pytest.mark.parametrize("axes", [[0], [1], [2], [0, 1], [0, 2], [1, 2], None])
    def test_of_several_axes(self, axes, isa, rng):
        x = draw(rng, "float32", (6, 70, 50))
        axis = None if axes is None else tuple(axes)
        for y in (x, x.transpose(2, 0, 1), x[::2, ::-1, 3:]):
            assert_close(run(lambda g, i: g.reduce("sum", i, axes), y)[0], wide(y).sum(axis), abs(wide(y)).sum(axis))
            assert_close(run(lambda g, i: g.reduce("max", i, axes), y)[0], y.max(axis))

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_special_values(self, dtype, isa):
        x = np.array([[1, np.nan, 3], [-np.inf, 2, np.inf], [-0.0, -0.0, -0.0], [np.nan] * 3], dtype)
        for name, oracle in reference_ops.REDUCTIONS.items():
            for y, axis in ((x, 1), (x.T.copy(), 0), (np.repeat(x, 100, 1), 1)):
                with np.errstate(invalid="ignore"):
                    got = run(lambda g, i, n=name, a=axis: g.reduce(n, i, [a]), y)[0]
                    assert_close(got, oracle(y, axis=axis))

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("value", [9, np.inf, np.nan])
    def test_the_largest_may_stand_anywhere(self, value, dtype, isa):
        x = np.zeros((300, 300), np_dtype(dtype))
        x[np.arange(300), np.arange(300)] = value
        assert_close(run(lambda g, i: g.reduce("max", i, [1]), x)[0], np.full(300, value, x.dtype))

    def test_integers_wrap(self, isa):
        x = np.array([2**62, 2**62, 2**62, 5] * 33)
        assert run(lambda g, i: g.reduce("sum", i, None), x)[0] == x.sum()
        assert run(lambda g, i: g.reduce("prod", i, None), x + 1)[0] == (x + 1).prod()
        y = np.full(100, 2**31 - 1, np.int32)
        assert run(lambda g, i: g.reduce("sum", i, None), y)[0] == y.sum(dtype=np.int64)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("mean", [0, 1, 1e4])
    def test_sums_are_accurate(self, mean, dtype, isa, rng):
        x = (mean + rng.standard_normal(1_000_003)).astype(dtype)
        terms = x.astype(float)
        want, scale = math.fsum(terms), math.fsum(abs(terms))
        for y, axes in ((x, None), (x[None], [1]), (x[:, None], [0])):
            got = float(np.squeeze(run(lambda g, i, a=axes: g.reduce("sum", i, a), y)[0]))
            assert abs(got - np.dtype(dtype).type(want)) <= 2 * np.finfo(dtype).eps * (
                abs(want) if dtype == "float32" else scale
            )


def centred(g: _core.Graph, x: int, axes: list[int]) -> int:
    return g.map("subtract", [x, g.reduce("mean", x, axes, True)])


def normalized(g: _core.Graph, x: int, axes: list[int]) -> int:
    d = centred(g, x, axes)
    variance = g.reduce("mean", g.map("square", [d]), axes, True)
    return g.map("divide", [d, g.map("sqrt", [g.map("add", [variance, g.scalar(1e-5)])])])


def softmax(g: _core.Graph, x: int, axes: list[int]) -> int:
    e = g.map("exp", [g.map("subtract", [x, g.reduce("max", x, axes, True)])])
    return g.map("divide", [e, g.reduce("sum", e, axes, True)])


class TestRows:
    """Several sweeps over rows, along either axis."""

    SHAPES = ((5, 3), (4, 16), (7, 100), (3, 1023), (20, 4096), (3, 4097), (2, 30_000), (1, 100_000))

    @staticmethod
    def layer_norm(x: np.ndarray, axis: int) -> np.ndarray:
        x = x.astype(np.longdouble)  # NumPy's own sums along the first axis are naive
        return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + 1e-5)

    @staticmethod
    def soft_max(x: np.ndarray, axis: int) -> np.ndarray:
        x = x.astype(np.longdouble)
        e = np.exp(x - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    @pytest.mark.parametrize("axis", [0, 1])
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("mean", [0, 100])
    def test_normalized(self, mean, dtype, axis, isa, rng):
        for shape in self.SHAPES:
            x = (mean + draw(rng, dtype, shape if axis else shape[::-1])).astype(np_dtype(dtype))
            got = run(lambda g, i: normalized(g, i, [axis]), x)[0]
            spacings = 8 if axis else 64  # down a column of doubles, sums are taken one by one
            values = wide(x)  # a mean is rounded to its dtype: values close together lose digits when it is subtracted
            scale = np.abs(values).max(axis, keepdims=True) / np.sqrt(values.var(axis, keepdims=True) + 1e-5)
            assert_close(got, self.layer_norm(values, axis), scale=scale, spacings=spacings)

    @pytest.mark.parametrize("axis", [0, 1])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_softmax(self, dtype, axis, isa, rng):
        for shape in self.SHAPES:
            x = draw(rng, dtype, shape if axis else shape[::-1])
            got = run(lambda g, i: softmax(g, i, [axis]), x)[0]
            assert_close(got, self.soft_max(wide(x), axis), spacings=40)

    @pytest.mark.parametrize("columns", [65, 67, 127, 130, 1000])
    @pytest.mark.parametrize("dtypes", [("float32", "float64"), ("float16", "float64"), ("float64", "float32")])
    def test_a_copy_beside_a_reduction_of_wider_elements(self, dtypes, columns, isa, rng):
        """The reduction is a loop of its own: a part of a tile takes no elements of it."""
        a, b = (rng.integers(-8, 8, (5, columns)).astype(dtype) for dtype in dtypes)
        copy, difference = kf.fuse(lambda a, b: (a[:, None, :], b.sum(axis=1, keepdims=True) - a))(a, b)
        np.testing.assert_array_equal(copy, a[:, None, :])
        np.testing.assert_array_equal(difference, b.sum(axis=1, keepdims=True) - a)

    @pytest.mark.parametrize("shape", [(3, 10, 1024), (2, 7, 999), (3, 70, 1000), (4, 2100, 3)])
    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_numbers_along_an_outer_axis_of_rows(self, shape, dtype, isa, rng):
        """An element for each channel of a group, whose rows are longer than a chunk, and too long to be copied."""
        x, c, d = (rng.standard_normal(s).astype(dtype) for s in (shape, (shape[0], shape[1], 1), (shape[1], 1)))

        @kf.fuse
        def f(x, c, d):
            y = x + c
            mean = y.mean((1, 2), keepdims=True)
            return (y - mean) * kf.rsqrt(kf.var(y, axis=(1, 2), keepdims=True) + 0.1) * d, (y * d).max((1, 2))

        y = x.astype(np.float64) + c
        want = (y - y.mean((1, 2), keepdims=True)) / np.sqrt(y.var((1, 2), keepdims=True) + 0.1) * d
        for got, expected in zip(f(x, c, d), (want, (y * d).max((1, 2))), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-2, atol={"float16": 2e-2}.get(dtype, 1e-5))

    @pytest.mark.parametrize("columns", [100, 5000, 50_000])
    def test_softmax_of_infinities(self, columns, isa, rng):
        x = draw(rng, "float32", (5, columns))
        x[0, : columns // 2] = -np.inf  # whole chunks of it
        x[1] = -np.inf
        x[2, 3] = np.inf
        x[3, -1] = np.nan
        with np.errstate(invalid="ignore"):
            want = self.soft_max(wide(x), 1)
        assert_close(run(lambda g, i: softmax(g, i, [1]), x)[0], want, spacings=40)

    def test_several_results(self, isa, rng):
        x, weight = draw(rng, "float32", (40, 1025)), draw(rng, "float32", (40, 1))

        def build(g: _core.Graph, i: int, w: int) -> list[int]:
            mean = g.reduce("mean", i, [1], True)
            d = g.map("multiply", [g.map("subtract", [i, mean]), w])
            return [mean, d, g.reduce("max", d, [1]), g.map("add", [i, g.reduce("min", i, [1], True)])]

        got = run(build, x, weight)
        mean = wide(x).mean(1, keepdims=True)
        d = (wide(x) - mean) * weight
        for a, b in zip(got, (mean, d, d.max(1), wide(x) + x.min(1, keepdims=True)), strict=True):
            assert_close(a, b, scale=16)

    @pytest.mark.parametrize("among", [(1.0,), (0.0, -0.0, 1.0), (1e-38, 1e-45), (np.inf, np.nan), (3e38, 1.0)])
    def test_quotients_by_one_number_a_row_are_rounded_once(self, isa, rng, among):
        x = rng.uniform(0.5, 1, (6, 1025)).astype(np.float32) * rng.choice(np.array(among, "float32"), (6, 1025))
        by = np.array([[3.0], [-0.1], [1e30], [1e-30], [0.0], [np.inf]], "float32")
        (got,) = run(lambda g, i, d: g.map("divide", [i, d]), x, by)
        with np.errstate(all="ignore"):
            want = x / by
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(bits(got)[~np.isnan(want)], bits(want)[~np.isnan(want)])

    def test_integers_and_floats_together(self, isa, rng):
        x = draw(rng, "float32", (30, 300))

        def build(g: _core.Graph, i: int) -> list[int]:
            positive = g.reduce("sum", g.map("greater", [i, g.scalar(0.0)]), [1], True)  # int64
            return [positive, g.map("multiply", [i, g.cast(positive, "float32")])]

        count, scaled = run(build, x)
        np.testing.assert_array_equal(count, (x > 0).sum(1, keepdims=True))
        np.testing.assert_array_equal(scaled, x * count.astype(np.float32))


class TestDeterminism:
    BUILDS: ClassVar[dict[str, Callable[..., Any]]] = {
        "map": lambda g, i: g.map("exp", [i]),
        "rows": lambda g, i: normalized(g, i, [1]),
        "columns": lambda g, i: normalized(g, i, [0]),
        "all": lambda g, i: g.reduce("sum", i, None),
    }

    @pytest.mark.parametrize("shape", [(1, 1_000_003), (1_000_003, 1), (999, 1001), (100_000, 9)])
    @pytest.mark.parametrize("build", BUILDS)
    def test_any_number_of_threads_gives_the_same_bits(self, build, shape, threads, rng):
        x = draw(rng, "float32", shape)
        results = []
        for n in (1, 2, 3, 8):
            threads(n)
            results.append(bits(run(self.BUILDS[build], x)[0]))
        for r in results[1:]:
            np.testing.assert_array_equal(r, results[0])


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_small_angles_have_their_bits_beside_large_ones(name, isa):
    angles = np.linspace(-100, 100, 4096).astype(np.float32)
    beside = angles.copy()
    beside[::7] = 1e6
    small = beside != 1e6
    np.testing.assert_array_equal(bits(run_map(name, angles))[small], bits(run_map(name, beside))[small])


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    st.lists(st.sampled_from(["exp", "tanh", "square", "negative", "sigmoid", "relu", "sin"]), min_size=2, max_size=8),
    st.integers(1, 400),
    st.sampled_from(["float32", "float64"]),
)
def test_fused_and_unfused_maps_agree_to_the_bit(names, n, dtype):
    x = np.linspace(-3, 3, n).astype(dtype)

    def build(g: _core.Graph, i: int) -> int:
        y = i
        for name in names:
            y = g.map("add", [g.map(name, [y]), i])
        return y

    fused, unfused = run(build, x)[0], run(build, x, fuse=False)[0]
    same = np.isnan(fused) & np.isnan(unfused)  # whose sign the order of operands decides
    np.testing.assert_array_equal(bits(fused)[~same], bits(unfused)[~same])


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    st.lists(
        st.tuples(st.sampled_from(["add", "subtract", "multiply", "relu"]), st.sampled_from(["number", "array"])),
        min_size=1,
        max_size=7,
    ),
    st.integers(1, 700),
)
def test_sums_and_products_in_turn_have_numpys_bits(chain, n):
    x = np.linspace(-3, 3, n, dtype=np.float32)
    others = {"number": np.array([0.7], np.float32), "array": np.cos(x)}

    def build(g: _core.Graph, y: int, number: int, array: int) -> int:
        for op, other in chain:
            y = g.map(op, [y] if op == "relu" else [y, {"number": number, "array": array}[other]])
        return y

    want = x
    for op, other in chain:
        want = np.maximum(want, 0) if op == "relu" else getattr(np, op)(want, others[other])
    np.testing.assert_array_equal(run(build, x, *others.values())[0], want)


def several(x: Any) -> dict[str, Any]:
    """Reductions that are loops of their own, one that is none, a search, and what is stored beside them."""
    high, low = x.max(-1), x.min(-1)
    return {
        "max": high, "min": low, "largest": abs(x).max(-1), "sum": x.sum(-1), "relu": kf.relu(x).mean(-1),
        "smallest": abs(x).min(-1), "where": x.argmin(-1), "twice": x * 2, "span": kf.square(x).sum(-1) * (high - low),
        "exp": kf.exp(x - x.max(-1, keepdims=True)).sum(-1), "centred": abs(x - x.mean(-1, keepdims=True)),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_several_reductions_of_a_row(dtype, isa, rng):
    """Each is what it is alone, to the bit; of rows with NaN, infinities, zeros of both signs, of one and of many
    chunks."""
    together = kf.fuse(several)
    alone = {name: kf.fuse(lambda x, name=name: several(x)[name]) for name in several(np.ones((1, 1)))}
    for rows, cols in ((1, 1), (7, 3), (37, 64), (9, 129), (3, 1000), (2, 9000)):
        x = (rng.integers(-40, 40, (rows, cols)) / 16).astype(np_dtype(dtype))
        x[0, 0], x[rows // 2, cols // 2], x[-1, -1] = np.nan, np.inf, -0.0
        for given in (x, x[::-1, ::-1]):
            got, exact = together(given), wide(given)
            np.testing.assert_array_equal(wide(got["max"]), exact.max(-1))
            np.testing.assert_array_equal(wide(got["min"]), exact.min(-1))
            np.testing.assert_array_equal(wide(got["largest"]), abs(exact).max(-1))
            for name, f in alone.items():
                np.testing.assert_array_equal(wide(got[name]), wide(f(given)), err_msg=name)


ROW_STEPS = {
    "relu": lambda x, s: np.maximum(x, 0),
    "subtract": lambda x, s: x - s,
    "square": lambda x, s: x * x,
    "exp": lambda x, s: np.exp(x),
    "multiply": lambda x, s: x * s,
    "divide": lambda x, s: x / s,
}


@pytest.mark.slow
@pytest.mark.parametrize("fold", ["sum", "mean", "max"])
def test_no_loop_over_rows_is_taken_for_another(fold):
    """Joined loops are found by a grammar: what follows what it knows must not be dropped."""
    x, s = np.linspace(-1, 1, 3 * 130, dtype=np.float32).reshape(3, 130), np.array([[0.3], [0.5], [-0.7]], np.float32)
    for chain in (c for n in range(4) for c in itertools.product(ROW_STEPS, repeat=n)):

        def build(g: _core.Graph, y: int, number: int, chain: tuple[str, ...] = chain) -> int:
            for op in chain:
                y = g.map(op, [y, number] if op in ("subtract", "multiply", "divide") else [y])
            return g.reduce(fold, y, [1])

        want = x.astype(np.float64)
        for op in chain:
            want = ROW_STEPS[op](want, s.astype(np.float64))
        got = run(build, x, s)[0]
        scale = np.abs(want).max(1) + 1e-3
        np.testing.assert_allclose(got / scale, getattr(want, fold)(1) / scale, atol=2e-4, err_msg=str(chain))
