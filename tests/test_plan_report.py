"""kfusion.Plan: what it shows, explains, draws and stores. What the planner decides is tested in test_planner.py."""

from __future__ import annotations

import copy
import json
import pickle
import re
import sys
import warnings
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kfusion as kf
from graphs import graphs
from kfusion import _core, _plan_layout, _plan_report, _records, _tables

matplotlib.use("Agg")
import matplotlib.pyplot as plt

X, ROW = kf.spec((12, 35)), kf.spec((35,))
EVIL = "<script>alert('$x^')</script>"


def relu_layernorm(x, w, b):
    return kf.layernorm(kf.relu(x), w, b)


def mlp(x, w1, w2):
    return kf.gelu(kf.layernorm(x) @ w1) @ w2 + x


def normalised(x):
    y = kf.relu(x)
    return {"y": y / y.sum(), "columns": np.sin(x).T[::2]}


def chain(x, n=200):
    for i in range(n):
        x = kf.exp(kf.relu(x)) if i % 2 else x / x.sum()
    return x


def mlp_plan(**options):
    return kf.plan(mlp, X, kf.spec((35, 70)), kf.spec((70, 35)), device="H200", **options)


PLANS = {
    "rows": lambda: kf.plan(relu_layernorm, X, ROW, ROW, device="H200"),
    "products": mlp_plan,
    "barrier": lambda: kf.plan(normalised, X, device="RTX 3090"),
    "torch": lambda: kf.plan(
        mlp, *(kf.spec(shape, "bfloat16", like="torch") for shape in ((8, 6), (6, 9), (9, 6))), device="A100"
    ),
    "many": lambda: kf.plan(chain, X, device="T4"),
    "unfused": lambda: mlp_plan(fuse=False),
    "empty": lambda: kf.plan(kf.relu, kf.spec((0, 5)), device="H200"),
}


@pytest.fixture(scope="module", params=PLANS)
def plan(request):
    return PLANS[request.param]()


def row_plan():
    return PLANS["rows"]()


# The record


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
    p = PLANS["barrier"]()
    (r,) = (r for r in p.refusals if r.reason == kf.Reason.REDUCTION_BARRIER)
    assert (r.producer, r.consumer) == ("sum", "divide")
    assert "whole array" in r.sentence
    assert re.fullmatch(r'test_plan_report\.py:\d+: return \{"y": y / y\.sum.*', r.consumer_source)


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


def chain_of_tanh(x, n):
    for _ in range(n):
        x = kf.tanh(x)
    return x


def test_names_of_results():
    def stored(f):
        return {store.value for group in kf.plan(f, X, device="H200").groups for store in group.stores}

    assert stored(kf.relu) == {"result"}
    assert stored(lambda x: (kf.relu(x), [kf.exp(x)])) == {"result[0]", "result[1][0]"}
    assert stored(lambda x: {"a": (kf.relu(x), kf.exp(x)), "b": kf.sin(x)}) == {"a[0]", "a[1]", "b"}
    assert stored(lambda x: {"columns": kf.relu(x).T}) == {"columns"}  # stored as what it is a view of


def test_allow_forbid_and_only_executable():
    def f(x):
        return kf.tanh(kf.relu(x))

    assert len(kf.plan(f, X, device="H200").groups) == 1
    p = kf.plan(f, X, device="H200", forbid=[("relu", "tanh")])
    assert [r.reason for r in p.refusals] == [kf.Reason.FORBIDDEN]
    assert len(kf.plan(f, X, device="H200", allow=[("tanh", "relu")]).groups) == 1
    executable = kf.plan(mlp, X, kf.spec((35, 35)), kf.spec((35, 35)), device="H200", only_executable=True)
    assert len(executable.groups) >= len(mlp_plan().groups)


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
        ({"only_executable": None}, TypeError, "only_executable must be a bool"),
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
    from kfusion import _devices, _plan

    asked = []
    monkeypatch.setattr(_devices, "device", lambda name: asked.append(name) or H200)
    H200 = kf.device("H200")
    for count, name in ((0, "H200"), (2, "cuda:0")):
        monkeypatch.setattr(_core, "cuda_device_count", lambda count=count: count)
        assert _plan._device(None) is H200
        assert asked.pop() == name
    assert _plan._device(H200) is H200


def test_arrays_count_by_shape_and_dtype_only():
    x = np.full((12, 35), np.nan, np.float32)
    assert kf.plan(kf.relu, x, device="H200").groups == kf.plan(kf.relu, X, device="H200").groups


