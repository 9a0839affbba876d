"""torch's attention as steps of a plan call it: the order of its results' axes, and masks that its kernels can read."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .._graph import memory

if TYPE_CHECKING:
    from .._graph.values import Traced
    from .library_runs import Run

NAME = "torch.scaled_dot_product_attention"
ORDER = (0, 2, 1, 3)  # in which the axes of torch's results mostly lie in memory: heads are behind positions
_MATH, _EFFICIENT, CUDNN = 0, 2, 3  # of torch.nn.attention.SDPBackend
# torch keeps cuDNN's backward graphs, in each thread, by the bytes of these numbers and the strides of queries, keys
# and values, but not of the gradient: one that eager code made for a gradient in C order would read ours wrongly.
NO_DROPOUT = -0.0
_ALIGNED_ELEMENTS, _ALIGNED_BYTES = 8, 16  # of rows and addresses of masks, for torch's kernels on a GPU


def runnable(name: str, function: Callable[..., Any], order: Sequence[int] | None = None) -> Callable[..., Any]:
    """The function of that name as a step calls it. `order`: in which the axes of attention's result come."""
    if name != NAME:
        return function

    def run(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0, *args: Any, **rest: Any
    ) -> Any:
        mask = attn_mask if attn_mask is None else mask_for(query, key, attn_mask)
        result = function(query, key, value, mask, dropout_p or NO_DROPOUT, *args, **rest)
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


def order_of_result(run: Run, values: Sequence[Traced]) -> Sequence[int] | None:
    """The order in which the axes of a call's result lie in memory; None is C order.

    Args:
        run: the call.
        values: its arrays: queries, keys, values of 4 axes each, then a mask.
    """
    device = str(getattr(values[0], "device", "cpu"))
    torch = sys.modules["torch"]
    if not (device.startswith("cuda") and torch.cuda.is_available()):
        return ORDER
    layouts = [(tuple(v.shape), tuple(_strides(v)), getattr(torch, v._dtype)) for v in values]
    try:
        with torch._C.DisableTorchFunction():  # they are nothing that the traced function makes
            given = [torch.empty_strided(s, t, dtype=d, device=device) for s, t, d in layouts]
            args, kwargs = run.filled(given)
            choice = runnable(NAME, torch._fused_sdp_choice)(*args, **kwargs)
    except RuntimeError:  # there is no such GPU, or no memory left
        return ORDER
    if choice == _MATH:
        return None
    return ORDER if choice == _EFFICIENT or gives_heads_behind(choice == CUDNN, *layouts[:3]) else None


def _strides(x: Traced) -> Sequence[int]:
    """The strides of x in elements; what a kernel makes is dense."""
    known = x._tracer.strides(x)
    if known is not None or not isinstance(x._memory.node, int):
        return memory.c_strides(x.shape) if known is None else known
    whole = x._tracer.graph.shape(x._memory.node)
    return memory.strides_of(x._path or (), whole, memory.c_strides(whole))


def of_gpu(is_cudnns: bool, given: Sequence[Any], causal: bool, scale: float | None) -> Sequence[Any]:
    """What torch's kernels on a GPU give: results, sums and what their backward kernels need."""
    aten = sys.modules["torch"].ops.aten
    made: Sequence[Any] = (
        aten._scaled_dot_product_cudnn_attention(*given, None, True, 0.0, causal, False, scale=scale)
        if is_cudnns
        else aten._scaled_dot_product_flash_attention(*given, 0.0, causal, False, scale=scale)
    )
    return made


@functools.lru_cache(maxsize=1024)
def gives_heads_behind(is_cudnns: bool, *layouts: tuple[Any, Any, Any]) -> bool:
    """Whether torch gives heads behind positions, in C order: it says so for tensors without data."""
    empty = sys.modules["torch"].empty_strided
    given = [empty(shape, strides, dtype=dtype, device="meta") for shape, strides, dtype in layouts]
    return bool(of_gpu(is_cudnns, given, False, None)[0].permute(ORDER).is_contiguous())
