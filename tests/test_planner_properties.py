"""What holds for the plan of any graph."""

from __future__ import annotations

from collections import Counter

import hypothesis
import hypothesis.strategies as st
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


@hypothesis.given(graphs())
@hypothesis.settings(max_examples=60, deadline=None)
def test_only_executable_groups_are_stages_or_run(graph):
    plan = make_plan(graph, only_executable=True)
    check(_core.Graph.from_dict(plan["graph"]), plan, plan["groups"])


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
