"""A fused function of blocks: what a task of a graph, or a rank, runs."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np

from .._graph.block_functions import BlockFunction


class BlockTask:
    """What computes one part of a cut graph: the list of its outputs and states, or the only one.

    It pickles by its text. A process has one for each text, so that it is traced once.
    """

    def __init__(self, made: Any, text: str, options: str) -> None:
        self._function = BlockFunction(text)
        self._fused = made(self._function, json.loads(options))
        self._arguments = made, text, options

    def results(self, *blocks: Any) -> list[Any]:
        """One thing for each output and state."""
        return self._function.results(self._fused(*blocks), [b.shape for b in blocks])

    def __call__(self, *blocks: Any) -> Any:
        blocks = tuple(
            np.asarray(b) if isinstance(b, np.generic) else b for b in blocks
        )  # NumPy's results without axes
        results = self.results(*blocks)
        return results[0] if len(results) == 1 else results

    def __reduce__(self) -> Any:
        return block_task, self._arguments


@functools.lru_cache(maxsize=256)
def block_task(made: Any, text: str, options: str) -> BlockTask:
    """The task of a part's text; `made` is the class of fused functions, options are JSON."""
    return BlockTask(made, text, options)


def task_of(fused: Any, text: str) -> BlockTask:
    """The task of a part of a fused function's graph."""
    made: Any = type(fused)
    return block_task(made, text, json.dumps(fused._options))
