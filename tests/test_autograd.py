"""Fused functions and modules in torch's autograd: what eager torch does, with its gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from sweeps import refusals, sweep

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def gradients(function: Callable[..., Any], *tensors: Any) -> list[Any]:
    """The gradients of a weighted sum of results, by the tensors that require grad."""
    made = function(*tensors)
    results = [y for y in (made if isinstance(made, (tuple, list)) else (made,)) if y.requires_grad]
    wanted = [t for t in tensors if isinstance(t, torch.Tensor) and t.requires_grad]
    weights = [torch.arange(1.0, y.numel() + 1, dtype=y.dtype).reshape(y.shape) for y in results]
    return list(torch.autograd.grad(results, wanted, weights, allow_unused=True))


def assert_same(got: Any, want: Any) -> None:
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, equal_nan=True)


def mixed(x: Any, w: Any, b: Any) -> Any:
    return F.gelu(F.layer_norm(x @ w + b, b.shape)) * x.sum(-1, keepdim=True)


def test_gradients_of_arguments() -> None:
    fused = kf.fuse(mixed)
    for n, m, k in [(5, 4, 6), (7, 3, 2), (6, 9, 5), (1, 2, 3)]:
        tensors = leaf(n, m), leaf(m, k), leaf(k)
        assert_same(gradients(fused, *tensors), gradients(mixed, *tensors))
    assert torch.autograd.gradcheck(fused, tensors)

    class Held:
        x = leaf(3)

    def f(p: Any, held: Any, scale: float) -> Any:
        return p["x"] * scale + p["more"][0].sum() * held.x

    x, y = leaf(3), leaf(2)
    given = {"x": x, "more": [y, torch.arange(3)]}, Held(), 2.5
    wanted = [x, y, Held.x]
    assert_same(torch.autograd.grad(kf.fuse(f)(*given).sum(), wanted), torch.autograd.grad(f(*given).sum(), wanted))


def test_only_what_needs_a_gradient_gets_one() -> None:
    fused = kf.fuse(mixed)
    x, w, b = leaf(5, 4), leaf(4, 6), leaf(6)
    for some in [(x, w.detach(), b), (x.detach(), w.detach(), b), (x.detach(), w, b.detach())]:
        assert_same(gradients(fused, *some), gradients(mixed, *some))
    y = fused(x, w, b)
    (dw,) = torch.autograd.grad(y.sum(), w)
    assert_same([dw], torch.autograd.grad(mixed(x, w, b).sum(), w))
    assert (x.grad, w.grad, b.grad) == (None, None, None)
    assert not fused(x.detach(), w.detach(), b.detach()).requires_grad


def test_several_results_used_twice_or_not_at_all() -> None:
    def f(x: Any) -> Any:
        y = torch.sin(x)
        return {"y": y, "z": (y * x, y.argmax(-1)), "unused": x.sum(), "name": "f"}

    x, found = leaf(3, 4), []
    for g in (f, kf.fuse(f)):
        made = g(x)
        assert not made["z"][1].requires_grad
        found += torch.autograd.grad((made["y"] * made["y"]).sum() + (made["z"][0] * made["y"]).sum(), x)
    torch.testing.assert_close(*found)


def test_deep_products_and_row_statistics_are_kept() -> None:
    x, w, v = (torch.randn(256, 256, dtype=torch.float64).requires_grad_() for _ in range(3))

    def f(x: Any, w: Any, v: Any) -> Any:
        h = F.gelu(x @ w)
        return h, F.layer_norm(h @ v, (256,)), (x * 2).sort(-1).values

    made = kf.fuse(f)(x, w, v)
    node = made[0].grad_fn.node
    saved = made[0].grad_fn.saved_tensors
    assert len(saved) == 3 + len(node.kept)
    assert len(node.kept) == 4  # the products, mean and 1 / std: what torch computes of a sort, of its argument
    assert_same(gradients(kf.fuse(f), x, w, v), gradients(f, x, w, v))
    (y,) = (kf.fuse(lambda x, w: torch.tanh(x @ w).sum())(x, w),)
    assert len(y.grad_fn.node.kept) == 1
    (p,) = (kf.fuse(lambda x, w: x @ w)(x, w),)
    assert not p.grad_fn.node.kept  # whose gradient needs its arguments only


def test_retain_graph_accumulation_and_hooks() -> None:
    fused, x = kf.fuse(lambda x: x**3), leaf(4)
    seen: list[Any] = []
    x.register_hook(seen.append)
    y = fused(x * 2).sum()  # of what is no leaf
    y.backward(retain_graph=True)
    y.backward()
    torch.testing.assert_close(x.grad, 2 * 48 * x.detach() ** 2 / 2 * 1.0)
    assert len(seen) == 2
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_results_that_gradients_do_not_pass_through() -> None:
    """Constants, arrays of NumPy's and what no_grad() or detach() keeps them from, beside others."""
    weight, table = torch.nn.Parameter(torch.ones(3)), torch.ones(3)

    def function(x: Any) -> dict[str, Any]:
        y = x * weight
        with torch.no_grad():
            z = y * 2
        filled = torch.zeros(3)
        filled[1:] = y[1:]
        constants = {"table": table, "made": torch.ones(3), "NumPy's": np.ones(2), "weight": weight}
        values = {"z": z, "detached": y.detach() * 2, "data": y.data * 3, "largest": y.argmax(), "mask": y > 0}
        return {**constants, **values, "y": y, "half": y.detach() + y, "filled": filled}

    fused = kf.fuse(function)
    for _ in range(2):
        x, other = leaf(3), leaf(3)
        found, want = fused(x), function(other)
        for name, tensor in want.items():
            assert getattr(found[name], "requires_grad", None) == getattr(tensor, "requires_grad", None), name
        assert found["weight"] is weight
        assert found["table"] is table
        (found["half"] + found["filled"]).sum().backward()
        (want["half"] + want["filled"]).sum().backward()
        assert torch.equal(x.grad, other.grad)


