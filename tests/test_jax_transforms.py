"""Gradients and batches of fused functions inside JAX's transformations, against JAX's own."""

from __future__ import annotations

import numpy as np
import pytest

import kfusion as kf

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax_functions import RNG, B, C, W, X, block, close, plain_block, plain_rows, rows, squares  # noqa: E402

pytestmark = [
    pytest.mark.skipif(jax.__version_info__ < (0, 8), reason="needs JAX 0.8"),
    pytest.mark.skipif(jax.default_backend() != "cpu", reason="of JAX on the CPU"),
]


class TestGradients:
    @pytest.mark.parametrize(("f", "plain", "args"), [(rows, plain_rows, (X, B)), (block, plain_block, (X, W, C))])
    def test_reverse(self, f, plain, args):
        numbers = tuple(range(len(args)))
        wanted = jax.grad(squares(plain), numbers)(*args)
        close(jax.grad(squares(f), numbers)(*args), wanted, rtol=1e-4, atol=1e-4)
        close(jax.jit(jax.grad(squares(f), numbers))(*args), wanted, rtol=1e-4, atol=1e-4)

    @pytest.mark.slow
    def test_forward_and_second(self):
        close(jax.jvp(rows, (X, B), (X + 1, B))[1], jax.jvp(plain_rows, (X, B), (X + 1, B))[1])
        close(*(jax.jacfwd(g, 1)(X, B) for g in (rows, plain_rows)))
        close(*(jax.hessian(squares(g), 1)(X, B) for g in (rows, plain_rows)), rtol=1e-4, atol=1e-4)

    def test_through_scan_and_checkpoint(self):
        def total(f):
            step = jax.checkpoint(lambda c, x: (f(c, B) + x, None))
            return lambda x: (jax.lax.scan(step, x, jnp.stack([x, x]))[0] ** 2).sum()

        close(*(jax.jit(jax.grad(total(g)))(X) for g in (rows, plain_rows)), rtol=1e-4, atol=1e-4)

    def test_what_is_stopped_stays_so(self):
        f = kf.fuse(lambda x: x * kf.stop_gradient(np.exp(x)))
        plain = lambda x: x * jax.lax.stop_gradient(jnp.exp(x))  # noqa: E731
        for g in (lambda h: jax.grad(squares(h)), lambda h: jax.grad(lambda x: jax.grad(squares(h))(x).sum())):
            close(g(f)(B), g(plain)(B), rtol=1e-4)
            close(jax.grad(lambda x, f=f: squares(jax.vmap(f))(x))(X), jax.grad(squares(plain))(X), rtol=1e-4)

    def test_integers_have_none(self):
        ids = jnp.array([[1, 2, 1], [5, -1, 0]])
        f, plain = kf.fuse(lambda t, i: np.tanh(kf.take(t, i, 0))), lambda t, i: jnp.tanh(t[i])
        close(*(jax.jit(jax.grad(squares(g)))(X, ids) for g in (f, plain)))
        close(*(jax.vmap(jax.grad(squares(g)), (None, 0))(X, ids) for g in (f, plain)))

    def test_outputs_that_are_not_used(self):
        f = kf.fuse(lambda x: (np.exp(x), np.sum(x), np.argmax(x)))
        close(jax.grad(lambda x: f(x)[1] ** 2)(X), jnp.full_like(X, 2 * X.sum()))


class TestVmap:
    @pytest.mark.parametrize("axes", [(0, None), (1, None), (None, 0), (2, 1)])
    def test_axes(self, axes):
        x = X if axes[0] is None else jnp.stack([X, X * 2, -X], axes[0])
        b = B if axes[1] is None else jnp.stack([B, B + 1, B * 3], axes[1])
        close(*(jax.vmap(g, axes)(x, b) for g in (rows, plain_rows)))
        close(*(jax.jit(jax.vmap(jax.grad(squares(g), (0, 1)), axes))(x, b) for g in (rows, plain_rows)), rtol=1e-4)
        close(*(jax.vmap(g, axes, out_axes=1)(x, b) for g in (rows, plain_rows)))

    @pytest.mark.parametrize(
        "f",
        [
            lambda m, x, y, i: m.transpose(x, (1, 0)) + m.reshape(y, (3, 1)),
            lambda m, x, y, i: m.concatenate([x[:, ::-1], x[1:, :], m.reshape(y, (1, 3))], axis=0),
            lambda m, x, y, i: m.take(x, i, axis=1) + m.take(y, i),
            lambda m, x, y, i: m.take_along_axis(x, m.reshape(i, (1, 2)), axis=1),
            lambda m, x, y, i: m.matmul(x, y),
            lambda m, x, y, i: m.matmul(m.broadcast_to(x, (2, 4, 3)), m.reshape(y, (3, 1))),
            lambda m, x, y, i: m.matmul(y, y) + m.max(x) + m.sum(x, axis=0),
            lambda m, x, y, i: m.where(x > y, m.argmax(x, axis=1)[:, None], -1) * 1.0,
        ],
    )
    def test_operations(self, f):
        """All ways in which arguments have the axis, against a loop."""
        x = RNG.normal(size=(3, 4, 3)).astype("float32")
        y = RNG.normal(size=(3, 3)).astype("float32")
        i = RNG.integers(0, 3, (3, 2)).astype("int32")
        fused = kf.fuse(lambda x, y, i: f(np, x, y, i))
        for flags in (1, 6, 7):
            mapped = [flags >> k & 1 for k in range(3)]
            args = [a if m else a[0] for a, m in zip((x, y, i), mapped, strict=True)]
            got = jax.vmap(fused, [0 if m else None for m in mapped])(*map(jnp.asarray, args))
            for k in range(3):
                want = f(np, *(a[k] if m else a for a, m in zip(args, mapped, strict=True)))
                np.testing.assert_allclose(got[k], want, rtol=1e-5, atol=1e-5)

    def test_twice(self):
        x = jnp.stack([jnp.stack([X, X + 1]), jnp.stack([X * 2, -X])])
        close(*(jax.vmap(jax.vmap(g, (0, None)), (1, None))(x, B) for g in (rows, plain_rows)))
