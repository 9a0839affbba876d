"""Tracing: one graph whatever the spelling; inputs, captured arrays, results, stages, source lines."""

from __future__ import annotations

import inspect
from typing import NamedTuple

import numpy as np
import pytest

import kfusion as kf
from kfusion._tracing.trace import trace
from sweeps import refusals, sweep
from tracing import run

torch = pytest.importorskip("torch")
F = torch.nn.functional
X, Y = kf.spec((5, 7)), kf.spec((5, 7))
TORCH = kf.spec((5, 7), like="torch")


def names(graph, like=""):
    """The stages' names, in order."""
    return [s["name"] for s in graph.to_dict()["stages"] if s["name"].startswith(like)]


SPELLINGS = {
    "add": "x + y; kf.add(x, y); np.add(x, y); torch.add(x, y)",
    "subtract": "x - y; kf.sub(x, y); np.subtract(x, y); torch.sub(x, y)",
    "divide": "x / y; kf.true_divide(x, y); np.divide(x, y); torch.div(x, y)",
    "floor_divide": "x // y; kf.floor_divide(x, y); np.floor_divide(x, y); torch.floor_divide(x, y)",
    "remainder": "x % y; kf.mod(x, y); np.mod(x, y)",  # torch's has another sign of 0
    "less": "x < y; kf.lt(x, y); np.less(x, y); torch.lt(x, y)",
    "maximum": "kf.maximum(x, y); np.maximum(x, y); torch.maximum(x, y); torch.max(x, y)",
    "where": "kf.where(x > y, x, y); np.where(x > y, x, y); torch.where(x > y, x, y)",
    "matmul": "x @ y.T; kf.matmul(x, y.T); np.matmul(x, y.T); np.dot(x, y.T); torch.mm(x, y.T)",
    "linear": "kf.linear(x, y); F.linear(x, y)",
    "mse": "kf.mse(x, y); F.mse_loss(x, y)",
    "relu": "x.relu(); kf.relu(x); torch.relu(x); F.relu(x); torch.nn.ReLU()(x)",
    "exp": "x.exp(); kf.exp(x); np.exp(x); torch.exp(x)",
    "sigmoid": "x.sigmoid(); kf.expit(x); torch.sigmoid(x); F.sigmoid(x)",
    "gelu": "kf.gelu(x); F.gelu(x); torch.nn.GELU()(x)",
    "softmax": "kf.softmax(x); x.softmax(-1); torch.softmax(x, 1); F.softmax(x, -1)",
    "sum": "x.sum(1); kf.sum(x, axis=1); np.sum(x, 1); torch.sum(x, dim=1); torch.sum(x, axis=-1)",
    "max": "x.max(1); kf.amax(x, 1); np.max(x, 1); torch.amax(x, 1); torch.max(x, 1)[0]",
    "var": "x.var(1); kf.var(x, 1); np.var(x, 1); torch.var(x, 1, correction=0)",
    "unbiased": "kf.var(x, 1, correction=1); np.var(x, 1, ddof=1); torch.var(x, 1)",
    "layernorm": "kf.layernorm(x); F.layer_norm(x, (7,)); torch.nn.LayerNorm(7, elementwise_affine=False)(x)",
    "clip": "kf.clip(x, 0, 1); np.clip(x, 0, 1); x.clip(0, 1); torch.clamp(x, 0, 1)",
    "square": "x**2; kf.square(x); np.square(x); torch.pow(x, 2)",
    "reshape": "x.reshape(-1); kf.ravel(x); np.ravel(x); x.ravel(); torch.flatten(x)",
    "transpose": "x.T; kf.transpose(x); np.swapaxes(x, 0, 1); torch.t(x); torch.permute(x, (1, 0))",
    "unsqueeze": "x[:, None]; kf.expand_dims(x, 1); np.expand_dims(x, 1); torch.unsqueeze(x, 1)",
    "flip": "kf.flip(x, 0); np.flip(x, 0); torch.flip(x, (0,))",
    "norm": "kf.norm(x, axis=1); np.linalg.norm(x, axis=1); torch.linalg.norm(x, dim=1)",
    "cast": "kf.astype(x, 'float64'); x.astype(np.float64); x.astype(float); x.astype('f8')",
}


