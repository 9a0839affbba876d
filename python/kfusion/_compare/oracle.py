"""Both versions against a float64 reference, before anything is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _arrays
from .._spec import FLOATS
from .batch import Batch, batch
from .evaluate import program
from .libraries import Wide
from .problem import Problem

Index = tuple[np.ndarray, ...]
Part = Callable[[Sequence[Any]], list[np.ndarray]]

_CHECKED_ELEMENTS = 2**20  # of large arrays a sample of whole rows is checked
_WHOLE_ELEMENTS = 2**24  # up to which a function that is no function of rows is checked as a whole

# How far a result may be from float64, in units of the stored type's precision at the largest result: roundings add up,
# and between steps they are those of the half type.
_SPACINGS = {"float16": 32, "bfloat16": 16, "float32": 1024, "float64": 1024}
_UNDECIDED = 1e-3  # share of whole-number results that rounding of floats may flip


@dataclass(frozen=True)
class Oracle:
    """What the checked part of each output must be, and how far a version of ours and one of others may be from it."""

    name: str
    part: Part
    expected: list[np.ndarray]
    allowed: list[np.ndarray]
    allowed_to_peers: list[np.ndarray]

    def require(self, who: str, outputs: Sequence[Any]) -> float:
        """The largest error of a version of ours.

        Raises:
            AssertionError: it is more than rounding explains.
        """
        return self._checked(who, outputs, self.allowed)

    def require_of_peer(self, who: str, outputs: Sequence[Any]) -> float:
        """The largest error of another library's version; errors as `require`."""
        return self._checked(who, outputs, self.allowed_to_peers)

    def _checked(self, who: str, outputs: Sequence[Any], allowed: list[np.ndarray]) -> float:
        parts = self.part(outputs)
        for got, expected, limit in zip(parts, self.expected, allowed, strict=True):
            _require_close(f"{who} and {self.name}", got, expected, limit)
        return max(max_error(got, expected) for got, expected in zip(parts, self.expected, strict=True))


def checked(problem: Problem) -> tuple[Oracle, Any, dict[str, float], float]:
    """Checks fused and unfused, into results full of NaN where there can be any.

    Returns:
        The oracle, a result to write into (None where arrays cannot be written to), the largest error of each version,
        and the largest difference between the two.

    Raises:
        AssertionError: a version is wrong by more than its rounding explains.
    """
    first = problem.call(problem.versions.fused)  # whatever is wrong with the arguments shows first
    out = first if problem.mutable else None
    oracle = _oracle(problem)
    errors, parts = {}, {}
    for name, version in (("fused", problem.versions.fused), ("unfused", problem.versions.unfused)):
        if out is not None:
            for array in problem.outputs(out):
                _arrays.poison(array)
        outputs = problem.outputs(problem.call(version, out))
        parts[name] = oracle.part(outputs)
        errors[name] = oracle.require(name, outputs)
    pairs = zip(parts["fused"], parts["unfused"], strict=True)
    return oracle, out, errors, max(max_error(fused, unfused) for fused, unfused in pairs)


def _oracle(problem: Problem) -> Oracle:
    """The graph in float64, all of it where it is small, else some of its rows; without rows, the unfused version."""
    nodes, outputs = problem.nodes, problem.output_nodes
    elements = sum(i.spec.size for i in problem.traced.inputs)
    rows = batch(nodes, outputs) if elements > _CHECKED_ELEMENTS else None
    picks: list[Index] = [()] * len(outputs)
    if rows:
        picks = [(sample_rows(rows.extent, max(1, elements // rows.extent)),)] * len(outputs)
    elif elements > _WHOLE_ELEMENTS:
        picks = [_some_rows(nodes[o]["shape"]) for o in outputs]
    part: Part = lambda arrays: [  # noqa: E731
        _as_matrix(_arrays.host(y, picked)) for y, picked in zip(arrays, picks, strict=True)
    ]
    if rows or elements <= _WHOLE_ELEMENTS:
        name, expected = "the float64 reference", _reference(problem, rows, picks[0])
    else:
        name, expected = "the unfused version", part(problem.outputs(problem.call(problem.versions.unfused)))
    allowed = [_allowed(y, nodes[o]["dtype"]) for y, o in zip(expected, outputs, strict=True)]
    return Oracle(name, part, expected, allowed, allowed)


def _reference(problem: Problem, rows: Batch | None, picked: Index) -> list[np.ndarray]:
    """The outputs in float64, all of them or the picked rows."""
    nodes = rows.shrunk(problem.nodes, len(picked[0])) if rows else problem.nodes
    inputs = [i for i, node in enumerate(nodes) if node["op"] == "input"]
    arrays = [
        _wide(_arrays.host(array, picked if rows and i in rows.nodes else ()))
        for i, array in zip(inputs, problem.arrays, strict=True)
    ]
    return [_as_matrix(np.asarray(y)) for y in program(problem.traced, Wide(), nodes)(*arrays)]


def _some_rows(shape: Sequence[int]) -> Index:
    return (sample_rows(shape[0], math.prod(shape[1:])),) if shape else ()


def _as_matrix(y: np.ndarray) -> np.ndarray:
    return y.reshape(len(y), -1) if y.ndim and y.size else y.reshape(1, -1)


def _wide(x: np.ndarray) -> np.ndarray:
    """Floats as float64."""
    return x if x.dtype.kind in "bi" else x.astype(np.float64)


def _allowed(expected: np.ndarray, dtype: str) -> np.ndarray:
    """How far from `expected` a result of this dtype may be; 0 of whole numbers and truth values."""
    if dtype not in FLOATS:
        return np.zeros(expected.shape)
    finite = np.abs(expected[np.isfinite(expected)])
    return np.full(expected.shape, _SPACINGS[dtype] * _arrays.SPACING[dtype] * finite.max(initial=0.0))


def sample_rows(rows: int, cols: int) -> np.ndarray:
    """The first, the last and random rows between: all of them when the matrix is small."""
    wanted = max(2, _CHECKED_ELEMENTS // max(cols, 1))
    if rows <= wanted:
        return np.arange(rows)
    between = np.random.default_rng(0).integers(1, rows - 1, wanted - 2)
    return np.unique(np.concatenate(([0, rows - 1], between)))


def _require_close(what: str, got: np.ndarray, expected: np.ndarray, allowed: np.ndarray) -> None:
    same = (got == expected) | (np.isnan(got) & np.isnan(expected)) | (np.abs(got - expected) <= allowed)
    if same.all() or (not allowed.any() and (~same).mean() <= _UNDECIDED and got.dtype.kind in "bi"):
        return
    row, col = np.argwhere(~same)[0]
    raise AssertionError(
        f"kfusion.compare: {what} differ in {np.count_nonzero(~same)} of {same.size} checked elements, first at "
        f"column {col}: {got[row, col]!r} against {expected[row, col]!r}, allowed {allowed[row, col]:.1e}"
    )


def max_error(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference where `expected` is finite."""
    error = np.abs(got.astype(np.float64) - expected)[np.isfinite(expected)]
    return float(error.max(initial=0.0))
