"""Results too large for the caches are stored past them, line by line. Lines that rows or threads share, and what lies
around the result, must be as if all had been stored plainly; so must every bit of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from graph_runs import assert_close, wide
from kinds import np_dtype

pytestmark = pytest.mark.native

BYTES = 25 << 20  # of a result: 24 MB and more go past the caches
WIDTHS = (1, 3, 15, 16, 17, 33, 63, 64, 65, 100, 130, 250, 511, 512, 1000, 1023, 4096, 4097, 5000, 70_001)
GUARD = 64


# Functions of each row alone, and of x and a weight for each column.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "relu_layernorm": lambda x, w, out: kf.fused_relu_layernorm(x, out=out),
    "layernorm": lambda x, w, out: kf.fuse(lambda x, w: kf.layernorm(x, w, w))(x, w, out=out),
    "softmax": lambda x, w, out: kf.fuse(lambda x: kf.softmax(x))(x, out=out),
    "pointwise": lambda x, w, out: kf.fuse(lambda x, w: kf.relu(x) * 2 + w)(x, w, out=out),
}


def guarded(rows: int, cols: int, dtype: str, offset: int, between: int) -> tuple[np.ndarray, np.ndarray]:
    """Poisoned memory, and rows in it that begin at some element and lie some elements apart."""
    memory = np.full(GUARD + offset + rows * (cols + between) + GUARD, -7, np_dtype(dtype))
    view = memory[GUARD + offset :][: rows * (cols + between)].reshape(rows, cols + between)[:, :cols]
    return memory, view


def case(dtype: str, isa: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An input of awkward width, memory with guards and the result in it."""
    cols = int(rng.choice(WIDTHS))
    rows = max(4, BYTES // (cols * np_dtype(dtype).itemsize) + 1)
    rows += 2 * len(isa)  # kernels are kept by shape, those of another instruction set as well
    x = guarded(rows, cols, dtype, int(rng.integers(16)), 0)[1]
    x[:] = np.resize(rng.standard_normal(100_003).astype(np_dtype(dtype)), x.shape)
    return x, *guarded(rows, cols, dtype, int(rng.integers(32)), int(rng.choice([0, 0, 1, 16])))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_if_stored_plainly(name, dtype, isa, threads, rng):
    threads(int(rng.integers(1, 3)))
    x, memory, y = case(dtype, isa, rng)
    w = rng.standard_normal(x.shape[1]).astype(x.dtype)
    f = FUNCTIONS[name]
    assert f(x, w, y) is y
    bits = np.dtype(f"u{x.itemsize}")
    step = (len(x) + 1) // 2
    for at in range(0, len(x), step):  # half of it does not go past the caches
        plain = f(x[at : at + step], w, None)
        assert np.array_equal(plain.view(bits), np.ascontiguousarray(y[at : at + step]).view(bits)), (
            x.shape,
            y.strides,
        )
    y[:] = -7
    assert (memory == -7).all(), (x.shape, y.strides)


def test_columns(isa, threads, rng):
    threads(int(rng.integers(1, 3)))
    x, memory, y = case("float32", isa, rng)
    kf.fuse(lambda x: x - x.mean(axis=0))(x, out=y)
    assert_close(y, wide(x) - wide(x).mean(axis=0), scale=abs(wide(x)).max())
    y[:] = -7
    assert (memory == -7).all(), (x.shape, y.strides)


def test_columns_of_two_widths(isa, rng):
    """Means are float32, results float64: the last columns read means that take half of a register."""
    x = rng.standard_normal((4, 1_000_000 + int(rng.integers(1, 16)))).astype(np.float32)
    y = rng.standard_normal(x.shape)
    got = kf.fuse(lambda x, y: y + (x - x.mean(axis=0)))(x, y)
    assert_close(got, y + (x - x.mean(axis=0, dtype=np.float64).astype(np.float32)), scale=abs(x).max(), spacings=2**30)


@pytest.mark.parametrize("name", ["relu_layernorm", "softmax"])
def test_results_that_are_not_dense(name, isa, threads, rng):
    """Rows that are copied to their places are not stored past the caches, where they would be waited for."""
    cols = int(rng.choice((101, 250, 1000)))
    rows = BYTES // (4 * cols) + 1 + 2 * len(isa)
    x = np.resize(rng.standard_normal(100_003).astype(np.float32), (rows, cols))
    f = FUNCTIONS[name]
    want = np.array(f(x, None, None))
    for out in (np.full((cols, rows), 7, np.float32).T, np.full((rows, 2 * cols), 7, np.float32)[:, ::2]):
        assert f(x, None, out) is out
        np.testing.assert_array_equal(out, want)