def test_one_graph_whatever_the_spelling():
    def check(_, spellings):
        first, *others = (trace(eval(f"lambda x, y: {s}"), X, Y).graph for s in spellings.split(";"))
        for graph in others:
            assert graph == first, f"{graph}\n{first}"
            assert graph.hash() == first.hash()

    sweep(check, SPELLINGS.items())


def test_each_library_means_its_own():
    def graph(f, spec):
        return trace(f, spec).graph

    def var(x):
        return x.var(-1)

    assert graph(var, X) == graph(lambda x: kf.var(x, -1), X)
    assert graph(var, TORCH) == graph(lambda x: kf.var(x, -1, correction=1), TORCH)
    assert graph(lambda x: x.max(1), X) == graph(lambda x: kf.max(x, 1), X)
    assert graph(lambda x: x.max(1).values, TORCH) == graph(lambda x: kf.max(x, 1), TORCH)
    seventh = [trace(lambda x: x / 7, kf.spec((3,), "int64", like=like)).graph for like in ("numpy", "torch")]
    assert [g.dtype(len(g) - 1) for g in seventh] == ["float64", "float32"]


def test_inputs_are_named_after_the_parameters():
    def f(x, factor, *rest, weights, flag=True, **more):
        assert flag is True
        assert factor == 3
        return x * factor + rest[0] + weights["w"] + weights["several"][1] + more["last"]

    traced = trace(
        f, X, 3, kf.spec((7,)), weights={"w": kf.spec((7,)), "several": [1, kf.spec(())]}, last=np.ones(7, np.float32)
    )
    assert [i.name for i in traced.inputs] == ["x", "rest.0", "weights.w", "weights.several.1", "last"]
    assert not any(i.captured for i in traced.inputs)
    assert traced.inputs[0].spec == X
    assert traced.inputs[0].array is None
    assert traced.inputs[4].array.shape == (7,)
    assert traced.name == "f"


class Scale:
    def __init__(self):
        self.by = 2

    def __call__(self, x):
        return x * self.by

    def method(self, v):
        return v * self.by


def test_what_can_be_traced():
    assert trace(Scale(), X).graph == trace(lambda x: x * 2, X).graph
    assert trace(Scale(), X).name == "Scale"
    assert [i.name for i in trace(Scale().method, X).inputs] == ["v"]
    assert trace(kf.relu, X).graph == trace(np.vectorize(kf.relu).pyfunc, X).graph
    assert names(trace(np.exp, X).graph) == names(trace(torch.exp, X).graph) == ["exp"]


def named(x):
    return x * 2


def test_what_cannot():
    refusals([
        (lambda: trace(3, X), TypeError, "function must be callable, got int"),
        (lambda: trace(lambda x, out=None: x * 2, X), kf.TraceError, "has a parameter named out"),
        (lambda: trace(lambda x, stream=None: x * 2, X), kf.TraceError, "has a parameter named stream"),
        (lambda: trace(lambda x, y: x + y, np.ones(3), torch.ones(3)), TypeError,
         "y must be an array of numpy as x is, got one of torch"),
        (lambda: trace(lambda x, y: x + y, X, TORCH), TypeError, "y must be like numpy as x is, got torch"),
        (lambda: trace(lambda x: kf.add(x, GLOBAL), TORCH), kf.TraceError,
         "GLOBAL is an array of numpy and meets one of torch"),
        (lambda: trace(named, np.ma.masked_array(np.ones(3))), TypeError,
         "named: x must be a plain array, got MaskedArray; fill it first"),
        (lambda: trace(named, np.ones(3, complex)), TypeError, "x's dtype must be one of bool, .*, got complex128"),
        (lambda: trace(named), TypeError, r"^kfusion\.trace: named: missing a required argument: 'x'"),
    ])  # fmt: skip


GLOBAL = np.arange(7.0)


