"""The steps of a trace, which calls with other extents play: their graph is built without the function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .. import _core

Shape = tuple[int, ...]


class NotTheSame(BaseException):
    """Calls with other sizes need another trace. No code of the user's is to handle it."""


@dataclass(frozen=True)
class Register:
    """The place of a value that a tape computes."""

    index: int


class Extents(NamedTuple):
    """Reads a node's extents: those of `axes` are the next registers, those of `fixed` must have these values."""

    node: int
    axes: tuple[int, ...]
    fixed: tuple[tuple[int, int], ...]


class Computed(NamedTuple):
    """The next register: a function of registers and constants. It must be of this type; `is_fixed`: of this value."""

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    type: type
    is_fixed: bool
    value: Any


class Built(NamedTuple):
    """A method of the graph, and what it must give. `varies`: registers are among the arguments."""

    method: str
    arguments: Sequence[Any]
    varies: bool
    result: Any


class Tape:
    """The steps of a trace, for calls with other extents.

    Args:
        shapes: of the call's arrays.
        other: of those of another call: where these differ, extents may vary.
    """

    def __init__(self, shapes: Sequence[Shape], other: Sequence[Shape]) -> None:
        pairs = enumerate(zip(shapes, other, strict=True))
        self._varying = [(i, axis) for i, (here, there) in pairs for axis in differing(here, there)]
        self._shapes = [tuple(shape) for shape in shapes]
        self._steps: list[Extents | Computed | Built] = []
        self._registers = len(self._varying)

    def register_of(self, array: int, axis: int) -> int | None:
        """The register of an extent of the call's; None where it does not vary."""
        return self._varying.index((array, axis)) if (array, axis) in self._varying else None

    def add(self, step: Extents | Computed | Built) -> int:
        """Appends a step; the register of its first result."""
        self._steps.append(step)
        first = self._registers
        self._registers += len(step.axes) if isinstance(step, Extents) else isinstance(step, Computed)
        return first

    def play(self, shapes: Sequence[Shape]) -> tuple[Any, list[Any]] | None:
        """The graph of a call with arrays of these shapes, and the registers; None where it needs another trace."""
        if not self._fits(shapes):
            return None
        values: list[Any] = [shapes[i][axis] for i, axis in self._varying]
        graph = _core.Graph()
        for step in self._steps:
            if type(step) is Built:
                arguments = filled(step.arguments, values) if step.varies else step.arguments
                if getattr(graph, step.method)(*arguments) != step.result:
                    return None
            elif type(step) is Computed:
                value = step.function(*[values[o.index] if type(o) is Register else o for o in step.operands])
                if type(value) is not step.type or (step.is_fixed and value != step.value):
                    return None
                values.append(value)
            elif not _read(graph.shape(step.node), step, values):  # type: ignore[union-attr, arg-type]
                return None
        return graph, values

    def _fits(self, shapes: Sequence[Shape]) -> bool:
        """Whether extents differ only where they may."""
        return list(map(len, shapes)) == list(map(len, self._shapes)) and all(
            (i, axis) in self._varying
            for i, (here, there) in enumerate(zip(shapes, self._shapes, strict=True))
            for axis in differing(here, there)
        )


def _read(shape: Shape, step: Extents, values: list[Any]) -> bool:
    values += [shape[axis] for axis in step.axes]
    return all(shape[axis] == n for axis, n in step.fixed)


def differing(shape: Shape, other: Shape) -> tuple[int, ...]:
    """The axes whose extents are not the same."""
    return tuple(axis for axis, (n, m) in enumerate(zip(shape, other, strict=True)) if n != m)


def filled(template: Any, values: Sequence[Any]) -> Any:
    """The template with values in the places of registers, within tuples and lists."""
    kind = type(template)
    if kind is Register:
        return values[template.index]
    return kind([filled(item, values) for item in template]) if kind is tuple or kind is list else template
