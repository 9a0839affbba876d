"""Which axes of a graph's values are the same axis, and a graph that is computed in blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import kfusion as kf
from kfusion import _core
from kfusion._graph.axes import axes_of
from kfusion._graph.blocks import Cut
from sweeps import sweep


def letters(f: Callable[..., Any], *shapes: Sequence[int]) -> tuple[list[str], list[str], str, str]:
    """The axes of arguments and results by letters, those that are reduced, and those that cannot be split."""
    graph = kf.trace(f, *(kf.spec(s) for s in shapes)).simplify().to_dict()
    axes = axes_of(graph)
    names: dict[int, str] = {}

    def text(labels: Sequence[int]) -> str:
        return "".join(names.setdefault(label, "abcdefghijkl"[len(names)]) for label in labels)

    inputs = [text(axes.labels[i]) for i, n in enumerate(graph["nodes"]) if n["op"] == "input"]
    outputs = [text(axes.labels[o["node"]]) for o in graph["outputs"]]
    reduced = {label for labels in axes.reduced.values() for label in labels if label in names}
    whole = {label for label in axes.whole if label in names}
    return inputs, outputs, "".join(sorted(text(list(reduced)))), "".join(sorted(text(list(whole))))


# Functions, shapes, axes of arguments and results, those that are reduced and those that need all of them.
AXES = [
    (lambda x, b: x + b, [(4, 3), (3,)], ["ab", "b"], ["ab"], "", ""),
    (lambda x, b: x * b, [(4, 3), (4, 1)], ["ab", "ac"], ["ab"], "", ""),
    (lambda x: kf.softmax(x), [(4, 3)], ["ab"], ["ab"], "b", ""),
    (lambda x: (x.sum(0), x.T), [(4, 3)], ["ab"], ["b", "ba"], "a", ""),
    (lambda x: x.mean(1, keepdims=True) + x, [(4, 3)], ["ab"], ["ab"], "b", ""),
    (lambda x, w: x @ w, [(2, 4, 3), (3, 5)], ["abc", "cd"], ["abd"], "c", ""),
    (lambda x, w: x @ w, [(3,), (3, 5)], ["a", "ab"], ["b"], "a", ""),
    (lambda x: x @ x.T, [(4, 3)], ["ab"], ["aa"], "b", "a"),
    (lambda x: x + x.T, [(4, 4)], ["aa"], ["aa"], "", "a"),
    (lambda x: x[1:], [(4, 3)], ["ab"], ["cb"], "", "ac"),
    (lambda x: x[:, ::-1], [(4, 3)], ["ab"], ["ac"], "", "bc"),
    (lambda x: np.concatenate([x, x], 1), [(4, 3)], ["ab"], ["ac"], "", "bc"),
    (lambda x: x.reshape(4, 3, 1), [(4, 3)], ["ab"], ["abc"], "", ""),
    (lambda x: x.reshape(2, 2, 3), [(4, 3)], ["ab"], ["cdb"], "", "acd"),
    (lambda x: np.sort(x, axis=0), [(4, 3)], ["ab"], ["cd"], "", "abcd"),
    (lambda x: x + kf.iota((4, 3), 0), [(4, 3)], ["ab"], ["ab"], "", "a"),
    (lambda x: np.argmax(x, axis=1), [(4, 3)], ["ab"], ["a"], "b", "b"),
    (lambda x: x[np.array([2, 0])], [(4, 3)], ["ab", "c"], ["cb"], "", "a"),
]


def test_axes():
    def check(f, shapes, *expected):
        assert letters(f, *shapes) == expected

    sweep(check, AXES)
    graph = kf.trace(lambda x: x[1:] * 2, kf.spec((4, 3))).to_dict()
    (why, _) = axes_of(graph).whole.values()
    assert re.fullmatch(r"slice \(test_axes.py:.*needs all of it", why)


def cut(f: Callable[..., Any], *shapes: Sequence[int], axis: int = 0) -> Cut:
    graph = kf.trace(f, *(kf.spec(s) for s in shapes)).simplify().to_dict()
    return Cut(graph, [axes_of(graph).labels[0][axis]])


def test_parts():
    """A map is one, a variance one pass; rows that are split take a part for each reduction."""
    (part,) = cut(lambda x: kf.relu(x) + 1, (4, 3)).parts
    assert (len(part.inputs), len(part.outputs), len(part.states)) == (1, 1, 0)
    made = cut(lambda x: (x.var(0), x.mean(0)), (4, 3))
    (part,) = [part for part in made.parts if 0 in part.inputs]
    assert sorted(made.joins[s].op for s in part.states) == ["mean", "moments"]
    made = cut(lambda x: kf.softmax(x), (4, 3), axis=1)
    assert [[made.joins[s].op for s in part.states] for part in made.parts] == [["max"], ["sum"], []]


def test_products_are_computed_once():
    """Their columns' means are subtracted: the second part reads the product of the first."""
    made = cut(lambda x, w: (lambda y: y - y.mean(0))(x @ w), (4, 3), (3, 2))
    first, second = made.parts
    assert set(first.outputs) < set(second.inputs)
    assert made.graph["nodes"][first.outputs[0]]["op"] == "matmul"


def test_nodes_behind_one_more_axis():
    """What each op computes of arrays, it computes of each of several that are one behind another axis."""

    def f(x, i):
        parts = kf.concatenate([x.T[::-1, 1:], kf.take_along_axis(x.T, i, 1)], 1)
        return kf.max(parts, 0), kf.sum(parts, axis=None), parts.reshape(3, -1).mean(1, keepdims=True)

    graph = kf.trace(f, kf.spec((4, 3)), kf.spec((3, 2), "int64")).to_dict()
    graph["nodes"] = [_core.behind_axis(n, 5) for n in graph["nodes"]]
    rng = np.random.default_rng()
    x, i = rng.standard_normal((5, 4, 3), np.float32), rng.integers(0, 3, (5, 3, 2))
    batched = _core.run_graph(_core.Graph.from_dict(graph), [x, i], "f")
    for k in range(5):
        for got, want in zip(batched, kf.fuse(f)(x[k], i[k]), strict=True):
            np.testing.assert_allclose(got[k], want, rtol=1e-6)
