"""Adjoints against torch's autograd and central differences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

import kfusion as kf
from graph_strategies import cases
from kfusion import _core
from sweeps import sweep

torch = pytest.importorskip("torch")
from gradients import (  # noqa: E402
    I,
    V,
    W,
    X,
    Y,
    check,
    random_like,
    require_close,
    seeds_of,
    torch_vjp_of_graph,
    vjp_of_graph,
)  # fmt: skip

ROWS = [row for row in _core.op_table() if row["kind"] in ("map", "reduce")]
INTEGERS = ("II_I", "ZZ_Z", "LLL_L")  # signatures without floats
MAPS = [row["name"] for row in ROWS if row["kind"] == "map" and row["adjoints"]]
ARITY = {row["name"]: row["arity"] for row in ROWS}
# What torch says otherwise, or has no function for.
EDGES = [-np.inf, -2.5, -1.0, -0.5, -0.0, 0.0, 0.3, 1.0, 2.0, np.inf, np.nan]
T = random_like((2, 4, 6), 4)


def columns(adjoints):
    """How many expressions a row has."""
    depth, count = 0, bool(adjoints)
    for letter in adjoints:
        depth += (letter == "(") - (letter == ")")
        count += letter == "," and depth == 0
    return int(count)


def test_every_row_that_gives_floats_has_an_adjoint_for_each_argument():
    for row in ROWS:
        gives_floats = not row["signature"].endswith("_B") and row["signature"] not in INTEGERS
        assert columns(row["adjoints"]) == (row["arity"] if gives_floats else 0), row


def test_every_other_node_has_an_adjoint():
    """Sources have none, nor has what plans alone have; all others are differentiated somewhere below."""
    graphs = [kf.trace(f, *a).to_dict() for f, a in NODES.values()]
    seen = {n["op"] for g in graphs for n in g["nodes"]}
    rows = {
        row["name"] for row in _core.op_table() if row["kind"] not in ("map", "reduce", "source", "library", "partial")
    }
    assert rows <= seen


# ---- maps ----


def map_graph(op, arrays):
    g = kf.Graph()
    ids = [g.input("xyz"[i], a.shape, str(a.dtype)) for i, a in enumerate(arrays)]
    g.set_outputs([("", g.map(op, ids))])
    return g


def points(op, values):
    """All combinations of values, of bools for a condition."""
    combinations = np.array(list(itertools.product(values, repeat=ARITY[op]))).T
    arrays = [np.ascontiguousarray(c) for c in combinations]
    return [arrays[0] > 0, *arrays[1:]] if op == "where" else arrays


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_maps_have_the_gradients_of_torch_everywhere():
    """At zeros, ties, infinities and NaN too."""

    def checked(op):
        inputs = points(op, EDGES)
        graph, seeds = map_graph(op, inputs), [np.ones(inputs[0].shape)]
        got = vjp_of_graph(graph, inputs, seeds)
        if op == "floor_divide":  # torch says nothing
            assert all((g == 0).all() for g in got)
            return
        for i, (a, b) in enumerate(zip(got, torch_vjp_of_graph(graph, inputs, seeds), strict=True)):
            wrong = ~np.isclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)
            where = [tuple(x[k] for x in inputs) for k in np.flatnonzero(wrong)]
            assert not where, f"argument {i} at {where}: {a[wrong]}, not {b[wrong]}"

    sweep(checked, [(op,) for op in MAPS if op != "cbrt"])


def test_what_torch_has_not_against_central_differences():
    x, step = np.array([0.3, 0.7, 1.9, -0.4]), 1e-6
    graph = map_graph("cbrt", [x])
    (got,) = vjp_of_graph(graph, [x], [np.ones(x.shape)])
    up, down = (np.asarray(_core.run_graph(graph, [x + s], "f")[0]) for s in (step, -step))
    np.testing.assert_allclose(got, (up - down) / (2 * step), rtol=2e-6, atol=2e-8)


# ---- reductions ----


def test_reductions():
    """With ties, which share a gradient evenly, and zeros, of which a product may have one or several."""
    x = np.array([1.0, 2.0, 2.0, -1.0, 0.0, 2.0, 3.0, 3.0, -1.0, 2.0, 0.0, 0.0, 1.5, 2.0, 1.0, 1.0, 0.5, 2.5])
    x = np.concatenate([x, x[::-1] + 0.25]).reshape(3, 4, 3)

    def checked(op, axes, keepdims):
        g = kf.Graph()
        g.set_outputs([("", g.reduce(op, g.input("x", x.shape, "float64"), axes, keepdims))])
        seeds = seeds_of(g)
        require_close(vjp_of_graph(g, [x], seeds), torch_vjp_of_graph(g, [x], seeds))

    every = (None, [0], [1], [0, 2], [0, 1, 2])
    sweep(checked, itertools.product(("sum", "mean", "prod", "max", "min"), every, (False, True)))


def test_sums_of_what_is_repeated_are_products():
    plan = kf.plan(kf.grad(lambda x, b: (x + b).sum(), 1), kf.spec((64, 32)), kf.spec((32,)))
    assert sum(g.loads != () for g in plan.groups) == 0  # 64 for each element, without a look at any array


def test_a_maximum_of_what_a_kernel_computes_in_each_sweep():
    """Its elements are compared with it: each sweep must give the same bits."""
    x, y, g = (random_like((1030, 2), i) for i in range(3))

    def gradient(x, y, g):
        m = y.max(keepdims=True)
        _, pull = kf.vjp(lambda x: x / m / np.hypot(x / m, m).max(1, keepdims=True), x)
        return pull(g)

    tensor, m = torch.from_numpy(x.copy()).requires_grad_(), torch.tensor(y.max())
    result = tensor / m / torch.hypot(tensor / m, m).amax(1, keepdim=True)
    want = torch.autograd.grad(result, tensor, torch.from_numpy(g))
    require_close(kf.fuse(gradient)(x, y, g), [w.numpy() for w in want])


# ---- views, joins, gathers, products ----

PLACES = np.array([[0, 3, 3], [5, -1, 0], [1, 1, 1], [2, 2, 0]])
IMAGES, KERNELS = random_like((2, 4, 7, 6), 5), random_like((6, 2, 3, 2), 6)

NODES = {
    "transpose": (lambda x: kf.exp(x.transpose(2, 0, 1)) * 2, (T,)),
    "reshape": (lambda x, y: x.reshape(4, 2, 3) * kf.sin(y).reshape(4, 2, 3), (X, Y)),
    "broadcast": (lambda x, v: x * v + kf.broadcast_to(v, (2, 4, 6)), (T, V)),
    "columns": (lambda x: x * kf.exp(x[:, :1]) + x.max(0), (X,)),
    "slices": (lambda x: kf.concatenate((x[:, 4:], x[:, :2] * 3), 1) * x[:, 1:5], (X,)),
    "parts": (lambda x: x[:, :2] * x[:, 2:4] + kf.exp(x[:, 4:]), (X,)),
    "gap": (lambda x: x[:, :2] * kf.sin(x[:, 4:]), (X,)),
    "strided": (lambda x: x[1::2, ::-2] * x[::2, 5:2:-1], (X,)),
    "reversed": (lambda x: x[::-1, ::-1] * x, (X,)),
    "rows": (lambda x: x[1] * x[2] + x[-1] * 2, (X,)),
    "pad": (lambda x: kf.exp(np.pad(x, ((1, 2), (0, 1)))) * 2, (X,)),
    "edge": (lambda x: kf.sin(np.pad(x, 2, "reflect")), (X,)),
    "roll": (lambda x: kf.sin(kf.roll(x, 2, 1)) * x, (X,)),
    "tril": (lambda x: kf.exp(kf.tril(x)), (X,)),
    "stack": (lambda x, y: kf.sin(kf.stack((x, y * 2, x), 1)), (X, Y)),
    "empty": (lambda x: (x[:, :0] * 2, kf.sin(x[:, 0:1])), (X,)),
    "cast": (lambda x: x.astype("float32").astype("float64") * x, (X.astype(np.float32).astype(np.float64),)),
    "where": (lambda x, y: kf.where(x > y, x * 2, kf.exp(y)), (X, Y)),
    "one element": (lambda x, i: kf.take(kf.sin(x), i, 1) * x, (X, np.array([-2]))),
    "along, one": (lambda x, i: kf.take_along_axis(kf.exp(x), i[:, 1:2], 1), (X, PLACES)),
    "matmul": (lambda x, w: kf.sin(x @ w), (X, W)),
    "matrix times vector": (lambda x, v: kf.sin(x @ v), (X, V)),
    "vector times matrix": (lambda v, w: kf.sin(v @ w), (V, W)),
    "dot": (lambda v: v @ kf.exp(v), (V,)),
    "linear": (lambda x, w, v: kf.sin(x @ w + v[:3]), (T, W, V)),
    "batched": (lambda x, y: kf.sin(x @ y.transpose(0, 2, 1)), (T, T[:1] + 1)),
    "matrix times batch": (lambda x, y: kf.sin(x.T @ y), (X, T)),
    "transposed": (lambda x, y: (x.T @ y) @ x.T, (X, Y)),
    "softmax": (lambda x: kf.softmax(x) * x, (X,)),
    "log_softmax": (lambda x: kf.log_softmax(x, 0) * x, (X,)),
    "a quotient by other rows' sums": (lambda x: (e := kf.exp(x)) / e.sum(0)[:, None] * x, (X[:, :4],)),
    "logsumexp": (lambda x: kf.logsumexp(x, 1), (X,)),
    "layernorm": (lambda x, w, b: kf.layernorm(x, w, b) * x, (X, V, V + 1)),
    "rmsnorm": (lambda x, w: kf.rmsnorm(x, w), (X, V)),
    "batchnorm": (lambda x, w: kf.batchnorm(x, weight=w) * x, (X, V)),
    "var": (lambda x: (kf.var(x, 0), kf.std(x, 1, correction=1)), (X,)),
    "gelu": (lambda x: kf.gelu(x) * kf.silu(x), (X,)),
    "norm": (lambda x: kf.norm(x, 2, 1), (X,)),
    "attention": (lambda q, k: kf.attention(q, k, k * 2, causal=True), (T, T + 1)),
    "conv2d": (lambda x, w: kf.conv2d(x, w, groups=2), (IMAGES, KERNELS)),
    "conv2d, everything": (
        lambda x, w: kf.conv2d(x, w, stride=(2, 3), padding=(3, 1), dilation=(2, 1), groups=2),
        (IMAGES, KERNELS),
    ),
    "conv2d, few positions": (lambda x, w: kf.conv2d(x, w, stride=4, padding=5, groups=2), (IMAGES, KERNELS)),
    "cross entropy": (lambda x, t: kf.cross_entropy(x, t, label_smoothing=0.1), (X, np.array([0, 5, 2, 2]))),
}


def test_nodes():
    sweep(lambda name: check(NODES[name][0], *NODES[name][1]), [(name,) for name in NODES])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_gathers_of_several_elements(dtype):
    """Their sums are the array library's, and of half types in float32."""

    def loss(x, table):
        return (kf.take(x, I, 0) * kf.take(table, I, 1).T).sum() + (kf.take_along_axis(x, PLACES, 1) ** 2).sum()

    def of_torch(x, table):
        return (x[i] * table[:, i].T).sum() + (x.gather(1, places) ** 2).sum()

    x, table = X.astype(dtype), random_like((6, 4), 7).astype(dtype)
    i, places = torch.from_numpy(I) % 4, torch.from_numpy(PLACES) % 6
    tensors = [torch.from_numpy(a.astype(np.float64)).requires_grad_() for a in (x, table)]
    want = [w.numpy() for w in torch.autograd.grad(of_torch(*tensors), tensors)]
    for function, arrays in ((loss, (x, table)), (of_torch, tuple(map(torch.from_numpy, (x, table))))):
        got = kf.grad(function, (0, 1))(*arrays)
        assert all(str(g.dtype).endswith(dtype) for g in got)
        require_close([np.asarray(g) for g in got], want, {"float64": 1e-12, "float32": 1e-6}.get(dtype, 3e-3))


