"""kfusion.plan, the Plan it makes and its explanations; what the planner decides is tested in test_planner.py."""

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
from sweeps import sweep


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


def test_totals_and_savings(plan):
    """They are sums, and savings follow from issued bytes."""
    unfused, fused = plan.unfused.issued.total, plan.fused.issued.total
    expected = {"unfused_bytes": unfused, "fused_bytes": fused, "savings_bytes": unfused - fused}
    expected["savings_pct"] = round((unfused - fused) / unfused * 100, 2) if unfused else 0.0
    if plan.groups:  # as the calculator does without operations
        expected["speedup_estimate"] = round(unfused / fused, 2) if fused else 0
    assert plan.savings == expected
    assert list(plan.savings) == list(expected)
    for total, groups in ((plan.fused, plan.groups), (plan.unfused, plan.unfused_groups)):
        assert total.launches == sum(g.launches for g in groups)
        assert total.issued.read == sum(g.issued.read for g in groups)
        assert total.compulsory.written == sum(g.compulsory.written for g in groups)
        assert total.flop_total == sum(g.flop_total for g in groups)
        for of in (lambda t: t.time_us, lambda t: t.launch_us, lambda t: t.memory_us, lambda t: t.compute_us):
            assert of(total) == pytest.approx(sum(map(of, groups)))


def test_unfused_option_makes_both_the_same():
    p = mlp_plan(fuse=False)
    assert p.groups == tuple(p.unfused_groups)
    assert p.predicted_speedup == 1.0
    assert {r.reason for r in p.refusals} == {kf.Reason.UNFUSED}


def test_reasons():
    assert [r.value for r in kf.Reason] == _core.refusal_reasons()
    assert kf.Reason.REDUCTION_BARRIER == "reduction_barrier" == str(kf.Reason.REDUCTION_BARRIER)
    assert pickle.loads(pickle.dumps(kf.Reason.GATHER)) is kf.Reason.GATHER
    (r,) = (r for r in barrier_plan().refusals if r.reason == kf.Reason.REDUCTION_BARRIER)
    assert (r.producer, r.consumer) == ("sum", "divide")
    assert "whole array" in r.sentence
    assert re.fullmatch(r'plans\.py:\d+: return \{"y": y / y\.sum.*', r.consumer_source)


def test_names():
    """They are unique and in the order of calls; labels name whole composites and leave out the middle."""
    p = kf.plan(lambda x: kf.relu(kf.exp(kf.relu(x))) + kf.relu(x), X, device="H200")
    # The third relu gives what the first gives, and is computed with it.
    assert p.stages == ("relu", "exp", "relu_2", "add")
    assert [s for g in p.unfused_groups for s in g.stages] == ["relu", "exp", "relu_2", "relu_3", "add"]
    assert p.groups[0].label == "relu+exp+relu_2+add"
    p = kf.plan(lambda x: kf.layernorm(kf.layernorm(x)) / 2, X, device="H200")
    assert p.groups[0].label == "layernorm+layernorm_2+divide"
    assert p.composites["layernorm_2"] == tuple(s for s in p.stages if re.fullmatch(r"layernorm\..*_2", s))
    q = kf.plan(lambda x: chain_of_tanh(x, 50), X, device="H200")
    assert re.fullmatch(r"tanh\+tanh_2\+.*\+\.\.\+.*tanh_49\+tanh_50", q.groups[0].label)
    assert len(q.groups[0].label) <= 60

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


def test_bad_options():
    def check(options, error, message):
        with pytest.raises(error, match=message):
            kf.plan(kf.relu, X, **{"device": "H200"} | options)

    executors = "cpu, cpu_products, cuda, tensor_cores, tensor_core_attention, cudnn, cublaslt, array_library"
    sweep(check, [
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
        ({"executors": ["cpu", "tpu"]}, ValueError, f"there is no executor 'tpu', only {executors}"),
    ])  # fmt: skip
    g, device = kf.trace(kf.relu, X), kf.device("H200").to_dict()
    for options, error, message in (
        ({"cheap": True}, ValueError, "no option cheap"),
        ({"max_inputs": 0}, ValueError, "max_inputs must be at least 1"),
        ({"max_outputs": 2.0}, TypeError, "max_outputs must be an int"),
    ):
        with pytest.raises(error, match=message):
            _core.make_plan(g, device, options)


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
    p = kf.plan(lambda x: kf.tanh(kf.exp(x)), kf.spec((3, 5)), device="H200", fuse=False)
    assert "Fusing saves 0 of 240 B" in str(p)  # bytes are whole


# ---- plan.explain(a, b)


