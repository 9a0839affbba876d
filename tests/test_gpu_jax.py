"""Fused functions inside JAX's transformations, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import kfusion as kf

jax = pytest.importorskip("jax")
jnp = jax.numpy

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def on_a_gpu():
    """JAX makes the last GPU the current one when it first looks for them."""
    if not torch.cuda.is_available():
        pytest.skip("torch has no GPU")
    current = torch.cuda.current_device()
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")
    yield
    torch.cuda.set_device(current)


RNG = np.random.default_rng(7)


def plain(x, b):
    return jnp.tanh(jax.nn.softmax(x * 2.5 + b)) * x


@kf.fuse
def rows(x, b):
    return np.tanh(kf.softmax(x * 2.5 + b)) * x


def squares(f):
    return lambda *args: (f(*args).astype("float32") ** 2).sum()


def close(got, want, tolerance):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.asarray(a, "float64"), np.asarray(b, "float64"), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 5e-2), ("float16", 1e-2)])
@pytest.mark.parametrize("shape", [(5, 9), (512, 1024), (0, 4), (3, 8193)])
def test_transformations(dtype, tolerance, shape):
    x = jnp.asarray(RNG.normal(size=shape), dtype)
    b = jnp.asarray(RNG.normal(size=shape[1]), dtype)
    text = jax.jit(rows).lower(x, b).as_text()
    assert "@kfusion_call" in text
    assert "callback" not in text
    wide = x.astype("float32"), b.astype("float32")  # JAX's own gradients round every step to the dtype
    close(jax.jit(rows)(x, b), plain(*wide).astype(dtype), tolerance)
    close(jax.jit(jax.grad(squares(rows)))(x, b), jax.grad(squares(plain))(*wide).astype(dtype), tolerance)
    xs = jnp.stack([x, x * 2])
    want = jax.vmap(plain, (0, None))(xs.astype("float32"), wide[1]).astype(dtype)
    close(jax.jit(jax.vmap(rows, (0, None)))(xs, b), want, tolerance)


def test_in_the_order_of_xlas_stream():
    """Steps of a loop read what the step before has stored, also when nothing waits between."""
    x = jnp.asarray(RNG.normal(size=(2048, 1024)), "float32")

    def loop(f):
        return jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda i, c: f(c, x[0]) + x * 0.1, x))

    close(loop(rows)(x), loop(plain)(x), 1e-3)


def test_products():
    x, w = (jnp.asarray(RNG.normal(size=s) / 16, "bfloat16") for s in ((256, 512), (512, 128)))
    f = kf.fuse(lambda x, w: kf.relu(np.matmul(x, w)) * 2)
    close(jax.jit(f)(x, w), (jax.nn.relu(x @ w) * 2).astype("bfloat16"), 5e-2)


def test_several_gpus():
    if len(jax.devices()) < 2:
        pytest.skip("needs two GPUs")
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jnp.asarray(RNG.normal(size=(64, 256)), "float32")
    cut = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i", None)))
    close(jax.jit(rows)(cut, x[0]), plain(x, x[0]), 1e-4)
