"""What the tests of products and of attention on the CPU share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kfusion as kf
from kfusion import _core

HALVES = [np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)]


def require_blas() -> None:
    """Skips the module that calls it where blocks cannot be computed."""
    if _core.testing.blas_threads() is None:
        pytest.skip("this process has no BLAS that blocks could be computed by", allow_module_level=True)


@pytest.fixture(autouse=True)
def poisoned() -> None:
    """For modules that import it: memory begins as NaN."""
    _core.testing.poison_memory(True)


def forced(f: Callable[..., Any]) -> kf.FusedFunction:
    """Run by blocks, whatever is predicted to be faster."""
    return kf.FusedFunction(f, {"executors": ["cpu_products", "cpu"], "by_time": False})


# one row, one column, depth 1, tails, several blocks along rows, along columns, and along both
SHAPES = [(1, 5, 7), (6, 5, 1), (1, 1, 1), (7, 1, 5), (129, 33, 127), (256, 256, 256), (513, 400, 777),
          (2500, 8, 40), (40, 8, 5000), (1100, 40, 1300), (16, 700, 3000)]  # fmt: skip


def draw(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def operands(rng, m, k, n, dtype=np.float32):
    """A product's factors, with sums of about 1, a bias, a residual and a number of each row."""
    w = draw(rng, k, n, dtype=dtype) / np.dtype(dtype).type(max(k, 1) ** 0.5)
    return (draw(rng, m, k, dtype=dtype), w, draw(rng, n, dtype=dtype), draw(rng, m, n, dtype=dtype),
            draw(rng, m, 1, dtype=dtype))  # fmt: skip


def logsumexp(x, axis):
    largest = x.max(axis, keepdims=True)
    return kf.log(kf.exp(x - largest).sum(axis, keepdims=True)) + largest


STORED = {
    "bias and gelu": lambda x, w, b, r, c: kf.gelu(x @ w + b),
    "residual": lambda x, w, b, r, c: x @ w + r,
    "number of each row": lambda x, w, b, r, c: kf.tanh(x @ w) * c,
    "three results": lambda x, w, b, r, c: (x @ w, kf.relu(x @ w), r - x @ w * c),
    "vector computed here": lambda x, w, b, r, c: x @ w + (kf.relu(b) * 2 + 1),
    "bools": lambda x, w, b, r, c: (x @ w * 0 + r > 0.5) | (x @ w * 0 > b),
}
REDUCED = {
    "largest of rows": lambda x, w, b, r, c: (x @ w + b).max(-1),
    "least of columns": lambda x, w, b, r, c: (x @ w * c).min(0),
    "sums of rows": lambda x, w, b, r, c: (kf.tanh(x @ w) * r).sum(-1),
    "means of columns": lambda x, w, b, r, c: (x @ w - r).mean(0),
    "splade": lambda x, w, b, r, c: kf.log1p(kf.relu(x @ w + b)).max(0),
    "splade, masked": lambda x, w, b, r, c: (kf.log1p(kf.relu(x @ w + b)) * c).max(0),
    "logsumexp": lambda x, w, b, r, c: logsumexp(x @ w + b, axis=-1),
    "logsumexp of columns": lambda x, w, b, r, c: logsumexp(x @ w + b, axis=0),
    "any": lambda x, w, b, r, c: (x @ w * 0 + r > 2.5).any(-1),
    "two": lambda x, w, b, r, c: ((x @ w).max(-1), (x @ w).min(-1) * 2),
}


def fortran(x):
    return np.asfortranarray(x)


def sliced(x):
    wide = np.full([2 * e + 1 for e in x.shape], np.nan, x.dtype)
    view = wide[tuple(slice(1, None, 2) for _ in x.shape)]
    view[...] = x
    return view


def padded(x):
    wide = np.full((*x.shape[:-1], x.shape[-1] + 5), np.nan, x.dtype)
    view = wide[..., 3:-2]
    view[...] = x
    return view


def backwards(x):
    return x[::-1, ::-1].copy()[::-1, ::-1] if x.ndim > 1 else x[::-1].copy()[::-1]


def between_elements(x):
    """At an address that is no multiple of an element's size."""
    view = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def repeated(x):
    return np.broadcast_to(x[:1], x.shape)


LAYOUTS = [fortran, sliced, padded, backwards, between_elements, repeated]
