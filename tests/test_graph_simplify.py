"""Graphs: what simplifying joins and drops, and what holds of every graph."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import SHAPES, evaluate, graphs
from kfusion import _core
from kinds import np_dtype
from test_graph import stages

pytestmark = pytest.mark.native


def test_equal_nodes_become_one():
    g = _core.Graph()
    x, y = g.input("x", (3,), "float32"), g.input("y", (3,), "float32")
    a = g.map("add", [x, y])
    b = g.map("add", [y, x])
    g.set_outputs([("", g.map("multiply", [g.map("exp", [a]), g.map("exp", [b])]))])
    h = g.simplify()
    assert [n["op"] for n in h.to_dict()["nodes"]] == ["input", "input", "add", "exp", "multiply"]
    assert stages(h) == ["add", "exp", "multiply"]


def test_what_differs_stays_apart():
    g = _core.Graph()
    x, y = g.input("x", (3, 3), "float32"), g.input("x", (3, 3), "float32")
    results = [
        g.map("subtract", [x, y]), g.map("subtract", [y, x]), g.map("add", [x, g.scalar(0.0)]),
        g.map("add", [x, g.scalar(-0.0)]), g.reduce("sum", x, [0]), g.reduce("sum", x, [1]),
        g.reduce("sum", x, None), g.reduce("sum", x, [0, 1]), g.reduce("sum", x, [1], True),
        g.cast(x, "float64"), g.cast(x, "float16"),
    ]  # fmt: skip
    g.set_outputs([(str(i), r) for i, r in enumerate(results)])
    h = g.simplify()
    assert len({o["node"] for o in h.to_dict()["outputs"]}) == len(results)


def test_a_reduction_that_keeps_its_axes_is_a_view_of_the_same_one():
    g = _core.Graph()
    x = g.input("x", (3, 4), "float32")
    kept, plain = g.reduce("max", x, [1], True), g.reduce("max", x, [1])
    g.set_outputs([("kept", g.map("equal", [x, kept])), ("plain", plain), ("min", g.reduce("min", x, [1]))])
    assert [n["op"] for n in g.simplify().to_dict()["nodes"]] == ["input", "max", "reshape", "equal", "min"]


def test_constants():
    """Equal ones are one, and so are NaNs of either sign."""
    g = _core.Graph()
    x = g.input("x", (3,), "float64")
    for values in ((0.1, 0.1), (float("nan"), -float("nan"))):
        g.set_outputs([(str(i), g.map("add", [x, g.scalar(v)])) for i, v in enumerate(values)])
        assert len(g.simplify()) == 3

    def build(value):
        g = _core.Graph()
        g.set_outputs([("", g.map("add", [g.input("x", (3,), "float64"), g.scalar(value)]))])
        return g

    plus, minus = build(float("nan")), build(-float("nan"))
    assert plus == minus == _core.Graph.from_dict(minus.to_dict())
    assert plus.hash() == minus.hash()


def test_what_goes():
    """Dead nodes, but for inputs; views that change nothing."""
    g = _core.Graph()
    x, unused = g.input("x", (3, 5), "float32"), g.input("unused", (3,), "float32")
    g.map("log", [g.map("add", [unused, g.scalar(1)])])
    y = g.slice(g.broadcast(g.reshape(g.transpose(x, (0, 1)), (3, -1)), (3, 5)), [(0, 3, 1), (0, 5, 1)])
    g.set_outputs([("", g.map("exp", [g.cast(y, "float32")]))])
    h = g.simplify()
    assert [n["op"] for n in h.to_dict()["nodes"]] == ["input", "input", "exp"]
    assert stages(h) == ["exp"]


def test_views_of_views_become_one():
    flipped = [(0, 2, 1), (0, 3, 1), (4, -1, -1)]

    def check(views, **expected):
        g = _core.Graph()
        g.set_outputs([("", views(g, g.input("x", (2, 3, 5), "float32")))])
        h = g.simplify()
        assert len(h) == 1 + (expected.get("op") != "input")
        assert h.node(len(h) - 1).items() >= expected.items()

    check(lambda g, x: g.transpose(g.transpose(x, (2, 0, 1)), (2, 0, 1)), op="transpose", axes=[1, 2, 0])
    check(lambda g, x: g.transpose(g.transpose(x, (2, 0, 1)), (1, 2, 0)), op="input")
    check(lambda g, x: g.reshape(g.reshape(x, (-1,)), (6, 5)), op="reshape", shape=[6, 5])
    check(lambda g, x: g.reshape(g.reshape(x, (-1,)), (2, 3, 5)), op="input")
    check(lambda g, x: g.broadcast(g.broadcast(x, (4, 2, 3, 5)), (7, 4, 2, 3, 5)), shape=[7, 4, 2, 3, 5])
    check(lambda g, x: g.slice(g.slice(x, flipped), flipped), op="input")
    parts = [(0, 2, 1), (0, 3, 1), (1, 5, 1)], [(0, 2, 1), (2, -1, -2), (0, 4, 3)]
    check(lambda g, x: g.slice(g.slice(x, parts[0]), parts[1]), op="slice", start=[0, 2, 1], step=[1, -2, 3])


@settings(max_examples=200, deadline=None)
@given(graphs(library="numpy"), st.integers(0, 2**32 - 1))
def test_results_stay_the_same_to_the_bit(g, seed):
    rng = np.random.default_rng(seed)
    nodes = [n for n in g.to_dict()["nodes"] if n["op"] == "input"]
    inputs = [(rng.standard_normal(n["shape"]) * 3).astype(np_dtype(n["dtype"])) for n in nodes]
    h = g.simplify()
    for a, b in zip(evaluate(g, inputs), evaluate(h, inputs), strict=True):
        assert a.dtype == b.dtype
        assert np.array_equal(a.astype(np.float64), b.astype(np.float64), equal_nan=True)


@settings(max_examples=200, deadline=None)
@given(graphs())
def test_is_valid_simplified_and_read_back(g):
    g.verify()
    h = g.simplify()
    h.verify()
    assert len(h) <= len(g)
    assert h.simplify() == h
    assert repr(g) != str(g)
    for graph in (g, h):
        for again in (_core.Graph.from_dict(graph.to_dict()), pickle.loads(pickle.dumps(graph)), copy.copy(graph)):
            assert again == graph
            assert again.hash() == graph.hash()
            assert again.to_dict() == graph.to_dict()
            assert str(again) == str(graph)


def test_names_count_and_sources_do_not():
    def build(name="x", stage="s", source="here", output="y"):
        g = _core.Graph()
        g.begin_stage(stage, source)
        g.set_outputs([(output, g.map("exp", [g.input(name, (3,), "float32")]))])
        return g

    assert build() == build(source="there")
    assert build().hash() == build(source="there").hash()
    for other in (build(name="z"), build(stage="t"), build(output="w")):
        assert build() != other
        assert build().hash() != other.hash()
    assert build() != 1
    assert build(stage="exp", source="", output="").hash() == 1490917381850043870  # in every process


def test_large_graphs():
    g = _core.Graph()
    x = g.input("x", (64, 3), "float32")
    for k in range(10_000):
        x = g.map("add", [x, g.scalar(k)])
    g.set_outputs([("", x)])
    assert len(g) == 30_001
    h = g.simplify()
    assert len(h) == 20_001
    assert _core.Graph.from_dict(h.to_dict()) == h


def test_many_threads_read_one():
    g = _core.Graph()
    g.set_outputs([("", g.map("exp", [g.input("x", SHAPES[-1], "float32")]))])
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(str(g.simplify()))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert texts == [str(g)] * 8
