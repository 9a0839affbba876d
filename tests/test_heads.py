"""A linear layer and torch's cross entropy of its results, which run without the logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion._ops import chunk_products, logit_chunks
from sweeps import sweep

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

N, K, V = 40, 8, 100


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    torch.manual_seed(seed)
    monkeypatch.setitem(chunk_products._BYTES, "cpu", 4096)


def drawn(dtype: Any = None) -> list[Any]:
    """x, weight, bias."""
    return [torch.randn(*shape, dtype=torch.float64).to(dtype or torch.float64) for shape in ((N, K), (V, K), (V,))]


def targets(seed: int = 0) -> Any:
    return torch.randint(V, (N,), generator=torch.Generator().manual_seed(seed))


def is_head(plan: kf.Plan) -> bool:
    return any(node.get("function", "").startswith("kfusion.linear_cross_entropy") for node in plan._nodes)


def has_logits(plan: kf.Plan, rows: int = N) -> bool:
    return any(math.prod(s.shape) >= (rows - 4) * V for g in plan.groups for s in g.stores)


def eager(f: Callable[..., Any], arrays: list[Any]) -> tuple[Any, list[Any]]:
    leaves = [a.detach().clone().requires_grad_() for a in arrays]
    loss = f(*leaves)
    loss.backward()
    return loss.detach(), [torch.zeros_like(a) if a.grad is None else a.grad for a in leaves]


def assert_same(got: Any, want: Any, rtol: float = 1e-12) -> None:
    np.testing.assert_allclose(got.double().numpy(), want.double().numpy(), rtol=rtol, atol=rtol)


def check(f: Callable[..., Any], arrays: list[Any], *, rtol: float = 1e-12) -> kf.Plan:
    """Values and gradients, by kf.value_and_grad and by torch's autograd, are eager's; the plan of the former."""
    want, gradients = eager(f, arrays)
    both = kf.value_and_grad(f, tuple(range(len(arrays))))
    for loss, found in (both(*arrays), eager(kf.fuse(f), arrays)):
        assert_same(loss, want, rtol)
        for g, w in zip(found, gradients, strict=True):
            assert g.dtype == w.dtype
            assert_same(g, w, rtol)
    return kf.plan(both, *arrays)


T = targets()
HEADS: dict[str, Callable[..., Any]] = {
    "linear": lambda x, w, b: F.cross_entropy(F.linear(x, w, b), T),
    "no bias": lambda x, w, b: F.cross_entropy(F.linear(x, w), T, label_smoothing=0.1),
    "@": lambda x, w, b: F.cross_entropy(x @ w.T, T, reduction="sum"),
    "@ of turned": lambda x, w, b: F.cross_entropy(x @ (w.T * 2), T),
    "@ and +": lambda x, w, b: F.cross_entropy(x @ w.t() + b, T, ignore_index=5),
    "addmm": lambda x, w, b: F.cross_entropy(torch.addmm(b, x, w.T), T),
    "none": lambda x, w, b: (F.cross_entropy(F.linear(x, w, b), T, reduction="none") ** 2).sum(),
    "rows": lambda x, w, b: F.cross_entropy(F.linear(x.view(4, 10, K), w, b).view(-1, V), T),
    "shifted": lambda x, w, b: F.cross_entropy(
        F.linear(x.view(4, 10, K), w, b)[:, :-1].reshape(-1, V), T.view(4, 10)[:, 1:].reshape(-1)
    ),
    "classes second": lambda x, w, b: F.cross_entropy(F.linear(x.view(4, 10, K), w, b).transpose(1, 2), T.view(4, 10)),
    "two heads": lambda x, w, b: F.cross_entropy(F.linear(x, w, b), T) + F.cross_entropy(F.linear(x * 2, w), T),
    "tied": lambda x, w, b: F.cross_entropy(F.linear(torch.tanh(x + w[:N]), w), T),
}


def test_without_logits(some: Any) -> None:
    def require(name: str) -> None:
        plan = check(HEADS[name], drawn())
        assert is_head(plan)
        assert name == "none" or not has_logits(plan)
        assert "the logits are never stored as a whole" in " ".join(str(plan).split())
        kept = kf.kept_for_backward(HEADS[name], *drawn())
        assert is_head(kept.backward if name == "none" else kept.forward)
        assert not has_logits(kept.backward)
        assert not any(math.prod(v.shape) >= N * V for v in kept.values)

    sweep(require, [(name,) for name in some(HEADS, 3)])


def product(x: Any, w: Any, b: Any) -> Any:
    with torch.no_grad():
        z = F.linear(x, w, b)
    return F.cross_entropy(z, T) + x.sum() + w.sum() + b.sum()


def turned(x: Any, w: Any, b: Any) -> Any:
    with torch.no_grad():
        y = w.T
    return F.cross_entropy(x @ y, T) + w.sum() + b.sum()


WHOLE: list[Callable[..., Any]] = [
    product,
    lambda x, w, b: (lambda z: F.cross_entropy(z, T) + (z * z).mean())(F.linear(x, w, b)),
    lambda x, w, b: (lambda z: F.cross_entropy(z.view(N, V), T) + z[0].sum())(F.linear(x, w, b)),
    lambda x, w, b: (lambda z: F.cross_entropy(z, T) + F.cross_entropy(z, T.flip(0)))(F.linear(x, w, b)),
    lambda x, w, b: F.cross_entropy(F.linear(x[:2], w, b), T[:2]),
    lambda x, w, b: F.cross_entropy(F.linear(x, w, b) / 2, T),
    lambda x, w, b: F.cross_entropy(F.linear(x, w, b)[:, :50], T % 50),
    lambda x, w, b: F.cross_entropy(F.linear(x, w, b).view(-1, 50), torch.arange(2 * N) % 50),
    lambda x, w, b: F.cross_entropy(F.linear(x, w, b), torch.full((N, V), 1 / V).double()),
    lambda x, w, b: F.cross_entropy(F.linear(x, w, b).detach(), T) + (x.sum() + w.sum()) + b.sum(),
]


def test_as_written(some: Any) -> None:
    def require(function: Callable[..., Any]) -> None:
        assert not is_head(check(function, drawn()))

    sweep(require, [(f,) for f in some(WHOLE, 3)])
    assert is_head(check(turned, drawn()))
    assert not is_head(kf.plan(HEADS["linear"], *drawn()))  # without gradients


def test_gradients_of_logits_themselves() -> None:
    """A function that is differentiated by logits has a gradient there, whatever made them."""

    def f(x: Any, w: Any) -> Any:
        return kf.grad(lambda z: F.cross_entropy(z, T))(F.linear(x, w))

    x, w, _ = drawn()
    z = F.linear(x, w).requires_grad_()
    (want,) = torch.autograd.grad(F.cross_entropy(z, T), z)
    assert_same(kf.fuse(f)(x, w), want)


def test_second_derivatives() -> None:
    x, w, _ = drawn()
    f = lambda x: F.cross_entropy(F.linear(x, w), T)  # noqa: E731
    got = kf.grad(lambda x: (kf.grad(f)(x) ** 2).sum())(x)
    x.requires_grad_()
    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    (want,) = torch.autograd.grad((g**2).sum(), x)
    assert_same(got, want)


def test_results_that_are_logits() -> None:
    """They are whole, in both passes, whether they are returned or what is made of them is."""
    arrays = drawn()
    for of in (lambda z: z, lambda z: z.argmax(-1)):

        def f(x: Any, w: Any, b: Any) -> Any:
            z = F.linear(x, w, b)
            return F.cross_entropy(z, T), of(z)  # noqa: B023

        want, gradients = eager(lambda *a: f(*a)[0], arrays)
        leaves = [a.clone().requires_grad_() for a in arrays]
        loss, shown = kf.fuse(f)(*leaves)
        assert_same(shown.detach(), of(F.linear(*arrays)))
        loss.backward()
        assert_same(loss.detach(), want)
        for a, g in zip(leaves, gradients, strict=True):
            assert_same(a.grad, g)
        both = kf.value_and_grad(f, (0, 1, 2), has_aux=True)
        (loss, shown), found = both(*arrays)
        assert_same(shown, of(F.linear(*arrays)))
        assert not is_head(kf.plan(both, *arrays))
        for got, g in zip(found, gradients, strict=True):
            assert_same(got, g)


def test_plans_that_are_told_what_shares_a_kernel() -> None:
    both, arrays = kf.value_and_grad(HEADS["linear"], (0, 1, 2)), drawn()
    assert is_head(kf.plan(both, *arrays))
    assert not is_head(kf.plan(both, *arrays, fuse=False))
    assert not is_head(kf.plan(both, *arrays, forbid=[("linear.matmul", "linear.bias")]))
    assert is_head(both.plan(*arrays))
    assert not is_head(both.unfused.plan(*arrays))
    for f in (both, both.unfused):
        loss, _ = f(*arrays)
        assert_same(loss, HEADS["linear"](*arrays))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weights_of_classes(reduction: str) -> None:
    c = torch.rand(V, dtype=torch.float64)
    f = lambda x, w, b: F.cross_entropy(F.linear(x, w, b), T, c, reduction=reduction, label_smoothing=0.2).sum()  # noqa: E731
    assert is_head(check(f, drawn()))


def test_weights_of_classes_that_have_gradients() -> None:
    x, w, _ = drawn()
    c = torch.rand(V, dtype=torch.float64)
    f = lambda c: F.cross_entropy(F.linear(x, w), T, c)  # noqa: E731
    assert_same(kf.fuse(f)(c.clone().requires_grad_()).detach(), f(c))
    step = torch.zeros(V, dtype=torch.float64)
    step[T[0]] = 1e-6
    assert abs(kf.grad(f)(c)[T[0]] - (f(c + step) - f(c - step)) / 2e-6) < 1e-6


class Model(nn.Module):
    """A language model's form."""

    def __init__(self, weights: Any = None) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(K, K), nn.Linear(K, V)
        self.loss = nn.CrossEntropyLoss(weights, ignore_index=3)

    def forward(self, x: Any, t: Any) -> Any:
        return self.loss(self.head(torch.tanh(self.body(x))).float().view(-1, V), t.view(-1))


