"""Graphs as lists of nodes, to be changed: what `Graph.to_dict` gives, with the nodes that gradients stop at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .. import _core

Node = dict[str, Any]


class Nodes:
    """A graph under construction from another one's nodes. `made[i]` is the node that stands for node i of that one."""

    def __init__(self, stages: Sequence[dict[str, str]]) -> None:
        self.nodes: list[Node] = []
        self.stops: set[int] = set()
        self.made: list[int] = []
        self._stages = stages

    def add(self, op: str, arguments: Sequence[int], shape: Sequence[int], like: Node, **attributes: Any) -> int:
        """A node of an op, with the dtype, stage and library of another one unless told otherwise."""
        node = {key: like[key] for key in ("dtype", "stage", "library", "device")}
        self.nodes.append(node | {"op": op, "arguments": list(arguments), "shape": list(shape)} | attributes)
        return len(self.nodes) - 1

    def copy(self, node: Node) -> int:
        """A node of the other graph, with arguments of this one."""
        self.nodes.append(node | {"arguments": [self.made[a] for a in node["arguments"]]})
        return len(self.nodes) - 1

    def shape(self, node: int) -> list[int]:
        """The extents of a node of this graph."""
        return list(self.nodes[node]["shape"])

    def reshaped(self, node: int, shape: Sequence[int], like: Node) -> int:
        """Node itself where it has that shape."""
        if self.shape(node) == list(shape):
            return node
        return self.add("reshape", [node], shape, like | {"dtype": self.nodes[node]["dtype"]})

    def broadcast(self, node: int, shape: Sequence[int], like: Node) -> int:
        """Node itself where it has that shape."""
        if self.shape(node) == list(shape):
            return node
        return self.add("broadcast", [node], shape, like | {"dtype": self.nodes[node]["dtype"]})

    def closed(self, outputs: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
        """The graph's dict and its stops, without nodes that no output needs; inputs stay."""
        return pruned(self.nodes, self._stages, outputs, self.stops, lambda i: self.nodes[i]["op"] == "input")


def needed(nodes: Sequence[Node], outputs: Iterable[int]) -> set[int]:
    """The nodes that outputs are made of, and these."""
    found: set[int] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += nodes[node]["arguments"]
    return found


def pruned(
    nodes: Sequence[Node], stages: Sequence[dict[str, str]], outputs: Sequence[int], stops: Iterable[int], stays: Any
) -> tuple[dict[str, Any], list[int]]:
    """A graph of the nodes that outputs need and those that stay, and the stops among these."""
    kept = needed(nodes, outputs) | {i for i in range(len(nodes)) if stays(i)}
    number = {old: new for new, old in enumerate(sorted(kept))}
    used = sorted({nodes[i]["stage"] for i in kept} - {None})
    stage = {old: new for new, old in enumerate(used)} | {None: None}
    made = [
        nodes[i] | {"arguments": [number[a] for a in nodes[i]["arguments"]], "stage": stage[nodes[i]["stage"]]}
        for i in sorted(kept)
    ]
    graph = {
        "kfusion_graph": 1,
        "nodes": made,
        "stages": [{"name": stages[i]["name"], "source": ""} for i in used],
        "outputs": [{"name": str(i), "node": number[o]} for i, o in enumerate(outputs)],
    }
    return graph, sorted(number[s] for s in stops if s in number)


def built(graph: dict[str, Any], stops: Iterable[int] = ()) -> Any:
    """A `_core.Graph` of a dict, which is checked."""
    made = _core.Graph.from_dict(graph)
    for node in stops:
        made.stop_gradient(node)
    return made
