"""Peers written for certain operations: Triton's row kernels, and the CuPy experiment's two versions.

A rival is asked by the name of the traced function. Its module is imported when it is first prepared.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .. import _arrays
from .._contest import Rival
from .._problem import Problem

MODULES = {"triton": "triton", "experiment": "cupy"}
# By peer and by the name of the row that it gives: our module, and its function from a traced function's name to what
# computes that from the arrays.
_SOURCES = {
    "triton": {"triton": ("triton_rows", "torch", "of")},
    "experiment": {
        "CuPy experiment, unfused": ("cupy_experiment", "cupy", "unfused"),
        "CuPy experiment, fused": ("cupy_experiment", "cupy", "fused"),
    },
}


def of(peer: str) -> dict[str, Rival]:
    """The rivals that a peer stands for, by the name of their rows; {} for a library that runs any function."""
    return {row: _rival(*source) for row, source in _SOURCES.get(peer, {}).items()}


def _rival(module: str, library: str, function: str) -> Rival:
    def prepare(problem: Problem) -> Callable[[], list[Any]]:
        find = getattr(importlib.import_module(f"{__package__}.{module}"), function)
        run = find(problem.traced.name)
        arrays = [_arrays.convert(x, library) for x in problem.arrays]
        return lambda: [run(*arrays)]

    return prepare
