"""`kf.fuse`: the function's results from its plan's kernels."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import kfusion as kf


@kf.fuse
def chain(x, b, scale=2.0):
    """A chain of elementwise calls."""
    return kf.log(kf.relu(x + b) * scale + 1)


def expected(x, b, scale=2.0):
    return np.log(np.maximum(x + b, 0) * scale + 1)


def test_it_computes_what_the_function_says(rng):
    x, b = rng.standard_normal((5, 7)), rng.standard_normal(7)
    np.testing.assert_allclose(chain(x, b), expected(x, b), rtol=1e-12)
    np.testing.assert_allclose(chain(x, b=b, scale=3.0), expected(x, b, 3.0), rtol=1e-12)
    np.testing.assert_allclose(chain.unfused(x, b), expected(x, b), rtol=1e-12)


def test_it_looks_like_the_function():
    assert chain.__name__ == "chain"
    assert chain.__doc__ == "A chain of elementwise calls."
    assert repr(chain) == "<kfusion.fuse: chain(x, b, scale=2.0)>"
    assert pickle.loads(pickle.dumps(chain)) is chain


def test_a_name_that_fuse_adds_is_refused():
    with pytest.raises(kf.TraceError, match="parameter named out"):
        kf.fuse(lambda x, out: x)