def changed_after_forward() -> None:
    x, w = leaf(3), torch.ones(3, dtype=torch.float64)
    y = kf.fuse(lambda x, w: x * w)(x, w)
    w += 1
    y.sum().backward()


def test_refusals() -> None:
    """Second derivatives also where nothing shows that they would be missing."""
    x, z = leaf(2, 3), torch.zeros(2, dtype=torch.complex64, requires_grad=True)
    layer = kf.fuse(nn.Linear(3, 1).double())
    plain, parameters = x.detach(), dict(layer.named_parameters())
    cube, called = kf.fuse(lambda x: x**3), lambda p: torch.func.functional_call(layer, p, (plain,)).sum()
    sine = lambda x: kf.fuse(torch.sin)(x).sum()  # noqa: E731
    functorch = r"torch\.func's grad, vmap and others do not see into fused functions"
    second = "no second derivatives through autograd"
    refusals(
        [
            (lambda: torch.autograd.grad((cube(x) ** 2).sum(), x, create_graph=True), RuntimeError, second),
            (lambda: torch.autograd.grad(cube(x).sum(), x, create_graph=True), RuntimeError, second),
            (lambda: kf.fuse(lambda x: (x**3).sum())(x).backward(create_graph=True), RuntimeError, second),
            (lambda: torch.func.grad(sine)(plain), TypeError, rf"kfusion\.sin: {functorch}"),
            (lambda: torch.func.jacrev(sine)(plain), TypeError, rf"kfusion\.sin: {functorch}"),
            (lambda: torch.func.grad(lambda x: kf.softmax(x).sum())(plain), TypeError, functorch),
            (lambda: torch.func.vmap(cube)(plain), TypeError, r"x must be a plain tensor, got one of torch\.func"),
            (lambda: torch.func.grad(called)(parameters), TypeError, functorch),
            (lambda: kf.fuse(lambda z: torch.abs(z).sum())(z), RuntimeError, "complex tensors have no gradients here"),
            (changed_after_forward, RuntimeError, "modified by an inplace operation"),
        ]
    )


def test_out_and_writes_are_refused_before_anything_runs() -> None:
    x, out = leaf(3), torch.zeros(3, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="out= holds no gradients"):
        kf.fuse(torch.sin)(x, out=out)
    cache = torch.zeros(3, dtype=torch.float64)
    update = kf.fuse(lambda x, cache: cache.add_(1) * x)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="writes to arrays that its gradients need"):
            update(x, cache)
    assert not out.any()
    assert not cache.any()
    with torch.no_grad():
        update(x, cache)
    with pytest.raises(RuntimeError, match="writes to arrays that its gradients need"):
        update(x, cache)
    assert cache.tolist() == [1, 1, 1]


