"""Products, attention and many arrays at once on the CPU, with generated loops between: against float64."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

import kfusion as kf
from cpu_products import require_blas
from loops_by import all_generated

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(find_spec("llvmlite") is None, reason="llvmlite compiles generated loops"),
]
require_blas()


@pytest.fixture(autouse=True)
def generated():
    with all_generated():
        yield


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("shape", [(64, 64, 64), (300, 129, 2100), (1100, 70, 515)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_product_and_what_follows_it(dtype, shape, isa, threads, rng):
    m, k, n = shape
    x, w, b = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (k, n), (n,)))
    scale = rng.uniform(0.5, 2)
    wide = [v.astype(float) for v in (x, w, b)]
    want = np.tanh(wide[0] @ wide[1] * scale + wide[2])
    bound = {"float64": 1e-12, "float32": 1e-4, "float16": 2e-3}[dtype]
    for count in (1, 2):
        threads(count)
        got = kf.fuse(lambda x, w, b, s: kf.tanh(x @ w * s + b))(x, w, b, float(scale))
        np.testing.assert_allclose(got.astype(float), want, rtol=0, atol=bound)


@pytest.mark.parametrize("cols", [64, 1000, 9000])
def test_rows_of_a_product(cols, isa, rng):
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((200, 48), (48, cols)))
    want = softmax(x.astype(float) @ w)
    np.testing.assert_allclose(kf.fuse(lambda x, w: kf.softmax(x @ w))(x, w), want, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("keys", [70, 1100, 2050])
def test_attention(keys, dtype, isa, rng):
    q, k, v, bias = (
        rng.standard_normal(s).astype(dtype) for s in ((3, 300, 16), (3, keys, 16), (3, keys, 24), (300, keys))
    )
    bias[:, ::3] = -np.inf
    want = softmax(q.astype(float) @ k.swapaxes(-1, -2).astype(float) + bias) @ v
    got = kf.fuse(lambda q, k, v, b: kf.softmax(q @ k.swapaxes(-1, -2) + b) @ v)(q, k, v, bias)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 if dtype == "float32" else 1e-12)


def test_many_arrays_at_once(isa, threads, rng):
    @kf.for_each
    def step(p, g, m, rate):
        m *= 0.9
        m += g
        p -= rate * m

    shapes = [(4096,), (3, 5), (100_001,), (1,), (0,), (63, 65)]
    p, g, m = ([rng.standard_normal(s).astype(np.float32) for s in shapes] for _ in range(3))
    moved = [np.float32(0.9) * b + a for a, b in zip(g, m, strict=True)]
    want = [a - np.float32(0.01) * b for a, b in zip(p, moved, strict=True)]
    threads(2)
    step(p, g, m, 0.01)
    for got, right in zip([*p, *m], [*want, *moved], strict=True):
        np.testing.assert_array_equal(got, right)
