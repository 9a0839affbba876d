"""Which operators torch takes apart before a graph is traced: those that kernels have no form for and that are made of
others that they have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._decomp import core_aten_decompositions

from .._tracing.aten import RANDOM, has_form

# What the library computes faster whole than kernels do its parts, or exactly so.
_WHOLE_NAMES = """
    embedding_dense_backward _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math
    index_add index_copy index_put _unsafe_index_put grid_sampler_2d im2col col2im cdist _euclidean_dist pdist
    max_unpool2d max_unpool3d reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
    linalg_cross renorm unfold_backward cumprod_backward affine_grid_generator trace trace_backward isin
    _chunk_cat _weight_norm_interface embedding_bag
"""
_WHOLE = frozenset(_WHOLE_NAMES.split())


@functools.cache
def table() -> dict[Any, Callable[..., Any]]:
    """By operator, torch's function that takes it apart."""
    known: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    return {op: function for op, function in known.items() if not _is_kept(op)}


def _is_kept(op: Any) -> bool:
    name = op._schema.name.partition("::")[2]
    whole = name in RANDOM or name in _WHOLE or name.startswith(("upsample", "_upsample", "linalg", "fft"))
    return whole or has_form(op)
