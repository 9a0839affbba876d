"""What a forward pass kept for its backward pass alone, so that kernels of that may store into it.

As `kfusion/_donation.py` for fused functions. Here torch.compile runs the backward pass: it lets go of what it kept
before, and hands it over in a list.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch


def indices() -> tuple[int, ...]:
    """While a backward pass is compiled: where among its arguments those are that it alone reads. AOTAutograd says so,
    and refuses a pass that keeps its graph (retain_graph=True) then.
    """
    return tuple(getattr(_metadata(), "bw_donated_idxs", None) or ())


def refuse() -> None:
    """Refuses a pass that uses no memory of its arguments: it may then run again."""
    metadata = _metadata()
    if metadata is not None:
        metadata.bw_donated_idxs = []


def is_given(arguments: Sequence[Any], indices: Sequence[int]) -> bool:
    """Whether nobody but the list of the arguments has those tensors or their memory. Nor the autograd graph: torch has
    let go of what it saved.
    """
    of_memory = getattr(torch._C, "_storage_Use_Count", None)
    if of_memory is None or not hasattr(torch.Tensor, "_use_count"):
        return False
    return all(
        _references(arguments, i) == _OF_LIST
        and arguments[i]._use_count() == 1
        and of_memory(arguments[i].untyped_storage()._cdata) == _OF_TENSOR
        for i in indices
    )


def _references(values: Sequence[Any], i: int) -> int:
    return sys.getrefcount(values[i])


_OF_LIST = _references([object()], 0)  # of an object that a list has, and nobody else
_OF_TENSOR = 2  # of memory that one tensor has: the tensor's, and the one of `untyped_storage`


def _metadata() -> Any:
    return getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)
