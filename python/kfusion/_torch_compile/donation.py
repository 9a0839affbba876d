"""What a forward pass kept for its backward pass alone, so that kernels of that may store into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_IN_ONE_TENSOR = 2  # references to its memory: the tensor's, and the one that is asked


class Donation:
    """Of one of Dynamo's graphs. AOTAutograd says which tensors the backward pass alone reads; a pass that keeps its
    graph (retain_graph=True) it refuses then.
    """

    def __init__(self) -> None:
        self.places: tuple[int, ...] = ()  # among the arguments of the backward pass
        self._has_hooks = False

    def look_for_hooks(self) -> None:
        """Called by forward passes: a hook of saved tensors may hold what it is given."""
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            self._has_hooks = True

    def take_places(self) -> None:
        """While the backward pass is compiled."""
        self.places = tuple(getattr(_metadata(), "bw_donated_idxs", None) or ())

    @staticmethod
    def refuse() -> None:
        """Likewise, of a pass that uses no memory of its arguments: it may then run again."""
        metadata = _metadata()
        if metadata is not None:
            metadata.bw_donated_idxs = []

    def is_given(self, tensors: Sequence[Any]) -> bool:
        """Whether nobody else has these tensors or their memory."""
        if self._has_hooks or not tensors:
            return False
        uses = torch._C._storage_Use_Count
        return all(t._use_count() == 1 and uses(t.untyped_storage()._cdata) == _IN_ONE_TENSOR for t in tensors)


def _metadata() -> Any:
    return getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)
