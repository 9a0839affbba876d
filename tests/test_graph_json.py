"""Graphs read from untrusted dicts: every rule of a graph holds afterwards, or an error says why not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import graphs
from kfusion import _core
from sweeps import sweep

pytestmark = pytest.mark.native

INPUT, CONSTANT, IOTA, CAST, ADD, SUM, TRANSPOSE, SLICE, TAKE, SCALAR = range(10)


def example() -> dict[str, Any]:
    """One node of each kind that has rules of its own."""
    g = _core.Graph()
    x = g.input("x", (4, 3), "float32")
    g.cast(g.scalar(1.5), "float32")  # leaves the scalar at 1, the constant at 2
    d = g.to_dict()
    del d["nodes"][1]
    h = _core.Graph.from_dict(d)
    i = h.iota((4, 3), 0, "int32")
    total = h.reduce("sum", h.map("add", [x, h.cast(i, "float32")]), [0])
    taken = h.take(h.slice(h.transpose(x, (1, 0)), [(0, 3, 2), (3, 4, 1)]), i, 1)
    h.set_outputs([("a", total), ("b", taken), ("c", h.scalar(2.0))])
    return h.to_dict()


def test_the_schema():
    g = _core.Graph()
    g.begin_stage("s", "f.py:1")
    y = g.map(
        "where", [g.map("isnan", [g.input("x", (2,), "float16", "torch", "cuda:1", True)]), g.scalar(1), g.scalar(2.5)]
    )
    g.end_stage()
    g.set_outputs([("y", y)])
    d = g.simplify().to_dict()
    common = {"library": "torch", "device": "cuda:1"}
    constant = {"op": "constant", "dtype": "float32", "shape": [], "arguments": [], "stage": None, "library": "numpy"}
    constant |= {"device": "cpu", "weak": False, "parameter": -1, "wide": False}
    assert d == {
        "kfusion_graph": 1,
        "nodes": [
            {"op": "input", "dtype": "float16", "shape": [2], "arguments": [], "stage": None, **common, "name": "x",
             "captured": True, "strides": []},
            {"op": "isnan", "dtype": "bool", "shape": [2], "arguments": [0], "stage": 0, **common},
            constant | {"value": 1.0},
            constant | {"value": 2.5},
            {"op": "where", "dtype": "float32", "shape": [2], "arguments": [1, 2, 3], "stage": 0, **common},
        ],
        "stages": [{"name": "s", "source": "f.py:1"}],
        "outputs": [{"name": "y", "node": 4}],
    }  # fmt: skip


def test_values_survive_json():
    for value in (True, 7, -(2**63), 2.5, -0.0, float("nan"), float("inf"), -float("inf"), 5e-324):
        g = _core.Graph()
        g.set_outputs([("", g.scalar(value))])
        text = json.dumps(g.to_dict(), allow_nan=False)
        assert _core.Graph.from_dict(json.loads(text)) == g


def changed(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(d: Any) -> None:
        for key in path[:-1]:
            d = d[key]
        d[path[-1]] = to

    return change


def node(which: int, key: str, to: Any) -> Callable[[dict[str, Any]], None]:
    return changed("nodes", which, key, to=to)


def without(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(d: Any) -> None:
        for key in path[:-1]:
            d = d[key]
        del d[path[-1]]

    return change


RULES = [
    (changed("kfusion_graph", to=2), "kfusion_graph must be from 1 to 1"),
    (changed("surprise", to=1), "the graph must not have the key 'surprise'"),
    (changed("nodes", 0, "surprise", to=1), r"nodes\[0\] must not have the key 'surprise'"),
    (changed("stages", 0, "surprise", to=1), r"stages\[0\] must not have the key 'surprise'"),
    (changed("outputs", 0, "surprise", to=1), r"outputs\[0\] must not have the key 'surprise'"),
    (without("nodes", ADD, "shape"), r'nodes\[4\] must have the key "shape"'),
    (without("nodes", SUM, "axes"), r'nodes\[5\] must have the key "axes"'),
    (node(ADD, "op", "sinh2"), r"nodes\[4\].op is unknown"),
    (node(ADD, "op", "abs"), r"nodes\[4\].op is unknown"),
    (node(ADD, "dtype", "int8"), "dtype is unknown"),
    (node(ADD, "library", "jax"), "library is unknown"),
    (node(ADD, "device", "tpu"), "device is unknown"),
    (node(INPUT, "name", "\ud800"), "must be text that UTF-8 can write"),
    (node(INPUT, "shape", [1] * 65), "shape must have at most 64 items"),
    (node(INPUT, "shape", [2**63]), "must be from"),
    (node(CONSTANT, "value", "NaN"), 'a float or one of "nan", "inf" and "-inf"'),
    (node(CONSTANT, "value", float("nan")), "must write what is not finite as a string"),
    (node(INPUT, "shape", [-1, 3]), r"node %0 \(input\): its shape must be bounded.*negative"),
    (node(INPUT, "shape", [2**40, 2**40]), "its shape must be bounded .*too big"),
    (node(INPUT, "name", "x" * 10_001), "at most 10000 bytes"),
    (node(ADD, "arguments", [0, 4]), r"node %4 \(add\): its arguments must come before it"),
    (node(ADD, "arguments", [0, -1]), "its arguments must come before it"),
    (node(ADD, "arguments", [0]), "as many arguments as its op takes"),
    (node(INPUT, "stage", 0), "a source must have no stage"),
    (node(ADD, "stage", None), "any other node one of the graph's"),
    (node(ADD, "stage", 99), "any other node one of the graph's"),
    (node(CONSTANT, "weak", True), "a Python scalar must be bool, int64 or float64"),
    (node(CONSTANT, "value", 0.1), "a constant must have no axes and a value of its dtype"),
    (node(CONSTANT, "value", 1e300), "a value of its dtype"),
    (node(CONSTANT, "shape", [1]), "a constant must have no axes"),
    (node(CONSTANT, "device", "cuda:0"), "a constant must have no axes"),
    (node(IOTA, "axis", 2), "an iota must have its axis"),
    (node(SUM, "axes", []), "reduced axes must exist and ascend"),
    (node(SUM, "axes", [2]), "reduced axes must exist and ascend"),
    (node(SUM, "axes", [-1]), "reduced axes must exist and ascend"),
    (node(SUM, "axes", [1, 0]), "reduced axes must exist and ascend"),
    (node(SUM, "axes", [0, 0]), "reduced axes must exist and ascend"),
    (node(SUM, "whole", True), "reduced axes must exist and ascend"),
    (node(TRANSPOSE, "axes", [0, 0]), "transposed axes must name each axis once"),
    (node(TRANSPOSE, "axes", [0]), "transposed axes must name each axis once"),
    (node(SLICE, "start", [0]), "a slice must have a start and a step for each axis"),
    (node(SLICE, "step", [2, 2]), "1 where it takes one"),
    (node(SLICE, "step", [3, 1]), "a slice of axis 0 leaves x"),
    (node(SLICE, "step", [2**63 - 1, 1]), "a slice of axis 0 leaves x"),
    (node(SLICE, "step", [0, 1]), "slice step cannot be zero"),
    (node(TAKE, "axis", 2), "the axis taken along must exist"),
    (node(TAKE, "axis", -1), "the axis taken along must exist"),
    (node(ADD, "arguments", [0, 2]), "the dtypes that its op takes"),
    (node(ADD, "dtype", "float64"), "the one that its op gives"),
    (node(ADD, "op", "bitwise_and"), "the dtypes that its op takes"),
    (node(ADD, "shape", [3, 4]), "its shape must follow from its arguments"),
    (node(ADD, "library", "torch"), "its library and device must be those"),
    (node(ADD, "device", "cuda:0"), "its library and device must be those"),
    (changed("outputs", 0, "node", to=99), "outputs must be nodes"),
    (changed("outputs", 0, "node", to=-1), "outputs must be nodes"),
    (changed("outputs", 0, "name", to="x" * 10_001), "a name or a source"),
    (changed("stages", 0, "source", to="x" * 10_001), "a name or a source"),
    (lambda d: d["stages"].append({"name": "empty", "source": ""}), "each stage must have a node"),
]


def test_every_rule():
    def check(change, message):
        d = example()
        change(d)
        with pytest.raises(ValueError, match=message):
            _core.Graph.from_dict(d)

    assert _core.Graph.from_dict(example())
    sweep(check, RULES)
    d = example()  # no node reads a scalar
    d["nodes"][CONSTANT] |= {"dtype": "float64", "weak": True}
    assert _core.Graph.from_dict(d)
    d["nodes"].append(d["nodes"][ADD] | {"op": "exp", "arguments": [CONSTANT], "shape": [], "dtype": "float64"})
    with pytest.raises(ValueError, match="must not read a Python scalar"):
        _core.Graph.from_dict(d)


TYPES = [
    *(changed(*path, to=to) for path, to in (
        (("nodes",), {}), (("nodes", 0), []), (("stages", 0), None), (("outputs",), "abc"), ((3,), 1))),
    *(node(INPUT, key, to) for key, values in (
        ("captured", (1, None)), ("name", (3,)), ("shape", ([4.0, 3.0], [True, 3], (4, 3), "43", None))
    ) for to in values),
    *(node(ADD, key, to) for key, to in (("stage", "0"), ("stage", True), ("op", 3), ("arguments", [[0], 1]))),
    node(CONSTANT, "value", True), node(CONSTANT, "value", 1), node(SUM, "axes", 0),
]  # fmt: skip


def test_every_type():
    def check(change):
        d = example()
        change(d)
        with pytest.raises(TypeError, match=r"graph: .* must be .*, got \w+$"):
            _core.Graph.from_dict(d)

    sweep(check, [(change,) for change in TYPES])
    for d in (None, [], 3, "x", {}, {"kfusion_graph": 1}):
        with pytest.raises((ValueError, TypeError), match="the graph must"):
            _core.Graph.from_dict(d)
    d = example()
    before = copy.deepcopy(d)
    with pytest.raises(ValueError, match="nodes must have at most 1000000 items"):
        _core.Graph.from_dict(d | {"nodes": [None] * 1_000_001})
    _core.Graph.from_dict(d)
    assert d == before, "the caller keeps its dict"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.floats() | st.text(max_size=5)
    | st.sampled_from([2**31 - 1, 2**31, -(2**63), 2**63 - 1, 2**63, 10**400])
    | st.sampled_from([*(r["name"] for r in _core.op_table()), "int64", "bool", "float16", "nan", "torch", "cuda:0"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
INTEGERS = st.integers(-2, 70) | st.sampled_from([2**31 - 1, 2**62, 2**63 - 1, -(2**63)])


def deep(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value] if levels % 2 else {"nodes": value}
    return value


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A valid graph's dict with a few changes: keys lost, values replaced, entries repeated."""
    d = draw(graphs()).to_dict() if draw(st.booleans()) else example()
    for _ in range(draw(st.integers(1, 3))):
        at = d
        while True:
            if not isinstance(at, dict | list) or not at:
                break
            key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            inner = at[key]
            if isinstance(inner, dict | list) and inner and draw(st.integers(0, 4)):
                at = inner
                continue
            change = draw(st.sampled_from(["integer", "replace", "replace", "delete", "repeat", "deep"]))
            if change == "delete":
                del at[key]
            elif change == "repeat" and isinstance(at, list):
                at.insert(draw(st.integers(0, len(at))), copy.deepcopy(inner))
            elif change == "deep":
                at[key] = deep(draw(st.integers(900, 903)))
            else:
                at[key] = draw(INTEGERS if change == "integer" else JSON)
            break
    return d


def read(d: Any) -> _core.Graph | str:
    try:
        return _core.Graph.from_dict(d)
    except (ValueError, TypeError) as e:
        return str(e)


@settings(max_examples=300, deadline=None)
@given(mutated())
def test_changed_graphs_are_refused_or_valid(d):
    g = read(d)
    if isinstance(g, str):
        assert g.startswith("graph: ")
        return
    g.verify()
    assert _core.Graph.from_dict(g.to_dict()) == g
    g.simplify().verify()
    assert str(g)


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_anything_else_is_refused(d):
    with pytest.raises((ValueError, TypeError), match=r"^graph: "):
        _core.Graph.from_dict(d)
