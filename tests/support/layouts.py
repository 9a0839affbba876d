"""Arrays that lie in memory in any order, with gaps and backwards."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from graph_strategies import Case
from kfusion import _core

Layout = tuple[list[int], list[int]]


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout:
    """An order of the axes, outermost first, and a step along each."""
    return draw(st.permutations(range(len(shape)))), [draw(st.sampled_from([1, 1, 2, -1, -3])) for _ in shape]


def laid_out(array: np.ndarray, layout: Layout) -> np.ndarray:
    """The array, lying so in a larger one that is full of other numbers."""
    order, steps = layout
    owner = np.full([array.shape[axis] * abs(steps[axis]) for axis in order], 77, array.dtype)
    view = owner[(..., *(slice(None, None, steps[axis]) for axis in order))]
    view = view[(..., *(slice(array.shape[axis]) for axis in order))].transpose(np.argsort(order))
    view[...] = array
    return view


def element_strides(array: np.ndarray) -> list[int]:
    return [stride // array.itemsize for stride in array.strides]


def with_layouts(case: Case, chosen: list[Layout]) -> tuple[Any, list[np.ndarray]]:
    """The case's graph and inputs, which lie as chosen."""
    d = case.graph.to_dict()
    inputs = [laid_out(x, layout) for x, layout in zip(case.inputs, chosen, strict=True)]
    for node, x in zip([n for n in d["nodes"] if n["op"] == "input"], inputs, strict=True):
        node["strides"] = element_strides(x)
    return _core.Graph.from_dict(d), inputs
