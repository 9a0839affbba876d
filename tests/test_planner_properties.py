"""What holds for the plan of any graph."""

from __future__ import annotations

from collections import Counter

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import kfusion as kf
from graph_strategies import cases
from graphs import graphs
from kfusion import _core

H200 = kf.device("H200").to_dict()
COMPUTES = {"map", "reduce", "cast", "contraction", "gather"}
KIND = {op["name"]: op["kind"] for op in _core.op_table()}


def make_plan(graph, **options):
    return _core.make_plan(graph, H200, options)


def total(bytes_):
    return bytes_["read"] + bytes_["written"]


def check(graph, plan, groups):
    """Each computing node in one group, each value stored before it is loaded, each boundary with a reason."""
    nodes = graph.to_dict()["nodes"]
    placed = Counter(n for g in groups for n in g["nodes"])
    assert max(placed.values(), default=1) == 1
    computing = {i for i, n in enumerate(nodes) if KIND[n["op"]] in COMPUTES}
    assert computing <= set(placed)
    assert all(KIND[nodes[n]["op"]] == "view" for n in set(placed) - computing)  # reshapes that copy
    known = {i for i, n in enumerate(nodes) if n["op"] == "input"}
    for g in groups:
        assert {load["node"] for load in g["loads"]} <= known, "loaded before it is stored"
        known |= {store["node"] for store in g["stores"]}
        assert set(g["nodes"]) >= {store["node"] for store in g["stores"]}


def crossings(groups):
    stored = {s["node"]: i for i, g in enumerate(groups) for s in g["stores"]}
    return {(stored[load["node"]], i) for i, g in enumerate(groups) for load in g["loads"] if load["node"] in stored}


def one_stage_per_op(graph):
    """Calls of several ops are counted as one kernel each when nothing is fused, even where no kernel could be that."""
    d = graph.to_dict()
    d["stages"] = [{"name": f"s{i}", "source": ""} for i in range(len(d["nodes"]))]
    for i, n in enumerate(d["nodes"]):
        n["stage"] = None if n["stage"] is None else i
    used = sorted({n["stage"] for n in d["nodes"] if n["stage"] is not None})
    d["stages"] = [d["stages"][i] for i in used]
    for n in d["nodes"]:
        n["stage"] = None if n["stage"] is None else used.index(n["stage"])
    return _core.Graph.from_dict(d)


def check_plan(graph):
    plan = make_plan(graph)
    fused = _core.Graph.from_dict(plan["graph"])
    check(fused, plan, plan["groups"])
    refused = {(r["producer_group"], r["consumer_group"]) for r in plan["refusals"]}
    assert crossings(plan["groups"]) <= refused
    assert all(r["sentence"].endswith(".") for r in plan["refusals"])
    apart = make_plan(one_stage_per_op(graph))["unfused"]
    assert total(plan["fused"]["compulsory"]) <= total(apart["compulsory"])
    assert plan["fused"]["launches"] <= apart["launches"]
    assert plan == make_plan(graph), "planning is deterministic"
    return plan, fused


@hypothesis.given(graphs())
@hypothesis.settings(max_examples=150, deadline=None)
def test_any_graph(graph):
    check_plan(graph)


@hypothesis.given(cases(contractions=True))
@hypothesis.settings(max_examples=100, deadline=None)
def test_graphs_with_contractions(case):
    check_plan(case.graph)


@hypothesis.given(graphs(), st.integers(1, 4), st.integers(1, 3))
@hypothesis.settings(max_examples=60, deadline=None)
def test_limits_are_kept(graph, inputs, outputs):
    plan = make_plan(graph, max_inputs=inputs, max_outputs=outputs)
    check(_core.Graph.from_dict(plan["graph"]), plan, plan["groups"])
    for g in plan["groups"]:
        if len(g["nodes"]) > 1:
            assert len({load["node"] for load in g["loads"]}) <= inputs
            assert len(g["stores"]) <= outputs


@pytest.mark.parametrize("fuse", [True, False])
@hypothesis.given(graph=graphs())
@hypothesis.settings(max_examples=60, deadline=None)
def test_what_only_executable_plans_can_run(fuse, graph):
    plan = make_plan(graph, only_executable=True, fuse=fuse)
    check(_core.Graph.from_dict(plan["graph"]), plan, plan["groups"])
    assert fuse or all(len(g["stages"]) == 1 for g in plan["groups"])


