"""The CPU executor's kernels: every op, dtype and length, any strides, reductions of all kinds, to the bit where fused
and unfused must agree."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import kfusion as kf
import loops
import reference_ops
from conftest import ALL_DTYPES, np_dtype
from graph_strategies import cases
from kfusion import _core

DEVICE = kf.device("H200").to_dict()


class Kernels:
    """A graph's kernels on the CPU."""

    def __init__(self, graph: _core.Graph, fuse: bool = True) -> None:
        self.lowered = _core.lower(graph, DEVICE, fuse)
        self.functions = _core.fused_kernels(graph, DEVICE, fuse)

    def __call__(self, *inputs: np.ndarray) -> list[np.ndarray]:
        functions = iter(self.functions)
        return loops.run(self.lowered, list(inputs), compute=lambda k, memory: self._run(next(functions), k, memory))

    def _run(self, function: Any, kernel: dict[str, Any], memory: dict[int, loops.Memory]) -> None:
        def address(operand: dict[str, Any]) -> int:
            m = memory[operand["node"]]
            return m.elements.ctypes.data + m.start * m.elements.itemsize

        function([address(o) for o in kernel["loads"]], [address(s["to"]) for s in kernel["stores"]])


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(cases(), st.booleans())
def test_random_graphs(case, fuse):
    case.check(Kernels(case.graph, fuse)(*case.inputs))
