"""Normalisations with running statistics, in training: torch's results, gradients and buffers, call by call."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest

import kfusion as kf
from sweeps import sweep

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

SHAPES = [(4, 3), (16, 1), (5, 3, 7), (4, 3, 5, 6), (1, 2, 3, 3), (3, 2, 4, 3, 2)]
MODULES = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
INSTANCES = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
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
    torch.testing.assert_close(dict(got.state_dict()), dict(want.state_dict()), **tolerance)


def require_same(module: Any, fused: Any, x: Any, dtype: torch.dtype = torch.float64) -> None:
    """Results, gradients of a weighted sum, and buffers."""
    x.requires_grad_()
    y, want = fused(x), module(x)
    torch.testing.assert_close(y, want, **TOLERANCE[dtype])
    g = torch.randn_like(y)
    got = torch.autograd.grad(y, (x, *fused.parameters()), g)
    torch.testing.assert_close(got, torch.autograd.grad(want, (x, *module.parameters()), g), **TOLERANCE[dtype])
    assert_same_state(fused, module)


def test_training(some: Any) -> None:
    def check(shape: tuple[int, ...], dtype: torch.dtype, last: bool) -> None:
        module, fused = made(MODULES[len(shape)], shape[1], dtype)
        for _ in range(3):
            require_same(module, fused, of(shape, dtype, last), dtype)
        assert fused.num_batches_tracked == 3

    sweep(check, some(itertools.product(SHAPES, TOLERANCE, [False, True]), 6))


def test_options_and_modes(some: Any) -> None:
    """Modes alternate; in another mode nothing is written."""

    def check(kind: Any, shape: tuple[int, ...], options: dict[str, Any]) -> None:
        module, fused = made(kind, shape[1], **options)
        for training in (True, False, False, True, True, False):
            module.train(training)
            fused.train(training)
            versions = [v._version for v in fused.buffers()]
            require_same(module, fused, of(shape))
            assert training or versions == [v._version for v in fused.buffers()]
        if hasattr(fused, "reset_running_stats"):
            fused.reset_running_stats()
            module.reset_running_stats()
            require_same(module.train(), fused.train(), of(shape))

    options = [{}, {"affine": False}, {"momentum": 0.3}, {"momentum": 1.0}, {"momentum": None}, {"eps": 1e-2}]
    rows = [(nn.BatchNorm2d, (4, 3, 5, 6), o) for o in (*options, {"track_running_stats": False})]
    instances = {"affine": True, "track_running_stats": True}
    rows += [(INSTANCES[len(s)], s, instances) for s in [(4, 3, 7), (4, 3, 5, 6), (3, 2, 4, 3, 2)]]
    sweep(check, some(rows, 5))


def test_other_sizes() -> None:
    module, fused = made(nn.BatchNorm2d, 3)
    for shape in ((4, 3, 5, 6), (2, 3, 7, 6), (9, 3, 2, 2), (4, 3, 1, 8), (1, 3, 4, 4)):
        require_same(module, fused, of(shape))


def test_backward_repeats_no_update() -> None:
    """Several forward calls come before backward, which comes in another order, thrice, in another mode."""
    module, fused = made(nn.BatchNorm1d, 3)
    xs = [of((8, 3)).requires_grad_() for _ in range(3)]
    ys, wants = [fused(x) for x in xs], [module(x) for x in xs]
    fused.eval()
    for x, y, want in list(zip(xs, ys, wants, strict=True))[::-1] * 3:
        got, expected = (torch.autograd.grad(v.square().sum(), x, retain_graph=True) for v in (y, want))
        torch.testing.assert_close(got, expected)
    assert_same_state(fused, module)
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
    counts = Counts(REFUSED[0]).requires_grad_(False)
    with pytest.raises(RuntimeError, match=r"vjp.*writes to arrays that its gradients need.*value_and_grad"):
        kf.vjp(lambda x: counts(x), x)
    assert not counts.seen.any()


def test_in_functions() -> None:
    """Statistics as arguments, and as tensors that the function names."""
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    want_mean, want_var = mean.clone(), var.clone()
    x = of((8, 3)).requires_grad_()
    named = lambda x: F.batch_norm(x, mean, var, training=True)  # noqa: E731
    given = lambda x, mean, var: F.batch_norm(x, mean, var, training=True, momentum=0.2)  # noqa: E731
    torch.testing.assert_close(kf.fuse(named)(x), F.batch_norm(x, want_mean, want_var, training=True))
    torch.testing.assert_close((mean, var), (want_mean, want_var))
    y, want = kf.fuse(given)(x, mean, var), given(x, want_mean, want_var)
    torch.testing.assert_close(*(torch.autograd.grad(v.square().sum(), x) for v in (y, want)))
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


def test_odd_values() -> None:
    """One value per channel is refused; those that are not finite are as torch's."""
    module, fused = made(nn.BatchNorm1d, 3)
    before = copy.deepcopy(fused.state_dict())
    for m in (module, fused):
        with pytest.raises(ValueError, match="Expected more than 1 value per channel when training, got input size"):
            m(torch.ones(1, 3, dtype=torch.float64))
    for name in ("running_mean", "running_var"):
        assert torch.equal(fused.state_dict()[name], before[name])
    module, fused = made(nn.BatchNorm1d, 3)
    x = of((8, 3))
    x[2, 0], x[3, 1] = float("nan"), float("inf")
    with torch.no_grad():
        torch.testing.assert_close(fused(x), module(x), equal_nan=True)
    assert_same_state(fused, module, equal_nan=True)