# ---- modules ----


class Block(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d, bias=False)
        self.query = nn.Linear(d, 3 * d)
        self.frozen = nn.Parameter(torch.ones(d), requires_grad=False)

    def forward(self, x: Any) -> Any:
        q, k, v = self.query(self.norm(x)).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.down(F.gelu(self.up(x))) * self.frozen


def trained(model: Any, x: Any, steps: int = 3) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def test_modules_train_as_eagerly() -> None:
    eager, x = nn.Sequential(Block(), Block()).double(), leaf(2, 5, 8)
    plain = nn.Sequential(Block(), Block()).double()
    plain.load_state_dict(eager.state_dict())
    assert_same(trained(kf.fuse(plain), x), trained(eager, x))


class TwoModes(nn.Module):
    def __init__(self, norm: Any = nn.LayerNorm) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), norm(3))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Any) -> Any:
        y = torch.exp(self.inner(x) * self.scale)
        return y.sin() if self.training else y.square()


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
def test_a_mode_that_changes_before_backward(norm: Any) -> None:
    """Backward has that of its own forward pass, and leaves modules in theirs."""
    eager, plain, x = TwoModes(norm).double(), TwoModes(norm).double(), leaf(5, 3)
    plain.load_state_dict(eager.state_dict())

    def grads(model: Any, module: Any) -> list[Any]:
        module.train()
        first = model(x)
        module.eval()
        second = model(x)
        module.inner.train()
        found = [torch.autograd.grad(y.sum(), [x, *module.parameters()]) for y in (first, second)]
        assert (module.training, module.inner.training) == (False, True)
        return [g for grads in found for g in grads]

    assert_same(grads(kf.fuse(plain), plain), grads(eager, eager))


def test_a_mode_that_changes_before_a_pullback() -> None:
    model, x = TwoModes().double(), torch.randn(5, 3, dtype=torch.float64)
    model.requires_grad_(False).eval()
    y, pull = kf.vjp(model, x)
    model.train()
    (got,) = pull(torch.ones_like(y))
    assert model.training
    x.requires_grad_()
    torch.testing.assert_close(got, torch.autograd.grad(model.eval()(x).sum(), x)[0])


def test_what_is_computed_of_weights_alone() -> None:
    """Without gradients it is a constant of the trace; autograd sees it in each call."""
    w, x = leaf(4, 3), torch.randn(5, 4, dtype=torch.float64)
    table = nn.Embedding(7, 4).double()

    def f(x: Any) -> Any:
        positions = table(torch.arange(5))
        return (x + positions) @ (w * 2).sin() + w.T.sum(0)[:3].mean() + w.data.sum()

    fused = kf.fuse(f)
    for trains in (True, True, False, True):
        table.requires_grad_(trains)
        with torch.no_grad():
            torch.testing.assert_close(fused(x), f(x))
        wanted = [w, *[table.weight] * trains]
        assert_same(*(torch.autograd.grad(g(x).square().sum(), wanted) for g in (fused, f)))
        with torch.no_grad():
            table.weight *= 2


def test_a_weight_that_is_returned() -> None:
    linear, x = nn.Linear(4, 4).double(), leaf(3, 4)
    y, w = kf.fuse(lambda x: (linear(x), linear.weight))(x)
    (y.sum() + (w * 3).sum()).backward()
    torch.testing.assert_close(linear.weight.grad, 3 + x.detach().sum(0).expand(4, 4))


def test_other_dtypes_among_the_arguments() -> None:
    image, x = torch.arange(12, dtype=torch.uint8).reshape(3, 4), leaf(4)
    f = lambda i, x: i.double() / 255 * x + (i > 3) * x  # noqa: E731
    assert_same(gradients(kf.fuse(f), image, x), gradients(f, image, x))


def test_parameters_that_are_frozen_or_replaced() -> None:
    linear, x = nn.Linear(4, 4).double(), torch.randn(3, 4, dtype=torch.float64)
    fused = kf.fuse(linear)
    linear.weight.requires_grad_(False)
    fused(x).sum().backward()
    assert linear.weight.grad is None
    torch.testing.assert_close(linear.bias.grad, torch.full((4,), 3.0, dtype=torch.float64))
    linear.weight.requires_grad_(True)
    fused(x).sum().backward()
    torch.testing.assert_close(linear.weight.grad, x.sum(0).expand(4, 4))
    old = linear.weight
    old.grad = None
    linear.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
    fused(x).sum().backward()
    assert old.grad is None
    torch.testing.assert_close(linear.weight.grad, x.sum(0).expand(4, 4))


