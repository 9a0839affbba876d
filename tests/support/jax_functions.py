"""Functions of JAX's arrays, fused and as JAX writes them, for the tests of its transformations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import kfusion as kf

RNG = np.random.default_rng(5)
X = jnp.asarray(RNG.normal(size=(6, 9)), "float32")
B = jnp.asarray(RNG.normal(size=9), "float32")
W = jnp.asarray(RNG.normal(size=(9, 5)), "float32")
C = jnp.asarray(RNG.normal(size=5), "float32")


@kf.fuse
def rows(x, b):
    return np.tanh(kf.softmax(x * 2.5 + b)) * x


def plain_rows(x, b):
    return jnp.tanh(jax.nn.softmax(x * 2.5 + b)) * x


@kf.fuse
def block(x, w, b):
    return kf.softmax(np.matmul(kf.layernorm(x), w) + b) @ w.T


def plain_block(x, w, b):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return jax.nn.softmax(scaled @ w + b) @ w.T


def close(got, want, rtol=1e-5, atol=2e-5):
    """Structures of arrays of the same shapes and dtypes."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.asarray(a, "float64"), np.asarray(b, "float64"), rtol=rtol, atol=atol)


def squares(f):
    return lambda *args: sum((y.astype("float32") ** 2).sum() for y in jax.tree.leaves(f(*args)))
