"""Fused functions inside JAX's transformations, on the CPU: custom calls that XLA runs without Python."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import kfusion as kf

jax = pytest.importorskip("jax")
jnp = jax.numpy

pytestmark = [
    pytest.mark.skipif(jax.__version_info__ < (0, 8), reason="needs JAX 0.8"),
    pytest.mark.skipif(jax.default_backend() != "cpu", reason="of JAX on the CPU"),
]

RNG = np.random.default_rng(5)
X = jnp.asarray(RNG.normal(size=(6, 9)), "float32")
B = jnp.asarray(RNG.normal(size=9), "float32")


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


W = jnp.asarray(RNG.normal(size=(9, 5)), "float32")
C = jnp.asarray(RNG.normal(size=5), "float32")


def close(got, want, rtol=1e-5, atol=2e-5):
    """Structures of arrays of the same shapes and dtypes."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.asarray(a, "float64"), np.asarray(b, "float64"), rtol=rtol, atol=atol)


def squares(f):
    return lambda *args: sum((y.astype("float32") ** 2).sum() for y in jax.tree.leaves(f(*args)))


class TestJit:
    def test_it_is_one_custom_call(self):
        text = jax.jit(rows).lower(X, B).as_text()
        assert text.count("custom_call") == 1
        assert "@kfusion_call" in text
        assert "callback" not in text
        close(jax.jit(rows)(X, B), plain_rows(X, B))

    def test_every_element_is_written(self):
        from kfusion import _core

        _core.poison_memory(True)
        try:
            close(jax.jit(block)(X, W, C), plain_block(X, W, C))
        finally:
            _core.poison_memory(False)

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


class TestGradients:
    @pytest.mark.parametrize(("f", "plain", "args"), [(rows, plain_rows, (X, B)), (block, plain_block, (X, W, C))])
    def test_reverse(self, f, plain, args):
        numbers = tuple(range(len(args)))
        wanted = jax.grad(squares(plain), numbers)(*args)
        close(jax.grad(squares(f), numbers)(*args), wanted, rtol=1e-4, atol=1e-4)
        close(jax.jit(jax.grad(squares(f), numbers))(*args), wanted, rtol=1e-4, atol=1e-4)

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


def test_calls_of_functions_of_jax():
    g = kf.fuse(lambda x, b: np.tanh(kf.call(lambda a, c: jnp.cumsum(a * c, axis=1), np.exp(x), b, result=x)) + b)

    def plain(x, b):
        return jnp.tanh(jnp.cumsum(jnp.exp(x) * b, axis=1)) + b

    close(jax.jit(g)(X, B), plain(X, B))
    with pytest.raises(TypeError, match="has no adjoint"):
        jax.grad(squares(g))(X, B)
    xs = jnp.stack([X, X + 1])
    close(*(jax.vmap(h, (0, None))(xs, B) for h in (g, plain)), rtol=1e-4, atol=1e-4)


