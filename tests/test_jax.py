"""Fused functions inside JAX's transformations, on the CPU: custom calls that XLA runs without Python."""

from __future__ import annotations

import threading

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


class TestJit:
    def test_it_is_one_custom_call(self):
        text = jax.jit(rows).lower(X, B).as_text()
        assert text.count("custom_call") == 1
        assert "@kfusion_call" in text
        assert "callback" not in text
        close(jax.jit(rows)(X, B), plain_rows(X, B))

    def test_every_element_is_written(self):
        from kfusion import _core

        _core.testing.poison_memory(True)
        try:
            close(jax.jit(block)(X, W, C), plain_block(X, W, C))
        finally:
            _core.testing.poison_memory(False)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32", "bool"])
    def test_dtypes(self, dtype):
        x = jnp.asarray(RNG.integers(0, 2, (5, 7)), dtype)
        total, more = jax.jit(kf.fuse(lambda x: (np.max(x, axis=1), x + x)))(x)
        close(total, jnp.max(x, axis=1))
        close(more, x + x)

    def test_64_bits(self):
        with jax.enable_x64(True):
            x = jnp.asarray(RNG.normal(size=(4, 6)))
            assert x.dtype == "float64"
            close(jax.jit(rows)(x, x[0]), plain_rows(x, x[0]), rtol=1e-13, atol=1e-14)
            assert jax.jit(kf.fuse(lambda x: np.argmax(x, axis=1)))(x).dtype == "int64"
        with jax.enable_x64(False):
            found = jax.jit(kf.fuse(lambda x: np.argmax(x, axis=1)))(X)
        assert found.dtype == "int32"
        np.testing.assert_array_equal(found, np.argmax(X, axis=1))

    @pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (1, 1), (2, 3, 4)])
    def test_shapes(self, shape):
        x = jnp.asarray(RNG.normal(size=shape), "float32")
        close(jax.jit(kf.fuse(lambda x: np.exp(x) * 2))(x), jnp.exp(x) * 2)
        close(jax.jit(kf.fuse(lambda x: np.sum(x)))(x), jnp.sum(x))

    def test_structures_and_numbers(self):
        @kf.fuse
        def f(parts, scale, *, power=2, name=None):
            assert name == "it"
            return {"a": parts["x"] * scale, "b": (parts["y"][0] ** power, 3)}

        made = jax.jit(lambda x, y: f({"x": x, "y": [y]}, 0.5, name="it"))(X, B)
        close(made["a"], X * 0.5)
        close(made["b"][0], B**2)
        assert made["b"][1] == 3

    def test_numbers_that_jit_makes_arrays_of(self):
        x = X.astype("bfloat16")
        got = jax.jit(kf.fuse(lambda x, scale: x * scale))(x, 0.5)
        close(got, x * 0.5)

    @pytest.mark.parametrize("dtype", ["int8", "uint8"])
    def test_dtypes_without_kernels(self, dtype):
        with pytest.raises(NotImplementedError, match=f"kernels have no {dtype}"):
            jax.jit(kf.fuse(lambda x: x.astype(dtype)))(X)

    def test_captured_arrays_and_tracers(self):
        weight = np.arange(9, dtype="float32")
        close(jax.jit(kf.fuse(lambda x: x * weight))(X), X * weight)
        close(jax.jit(lambda x, b: kf.fuse(lambda y: np.exp(y) + b)(x))(X, B), jnp.exp(X) + B)

    @pytest.mark.parametrize(
        "f",
        [
            lambda x: x + np.arange(9),
            lambda x: x * np.arange(9.0),
            lambda x: x[:, np.array([3, 1, 0])],
            lambda x: x @ np.eye(9)[::-1].T,
        ],
    )
    def test_captured_arrays_of_64_bits(self, f):
        fused = kf.fuse(f)
        with jax.enable_x64(False):
            close(jax.jit(fused)(X), f(X))
            close(jax.vmap(fused)(X[None]), f(X)[None])
            close(jax.grad(squares(fused))(X), jax.grad(squares(f))(X), rtol=1e-4, atol=1e-4)

    def test_captured_tracers_among_arrays(self):
        with pytest.raises(kf.TraceError, match=r"names an array that JAX traces(.|\n)*pass it as an argument"):
            jax.grad(lambda b: (kf.fuse(lambda x: x * b)(X) ** 2).sum())(B)
        close(*(jax.grad(lambda b, f=f: squares(f(lambda x: x * b))(b))(B) for f in (kf.fuse, lambda f: f)))

    def test_views_of_products(self):
        x, w = X.astype("bfloat16"), W.astype("bfloat16")
        close(jax.jit(kf.fuse(lambda x, w: (x @ w).T))(x, w), (x @ w).T, rtol=1e-2, atol=1e-2)

    def test_functions_of_one_call(self):
        close(jax.jit(kf.softmax)(X), jax.nn.softmax(X))
        close(jax.jit(lambda x, b: kf.where(x > b, x, 0.0))(X, B), jnp.where(X > B, X, 0.0))

    def test_in_control_flow(self):
        xs = jnp.stack([X, X * 2, X - 1])

        def step(f):
            return lambda c, x: (f(c, B) * 0.5 + x, c.sum())

        close(jax.lax.scan(step(rows), X, xs), jax.lax.scan(step(plain_rows), X, xs))
        looped = [
            jax.jit(lambda x, f=f: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, f(c[1], B)), (0, x)))(X)
            for f in (rows, plain_rows)
        ]
        close(*looped)
        for which in (True, False):
            close(
                jax.jit(lambda p, x: jax.lax.cond(p, lambda x: rows(x, B), lambda x: x, x))(which, X),
                plain_rows(X, B) if which else X,
            )

    def test_nested_and_shared(self):
        twice = jax.jit(lambda x: rows(jax.jit(rows)(x, B), B))
        close(twice(X), plain_rows(plain_rows(X, B), B))

    def test_donated_and_committed(self):
        x = jax.device_put(np.asarray(X), jax.devices("cpu")[0])
        assert x.committed
        want = np.asarray(plain_rows(X, B))
        got = jax.jit(rows, donate_argnums=0)(x, B)
        close(got, want)
        assert got.committed

    def test_two_threads(self):
        f = jax.jit(block)
        inputs = [X * k for k in range(1, 5)]
        wanted = [np.asarray(plain_block(x, W, C)) for x in inputs]
        wrong = []

        def work(k):
            for _ in range(20):
                if not np.allclose(f(inputs[k], W, C), wanted[k], rtol=1e-4, atol=1e-4):
                    wrong.append(k)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong

    def test_products_without_kernels_are_xlas(self):
        @kf.fuse
        def f(x, w):
            return kf.relu(kf.conv2d(np.tanh(x), w, stride=(2, 2), padding=(1, 1), groups=2)) * 2

        def plain(x, w):
            made = jax.lax.conv_general_dilated(jnp.tanh(x), w, (2, 2), ((1, 1), (1, 1)), feature_group_count=2)
            return jax.nn.relu(made) * 2

        x = jnp.asarray(RNG.normal(size=(2, 4, 7, 7)), "float32")
        w = jnp.asarray(RNG.normal(size=(6, 2, 3, 3)), "float32")
        close(jax.jit(f)(x, w), plain(x, w))
        close(*(jax.jit(jax.grad(squares(g), (0, 1)))(x, w) for g in (f, plain)), rtol=1e-4, atol=1e-3)
        xs, ws = jnp.stack([x, x + 1]), jnp.stack([w, w * 2])
        for axes in ((0, None), (None, 0), (0, 0)):
            args = [xs if axes[0] == 0 else x, ws if axes[1] == 0 else w]
            close(*(jax.vmap(g, axes)(*args) for g in (f, plain)), rtol=1e-4, atol=1e-4)


