"""Attention: the library's forms and score functions of one's own, beside cuDNN's kernel of the same products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kfusion as kf

from .products import ProductCase

SUITE = "attention"
_CAP = 20.0


def _positions(s: Any) -> tuple[Any, Any]:
    return kf.iota(s.shape[-2:], 0, like="torch"), kf.iota(s.shape[-2:], 1, like="torch")


def _ranges(s: Any) -> tuple[Any, Any]:
    import torch

    i = torch.arange(s.shape[-1], device=s.device)
    return i[:, None], i[None]


def full(q: Any, k: Any, v: Any) -> Any:
    """Attention."""
    from torch.nn import functional as F

    return F.scaled_dot_product_attention(q, k, v)


def causal(q: Any, k: Any, v: Any) -> Any:
    """Causal attention."""
    from torch.nn import functional as F

    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _weighted(s: Any, v: Any) -> Any:
    import torch

    return torch.softmax(s.float(), -1).to(v.dtype) @ v


def _scores(q: Any, k: Any) -> Any:
    return q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5


def _alibi(ranges: Callable[[Any], tuple[Any, Any]]) -> Callable[..., Any]:
    def alibi(q: Any, k: Any, v: Any, slopes: Any) -> Any:
        """Causal attention with ALiBi."""
        s = _scores(q, k)
        i, j = ranges(s)
        biased = s.float() + slopes[:, None, None] * (j - i).float()
        return _weighted(biased.masked_fill(j > i, float("-inf")), v)

    return alibi


def _capped(ranges: Callable[[Any], tuple[Any, Any]]) -> Callable[..., Any]:
    def capped(q: Any, k: Any, v: Any) -> Any:
        """Causal attention with a soft cap."""
        import torch

        s = _scores(q, k)
        i, j = ranges(s)
        return _weighted((torch.tanh(s / _CAP) * _CAP).masked_fill(j > i, float("-inf")), v)

    return capped


def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """Attention with a bias of each pair of positions."""
    return _weighted(_scores(q, k) + bias, v)


def _flex(score: Callable[..., Any], is_causal: bool) -> Callable[..., Any]:
    """torch's flex_attention with that score function, compiled."""
    import torch
    from torch.nn.attention import flex_attention as flex

    compiled = torch.compile(flex.flex_attention, dynamic=False)
    blocks: list[Any] = []

    def run(q: Any, k: Any, v: Any, *more: Any) -> Any:
        if is_causal and not blocks:
            s = q.shape[-2]
            blocks.append(flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, s, s, device=q.device))
        modified = lambda s, b, h, i, j: score(s, h, i, j, *more)  # noqa: E731
        return compiled(q, k, v, score_mod=modified, block_mask=blocks[0] if blocks else None)

    return run


def _flex_alibi(s: Any, h: Any, i: Any, j: Any, slopes: Any) -> Any:
    return s + slopes[h] * (j - i)


def _flex_capped(s: Any, h: Any, i: Any, j: Any) -> Any:
    import torch

    return torch.tanh(s / _CAP) * _CAP


def _flex_biased(s: Any, h: Any, i: Any, j: Any, bias: Any) -> Any:
    return s + bias[i, j]


def _cudnn(is_causal: bool) -> Callable[..., Callable[[], Any]]:
    """cuDNN's kernel, without what changes the scores."""

    def make(q: Any, k: Any, v: Any, *_: Any) -> Callable[[], Any]:
        from torch.nn import functional as F
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def run() -> None:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

        return run

    return make


def _qkv(random: Any, b: int, h: int, s: int, d: int) -> tuple[Any, ...]:
    return tuple(random(b, h, s, d) for _ in range(3))


def _with_slopes(random: Any, b: int, h: int, s: int, d: int) -> tuple[Any, ...]:
    import torch

    q, k, v = _qkv(random, b, h, s, d)
    return q, k, v, torch.exp2(-8.0 / h * torch.arange(1, h + 1, device=q.device).float())


def _with_bias(random: Any, b: int, h: int, s: int, d: int) -> tuple[Any, ...]:
    return (*_qkv(random, b, h, s, d), random(s, s))


def cases(dtype: str) -> Iterator[ProductCase]:
    """All cases in one dtype."""

    def case(function: Any, shape: tuple[int, ...], is_causal: bool, draw: Any = _qkv, **more: Any) -> ProductCase:
        b, h, s, d = shape
        flops = 4.0 * b * h * s * s * d * (0.5 if is_causal else 1.0)
        name = (function.__doc__ or "").rstrip(".")
        return ProductCase(
            SUITE, name, function, shape, dtype, draw, _cudnn(is_causal), flops, by_row=(0, 1, 2), **more
        )

    yield case(full, (4, 16, 4096, 128), False)
    yield case(causal, (4, 16, 4096, 128), True)
    yield case(causal, (4, 32, 4096, 64), True)
    yield case(full, (16, 1, 16384, 128), False)
    shape = (4, 16, 4096, 128)
    alibi = {"formula": _alibi(_ranges), "one_call": _flex(_flex_alibi, True)}
    yield case(_alibi(_positions), shape, True, _with_slopes, **alibi)
    yield case(_capped(_positions), shape, True, formula=_capped(_ranges), one_call=_flex(_flex_capped, True))
    yield case(biased, shape, False, _with_bias, one_call=_flex(_flex_biased, False))
