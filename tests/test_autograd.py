"""Fused functions and modules in torch's autograd: what eager torch does, with its gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion import _named
from kfusion._tracing import trained_attention

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


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
    tensors = leaf(5, 4), leaf(4, 6), leaf(6)
    assert_same(gradients(kf.fuse(mixed), *tensors), gradients(mixed, *tensors))
    assert torch.autograd.gradcheck(kf.fuse(mixed), tensors)


def test_other_sizes() -> None:
    fused = kf.fuse(mixed)
    for n, m, k in [(5, 4, 6), (7, 3, 2), (6, 9, 5), (1, 2, 3)]:
        tensors = leaf(n, m), leaf(m, k), leaf(k)
        assert_same(gradients(fused, *tensors), gradients(mixed, *tensors))


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

    x = leaf(3, 4)
    for g in (f, kf.fuse(f)):
        made = g(x)
        assert not made["z"][1].requires_grad
        loss = (made["y"] * made["y"]).sum() + (made["z"][0] * made["y"]).sum()
        loss.backward()
    one = x.grad / 2
    x.grad = None
    made = f(x)
    ((made["y"] * made["y"]).sum() + (made["z"][0] * made["y"]).sum()).backward()
    torch.testing.assert_close(x.grad, one)


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
    assert p.grad_fn.node.kept == []  # whose gradient needs its arguments only


def test_attention_stores_no_scores() -> None:
    def f(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True) * q

    for n in (40, 6):  # of few positions, kernels
        tensors = [leaf(2, 3, n, 4) for _ in range(3)]
        assert_same(gradients(kf.fuse(f), *tensors), gradients(f, *tensors))
    specs = [kf.spec((2, 3, 1024, 64), like="torch")] * 3
    plan = kf.plan(kf.grad(lambda *a: f(*a).sum(), (0, 1, 2)), *specs)
    assert plan.fused.peak_intermediate_bytes < 2 * 3 * 1024 * 1024 * 4


def test_attention_and_its_sums_are_kept_without_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    run = trained_attention.Attention.__call__

    def seen(self: Any, *given: Any) -> Any:
        made[:] = [t.contiguous() for t in run(self, *given)]  # as they lie on a GPU
        return made

    monkeypatch.setattr(trained_attention.Attention, "__call__", seen)
    q, k, v = (leaf(2, 3, 64, 8) for _ in range(3))
    f = lambda *a: torch.tanh(F.scaled_dot_product_attention(*a, is_causal=True))  # noqa: E731
    saved = [t.data_ptr() for t in kf.fuse(f)(q, k, v).grad_fn.saved_tensors]
    assert len(made) == 2
    assert all(t.data_ptr() in saved and not t._is_view() for t in made)
    assert_same(gradients(kf.fuse(f), q, k, v), gradients(f, q, k, v))


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


def test_no_grad_inside() -> None:
    def f(x: Any) -> Any:
        with torch.no_grad():
            scale = x.abs().amax()
        return x / scale + x.detach()

    x = leaf(3, 4)
    assert_same(gradients(kf.fuse(f), x), gradients(f, x))
    assert_same([kf.grad(lambda x: f(x).sum())(x.detach())], torch.autograd.grad(f(x).sum(), x))


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


@pytest.mark.parametrize("outer", [lambda y: (y**2).sum(), lambda y: y.sum()], ids=["of a square", "of a sum"])
def test_second_derivatives_are_refused(outer: Callable[..., Any]) -> None:
    """Also where nothing shows that they would be missing: in a gradient that does not depend on others."""
    x = leaf(4)
    with pytest.raises(RuntimeError, match="no second derivatives through autograd"):
        torch.autograd.grad(outer(kf.fuse(lambda x: x**3)(x)), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives through autograd"):
        kf.fuse(lambda x: (x**3).sum())(x).backward(create_graph=True)


def test_functorch_is_refused() -> None:
    x, refusal = torch.randn(2, 3), r"torch\.func's grad, vmap and others do not see into fused functions"
    for transform in (torch.func.grad, torch.func.jacrev):
        with pytest.raises(TypeError, match=rf"kfusion\.sin: {refusal}"):
            transform(lambda x: kf.fuse(torch.sin)(x).sum())(x)
    with pytest.raises(TypeError, match=refusal):
        torch.func.grad(lambda x: kf.softmax(x).sum())(x)
    with pytest.raises(TypeError, match=r"kfusion\.<lambda>: x must be a plain tensor, got one of torch\.func"):
        torch.func.vmap(kf.fuse(lambda x: x * 2))(x)
    layer = kf.fuse(nn.Linear(3, 1))
    call = lambda p: torch.func.functional_call(layer, p, (x,)).sum()  # noqa: E731
    with pytest.raises(TypeError, match=refusal):
        torch.func.grad(call)(dict(layer.named_parameters()))


def test_complex_tensors_are_refused() -> None:
    z = torch.zeros(2, dtype=torch.complex64, requires_grad=True)
    with pytest.raises(RuntimeError, match="complex tensors have no gradients here"):
        kf.fuse(lambda z: torch.abs(z).sum())(z)


def test_changed_after_forward() -> None:
    x, w = leaf(3), torch.ones(3, dtype=torch.float64)
    y = kf.fuse(lambda x, w: x * w)(x, w)
    w += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


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


def test_functions_of_kfusion() -> None:
    x, w = leaf(3, 4), leaf(4)
    for f, g in [
        (kf.softmax, lambda x: torch.softmax(x, -1)),
        (kf.fused_softmax, lambda x: torch.softmax(x, -1)),
        (kf.exp, torch.exp),
    ]:
        assert_same(gradients(f, x), gradients(g, x))
    assert_same(gradients(kf.fused_layernorm, x, w), gradients(lambda x, w: F.layer_norm(x, (4,), w), x, w))
    assert_same(gradients(kf.maximum, x, w), gradients(torch.maximum, x, w))


NAMED: dict[str, tuple[tuple[int, ...], ...]] = {  # the shapes of their arguments
    **dict.fromkeys(("relu_layernorm", "layernorm", "mul_add_relu"), ((3, 5), (5,), (5,))),
    **dict.fromkeys(("add_layernorm",), ((3, 5), (3, 5), (5,), (5,))),
    **dict.fromkeys(("softmax", "log_softmax", "gelu"), ((3, 5),)),
    "rmsnorm": ((3, 5), (5,)),
    "add_rmsnorm": ((3, 5), (3, 5), (5,)),
    "batchnorm": ((3, 5), (5,), (5,), (5,), (5,)),
    "bias_relu_log": ((3, 5), (5,)),
    "mse": ((3, 5), (3, 5)),
    "cross_entropy": ((3, 5),),
    "linear_cross_entropy": ((3, 2), (5, 2)),
}


@pytest.mark.parametrize("name", [f.__name__ for f in _named.KERNELS])
def test_named_kernels(name: str) -> None:
    f = getattr(kf, f"fused_{name}")
    tensors = [torch.rand(shape, dtype=torch.float64).add_(0.5).requires_grad_() for shape in NAMED[name]]
    targets = (torch.tensor([1, 4, 0]),) if "cross_entropy" in name else ()
    assert torch.autograd.gradcheck(lambda *t: f(*t, *targets), tensors)


def test_arguments_in_structures() -> None:
    def f(p: Any, scale: float) -> Any:
        return p["x"] * scale + p["more"][0].sum()

    x, y = leaf(3), leaf(2)
    p = {"x": x, "more": [y, torch.arange(3)]}
    assert_same(torch.autograd.grad(kf.fuse(f)(p, 2.5).sum(), [x, y]), torch.autograd.grad(f(p, 2.5).sum(), [x, y]))


class Held:
    def __init__(self, x: Any) -> None:
        self.x = x


def test_objects_that_hold_tensors() -> None:
    x = leaf(3)
    (dx,) = torch.autograd.grad(kf.fuse(lambda h: h.x**2)(Held(x)).sum(), x)
    torch.testing.assert_close(dx, 2 * x.detach())


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


def test_modules_within_modules_and_functions() -> None:
    inner, x = Block().double(), leaf(2, 5, 8)
    params = [p for p in inner.parameters() if p.requires_grad]
    want = torch.autograd.grad(inner(x * 2).sum(), [x, *params])
    outer = nn.Sequential(kf.fuse(inner))
    assert_same(torch.autograd.grad(outer(x * 2).sum(), [x, *params]), want)
    assert_same(torch.autograd.grad(kf.fuse(lambda x: inner(x * 2))(x).sum(), [x, *params]), want)


def test_what_is_computed_of_weights_alone() -> None:
    """Without gradients it is a constant of the trace; autograd sees it in each call."""
    w, x = leaf(4, 3), torch.randn(5, 4, dtype=torch.float64)
    table = nn.Embedding(7, 4).double()

    def f(x: Any) -> Any:
        positions = table(torch.arange(5))
        return (x + positions) @ (w * 2).sin() + w.T.sum(0)[:3].mean() + w.data.sum()

    fused = kf.fuse(f)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(fused(x), f(x))
        assert_same(
            torch.autograd.grad(fused(x).square().sum(), [w, table.weight]),
            torch.autograd.grad(f(x).square().sum(), [w, table.weight]),
        )
        with torch.no_grad():
            table.weight *= 2
    table.requires_grad_(False)
    assert_same(torch.autograd.grad(fused(x).sum(), [w]), torch.autograd.grad(f(x).sum(), [w]))
    table.requires_grad_(True)
    assert_same(torch.autograd.grad(fused(x).sum(), [table.weight]), torch.autograd.grad(f(x).sum(), [table.weight]))


def test_a_replaced_parameter_gets_the_gradient() -> None:
    linear, x = nn.Linear(4, 4).double(), leaf(3, 4)
    fused = kf.fuse(linear)
    fused(x).sum().backward()
    old = linear.weight
    old.grad = None
    linear.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
    fused(x).sum().backward()
    assert old.grad is None
    assert linear.weight.grad is not None


def test_a_weight_that_is_returned() -> None:
    linear, x = nn.Linear(4, 4).double(), leaf(3, 4)
    y, w = kf.fuse(lambda x: (linear(x), linear.weight))(x)
    (y.sum() + (w * 3).sum()).backward()
    torch.testing.assert_close(linear.weight.grad, 3 + x.detach().sum(0).expand(4, 4))


def test_other_dtypes_among_the_arguments() -> None:
    image, x = torch.arange(12, dtype=torch.uint8).reshape(3, 4), leaf(4)
    f = lambda i, x: i.double() / 255 * x + (i > 3) * x  # noqa: E731
    assert_same(gradients(kf.fuse(f), image, x), gradients(f, image, x))


def test_frozen_parameters() -> None:
    linear, x = nn.Linear(4, 4).double(), torch.randn(3, 4, dtype=torch.float64)
    fused = kf.fuse(linear)
    linear.weight.requires_grad_(False)
    fused(x).sum().backward()
    assert linear.weight.grad is None
    torch.testing.assert_close(linear.bias.grad, torch.full((4,), 3.0, dtype=torch.float64))
    linear.weight.requires_grad_(True)
    fused(x).sum().backward()
    torch.testing.assert_close(linear.weight.grad, x.sum(0).expand(4, 4))


def test_checkpoint() -> None:
    block, x = Block().double(), leaf(2, 5, 8)
    fused = kf.fuse(block)
    want = torch.autograd.grad(block(x).sum(), [x, block.up.weight])
    assert_same(torch.autograd.grad(checkpoint(fused, x, use_reentrant=False).sum(), [x, block.up.weight]), want)


def test_the_default_device_is_that_of_the_call() -> None:
    """A device's backward passes run in another thread."""
    x = leaf(5)
    with torch.device("meta"):
        y = kf.fuse(lambda x: x * torch.arange(5.0, device="cpu") + (torch.ones(2).device.type == "meta"))(x)
    assert_same(torch.autograd.grad(y.sum(), [x]), [torch.arange(5.0, dtype=x.dtype)])
    seen = []

    def f(x: Any) -> Any:
        seen.append(torch.get_default_device().type)
        return x.sin()

    with torch.device("meta"):
        y = kf.fuse(f)(x)
    thread = threading.Thread(target=lambda: y.sum().backward())
    thread.start()
    thread.join()
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    tensors = leaf(5, 4), leaf(4, 6), leaf(6)
    low = [t.detach().to(dtype).requires_grad_() for t in tensors]
    wide = [t.detach().double().requires_grad_() for t in low]
    got = gradients(kf.fuse(mixed), *low)
    assert all(g.dtype == dtype for g in got)
    within = 1e-5 if dtype == torch.float32 else 0.05
    for g, w in zip(got, gradients(mixed, *wide), strict=True):
        torch.testing.assert_close(g.double(), w, rtol=within, atol=within * float(w.abs().max()))


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "cross_entropy": lambda x, t: F.cross_entropy(x, t),
    "cross_entropy, smoothed": lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1, ignore_index=2),
    "nll": lambda x, t: F.nll_loss(F.log_softmax(x, -1), t),
    "mse": lambda x, t: F.mse_loss(x, x.detach().roll(1, 0)),
    "l1": lambda x, t: F.l1_loss(x, x.detach().roll(1, 0)),
    "huber": lambda x, t: F.huber_loss(x, x.detach().roll(1, 0)),
    "bce": lambda x, t: F.binary_cross_entropy_with_logits(x, (x.detach() > 0).double()),
    "kl": lambda x, t: F.kl_div(F.log_softmax(x, -1), F.softmax(x.detach().flip(0), -1), reduction="batchmean"),
}


