"""What workers run besides fused functions: what joins the states of several blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._graph.block_functions import joined
from .._graph.blocks import Join, value_of

_JOINING = {name: getattr(np, name) for name in ("maximum", "minimum", "logical_or", "logical_and")}


class JoinTask:
    """Several states made one; the last such step, which `join` says, gives the value."""

    def __init__(self, op: str, join: Join | None, dtype: str) -> None:
        self._op, self._join, self._dtype = op, join, dtype

    def __call__(self, states: Sequence[Any]) -> Any:
        state = joined(self._op, states, _JOINING)
        return state if self._join is None else value_of(self._join, state).astype(dtype_of(self._dtype))


def dtype_of(name: str) -> Any:
    """NumPy's dtype of that name; bfloat16 is ml_dtypes'."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def picked(results: Sequence[Any], number: int) -> Any:
    """One of a task's results."""
    return results[number]
