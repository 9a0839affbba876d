"""By which axes a program's arrays may be cut among devices: those along which nothing is reduced, read at positions or
counted. Rows of row functions are.

Extents that must be cut together are a factor: all nodes' axes of rows are one. A program of a part of a factor is the
same graph with smaller extents.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from .nodes import Node
from .program import Program


class Factors:
    """The factors of a program's graph: `of[i]` has for each axis of node i the number of its factor."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._parents: list[int] = []
        self._fixed: set[int] = set()
        self._of: list[list[int]] = []
        nodes = program.graph["nodes"]
        for node in nodes:
            self._of.append(self._factors(node, nodes))
            for axis, extent in enumerate(node["shape"]):
                if extent == 1:
                    self._fix([self._of[-1][axis]])
        for axes in map(self._roots, range(len(nodes))):  # a device has one part of a factor
            self._fix([f for f in axes if axes.count(f) > 1])
        self.inputs = [self._roots(i) for i, n in enumerate(nodes) if n["op"] == "input"]
        self.outputs = [self._roots(o) for o in program.output_nodes]
        known = {f for axes in self.inputs for f in axes}
        fixed = {self._root(f) for f in self._fixed}
        every = known | {f for axes in self.outputs for f in axes}
        self.fixed = {f for f in every if f in fixed or f not in known}
        self.free = every - self.fixed

    def resized(self, extents: Mapping[int, int]) -> Program:
        """The program with other extents for some of the free factors."""
        graph = self._program.graph
        nodes = [
            n | {"shape": [extents.get(f, s) for f, s in zip(self._roots(i), n["shape"], strict=True)]}
            for i, n in enumerate(graph["nodes"])
        ]
        return Program(graph | {"nodes": nodes}, self._program.stops, self._program.no_gradient, self._program.called)

    # ---- how axes go through nodes ----

    def _new(self) -> int:
        self._parents.append(len(self._parents))
        return len(self._parents) - 1

    def _root(self, factor: int) -> int:
        while self._parents[factor] != factor:
            factor = self._parents[factor]
        return factor

    def _roots(self, node: int) -> list[int]:
        return [self._root(f) for f in self._of[node]]

    def _one(self, factors: Sequence[int]) -> int:
        """The factors as one; a new one where there are none."""
        if not factors:
            return self._new()
        for f in factors[1:]:
            self._parents[self._root(f)] = self._root(factors[0])
        return factors[0]

    def _fix(self, factors: Sequence[int]) -> None:
        self._fixed |= set(factors)

    def _fixed_axes(self, node: Node) -> list[int]:
        made = [self._new() for _ in node["shape"]]
        self._fix(made)
        return made

    def _factors(self, node: Node, nodes: Sequence[Node]) -> list[int]:
        rule = _RULES.get(node["op"], Factors._reduction if "axes" in node else Factors._map)
        return rule(self, node, nodes)

    def _source(self, node: Node, nodes: Sequence[Node]) -> list[int]:
        made = [self._new() for _ in node["shape"]]
        if node["op"] == "iota":
            self._fix([made[node["axis"]]])
        return made

    def _joined(
        self, shape: Sequence[int], shapes: Sequence[Sequence[int]], axes: Sequence[Sequence[int]]
    ) -> list[int]:
        """Of arguments that broadcast to a shape."""
        made = []
        for back in range(len(shape), 0, -1):
            found = [
                its[-back]
                for its, extents in zip(axes, shapes, strict=True)
                if len(extents) >= back and extents[-back] == shape[-back]
            ]
            made.append(self._one(found))
        return made

    def _map(self, node: Node, nodes: Sequence[Node]) -> list[int]:
        arguments = node["arguments"]
        return self._joined(node["shape"], [nodes[a]["shape"] for a in arguments], [self._of[a] for a in arguments])

    def _reduction(self, node: Node, nodes: Sequence[Node]) -> list[int]:
        x = self._of[node["arguments"][0]]
        self._fix([x[a] for a in node["axes"]])
        if not node["keepdims"]:
            return [f for a, f in enumerate(x) if a not in node["axes"]]
        return [self._new() if a in node["axes"] else f for a, f in enumerate(x)]

    def _transpose(self, node: Node, nodes: Sequence[Node]) -> list[int]:
        return [self._of[node["arguments"][0]][a] for a in node["axes"]]

    def _reshape(self, node: Node, nodes: Sequence[Node]) -> list[int]:
        """Axes of the same extent behind as many elements stay; those between become others."""
        x = node["arguments"][0]
        was, now, before = self._of[x], node["shape"], nodes[x]["shape"]
        starts, count = {}, 1
        for axis, extent in enumerate(before):
            if extent != 1:
                starts[count, extent] = axis
            count *= extent
        made, count, kept = self._fixed_axes(node), 1, set()
        for axis, extent in enumerate(now):
            if 0 not in now and (count, extent) in starts:
                made[axis] = was[starts[count, extent]]
                kept.add(starts[count, extent])
            count *= extent
        self._fix([f for axis, f in enumerate(was) if axis not in kept])
        return made

    def _slice(self, node: Node, nodes: Sequence[Node]) -> list[int]:
        x = node["arguments"][0]
        made = self._fixed_axes(node)
        for axis, factor in enumerate(self._of[x]):
            is_whole = node["start"][axis] == 0 and node["step"][axis] == 1
            if is_whole and node["shape"][axis] == nodes[x]["shape"][axis]:
                made[axis] = factor
            else:
                self._fix([factor])
        return made

    def _matmul(self, node: Node, nodes: Sequence[Node]) -> list[int]:
        (x, w), shape = node["arguments"], node["shape"]
        left, right = self._of[x], self._of[w]
        self._fix([left[-1], right[-2] if len(right) > 1 else right[-1]])
        rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else []
        leading = shape[: len(shape) - len(rows) - len(columns)]
        shapes = [nodes[x]["shape"][:-2], nodes[w]["shape"][:-2]]
        return [*self._joined(leading, shapes, [left[:-2], right[:-2]]), *rows, *columns]

    def _conv2d(self, node: Node, nodes: Sequence[Node]) -> list[int]:
        x, w = node["arguments"]
        made = self._fixed_axes(node)
        made[0] = self._of[x][0]
        self._fix([*self._of[x][1:], *self._of[w]])
        return made

    def _take(self, node: Node, nodes: Sequence[Node]) -> list[int]:
        x, indices = node["arguments"]
        axis = node["axis"]
        self._fix([self._of[x][axis]])
        return [*self._of[x][:axis], *self._of[indices], *self._of[x][axis + 1 :]]

    def _take_along_axis(self, node: Node, nodes: Sequence[Node]) -> list[int]:
        x, indices = node["arguments"]
        axis = node["axis"]
        self._fix([self._of[x][axis]])
        others = list(self._of[x])
        others[axis] = self._of[indices][axis]
        shape = list(nodes[x]["shape"])
        shape[axis] = nodes[indices]["shape"][axis]
        return self._joined(node["shape"], [shape, nodes[indices]["shape"]], [others, self._of[indices]])

    def _concatenate(self, node: Node, nodes: Sequence[Node]) -> list[int]:
        axis = node["axis"]
        parts = [self._of[a] for a in node["arguments"]]
        self._fix([p[axis] for p in parts])
        made = [self._one([p[a] for p in parts]) if a != axis else self._new() for a in range(len(node["shape"]))]
        self._fix([made[axis]])
        return made

    def _unknown(self, node: Node, nodes: Sequence[Node]) -> list[int]:
        for a in node["arguments"]:
            self._fix(self._of[a])
        return self._fixed_axes(node)