def _alone(name: str) -> Callable[[Any, Any], Any]:
    return lambda x, t: getattr(F, name)(x)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("name", ["cross_entropy", "cross_entropy, smoothed", "nll"])
def test_class_numbers(name: str, dtype: torch.dtype) -> None:
    """uint8 as torch; int32 too, which torch refuses."""
    x, t = leaf(4, 6), torch.tensor([0, 5, 2, 3])
    assert_same(gradients(kf.fuse(LOSSES[name]), x, t.to(dtype)), gradients(LOSSES[name], x, t))
    with pytest.raises((RuntimeError, TypeError)):
        kf.fuse(LOSSES[name])(x, t.to(torch.int8))


LAYERS: dict[str, Callable[[Any, Any], Any]] = {
    name: _alone(name)
    for name in ("relu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "hardtanh", "relu6", "hardswish",
                 "hardsigmoid", "leaky_relu", "logsigmoid", "softsign", "tanhshrink", "hardshrink", "softshrink")
}  # fmt: skip
LAYERS |= {
    "glu": lambda x, t: F.glu(x, -1),
    "rms_norm": lambda x, t: F.rms_norm(x, (6,)),
    "normalize": lambda x, t: F.normalize(x),
    "embedding": lambda x, t: F.embedding(t, x),
    "index": lambda x, t: x[t, 1:] * x[:, t.flip(0)][:, :1],
    "gather": lambda x, t: x.gather(1, t[:, None].expand(4, 3)),
    "scatter": lambda x, t: torch.zeros_like(x).scatter_add(1, t[:, None].expand(4, 3), x[:, :3] * 2),
    "cumsum": lambda x, t: x.cumsum(1) * x.cumprod(0),
    "max": lambda x, t: x.max(1).values * x.amax(1),
    "sorted": lambda x, t: x.sort(-1).values.prod(0),
    "einsum": lambda x, t: torch.einsum("ij,kj->ik", x, x.sin()),
    "conv1d": lambda x, t: F.conv1d(x[None], x[:, None, :3].repeat(1, 4, 1), padding=1),
    "conv2d": lambda x, t: F.conv2d(x[None, None], x[None, None, :2, :3], stride=2, padding=1),
    "conv2d, grouped": lambda x, t: F.conv2d(
        x.reshape(1, 4, 3, 2), x[:, :2].reshape(4, 2, 1, 1).sin(), stride=(2, 1), padding=(1, 2), groups=2
    ),
    "max_pool": lambda x, t: F.max_pool2d(x[None], 2),
    "avg_pool": lambda x, t: F.avg_pool2d(x[None], 2),
    "interpolate": lambda x, t: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "pad": lambda x, t: F.pad(x, (1, 2), mode="constant", value=3.0),
    "masked": lambda x, t: x.masked_fill(x > 0.5, -1.0).softmax(-1),
    "batch_norm": lambda x, t: F.batch_norm(x, torch.zeros(6).double(), torch.ones(6).double()),
    "std": lambda x, t: x.std(0) + x.var(1).mean(),
    "norm": lambda x, t: x.norm(dim=1) + torch.linalg.vector_norm(x, 3),
    "clamp": lambda x, t: x.clamp(-0.5, 0.7) + x.clamp_min(0.1),
    "in place": lambda x, t: (lambda y: y.mul_(2).add_(x))(x * 1),
}


