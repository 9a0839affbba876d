"""What calls leave behind: no array waits for a garbage collection, since that may come many steps later."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kfusion as kf

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kfusion._torch_compile.backend import backend  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(31, 16), nn.LayerNorm(16)
        self.heads, self.head = nn.Linear(16, 48), nn.Linear(16, 31)

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens)
        n, s, d = x.shape
        q, k, v = (t.view(n, s, 4, d // 4).transpose(1, 2) for t in self.heads(self.norm(x)).split(d, -1))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, s, d)
        return F.cross_entropy(self.head(F.gelu(x)).flatten(0, 1), tokens.flatten())


def _loss(x: Any, w: Any) -> Any:
    return kf.mean(kf.gelu(x @ w) * kf.softmax(x @ w))


def _numpy() -> Callable[[], Any]:
    x, w = np.ones((6, 5), np.float32), np.ones((5, 4), np.float32)
    f, g = kf.fuse(_loss), kf.fuse(kf.value_and_grad(_loss))
    return lambda: (f(x, w), g(x, w))


def _torch() -> Callable[[], Any]:
    x, w = torch.ones(6, 5), torch.ones(5, 4, requires_grad=True)
    f = kf.fuse(_loss)
    return lambda: (f(x, w).backward(), f(x, w))


def _module() -> Callable[[], Any]:
    model, tokens = kf.fuse(Model()), torch.arange(12).view(3, 4)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _optimizer() -> Callable[[], Any]:
    parameters = [torch.ones(5, 4), torch.ones(7)]
    optimizer = kf.optim.AdamW(parameters)
    for p in parameters:
        p.grad = torch.ones_like(p)
    return optimizer.step


def _each() -> Callable[[], Any]:
    xs, steps = [torch.ones(3, 5), torch.ones(7)], [torch.ones(3, 5), torch.ones(7)]

    def descend(x: Any, step: Any) -> None:
        x -= kf.tanh(step)

    f = kf.for_each(descend)
    return lambda: f(xs, steps)


def _compiled(trains: bool = True) -> Callable[[], Any]:
    torch._dynamo.reset()
    model, tokens = torch.compile(Model().train(trains), backend=backend, fullgraph=True), torch.arange(12).view(3, 4)

    def call() -> None:
        with torch.set_grad_enabled(trains):
            loss = model(tokens)
        if trains:
            loss.backward()

    return call


def _inferring() -> Callable[[], Any]:
    return _compiled(False)


@pytest.mark.slow
@pytest.mark.parametrize("made", [_numpy, _torch, _module, _optimizer, _each, _compiled, _inferring])
def test_no_array_is_in_a_cycle(made):
    call = made()
    for _ in range(3):
        call()
    while gc.collect():  # what other tests left
        pass
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        call()
        gc.collect()
        left = [(type(o).__name__, tuple(o.shape)) for o in gc.garbage if isinstance(o, (torch.Tensor, np.ndarray))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []
