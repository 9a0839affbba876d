"""Groups around products as loops: factors, and epilogues on their elements, on awkward functions and random graphs."""

from __future__ import annotations

import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import kernel_loops
import kfusion as kf
from graph_strategies import cases
from kfusion import _core
from sweeps import sweep

pytestmark = pytest.mark.native

DEVICE = kf.device("H200").to_dict()
BASES = [(3, 5), (1, 5), (7, 11), (4, 4), (5, 1)]


def lower(graph):
    return _core.testing.lower(graph, DEVICE, possible=True)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(cases(contractions=True, gathers=True, bases=BASES))
def test_epilogues_compute_what_their_graph_does(case):
    """What is neither loops nor a product with an epilogue is computed node by node."""
    hypothesis.assume(all(0 not in n["shape"] for n in case.graph.to_dict()["nodes"]))
    lowered = lower(case.graph)
    others = [n for k in lowered["kernels"] if "steps" not in k for n in k["stored"]]
    hypothesis.assume(all(lowered["graph"]["nodes"][n]["op"] != "concatenate" for n in others))  # into slices
    graph = lowered["graph"] | {"outputs": [{"name": str(n), "node": n} for n in others]}
    known = dict(zip(others, _core.run_graph(_core.Graph.from_dict(graph), case.inputs, "f"), strict=True))

    def compute(kernel, memory):
        if "steps" in kernel:
            return kernel_loops.run_group(kernel, memory)
        for n in kernel["stored"]:
            memory[n] = kernel_loops.memory_of(np.ascontiguousarray(known[n]))
        return None

    case.check(kernel_loops.run(lowered, case.inputs, compute=compute))


def arrays(*shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


X, W, U = arrays((6, 7), (11, 7), (11, 7))
B, ROW = arrays((11,), (6, 1))
H, V = arrays((2, 6, 7), (2, 7, 11))
T = np.array([0, 10, 3, 10, 5, 1])
MASK = np.array([[True, False, True, True, False, True], [False] * 6])


def smooth(logits, t):
    largest = logits.max(-1, keepdims=True)
    e = kf.exp(logits - largest)
    own = kf.take_along_axis(logits, t[:, None], -1)
    return kf.log(e.sum(-1)) + largest[:, 0] - own[:, 0]


def splade(h, w, b, m):
    return (kf.log1p(kf.relu(h @ w.T + b)) * m[:, :, None]).max(1)


# What is one kernel with its product: function, arguments, what a product is reduced along.
ONE_KERNEL = {
    "swiglu": (lambda x, w, u: kf.silu(x @ w.T) * (x @ u.T), (X, W, U), None),
    "gates with biases": (lambda x, w, u, b: kf.gelu(x @ w.T + b) * (x @ u.T - b), (X, W, U, B), None),
    "three products": (lambda x, w, u: (x @ w.T) * (x @ u.T) + x @ (w + 0.0 * u).T, (X, W, U), None),
    "batches of gates": (lambda h, v: kf.silu(h @ v) * (h @ kf.flip(v, -1)), (H, V), None),
    "halves of one product": (lambda x, w: kf.silu((y := x @ w.T)[:, 5:]) * y[:, :5], (X, W[:10].copy()), None),
    "halves with a bias": (lambda h, v, b: (y := h @ v[..., 1:] + b[1:])[..., :5] * kf.gelu(y[..., 5:]), (H, V, B),
                           None),
    "gates and both products": (lambda x, w, u: ((g := x @ w.T), (p := x @ u.T), kf.silu(g) * p), (X, W, U), None),
    "logsumexp": (lambda x, w: kf.logsumexp(x @ w.T, -1), (X, W), "cols"),
    "logsumexp along rows": (lambda x, w: kf.logsumexp(x @ w.T, 0), (X, W), "rows"),
    "variance": (lambda x, w, b: kf.var(x @ w.T + b, axis=-1), (X, W, B), "cols"),
    "cross entropy": (lambda x, w, t: kf.cross_entropy(x @ w.T, t, reduction="none"), (X, W, T), "cols"),
    "of rows with a bias": (lambda x, w, b, t: kf.cross_entropy(x @ w.T + b, t, reduction="none"), (X, W, B, T),
                            "cols"),
    "weights and an ignored class": (
        lambda x, w, b, t: kf.cross_entropy(x @ w.T, t, weight=b, ignore_index=10, reduction="none"), (X, W, B, T),
        "cols"),
    "smoothed": (lambda x, w, t: kf.cross_entropy(x @ w.T, t, label_smoothing=0.1, reduction="none"), (X, W, T),
                 "cols"),
    "smoothed with weights and an ignored class": (
        lambda x, w, b, t: kf.cross_entropy(x @ w.T, t, weight=b, label_smoothing=0.1, ignore_index=10,
                                            reduction="none"), (X, W, B, T), "cols"),
    "with the square of logsumexp": (
        lambda x, w, t: kf.cross_entropy((y := x @ w.T), t, reduction="none") + kf.logsumexp(y, -1) ** 2, (X, W, T),
        "cols"),
    "argmax": (lambda x, w: kf.argmax(x @ w.T, -1), (X, W), "cols"),
    "argmin along rows, after a map": (lambda x, w, b: kf.argmin(kf.tanh(x @ w.T + b), 0), (X, W, B), "rows"),
    "argmax in batches": (lambda h, v: kf.argmax(h @ v, 1), (H, V), "rows"),
    "top 1": (lambda x, w: ((y := x @ w.T).max(-1), kf.argmax(y, -1)), (X, W), "cols"),
    "loss and hit": (
        lambda x, w, t: (kf.cross_entropy((y := x @ w.T), t, reduction="none"), kf.argmax(y, -1) == t), (X, W, T),
        "cols"),
    "int32 targets": (lambda x, w, t: kf.cross_entropy(x @ w.T, t, reduction="none"), (X, W, T.astype(np.int32)),
                      "cols"),
    "log_softmax and a pick": (lambda x, w, t: kf.take_along_axis(kf.log_softmax(x @ w.T), t[:, None], -1), (X, W, T),
                               "cols"),
    "counted from the end": (lambda x, w, t: smooth(x @ w.T, t - 11), (X, W, T), "cols"),
    "maximum and minimum": (lambda x, w: ((y := x @ w.T).max(0), y.min(0)), (X, W), "rows"),
    "rows' statistics of a value of rows": (lambda x, w, r: (x @ w.T * r).sum(-1) * r[:, 0], (X, W, ROW), "cols"),
    "another shape": (lambda x, w, b: (x @ w.T + b).reshape(2, 3, 11).max(-1), (X, W, B), "cols"),
    "splade": (lambda h, w, b: kf.splade_head(h, w, b), (H, W, B), "rows"),
    "splade with a mask": (splade, (H, W, B, MASK), "rows"),
    "splade with numbers": (splade, (H, W, B, MASK.astype(np.float32) * 2), "rows"),
    "splade with integers": (splade, (H, W, B, MASK.astype(np.int64)), "rows"),
    "splade with a selection": (
        lambda h, w, b, m: kf.where(m[:, :, None], kf.log1p(kf.relu(h @ w.T + b)), 0).max(1), (H, W, B, MASK), "rows"),
}  # fmt: skip


def only_contraction(function, arguments):
    lowered = lower(kf.trace(function, *arguments))
    (found,) = [k for k in lowered["kernels"] if "products" in k]
    return lowered, found


def near(lowered, arguments, want, tolerance=2e-5):
    want = want if isinstance(want, tuple) else [want]
    for got, exact in zip(kernel_loops.run(lowered, list(arguments)), want, strict=True):
        np.testing.assert_allclose(np.asarray(got).reshape(exact.shape), exact, rtol=tolerance, atol=tolerance)


def wide(arrays):
    return [a.astype(np.float64) if a.dtype in (np.float16, np.float32) else a for a in arrays]


def test_one_kernel():
    def check(function, arguments, along):
        lowered, k = only_contraction(function, arguments)
        _, rows, cols, _ = k["axes"]
        assert list(k["reduced"]) == {None: [], "rows": [rows], "cols": [cols]}[along]
        near(lowered, arguments, function(*wide(arguments)))

    sweep(check, ONE_KERNEL.values())


def test_a_converted_vector_beside_rows_of_a_product():
    """It is read by elements and by a reduction of its own rows: no operand of the product."""

    def f(x, w, b):
        c = b.astype("float64")
        y = (x @ w.T).astype("float64")
        return (y * c).sum(-1) * kf.broadcast_to(c, y.shape).sum(-1)

    want = (X.astype(float) @ W.T * B).sum(-1) * B.astype(float).sum()
    near(lower(kf.trace(f, X, W, B)), [X, W, B], want, 1e-5)


BESIDE = {
    "weights of three widths": lambda x, q, k, v, b: (x @ q.T, x @ k.T + b, kf.relu(x @ v.T)),
    "several results of each": lambda x, q, k, v, b: (x @ q.T, x @ q.T * 2, x @ k.T - b, (x @ v.T).astype("float32")),
    "values of rows and of the device": lambda x, q, k, v, b: (
        (x @ q.T) * x[:, :1], (x @ k.T) * (b * b), (x @ v.T) * x[:, 1:2] + b[0]),
    "heads": lambda x, q, k, v, b: ((x @ q.T).reshape(-1, 2, 12), (x @ k.T).reshape(-1, 2, 4) + 1, x @ v.T),
}  # fmt: skip


def test_products_beside_one_another():
    def check(case, rows):
        rng = np.random.default_rng(0)
        shapes = [(rows, 8), (24, 8), (8, 8), (16, 8), (8,)]
        arguments = [rng.standard_normal(s).astype(np.float16) for s in shapes]
        lowered = lower(kf.trace(BESIDE[case], *arguments))
        assert sum("beside" in k for k in lowered["kernels"]) >= 2
        near(lowered, arguments, BESIDE[case](*wide(arguments)), 3e-3)

    sweep(check, itertools.product(BESIDE, [1, 5, 8, 40]))


MAPS = [kf.tanh, kf.relu, kf.sigmoid, abs, lambda v: v * 0.5, lambda v: kf.where(v > 0, v, v * 0.1), lambda v: v + 1]
ROW_MAPS = [*MAPS, lambda v: kf.exp(-abs(v)), lambda v: v * v]
BINARY = [lambda v, w: v + w, lambda v, w: v * w, kf.maximum, lambda v, w: kf.where(w > 0, v, 0.0)]
REDUCTIONS = [
    lambda v, axis: v.max(axis),
    lambda v, axis: v.min(axis),
    lambda v, axis: v.sum(axis),
    lambda v, axis: v.mean(axis),
    lambda v, axis: kf.logsumexp(v, axis),
    lambda v, axis: kf.var(v, axis=axis),
    lambda v, axis: (kf.argmax(v, axis) * 0.25).astype("float32"),
]


@st.composite
def epilogues(draw):
    """Two products with maps, vectors and matrices, stored or reduced in several ways, and maps of what is left."""
    m, n, k = (draw(st.sampled_from([1, 2, 3, 5, 7])) for _ in range(3))
    lead = draw(st.sampled_from([(), (), (1,), (2,), (2, 3)]))
    shapes = [(*lead, m, k), (k, n), (k, n)]
    operands = draw(st.lists(st.sampled_from([(n,), (m, 1), (*lead, m, n), (*lead, 1, 1), (*lead, m, 1)]), max_size=3))
    maps = [draw(st.sampled_from(MAPS)) for _ in range(4)]
    binary = [draw(st.sampled_from(BINARY)) for _ in operands]
    gates = draw(st.booleans())
    axis = draw(st.sampled_from([None, -1, -1, -2]))
    reductions = draw(st.lists(st.sampled_from(REDUCTIONS), min_size=1, max_size=3)) if axis is not None else []
    ends = [draw(st.sampled_from(ROW_MAPS)) for _ in reductions]
    picks = axis is not None and draw(st.booleans())
    deferred = draw(st.booleans())

    def f(x, w, u, index, *operands):
        v = maps[0](x @ w)
        if gates and axis is None:
            v = v * maps[1](x @ u)
        for take, operand in zip(binary, operands, strict=True):
            v = take(v, operand)
        v = v if deferred else maps[2](v)
        if axis is None:
            return (maps[3](v),)
        results = [end(reduce(v, axis)) for reduce, end in zip(reductions, ends, strict=True)]
        if picks:
            results[0] = results[0] - kf.take_along_axis(v, index, axis).reshape(results[0].shape)
        return tuple(results)

    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    picked = np.zeros((*lead, m, n)).sum(-1 if axis is None else axis, keepdims=True).shape
    extent = n if axis in (None, -1) else m
    index = rng.integers(-extent, extent, picked).astype(draw(st.sampled_from(["int32", "int64"])))
    return f, [*arrays, index, *[rng.standard_normal(s).astype(np.float32) for s in operands]]


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(epilogues())
def test_any_epilogue(case):
    f, arguments = case
    lowered = lower(kf.trace(f, *arguments))
    hypothesis.assume(all("steps" in k for k in lowered["kernels"]))
    want = f(*wide(arguments))
    used = [n for n in lowered["graph"]["nodes"] if n["op"] == "input"]
    by_name = dict(zip(["x", "w", "u", "index"], arguments, strict=False))
    names = [n["name"] for n in used]
    extra = iter(arguments[4:])
    given = [by_name[name] if name in by_name else next(extra) for name in names]
    near(lowered, given, want, 3e-4)


def smooth_of_product(x, w, t):
    return smooth(x @ w.T, t)


def test_what_has_no_position_is_nan():
    """A guard is of its own element: an index may be out of range where its condition is read in another order."""
    t = np.array([0, 11, -12, -11, 10, 5])
    lowered, _ = only_contraction(smooth_of_product, (X, W, t))
    (got,) = kernel_loops.run(lowered, [X, W, t])
    np.testing.assert_array_equal(np.isnan(got), [False, True, True, False, False, False])
    for step in (1, -1):

        def f(x, w, t, step=step):
            within = kf.logical_and(t >= 0, t < 11)
            return smooth(x @ w.T, kf.where(within[::step], t, 0)), within

        lowered = lower(kf.trace(f, X, W, t))
        loss, _ = kernel_loops.run(lowered, [X, W, t])
        index = np.where(((t >= 0) & (t < 11))[::step], t, 0)
        np.testing.assert_array_equal(np.isnan(loss), (index < -11) | (index >= 11))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_splade_keeps_what_is_no_number():
    """A text without its mask is zero."""

    def check(case, bad):
        function, (h, *others), _ = ONE_KERNEL[case]
        h = h.copy()
        h[0, 1, 0], h[0, 2, 1] = bad, bad  # at a masked position, and at one that counts
        lowered, _ = only_contraction(function, (h, *others))
        near(lowered, [h, *others], function(*wide([h, *others[:2]]), *others[2:]))

    sweep(check, itertools.product([c for c in ONE_KERNEL if c.startswith("splade")], [np.nan, np.inf, -np.inf]))
    lowered, k = only_contraction(splade, (H, W, B, MASK))
    (got,) = kernel_loops.run(lowered, [H, W, B, MASK])
    np.testing.assert_array_equal(got[1], 0)
    assert all(s["row"] for s in k["steps"] if s["op"] == "log1p"), "once per result"
