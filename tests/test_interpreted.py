"""Loops by the interpreter, where no code can be compiled for the CPU: against NumPy, and a part of the suite so."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core

TESTS = pathlib.Path(__file__).parent
SUITE = ["fuse", "fuse_writes", "fused_ops", "fused_random", "gathers", "each", "regroup", "partial_sums"]
SHAPES = [(0, 5), (1, 1), (3, 33), (700, 301), (2, 400_000)]  # some are computed in several parts


@pytest.fixture(autouse=True)
def interpreted():
    before = _core.testing.loops_by()
    _core.testing.set_loops_by("interpreted")
    yield
    _core.testing.set_loops_by(before)


@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_rows_columns_and_whole_arrays(shape, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    wide = x.astype(float)
    exact = np.exp(wide - wide.max(-1, keepdims=True))
    exact /= exact.sum(-1, keepdims=True)
    np.testing.assert_allclose(kf.fuse(kf.softmax)(x), exact, rtol=1e-5, atol=1e-9)
    for axis in (-1, 0, None):
        got = kf.fuse(lambda x, axis=axis: (x * x).sum(axis))(x)
        np.testing.assert_allclose(got, (wide * wide).sum(axis), rtol=1e-5)
        np.testing.assert_array_equal(kf.fuse(lambda x, axis=axis: x.argmax(axis))(x), x.argmax(axis))


def test_positions_that_are_read(rng):
    table = rng.standard_normal((50, 7)).astype(np.float32)
    rows = rng.integers(-50, 50, 90_000)
    np.testing.assert_array_equal(kf.fuse(lambda t, i: t[i] + 1)(table, rows), table[rows] + 1)
    with pytest.raises(IndexError, match="index 50 is out of bounds for axis 0 with size 50"):
        kf.fuse(lambda t, i: t[i] + 1)(table, np.array([3, 50]))


@pytest.mark.slow
def test_a_part_of_the_suite_without_llvmlite(seed):
    """Generated loops are interpreted there."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "hide_llvmlite", "--cases", "1"]
    files = [f"tests/test_{name}.py" for name in SUITE]
    path = os.pathsep.join([str(TESTS / "support"), *sys.path])
    environment = {**os.environ, "KFUSION_CPU": "generated", "PYTHONPATH": path}
    done = subprocess.run(
        [*command, "--seed", str(seed), *files], cwd=TESTS.parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
