"""Plans and graphs as JSON and pickles; text from anywhere is refused or read, and nothing else."""

from __future__ import annotations

import copy
import json
import pickle
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kfusion as kf
from graphs import graphs
from kfusion import _schema
from kfusion._plans import graph_layout
from plans import X, mlp, mlp_plan, row_plan, try_to_explain
from sweeps import sweep

pytestmark = pytest.mark.native


def test_json_and_pickles_give_the_same_plan(plan):
    text = plan.to_json()
    assert kf.Plan.from_json(text) == plan
    assert kf.Plan.from_dict(json.loads(plan.to_json(indent=1))) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert copy.deepcopy(plan) == plan
    assert json.loads(text)["schema"] == 3
    assert str(kf.Plan.from_json(text)) == str(plan)


def test_plans_are_compared_and_do_not_change():
    p = row_plan()
    assert p != row_plan("A100")
    assert p != mlp_plan()
    with pytest.raises(AttributeError):
        p.groups = ()
    with pytest.raises(AttributeError):
        p.groups[0].rows = 1
    bytes_ = p.groups[0].issued
    assert _schema.from_plain(type(bytes_), _schema.to_plain(bytes_), "bytes") == bytes_
    with pytest.raises(ValueError, match="bytes must have the field 'written'"):
        _schema.from_plain(type(bytes_), {"read": 1}, "bytes")


def test_bad_json():
    def check(text, error, message):
        with pytest.raises(error, match=message):
            kf.Plan.from_json(text)

    sweep(check, [
        (b"{}", TypeError, "must be a str, got bytes"),
        ("", ValueError, "line 1, column 1"),
        ('{\n "schema": }', ValueError, "line 2, column 12"),
        ("[" * 100_000, ValueError, "nested too deeply|no valid JSON"),
        ("9" * 5000, ValueError, "no valid JSON"),
        ("[]", TypeError, "must be a dict, got list"),
        ("{}", ValueError, "schema must be 3, got None"),
        ('{"schema": 1}', ValueError, "schema must be 3, got 1"),
        ('{"schema": 3}', ValueError, "must have the field"),
        (" " * (2**26 + 1), ValueError, "at most 67108864 characters"),
    ])  # fmt: skip
    for text in ("", "[" * 100_000, "{}", "[]", "null", '{"kfusion_graph": 1}', "9" * 5000):
        with pytest.raises((ValueError, TypeError)):
            kf.Graph.from_json(text)


def test_json_of_graphs():
    g = kf.trace(mlp, X, kf.spec((35, 70)), kf.spec((70, 35)))
    assert kf.Graph.from_json(g.to_json()) == g == kf.Graph.from_json(g.to_json(indent=2))
    with pytest.raises(TypeError, match="must be a str"):
        kf.Graph.from_json(3)


WRONG = [
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
    (("savings",), {"savings_pct": 1}, ValueError, "savings must have 'unfused_bytes'"),
    (("composites", "layernorm"), "layernorm.mean", TypeError, "composites.layernorm must be of type list"),
    (("device", "bandwidth"), -1, ValueError, "bandwidth"),
    (("graph", "nodes"), {}, TypeError, "nodes must be a list"),
    (("groups", 0, "extra"), 1, ValueError, r"groups\[0\] must not have the fields \['extra'\]"),
]


def test_wrong_fields_are_named():
    def check(path, value, error, message):
        at = plain = mlp_plan().to_dict()
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        with pytest.raises(error, match=message):
            kf.Plan.from_dict(plain)

    sweep(check, WRONG)


JUNK = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([[], {}, "\ud800"])
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


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_random_graphs_are_planned_shown_and_stored(g):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        p = kf.plan(g, device="H200")
        assert kf.Plan.from_json(p.to_json()) == p
        assert "Total" in str(p)
        assert len(p._repr_html_()) > 100
        assert graph_layout.layout(p).width > 0
    names = (*p.stages, *(n["name"] for n in p._nodes if n["op"] == "input"))
    for a, b in zip(names, reversed(names), strict=True):
        try_to_explain(p, a, b)