@pytest.mark.parametrize("name", [*LOSSES, *LAYERS])
def test_torchs_functions(name: str) -> None:
    f = (LOSSES | LAYERS)[name]
    x, t = leaf(4, 6), torch.tensor([1, 3, 0, 3])
    assert_same(gradients(kf.fuse(f), x, t), gradients(f, x, t))


EDGES: dict[str, Callable[[Any], Any]] = {
    name: getattr(F, name)
    for name in ("relu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "hardtanh", "relu6", "hardswish",
                 "leaky_relu", "logsigmoid", "softsign", "tanhshrink", "hardshrink", "softshrink")
}  # fmt: skip
EDGES |= {
    "abs": torch.abs,
    "sqrt": torch.sqrt,
    "power": lambda x: x**2 + x**3 + x**0,
    "clamp": lambda x: x.clamp(-1, 3),
    "clamp_min": lambda x: x.clamp(min=0) + x.clamp_max(1.0),
    "clamp by tensors": lambda x: x.clamp(min=torch.zeros(())) + torch.clamp_max(x, x.detach()),
    "max along": lambda x: x.reshape(2, 5).max(1).values + x.reshape(2, 5).min(1).values,
    "amax": lambda x: x.amax() + x.max(),
    "remainder": lambda x: torch.remainder(x, 2.0) + torch.fmod(x, 2.0),
    "sinc": torch.sinc,
    "norm": lambda x: x[:2].norm() + torch.linalg.vector_norm(x[:2], 3),
    "normalize": lambda x: F.normalize(x.reshape(5, 2)),
    "std": lambda x: x[:2].std() * 2,
    "prod": lambda x: x[:3].prod() + x[2:6].prod(),
    "xlogy": lambda x: torch.xlogy(x.abs(), x.abs() + 1),
}


@pytest.mark.parametrize("name", EDGES)
def test_at_edges(name: str) -> None:
    """At zeros, ties, bounds and beyond what exponentials hold."""
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 6.0, 0.5, 1000.0, -1000.0], dtype=torch.float64).requires_grad_()
    assert_same(gradients(kf.fuse(EDGES[name]), x), gradients(EDGES[name], x))


def test_numpy_arrays_are_as_before() -> None:
    assert isinstance(kf.fuse(np.sin)(np.ones(3)), np.ndarray)


LARGE = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "gelu of layer_norm": lambda x: F.gelu(F.layer_norm(x, x.shape[-1:])),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("shape", [(2200, 1031), (8192, 256)])
def test_results_that_go_past_the_cache(name: str, shape: tuple[int, int]) -> None:
    """Those of a pass do earlier than those of other calls, which have the same bits."""
    x, g = leaf(*shape, dtype=torch.float32), torch.randn(shape)
    fused = kf.fuse(LARGE[name])
    y = fused(x)
    with torch.no_grad():
        assert torch.equal(y, fused(x))
    want = torch.autograd.grad(LARGE[name](x), x, g)
    torch.testing.assert_close(torch.autograd.grad(y, x, g), want, rtol=1e-4, atol=1e-4)


def _without_grad(x: Any, y: Any) -> Any:
    with torch.no_grad():
        s = y.sum()
    return x * s


# Torch has no gradient of y, or one of zeros.
USES_OF_Y: dict[str, Callable[..., Any]] = {
    "none": lambda x, y: x * 2,
    "its shape": lambda x, y: x.reshape(y.shape) * 2,
    "detached": lambda x, y: x * y.detach(),
    "under no_grad": _without_grad,
    "in a comparison": lambda x, y: torch.where(y > 0, x, -x),
    "as integers": lambda x, y: x * y.long() + (y.long() + 1).double() * x,
    "a position": lambda x, y: x[y.argmax()] * x,
    "in another result": lambda x, y: (x * 2, y * 3),
    "sorted, for the positions": lambda x, y: x[y.sort()[1]],
    "with what only compares": lambda x, y: x * torch.where((y > 0) & (y.isnan() | True), 1.0, 2.0),
    "rounded": lambda x, y: x * y.round(),
    "its sign": lambda x, y: x + y.sign(),
    "times 0": lambda x, y: x + y * 0,
    "to the power of 0": lambda x, y: x + y**0,
    "in a library's call": lambda x, y: x + torch.cumsum(y, 0),
    "in a library's call, detached": lambda x, y: x + torch.cumsum(y.detach(), 0),
}


@pytest.mark.parametrize("use", USES_OF_Y)
def test_a_gradient_is_none_where_torchs_is(use: str) -> None:
    """An optimizer moves and decays what has a gradient of zeros."""
    f, found = USES_OF_Y[use], []
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


def test_parameters_that_a_module_does_not_use_have_no_gradients() -> None:
    class Unused(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.scale = torch.nn.Parameter(torch.ones(4))

        def forward(self, x: Any) -> Any:
            return self.used(x) * self.scale.detach()

    model = Unused()
    kf.fuse(model)(torch.randn(3, 4)).sum().backward()
    named = dict(model.named_parameters())
    assert {n for n, p in named.items() if p.grad is not None} == {"used.weight", "used.bias"}
