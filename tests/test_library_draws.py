"""Random numbers in traced functions: what functions of torch's draw, both passes see, and generators move as in eager
torch. What the function itself draws is refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kfusion as kf

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def attended() -> Callable[..., Any]:
    layer = nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True)
    return lambda x: layer(x, x, x)[0]


def recurrent() -> Callable[..., Any]:
    layer = nn.LSTM(6, 4, 2, dropout=0.5, batch_first=True)
    return lambda x: layer(x)[0]


DRAWS: dict[str, Callable[[], Callable[..., Any]]] = {
    "attention": attended,
    "lstm": recurrent,
    "fractional_max_pool": lambda: lambda x: F.fractional_max_pool2d(x[None], 2, output_size=(2, 3)),
    "bernoulli_": lambda: lambda x: x * torch.empty_like(x).bernoulli_(0.5) * 2,
    "uniform_": lambda: lambda x: x * x.clone().uniform_(),
    "normal_": lambda: lambda x: x.exp() + x * (x * 0).normal_(),
    "exponential_": lambda: lambda x: x * (x * 0).exponential_(),
    "several": lambda: lambda x: (x * 2).sin() * (x * 0).normal_() + x.cos() * (x * 0).uniform_(),
    "kf.call": lambda: lambda x: kf.call(lambda x: F.dropout(x, 0.5), x * 2, result=x) ** 2,
}


def step(function: Callable[..., Any], x: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Result and gradient, and the state of the generator behind each pass."""
    torch.manual_seed(3)
    given = x.clone().requires_grad_()
    y = function(given)
    after = torch.get_rng_state()
    (g,) = torch.autograd.grad(y.square().sum(), given)
    return [y.detach(), g], [after, torch.get_rng_state()]


@pytest.mark.parametrize("name", DRAWS)
def test_both_passes_see_the_same(name: str) -> None:
    torch.manual_seed(0)
    function = DRAWS[name]()
    eager = (lambda x: F.dropout(x * 2, 0.5) ** 2) if name == "kf.call" else function
    fused = kf.fuse(function)
    for shape in [(2, 5, 6), (2, 7, 6), (3, 5, 6), (3, 4, 6)]:
        x = torch.randn(shape)
        want, moved = step(eager, x)
        for context in (torch.enable_grad, torch.no_grad, torch.enable_grad):
            torch.manual_seed(3)
            with context():
                torch.testing.assert_close(fused(x).detach(), want[0])
            assert torch.equal(torch.get_rng_state(), moved[0])
            found, states = step(fused, x)
            torch.testing.assert_close(found, want)
            assert torch.equal(states[0], moved[0])
            assert torch.equal(states[1], moved[1])
        torch.manual_seed(3)
        y, pull = kf.vjp(function, x)
        torch.testing.assert_close([y.detach(), pull(2 * y.detach())[0]], want)
        assert torch.equal(torch.get_rng_state(), moved[0])
        torch.manual_seed(3)
        torch.testing.assert_close(kf.grad(lambda x: function(x).square().sum())(x), want[1])


def test_backward_later_and_out_of_order() -> None:
    fused = kf.fuse(lambda x: x * (x * 0).normal_())
    x = torch.ones(50, requires_grad=True)
    made = [fused(x) for _ in range(4)]
    for y in reversed(made):
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], y.detach())


def test_a_generator_that_a_call_is_given() -> None:
    own = torch.Generator()
    function = lambda x: x.exp() * (x * 0).normal_(generator=own)  # noqa: E731
    fused, x = kf.fuse(function), torch.randn(20)
    own.manual_seed(5)
    want = [step(function, x)[0] for _ in range(3)]
    own.manual_seed(5)
    torch.testing.assert_close([step(fused, x)[0] for _ in range(3)], want)


def test_each_call_moves_the_generator_once() -> None:
    """A fused dropout draws one seed, whoever called it before, and however."""
    model = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5))
    fused, x = kf.fuse(model), torch.randn(4, 5)
    torch.manual_seed(3)
    torch.empty((), dtype=torch.int64).random_(2**53)
    want = torch.get_rng_state()
    out = torch.empty(4, 10)[:, ::2]
    for context, options in [
        (torch.no_grad, {}),
        (torch.enable_grad, {}),
        (torch.no_grad, {"out": out}),
        (torch.enable_grad, {}),
        (torch.inference_mode, {}),
        (torch.no_grad, {"out": out}),
    ]:
        torch.manual_seed(3)
        with context():
            fused(x, **options)
        assert torch.equal(torch.get_rng_state(), want)


# ---- generators of the function's own ----

GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "numpy.random.Generator": (np.random.default_rng, lambda rng: rng.random(4)),
    "numpy.random.RandomState": (np.random.RandomState, lambda rng: rng.rand(4)),
    "numpy.random.BitGenerator": (np.random.PCG64, lambda rng: float(rng.random_raw() % 7)),
    "random.Random": (random.Random, lambda rng: rng.random()),
    "torch.Generator": (torch.Generator, lambda rng: torch.rand(4, generator=rng).numpy()),
}
_shared: Any = None


def ways(rng: Any, draw: Callable[[Any], Any]) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Functions that draw from it, and what else they are given."""
    global _shared
    _shared = rng
    held, listed = SimpleNamespace(rng=rng), {"all": [rng]}
    return {
        "closure": (lambda x: x + draw(rng), ()),
        "global": (lambda x: x + draw(_shared), ()),
        "attribute": (lambda x: x + draw(held.rng), ()),
        "entry": (lambda x: x + draw(listed["all"][0]), ()),
        "argument": (lambda x, given: x + draw(given), (rng,)),
        "default": (lambda x, given=rng: x + draw(given), ()),
    }


@pytest.mark.parametrize("kind", GENERATORS)
def test_drawing_from_a_generator_is_refused(kind: str) -> None:
    make, draw = GENERATORS[kind]
    x = np.ones(4)
    for function, others in ways(make(), draw).values():
        for traced in (kf.fuse(function), lambda *args, f=function: kf.trace(f, *args)):
            with pytest.raises(kf.TraceError, match=rf"draws from a {kind}, which is not traced: random numbers"):
                traced(x, *others)


def test_a_generator_of_a_module() -> None:
    class Noisy(nn.Module):
        def __init__(self, rng: Any) -> None:
            super().__init__()
            self.rng, self.is_used = rng, True

        def forward(self, x: Any) -> Any:
            return x + torch.rand(4, generator=self.rng) if self.is_used else x + 1

    noisy, x = Noisy(torch.Generator()), torch.ones(4)
    with pytest.raises(kf.TraceError, match=r"draws from a torch.Generator"):
        kf.fuse(noisy)(x)
    noisy.is_used = False
    assert kf.fuse(noisy)(x).tolist() == [2.0] * 4


def test_generators_that_are_made_inside_are_no_matter() -> None:
    fused = kf.fuse(lambda x: x + np.random.default_rng(3).random(4))
    np.testing.assert_array_equal(fused(np.zeros(4)), np.random.default_rng(3).random(4))
