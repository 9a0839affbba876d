"""Seeds of random numbers, which are drawn anew for each call of a traced function, before its kernels run."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable

BITS = 53  # of a seed: a double, as which kernels take it, holds it exactly

Draw = Callable[..., float]
"""Called without arguments it gives the seed of a call; with a seed that is known already, that one."""


def drawn(known: float | None = None) -> float:
    """A seed of torch's default generator of the CPU, which torch.manual_seed sets.

    Raises:
        RuntimeError: the call is recorded as a CUDA graph, whose replays would all have this seed.
    """
    if known is not None:
        return known
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        what = "the replays of a CUDA graph would all draw the same random numbers"
        raise RuntimeError(f"kfusion: {what}: pass kf.dropout a seed, or call the function outside of the graph")
    return float(torch.empty((), dtype=torch.int64, device="cpu").random_(2**BITS).item())


class Again:
    """What `Seeds.again` gives: each backward pass enters one."""

    def __init__(self, here: threading.local, seed: float | None) -> None:
        self._here = here
        self._seed = seed

    def __enter__(self) -> None:
        self._here.given = self._seed

    def __exit__(self, *_: object) -> None:
        del self._here.given


class Seeds:
    """Draws for a function with a backward pass: that needs the seed of the forward pass it belongs to."""

    def __init__(self) -> None:
        self._here = threading.local()

    def of(self, draw: Draw) -> Draw:
        """Draws as `draw` does, and keeps what it gives; within `again` it is told the seed."""
        return functools.partial(self._draw, draw)

    def taken(self) -> float | None:
        """The seed that this thread drew last, and no more; None where there was none."""
        seed: float | None = self._here.__dict__.pop("seed", None)
        return seed

    def again(self, seed: float | None) -> Again:
        """A context: calls inside get this seed."""
        return Again(self._here, seed)

    def _draw(self, draw: Draw, known: float | None = None) -> float:
        if known is None and hasattr(self._here, "given"):
            known = self._here.given
            if known is None:
                raise RuntimeError("kfusion: the backward pass draws random numbers, and the forward pass drew none")
        seed = draw(known)
        self._here.seed = seed
        return seed
