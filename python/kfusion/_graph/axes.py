"""Which axes of a graph's values are the same axis: what an axis of a result depends on, and what may be split.

Each axis of each node has a label. Axes have one label where an element of the one needs only what is at its own place
along the other: x and y of x + y, or the rows of x and those of softmax(x). Along a label that no call needs all of, a
graph may be computed in parts; along one that is reduced, in parts and something that joins their results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .replay import KINDS

Labels = tuple[int, ...]


@dataclass(frozen=True)
class Axes:
    """The axes of a graph.

    Args:
        labels: of each node, one for each axis.
        reduced: for nodes that reduce or contract axes, the labels of these.
        whole: for labels that cannot be split, what needs all of it.
    """

    labels: tuple[Labels, ...]
    reduced: Mapping[int, Labels]
    whole: Mapping[int, str]

    def axis_of(self, node: int, label: int) -> int | None:
        """The axis of a node with that label."""
        return self.labels[node].index(label) if label in self.labels[node] else None


def call_of(n: Mapping[str, Any], stages: Sequence[Mapping[str, str]]) -> str:
    """The call that a node belongs to, with the user's line; an input's name."""
    if n["op"] == "input":
        return str(n["name"])
    stage = stages[n["stage"]] if n["stage"] is not None else {"name": n["op"], "source": ""}
    name = n["function"] if n["op"] == "library_call" else stage["name"]
    return f"{name} ({stage['source']})" if stage["source"] else str(name)


def meeting(axes: Axes, on: Mapping[int, int]) -> tuple[int, int, int] | None:
    """A node in which two labels meet that are split among the same ranks, and these labels; None where none do.

    Each rank would have only the blocks of it that are as far along the one axis as along the other.

    Args:
        axes: those of the graph.
        on: for labels that are split, which dimension of the mesh they are on.
    """
    for i, own in enumerate(axes.labels):
        first: dict[int, int] = {}
        for label in (*own, *axes.reduced.get(i, ())):
            if label in on and (other := first.setdefault(on[label], label)) != label:
                return i, other, label
    return None


def axes_of(graph: Mapping[str, Any]) -> Axes:
    """The axes of a graph, of its `to_dict()`."""
    return _Finder(graph).found()


class _Finder:
    def __init__(self, graph: Mapping[str, Any]) -> None:
        self._nodes: Sequence[Mapping[str, Any]] = graph["nodes"]
        self._stages: Sequence[Mapping[str, str]] = graph["stages"]
        self._parent: list[int] = []
        self._of: list[Labels] = []
        self._reduced: dict[int, Labels] = {}
        self._whole: list[tuple[int, str]] = []

    def found(self) -> Axes:
        for i, n in enumerate(self._nodes):
            self._of.append(tuple(self._fresh() for _ in n["shape"]))
            self._visit(i, n)
        labels = tuple(tuple(map(self._root, each)) for each in self._of)
        reduced = {i: tuple(map(self._root, each)) for i, each in self._reduced.items()}
        whole: dict[int, str] = {}
        for label, why in self._whole:
            whole.setdefault(self._root(label), why)
        for i, each in enumerate(labels):
            for label in each:
                if each.count(label) > 1:
                    axes = " and ".join(str(k) for k, other in enumerate(each) if other == label)
                    whole.setdefault(label, f"axes {axes} of {self._what(i)} both run along it")
        return Axes(labels, reduced, whole)

    # ---- labels ----

    def _fresh(self) -> int:
        self._parent.append(len(self._parent))
        return self._parent[-1]

    def _root(self, label: int) -> int:
        while self._parent[label] != label:
            self._parent[label] = label = self._parent[self._parent[label]]
        return label

    def _same(self, a: int, b: int) -> None:
        a, b = self._root(a), self._root(b)
        self._parent[max(a, b)] = min(a, b)

    def _need(self, labels: Iterable[int], i: int) -> None:
        self._whole += [(label, f"{self._what(i)} needs all of it") for label in labels]

    def _what(self, i: int) -> str:
        return call_of(self._nodes[i], self._stages)

    # ---- nodes ----

    def _visit(self, i: int, n: Mapping[str, Any]) -> None:
        op, kind = n["op"], KINDS[n["op"]]
        if kind == "map" or op in ("cast", "broadcast"):
            for a in n["arguments"]:
                self._align(a, i)
        elif kind == "reduce":
            self._reduce(i, n)
        elif op in ("input", "constant"):
            pass
        elif op == "iota":
            self._need([self._of[i][n["axis"]]], i)
        else:
            rule = getattr(self, f"_{op}", None)
            if rule is None:  # nobody knows what it reads
                self._need([label for a in (*n["arguments"], i) for label in self._of[a]], i)
            else:
                rule(i, n)

    def _align(self, a: int, i: int, skip: int | None = None) -> None:
        """The axes of an argument that is broadcast to the node's extents, counted from the last."""
        x, y = self._nodes[a]["shape"], self._nodes[i]["shape"]
        for k in range(1, min(len(x), len(y)) + 1):
            if x[-k] == y[-k] and len(y) - k != skip:
                self._same(self._of[a][-k], self._of[i][-k])

    def _pair(self, a: int, axis: int, i: int, other: int) -> None:
        if self._nodes[a]["shape"][axis] == self._nodes[i]["shape"][other]:
            self._same(self._of[a][axis], self._of[i][other])

    def _reduce(self, i: int, n: Mapping[str, Any]) -> None:
        (a,) = n["arguments"]
        self._reduced[i] = tuple(self._of[a][axis] for axis in n["axes"])
        kept = [axis for axis in range(len(self._of[a])) if axis not in n["axes"]]
        for place, axis in enumerate(kept):
            self._pair(a, axis, i, axis if n["keepdims"] else place)

    def _transpose(self, i: int, n: Mapping[str, Any]) -> None:
        for place, axis in enumerate(n["axes"]):
            self._pair(n["arguments"][0], axis, i, place)

    def _slice(self, i: int, n: Mapping[str, Any]) -> None:
        (a,) = n["arguments"]
        for axis, (start, step, extent) in enumerate(zip(n["start"], n["step"], n["shape"], strict=True)):
            if start == 0 and step == 1 and extent == self._nodes[a]["shape"][axis]:
                self._pair(a, axis, i, axis)
            else:
                self._need((self._of[a][axis], self._of[i][axis]), i)

    def _concatenate(self, i: int, n: Mapping[str, Any]) -> None:
        axis = n["axis"]
        for a in n["arguments"]:
            self._align(a, i, skip=axis)
            self._need([self._of[a][axis]], i)
        self._need([self._of[i][axis]], i)

    def _reshape(self, i: int, n: Mapping[str, Any]) -> None:
        (a,) = n["arguments"]
        groups = _groups(self._nodes[a]["shape"], n["shape"])
        if groups is None:
            self._need((*self._of[a], *self._of[i]), i)
            return
        for left, right in groups:
            if len(left) == len(right) == 1:
                self._pair(a, left[0], i, right[0])
            else:
                self._need([*(self._of[a][k] for k in left), *(self._of[i][k] for k in right)], i)

    def _matmul(self, i: int, n: Mapping[str, Any]) -> None:
        a, b = n["arguments"]
        x, y, z = self._of[a], self._of[b], self._of[i]
        left, right = len(x) > 1, len(y) > 1
        k = y[-2] if right else y[0]
        self._same(x[-1], k)
        self._reduced[i] = (x[-1],)
        if left:
            self._pair(a, -2, i, -2 if right else -1)
        if right:
            self._pair(b, -1, i, -1)
        batch = len(z) - left - right
        for labels, argument in ((x[:-2], a), (y[:-2], b)):
            for place in range(1, len(labels) + 1):
                self._pair(argument, len(labels) - place, i, batch - place)

    def _conv2d(self, i: int, n: Mapping[str, Any]) -> None:
        x, w = n["arguments"]
        self._pair(x, 0, i, 0)
        self._need((*self._of[x][1:], *self._of[w][1:], *self._of[i][2:]), i)
        if n["groups"] == 1:
            self._pair(w, 0, i, 1)
        else:
            self._need((self._of[w][0], self._of[i][1]), i)

    def _take(self, i: int, n: Mapping[str, Any]) -> None:
        x, index = n["arguments"]
        axis, width = n["axis"], len(self._of[index])
        self._need([self._of[x][axis]], i)
        for k in range(width):
            self._pair(index, k, i, axis + k)
        for k in range(len(self._of[x])):
            if k != axis:
                self._pair(x, k, i, k if k < axis else k + width - 1)

    def _take_along_axis(self, i: int, n: Mapping[str, Any]) -> None:
        x, index = n["arguments"]
        self._need([self._of[x][n["axis"]]], i)
        self._align(x, i, skip=n["axis"])
        self._align(index, i)


def _groups(x: Sequence[int], y: Sequence[int]) -> list[tuple[list[int], list[int]]] | None:
    """The axes of two shapes of as many elements that belong together, without those of one element; None where there
    are no elements.
    """
    if math.prod(x) == 0:
        return None
    left = [k for k, n in enumerate(x) if n != 1]
    right = [k for k, n in enumerate(y) if n != 1]
    groups = []
    while left:
        a, b = [left.pop(0)], [right.pop(0)]
        while (p := math.prod(x[k] for k in a)) != (q := math.prod(y[k] for k in b)):
            (a.append(left.pop(0))) if p < q else b.append(right.pop(0))
        groups.append((a, b))
    return groups
