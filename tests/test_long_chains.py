"""Functions of many operations, on the little stack that a thread may have."""

import threading

import numpy as np
import pytest

import kfusion as kf
from kinds import SANITIZED
from sweeps import sweep

pytestmark = pytest.mark.native

# Without optimisation, a step of a CPU program calls the next one where it otherwise jumps: 6 KB of stack for each.
STACK = 8 << 20 if SANITIZED else 128 << 10


def on_a_small_stack(f):
    """What f returns on a thread whose stack has 128 KB."""
    result = []
    before = threading.stack_size(STACK)
    try:
        thread = threading.Thread(target=lambda: result.append(f()))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    return result[0]


def chain(x, n):
    """Each step needs the one before."""
    for i in range(n):
        x = x * 0.5 + 1 if i % 2 else np.maximum(x, -1)
    return x


def comb(x, n):
    """All steps wait until the last is made."""
    values = [x + i for i in range(n)]
    while len(values) > 1:
        values = [np.sin(values[-2]) + values[-1], *values[:-2]]
    return values[0]


def rows(x, n):
    """A row's values and elements in turn."""
    for _ in range(n):
        x = x - x.max(axis=-1, keepdims=True) * 0.5
    return x


def integers(x, n):
    """Casts on the way, and 8-byte elements."""
    for _ in range(n):
        x = x.astype(np.int64).astype(np.float32) + 0.25
    return x


def test_on_a_small_stack(some, rng):
    def check(body, n, is_transposed):
        x = rng.standard_normal((64, 96), np.float32)
        x = x.T if is_transposed else x
        want, f = body(x, n), kf.fuse(lambda x: body(x, n))
        for run in (f, f.unfused):
            np.testing.assert_allclose(on_a_small_stack(lambda run=run: run(x)), want, rtol=1e-4, atol=1e-4)
        assert on_a_small_stack(lambda: f.plan(x)).groups
        assert on_a_small_stack(lambda: f.source(x))

    bodies = ((chain, 100 if SANITIZED else 1000), (comb, 300), (rows, 40), (integers, 200))
    sweep(check, some([(*body, is_transposed) for body in bodies for is_transposed in (False, True)], 4))


@pytest.mark.skipif(SANITIZED, reason="would take more stack than threads have")
def test_tens_of_thousands(rng):
    x = rng.standard_normal(1000, np.float32)
    want = chain(x, 20_000)
    f = kf.fuse(lambda x: chain(x, 20_000))
    np.testing.assert_allclose(f(x), want, rtol=1e-5)