# JSON and pickles


def test_json_and_pickles_give_the_same_plan(plan):
    text = plan.to_json()
    assert kf.Plan.from_json(text) == plan
    assert kf.Plan.from_dict(json.loads(plan.to_json(indent=1))) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert copy.deepcopy(plan) == plan
    assert json.loads(text)["schema"] == 1
    assert str(kf.Plan.from_json(text)) == str(plan)


def test_different_plans_are_different():
    assert row_plan() != kf.plan(relu_layernorm, X, ROW, ROW, device="A100")
    assert row_plan() != mlp_plan()


def test_plans_do_not_change():
    with pytest.raises(AttributeError):
        row_plan().groups = ()
    with pytest.raises(AttributeError):
        row_plan().groups[0].rows = 1


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (b"{}", TypeError, "must be a str, got bytes"),
        ("", ValueError, "line 1, column 1"),
        ('{\n "schema": }', ValueError, "line 2, column 12"),
        ("[" * 100_000, ValueError, "nested too deeply|no valid JSON"),
        ("9" * 5000, ValueError, "no valid JSON"),
        ("[]", TypeError, "must be a dict, got list"),
        ("{}", ValueError, "schema must be 1, got None"),
        ('{"schema": 2}', ValueError, "schema must be 1, got 2"),
        ('{"schema": 1}', ValueError, "must have the field"),
        (" " * (2**26 + 1), ValueError, "at most 67108864 characters"),
    ],
)
def test_bad_json_of_plans(text, error, message):
    with pytest.raises(error, match=message):
        kf.Plan.from_json(text)


@pytest.mark.parametrize("text", ["", "[" * 100_000, "{}", "[]", "null", '{"kfusion_graph": 1}', "9" * 5000])
def test_bad_json_of_graphs(text):
    with pytest.raises((ValueError, TypeError)):
        kf.Graph.from_json(text)


def test_json_of_graphs():
    g = kf.trace(mlp, X, kf.spec((35, 70)), kf.spec((70, 35)))
    assert kf.Graph.from_json(g.to_json()) == g == kf.Graph.from_json(g.to_json(indent=2))
    with pytest.raises(TypeError, match="must be a str"):
        kf.Graph.from_json(3)


@pytest.mark.parametrize(
    ("path", "value", "error", "message"),
    [
        (("groups", 0, "kind"), 3, TypeError, r"groups\[0\].kind must be of type str, got int"),
        (("groups", 0, "rows"), 2**63, ValueError, r"groups\[0\].rows must fit in 64 bits"),
        (("groups", 0, "rows"), True, TypeError, r"rows must be of type int, got bool"),
        (("groups", 0, "rows"), 1.0, TypeError, r"rows must be of type int, got float"),
        (("groups", 0, "time_us"), float("nan"), ValueError, "time_us must be a finite number"),
        (("groups", 0, "time_us"), 1e301, ValueError, "time_us must be a finite number"),
        (("groups", 0, "label"), "\ud800", ValueError, "surrogates"),
        (("groups", 0, "id"), 1, ValueError, r"groups\[0\].id must be 0"),
        (("groups", 0, "nodes"), [99], ValueError, r"groups\[0\].nodes must be"),
        (("groups", 0, "nodes"), [0], ValueError, r"groups\[0\].nodes must be"),
        (("groups", 0, "views"), [-1], ValueError, r"groups\[0\] must name nodes"),
        (("groups", 0, "stages"), ["sin"], ValueError, r"groups\[0\].stages must be"),
        (("groups", 0, "loads", 0, "node"), 99, ValueError, r"groups\[0\] must name nodes"),
        (("groups", 0, "flops", 0, "dtype"), "int8", ValueError, "int8"),
        (("groups", 0, "flops", 0, "unit"), "tensor", ValueError, "tensor"),
        (("unfused_groups", 1, "id"), 7, ValueError, r"unfused_groups\[1\].id"),
        (("refusals", 0, "reason"), "because", ValueError, r"reason must be one of .*, got 'because'"),
        (("refusals", 0, "producer_node"), 99, ValueError, r"refusals\[0\].producer_node must be"),
        (("refusals", 0, "producer_node"), 0, ValueError, r"refusals\[0\].producer_group must be"),
        (("refusals", 0, "consumer_node"), 0, ValueError, r"refusals\[0\].consumer_node must be"),
        (("refusals", 0, "producer_group"), -1, ValueError, r"refusals\[0\].producer_group must be"),
        (("refusals", 0, "consumer_group"), 9, ValueError, r"refusals\[0\].consumer_group must be"),
        (("savings", "savings_pct"), None, TypeError, "savings_pct"),
        (("composites", "layernorm"), "layernorm.mean", TypeError, "composites.layernorm must be of type list"),
        (("device", "bandwidth"), -1, ValueError, "bandwidth"),
        (("graph", "nodes"), {}, TypeError, "nodes must be a list"),
        (("groups", 0, "extra"), 1, ValueError, r"groups\[0\] must not have the fields \['extra'\]"),
    ],
)
def test_wrong_fields_are_named(path, value, error, message):
    plain = mlp_plan().to_dict()
    at = plain
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(error, match=message):
        kf.Plan.from_dict(plain)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.just("\ud800"),
)