def test_captured_arrays():
    local = np.ones(7, np.float32)

    def f(x):
        return x * local + GLOBAL + (local * x) * np.full(7, 2.0, np.float32)

    traced = trace(f, X)
    seen = [("x", False), ("local", True), ("GLOBAL", True), ("captured", True)]
    assert [(i.name, i.captured) for i in traced.inputs] == seen
    assert (traced.inputs[1].array is local, traced.inputs[2].array is GLOBAL) == (True, True)
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    np.testing.assert_array_equal(run(f, x), f(x))

    def inner(v):
        x = GLOBAL
        return v * x

    traced = trace(lambda x: inner(x) + np.ones(7) + np.ones(7), X)  # none takes a parameter's name
    assert [i.name for i in traced.inputs] == ["x", "x_1", "captured", "captured_1"]


class Pair(NamedTuple):
    first: object
    second: object


def test_results():
    def f(x):
        return {"loss": x.sum(), "parts": (x * 2, [x, None]), "pair": Pair(3, x.T), "text": "t"}

    traced = trace(f, X)
    assert [o["name"] for o in traced.graph.to_dict()["outputs"]] == ["loss", "parts.0", "parts.1.0", "pair.second"]
    x = np.ones((5, 7), np.float32)
    got = run(f, x)
    assert got["loss"] == 35
    assert got["text"] == "t"
    assert isinstance(got["pair"], Pair)
    assert got["pair"].first == 3
    assert isinstance(got["parts"][1], list)
    np.testing.assert_array_equal(got["parts"][1][0], x)
    assert run(lambda v: (GLOBAL, v), x)[0] is GLOBAL


V = kf.spec((7,))
COMPOSITES = {
    "relu_layernorm": (lambda x, w: kf.relu_layernorm(x, w, w), [X, V], "relu mean var centre scale"),
    "layernorm": (lambda x, w: kf.layernorm(x, w, w), [X, V], "mean var centre scale"),
    "rmsnorm": (kf.rmsnorm, [X, V], "mean_square scale"),
    "batchnorm": (lambda x: kf.batchnorm(x), [X], "mean var scale"),
    "mse": (kf.mse, [X, Y], "sub square mean"),
    "cross_entropy": (kf.cross_entropy, [X, kf.spec((5,), "int64")], "logsumexp pick mean"),
    "linear": (kf.linear, [X, kf.spec((3, 7)), kf.spec((3,))], "matmul bias"),
    "attention": (kf.attention, [X, X, X], "scores scale softmax output"),
    "splade_head": (
        kf.splade_head,
        [kf.spec((2, 5, 7)), kf.spec((3, 7)), kf.spec((3,)), kf.spec((2, 5), "bool")],
        "matmul bias relu log1p mask max",
    ),
}
ONE_STAGE = "softmax log_softmax gelu silu softplus leaky_relu elu var std norm logsumexp flip relu sum"


def test_stages():
    def check(f, specs, stages):
        assert names(trace(lambda *a: f(*a), *specs).graph) == stages

    def of_one(name):
        assert names(trace(lambda x: getattr(kf, name)(x) * 2, X).graph) == [name, "multiply"]

    rows = [(f, specs, [f"{name}.{s}" for s in stages.split()]) for name, (f, specs, stages) in COMPOSITES.items()]
    sweep(check, [*rows, (kf.batchnorm, [X, V, V, V, V], ["batchnorm"])])
    sweep(of_one, [(name,) for name in ONE_STAGE.split()])


def test_source_lines():
    def f(x):
        y = kf.layernorm(x)
        z = np.exp(
            y,
        )
        return F.relu(z).sum(-1)

    first = inspect.getsourcelines(f)[1]
    stages = trace(f, X).graph.to_dict()["stages"]
    assert {s["source"] for s in stages[:4]} == {f"test_trace.py:{first + 1}: y = kf.layernorm(x)"}
    assert stages[4]["source"].startswith(f"test_trace.py:{first + 2}: ")
    assert [s["source"] for s in stages[5:]] == [f"test_trace.py:{first + 5}: return F.relu(z).sum(-1)"] * 2