SEVERAL = """
import jax, jax.numpy as jnp, numpy as np, kfusion as kf
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

def plain(x, b, w): return jax.nn.softmax(x + b) @ w * 2
f = kf.fuse(lambda x, b, w: np.matmul(kf.softmax(x + b), w) * 2)
rng = np.random.default_rng(1)
x, b, w = (jnp.asarray(rng.normal(size=s), "float32") for s in ((8, 6), (6,), (6, 5)))
close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
loss = lambda f: jax.jit(jax.grad(lambda *a: (f(*a) ** 2).sum(), (0, 1, 2)))
mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
for checks in (True, False):
    mapped = jax.shard_map(f, mesh=mesh, in_specs=(P("i"), P(), P()), out_specs=P("i"), check_vma=checks)
    close(jax.jit(mapped)(x, b, w), plain(x, b, w))
    for got, want in zip(loss(mapped)(x, b, w), loss(plain)(x, b, w), strict=True):
        close(got, want)

cut = jax.device_put(x, NamedSharding(mesh, P("i", None)))
compiled = jax.jit(f).lower(cut, b, w).compile()
assert "all-gather" not in compiled.as_text(), compiled.as_text()
assert "[2,6]" in compiled.as_text()  # a device's own rows
y = compiled(cut, b, w)
assert y.sharding.spec == P("i", None), y.sharding
close(y, plain(x, b, w))
across = jax.device_put(x, NamedSharding(mesh, P(None, None)))
close(jax.jit(f)(across, b, w), plain(x, b, w))
for got, want in zip(loss(f)(cut, b, w), loss(plain)(x, b, w), strict=True):
    close(got, want)
columns = jax.device_put(jnp.tile(x, (1, 2)), NamedSharding(mesh, P(None, "i")))  # what rows are reduced over
g = jax.jit(kf.fuse(lambda x: x - np.max(x, axis=1, keepdims=True)))
close(g(columns), jnp.tile(x, (1, 2)) - x.max(1, keepdims=True))
counted = jax.jit(kf.fuse(lambda x: x + kf.iota((8, 6), 0, "float32")))
close(counted(cut), x + jnp.arange(8.0)[:, None])
odd = jax.device_put(x[:4], NamedSharding(mesh, P("i", None)))
close(jax.jit(f)(odd, b, w), plain(x[:4], b, w))
with jax.set_mesh(jax.make_mesh((4,), ("i",), axis_types=(AxisType.Explicit,))):
    y = jax.jit(f)(jax.device_put(x, P("i", None)), jax.device_put(b, P()), jax.device_put(w, P()))
    assert jax.typeof(y).sharding.spec == P("i", None), jax.typeof(y)
    close(np.asarray(y), plain(x, b, w))
square = jax.device_put(x[:4, :4], NamedSharding(mesh, P("i", None)))  # a factor twice in an array
for twice in (lambda x: x @ x.T, lambda x: x + x.T, lambda x: x.T @ x):
    close(jax.jit(kf.fuse(twice))(square), twice(x[:4, :4]))
    total = lambda f: jax.jit(jax.grad(lambda x: (f(x) ** 2).sum()))
    close(total(kf.fuse(twice))(square), total(twice)(x[:4, :4]))
added = lambda x, b, w: jnp.tanh(x + b) * x
with jax.set_mesh(jax.make_mesh((4,), ("i",), axis_types=(AxisType.Explicit,))):
    given = [jax.device_put(a, P(*c)) for a, c in ((x, ("i", None)), (b, ()), (w, ()))]
    made = [np.asarray(g) for g in loss(kf.fuse(lambda x, b, w: np.tanh(x + b) * x))(*given)[:2]]
for got, want in zip(made, loss(added)(x, b, w)):
    close(got, want)
one = jax.device_put(x, jax.devices()[2])
assert jax.jit(lambda x: f(x, np.asarray(b), np.asarray(w)))(one).devices() == {jax.devices()[2]}
print("done")
"""


def in_a_process(program, **environment):
    path = os.pathsep.join([str(Path(kf.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"} | environment,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


@pytest.mark.slow
def test_several_devices():
    assert in_a_process(SEVERAL, XLA_FLAGS="--xla_force_host_platform_device_count=4") == "done\n"


KEPT = """
import sys, jax, jax.numpy as jnp, numpy as np, pickle
from jax.experimental import serialize_executable as kept
import kfusion as kf
x = jnp.arange(12.0).reshape(3, 4)
if sys.argv[1] == "write":
    f = kf.fuse(lambda x: np.exp(-x) @ np.ones((4, 2), "float32"))
    made = kept.serialize(jax.jit(lambda x: f(x)).lower(x).compile())
    open(sys.argv[2], "wb").write(pickle.dumps(made))
else:
    from kfusion._jax import primitive  # which tells XLA of the handler
    f = kept.deserialize_and_load(*pickle.loads(open(sys.argv[2], "rb").read()))
    np.testing.assert_allclose(f(x), np.exp(-np.asarray(x)) @ np.ones((4, 2)), rtol=1e-5)
    print("done")
"""


@pytest.mark.slow
def test_an_executable_of_another_process(tmp_path):
    """The custom call has all that it is made of."""
    for mode in ("write", "read"):
        program = f"import sys; sys.argv[1:] = [{mode!r}, {str(tmp_path / 'executable')!r}]\n" + KEPT
        said = in_a_process(program)
    assert said == "done\n"
