"""kfusion.plan and the Plan it makes; what the planner decides is tested in test_planner.py."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from kfusion._devices import devices
from kfusion._plans import plan as _plan
from plans import ROW, X, barrier_plan, chain_of_tanh, mlp, mlp_plan, relu_layernorm, row_plan


def test_groups_totals_and_savings_of_known_traffic():
    p = kf.plan(relu_layernorm, kf.spec((4096, 1024)), ROW1024 := kf.spec((1024,)), ROW1024, device="H200")
    (group,) = p.groups
    matrix, vector = 4096 * 1024 * 4, 1024 * 4
    assert (group.kind, group.rows, group.cols, group.label) == ("rows", 4096, 1024, "relu+layernorm")
    assert group.compulsory == group.issued == p.fused.compulsory
    assert (group.compulsory.read, group.compulsory.written) == (matrix + 2 * vector, matrix)
    assert {load.value for load in group.loads} == {"x", "w", "b"}
    assert [store.value for store in group.stores] == ["result"]
    assert (p.fused.launches, p.unfused.launches) == (1, len(p.unfused_groups)) == (1, 5)
    assert p.fused.peak_intermediate_bytes == 0 < p.unfused.peak_intermediate_bytes
    assert p.savings["fused_bytes"] == p.fused.issued.total
    assert p.savings["unfused_bytes"] == p.unfused.issued.total
    assert p.predicted_speedup == pytest.approx(p.unfused.time_us / p.fused.time_us)
    assert group.time_us == pytest.approx(group.launch_us + max(group.memory_us, group.compute_us))
    assert group.intensity == pytest.approx(group.flop_total / group.compulsory.total)


def test_savings_follow_from_issued_bytes(plan):
    unfused, fused = plan.unfused.issued.total, plan.fused.issued.total
    expected = {"unfused_bytes": unfused, "fused_bytes": fused, "savings_bytes": unfused - fused}
    expected["savings_pct"] = round((unfused - fused) / unfused * 100, 2) if unfused else 0.0
    if plan.groups:  # as the calculator does without operations
        expected["speedup_estimate"] = round(unfused / fused, 2) if fused else 0
    assert plan.savings == expected
    assert list(plan.savings) == list(expected)


def test_totals_are_sums(plan):
    for total, groups in ((plan.fused, plan.groups), (plan.unfused, plan.unfused_groups)):
        assert total.launches == sum(g.launches for g in groups)
        assert total.issued.read == sum(g.issued.read for g in groups)
        assert total.compulsory.written == sum(g.compulsory.written for g in groups)
        assert total.flop_total == sum(g.flop_total for g in groups)
        assert total.time_us == pytest.approx(sum(g.time_us for g in groups))


def test_unfused_option_makes_both_the_same():
    p = mlp_plan(fuse=False)
    assert p.groups == tuple(p.unfused_groups)
    assert p.predicted_speedup == 1.0
    assert {r.reason for r in p.refusals} == {kf.Reason.UNFUSED}


def test_reasons_are_the_planners():
    assert [r.value for r in kf.Reason] == _core.refusal_reasons()
    assert kf.Reason.REDUCTION_BARRIER == "reduction_barrier" == str(kf.Reason.REDUCTION_BARRIER)
    assert pickle.loads(pickle.dumps(kf.Reason.GATHER)) is kf.Reason.GATHER


def test_sentences_and_lines_of_a_refusal():
    p = barrier_plan()
    (r,) = (r for r in p.refusals if r.reason == kf.Reason.REDUCTION_BARRIER)
    assert (r.producer, r.consumer) == ("sum", "divide")
    assert "whole array" in r.sentence
    assert re.fullmatch(r'plans\.py:\d+: return \{"y": y / y\.sum.*', r.consumer_source)


def test_names_are_unique_and_in_the_order_of_calls():
    p = kf.plan(lambda x: kf.relu(kf.exp(kf.relu(x))) + kf.relu(x), X, device="H200")
    # The third relu gives what the first gives, and is computed with it.
    assert p.stages == ("relu", "exp", "relu_2", "add")
    assert [s for g in p.unfused_groups for s in g.stages] == ["relu", "exp", "relu_2", "relu_3", "add"]
    assert p.groups[0].label == "relu+exp+relu_2+add"


def test_labels_name_whole_composites_and_leave_out_the_middle():
    p = kf.plan(lambda x: kf.layernorm(kf.layernorm(x)) / 2, X, device="H200")
    assert p.groups[0].label == "layernorm+layernorm_2+divide"
    assert p.composites["layernorm_2"] == tuple(s for s in p.stages if re.fullmatch(r"layernorm\..*_2", s))
    q = kf.plan(lambda x: chain_of_tanh(x, 50), X, device="H200")
    assert re.fullmatch(r"tanh\+tanh_2\+.*\+\.\.\+.*tanh_49\+tanh_50", q.groups[0].label)
    assert len(q.groups[0].label) <= 60


def test_names_of_results():
    def stored(f):
        return {store.value for group in kf.plan(f, X, device="H200").groups for store in group.stores}

    assert stored(kf.relu) == {"result"}
    assert stored(lambda x: (kf.relu(x), [kf.exp(x)])) == {"result[0]", "result[1][0]"}
    assert stored(lambda x: {"a": (kf.relu(x), kf.exp(x)), "b": kf.sin(x)}) == {"a[0]", "a[1]", "b"}
    assert stored(lambda x: {"columns": kf.relu(x).T}) == {"columns"}  # stored as what it is a view of


def test_allow_forbid_and_executors():
    def f(x):
        return kf.tanh(kf.relu(x))

    assert len(kf.plan(f, X, device="H200").groups) == 1
    p = kf.plan(f, X, device="H200", forbid=[("relu", "tanh")])
    assert [r.reason for r in p.refusals] == [kf.Reason.FORBIDDEN]
    assert len(kf.plan(f, X, device="H200", allow=[("tanh", "relu")]).groups) == 1
    runs = kf.plan(mlp, X, kf.spec((35, 35)), kf.spec((35, 35)), device="H200", executors="available")
    assert len(runs.groups) > len(mlp_plan().groups)
    assert {g.executor for g in runs.groups} == {"cuda", "array_library"}
    by_one = kf.plan(mlp, X, kf.spec((35, 35)), kf.spec((35, 35)), device="H200", executors=["cuda"])
    assert {g.executor for g in by_one.groups} == {"cuda", ""}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"forbid": [("relu", "sinus")]}, ValueError, "forbid: there is no call or op 'sinus'"),
        ({"allow": ["relu,exp"]}, TypeError, r"allow must be pairs of names.*got 'relu,exp'"),
        ({"allow": "relu"}, TypeError, "allow must be pairs"),
        ({"forbid": [("relu",)]}, TypeError, "forbid must be pairs"),
        ({"forbid": [("relu", 1)]}, TypeError, "forbid must be pairs"),
        ({"forbid": 3}, TypeError, "forbid must be pairs"),
        ({"device": "H2000"}, ValueError, "H2000"),
        ({"device": 3}, TypeError, "device"),
        ({"fuse": 1}, TypeError, "fuse must be a bool"),
        ({"executors": "cpu"}, TypeError, "executors must be None, 'available' or a list of names"),
        ({"executors": [3]}, TypeError, "executors must be"),
        (
            {"executors": ["cpu", "tpu"]},
            ValueError,
            "there is no executor 'tpu', only cpu, cpu_products, cuda, tensor_cores, tensor_core_attention, cudnn, "
            "cublaslt, array_library",
        ),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        kf.plan(kf.relu, X, **{"device": "H200"} | options)


def test_binding_refuses_unknown_options():
    g, device = kf.trace(kf.relu, X), kf.device("H200").to_dict()
    with pytest.raises(ValueError, match="no option cheap"):
        _core.make_plan(g, device, {"cheap": True})
    with pytest.raises(ValueError, match="max_inputs must be at least 1"):
        _core.make_plan(g, device, {"max_inputs": 0})
    with pytest.raises(TypeError, match="max_outputs must be an int"):
        _core.make_plan(g, device, {"max_outputs": 2.0})


def test_a_graph_is_planned_as_its_function_is():
    g = kf.trace(relu_layernorm, X, ROW, ROW)
    assert isinstance(g, kf.Graph)
    p, q = kf.plan(g, device="H200"), row_plan()
    assert (p.groups, p.graph, p.function, q.function) == (q.groups, q.graph, "", "relu_layernorm")
    with pytest.raises(TypeError, match="takes no arguments"):
        kf.plan(g, X, device="H200")


def test_default_device_is_the_gpu_or_else_an_h200(monkeypatch):
    asked = []
    monkeypatch.setattr(devices, "device", lambda name: asked.append(name) or H200)
    H200 = kf.device("H200")
    for count, name in ((0, "H200"), (2, "cuda:0")):
        monkeypatch.setattr(_core, "cuda_device_count", lambda count=count: count)
        assert _plan.device_of(None) is H200
        assert asked.pop() == name
    assert _plan.device_of(H200) is H200


def test_arrays_count_by_shape_and_dtype_only():
    x = np.full((12, 35), np.nan, np.float32)
    assert kf.plan(kf.relu, x, device="H200").groups == kf.plan(kf.relu, X, device="H200").groups


def test_bytes_are_whole():
    p = kf.plan(lambda x: kf.tanh(kf.exp(x)), kf.spec((3, 5)), device="H200", fuse=False)
    assert "Fusing saves 0 of 240 B" in str(p)