def places(value, path=()):
    """Every place in nested dicts and lists."""
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


BASE = mlp_plan().to_dict()
PLACES = [path for path in places(BASE) if path]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(["replace", "delete", "duplicate"]), JUNK), max_size=3)
)
def test_mutated_plans_are_refused_or_shown(mutations):
    plain = copy.deepcopy(BASE)
    for path, kind, junk in mutations:
        mutate(plain, path, kind, junk)
    try:
        p = kf.Plan.from_dict(plain)
    except (ValueError, TypeError):
        return
    str(p)
    p._repr_html_()
    assert kf.Plan.from_dict(p.to_dict()) == p
    for a in p.stages[:2]:
        try_to_explain(p, a, p.stages[-1])


def mutate(plain, path, kind, junk):
    at = plain
    for key in path[:-1]:
        at = at[key] if isinstance(at, (dict, list)) and has(at, key) else None
    if not has(at, path[-1]):
        return
    if kind == "replace":
        at[path[-1]] = junk
    elif kind == "delete":
        del at[path[-1]]
    elif isinstance(at, list):
        at.append(at[path[-1]])


def has(container, key):
    if isinstance(container, dict):
        return key in container
    return isinstance(container, list) and isinstance(key, int) and key < len(container)


def try_to_explain(p, a, b):
    """An answer, or an error of explain's own: a name can be a beginning of several others."""
    try:
        text = p.explain(a, b)
    except ValueError as error:
        text = str(error)
        assert text.startswith("kfusion.Plan.explain")
    assert text


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_random_graphs_are_planned_shown_and_stored(g):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        p = kf.plan(g, device="H200")
        assert kf.Plan.from_json(p.to_json()) == p
        assert "Total" in str(p)
        assert len(p._repr_html_()) > 100
        assert _plan_layout.layout(p).width > 0
    names = (*p.stages, *(n["name"] for n in p._nodes if n["op"] == "input"))
    for a, b in zip(names, reversed(names), strict=True):
        try_to_explain(p, a, b)


def test_records_read_what_they_write():
    bytes_ = row_plan().groups[0].issued
    assert _records.from_plain(type(bytes_), _records.to_plain(bytes_), "bytes") == bytes_
    with pytest.raises(ValueError, match="bytes must have the field 'written'"):
        _records.from_plain(type(bytes_), {"read": 1}, "bytes")


# explain


def test_explain_what_shares_a_kernel():
    text = row_plan().explain("relu", "layernorm.scale")
    assert text.startswith("relu and layernorm.scale share kernel 0 (relu+layernorm)")
    assert "row stays on chip" in text


def test_explain_rows_that_are_read_again():
    p = kf.plan(relu_layernorm, kf.spec((4, 10**7)), *(kf.spec((10**7,)),) * 2, device="H200")
    assert "a row is read" in p.explain("relu", "layernorm")
    assert "read again" in str(p)


def test_explain_neighbours_in_two_kernels():
    p = PLANS["barrier"]()
    text = p.explain("sum", "divide")
    assert "sum | divide: reduction_barrier" in text
    assert "The way is" not in text
    assert p.explain("divide", "sum").count("reduction_barrier") == 1


def test_explain_walks_the_way():
    p = mlp_plan()
    text = p.explain("layernorm", "matmul_2")
    assert re.search(r"The way is layernorm\.\w+ -> matmul -> gelu -> matmul_2\.", text)
    assert re.findall(r"(\S+) \| (\S+): contraction", text) == [
        ("layernorm.scale", "matmul"),
        ("gelu", "matmul_2"),
    ]
    assert p.explain("matmul_2", "layernorm").endswith(text.partition("The way")[2])