def gradients(model: Any, of: Any, *args: Any) -> list[Any]:
    model.zero_grad()
    loss = of(*args)
    (loss * 2).backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def test_modules_of_other_sizes() -> None:
    model = Model(torch.rand(V)).float()
    fused = kf.fuse(model)
    assert is_head(kf.kept_for_backward(fused, torch.randn(N, K), T).forward)
    for rows in (40, 52, 36, 4, 64):  # those of 4 are too few
        x, t = torch.randn(2, rows // 2, K), torch.randint(V, (2, rows // 2))
        for got, want in zip(gradients(model, fused, x, t), gradients(model, model, x, t), strict=True):
            assert_same(got, want, 2e-5)


@pytest.mark.parametrize("is_cast", [True, False])
def test_half_types(is_cast: bool) -> None:
    model = Model()
    x, exact = torch.randn(N, K), Model().double()
    exact.load_state_dict(model.state_dict())
    if is_cast:
        model, x = model.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=not is_cast):
        fused = kf.fuse(model)
        assert is_head(kf.kept_for_backward(fused, x, T).forward)
        got = gradients(model, fused, x, T)
    assert got[0].dtype == torch.float32
    want = gradients(exact, lambda x, t: exact.loss(exact.head(torch.tanh(exact.body(x))), t), x.double(), T)
    for g, w in zip(got, want, strict=True):
        assert (g.double() - w).norm() <= 0.03 * w.norm()


