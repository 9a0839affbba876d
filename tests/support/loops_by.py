"""Which executor runs loops on the CPU, for as long as a test needs it, and what generated loops must give."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from graph_runs import wide
from kfusion import _core

# For modules whose loops must be generated.
GENERATED = [
    pytest.mark.native,
    pytest.mark.skipif(find_spec("llvmlite") is None, reason="llvmlite compiles generated loops"),
]
RELATIVE = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


@contextmanager
def loops_by(name: str) -> Iterator[None]:
    before = _core.testing.loops_by()
    _core.testing.set_loops_by(name)
    try:
        yield
    finally:
        _core.testing.set_loops_by(before)


def as_list(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _run(f: Callable[..., Any], *arrays: Any) -> list[np.ndarray]:
    return [np.asarray(g) for g in as_list(kf.fuse(lambda *x: f(*x))(*arrays))]


@contextmanager
def all_generated() -> Iterator[None]:
    """Generated loops run, and none is left to the interpreter."""
    left = _core.testing.left_to_interpreter()
    with loops_by("generated"):
        yield
    assert _core.testing.left_to_interpreter() == left, "left to the interpreter"


def generated_all(f: Callable[..., Any], *arrays: Any) -> list[np.ndarray]:
    with all_generated():
        return _run(f, *arrays)


def generated(f: Callable[..., Any], *arrays: Any) -> np.ndarray:
    return generated_all(f, *arrays)[0]


def assert_equal_bits(got: Iterable[np.ndarray], want: Iterable[np.ndarray]) -> None:
    for a, b in zip(got, want, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}"))


def assert_same_bits(f: Callable[..., Any], *arrays: Any) -> np.ndarray:
    """Generated loops give what the interpreter does; the first result."""
    results = generated_all(f, *arrays)
    with loops_by("interpreted"):
        assert_equal_bits(results, _run(f, *arrays))
    return results[0]


def assert_near(got: np.ndarray, want: np.ndarray, dtype: str, terms: float = 1.0, roundings: int = 1) -> None:
    """Within roundings of the dtype, at the size of the largest result; `terms`: that of what has been added up."""
    assert got.shape == want.shape
    if got.dtype.kind in "bi":
        np.testing.assert_array_equal(got, want)
        return
    with np.errstate(all="ignore"):
        stored = wide(want.astype(got.dtype))  # infinite where the dtype ends
        finite = np.isfinite(stored)
        exact = np.where(finite, want, stored)
        scale = float(np.abs(exact).max(initial=terms, where=finite))
    within = roundings * RELATIVE[dtype]
    np.testing.assert_allclose(wide(got), exact, rtol=within, atol=within * scale)


def check(
    f: Callable[..., Any], *arrays: np.ndarray, exact: bool = False, threads: Sequence[int] = (1, 3)
) -> list[np.ndarray]:
    """Generated loops give what `f` is in float64, and the same bits on any number of threads; `exact`: those of the
    interpreter."""
    with np.errstate(all="ignore"):
        wants = [np.asarray(w) for w in as_list(f(*map(wide, arrays)))]
    fused, before, runs = kf.fuse(lambda *x: f(*x)), kf.get_num_threads(), []
    try:
        for n in threads:
            kf.set_num_threads(n)
            with all_generated():
                runs.append([np.array(r) for r in as_list(fused(*arrays))])
    finally:
        kf.set_num_threads(before)
    for other in runs[1:]:
        assert_equal_bits(other, runs[0])
    if exact:
        with loops_by("interpreted"):
            for a, b in zip(runs[0], _run(f, *arrays), strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(wide(a), wide(b))
    dtype = min((str(a.dtype) for a in arrays if str(a.dtype) in RELATIVE), key=list(RELATIVE)[::-1].index, default="")
    roundings = len(fused.plan(*arrays).groups) if dtype in ("float16", "bfloat16") else 1  # where kernels end
    for got, want in zip(runs[0], wants, strict=True):
        terms = math.sqrt(max(a.size for a in arrays) / max(want.size, 1))
        assert_near(got, want, dtype if dtype or got.dtype.kind in "bi" else "float64", terms, roundings)
    return runs[0]