@pytest.mark.parametrize("part", ["sum", "exp", "neither"])
def test_a_softmax_with_constant_parts(part):
    """Its gradient is one of the result alone only where gradients pass through all of it."""

    def loss(z):
        e = kf.exp(z - kf.stop_gradient(kf.max(z, -1, keepdims=True)))
        if part == "exp":
            e = kf.stop_gradient(e)
        total = kf.sum(e, -1, keepdims=True)
        return (kf.square(e / (kf.stop_gradient(total) if part == "sum" else total)) * z).sum()

    def of_torch(z):
        e = torch.exp(z - z.max(-1, keepdim=True).values.detach())
        e = e.detach() if part == "exp" else e
        total = e.sum(-1, keepdim=True)
        return (torch.square(e / (total.detach() if part == "sum" else total)) * z).sum()

    z = random_like((5, 7))
    given = torch.from_numpy(z).requires_grad_()
    require_close([kf.grad(loss)(z)], [g.numpy() for g in torch.autograd.grad(of_torch(given), given)])


# ---- random programs ----


@settings(max_examples=60)
@given(cases(max_steps=8, dtypes=("float64",), contractions=True))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_random_programs(case):
    seeds = seeds_of(case.graph)
    got = vjp_of_graph(case.graph, case.inputs, seeds)
    if all(v.error == 0 for v in case.outputs) or not has_kinks(case.graph):  # ties are the same ties in torch
        require_close(got, torch_vjp_of_graph(case.graph, case.inputs, seeds), 1e-7, finite_only=True)


def has_kinks(graph):
    kinks = {"max", "min", "maximum", "minimum", "absolute", "relu", "sqrt", "divide", "sign", "where"}
    return any(n["op"] in kinks for n in graph.to_dict()["nodes"])
