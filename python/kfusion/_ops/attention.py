"""Attention, and the head of SPLADE: contractions whose large intermediates need never be in memory."""

from __future__ import annotations

import math
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .._graph.values import stage
from . import primitives as p
from .activations import softmax
from .contractions import matmul
from .dropout import dropped
from .gradients import taken
from .operation import Array, composite
from .views import astype, expand_dims, matrix_transpose, positions

__all__ = ["attention", "splade_head"]


@composite
def attention(
    q: Array, k: Array, v: Array, *, scale: float | None = None, mask: Array | None = None, causal: bool = False
) -> Array:
    """Scaled dot-product attention. Stages: attention.scores, .scale, .mask (where there is one), .softmax, .output.

        y = softmax(scale * q k^T  [masked]) v

    Args:
        q: floats, (..., m, d).
        k: floats, (..., n, d).
        v: floats, (..., n, e).
        scale: None means 1 / sqrt(d).
        mask: broadcasts to (..., m, n): bools, true where q may see k; or floats, added to the scores, -inf where it
            may not.
        causal: row i sees keys 0 to i only.

    Returns:
        Array (..., m, e): 0, with gradients of 0, in rows that may see no key, as torch and ONNX have it.

    Raises:
        ValueError: the shapes do not fit.

    Source: Vaswani et al., "Attention Is All You Need", 2017.
    """
    # torch's kernel may be faster: the graph learns of it. Torch takes a scale whose value may change as it is now.
    if type(scale) in (float, int, type(None)) and _torch_takes(q, k, v, mask, causal):
        function = import_module("torch").nn.functional.scaled_dot_product_attention
        return function(q, k, v, mask, 0.0, causal, scale=scale)
    return attended(q, k, v, scale, mask, causal, 0.0)


def _torch_takes(q: Array, k: Array, v: Array, mask: Array | None, causal: bool) -> bool:
    """Whether torch's function takes these arguments."""
    if any(a._library != "torch" or a.ndim != 4 for a in (q, k, v)) or (causal and mask is not None):
        return False
    if find_spec("torch") is None:  # a spec may say like="torch" without it
        return False
    batches, dtypes = {a.shape[:-2] for a in (q, k, v)}, {a._dtype for a in (q, k, v)}
    if not len(batches) == len(dtypes) == 1:
        return False
    scores = (*q.shape[:-1], k.shape[-2])
    if mask is None:
        return True
    is_theirs = mask._dtype in ("bool", q._dtype) and 2 <= mask.ndim <= 4
    return is_theirs and all(n in (1, wanted) for n, wanted in zip(mask.shape[::-1], scores[::-1], strict=False))


def attended(
    q: Array, k: Array, v: Array, scale: float | None, mask: Array | None, causal: bool, dropout: float
) -> Array:
    """Attention that leaves out weights at random with this probability: with a stage attention.dropout."""
    if min(a.ndim for a in (q, k, v)) < 2:
        raise ValueError(
            f"kfusion.attention: q, k and v must have at least 2 axes, got {q.shape}, {k.shape}, {v.shape}"
        )
    with stage(q, "attention.scores"):
        scores = matmul(q, matrix_transpose(k))
    with stage(q, "attention.scale"):
        scores = scores * (1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale))
    sees = None
    if causal or mask is not None:
        with stage(q, "attention.mask"):
            sees = None if mask is None else _sees_any(mask, scores, causal)
            scores = _masked(scores, None if mask is None else _finite(mask, sees), causal)
    with stage(q, "attention.softmax"):
        weights = softmax(scores, -1) if k.shape[-2] else scores
    if dropout:
        with stage(q, "attention.dropout"):
            weights = dropped(weights, dropout)
    with stage(q, "attention.output"):
        y = matmul(weights, v)
        return y if sees is None else p.where(sees, y, 0.0)


def _sees_any(mask: Array, scores: Array, causal: bool) -> Array:
    """Whether a query may see a key at all."""
    seen = mask if mask._dtype == "bool" else p.not_equal(mask, -math.inf)
    if causal:
        seen = p.logical_and(seen, positions(scores, -1) <= positions(scores, -2))
    return p.any(seen, -1 if seen.ndim else None, keepdims=True)


def _finite(mask: Array, sees: Any) -> Array:
    """The mask, of which rows that see no key see all where gradients are taken: NaN times a gradient of 0 is NaN."""
    if not taken(mask):
        return mask
    return p.logical_or(mask, p.logical_not(sees)) if mask._dtype == "bool" else p.where(sees, mask, 0.0)


def _masked(scores: Array, mask: Array | None, causal: bool) -> Array:
    if mask is not None:
        scores = p.where(mask, scores, -math.inf) if mask._dtype == "bool" else p.add(scores, mask)
    if causal:
        scores = p.where(positions(scores, -1) <= positions(scores, -2), scores, -math.inf)
    return scores


@composite
def splade_head(h: Array, weight: Array, bias: Array, mask: Array | None = None) -> Array:
    """The head of SPLADE: how much each word of the vocabulary says about a text. Stages: splade_head.matmul, .bias,
    .relu, .log1p, .mask (where there is one), .max.

        y[b, v] = max over s of log(1 + max(0, h[b, s] . weight[v] + bias[v])), where mask[b, s] is true

    Args:
        h: floats, (batch, sequence, hidden).
        weight: floats, (vocabulary, hidden).
        bias: (vocabulary,).
        mask: (batch, sequence), bools or integers, not 0 for words and 0 for padding; None means no padding.

    Returns:
        Array (batch, vocabulary); a text of nothing but padding gives 0.

    Raises:
        ValueError: the shapes do not fit, or the sequence is empty.

    Source: Formal, Piwowarski and Clinchant, "SPLADE", 2021, with max pooling as in "SPLADE v2".
    """
    if h.ndim != 3:
        raise ValueError(f"kfusion.splade_head: h must have shape (batch, sequence, hidden), got {h.shape}")
    if mask is not None and mask.shape != h.shape[:2]:
        raise ValueError(f"kfusion.splade_head: mask must have shape {h.shape[:2]}, got {mask.shape}")
    logits = _logits(h, weight, bias)
    with stage(h, "splade_head.relu"):
        weights = p.relu(logits)
    with stage(h, "splade_head.log1p"):
        weights = p.log1p(weights)
    if mask is not None:
        with stage(h, "splade_head.mask"):
            weights = p.where(expand_dims(astype(mask, "bool"), -1), weights, 0.0)
    with stage(h, "splade_head.max"):
        return p.max(weights, -2)


def _logits(h: Array, weight: Array, bias: Array) -> Array:
    if weight.ndim != 2 or weight.shape[1] != h.shape[-1]:
        raise ValueError(f"kfusion.splade_head: weight must have shape (n, {h.shape[-1]}), got {weight.shape}")
    if bias.shape != weight.shape[:1]:
        raise ValueError(f"kfusion.splade_head: bias must have shape {weight.shape[:1]}, got {bias.shape}")
    with stage(h, "splade_head.matmul"):
        logits = matmul(h, matrix_transpose(weight))
    with stage(h, "splade_head.bias"):
        return logits + bias
