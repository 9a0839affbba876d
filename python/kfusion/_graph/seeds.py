"""What the calls of a traced function draw: a seed for its kernels, and the states of generators of which functions of
the array library draw. A backward pass is to see what its forward pass has drawn.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

BITS = 53  # of a seed: a double, as which kernels take it, holds it exactly
SEED = -1  # its key, beside the numbers of the library's calls

Draw = Callable[..., Any]
"""`draw(key, make)` is what make() gives; with what is known of that key already, as a third argument, that."""


def drawn(key: int, make: Callable[[], Any], known: Any = None) -> Any:
    """Draws for one call."""
    return make() if known is None else known


def seed() -> float:
    """A seed of torch's default generator of the CPU, which torch.manual_seed sets.

    Raises:
        RuntimeError: the call is recorded as a CUDA graph, whose replays would all have this seed.
    """
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        what = "the replays of a CUDA graph would all draw the same random numbers"
        raise RuntimeError(f"kfusion: {what}: pass kf.dropout a seed, or call the function outside of the graph")
    return float(torch.empty((), dtype=torch.int64, device="cpu").random_(2**BITS).item())


class LibraryDraws:
    """The random numbers of a call of the library in a graph: its gradient, which computes it again, draws the same.

    Args:
        draw: of the graph.
        number: of the call among those of the graph that draw.
        generators: those that the call is given; where it is given none, it draws from torch's own.
        device: on which it draws.
    """

    def __init__(self, draw: Draw, number: int, generators: Sequence[Any], device: str) -> None:
        self._draw = functools.partial(draw, number)
        self._given = list(generators)
        self._device = device
        self._here = threading.local()

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """A context for the call itself: numbers are drawn, but in a pass that computes again what has drawn them."""
        before = self._states()
        self._here.states = states = self._draw(lambda: before)
        with contextlib.nullcontext() if states is before else self._replayed(states, before):
            yield

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """A context in which the numbers are those of the last call in this thread, or of the pass that is repeated."""
        with self._replayed(self._draw(lambda: self._here.states), self._states()):
            yield

    @contextlib.contextmanager
    def _replayed(self, states: Sequence[Any], after: Sequence[Any]) -> Iterator[None]:
        self._set(states)
        try:
            yield
        finally:
            self._set(after)

    def _states(self) -> list[Any]:
        return [g.get_state() for g in self._generators()]

    def _set(self, states: Sequence[Any]) -> None:
        for generator, state in zip(self._generators(), states, strict=True):
            generator.set_state(state)

    def _generators(self) -> list[Any]:
        torch = sys.modules["torch"]
        if self._given:
            return self._given
        if self._device == "cpu":
            return [torch.default_generator]
        return [torch.default_generator, torch.cuda.default_generators[torch.device(self._device).index or 0]]


class Again:
    """What `Seeds.again` gives: each backward pass enters one."""

    def __init__(self, here: threading.local, known: dict[int, Any]) -> None:
        self._here = here
        self._known = known

    def __enter__(self) -> None:
        self._here.given = self._known

    def __exit__(self, *_: object) -> None:
        del self._here.given


class Seeds:
    """Draws for a function with a backward pass: that needs what the forward pass has drawn that it belongs to."""

    def __init__(self) -> None:
        self._here = threading.local()

    def of(self, draw: Draw) -> Draw:
        """Draws as `draw` does, and keeps what it gives; within `again` it is told what is known."""
        return functools.partial(self._drawn, draw)

    def taken(self) -> dict[int, Any]:
        """What this thread drew since this was asked for last, by key."""
        found: dict[int, Any] = self._here.__dict__.pop("drawn", {})
        return found

    def again(self, known: dict[int, Any]) -> Again:
        """A context: calls inside get these."""
        return Again(self._here, known)

    def _drawn(self, draw: Draw, key: int, make: Callable[[], Any], known: Any = None) -> Any:
        if known is None and hasattr(self._here, "given"):
            known = self._here.given.get(key)
            if known is None:
                raise RuntimeError("kfusion: the backward pass draws random numbers, and the forward pass drew none")
        made = draw(key, make, known)
        self._here.__dict__.setdefault("drawn", {})[key] = made
        return made
