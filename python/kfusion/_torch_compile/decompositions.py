"""Which operators torch takes apart before a graph is traced: those that kernels have no ops for and that are made of
others that they have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions

from .._tracing.aten import RANDOM, knows

# What the library computes faster whole than kernels do its parts, or exactly so.
_WHOLE_NAMES = """
    embedding_dense_backward _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math
    index_add index_copy index_put _unsafe_index_put grid_sampler_2d im2col col2im cdist _euclidean_dist pdist
    max_unpool2d max_unpool3d reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
    linalg_cross renorm unfold_backward cumprod_backward affine_grid_generator trace trace_backward isin
    _chunk_cat _weight_norm_interface embedding_bag
"""
_WHOLE = frozenset(_WHOLE_NAMES.split())


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _has_channels_last(x: Any) -> bool:
    return x.ndim in _CHANNELS_LAST and bool(x.is_contiguous(memory_format=_CHANNELS_LAST[x.ndim]))


def _roll(x: Any, shifts: Any, dims: Any = ()) -> Any:
    """torch.roll of images whose channels lie last, so that its result's do."""
    if not dims or x.is_contiguous() or not _has_channels_last(x):
        return NotImplemented
    order = [0, *range(2, x.ndim), 1]
    return torch.ops.aten.roll(x.permute(order), shifts, [order.index(d % x.ndim) for d in dims]).movedim(-1, 1)


def _normalized(op: Any) -> Callable[..., Any]:
    """Batch norms in C order, or with the channels last: eager torch's results lie so, whatever the argument's do."""

    def normalized(x: Any, *args: Any, **kwargs: Any) -> Any:
        if x.is_contiguous() or _has_channels_last(x):
            return NotImplemented
        return op(x.contiguous(), *args, **kwargs)

    return normalized


def _of_layouts() -> dict[Any, Callable[..., Any]]:
    """What says how results lie, where torch's tensors without data say something else than eager torch does."""
    aten = torch.ops.aten
    norms = (aten._native_batch_norm_legit.default, aten._native_batch_norm_legit.no_stats,
             aten._native_batch_norm_legit_functional.default,
             aten._native_batch_norm_legit_no_training.default)  # fmt: skip
    return {aten.roll.default: _roll, **{op: _normalized(op) for op in norms}}


@functools.cache
def table() -> dict[Any, Callable[..., Any]]:
    """By operator, torch's function that takes it apart."""
    known: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    return {op: function for op, function in known.items() if not _is_kept(op)} | _of_layouts()


def _is_kept(op: Any) -> bool:
    name = op._schema.name.partition("::")[2]
    whole = name in RANDOM or name in _WHOLE or name.startswith(("upsample", "_upsample", "linalg", "fft"))
    return whole or knows(op)
