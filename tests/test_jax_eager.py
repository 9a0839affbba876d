"""Functions that call JAX's own functions, outside of JAX's transformations: plans, sources, comparisons, gradients."""

from __future__ import annotations

import numpy as np
import pytest

import kfusion as kf

jax = pytest.importorskip("jax")
jnp = jax.numpy

pytestmark = [
    pytest.mark.skipif(jax.__version_info__ < (0, 8), reason="needs JAX 0.8"),
    pytest.mark.skipif(jax.default_backend() != "cpu", reason="of JAX on the CPU"),
]

X = jnp.asarray(np.random.default_rng(7).normal(size=(6, 9)), "float32")


def pointwise(x):
    return jnp.tanh(x) + 1


def loss(x):
    return jnp.sum(jnp.tanh(x) * jax.nn.softmax(x))


@jax.custom_jvp
def odd(x):
    return x * 2


odd.defjvp(lambda primals, tangents: (odd(primals[0]), tangents[0] * 7))


@pytest.mark.parametrize(
    "plan",
    [
        lambda: kf.fuse(pointwise).plan(X),
        lambda: kf.fuse(pointwise).plan(kf.spec((6, 9))),
        lambda: kf.plan(pointwise, X),
        lambda: kf.plan(kf.fuse(pointwise), X),
        lambda: kf.plan(pointwise, kf.spec(("n", 9)), sizes={"n": 6}),
        lambda: kf.kept_for_backward(pointwise, X).forward,
        lambda: kf.kept_for_backward(kf.fuse(pointwise), X).forward,
    ],
)
def test_plans(plan):
    made = plan()
    (one,) = made.groups
    assert one.nodes
    assert made.stages == ("tanh", "add")
    assert made.fused.issued.total == 2 * 6 * 9 * 4


def test_sources_and_comparisons():
    assert "tanh" in kf.fuse(pointwise).source(X)
    compared = kf.compare(pointwise, X, peers=(), repeats=1, cache="hot")  # raises where a version is wrong
    assert {row.name for row in compared.rows} >= {"fused", "unfused"}


@pytest.mark.parametrize(
    ("f", "plain"),
    [
        (loss, loss),
        (lambda x: kf.value_and_grad(loss)(x)[0] * 2, lambda x: loss(x) * 2),
        (lambda x: (kf.grad(loss)(x) ** 2).sum(), lambda x: (jax.grad(loss)(x) ** 2).sum()),
        (lambda x: jnp.sum(kf.stop_gradient(x) * x), lambda x: jnp.sum(jax.lax.stop_gradient(x) * x)),
    ],
)
def test_gradients(f, plain):
    want = jax.grad(plain)(X)
    for gradient in (kf.grad(f), jax.grad(kf.fuse(f)), jax.jit(kf.grad(f))):
        np.testing.assert_allclose(gradient(X), want, rtol=1e-4, atol=1e-5)


def test_pullbacks():
    y, pull = kf.vjp(pointwise, X)
    want, pull_jax = jax.vjp(pointwise, X)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pull(X)[0], pull_jax(X)[0], rtol=1e-4, atol=1e-6)


def test_a_gradient_of_the_users_own_is_not_lost():
    calls = (lambda f: kf.grad(f)(X), lambda f: kf.kept_for_backward(f, X), lambda f: kf.vjp(f, X)[1](X.sum()))
    for call in calls:
        with pytest.raises(TypeError, match=r"odd has a gradient of its own, .* use jax\.grad"):
            call(lambda x: jnp.sum(odd(x)))


def test_what_has_no_kernel_is_named():
    for call in (lambda f: f.plan(X), lambda f: kf.plan(f, kf.spec((6, 9)))):
        with pytest.raises(kf.TraceError, match="becomes sort, for which kfusion has no kernel"):
            call(kf.fuse(lambda x: jnp.sort(x)))


def test_other_errors_are_the_first():
    """The function fails in JAX's trace, too."""
    with pytest.raises(kf.TraceError, match=r"^kfusion\.trace: ") as caught:
        kf.plan(lambda x: x if x.sum() > 0 else -x, X)
    assert "test_jax_eager.py" in str(caught.value)
