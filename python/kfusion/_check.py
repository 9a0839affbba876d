"""Both versions against the float64 reference, before anything is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _arrays, _core, _relu_layernorm

_CHECKED_ELEMENTS = 2**20  # of large arrays a sample of whole rows is checked
_LEGACY_STREAM = 0  # the one that cuda_time's events are on


@dataclass(frozen=True)
class Problem:
    """The arguments, as both versions take them, and the rows that are checked."""

    x: Any
    weight: Any
    bias: Any
    eps: float
    rows: np.ndarray
    expected: np.ndarray
    allowed: np.ndarray

    def call(self, f: Callable[..., Any], out: Any = None) -> Any:
        return f(self.x, self.weight, self.bias, eps=self.eps, out=out, stream=self.stream)

    @property
    def cuda(self) -> bool:
        return _arrays.on_cuda(self.x)

    @property
    def elements(self) -> int:
        return int(np.prod(self.x.shape, dtype=np.int64))

    @property
    def itemsize(self) -> int:
        return int(self.x.dtype.itemsize)

    @property
    def matrix_bytes(self) -> int:
        return self.elements * self.itemsize

    @property
    def stream(self) -> int | None:
        return _LEGACY_STREAM if self.cuda else None


def checked_problem(x: Any, weight: Any, bias: Any, eps: float) -> tuple[Problem, dict[str, float], float]:
    """Runs both versions; bad arguments fail in the first call.

    Returns:
        The problem, each version's largest error, and the largest difference between the two.

    Raises:
        AssertionError: a version is further from the reference than its rounding explains.
    """
    out = _core.fused_relu_layernorm(x, weight, bias, eps=eps)
    cols = x.shape[-1]
    if 0 in x.shape:
        raise ValueError(f"kfusion.compare: x must not be empty, got shape {tuple(x.shape)}")
    picked = sample_rows(int(np.prod(x.shape[:-1], dtype=np.int64)), cols)
    sample = _arrays.float64_rows(x, picked)
    w, b = (None if p is None else _arrays.float64_rows(p, np.arange(1))[0] for p in (weight, bias))
    expected = _relu_layernorm.reference(sample, w, b, eps)
    allowed = _relu_layernorm.tolerance(sample, expected, w, b, eps, _arrays.dtype_name(x))
    problem = Problem(x, weight, bias, eps, picked, expected, allowed)
    results = {}
    for name, f in (("fused", _core.fused_relu_layernorm), ("unfused", _core.unfused_relu_layernorm)):
        if _arrays.mutable(x):
            _arrays.poison(out)
            results[name] = _arrays.float64_rows(problem.call(f, out), picked)
        else:
            results[name] = _arrays.float64_rows(problem.call(f), picked)
        _require_close(f"{name} and the float64 reference", results[name], expected, allowed)
    errors = {name: max_error(result, expected) for name, result in results.items()}
    return problem, errors, max_error(results["fused"], results["unfused"])


def sample_rows(rows: int, cols: int) -> np.ndarray:
    """The first, the last and random rows between: all of them when the matrix is small."""
    wanted = max(2, _CHECKED_ELEMENTS // cols)
    if rows <= wanted:
        return np.arange(rows)
    between = np.random.default_rng(0).integers(1, rows - 1, wanted - 2)
    return np.unique(np.concatenate(([0, rows - 1], between)))


def _require_close(what: str, got: np.ndarray, expected: np.ndarray, allowed: np.ndarray) -> None:
    same = (got == expected) | (np.isnan(got) & np.isnan(expected)) | (np.abs(got - expected) <= allowed)
    if not same.all():
        row, col = np.argwhere(~same)[0]
        raise AssertionError(
            f"kfusion.compare: {what} differ in {np.count_nonzero(~same)} of {same.size} checked elements, first at "
            f"column {col}: {got[row, col]!r} against {expected[row, col]!r}, allowed {allowed[row, col]:.1e}"
        )


def max_error(got: np.ndarray, expected: np.ndarray) -> float:
    error = np.abs(got - expected)[np.isfinite(expected)]
    return float(error.max(initial=0.0))