def many_ways():
    """A call in several kernels, rows that are read again, and an input in another memory."""
    layers = kf.plan(
        lambda x: kf.softmax(kf.layernorm(x) @ x.T), X, device="H200", forbid=[("layernorm.mean", "layernorm.var")]
    )
    long = kf.plan(relu_layernorm, kf.spec((4, 10**7)), *(kf.spec((10**7,)),) * 2, device="H200")
    apart = kf.plan(lambda x, y: (kf.relu(x), kf.exp(y)), X, kf.spec((3, 7)), device="H200")
    inside = kf.plan(lambda x: kf.relu(kf.softmax(x)), X, device="H200")
    return layers, long, apart, inside


def test_explanations():
    layers, long, apart, inside = many_ways()
    barrier, mlp_ = barrier_plan(), mlp_plan()
    relu_and_scale = r"relu and layernorm.scale share kernel 0 \(relu\+layernorm\).*row stays on chip"

    def check(p, a, b, pattern):
        assert re.match(pattern, p.explain(a, b), re.DOTALL), p.explain(a, b)

    sweep(check, [
        (row_plan(), "relu", "layernorm.scale", relu_and_scale),
        (layers, "layernorm", "layernorm.scale", r".*share kernel \d.* layernorm is also in kernel \d"),
        (long, "relu", "layernorm", ".*a row is read"),
        (barrier, "sum", "divide", r"(?!.*The way is).*sum \| divide: reduction_barrier"),
        (barrier, "divide", "sum", "(?!.*reduction_barrier.*reduction_barrier).*reduction_barrier"),
        (mlp_, "layernorm", "matmul_2", r".*The way is layernorm\.\w+ -> matmul -> gelu -> matmul_2\."),
        (apart, "relu", "exp", r".*neither reads what the other gives\.$"),
        (barrier, "sin", "relu", ".*domain_mismatch"),
        (barrier, "x", "sin", "x is an input, read by kernel"),
        (barrier, "sin", "x", ".*from the same read"),
        (barrier, "columns", "sin", "columns and sin share kernel"),
        (barrier, "transpose", "sin", "transpose and sin share kernel"),
        (barrier, "y", "divide", "y and divide share kernel"),
        (barrier, "x", "x", ".*x is an input"),
        (inside, "soft", "re", "soft and re share kernel 0"),  # by their beginning
        (inside, "exp", "relu", "exp and relu share kernel 0"),  # ops inside of stages
    ])  # fmt: skip
    assert {g.id for g in layers.groups if "layernorm.var" in g.stages} != {
        g.id for g in layers.groups if "layernorm.mean" in g.stages
    }
    assert "read again" in str(long)
    text = mlp_.explain("layernorm", "matmul_2")
    pairs = [("layernorm.scale", "matmul"), ("gelu", "matmul_2")]
    assert re.findall(r"(\S+) \| (\S+): contraction", text) == pairs
    assert mlp_.explain("matmul_2", "layernorm").endswith(text.partition("The way")[2])
    p = kf.plan(lambda x, y: x + y, X, kf.spec((12, 35), device="cuda:0"), device="H200")
    (r,) = (r for r in p.refusals if r.producer_group == -1)
    assert (r.reason, p._nodes[r.producer_node]["name"]) == (kf.Reason.CROSS_DEVICE, r.producer)
    assert r.sentence in p.explain(r.producer, r.consumer)


def test_explain_refuses_unknown_and_ambiguous_names():
    for name, message in (
        ("sinus", "'sinus' is no call, input or result; there are .*layernorm.*matmul_2.*w1"),
        ("", "'' is no call"),
        ("m", "'m' could be any of matmul, matmul_2"),
    ):
        with pytest.raises(ValueError, match=message):
            mlp_plan().explain("gelu", name)
    p = kf.plan(lambda x: kf.exp(kf.relu(x)) + kf.relu(x), X, device="H200")
    with pytest.raises(ValueError, match="relu_2 gives what another call gives"):
        p.explain("relu_2", "exp")


def test_no_refusal_contradicts_itself():
    def both_axes(x):
        return kf.exp(x).sum(0), kf.exp(x).sum(1)

    for f in (
        lambda x: (x[:, :6] * 2, x[:, 6:] + 1),
        lambda x: (x[:, :6].sum(1), x[:, 6:].sum(1)),
        lambda x: (x * 2, x[:, ::-1] + 1),
        lambda x: (lambda y: y + y.T)(kf.softmax(x, -1)),
        lambda x: (lambda y: y + y[:, ::-1])(kf.exp(x)),
        both_axes,
    ):
        for refusal in kf.plan(f, kf.spec((12, 12)), device="H200").refusals:
            shapes = re.findall(r"\(\d+, \d+\)", refusal.sentence)
            assert len(shapes) == len(set(shapes)), refusal.sentence
            assert "different axes" not in refusal.sentence or f is both_axes
