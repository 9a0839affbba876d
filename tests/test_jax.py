"""Fused functions and JAX, on the CPU: inside its transformations, as custom calls that XLA runs without Python, beside
JAX's own; and functions of JAX among those of kfusion's, in and outside of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from sweeps import refusals, sweep

jax = pytest.importorskip("jax")
jnp = jax.numpy

pytestmark = [
    pytest.mark.skipif(jax.__version_info__ < (0, 8), reason="needs JAX 0.8"),
    pytest.mark.skipif(jax.default_backend() != "cpu", reason="of JAX on the CPU"),
]
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


BOTH = ((rows, plain_rows), (block, plain_block))


def same(call, *fs, rtol=1e-5, atol=2e-5):
    """call(f) gives the same of both functions."""
    close(*map(call, fs), rtol=rtol, atol=atol)


def summed(f):
    return lambda x: f(x).sum()


# ---- custom calls ---------------------------------------------------------------------------------------------------


def test_a_function_is_one_custom_call_that_writes_every_element():
    text = jax.jit(rows).lower(X, B).as_text()
    assert (text.count("custom_call"), "@kfusion_call" in text, "callback" in text) == (1, True, False)
    same(lambda f: jax.jit(f)(X, B), *BOTH[0])
    of_jax = kf.fuse(lambda x: jax.nn.softmax(jnp.tanh(x) * 2))
    assert jax.jit(of_jax).lower(X).as_text().count("custom_call") == 1
    _core.testing.poison_memory(True)
    try:
        same(lambda f: jax.jit(f)(X, W, C), *BOTH[1])
    finally:
        _core.testing.poison_memory(False)


def test_dtypes_and_shapes():
    def of_dtype(dtype):
        x = jnp.asarray(RNG.integers(0, 2, (5, 7)), dtype)
        close(jax.jit(kf.fuse(lambda x: (np.max(x, axis=1), x + x)))(x), (jnp.max(x, axis=1), x + x))

    def of_shape(*shape):
        x = jnp.asarray(RNG.normal(size=shape), "float32")
        close(jax.jit(kf.fuse(lambda x: (np.exp(x) * 2, np.sum(x))))(x), (jnp.exp(x) * 2, jnp.sum(x)))

    sweep(of_dtype, [(dtype,) for dtype in ("float16", "bfloat16", "float32", "int32", "bool")])
    sweep(of_shape, [(), (0,), (0, 3), (3, 0), (1, 1), (2, 3, 4)])
    place = kf.fuse(lambda x: np.argmax(x, axis=1))
    with jax.enable_x64(True):
        x = jnp.asarray(RNG.normal(size=(4, 6)))
        assert x.dtype == "float64"
        same(lambda f: jax.jit(f)(x, x[0]), *BOTH[0], rtol=1e-13, atol=1e-14)
        assert jax.jit(place)(x).dtype == "int64"
    with jax.enable_x64(False):
        found = jax.jit(kf.fuse(lambda x: np.argmax(x, axis=1)))(X)
    assert found.dtype == "int32"
    np.testing.assert_array_equal(found, np.argmax(X, axis=1))


def test_arguments_and_results():
    @kf.fuse
    def f(parts, scale, *, power=2, name=None):
        assert name == "it"
        return {"a": parts["x"] * scale, "b": (parts["y"][0] ** power, 3)}

    made = jax.jit(lambda x, y: f({"x": x, "y": [y]}, 0.5, name="it"))(X, B)
    close((made["a"], made["b"][0]), (X * 0.5, B**2))
    assert made["b"][1] == 3
    x, w = X.astype("bfloat16"), W.astype("bfloat16")
    close(jax.jit(kf.fuse(lambda x, scale: x * scale))(x, 0.5), x * 0.5)  # numbers that jit makes arrays of
    close(jax.jit(kf.fuse(lambda x, w: (x @ w).T))(x, w), (x @ w).T, rtol=1e-2, atol=1e-2)
    turned = lambda x: x.T[::-1, 1:].sum(0)  # noqa: E731
    same(lambda f: jax.vmap(jax.grad(squares(f)))(jnp.stack([X, X])), kf.fuse(turned), turned)
    for viewed in (
        lambda x: jnp.concatenate([x > 0, x < 1]).T,
        lambda x: jnp.sin(jnp.concatenate([x, x])).T[1:],  # of maps of what is stored in an order of its own
        lambda x: jnp.sin((x @ x.T).T).T,
    ):
        same(lambda f: (jax.jit(f)(X), jax.grad(squares(f))(X)), kf.fuse(viewed), viewed)
    close(jax.jit(kf.softmax)(X), jax.nn.softmax(X))
    close(jax.jit(lambda x, b: kf.where(x > b, x, 0.0))(X, B), jnp.where(X > B, X, 0.0))
    dropped = kf.fuse(lambda x: kf.dropout(x, 0.5, seed=3))
    close(jax.jit(dropped)(X), dropped(X))
    x = jax.device_put(np.asarray(X), jax.devices("cpu")[0])
    want = np.asarray(plain_rows(X, B))
    got = jax.jit(rows, donate_argnums=0)(x, B)
    close(got, want)
    assert got.committed


def test_captured_arrays(some):
    weight = np.arange(9, dtype="float32")
    close(jax.jit(kf.fuse(lambda x: x * weight))(X), X * weight)
    close(jax.jit(lambda x, b: kf.fuse(lambda y: np.exp(y) + b)(x))(X, B), jnp.exp(X) + B)
    with pytest.raises(kf.TraceError, match=r"names an array that JAX traces(.|\n)*pass it as an argument"):
        jax.grad(lambda b: (kf.fuse(lambda x: x * b)(X) ** 2).sum())(B)
    same(lambda of: jax.grad(lambda b: squares(of(lambda x: x * b))(b))(B), kf.fuse, lambda f: f)

    def of_64_bits(f):
        fused = kf.fuse(f)
        with jax.enable_x64(False):
            close((jax.jit(fused)(X), jax.vmap(fused)(X[None])), (f(X), f(X)[None]))
            same(lambda g: jax.grad(squares(g))(X), fused, f, rtol=1e-4, atol=1e-4)

    functions = (
        lambda x: x + np.arange(9), lambda x: x * np.arange(9.0), lambda x: x[:, np.array([3, 1, 0])],
        lambda x: x @ np.eye(9)[::-1].T,
    )  # fmt: skip
    sweep(of_64_bits, some([(f,) for f in functions], 2))


def test_control_flow_nesting_and_threads():
    xs = jnp.stack([X, X * 2, X - 1])

    def scanned(f):
        return jax.lax.scan(lambda c, x: (f(c, B) * 0.5 + x, c.sum()), X, xs)

    def looped(f):
        return jax.jit(lambda x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, f(c[1], B)), (0, x)))(X)

    def chosen(f):
        either = jax.jit(lambda p, x: jax.lax.cond(p, lambda x: f(x, B), lambda x: x, x))
        return either(True, X), either(False, X)

    def nested(f):
        return jax.jit(lambda x: f(jax.jit(f)(x, B), B))(X)

    for call in (scanned, looped, chosen, nested):
        same(call, *BOTH[0])
    f = jax.jit(block)
    with ThreadPoolExecutor(4) as pool:
        for k, got in enumerate(pool.map(lambda k: f(X * (1 + k % 4), W, C), range(80))):
            close(got, plain_block(X * (1 + k % 4), W, C), rtol=1e-4, atol=1e-4)


def test_products_without_kernels_are_xlas():
    def f(x, w):
        return kf.relu(kf.conv2d(np.tanh(x), w, stride=(2, 2), padding=(1, 1), groups=2)) * 2

    def plain(x, w):
        made = jax.lax.conv_general_dilated(jnp.tanh(x), w, (2, 2), ((1, 1), (1, 1)), feature_group_count=2)
        return jax.nn.relu(made) * 2

    x, w = (jnp.asarray(RNG.normal(size=size), "float32") for size in ((2, 4, 7, 7), (6, 2, 3, 3)))
    same(lambda g: jax.jit(g)(x, w), kf.fuse(f), plain)
    same(lambda g: jax.jit(jax.grad(squares(g), (0, 1)))(x, w), kf.fuse(f), plain, rtol=1e-4, atol=1e-3)
    xs, ws = jnp.stack([x, x + 1]), jnp.stack([w, w * 2])
    for axes in ((0, None), (None, 0), (0, 0)):
        args = xs if axes[0] == 0 else x, ws if axes[1] == 0 else w
        same(lambda g: jax.vmap(g, axes)(*args), kf.fuse(f), plain, rtol=1e-4, atol=1e-4)  # noqa: B023


def test_errors():
    f, torch = jax.jit(kf.fuse(lambda x, i: kf.take(x, i, 0))), pytest.importorskip("torch")
    sort = kf.fuse(lambda x: np.sort(np.exp(x), axis=1) + 1)
    refusals([
        (lambda: f(X, jnp.array([100])), Exception, "take: index 100 is out of bounds for axis 0 with size 6"),
        (lambda: jax.jit(lambda x: rows(x, B, out=x))(X), TypeError, "immutable"),
        (lambda: jax.jit(kf.fuse(lambda x: x + x))(X.astype("uint8")), TypeError, "uint8"),
        (lambda: jax.jit(rows)(X, jnp.ones(4)), ValueError, "broadcast"),
        (lambda: jax.jit(lambda x: rows(x, torch.ones(9)))(X), TypeError, "b must be an array of JAX or NumPy"),
        (lambda: jax.jit(sort)(X), NotImplementedError,
         r"numpy.sort is a function of another array library than JAX"),
        (lambda: jax.jit(kf.fuse(lambda x: x.astype("int8")))(X), NotImplementedError, "kernels have no int8"),
        (lambda: jax.jit(kf.fuse(lambda x: x.astype("uint8")))(X), NotImplementedError, "kernels have no uint8"),
    ])  # fmt: skip
    close(f(X, jnp.array([5])), X[5:])  # and the next call runs


# ---- gradients and batches ------------------------------------------------------------------------------------------


def test_gradients():
    for pair, args in zip(BOTH, ((X, B), (X, W, C)), strict=True):
        numbers = tuple(range(len(args)))
        for of in (jax.grad, lambda *a: jax.jit(jax.grad(*a))):
            same(lambda f: of(squares(f), numbers)(*args), *pair, rtol=1e-4, atol=1e-4)  # noqa: B023

    def scanned(f):
        step = jax.checkpoint(lambda c, x: (f(c, B) + x, None))
        return jax.jit(jax.grad(lambda x: (jax.lax.scan(step, x, jnp.stack([x, x]))[0] ** 2).sum()))(X)

    same(scanned, *BOTH[0], rtol=1e-4, atol=1e-4)
    f = kf.fuse(lambda x: x * kf.stop_gradient(np.exp(x)))  # what is stopped stays so
    plain = lambda x: x * jax.lax.stop_gradient(jnp.exp(x))  # noqa: E731
    for of in (lambda h: jax.grad(squares(h)), lambda h: jax.grad(lambda x: jax.grad(squares(h))(x).sum())):
        same(lambda h: of(h)(B), f, plain, rtol=1e-4)  # noqa: B023
    close(jax.grad(squares(jax.vmap(f)))(X), jax.grad(squares(plain))(X), rtol=1e-4)
    ids = jnp.array([[1, 2, 1], [5, -1, 0]])  # integers have none
    f, plain = kf.fuse(lambda t, i: np.tanh(kf.take(t, i, 0))), lambda t, i: jnp.tanh(t[i])
    same(lambda g: jax.jit(jax.grad(squares(g)))(X, ids), f, plain)
    same(lambda g: jax.vmap(jax.grad(squares(g)), (None, 0))(X, ids), f, plain)
    f = kf.fuse(lambda x: (np.exp(x), np.sum(x), np.argmax(x)))  # of one of several results
    close(jax.grad(lambda x: f(x)[1] ** 2)(X), jnp.full_like(X, 2 * X.sum()))


@pytest.mark.slow
def test_forward_and_second_derivatives():
    same(lambda f: jax.jvp(f, (X, B), (X + 1, B))[1], *BOTH[0])
    same(lambda f: jax.jacfwd(f, 1)(X, B), *BOTH[0])
    same(lambda f: jax.hessian(squares(f), 1)(X, B), *BOTH[0], rtol=1e-4, atol=1e-4)


def test_batches_along_axes(some):
    def check(*axes):
        x = X if axes[0] is None else jnp.stack([X, X * 2, -X], axes[0])
        b = B if axes[1] is None else jnp.stack([B, B + 1, B * 3], axes[1])
        same(lambda f: jax.vmap(f, axes)(x, b), *BOTH[0])
        same(lambda f: jax.jit(jax.vmap(jax.grad(squares(f), (0, 1)), axes))(x, b), *BOTH[0], rtol=1e-4)
        same(lambda f: jax.vmap(f, axes, out_axes=1)(x, b), *BOTH[0])

    sweep(check, some([(0, None), (1, None), (None, 0), (2, 1)], 2))
    x = jnp.stack([jnp.stack([X, X + 1]), jnp.stack([X * 2, -X])])
    same(lambda f: jax.vmap(jax.vmap(f, (0, None)), (1, None))(x, B), *BOTH[0])


# ---- functions of JAX among those of kfusion's ----------------------------------------------------------------------


def test_functions_of_jax(some):
    def check(f):
        want = f(X)
        close((kf.fuse(f)(X), jax.jit(kf.fuse(f))(X)), (want, want))
        same(lambda f: jax.grad(squares(f))(X), kf.fuse(f), f, rtol=1e-4, atol=1e-4)

    functions = [
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
    ]
    sweep(check, some([(f,) for f in functions], 4))


def test_integers_and_corners(some):
    def of_integers(of):
        for x, y in (
            (jnp.arange(-7, 8, dtype="int32"), jnp.int32(3)),
            (jnp.arange(-7, 8, dtype="int32"), jnp.int32(-3)),
            (jnp.array([7, -7, 0, 5, -5], "int32"), jnp.array([0, 0, 0, 3, 3], "int32")),
        ):
            np.testing.assert_array_equal(jax.jit(kf.fuse(lambda x, y: of(x, y)))(x, y), of(x, y))

    def cut(dtype):
        v = jnp.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 1.5, -1.5], dtype)
        to = lambda v: jax.lax.convert_element_type(v, "int32")  # noqa: E731
        np.testing.assert_array_equal(jax.jit(kf.fuse(to))(v), to(v))

    def gradient(f):
        x = jnp.array([0, -0.0, 3, 6, -6, 7, 4.5], "float32")
        close(kf.fuse(f)(x), f(x))
        same(lambda f: jax.grad(summed(f))(x), kf.fuse(f), f, rtol=1e-4)

    def halves(how):
        v = jnp.array([0.5, -0.5, 1.5, 2.5, -2.5, 0.49, -1.51], "float32")
        np.testing.assert_array_equal(jax.jit(kf.fuse(lambda v: jax.lax.round(v, how)))(v), jax.lax.round(v, how))

    sweep(of_integers, [(jnp.floor_divide,), (jax.lax.div,), (jax.lax.rem,)])
    sweep(halves, [(how,) for how in jax.lax.RoundingMethod])
    sweep(cut, [("float32",), ("bfloat16",)])
    corners = (
        lambda x: jnp.fmod(x, 3) + jnp.mod(6.0, x - 1.5), lambda x: jax.nn.relu6(x) + jnp.abs(x),
        lambda x: jax.lax.clamp(jnp.float32(0), x, jnp.float32(6)),
        lambda x: jax.nn.softplus(x) + jnp.logaddexp2(x, x), lambda x: jax.scipy.special.xlogy(x, jnp.abs(x) + 2),
    )  # fmt: skip
    sweep(gradient, some([(f,) for f in corners], 2))


@jax.custom_jvp
def odd(x):
    return x * 2


odd.defjvp(lambda primals, tangents: (odd(primals[0]), tangents[0] * 7))


def pointwise(x):
    return jnp.tanh(x) + 1


def loss(x):
    return jnp.sum(jnp.tanh(x) * jax.nn.softmax(x))


def test_what_has_no_kernel_or_a_gradient_of_its_own():
    f, cumsum = kf.fuse(lambda x: odd(x) + 1), kf.fuse(lambda x: jnp.cumsum(x, axis=1))
    sort, own = kf.fuse(lambda x: jnp.sort(x)), "odd has a gradient of its own"
    of_odd = lambda x: jnp.sum(odd(x))  # noqa: E731
    none = r"becomes cumsum, for which kfusion has no kernel(.|\n)*outside"
    close(jax.jit(f)(X), X * 2 + 1)
    refusals([
        (lambda: jax.grad(squares(f))(X), TypeError, own),
        (lambda: jax.grad(squares(jax.vmap(f)))(X), TypeError, own),
        (lambda: kf.grad(of_odd)(X), TypeError, own + r", .* use jax\.grad"),
        (lambda: kf.kept_for_backward(of_odd, X), TypeError, own),
        (lambda: kf.vjp(of_odd, X)[1](X.sum()), TypeError, own),
        (lambda: cumsum(X), TypeError, none),
        (lambda: jax.jit(cumsum)(X), TypeError, none),
        (lambda: sort.plan(X), kf.TraceError, "becomes sort, for which kfusion has no kernel"),
        (lambda: kf.plan(sort, kf.spec((6, 9))), kf.TraceError, "becomes sort, for which kfusion has no kernel"),
        (lambda: kf.plan(lambda x: x if x.sum() > 0 else -x, X), kf.TraceError,
         r"^kfusion\.trace: (.|\n)*test_jax.py"),  # the first error; the function fails in JAX's trace, too
    ])  # fmt: skip


def test_calls_of_functions_of_jax():
    g = kf.fuse(lambda x, b: np.tanh(kf.call(lambda a, c: jnp.cumsum(a * c, axis=1), np.exp(x), b, result=x)) + b)

    def plain(x, b):
        return jnp.tanh(jnp.cumsum(jnp.exp(x) * b, axis=1)) + b

    close(jax.jit(g)(X, B), plain(X, B))
    with pytest.raises(TypeError, match="has no adjoint"):
        jax.grad(squares(g))(X, B)
    same(lambda h: jax.vmap(h, (0, None))(jnp.stack([X, X + 1]), B), g, plain, rtol=1e-4, atol=1e-4)


def test_functions_of_jax_outside_of_its_transformations(some):
    plans = [
        kf.fuse(pointwise).plan(X), kf.fuse(pointwise).plan(kf.spec((6, 9))), kf.plan(pointwise, X),
        kf.plan(kf.fuse(pointwise), X), kf.plan(pointwise, kf.spec(("n", 9)), sizes={"n": 6}),
        kf.kept_for_backward(pointwise, X).forward, kf.kept_for_backward(kf.fuse(pointwise), X).forward,
    ]  # fmt: skip
    for made in plans:
        assert made.groups[0].nodes
        assert (len(made.groups), made.stages, made.fused.issued.total) == (1, ("tanh", "add"), 2 * 6 * 9 * 4)
    assert "tanh" in kf.fuse(pointwise).source(X)
    compared = kf.compare(pointwise, X, peers=(), repeats=1, cache="hot")  # raises where a version is wrong
    assert {row.name for row in compared.rows} >= {"fused", "unfused"}

    def gradient(f, plain):
        for of in (kf.grad(f), jax.grad(kf.fuse(f)), jax.jit(kf.grad(f))):
            np.testing.assert_allclose(of(X), jax.grad(plain)(X), rtol=1e-4, atol=1e-5)

    gradients = [
        (loss, loss),
        (lambda x: kf.value_and_grad(loss)(x)[0] * 2, lambda x: loss(x) * 2),
        (lambda x: (kf.grad(loss)(x) ** 2).sum(), lambda x: (jax.grad(loss)(x) ** 2).sum()),
        (lambda x: jnp.sum(kf.stop_gradient(x) * x), lambda x: jnp.sum(jax.lax.stop_gradient(x) * x)),
    ]
    sweep(gradient, some(gradients, 2))
    (y, pull), (want, pull_jax) = kf.vjp(pointwise, X), jax.vjp(pointwise, X)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pull(X)[0], pull_jax(X)[0], rtol=1e-4, atol=1e-6)
