"""The CPU executor's kernels one by one, of the instruction set in use."""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_loops
from kfusion import _core
from kfusion._devices import running
from programs.values import Unfit

DEVICE = running.device("cpu").to_dict()


class Kernels:
    """A graph's kernels on the CPU."""

    def __init__(self, graph: _core.Graph, fuse: bool = True) -> None:
        self.lowered = _core.testing.lower(graph, DEVICE, fuse)
        self.functions = _core.testing.fused_kernels(graph, DEVICE, fuse)

    def __call__(self, *inputs: np.ndarray) -> list[np.ndarray]:
        functions = iter(self.functions)
        return kernel_loops.run(
            self.lowered, list(inputs), compute=lambda k, memory: self._run(next(functions), k, memory)
        )

    def _run(self, function: Any, kernel: dict[str, Any], memory: dict[int, kernel_loops.Memory]) -> None:
        def address(operand: dict[str, Any]) -> int:
            if operand["node"] not in memory:
                raise Unfit  # a table of constants
            m = memory[operand["node"]]
            return m.elements.ctypes.data + m.start * m.elements.itemsize

        function(
            [address(o) for o in [*kernel["loads"], *kernel["tables"]]], [address(s["to"]) for s in kernel["stores"]]
        )