def test_the_default_device_is_compared_by_value() -> None:
    fused = kf.fuse(lambda x: x * 2 if torch.get_default_device().type == "cpu" else x)
    assert [fused(torch.ones(3)).sum() for _ in range(2)] == [6, 6]
    assert fused._cached() == 1


def test_the_default_device_is_that_of_the_call() -> None:
    """A device's backward passes run in another thread."""
    x, seen = leaf(5), []

    def f(x: Any) -> Any:
        seen.append(torch.get_default_device().type)
        return x * torch.arange(5.0, device="cpu") + (torch.ones(2).device.type == "meta")

    with torch.device("meta"):
        y = kf.fuse(f)(x)
    thread = threading.Thread(target=lambda: y.sum().backward())
    thread.start()
    thread.join()
    assert_same([x.grad], [torch.arange(5.0, dtype=x.dtype)])
    assert set(seen) == {"meta"}


def test_autocast_and_a_scaler() -> None:
    model, x = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), leaf(5, 8, dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

    def step(f: Any) -> list[Any]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = f(x)
        assert y.dtype == torch.bfloat16
        scaler.scale(y.float().square().mean()).backward()
        found = [p.grad for p in (x, *model.parameters())]
        for p in (x, *model.parameters()):
            p.grad = None
        return found

    for got, want in zip(step(kf.fuse(model)), step(model), strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.02 * float(want.abs().max()))


def test_class_numbers() -> None:
    """uint8 as torch; int32 too, which torch refuses."""

    def check(loss: Callable[[Any, Any], Any]) -> None:
        x, t = leaf(4, 6), torch.tensor([0, 5, 2, 3])
        for dtype in (torch.uint8, torch.int32, torch.int64):
            assert_same(gradients(kf.fuse(loss), x, t.to(dtype)), gradients(loss, x, t))
        with pytest.raises((RuntimeError, TypeError)):
            kf.fuse(loss)(x, t.to(torch.int8))

    smoothed = lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1, ignore_index=2)  # noqa: E731
    sweep(check, [(F.cross_entropy,), (smoothed,), (lambda x, t: F.nll_loss(F.log_softmax(x, -1), t),)])


def _without_grad(x: Any, y: Any) -> Any:
    with torch.no_grad():
        s = y.sum()
    return x * s


# Torch has no gradient of y, or one of zeros.
USES_OF_Y: list[Callable[..., Any]] = [
    lambda x, y: x * 2,
    lambda x, y: x.reshape(y.shape) * 2,
    lambda x, y: x * y.detach(),
    _without_grad,
    lambda x, y: torch.where(y > 0, x, -x),
    lambda x, y: x * y.long() + (y.long() + 1).double() * x,
    lambda x, y: x[y.argmax()] * x,
    lambda x, y: (x * 2, y * 3),
    lambda x, y: x[y.sort()[1]],
    lambda x, y: x * torch.where((y > 0) & (y.isnan() | True), 1.0, 2.0),
    lambda x, y: x * y.round(),
    lambda x, y: x + y.sign(),
    lambda x, y: x + y * 0,
    lambda x, y: x + y**0,
    lambda x, y: x + torch.cumsum(y, 0),
    lambda x, y: x + torch.cumsum(y.detach(), 0),
]


def test_a_gradient_is_none_where_torchs_is() -> None:
    """An optimizer moves and decays what has a gradient of zeros."""

    def check(f: Callable[..., Any]) -> None:
        found = []
        values = torch.randn(5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
        for function in (f, kf.fuse(f)):
            x, y = (v.clone().requires_grad_() for v in values)
            made = function(x, y)
            (made[0] if isinstance(made, tuple) else made).sum().backward()
            found.append((x.grad, y.grad))
        for want, got in zip(*found, strict=True):
            assert (want is None) == (got is None)
            if want is not None:
                torch.testing.assert_close(got, want)

    sweep(check, [(f,) for f in USES_OF_Y])
