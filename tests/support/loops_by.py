"""Which executor runs loops on the CPU, for as long as a test needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import kfusion as kf
from kfusion import _core


@contextmanager
def loops_by(name: str) -> Iterator[None]:
    before = _core.loops_by()
    _core.set_loops_by(name)
    try:
        yield
    finally:
        _core.set_loops_by(before)


def _run(f: Callable[..., Any], *arrays: Any) -> list[np.ndarray]:
    got = kf.fuse(lambda *x: f(*x))(*arrays)
    return [np.asarray(g) for g in (got if isinstance(got, tuple) else (got,))]


def generated_all(f: Callable[..., Any], *arrays: Any) -> list[np.ndarray]:
    """What generated loops give, of which none was left to the interpreter."""
    left = _core.left_to_interpreter()
    with loops_by("generated"):
        got = _run(f, *arrays)
    assert _core.left_to_interpreter() == left, "left to the interpreter"
    return got


def generated(f: Callable[..., Any], *arrays: Any) -> np.ndarray:
    return generated_all(f, *arrays)[0]


def assert_same_bits(f: Callable[..., Any], *arrays: Any) -> np.ndarray:
    """Generated loops give what the interpreter does; the first result."""
    results = generated_all(f, *arrays)
    with loops_by("interpreted"):
        for got, want in zip(results, _run(f, *arrays), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), want.view(f"u{want.itemsize}"))
    return results[0]
