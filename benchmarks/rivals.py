"""Peers written for certain operations (Triton's row kernels, Numba's loops, the CuPy experiment's two versions), and
those that write into warm results.

A rival's module is imported when it is first prepared.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from kfusion import _arrays
from kfusion._compare.contest import Rival
from kfusion._compare.problem import Problem

from . import jax_cuda, warm

MODULES = {"triton": "triton", "experiment": "cupy", "torch.compile.warm": "torch", "numba": "numba"}
# By peer and by the name of the row that it gives: our module, and its function from a traced function's name to what
# computes that from the arrays.
_SOURCES = {
    "triton": {"triton": ("triton_rows", "torch", "of")},
    "experiment": {
        "CuPy experiment, unfused": ("cupy_experiment", "cupy", "unfused"),
        "CuPy experiment, fused": ("cupy_experiment", "cupy", "fused"),
    },
}
# By peer and by the name of the row that it gives: our module, whose `prepare` is the rival.
_WARM = {
    "torch.compile.warm": {f"torch.compile{warm.SUFFIX}": "torch_into"},
    "numba": {f"numba{warm.SUFFIX}": "numba_loops"},
}


def split(peers: Sequence[str], device: str) -> tuple[list[str], dict[str, Rival]]:
    """The peers that run any function, as `kfusion.compare` knows them, and the others' rivals by the name of a row."""
    special = {peer: of(peer) for peer in peers}
    if device == "cuda" and "jax.jit" in special:
        special["jax.jit"] = {"jax.jit": jax_cuda.Pipelined}
    rivals = {row: rival for rows in special.values() for row, rival in rows.items()}
    return [peer for peer in peers if not special[peer]], rivals


def of(peer: str) -> dict[str, Rival]:
    """The rivals that a peer stands for, by the name of their rows; {} for a library that runs any function."""
    by_name = {row: _rival(*source) for row, source in _SOURCES.get(peer, {}).items()}
    return by_name | {row: _warm(module) for row, module in _WARM.get(peer, {}).items()}


def _rival(module: str, library: str, function: str) -> Rival:
    def prepare(problem: Problem) -> Callable[[], list[Any]]:
        find = getattr(importlib.import_module(f"{__package__}.{module}"), function)
        run = find(problem.traced.name)
        arrays = [_arrays.convert(x, library) for x in problem.arrays]
        return lambda: [run(*arrays)]

    return prepare


def _warm(module: str) -> Rival:
    def prepare(problem: Problem) -> Callable[[], Any]:
        run: Callable[[], Any] = importlib.import_module(f"{__package__}.{module}").prepare(problem)
        return run

    return prepare