class TestErrors:
    def test_of_kernels(self):
        f = jax.jit(kf.fuse(lambda x, i: kf.take(x, i, 0)))
        with pytest.raises(Exception, match="take: index 100 is out of bounds for axis 0 with size 6"):
            f(X, jnp.array([100]))
        close(f(X, jnp.array([5])), X[5:])  # and the next call runs

    def test_of_traces(self):
        with pytest.raises(TypeError, match="immutable"):
            jax.jit(lambda x: rows(x, B, out=x))(X)
        with pytest.raises(TypeError, match="uint8"):
            jax.jit(kf.fuse(lambda x: x + x))(X.astype("uint8"))
        with pytest.raises(ValueError, match="broadcast"):
            jax.jit(rows)(X, jnp.ones(4))

    def test_other_libraries(self):
        torch = pytest.importorskip("torch")
        with pytest.raises(TypeError, match="b must be an array of JAX or NumPy"):
            jax.jit(lambda x: rows(x, torch.ones(9)))(X)

    def test_random_numbers_by_seed(self):
        f = kf.fuse(lambda x: kf.dropout(x, 0.5, seed=3))
        close(jax.jit(f)(X), f(X))

    def test_of_calls_of_the_library(self):
        f = kf.fuse(lambda x: np.sort(np.exp(x), axis=1) + 1)
        with pytest.raises(NotImplementedError, match=r"numpy.sort is a function of another array library than JAX"):
            jax.jit(f)(X)
