"""Layers of today's models, each one function of arrays: what stands between their products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import kfusion as kf

from .inputs import Inputs
from .throughput import Case

Shape = tuple[int, ...]


def rope(x: Any, cos: Any, sin: Any) -> Any:
    """x cos + rotate_half(x) sin."""
    half = x.shape[-1] // 2
    return x * cos + kf.concatenate([-x[..., half:], x[..., :half]], -1) * sin


def residual_rmsnorm(x: Any, residual: Any, weight: Any) -> Any:
    """(x + residual, rmsnorm(x + residual) weight)."""
    x = x + residual
    return x, kf.rmsnorm(x, weight)


def swiglu(gate: Any, up: Any) -> Any:
    """silu(gate) up."""
    return kf.silu(gate) * up


def geglu(gate: Any, up: Any) -> Any:
    """gelu(gate) up."""
    return kf.gelu(gate) * up


def log_softmax(x: Any) -> Any:
    """log_softmax(x)."""
    return kf.log_softmax(x)


def cross_entropy(logits: Any, targets: Any) -> Any:
    """cross entropy of each row."""
    return kf.cross_entropy(logits, targets, reduction="none")


def softcap_softmax(x: Any) -> Any:
    """softmax(30 tanh(x / 30))."""
    return kf.softmax(30.0 * kf.tanh(x / 30.0))


def batchnorm_relu(x: Any, mean: Any, var: Any, weight: Any, bias: Any) -> Any:
    """relu(batchnorm(x))."""
    return kf.relu(kf.batchnorm(x, mean, var, weight, bias))


def adamw(p: Any, gradient: Any, m: Any, v: Any) -> Any:
    """a step of AdamW."""
    m = 0.9 * m + 0.1 * gradient
    v = 0.999 * v + 0.001 * gradient * gradient
    return p * (1 - 1e-3 * 0.01) - 1e-3 * (m / 0.1) / (kf.sqrt(v / 0.001) + 1e-8), m, v


def embeddings(ids: Any, words: Any, positions: Any, weight: Any, bias: Any) -> Any:
    """layernorm(words[ids] + positions)."""
    return kf.layernorm(kf.take(words, ids, 0) + positions, weight, bias)


@dataclass(frozen=True)
class LayerCase(Case):
    """A layer on arrays of the shapes that it has in models. of: one for each argument."""

    of: tuple[Callable[[Inputs, Shape, str], Any], ...] = ()

    def arguments(self, inputs: Inputs) -> list[Any]:
        """The arguments that `of` makes."""
        return [make(inputs, self.shape, self.dtype) for make in self.of]


def alike(seed: int) -> Callable[[Inputs, Shape, str], Any]:
    """Makes an argument of the case's shape."""
    return lambda inputs, shape, dtype: inputs.random(shape, dtype, seed)


def of_axes(seed: int, *axes: int, positive: bool = False) -> Callable[[Inputs, Shape, str], Any]:
    """Makes an argument of some of the case's extents."""

    def make(inputs: Inputs, shape: Shape, dtype: str) -> Any:
        x = inputs.random(tuple(shape[a] for a in axes), dtype, seed)
        return abs(x) + 0.5 if positive else x

    return make


def table(seed: int, entries: int) -> Callable[[Inputs, Shape, str], Any]:
    """A row of the last extent for each entry."""
    return lambda inputs, shape, dtype: inputs.random((entries, shape[-1]), dtype, seed)


def numbers(seed: int, below: int | None = None) -> Callable[[Inputs, Shape, str], Any]:
    """Integers for all axes but the last: classes of the last, or any below a bound."""

    def make(inputs: Inputs, shape: Shape, dtype: str) -> Any:
        drawn = np.random.default_rng(seed).integers(0, below or shape[-1], shape[:-1])
        return inputs.integers(drawn)

    return make


_HEADS, _WIDE = (8, 32, 2048, 128), (8192, 4096)
# function, shape, arguments
_LAYERS: tuple[tuple[Callable[..., Any], Shape, tuple[Callable[[Inputs, Shape, str], Any], ...]], ...] = (
    (rope, _HEADS, (alike(0), of_axes(1, 2, 3), of_axes(2, 2, 3))),
    (residual_rmsnorm, _WIDE, (alike(0), alike(1), of_axes(2, -1))),
    (swiglu, (8192, 11008), (alike(0), alike(1))),
    (geglu, (8192, 11008), (alike(0), alike(1))),
    (log_softmax, (8192, 32000), (alike(0),)),
    (log_softmax, (2048, 128256), (alike(0),)),
    (cross_entropy, (8192, 32000), (alike(0), numbers(1))),
    (cross_entropy, (2048, 128256), (alike(0), numbers(1))),
    (softcap_softmax, (8192, 32000), (alike(0),)),
    (batchnorm_relu, (64, 256, 56, 56), (alike(0), of_axes(1, 1), of_axes(2, 1, positive=True), of_axes(3, 1),
                                         of_axes(4, 1))),
    (adamw, (64 * 2**20,), (alike(0), alike(1), alike(2), of_axes(3, 0, positive=True))),
    (embeddings, (16, 512, 1024), (numbers(0, 30522), table(1, 30522), of_axes(2, 1, 2), of_axes(3, 2), of_axes(4, 2))),
)  # fmt: skip
_PEERS = ("numpy", "torch", "torch.compile", "jax.jit")


def cases(suite: str, dtype: str, shrink: int) -> Iterator[LayerCase]:
    """All layers in one dtype, the first extent of each divided by `shrink`."""
    for function, (first, *others), of in _LAYERS:
        formula = (function.__doc__ or "").rstrip(".")
        yield LayerCase(suite, formula, function, (max(first // shrink, 1), *others), dtype, _PEERS, of=of)
