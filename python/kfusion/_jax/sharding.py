"""By which axes a program's arrays may be cut among devices: those along which nothing is reduced, read at positions or
counted. Rows of row functions are.

Extents that must be cut together are a factor: all nodes' axes of rows are one. A program of a part of a factor is the
same graph with smaller extents.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from .._graph.axes import axes_of
from .program import Program


class Factors:
    """The factors of a program's graph, by numbers, as `axes_of` labels its axes.

    inputs, outputs: of each, the factors of its axes. free: those that may be cut; fixed: the others.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        nodes = program.graph["nodes"]
        axes = axes_of(program.graph)
        self._of = axes.labels
        self.inputs = [self._of[i] for i, n in enumerate(nodes) if n["op"] == "input"]
        self.outputs = [self._of[o] for o in program.output_nodes]
        known = {f for its in self.inputs for f in its}
        one = {
            f for its, n in zip(self._of, nodes, strict=True) for f, s in zip(its, n["shape"], strict=True) if s == 1
        }
        twice = {f for its in self._of for f in its if list(its).count(f) > 1}  # a device has one part of a factor
        fixed = one.union(axes.whole, twice, *axes.reduced.values())
        every = known.union(*self.outputs)
        self.free = (every & known) - fixed
        self.fixed = every - self.free

    def resized(self, extents: Mapping[int, int]) -> Program:
        """The program with other extents for some of the free factors."""
        graph = self._program.graph
        nodes = [
            n | {"shape": [extents.get(f, s) for f, s in zip(self._of[i], n["shape"], strict=True)]}
            for i, n in enumerate(graph["nodes"])
        ]
        return Program(graph | {"nodes": nodes}, self._program.stops, self._program.no_gradient, self._program.called)


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
        """The name of a factor that is not to be cut: another one at each place, since no array may have one twice."""
        if factor not in found.fixed:
            return names.setdefault(factor, f"f{len(names)}")
        fixed.append(f"r{len(fixed)}")
        return fixed[-1]

    def written(axes: Sequence[int]) -> str:
        return " ".join(map(name, axes))

    text = f"{', '.join(map(written, found.inputs))} -> {', '.join(map(written, found.outputs))}"
    return text, tuple(fixed)