def test_a_step_in_the_function() -> None:
    """What is written to the weight comes after all reads of it."""
    w = torch.randn(V, K, dtype=torch.float64)
    x, _, _ = drawn()

    def step(x: Any, w: Any) -> Any:
        loss, g = kf.value_and_grad(lambda w: F.cross_entropy(F.linear(x, w), T))(w)
        w.sub_(g, alpha=0.1)
        return loss

    want, (g,) = eager(lambda w: F.cross_entropy(F.linear(x, w), T), [w])
    changed = w.clone()
    assert_same(kf.fuse(step)(x, changed), want)
    assert_same(changed, w - 0.1 * g)


@pytest.mark.parametrize("bias", [False, True])
def test_columns_of_zeros(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU has them: what is beyond the classes shows nowhere."""
    monkeypatch.setattr(logit_chunks, "missing_columns", lambda device, dtype, columns: -columns % 8)
    assert V % 8
    ignored = T.clone()
    ignored[3] = -100

    def f(x: Any, w: Any, b: Any) -> Any:
        return F.cross_entropy(F.linear(x, w, b if bias else None), ignored) + (0 if bias else b.sum())

    assert is_head(check(f, drawn()))


def test_rows_whose_products_are_slow() -> None:
    """Logits fit one chunk, on a GPU: those of a chunk start at multiples of 16 bytes."""

    def f(x: Any, w: Any, t: Any) -> Any:
        return F.cross_entropy(F.linear(x, w)[:, :-1].flatten(0, 1).float(), t[:, 1:].flatten())

    for classes, dtype, takes in ((50_257, "bfloat16", True), (50_264, "bfloat16", False), (50_257, "float32", False)):
        x, w = (kf.spec(shape, dtype, like="torch", device="cuda:0") for shape in ((4, 1024, 256), (classes, 256)))
        t = kf.spec((4, 1024), "int64", like="torch", device="cuda:0")
        assert is_head(kf.plan(kf.value_and_grad(f, (0, 1)), x, w, t, device="H200")) is takes
