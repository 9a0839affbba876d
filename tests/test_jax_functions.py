"""Functions of JAX among those of kfusion's, in one traced function."""

from __future__ import annotations

import numpy as np
import pytest

import kfusion as kf

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax_functions import B, X, close, squares  # noqa: E402

pytestmark = [
    pytest.mark.skipif(jax.__version_info__ < (0, 8), reason="needs JAX 0.8"),
    pytest.mark.skipif(jax.default_backend() != "cpu", reason="of JAX on the CPU"),
]


class TestFunctionsOfJax:
    @pytest.mark.parametrize(
        "f",
        [
            lambda x: jax.nn.gelu(x, approximate=False) + jax.nn.relu(x) * jax.nn.silu(x),
            lambda x: jax.nn.log_softmax(jnp.where(x > 0, x, x // 2)),
            lambda x: jnp.flip(jnp.pad(x, ((1, 2), (0, 3)), constant_values=2.0), 0)[:, 1:7],
            lambda x: jnp.einsum("ij,kj->ik", x, x) + jnp.tril(x @ x.T),
            lambda x: kf.softmax(jnp.exp(x)) * jax.scipy.special.erfc(x) + jnp.fmod(x, 0.5),
            lambda x: x[jnp.array([[0, 3], [1, -1]])] + jnp.take(x, jnp.array([1, 9]), axis=0, mode="clip")[0],
            lambda x: (jnp.split(x, 3, axis=1), jnp.linalg.norm(x), jnp.clip(x, -1, 1) ** 3),
            lambda x: jax.vmap(kf.fuse(lambda r: r - jnp.max(r)))(x),
            lambda x: jax.grad(lambda x: (kf.softmax(x) ** 2).sum())(x),
            lambda x: jnp.linspace(0, 1, 9) * x + jax.nn.one_hot(jnp.arange(6), 9),
        ],
    )
    def test_calls(self, f):
        want = f(X)
        close(kf.fuse(f)(X), want)
        close(jax.jit(kf.fuse(f))(X), want)
        close(jax.grad(squares(kf.fuse(f)))(X), jax.grad(squares(f))(X), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("of", [jax.lax.div, jax.lax.rem])
    def test_integers_are_cut(self, of):
        x = jnp.arange(-7, 8, dtype="int32")
        for y in (3, -3):
            close(jax.jit(kf.fuse(lambda x, y=y: of(x, jnp.int32(y))))(x), of(x, jnp.int32(y)))

    def test_integers_by_zero_and_of_floats(self):
        x, y = jnp.array([7, -7, 0, 5, -5], "int32"), jnp.array([0, 0, 0, 3, 3], "int32")
        for of in (jnp.floor_divide, jax.lax.div, jax.lax.rem):
            np.testing.assert_array_equal(jax.jit(kf.fuse(lambda x, y, of=of: of(x, y)))(x, y), of(x, y))
        for dtype in ("float32", "bfloat16"):
            v = jnp.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 1.5, -1.5], dtype)
            to = lambda v: jax.lax.convert_element_type(v, "int32")  # noqa: E731
            np.testing.assert_array_equal(jax.jit(kf.fuse(to))(v), to(v))

    @pytest.mark.parametrize(
        "f",
        [
            lambda x: jnp.fmod(x, 3) + jnp.mod(6.0, x - 1.5),
            lambda x: jax.nn.relu6(x) + jnp.abs(x),
            lambda x: jax.lax.clamp(jnp.float32(0), x, jnp.float32(6)),
            lambda x: jax.nn.softplus(x) + jnp.logaddexp2(x, x),
            lambda x: jax.scipy.special.xlogy(x, jnp.abs(x) + 2),
        ],
    )
    def test_gradients_at_corners(self, f):
        x = jnp.array([0, -0.0, 3, 6, -6, 7, 4.5], "float32")
        close(kf.fuse(f)(x), f(x))
        close(jax.grad(lambda x: kf.fuse(f)(x).sum())(x), jax.grad(lambda x: f(x).sum())(x), rtol=1e-4)

    def test_it_is_one_kernel(self):
        f = kf.fuse(lambda x: jax.nn.softmax(jnp.tanh(x) * 2))
        assert jax.jit(f).lower(X).as_text().count("custom_call") == 1

    def test_a_gradient_of_the_users_own_is_not_lost(self):
        @jax.custom_jvp
        def odd(x):
            return x * 2

        odd.defjvp(lambda primals, tangents: (odd(primals[0]), tangents[0] * 7))
        f = kf.fuse(lambda x: odd(x) + 1)
        close(jax.jit(f)(X), X * 2 + 1)
        with pytest.raises(TypeError, match="odd has a gradient of its own"):
            jax.grad(squares(f))(X)
        with pytest.raises(TypeError, match="odd has a gradient of its own"):
            jax.grad(squares(jax.vmap(f)))(X)

    @pytest.mark.parametrize("call", [lambda f: f(X), lambda f: jax.jit(f)(X)])
    def test_what_has_no_kernel_is_named(self, call):
        with pytest.raises(TypeError, match=r"becomes cumsum, for which kfusion has no kernel(.|\n)*outside"):
            call(kf.fuse(lambda x: jnp.cumsum(x, axis=1)))


def test_calls_of_functions_of_jax():
    g = kf.fuse(lambda x, b: np.tanh(kf.call(lambda a, c: jnp.cumsum(a * c, axis=1), np.exp(x), b, result=x)) + b)

    def plain(x, b):
        return jnp.tanh(jnp.cumsum(jnp.exp(x) * b, axis=1)) + b

    close(jax.jit(g)(X, B), plain(X, B))
    with pytest.raises(TypeError, match="has no adjoint"):
        jax.grad(squares(g))(X, B)
    xs = jnp.stack([X, X + 1])
    close(*(jax.vmap(h, (0, None))(xs, B) for h in (g, plain)), rtol=1e-4, atol=1e-4)
