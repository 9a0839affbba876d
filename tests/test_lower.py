"""Groups as loops: what the executors run, on awkward functions and on random graphs."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import kernel_loops
import kfusion as kf
from graph_strategies import cases
from kfusion import _core
from layouts import element_strides, laid_out, layouts, with_layouts
from sweeps import sweep

pytestmark = pytest.mark.native

DEVICE = kf.device("H200").to_dict()


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(cases(), st.booleans(), st.data())
def test_loops_compute_what_their_graph_does(case, fuse, data):
    graph, inputs = with_layouts(case, [data.draw(layouts(x.shape)) for x in case.inputs])
    case.check(kernel_loops.run(_core.testing.lower(graph, DEVICE, fuse), inputs))


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(cases(), st.booleans(), st.data())
def test_results_lie_as_the_caller_wants(case, fuse, data):
    wanted = [element_strides(laid_out(v.array, data.draw(layouts(v.array.shape)))) for v in case.outputs]
    required = _core.testing.required_strides(case.graph, DEVICE, fuse)
    strides = [r or w if v.array.size else [] for r, w, v in zip(required, wanted, case.outputs, strict=True)]
    case.check(kernel_loops.run(_core.testing.lower(case.graph, DEVICE, fuse, strides), case.inputs, strides))


def only_kernel(function, *specs, strides=()):
    graph = kf.trace(function, *specs).to_dict()
    for node, given in zip((n for n in graph["nodes"] if n["op"] == "input"), strides, strict=False):
        node["strides"] = given
    (kernel,) = _core.testing.lower(_core.Graph.from_dict(graph), DEVICE)["kernels"]
    kernel_loops.check_rules(kernel)
    return kernel


X, ROW = kf.spec((6, 35)), kf.spec((35,))


def test_loops_follow_memory():
    def check(function, specs, *expected):
        k = only_kernel(function, *specs)
        assert (k["kind"], k["kept"], k["reduced"]) == expected

    sweep(check, [
        (lambda x: kf.exp(x), [X], "pointwise", [210], []),
        (lambda x: kf.exp(x.T), [X], "pointwise", [35, 6], []),
        (lambda x: (kf.exp(x) + 1).T.reshape(5, 7, 6), [X], "pointwise", [210], []),
        (lambda x, w: x * w, [X, ROW], "pointwise", [6, 35], []),
        (lambda x, w: x * w, [X, kf.spec((1,))], "pointwise", [210], []),
        (lambda x: x[::2] + x[1::2], [X], "pointwise", [3, 35], []),
        (lambda x: kf.exp(x), [kf.spec(())], "pointwise", [], []),
        (lambda x: x.sum(axis=-1), [X], "rows", [6], [35]),
        (lambda x: x.T.sum(axis=0), [X], "rows", [6], [35]),
        (lambda x: x.sum(axis=0), [X], "columns", [35], [6]),
        (lambda x: x.sum(), [X], "full_reduction", [], [210]),
        (lambda x: x.sum(axis=0), [ROW], "full_reduction", [], [35]),
        (lambda x: kf.softmax(x), [ROW], "rows", [], [35]),
        (lambda x: x.max(axis=(0, 2)), [kf.spec((2, 3, 5))], "rows", [3], [2, 5]),
        (lambda x: x.max(axis=(0, 1)), [kf.spec((2, 3, 5))], "columns", [5], [6]),
        (lambda x: x.max(axis=(1, 2), keepdims=True), [kf.spec((2, 3, 1, 5))], "columns", [2, 5], [3]),
    ])  # fmt: skip


def test_a_strided_argument_decides_what_lies_together():
    by_columns = only_kernel(lambda x: x.sum(axis=1), X, strides=[[1, 6]])
    assert (by_columns["kind"], by_columns["kept"], by_columns["reduced"]) == ("columns", [6], [35])
    by_rows = only_kernel(lambda x: kf.softmax(x, axis=0), X, strides=[[-1, 6]])
    assert (by_rows["kind"], by_rows["kept"], by_rows["reduced"]) == ("rows", [35], [6])
    gaps = only_kernel(lambda x: x * 2, X, strides=[[70, 2]])
    assert (gaps["kept"], gaps["loads"][0]["kept"]) == ([210], [2])


def test_operands_vary_along_the_axes_that_they_have():
    k = only_kernel(lambda x, w, b, c: kf.softmax(x * w + b) * c, X, ROW, kf.spec((6, 1)), kf.spec((1,)))
    strides = [(o["kept"], o["reduced"]) for o in k["loads"]]
    assert strides == [([35], [1]), ([0], [1]), ([1], [0]), ([0], [0])]
    assert [s["row"] for s in k["steps"] if s["kind"] == "load"] == [False, False, True, True]
    reversed_rows = only_kernel(lambda x: kf.exp(x[::-1]), X)["loads"][0]
    assert (reversed_rows["kept"], reversed_rows["offset"]) == ([-35, 1], 5 * 35)


def test_reductions_that_merge_are_paired():
    def check(function, pairs, spec=X):
        assert [kind for kind, _, _ in only_kernel(function, spec)["pairs"]] == pairs

    sweep(check, [
        (lambda x: x.var(axis=-1), ["centred"]),
        (lambda x: x.var(axis=0), ["centred"]),
        (lambda x: kf.softmax(x), ["shifted"]),
        (lambda x: kf.log_softmax(x), ["shifted"]),
        (lambda x: kf.layernorm(kf.relu(x)), ["centred"]),
        (lambda x: kf.rmsnorm(x), []),
        (lambda x: ((x - x.mean(-1, keepdims=True)) ** 2).max(-1), []),
        (lambda x: kf.exp(x - x.min(-1, keepdims=True)).sum(-1), []),
        (lambda x: kf.softmax(x), ["shifted"], kf.spec((1, 35))),  # of a single row
        (lambda x: kf.layernorm(x), ["centred"], kf.spec((1, 35))),
    ])  # fmt: skip
    k = only_kernel(lambda x: kf.softmax(kf.layernorm(x)), X)  # pairs share a sweep
    reductions = [s for s in k["steps"] if s["kind"] == "reduce"]
    assert [s["sweep"] for s in reductions] == [0, 1, 2, 3]
    assert [s["paired_sweep"] for s in reductions] == [0, 0, 1, 1]
    assert (k["sweeps"], k["paired_sweeps"]) == (5, 3)


def test_results():
    k = only_kernel(lambda x: (kf.relu(x), kf.softmax(kf.relu(x)), x.max(-1), x.mean(-1, keepdims=True)), X)
    assert k["sweeps"] == 3
    assert sorted(s["to"]["reduced"] for s in k["stores"]) == [[0], [0], [1], [1]]
    assert k["bytes"] == 4 * (3 * 6 * 35 + 2 * 6)
    k = only_kernel(lambda x: x.sum(-1, keepdims=True) + np.zeros_like(x), X)  # a row's value, to every element
    (store,) = k["stores"]
    assert store["to"]["reduced"] == [1]
    assert k["sweeps"] == 2


def test_text_has_a_line_for_each_step():
    k = only_kernel(lambda x, w: kf.softmax(x * w + 1), X, ROW)
    lines = k["text"].splitlines()
    assert lines[0] == "multiply_add_softmax: rows (6 | 35), 3 sweeps"
    assert lines[1] == "%0: float32 = x[35 | 1]  # element, sweep 0"
    assert len(lines) == 1 + len(k["steps"]) + len(k["stores"]) + len(k["pairs"])


def test_the_sum_of_one_rounded_element_is_that_element():
    """The cast that rounds it belongs to no node, whose attributes were read once."""

    def f(x):
        y = kf.exp(x)
        return y, (y.sum(axis=1) * 3).sum(axis=0)

    kernel = only_kernel(f, kf.spec((40, 1), "bfloat16"))
    (product,) = (s for s in kernel["steps"] if s["op"] == "multiply")
    rounded = kernel["steps"][product["arguments"][0]]
    assert (rounded["kind"], rounded["dtype"], rounded["node"]) == ("cast", "bfloat16", -1)
