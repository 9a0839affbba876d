"""The user's own functions of autograd, and a hook, that random programs call in torch's words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


# The functions that programs call; their text is part of a reproducer.
def straight(x: Any) -> Any:
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return torch.round(4 * x) / 4

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    return Straight.apply(x)


def turned(x: Any) -> Any:
    class Turned(torch.autograd.Function):
        @staticmethod
        def forward(x: Any, scale: float) -> Any:
            return x.view_as(x)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.scale = inputs[1]

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return -ctx.scale * g, None

    return Turned.apply(x, 0.5)


def bounded(x: Any) -> Any:
    class Bounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return torch.tanh(g) * (1 + torch.sin(x))

    return Bounded.apply(x)


def in_two(x: Any) -> Any:
    class InTwo(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = torch.sin(x)
            ctx.save_for_backward(y)
            ctx.mark_non_differentiable(positive := x > 0)
            return y, positive, x * 2

        @staticmethod
        def backward(ctx: Any, g: Any, _: Any, h: Any) -> Any:
            return g * ctx.saved_tensors[0] + 3 * h

    y, positive, z = InTwo.apply(x)
    return torch.where(positive, y, z)


def opaque(x: Any) -> Any:
    class Opaque(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return torch.from_numpy(np.cos(x.detach().numpy()))

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return torch.from_numpy(2 * g.numpy())

    return Opaque.apply(x)


def hooked(x: Any) -> Any:
    y = x * 1.5
    if y.requires_grad:
        y.register_hook(lambda g: g * 0.25)
    return y


FUNCTIONS = (straight, turned, bounded, in_two, opaque, hooked)
