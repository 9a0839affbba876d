"""Normalisations with running statistics, in training: torch's results, gradients and buffers, call by call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

import kfusion as kf

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

SHAPES = [(4, 3), (16, 1), (5, 3, 7), (4, 3, 5, 6), (1, 2, 3, 3), (3, 2, 4, 3, 2)]
MODULES = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
TOLERANCE: dict[torch.dtype, dict[str, float]] = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-12},
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def of(shape: tuple[int, ...], dtype: torch.dtype = torch.float64, last: bool = False) -> torch.Tensor:
    """Numbers with a mean and a variance of their own in each channel."""
    x = torch.randn(shape, dtype=dtype)
    channel = torch.arange(shape[1], dtype=dtype).reshape(-1, *(1,) * (len(shape) - 2))
    x = x * (channel + 1) + 3 * channel
    order = (0, *range(2, len(shape)), 1)
    return x.permute(order).contiguous().permute(0, len(shape) - 1, *range(1, len(shape) - 1)) if last else x


def made(
    kind: Callable[..., Any], channels: int, dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[Any, Any]:
    """A module with weights of its own, and a fused copy."""
    module = kind(channels, **options).to(dtype)
    if module.affine:
        nn.init.normal_(module.weight)
        nn.init.normal_(module.bias)
    return module, kf.fuse(copy.deepcopy(module))


def assert_same_state(got: Any, want: Any, **tolerance: float) -> None:
    assert got.state_dict().keys() == want.state_dict().keys()
    for name, value in want.state_dict().items():
        torch.testing.assert_close(got.state_dict()[name], value, **tolerance)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_training(shape: tuple[int, ...], dtype: torch.dtype, last: bool) -> None:
    module, fused = made(MODULES[len(shape)], shape[1], dtype)
    for _ in range(3):
        x = of(shape, dtype, last).requires_grad_()
        y, want = fused(x), module(x)
        torch.testing.assert_close(y, want, **TOLERANCE[dtype])
        g = torch.randn_like(y)
        got = torch.autograd.grad(y, (x, *fused.parameters()), g)
        for a, b in zip(got, torch.autograd.grad(want, (x, *module.parameters()), g), strict=True):
            torch.testing.assert_close(a, b, **TOLERANCE[dtype])
        assert_same_state(fused, module)
    assert fused.num_batches_tracked == 3


@pytest.mark.parametrize("options", [{"affine": False}, {"momentum": 0.3}, {"momentum": 1.0}, {"eps": 1e-2}])
def test_options(options: dict[str, Any]) -> None:
    module, fused = made(nn.BatchNorm2d, 3, **options)
    for _ in range(2):
        x = of((4, 3, 5, 6))
        with torch.no_grad():
            torch.testing.assert_close(fused(x), module(x))
        assert_same_state(fused, module)


def test_a_cumulative_average() -> None:
    module, fused = made(nn.BatchNorm1d, 3, momentum=None)
    for i in range(4):
        x = of((8, 3)).requires_grad_()
        y, want = fused(x), module(x)
        torch.testing.assert_close(y, want)
        assert_same_state(fused, module)
        (g,), (w,) = (torch.autograd.grad(v.square().sum(), x) for v in (y, want))
        torch.testing.assert_close(g, w)
        assert fused.num_batches_tracked == i + 1
    fused.reset_running_stats()
    module.reset_running_stats()
    fused(x), module(x)
    assert_same_state(fused, module)


def test_without_running_statistics() -> None:
    module, fused = made(nn.BatchNorm1d, 3, track_running_stats=False)
    for training in (True, False):
        module.train(training)
        fused.train(training)
        x = of((8, 3)).requires_grad_()
        torch.testing.assert_close(fused(x), module(x))


def test_modes_alternate() -> None:
    module, fused = made(nn.BatchNorm2d, 3)
    for training in (True, False, False, True, True, False):
        module.train(training)
        fused.train(training)
        x = of((4, 3, 5, 6)).requires_grad_()
        y, want = fused(x), module(x)
        torch.testing.assert_close(y, want)
        for a, b in zip(
            torch.autograd.grad(y.square().sum(), (x, *fused.parameters())),
            torch.autograd.grad(want.square().sum(), (x, *module.parameters())),
            strict=True,
        ):
            torch.testing.assert_close(a, b)
        assert_same_state(fused, module)


def test_eval_writes_nothing() -> None:
    _, fused = made(nn.BatchNorm1d, 3)
    fused.eval()
    before = {name: (v.clone(), v._version) for name, v in fused.named_buffers()}
    fused(of((8, 3)).requires_grad_()).sum().backward()
    for name, v in fused.named_buffers():
        assert torch.equal(v, before[name][0])
        assert v._version == before[name][1]


def test_backward_repeats_no_update() -> None:
    module, fused = made(nn.BatchNorm1d, 3)
    x = of((8, 3)).requires_grad_()
    y, want = fused(x), module(x)
    state = copy.deepcopy(fused.state_dict())
    for _ in range(3):
        (g,) = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
        (w,) = torch.autograd.grad(want.square().sum(), x, retain_graph=True)
        torch.testing.assert_close(g, w)
    for name, value in state.items():
        assert torch.equal(fused.state_dict()[name], value)


def test_several_forward_calls_before_backward() -> None:
    module, fused = made(nn.BatchNorm1d, 3)
    xs = [of((8, 3)).requires_grad_() for _ in range(3)]
    ys, wants = [fused(x) for x in xs], [module(x) for x in xs]
    for x, y, want in list(zip(xs, ys, wants, strict=True))[::-1]:
        (g,), (w,) = (torch.autograd.grad(v.square().sum(), x) for v in (y, want))
        torch.testing.assert_close(g, w)
    assert_same_state(fused, module)


def test_the_mode_may_change_before_backward() -> None:
    module, fused = made(nn.BatchNorm1d, 3)
    x = of((8, 3)).requires_grad_()
    y, want = fused(x), module(x)
    fused.eval()
    (g,), (w,) = (torch.autograd.grad(v.square().sum(), x) for v in (y, want))
    torch.testing.assert_close(g, w)
    assert not fused.training
    torch.testing.assert_close(fused(x), module.eval()(x))


def test_a_network_trains_as_eagerly() -> None:
    def network() -> Any:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.Conv2d(8, 4, 3, padding=1), nn.BatchNorm2d(4, momentum=None), nn.ReLU(),
            nn.Flatten(), nn.Linear(4 * 36, 5), nn.BatchNorm1d(5),
        ).double()  # fmt: skip

    eager = network()
    other = copy.deepcopy(eager)
    fused = kf.fuse(other)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (eager, other)]
    for _ in range(4):
        x, target = torch.randn(7, 3, 6, 6, dtype=torch.float64), torch.randint(5, (7,))
        for model, optimizer in zip((eager, fused), optimizers, strict=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), target).backward()
            optimizer.step()
        assert_same_state(other, eager, rtol=1e-8, atol=1e-10)


def test_pullbacks_and_gradients_in_one_graph() -> None:
    """kf.vjp writes with the results, kf.value_and_grad once."""
    x, g = of((8, 3)), torch.randn(8, 3, dtype=torch.float64)
    module, fused = made(nn.BatchNorm1d, 3)
    module.requires_grad_(False)
    fused.requires_grad_(False)
    y, pull = kf.vjp(lambda x: fused(x), x)
    leaf = x.clone().requires_grad_()
    want = module(leaf)
    torch.testing.assert_close(y, want.detach())
    for _ in range(2):
        torch.testing.assert_close(pull(g)[0], torch.autograd.grad(want, leaf, g, retain_graph=True)[0])
        assert_same_state(fused, module)
    _, gradient = kf.value_and_grad(lambda x: (fused(x) * g).sum())(x)
    torch.testing.assert_close(gradient, torch.autograd.grad(module(leaf), leaf, g)[0])
    assert_same_state(fused, module)
    counts = Counts("read before").requires_grad_(False)
    with pytest.raises(RuntimeError, match=r"vjp.*writes to arrays that its gradients need.*value_and_grad"):
        kf.vjp(lambda x: counts(x), x)
    assert not counts.seen.any()


def test_in_functions() -> None:
    """Statistics as arguments, and as tensors that the function names."""
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)

    def named(x: Any) -> Any:
        return F.batch_norm(x, mean, var, training=True)

    def given(x: Any, mean: Any, var: Any) -> Any:
        return F.batch_norm(x, mean, var, training=True, momentum=0.2)

    x = of((8, 3)).requires_grad_()
    y = kf.fuse(named)(x)
    want_mean, want_var = torch.zeros_like(mean), torch.ones_like(var)
    want = F.batch_norm(x, want_mean, want_var, training=True)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close((mean, var), (want_mean, want_var))
    y, want = kf.fuse(given)(x, mean, var), F.batch_norm(x, want_mean, want_var, training=True, momentum=0.2)
    (g,), (w,) = (torch.autograd.grad(v.square().sum(), x) for v in (y, want))
    torch.testing.assert_close(g, w)
    torch.testing.assert_close((mean, var), (want_mean, want_var))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types(dtype: torch.dtype) -> None:
    """With weights and statistics in float32."""
    module, fused = made(nn.BatchNorm2d, 3, torch.float32)
    x = of((4, 3, 5, 6), torch.float32).to(dtype).requires_grad_()
    y, want = fused(x), module(x.detach().float())
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), want, rtol=2e-2, atol=2e-2)
    assert_same_state(fused, module, rtol=1e-4, atol=1e-5)
    y.float().square().sum().backward()
    assert x.grad.isfinite().all()


def test_other_sizes() -> None:
    module, fused = made(nn.BatchNorm2d, 3)
    for shape in ((4, 3, 5, 6), (2, 3, 7, 6), (9, 3, 2, 2), (4, 3, 1, 8), (1, 3, 4, 4)):
        x = of(shape).requires_grad_()
        y, want = fused(x), module(x)
        torch.testing.assert_close(y, want)
        (g,), (w,) = (torch.autograd.grad(v.square().sum(), x) for v in (y, want))
        torch.testing.assert_close(g, w)
        assert_same_state(fused, module)


def test_one_value_per_channel() -> None:
    module, fused = made(nn.BatchNorm1d, 3)
    before = copy.deepcopy(fused.state_dict())
    for m in (module, fused):
        with pytest.raises(ValueError, match="Expected more than 1 value per channel when training, got input size"):
            m(torch.ones(1, 3, dtype=torch.float64))
    for name in ("running_mean", "running_var"):
        assert torch.equal(fused.state_dict()[name], before[name])


def test_values_that_are_not_finite() -> None:
    module, fused = made(nn.BatchNorm1d, 3)
    x = of((8, 3))
    x[2, 0], x[3, 1] = float("nan"), float("inf")
    with torch.no_grad():
        torch.testing.assert_close(fused(x), module(x), equal_nan=True)
    for a, b in zip(fused.buffers(), module.buffers(), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("shape", [(4, 3, 7), (4, 3, 5, 6), (3, 2, 4, 3, 2)])
def test_instance_norm(shape: tuple[int, ...]) -> None:
    kind = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}[len(shape)]
    module, fused = made(kind, shape[1], affine=True, track_running_stats=True)
    for training in (True, True, False):
        module.train(training)
        fused.train(training)
        x = of(shape).requires_grad_()
        y, want = fused(x), module(x)
        torch.testing.assert_close(y, want)
        g = torch.randn_like(y)
        for a, b in zip(
            torch.autograd.grad(y, (x, *fused.parameters()), g),
            torch.autograd.grad(want, (x, *module.parameters()), g),
            strict=True,
        ):
            torch.testing.assert_close(a, b)
        assert_same_state(fused, module)


# ---- other writes of functions with gradients ----


class Counts(nn.Module):
    """Writes to a buffer in one of several ways."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("seen", torch.zeros(3, dtype=torch.float64))
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        y = x * self.weight
        if self.kind == "apart":
            self.seen.add_(x.detach().mean(0))
        elif self.kind == "no_grad":
            with torch.no_grad():
                self.seen.mul_(0.5).add_(x.mean(0), alpha=0.5)
        elif self.kind == "read before":
            y = y * self.seen
            self.seen.add_(1)
        elif self.kind == "read after":
            self.seen.add_(1)
            y = y * self.seen
        elif self.kind == "of gradients":
            self.seen.copy_(y.mean(0))
        elif self.kind == "returned":
            self.seen.add_(1)
            return y, self.seen
        return y