_RULES: dict[str, Callable[[Factors, Node, Sequence[Node]], list[int]]] = {
    "input": Factors._source,
    "constant": Factors._source,
    "iota": Factors._source,
    "transpose": Factors._transpose,
    "reshape": Factors._reshape,
    "slice": Factors._slice,
    "matmul": Factors._matmul,
    "conv2d": Factors._conv2d,
    "take": Factors._take,
    "take_along_axis": Factors._take_along_axis,
    "concatenate": Factors._concatenate,
    "library_call": Factors._unknown,
    "library_result": Factors._unknown,
    "partial_sums": Factors._unknown,
}


@functools.lru_cache(maxsize=512)
def factors(program: Program) -> Factors:
    """The factors of a program."""
    return Factors(program)


def rule(program: Program) -> tuple[str, tuple[str, ...]]:
    """Shardy's rule for a program's arrays, and the factors among those that are not to be cut."""
    found = factors(program)
    names: dict[int, str] = {}
    fixed: list[str] = []

    def name(factor: int) -> str:
        """Of a factor that is not to be cut: another one at each place, since no array may have one twice."""
        if factor not in found.fixed:
            return names.setdefault(factor, f"f{len(names)}")
        fixed.append(f"r{len(fixed)}")
        return fixed[-1]

    def written(axes: Sequence[int]) -> str:
        return " ".join(map(name, axes))

    text = f"{', '.join(map(written, found.inputs))} -> {', '.join(map(written, found.outputs))}"
    return text, tuple(fixed)
