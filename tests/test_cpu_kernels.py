"""Kernels of the CPU: random graphs, lengths of every op, places in memory, exact sums, and what was once wrong."""

import itertools
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import kfusion as kf
import reference_ops
from cpu_kernels import DEVICE, Kernels
from graph_runs import assert_close, draw, graph_of, wide
from graph_strategies import cases
from kfusion import _core
from kinds import ALL_DTYPES, np_dtype
from loops_by import RELATIVE
from sweeps import sweep
from test_reference_ops import arguments, takes

pytestmark = pytest.mark.native

# Around the sizes of a register and of a tile of every instruction set.
LENGTHS = (1, 2, 3, 7, 8, 9, 15, 17, 31, 33, 63, 65, 127, 128, 129, 300, 1000)


def run(build, *arrays, fuse=True):
    """What the kernels make of build(graph, ids of the inputs)."""
    return Kernels(graph_of(build, *arrays), fuse)(*arrays)


def bits(x):
    return np.ascontiguousarray(x).view(f"u{x.itemsize}")


@hypothesis.settings(max_examples=75, deadline=None)
@hypothesis.given(cases(), st.booleans())
def test_random_graphs(case, fuse):
    case.check(Kernels(case.graph, fuse)(*case.inputs))


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_every_op_and_length(dtype, isa, rng):
    """An element's bits do not depend on its place."""

    def check(name):
        arrays = arguments(name, dtype, lambda: draw(rng, dtype, max(LENGTHS)))
        with np.errstate(all="ignore"):
            want = reference_ops.MAPS[name](*map(wide, arrays))
        build = lambda g, *ids: g.map(name, list(ids))  # noqa: E731
        (whole,) = run(build, *arrays)
        assert_close(whole, want, scale=4 if name == "logaddexp" else 0)
        for n in LENGTHS:
            np.testing.assert_array_equal(bits(run(build, *[x[:n] for x in arrays])[0]), bits(whole[:n]))

    sweep(check, [(name,) for name in reference_ops.MAPS if dtype in takes(name)])


def test_any_byte_may_be_the_first(isa, rng):
    x = draw(rng, "float32", 1003)
    (function,) = _core.testing.fused_kernels(graph_of(lambda g, i: g.map("negative", [i]), x), DEVICE)
    for shift in (1, 2, 3, 4, 8, 31, 63):
        source, target = np.zeros(x.nbytes + 64, np.uint8), np.zeros(x.nbytes + 64, np.uint8)
        source[shift : shift + x.nbytes] = x.view(np.uint8)
        function([source.ctypes.data + shift], [target.ctypes.data + shift])
        np.testing.assert_array_equal(target[shift : shift + x.nbytes].view(np.float32), -x)
        assert not target[:shift].any()
        assert not target[shift + x.nbytes :].any()


def test_in_place(isa, rng):
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


@pytest.mark.parametrize("rows", [3, 16, 17, 130, 200])
def test_a_number_for_each_row_of_a_group(rows, isa, rng):
    """Groups of more rows than a register has lanes, in row kernels and in elementwise ones that go by rows."""
    shape, numbers = (rows, 40), np.arange(rows)[:, None]
    for dtype, number in itertools.product(("float32", "float64"), ("int32", "int64", "float32", "float64")):
        x, a = draw(rng, dtype, shape), draw(rng, dtype, (rows, 1))
        for f, want in (
            (lambda x, a, n=number: x - x.max(1, keepdims=True) + kf.iota(shape, 0, n), x - x.max(1, keepdims=True)),
            (lambda x, a, n=number: x * (a + 1) + kf.iota(shape, 0, n), x * (a + 1)),
        ):
            np.testing.assert_allclose(kf.fuse(f)(x, a), want + numbers, rtol=1e-5, atol=1e-5)


def test_a_causal_mask_in_softmax(isa, rng):
    x = draw(rng, "float32", (64, 64))

    def masked(x):
        seen = kf.iota((64, 64), 0, "int32") >= kf.iota((64, 64), 1, "int32")
        return kf.softmax(kf.where(seen, x, -np.inf))

    want = np.where(np.tri(64, dtype=bool), np.exp(x), 0)
    np.testing.assert_allclose(kf.fuse(masked)(x), want / want.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mean", [0, 1, 1e4])
def test_sums_are_accurate(mean, dtype, isa, rng):
    x = (mean + rng.standard_normal(1_000_003)).astype(dtype)
    terms = x.astype(float)
    want, scale = math.fsum(terms), math.fsum(abs(terms))
    for y, axes in ((x, None), (x[None], [1]), (x[:, None], [0])):
        got = float(np.squeeze(run(lambda g, i, a=axes: g.reduce("sum", i, a), y)[0]))
        size = abs(want) if dtype == "float32" else scale
        assert abs(got - np.dtype(dtype).type(want)) <= 4 * np.finfo(dtype).eps * size


def test_sums_that_floats_cannot_hold(isa, rng):
    g = np.tile(np.where(np.arange(512) // 64 % 2, np.float32(-3e38), np.float32(3e38)), (64, 1))
    x = np.ones((64, 512), np.float32)
    got, _ = kf.fuse(lambda x, g, w: ((x * (g * w)).sum(-1), kf.softmax(x)))(x, g, x[0])
    np.testing.assert_array_equal(got, 0)


@pytest.mark.parametrize("columns", [65, 67, 127, 130, 1000])
@pytest.mark.parametrize("dtypes", [("float32", "float64"), ("float16", "float64"), ("float64", "float32")])
def test_a_copy_beside_a_reduction_of_wider_elements(dtypes, columns, isa, rng):
    """The reduction is a loop of its own: a part of a tile takes no elements of it."""
    a, b = (rng.integers(-8, 8, (5, columns)).astype(dtype) for dtype in dtypes)
    copy, difference = kf.fuse(lambda a, b: (a[:, None, :], b.sum(axis=1, keepdims=True) - a))(a, b)
    np.testing.assert_array_equal(copy, a[:, None, :])
    np.testing.assert_array_equal(difference, b.sum(axis=1, keepdims=True) - a)


@pytest.mark.parametrize("among", [(1.0,), (0.0, -0.0, 1.0), (1e-38, 1e-45), (np.inf, np.nan), (3e38, 1.0)])
def test_quotients_by_one_number_a_row_are_rounded_once(isa, rng, among):
    x = rng.uniform(0.5, 1, (6, 1025)).astype(np.float32) * rng.choice(np.array(among, "float32"), (6, 1025))
    by = np.array([[3.0], [-0.1], [1e30], [1e-30], [0.0], [np.inf]], "float32")
    (got,) = run(lambda g, i, d: g.map("divide", [i, d]), x, by)
    with np.errstate(all="ignore"):
        want = x / by
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(bits(got)[~np.isnan(want)], bits(want)[~np.isnan(want)])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("n", [5, 100, 1000, 5001])
def test_gradients_of_cross_entropy(isa, dtype, n, rng):
    x, target = rng.standard_normal((75, n)).astype(np_dtype(dtype)), rng.integers(0, n, 75)
    target[[0, 1, 2]] = 0, n - 1, -100
    got = kf.fuse(kf.grad(lambda x: kf.cross_entropy(x, target, ignore_index=-100)))(x)
    e = np.exp(wide(x) - wide(x).max(-1, keepdims=True))
    y = e / e.sum(-1, keepdims=True)
    want = np.where((target == -100)[:, None], 0, y - np.eye(n)[np.maximum(target, 0)]) / 74
    np.testing.assert_allclose(wide(got), want, rtol=0, atol=RELATIVE[dtype])
