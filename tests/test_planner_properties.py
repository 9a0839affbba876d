"""What holds for the plan of any graph."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import kfusion as kf
from graph_strategies import cases
from graphs import graphs
from kfusion import _core
from programs.checks import H200, KIND, Runner, check_groups, check_plan, is_part
from programs.drawing import Seeded, draw_program
from programs.profiles import PROFILES

pytestmark = pytest.mark.native


def make_plan(graph, **options):
    return _core.make_plan(graph, H200, options)


def crossings(groups):
    stored = {s["node"]: i for i, g in enumerate(groups) for s in g["stores"]}
    return {(stored[load["node"]], i) for i, g in enumerate(groups) for load in g["loads"] if load["node"] in stored}


def check_all(graph):
    plan = check_plan(graph, H200, {})
    refused = {(r["producer_group"], r["consumer_group"]) for r in plan["refusals"]}
    assert crossings(plan["groups"]) <= refused
    assert all(r["sentence"].endswith(".") for r in plan["refusals"])
    assert plan == make_plan(graph), "planning is deterministic"


@hypothesis.given(graphs() | cases(contractions=True).map(lambda case: case.graph))
@hypothesis.settings(max_examples=250, deadline=None)
def test_any_graph(graph):
    check_all(graph)


@hypothesis.given(graphs(), st.integers(1, 4), st.integers(1, 3))
@hypothesis.settings(max_examples=60, deadline=None)
def test_limits_are_kept_and_plans_that_run(graph, inputs, outputs):
    plan = make_plan(graph, max_inputs=inputs, max_outputs=outputs)
    check_groups(plan["graph"], plan["groups"])
    for g in plan["groups"]:
        if len(g["stages"]) > 1:  # what one call takes is one kernel whatever the limits
            assert len({load["node"] for load in g["loads"]}) <= inputs
            assert len(g["stores"]) <= outputs
    for fuse in (True, False):
        plan = make_plan(graph, executors="available", fuse=fuse)
        check_groups(plan["graph"], plan["groups"])
        assert fuse or all(len(g["stages"]) == 1 for g in plan["groups"])


def of_tanh(count, step=lambda g, y, x: g.map("tanh", [y])):
    g = _core.Graph()
    y = x = g.input("x", (3, 5), "float32")
    for _ in range(count):
        y = step(g, y, x)
    g.set_outputs([("", y)])
    return g


def test_chains_of_any_length_are_one_kernel():
    for size in (10, 1000):
        g = of_tanh(size // 2, lambda g, y, x: g.map("add", [g.map("tanh", [y]), x]))
        (group,) = make_plan(g)["groups"]
        assert len(group["nodes"]) == 2 * (size // 2)
        assert group["compulsory"] == {"read": 60, "written": 60}


def test_stages_of_a_graph_from_outside_may_be_mixed():
    d = of_tanh(4).to_dict()
    d["stages"] = [{"name": "a", "source": ""}, {"name": "b", "source": ""}]
    for i, n in enumerate(d["nodes"][1:]):
        n["stage"] = i % 2
    plan = make_plan(_core.Graph.from_dict(d), fuse=False)
    check_groups(plan["unfused_graph"], plan["unfused_groups"])


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
                own = {"op": "input", "name": str(i), "captured": False, "strides": [], "arguments": [], "stage": None}
                n = {k: v for k, v in {**n, **own}.items() if k in INPUT}
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
        for i, n in enumerate(self.graph["nodes"]):  # joins of which all parts are there
            if KIND[n["op"]] == "join" and not is_part(n) and values.keys() >= set(n["arguments"]):
                values[i] = np.concatenate([values[a] for a in n["arguments"]], n["axis"])


INPUT = {"op", "dtype", "shape", "arguments", "stage", "library", "device", "name", "captured", "strides"}
OPTIONS = [{}, {"executors": "available"}, {"max_inputs": 2, "max_outputs": 2}, {"fuse": False}]
OPTIONS += [{"fuse": False, "executors": "available"}]


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


def merged_calls(plan):
    """Pairs of calls of which one reads, within a kernel, what the other one makes."""
    nodes, stages = plan["graph"]["nodes"], plan["graph"]["stages"]
    for group in plan["groups"]:
        for n in group["nodes"]:
            for a in nodes[n]["arguments"]:
                while a in group["views"]:
                    (a,) = nodes[a]["arguments"]
                if a in group["nodes"] and nodes[a]["stage"] != nodes[n]["stage"]:
                    yield tuple(stages[nodes[i]["stage"]]["name"] for i in (a, n))


# Merging is greedy, and another order may give fewer kernels: what counts is that no merge costs more than it saves.
@pytest.mark.parametrize("device", ["H200", "EPYC 9654"])
@hypothesis.given(seed=st.integers(0, 2**32))
@hypothesis.example(seed=1587)  # merges of which each saved time, and all together did not
@hypothesis.settings(max_examples=25, deadline=None)
def test_no_merge_of_what_is_broadcast_costs_time(device, seed):
    (profile,) = (p for p in PROFILES if p.name == "broadcasts")
    program = draw_program(Seeded(seed), profile)
    graph = Runner().prepared(program, program.inputs).graph
    plan = _core.make_plan(graph, kf.device(device).to_dict(), {})
    for pair in sorted(set(merged_calls(plan))):
        apart = _core.make_plan(graph, kf.device(device).to_dict(), {"forbid": [pair]})
        if apart["fused"]["launches"] >= plan["fused"]["launches"]:
            assert plan["fused"]["predicted_us"] <= 1.2 * apart["fused"]["predicted_us"], pair
