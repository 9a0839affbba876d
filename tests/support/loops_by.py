"""Which executor runs loops on the CPU, for as long as a test needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import kfusion as kf
from kfusion import _core


@contextmanager
def loops_by(name: str) -> Iterator[None]:
    before = _core.testing.loops_by()
    _core.testing.set_loops_by(name)
    try:
        yield
    finally:
        _core.testing.set_loops_by(before)


def _run(f: Callable[..., Any], *arrays: Any) -> list[np.ndarray]:
    got = kf.fuse(lambda *x: f(*x))(*arrays)
    return [np.asarray(g) for g in (got if isinstance(got, tuple) else (got,))]


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