def test_explain_without_a_way():
    p = kf.plan(lambda x, y: (kf.relu(x), kf.exp(y)), X, kf.spec((3, 7)), device="H200")
    assert p.explain("relu", "exp").endswith("neither reads what the other gives.")
    q = PLANS["barrier"]()
    assert "domain_mismatch" in q.explain("sin", "relu")


def test_explain_inputs_results_and_views():
    p = PLANS["barrier"]()
    assert p.explain("x", "sin").startswith("x is an input, read by kernel")
    assert "from the same read" in p.explain("sin", "x")
    assert p.explain("columns", "sin").startswith("columns and sin share kernel")
    assert p.explain("transpose", "sin").startswith("transpose and sin share kernel")
    assert p.explain("y", "divide").startswith("y and divide share kernel")
    assert "x is an input" in p.explain("x", "x")


def test_explain_an_input_in_another_memory():
    p = kf.plan(lambda x, y: x + y, X, kf.spec((12, 35), device="cuda:0"), device="H200")
    (r,) = (r for r in p.refusals if r.producer_group == -1)
    assert (r.reason, p._nodes[r.producer_node]["name"]) == (kf.Reason.CROSS_DEVICE, r.producer)
    assert r.sentence in p.explain(r.producer, r.consumer)


def test_explain_finds_names_by_their_beginning_and_ops_inside_of_stages():
    p = kf.plan(lambda x: kf.relu(kf.softmax(x)), X, device="H200")
    assert p.explain("soft", "re").startswith("soft and re share kernel 0")
    assert p.explain("exp", "relu").startswith("exp and relu share kernel 0")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sinus", "'sinus' is no call, input or result; there are .*layernorm.*matmul_2.*w1"),
        ("", "'' is no call"),
        ("m", "'m' could be any of matmul, matmul_2"),
    ],
)
def test_explain_refuses_unknown_and_ambiguous_names(name, message):
    with pytest.raises(ValueError, match=message):
        mlp_plan().explain("gelu", name)


def test_explain_a_call_that_is_computed_with_another():
    p = kf.plan(lambda x: kf.exp(kf.relu(x)) + kf.relu(x), X, device="H200")
    with pytest.raises(ValueError, match="relu_2 gives what another call gives"):
        p.explain("relu_2", "exp")


# Text, HTML


def test_plain_text(plan):
    text = str(plan)
    for word in ("read", "written", "FLOP/B", "bound", "unfused", "fused", "Fusing saves", plan.device.name):
        assert word in text
    assert "\x1b" not in text
    assert repr(plan).startswith(f"<Plan: {plan.title}: ")


@pytest.mark.parametrize("width", [80, 100, 200])
def test_text_fits_the_width(plan, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    longest = max(str(plan).splitlines(), key=len)
    assert len(longest) <= width, longest


def test_rich_on_a_terminal_fits_80_columns(plan, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    text = str(plan)
    assert "\x1b" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, plain.splitlines())) <= 80
    for group in plan.groups[:3]:
        assert group.bound in plain


def test_many_kernels_are_cut_and_counted():
    p = PLANS["many"]()
    assert len(p.groups) > _plan_report.MAX_GROUPS
    text = str(p)
    assert f"the first {_plan_report.MAX_GROUPS} of them" in text
    assert re.search(r"\.\.\. and \d+ more in plan\.refusals", text)
    assert len(text.splitlines()) < 300


def test_text_names_what_this_version_cannot_run():
    p = mlp_plan()
    missing = {g.missing for g in p.groups if not g.executable}
    for what in missing:
        assert what.split()[-1] in str(p)
    assert ("planned and priced only" in str(p)) == bool(missing)


def evil_plan():
    g = kf.Graph()
    x, y = (g.input(EVIL + n, (12, 35), "float32") for n in "xy")
    g.begin_stage(EVIL, EVIL)
    s = g.reduce("sum", g.map("add", [x, y]), None)
    g.end_stage()
    g.begin_stage(EVIL, EVIL)
    z = g.map("divide", [x, s])
    g.end_stage()
    g.set_outputs([(EVIL, z), (EVIL + "s", s)])
    plain = kf.plan(g, device="H200").to_dict()
    plain["function"] = EVIL
    plain["device"]["name"] = EVIL
    return kf.Plan.from_dict(plain)


