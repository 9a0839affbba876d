"""Whether a tensor that the autograd graph saved is nobody else's, so that a backward pass may use its memory."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Sequence
from typing import Any

# How many there are of: references to a tensor's object; those to the tensor, which the graph and .grad have without
# one; tensors of its memory; references to the object of its memory.
Holders = tuple[int, int, int, int]


def is_last() -> bool:
    """Whether torch forgets what is saved when the running backward pass is done: not with retain_graph=True."""
    return usual_holders() is not None and not sys.modules["torch"]._C._autograd._get_current_graph_task_keep_graph()


def holders(saved: Sequence[Any], first: int) -> list[Holders]:
    """The holders of the tensors from the first one on, while nothing but their tuple refers to them.

    Those that a hook has put away and given back, which may have them still, are not the graph's.
    """
    uses = sys.modules["torch"]._C._storage_Use_Count
    found = []
    for i in range(first, len(saved)):
        memory = saved[i].untyped_storage()
        counts = sys.getrefcount(saved[i]), saved[i]._use_count(), uses(memory._cdata), sys.getrefcount(memory)
        found.append(counts)
    return found


@functools.cache
def usual_holders() -> Holders | None:
    """What `holders` says of a tensor that only the autograd graph has; None where torch cannot tell.

    It is found out once, in a thread of its own: the caller's hooks and modes are its thread's.
    """
    torch = sys.modules["torch"]
    needed = (
        (torch._C, "_storage_Use_Count"),
        (torch._C._autograd, "_get_current_graph_task_keep_graph"),
        (torch.Tensor, "_use_count"),
    )
    if not all(hasattr(owner, name) for owner, name in needed):
        return None
    found: list[Holders] = []
    thread = threading.Thread(target=_find_usual, args=(torch, found), name="kfusion-holders")
    thread.start()
    thread.join()
    return found[0] if found else None


def _find_usual(torch: Any, found: list[Holders]) -> None:
    class Probe(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x.detach() + 1)
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            found.extend(_of_call(ctx.saved_tensors))
            return gradient

    x = torch.zeros(1, device="cpu", requires_grad=True)
    Probe.apply(x).backward(torch.ones(1, device="cpu"))


def _of_call(saved: Sequence[Any]) -> list[Holders]:
    return holders(saved, 0)
