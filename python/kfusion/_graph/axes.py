"""Which axes of a graph's values are the same axis: what an axis of a result depends on, and what may be split.

Each axis of each node has a label. Axes have one label where an element of the one needs only what is at its own place
along the other: x and y of x + y, or the rows of x and those of softmax(x). Along a label that no call needs all of, a
graph may be computed in parts; along one that is reduced, in parts and something that joins their results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _core

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
    of, reduced, needed = _core.Graph.from_dict(graph).axis_labels()
    labels = tuple(map(tuple, of))
    nodes, stages = graph["nodes"], graph["stages"]
    whole = {label: f"{call_of(nodes[i], stages)} needs all of it" for label, i in needed}
    for n, own in zip(nodes, labels, strict=True):
        for label in own:
            if own.count(label) > 1:
                axes = " and ".join(str(k) for k, other in enumerate(own) if other == label)
                whole.setdefault(label, f"axes {axes} of {call_of(n, stages)} both run along it")
    return Axes(labels, {i: tuple(each) for i, each in reduced.items()}, whole)