@pytest.mark.parametrize("size", [10, 1000])
def test_chains_of_any_length_are_one_kernel(size):
    g = _core.Graph()
    y = x = g.input("x", (3, 5), "float32")
    for _ in range(size // 2):
        y = g.map("add", [g.map("tanh", [y]), x])
    g.set_outputs([("", y)])
    (group,) = make_plan(g)["groups"]
    assert len(group["nodes"]) == 2 * (size // 2)
    assert group["compulsory"] == {"read": 60, "written": 60}


class Alone:
    """A group as a graph of its own: its loads are the inputs, its stores the results."""

    def __init__(self, graph, group):
        self.graph, self.group = graph, group
        self.loads = {load["node"] for load in group["loads"]}
        self.nodes, self.moved, self.inputs = [], {}, []
        self.outputs = [{"name": str(k), "node": self.add(s["node"])} for k, s in enumerate(group["stores"])]

    def add(self, i):
        if i not in self.moved:
            n = self.graph["nodes"][i]
            if i in self.loads:
                self.inputs.append(i)
                n = {
                    **n,
                    "op": "input",
                    "name": str(i),
                    "captured": False,
                    "strides": [],
                    "arguments": [],
                    "stage": None,
                }
                n = {k: v for k, v in n.items() if k in INPUT}
            else:
                free = KIND[n["op"]] == "view" or n["op"] in ("constant", "iota")
                assert i in self.group["nodes"] or free, "neither loaded nor computed"
                stage = None if n["stage"] is None else 0
                n = {**n, "arguments": [self.add(a) for a in n["arguments"]], "stage": stage}
            self.nodes.append(n)
            self.moved[i] = len(self.nodes) - 1
        return self.moved[i]

    def run(self, values):
        stages = [{"name": "group", "source": ""}]
        graph = {**self.graph, "nodes": self.nodes, "stages": stages, "outputs": self.outputs}
        results = _core.run_graph(_core.Graph.from_dict(graph), [values[i] for i in self.inputs], "f")
        values |= {s["node"]: r for s, r in zip(self.group["stores"], results, strict=True)}


INPUT = {"op", "dtype", "shape", "arguments", "stage", "library", "device", "name", "captured", "strides"}
OPTIONS = [{}, {"only_executable": True}, {"max_inputs": 2, "max_outputs": 2}, {"fuse": False}]
OPTIONS += [{"fuse": False, "only_executable": True}]


# Not of half values: they stay float32 within a call, so where its kernels are cut they are rounded elsewhere.
@hypothesis.given(cases(dtypes=("float32", "float64"), contractions=True), st.sampled_from(OPTIONS))
@hypothesis.settings(max_examples=100, deadline=None)
def test_groups_one_after_another_give_the_same(case, options):
    plan = make_plan(case.graph, **options)
    nodes = plan["graph"]["nodes"]
    values = dict(zip([i for i, n in enumerate(nodes) if n["op"] == "input"], case.inputs, strict=True))
    for group in plan["groups"]:
        alone = Alone(plan["graph"], group)
        assert group["stores"]
        assert set(group["nodes"]) <= set(alone.moved), "computed for nothing"
        assert set(alone.inputs) == alone.loads, "loaded for nothing"
        alone.run(values)
    whole = _core.Graph.from_dict(plan["graph"])
    for graph in (case.graph, whole):
        case.check(_core.run_graph(graph, case.inputs, "f"))
    everything = {**plan["graph"], "outputs": [{"name": str(i), "node": i} for i in values]}
    kept = _core.run_graph(_core.Graph.from_dict(everything), case.inputs, "f")
    for value, want in zip(values.values(), kept, strict=True):
        np.testing.assert_array_equal(np.asarray(value).astype(float), np.asarray(want).astype(float))


def test_stages_of_a_graph_from_outside_may_be_mixed():
    g = _core.Graph()
    y = g.input("x", (3, 5), "float32")
    for _ in range(4):
        y = g.map("tanh", [y])
    g.set_outputs([("", y)])
    d = g.to_dict()
    d["stages"] = [{"name": "a", "source": ""}, {"name": "b", "source": ""}]
    for i, n in enumerate(d["nodes"][1:]):
        n["stage"] = i % 2
    plan = make_plan(_core.Graph.from_dict(d), fuse=False)
    check(_core.Graph.from_dict(plan["unfused_graph"]), plan, plan["unfused_groups"])
