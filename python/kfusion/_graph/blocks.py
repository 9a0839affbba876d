"""A graph computed in blocks: where some axes are split, which functions of blocks to call, and what joins results.

A reduction along an axis that is split is computed in two steps: of each block its state (a sum, a maximum; count, mean
and squares around it for a variance), and of all states the value, which later functions read. What is cheap to compute
again is computed again by these; products are kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .axes import Axes, axes_of, call_of
from .block_functions import BlockFunction

_KEPT = ("matmul", "conv2d")


@dataclass(frozen=True)
class Join:
    """A node along whose reduced axes blocks lie: how their states make its value.

    Args:
        op: "sum", "mean", "prod", "max", "min", "any" or "all"; "moments" for a sum or mean of squares around the mean.
        argument: the node of which blocks give the state; for a product the node itself.
        count: the elements that are reduced; 0 where the value is no mean.
        dtype: of the value.
    """

    op: str
    argument: int
    count: int
    dtype: str


@dataclass(frozen=True)
class Part:
    """A function of blocks. The blocks are numbered by the labels of `grid`, which are split.

    Args:
        inputs: nodes that it reads: inputs of the graph, values of joins, and results of other parts.
        outputs: nodes that it gives.
        states: nodes of whose argument it gives the state.
    """

    grid: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    states: tuple[int, ...]


class Cut:
    """A graph, cut into functions of blocks.

    Args:
        graph: `to_dict()` of it.
        split: the labels of axes that are split.
        axes: those of the graph.
    """

    def __init__(self, graph: Mapping[str, Any], split: Iterable[int], axes: Axes | None = None) -> None:
        self.graph = graph
        self.axes = axes_of(graph) if axes is None else axes
        self.split = frozenset(split)
        self.joins: dict[int, Join] = {}
        self._nodes: Sequence[Mapping[str, Any]] = graph["nodes"]
        self._levels: list[int] = []
        for i, n in enumerate(self._nodes):
            self._levels.append(self._level(i, n))
        self.parts = self._parts()

    def grid(self, node: int) -> tuple[int, ...]:
        """The labels by which the blocks of a node's value are numbered."""
        return tuple(sorted(self.split.intersection(self.axes.labels[node])))

    def grid_of_states(self, node: int) -> tuple[int, ...]:
        """Those by which the states of a join are."""
        return tuple(sorted({*self.grid(node), *self.split.intersection(self.axes.reduced[node])}))

    @property
    def outputs(self) -> list[int]:
        """The graph's outputs."""
        return [o["node"] for o in self.graph["outputs"]]

    def function(self, part: Part, name: str) -> BlockFunction:
        """What computes a part, to be fused.

        Raises:
            TypeError: a call of the array library is in it, which a graph does not hold.
        """
        for i in self._of_part(part):
            if self._nodes[i]["op"] == "library_call":
                what = call_of(self._nodes[i], self.graph["stages"])
                raise TypeError(f"kfusion.{name}: {what} is a call of the array library, which such arrays do not take")
        return BlockFunction(json.dumps([self._needed_text(part), name]))

    def needed_again(self) -> Iterator[tuple[int, str]]:
        """Labels along which a part goes on with each element after a join along the same, and the call that joins."""
        for part in self.parts:
            for i in part.inputs:
                for label in set(self.axes.reduced.get(i, ())) & set(part.grid):
                    yield label, call_of(self._nodes[i], self.graph["stages"])

    # ---- which nodes are known when ----

    def _level(self, i: int, n: Mapping[str, Any]) -> int:
        """How many joins lie before a node."""
        level = max((self._levels[a] for a in n["arguments"]), default=0)
        if not self.split.intersection(self.axes.reduced.get(i, ())):
            return level
        join = self._join(i, n)
        self.joins[i] = join
        return 1 + (self._levels[join.argument] if join.argument != i else level)

    def _join(self, i: int, n: Mapping[str, Any]) -> Join:
        if n["op"] == "matmul":
            return Join("sum", i, 0, n["dtype"])
        (a,) = n["arguments"]
        count = math.prod(self._nodes[a]["shape"][axis] for axis in n["axes"])
        centred = self._centred(a, n["axes"]) if n["op"] in ("sum", "mean") else None
        if centred is not None:
            return Join("moments", centred, count if n["op"] == "mean" else 0, n["dtype"])
        return Join(n["op"], a, count if n["op"] == "mean" else 0, n["dtype"])

    def _centred(self, square: int, axes: Sequence[int]) -> int | None:
        """x, where a node is the square of x - x.mean(axes)."""
        square = self._behind(square, "cast")
        n = self._nodes[square]
        if n["op"] != "square" and not (n["op"] == "multiply" and len(set(n["arguments"])) == 1):
            return None
        n = self._nodes[self._behind(n["arguments"][0], "cast")]
        if n["op"] != "subtract":
            return None
        x, mean = n["arguments"]
        m = self._nodes[self._behind(mean, "cast", "reshape", "broadcast")]
        if m["op"] != "mean" or m["axes"] != axes or self._behind(m["arguments"][0], "cast") != self._behind(x, "cast"):
            return None
        return x if list(self._nodes[x]["shape"]) == list(n["shape"]) else None

    def _behind(self, i: int, *ops: str) -> int:
        while self._nodes[i]["op"] in ops and not self._nodes[i].get("rounds"):
            i = self._nodes[i]["arguments"][0]
        return i

    # ---- parts ----

    def _parts(self) -> list[Part]:
        outputs: dict[tuple[int, tuple[int, ...]], set[int]] = {}
        states: dict[tuple[int, tuple[int, ...]], set[int]] = {}

        def want(node: int) -> None:
            if node in self.joins:
                key = self._levels[node] - 1, self.grid_of_states(node)
                states.setdefault(key, set()).add(node)
            else:
                outputs.setdefault(self._key(node), set()).add(node)

        for node in self.outputs:
            want(node)
        parts = []
        done: set[tuple[int, tuple[int, ...]]] = set()
        while left := [key for key in {*outputs, *states} if key not in done]:
            key = max(left, key=lambda k: (k[0], len(k[1]), k[1]))  # what it reads has a lower key
            done.add(key)
            mine, partial = outputs.get(key, set()), states.get(key, set())
            read = self._read(key, [*mine, *(self.joins[s].argument for s in partial)], partial)
            for node in read:
                if self._nodes[node]["op"] != "input":
                    want(node)
            read |= self._anchors(key[1], read)
            parts.append(Part(key[1], tuple(sorted(read)), tuple(sorted(mine)), tuple(sorted(partial))))
        return parts[::-1]

    def _key(self, node: int) -> tuple[int, tuple[int, ...]]:
        return self._levels[node], self.grid(node)

    def _read(self, key: Any, wanted: Iterable[int], partial: Iterable[int]) -> set[int]:
        """What a part reads: where the walk from its results back to the inputs ends."""
        read, seen, open_ = set(), set(), list(wanted)
        while open_:
            i = open_.pop()
            if i in seen:
                continue
            seen.add(i)
            is_known = i in self.joins and i not in partial  # the state of a product is that of its blocks
            is_kept = i not in self.joins and self._nodes[i]["op"] in _KEPT and self._key(i) != key
            if self._nodes[i]["op"] == "input" or is_known or is_kept:
                read.add(i)
            else:
                open_ += self._nodes[i]["arguments"]
        return read

    def _anchors(self, grid: Iterable[int], read: set[int]) -> set[int]:
        """Inputs that tell the extents of blocks, where nothing else that is read does."""
        inputs = [i for i, n in enumerate(self._nodes) if n["op"] == "input"]
        found = set() if read else set(inputs[:1])
        for label in grid:
            if not any(label in self.axes.labels[i] for i in read):
                found.add(next(i for i in inputs if label in self.axes.labels[i]))
        return found

    def _of_part(self, part: Part) -> set[int]:
        """The nodes that a part computes."""
        wanted = [*part.outputs, *(self.joins[s].argument for s in part.states)]
        nodes: set[int] = set()
        open_ = [i for i in wanted if i not in part.inputs]
        while open_:
            i = open_.pop()
            if i not in nodes:
                nodes.add(i)
                open_ += [a for a in self._nodes[i]["arguments"] if a not in part.inputs]
        return nodes

    def _needed_text(self, part: Part) -> dict[str, Any]:
        """What a part's function has to know."""
        nodes = self._of_part(part)
        kept = sorted({*nodes, *part.inputs})
        index = {node: k for k, node in enumerate(kept)}
        stages = sorted({self._nodes[i]["stage"] for i in nodes if self._nodes[i]["stage"] is not None})
        return {
            "graph": {
                "kfusion_graph": 1,
                "nodes": [self._moved(i, index, stages, is_input=i in part.inputs) for i in kept],
                "stages": [self.graph["stages"][s] for s in stages],
                "outputs": [],
            },
            "inputs": [index[i] for i in part.inputs],
            "outputs": [index[i] for i in part.outputs],
            "states": [[index[self.joins[s].argument], *self._state(s)] for s in part.states],
            "labels": [[label if label in self.split else None for label in self.axes.labels[i]] for i in kept],
        }

    def _moved(self, i: int, index: Mapping[int, int], stages: Sequence[int], *, is_input: bool) -> dict[str, Any]:
        n = self._nodes[i]
        if is_input:
            made = {key: n[key] for key in ("dtype", "shape", "library", "device")}
            made |= {"op": "input", "arguments": [], "stage": None, "captured": False, "strides": []}
            return made | {"name": n.get("name", f"v{i}")}
        stage = None if n["stage"] is None else stages.index(n["stage"])
        return {**n, "arguments": [index[a] for a in n["arguments"]], "stage": stage}

    def _state(self, node: int) -> tuple[str, list[int], bool]:
        join, n = self.joins[node], self._nodes[node]
        return ("", [], True) if join.argument == node else (join.op, n["axes"], n["keepdims"])


def value_of(join: Join, state: Any) -> Any:
    """The value of all blocks' state, in the state's dtype."""
    total = state[2] if join.op == "moments" else state
    return total / join.count if join.count else total