# ---- other writes of functions with gradients ----


class Counts(nn.Module):
    """Writes to a buffer as a text says, of x and y."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.register_buffer("seen", torch.zeros(3, dtype=torch.float64))
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        return WRITES[self.text](self, x, x * self.weight)


def without_grad(self: Any, x: Any, y: Any) -> Any:
    with torch.no_grad():
        self.seen.mul_(0.5).add_(x.mean(0), alpha=0.5)
    return y


WRITES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "apart": lambda self, x, y: (self.seen.add_(x.detach().mean(0)), y)[1],
    "no_grad": without_grad,
    "read before": lambda self, x, y: (y * self.seen, self.seen.add_(1))[0],
    "read after": lambda self, x, y: (self.seen.add_(1), y * self.seen)[1],
    "of gradients": lambda self, x, y: (self.seen.copy_(y.mean(0)), y)[1],
    "returned": lambda self, x, y: (y, self.seen.add_(1)),
}
REFUSED = [*WRITES][2:]


def test_buffers_apart_from_gradients() -> None:
    for kind in ("apart", "no_grad"):
        eager = Counts(kind)
        fused = kf.fuse(copy.deepcopy(eager))
        for _ in range(3):
            require_same(eager, fused, of((8, 3)))


def test_writes_that_gradients_need_are_refused() -> None:
    def check(kind: str) -> None:
        fused = kf.fuse(Counts(kind))
        with pytest.raises(RuntimeError, match=r"writes to arrays that its gradients need.*torch\.no_grad"):
            fused(of((8, 3)).requires_grad_())
        assert not fused.seen.any()
        with torch.no_grad():
            fused(of((8, 3)))

    sweep(check, [(kind,) for kind in REFUSED])
    f = kf.fuse(lambda x, y: (y.mul_(2), x * 3)[1])
    x, y = of((4, 3)).requires_grad_(), of((4, 3)).requires_grad_()
    with pytest.raises(RuntimeError, match="writes to arrays that its gradients need"):
        f(x, y)
    plain = y.detach().clone()
    z = f(x, plain)
    torch.testing.assert_close(plain, y.detach() * 2)
    assert torch.equal(torch.autograd.grad(z.sum(), x)[0], torch.full((4, 3), 3.0, dtype=torch.float64))
