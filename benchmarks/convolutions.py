"""Convolutions with what follows them, beside the library's convolution alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .products import ProductCase

SUITE = "convolutions"


def _normalised(x: Any, w: Any, mean: Any, variance: Any, weight: Any, bias: Any) -> Any:
    from torch.nn import functional as F

    y = F.conv2d(x, w, padding=w.shape[-1] // 2)
    return F.batch_norm(y, mean, variance, weight, bias)


def conv_norm_relu(x: Any, w: Any, *statistics: Any) -> Any:
    """Convolution, batch norm, relu."""
    from torch.nn import functional as F

    return F.relu(_normalised(x, w, *statistics))


def conv_norm_residual_relu(x: Any, w: Any, residual: Any, *statistics: Any) -> Any:
    """Convolution, batch norm, residual, relu."""
    from torch.nn import functional as F

    return F.relu(_normalised(x, w, *statistics) + residual)


def _alone(x: Any, w: Any, *_: Any) -> Callable[[], Any]:
    from torch.nn import functional as F

    return lambda: F.conv2d(x, w, padding=w.shape[-1] // 2)


def _images(random: Any, n: int, c: int, h: int, w: int, k: int, window: int) -> tuple[Any, ...]:
    import torch

    last = torch.channels_last
    x = random(n, c, h, w).to(memory_format=last)
    weight = random(k, c, window, window, scale=(c * window * window) ** -0.5).to(memory_format=last)
    mean, variance, scale, bias = (random(k).float() for _ in range(4))
    return x, weight, mean, variance.abs() + 0.5, scale, bias


def _with_residual(random: Any, n: int, c: int, h: int, w: int, k: int, window: int) -> tuple[Any, ...]:
    import torch

    x, weight, *statistics = _images(random, n, c, h, w, k, window)
    return x, weight, random(n, k, h, w).to(memory_format=torch.channels_last), *statistics


def _outermost(random: Any, *shape: int) -> tuple[Any, ...]:
    return tuple(a.contiguous() for a in _images(random, *shape))


_SHAPES = ((64, 256, 56, 56, 256, 3), (64, 256, 56, 56, 512, 1), (64, 128, 28, 28, 128, 3), (32, 512, 7, 7, 512, 3))


def cases(dtype: str) -> Iterator[ProductCase]:
    """All cases in one dtype."""

    def case(function: Any, shape: tuple[int, ...], draw: Any, by_row: tuple[int, ...], note: str = "") -> ProductCase:
        n, c, h, w, k, window = shape
        flops = 2.0 * n * h * w * k * c * window * window
        name = (function.__doc__ or "").rstrip(".") + note
        return ProductCase(SUITE, name, function, shape, dtype, draw, _alone, flops, by_row)

    for shape in _SHAPES:
        yield case(conv_norm_relu, shape, _images, (0,))
    for shape in _SHAPES:
        yield case(conv_norm_residual_relu, shape, _with_residual, (0, 2))
    yield case(conv_norm_relu, _SHAPES[0], _outermost, (0,), ", channels outermost")