@pytest.mark.parametrize("kind", ["apart", "no_grad"])
def test_buffers_apart_from_gradients(kind: str) -> None:
    eager = Counts(kind)
    fused = kf.fuse(copy.deepcopy(eager))
    for _ in range(3):
        x = of((8, 3)).requires_grad_()
        for a, b in zip(
            *(torch.autograd.grad(m(x).square().sum(), (x, m.weight)) for m in (eager, fused)), strict=True
        ):
            torch.testing.assert_close(a, b)
        torch.testing.assert_close(fused.seen, eager.seen)


@pytest.mark.parametrize("kind", ["read before", "read after", "of gradients", "returned"])
def test_buffers_that_gradients_need_are_refused(kind: str) -> None:
    fused = kf.fuse(Counts(kind))
    before = fused.seen.clone()
    with pytest.raises(RuntimeError, match=r"writes to arrays that its gradients need.*torch\.no_grad"):
        fused(of((8, 3)).requires_grad_())
    assert torch.equal(fused.seen, before)
    with torch.no_grad():
        fused(of((8, 3)))


def test_a_written_argument_that_requires_grad_is_refused() -> None:
    def f(x: Any, y: Any) -> Any:
        y.mul_(2)
        return x * 3

    x, y = of((4, 3)).requires_grad_(), of((4, 3)).requires_grad_()
    with pytest.raises(RuntimeError, match="writes to arrays that its gradients need"):
        kf.fuse(f)(x, y)
    plain = y.detach().clone()
    before = plain.clone()
    z = kf.fuse(f)(x, plain)
    torch.testing.assert_close(plain, before * 2)
    assert torch.equal(torch.autograd.grad(z.sum(), x)[0], torch.full((4, 3), 3.0, dtype=torch.float64))
