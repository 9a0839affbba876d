"""What computes one part of a cut graph, and what joins the states of its blocks."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .._spec import HALF
from .replay import build

_WIDE = ("sum", "mean", "prod", "moments")  # whose states are at least float32


class BlockFunction:
    """What computes one part of a cut graph: of blocks, its outputs and states. It pickles by its text.

    Blocks of a part may have any extents along the axes that are split; numbers that the function made of extents are
    those of the whole arrays.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._part, self.__name__ = json.loads(text)
        self._nodes = self._part["graph"]["nodes"]

    def __reduce__(self) -> Any:
        return BlockFunction, (self.text,)

    def __call__(self, *blocks: Any) -> tuple[Any, ...]:
        """Makes the nodes of the part of traced values."""
        tracer = blocks[0]._tracer
        extents = self.extents([b.shape for b in blocks])
        known = {i: tracer.node(b) for i, b in zip(self._part["inputs"], blocks, strict=True)}

        def shape(i: int) -> list[int]:
            n, labels = self._nodes[i], self._part["labels"][i]
            return [e if label is None else extents[label] for e, label in zip(n["shape"], labels, strict=True)]

        build(tracer.graph, self._part["graph"], range(len(self._nodes)), known, shape)
        made = [known[i] for i in self._part["outputs"]]
        for argument, op, axes, keepdims in self._part["states"]:
            made += _state(tracer.graph, known[argument], op, axes, keepdims)
        return tuple(tracer.value(node) for node in made)

    def extents(self, shapes: Iterable[Sequence[int]]) -> dict[int, int]:
        """The extents of the labels that are split, for blocks of these shapes."""
        found: dict[int, int] = {}
        for i, shape in zip(self._part["inputs"], shapes, strict=True):
            for label, extent in zip(self._part["labels"][i], shape, strict=True):
                if label is not None:
                    found[label] = extent
        return found

    def results(self, made: Sequence[Any], shapes: Iterable[Sequence[int]]) -> list[Any]:
        """One thing for each output and state: of moments (count, mean, squares)."""
        rest = iter(made)
        found: list[Any] = [next(rest) for _ in self._part["outputs"]]
        extents = self.extents(shapes)
        for argument, op, axes, _ in self._part["states"]:
            if op != "moments":
                found.append(next(rest))
                continue
            n, labels = self._nodes[argument], self._part["labels"][argument]
            count = math.prod(n["shape"][k] if labels[k] is None else extents[labels[k]] for k in axes)
            found.append((count, next(rest), next(rest)))
        return found


def _state(g: Any, x: int, op: str, axes: Sequence[int], keepdims: bool) -> list[int]:
    """The nodes of a block's state."""
    if not op:
        return [x]
    if op in _WIDE and g.dtype(x) in HALF:
        x = g.cast(x, "float32")
    if op != "moments":
        return [g.reduce("sum" if op == "mean" else op, x, axes, keepdims)]
    g.begin_stage("moments", "")
    apart = g.map("square", [g.map("subtract", [x, g.reduce("mean", x, axes, True)])])
    found = [g.reduce("mean", x, axes, keepdims), g.reduce("sum", apart, axes, keepdims)]
    g.end_stage()
    return found


def joined(op: str, states: Sequence[Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    """One state of several, by the array library's `maximum`, `minimum`, `logical_or` and `logical_and`."""
    if op == "moments":
        return functools.reduce(_moments, states)
    if op in ("sum", "mean"):
        return functools.reduce(lambda a, b: a + b, states)
    if op == "prod":
        return functools.reduce(lambda a, b: a * b, states)
    name = {"max": "maximum", "min": "minimum", "any": "logical_or", "all": "logical_and"}[op]
    return functools.reduce(functions[name], states)


def _moments(a: Any, b: Any) -> Any:
    """Chan's formula."""
    if a[0] == 0 or b[0] == 0:
        return b if a[0] == 0 else a
    count = a[0] + b[0]
    apart = b[1] - a[1]
    return count, a[1] + apart * (b[0] / count), a[2] + b[2] + apart * apart * (a[0] * b[0] / count)
