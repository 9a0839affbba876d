"""torch's attention as steps of a plan call it: the order of its results' axes, and masks that its kernels can read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

NAME = "torch.scaled_dot_product_attention"
ORDER = (0, 2, 1, 3)  # in which the axes of torch's results lie in memory: heads are behind positions
_ALIGNED_ELEMENTS, _ALIGNED_BYTES = 8, 16  # of rows and addresses of masks, for torch's kernels on a GPU


def runnable(name: str, function: Callable[..., Any], order: Sequence[int] | None = None) -> Callable[..., Any]:
    """The function of that name as a step calls it. `order`: in which the axes of attention's result come."""
    if name != NAME:
        return function

    def run(query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **kwargs: Any) -> Any:
        mask = attn_mask if attn_mask is None else mask_for(query, key, attn_mask)
        result = function(query, key, value, mask, *args, **kwargs)
        return result if order is None else result.permute(order)

    return run


def mask_for(query: Any, key: Any, mask: Any) -> Any:
    """The mask, of dense rows, which torch's fast kernels want; what is the same along an axis is copied once.

    On a GPU it is numbers to add: for cuDNN's kernel some versions of torch make -65504 of False instead of -inf, and
    rows that see no key are not 0. Its rows hold a number for each key there, and are aligned: torch's
    memory-efficient kernels take both for granted, and fail with "misaligned address" or read what lies beside.
    """
    becomes_numbers = not mask.dtype.is_floating_point and not query.is_cpu
    keys = mask.shape[-1] if query.is_cpu else key.shape[-2]
    is_read_well = mask.stride(-1) == 1 if query.is_cpu else _is_aligned(mask, keys)
    if is_read_well and not becomes_numbers:
        return mask
    repeats = [stride == 0 and not mask.requires_grad for stride in mask.stride()[:-1]]  # each element has a gradient
    once = mask[tuple(slice(0, 1) if is_same else slice(None) for is_same in repeats)]
    if becomes_numbers:
        once = once.to(query.dtype).log_()  # of 1 and 0
    once = once.expand(*once.shape[:-1], keys)
    dense = once.contiguous() if query.is_cpu else _aligned(once)
    return dense.expand(*mask.shape[:-1], keys)


def _is_aligned(mask: Any, keys: int) -> bool:
    """Whether torch's kernels on a GPU read the mask as it is."""
    is_dense = mask.shape[-1] == keys and mask.stride(-1) == 1
    are_apart = all(stride % _ALIGNED_ELEMENTS == 0 for stride in mask.stride()[:-1])
    return is_dense and are_apart and mask.data_ptr() % _ALIGNED_BYTES == 0


def _aligned(mask: Any) -> Any:
    """A copy whose rows begin at aligned addresses."""
    keys = mask.shape[-1]
    padded = sys.modules["torch"].nn.functional.pad(mask, (0, -keys % _ALIGNED_ELEMENTS))
    return padded.contiguous()[..., :keys]