def test_html_is_escaped_and_well_formed():
    p = evil_plan()
    page = p.to_html()
    assert p.refusals
    for text in (page, p._repr_html_()):
        assert "<script" not in text
        assert "&lt;script&gt;" in text
    page = re.sub(r"<!DOCTYPE html>|&rarr;", "", page)
    ElementTree.fromstring(re.sub(r"<(meta|img|source|br)\b([^>]*)>", r"<\1\2/>", page))


@pytest.mark.parametrize("name", ["barrier", "many", "empty"])
def test_page_loads_nothing_and_says_everything(name):
    plan = PLANS[name]()
    page = plan.to_html()
    assert re.findall(r"(?:src|href|srcset)=\"(?!data:image/svg\+xml;base64,)", page) == []
    assert "@import" not in page
    assert "url(" not in page
    assert page.count("<img ") == 3 == page.count(' alt="')
    assert page.count("prefers-color-scheme: dark") >= 4
    assert '<html lang="en">' in page
    assert 'name="viewport"' in page
    assert "<details>" in page
    for r in plan.refusals[:3]:
        assert str(r.reason) in page


def test_control_characters_do_not_reach_a_terminal():
    table = _tables.Table("a\x1b[2J", ("b\x07",), (("c\x1b[31m",),))
    assert table.plain().isascii()
    assert not any(c in table.plain() + table.html() for c in "\x1b\x07")


# Pictures


def test_plot_returns_a_closed_figure_and_saves(plan, tmp_path):
    before = plt.get_fignums()
    figure = plan.plot(tmp_path / "plan.svg")
    assert plt.get_fignums() == before
    assert len(figure.axes) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["plan.svg"]
    ElementTree.parse(tmp_path / "plan.svg")


def test_plot_into_given_axes():
    figure, ax = plt.subplots()
    assert row_plan().plot(ax=ax) is figure
    assert "Roofline of H200" in ax.get_title(loc="left")
    assert plt.get_fignums() == []


def test_failing_plot_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="nonsense"):
        row_plan().plot(tmp_path / "plan.nonsense")
    assert list(tmp_path.iterdir()) == []


def test_dollars_in_names_are_no_formulas(tmp_path):
    evil_plan().plot(tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").exists()


def inside(inner, outer):
    return (
        outer.x <= inner.x - inner.width / 2
        and inner.x + inner.width / 2 <= outer.x + outer.width + 1e-9
        and outer.y < inner.y < outer.y + outer.height
    )


def overlap(a, b):
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height


def test_boxes_hold_their_calls_and_do_not_overlap(plan):
    drawing = _plan_layout.layout(plan)
    for kernel in drawing.kernels:
        assert all(inside(call, kernel) for call in kernel.calls.values())
        assert kernel.x >= -1e-9
        assert kernel.x + kernel.width <= drawing.width + 1e-9
        calls = list(kernel.calls.values())
        level = [(a, b) for i, a in enumerate(calls) for b in calls[:i] if a.y == b.y]
        assert all(abs(a.x - b.x) >= (a.width + b.width) / 2 for a, b in level)
    assert not any(overlap(a, b) for i, a in enumerate(drawing.kernels) for b in drawing.kernels[:i])


def test_edges_follow_the_data_and_name_each_reason_once():
    drawing = _plan_layout.layout(mlp_plan())
    across = [e for e in drawing.edges if not e.is_inside]
    assert [(e.start.name, e.end.name, e.reason) for e in across] == [
        ("layernorm.scale", "matmul", "contraction"),
        ("gelu", "matmul_2", "contraction"),
    ]
    assert {(e.start.name, e.end.name) for e in drawing.edges if e.is_inside} >= {
        ("matmul", "gelu"),
        ("matmul_2", "add"),
    }
    assert drawing.note == ""


def test_thirty_calls_are_drawn_and_hundreds_are_not():
    thirty = _plan_layout.layout(kf.plan(lambda x: chain_of_tanh(x, 30), X, device="H200"))
    assert sum(len(k.calls) for k in thirty.kernels) == 30
    many = _plan_layout.layout(PLANS["many"]())
    assert len(many.kernels) == _plan_layout.MAX_KERNELS
    assert many.note.startswith(f"The first {_plan_layout.MAX_KERNELS} of ")
    whole = _plan_layout.layout(kf.plan(lambda x: chain_of_tanh(x, 100), X, device="H200"))
    assert sum(len(k.calls) for k in whole.kernels) == 1
    assert "too many calls" in whole.note
