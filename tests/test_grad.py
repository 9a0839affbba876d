"""`kf.grad`, `value_and_grad` and `vjp`, against torch's autograd and JAX."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from sweeps import refusals

torch = pytest.importorskip("torch")
from gradients import I, W, X, Y, random_like, require_close  # noqa: E402


def loss(x: Any, w: Any) -> Any:
    return (kf.tanh(x @ w) ** 2).mean()


def test_grad_and_value_and_grad() -> None:
    tensors = [torch.from_numpy(a.copy()).requires_grad_() for a in (X, W)]
    value = (torch.tanh(tensors[0] @ tensors[1]) ** 2).mean()
    dx, dw = (g.numpy() for g in torch.autograd.grad(value, tensors))
    require_close([kf.grad(loss)(X, W), kf.grad(loss, 1)(X, W), kf.grad(loss, -1)(X, W)], [dx, dw, dw])
    y, gradients = kf.value_and_grad(loss, (1, 0))(X, W)
    assert isinstance(gradients, tuple)
    require_close([y, *gradients], [value.detach().numpy(), dw, dx])
    require_close([kf.grad(loss, argnums=1)(w=W, x=X)], [dw])


def test_against_jax() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def plain(np_like: Any) -> Callable[..., Any]:
        return lambda x, w: (np_like.tanh(x @ w) * np_like.exp(-np_like.abs(x @ w)).sum(0)).max(1).mean()

    with jax.default_device(jax.devices("cpu")[0]):  # on a GPU JAX has no products that work on memory of others
        want = jax.grad(plain(jnp), (0, 1))(jnp.asarray(X), jnp.asarray(W))
        got = kf.grad(plain(np), (0, 1))(jnp.asarray(X), jnp.asarray(W))
    require_close(kf.grad(plain(np), (0, 1))(X, W), [np.asarray(g) for g in want])
    assert isinstance(got[0], jax.Array)
    require_close([np.asarray(g) for g in got], [np.asarray(g) for g in want])


@dataclass
class Layer:
    weight: Any
    bias: Any


def test_structures_of_arrays() -> None:
    def of_parts(p: dict[str, Any], x: Any) -> Any:
        first, (second,) = p["layers"]
        return (x @ first.weight + first.bias + p["shift"] * second).sum()

    p = {"layers": [Layer(W, W[0].copy()), (W[1].copy(),)], "shift": W[2].copy(), "nothing": None}
    got = kf.grad(of_parts)(p, X)
    assert (got.keys(), type(got["layers"][0]), got["nothing"]) == (p.keys(), Layer, None)
    require_close([got["layers"][0].weight], [np.repeat(X.sum(0)[:, None], 3, 1)])
    require_close([got["layers"][0].bias, got["layers"][1][0], got["shift"]], [np.full(3, 4.0), 4 * W[2], 4 * W[1]])


def test_aux() -> None:
    def with_aux(x: Any) -> Any:
        y = x * x
        return y.sum(), {"squares": y, "name": "z"}

    g, aux = kf.grad(with_aux, has_aux=True)(X)
    require_close([g, aux["squares"]], [2 * X, X * X])
    (y, aux), g = kf.value_and_grad(with_aux, has_aux=True)(X)
    require_close([y, g, aux["squares"]], [(X * X).sum(), 2 * X, X * X])
    assert aux["name"] == "z"
    with pytest.raises(TypeError, match="must return \\(result, aux\\)"):
        kf.grad(lambda x: x.sum(), has_aux=True)(X)


def test_vjp() -> None:
    def f(x: Any, w: Any) -> Any:
        return {"product": kf.sin(x @ w), "sum": x.sum(0)}

    y, pull = kf.vjp(f, X, W)
    require_close([y["product"], y["sum"]], [np.sin(X @ W), X.sum(0)])
    u, v = random_like((4, 3), 8), random_like((6,), 9)
    dx, dw = pull({"product": u, "sum": v})
    c = np.cos(X @ W) * u
    require_close([dx, dw], [c @ W.T + v, X.T @ c])
    y, pull, aux = kf.vjp(lambda x: (x * 2, x + 1), X, has_aux=True)
    require_close([y, aux, *pull(Y)], [2 * X, X + 1, 2 * Y])
    with pytest.raises(ValueError, match="a cotangent for each of 2 results, got 1"):
        kf.vjp(f, X, W)[1](u)
    with pytest.raises(ValueError, match=re.escape("must be like its result, float64 (4, 6), got float64 (4, 3)")):
        kf.vjp(lambda x: x * 2, X)[1](u)


def test_within_traced_functions() -> None:
    def step(w: Any, x: Any) -> Any:
        value, g = kf.value_and_grad(loss, 1)(x, w)
        return w - 0.1 * g, value

    w, value = kf.fuse(step)(W, X)
    require_close([w, value], [W - 0.1 * kf.grad(loss, 1)(X, W), kf.fuse(loss)(X, W)])

    def pulled(x: Any) -> Any:
        y, pull = kf.vjp(lambda a: a**3, x)
        return pull(y)[0]

    require_close([kf.fuse(pulled)(X)], [3 * X**5])
    require_close([kf.fuse(kf.grad(loss))(X, W)], [kf.grad(loss)(X, W)])


def test_gradients_of_gradients() -> None:
    def f(x: Any) -> Any:
        return (x**3 + kf.sin(x)).sum()

    second = kf.grad(lambda x: kf.grad(f)(x).sum())
    require_close([second(X)], [6 * X - np.sin(X)])

    def hessian_times(x: Any, w: Any, v: Any) -> Any:
        return kf.grad(lambda x: (kf.grad(loss)(x, w) * v).sum())(x)

    tensors = [torch.from_numpy(a.copy()).requires_grad_() for a in (X, W)]
    y = (torch.tanh(tensors[0] @ tensors[1]) ** 2).mean()
    (dx,) = torch.autograd.grad(y, tensors[:1], create_graph=True)
    (want,) = torch.autograd.grad((dx * torch.from_numpy(Y)).sum(), tensors[:1])
    require_close([kf.fuse(hessian_times)(X, W, Y)], [want.numpy()])


def test_constants() -> None:
    """What gradients do not pass through, and what a result does not depend on."""
    require_close([kf.fuse(lambda x: kf.grad(lambda a: (a * x).sum())(x))(X)], [X])
    require_close([kf.grad(lambda x: (kf.stop_gradient(x) * x).sum())(X)], [X])
    require_close([kf.grad(lambda x: (kf.floor(x) + x).sum())(X)], [np.ones_like(X)])
    require_close([kf.grad(lambda x: (x.detach() * x).sum())(torch.from_numpy(X.copy()))], [X])
    assert kf.stop_gradient(X) is X
    require_close(kf.grad(lambda x, y: x.sum(), (0, 1))(X, Y), [np.ones_like(X), np.zeros_like(Y)])
    require_close([kf.grad(lambda x: ((x > 0) * 1.0).sum())(X)], [np.zeros_like(X)])


def test_branches_that_are_not_taken() -> None:
    """`where` selects the gradient, so that a value of NaN changes nothing."""
    x = np.array([0.0, 1.0, 4.0])
    require_close([kf.grad(lambda x: kf.where(x > 0.5, x * 2, x + np.nan).sum())(x)], [np.array([1.0, 2.0, 2.0])])
    require_close([kf.grad(lambda x: kf.where(x > 0.5, kf.log(x), x).sum())(x[1:])], [1 / x[1:]])


def test_plans() -> None:
    plan = kf.plan(kf.value_and_grad(loss), kf.spec((64, 32)), kf.spec((32, 16)))
    assert {"tanh", "tanh_backward"} <= {name.partition("_2")[0] for g in plan.unfused_groups for name in g.stages}
    assert plan.savings["fused_bytes"] < plan.savings["unfused_bytes"]


# ---- errors ----


ERRORS: list[tuple[Any, Any, Any, type[Exception], str]] = [
    (lambda x: x * 2, (X,), 0, ValueError, "must return an array without axes, got shape (4, 6)"),
    (lambda x: (x > 0).sum(), (X,), 0, TypeError, "must return a float made of its arrays, got an array of int64"),
    (lambda x: 3.0, (X,), 0, TypeError, "must return a float made of its arrays, got float"),
    (lambda x, i: x.sum(), (X, I), 1, TypeError, "argument 1 must be an array of floats, got one of int64"),
    (lambda p: p[0].sum(), ([X, I],), 0, TypeError, "argument 0, 1 must be an array of floats, got one of int64"),
    (lambda x, n: x.sum(), (X, "n"), 1, TypeError, "argument 1 must be an array of floats, got str"),
    (lambda x: x.sum(), (X,), 1, ValueError, "argnums must name arguments by position, of 1 given, got 1"),
    (lambda x: x.sum(), (X,), (0, -1), ValueError, "argnums must name each argument once"),
    (lambda x: np.sort(x, 1)[0].sum(), (X,), 0, TypeError, "numpy.sort has no adjoint"),
    (lambda x: kf.call(np.abs, x, result=x).sum(), (X,), 0, TypeError, "kfusion.call(absolute) has no adjoint"),
]


def sorted_sum(x: Any) -> Any:
    return np.sort(x, 1)[0].sum()


def test_errors() -> None:
    refusals(
        (lambda f=f, given=given: f(*given), error, re.escape(message))
        for function, given, argnums, error, message in ERRORS
        for f in (kf.grad(function, argnums), kf.value_and_grad(function, argnums).plan)
    )
    refusals(
        [
            (lambda: kf.grad(loss, 1.5), TypeError, "argnums must be an integer or several"),
            (lambda: kf.grad(3), TypeError, "function must be callable"),
            (lambda: kf.vjp(loss), ValueError, "there must be at least one primal"),
            (
                lambda: kf.grad(sorted_sum)(X),
                TypeError,
                r"sort has no adjoint \(test_grad.py:\d+: return np.sort",
            ),
        ]
    )


def test_complex_arrays_are_refused() -> None:
    f = lambda z: abs(z).sum()  # noqa: E731
    calls = [kf.grad(f), kf.value_and_grad(f), lambda z: kf.vjp(f, z), lambda z: kf.grad(lambda d: f(d["z"]))({"z": z})]
    numbers = np.array([1 + 2j, 3])
    for z in (numbers, torch.tensor(numbers)):
        for call in calls:
            with pytest.raises(
                TypeError, match=r"an array of floats among .*, got one of complex128: write the function"
            ):
                call(z)
        with pytest.raises(TypeError, match="argument 1 must be an array of floats, got one of complex128"):
            kf.grad(lambda x, z: (x * abs(z)).sum(), 1)(abs(z), z)
    with pytest.raises(TypeError, match="must return a float made of its arrays, got an array of complex128: return"):
        kf.grad(lambda x: (x * numbers).sum())(np.ones(2))
