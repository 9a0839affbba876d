"""Whether a traced function draws random numbers from a generator that everyone shares."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from .._graph.source import transformed
from .refusals import refused_random

_Trace = TypeVar("_Trace")
_MOST_TRACES = 20

# Reading Python's own comes last: it never waits for another thread, which would draw before the others are read.
_STATES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "torch": ("get_rng_state", lambda state: state().numpy().tobytes()),
    "numpy.random": ("get_state", lambda state: pickle.dumps(state(legacy=False))),
    "random": ("getstate", lambda state: state()),
}


def refused(function: str, trace: Callable[[Callable[[], None] | None], _Trace]) -> _Trace:
    """What `trace(mark)` gives. `mark`, where it is not None, is to be called before each operation that is traced.

    The states of the shared generators say that numbers were drawn, not by which thread. What the function draws, it
    draws between the same two operations each time; what another thread draws meanwhile falls anywhere. So where a
    state has changed, the function is traced again, until no place is left where it changed every time.

    Raises:
        TraceError: numbers are drawn inside: every call would see the same ones.
        TypeError: torch.func differentiates what the function is called in.
    """
    try:
        changes = _Changes(_STATES)
    except RuntimeError:  # torch's own generator cannot be read while it differentiates
        torch = sys.modules.get("torch")
        if torch is None or torch._C._functorch.peek_interpreter_stack() is None:
            raise
        raise transformed(f"kfusion.{function}") from None
    traced = trace(None)
    suspects = changes.libraries()
    places: set[tuple[str, int]] | None = None
    for _ in range(_MOST_TRACES):
        if not suspects:
            return traced
        changes = _Changes(suspects)
        traced = trace(changes.mark)
        changes.mark()
        places = changes.found if places is None else places & changes.found
        suspects = {library for library, _ in places}
    raise refused_random(function, min(suspects))


class _Changes:
    """Between which marks the states of libraries changed: the library and the number of the mark after it."""

    def __init__(self, libraries: Collection[str]) -> None:
        self.found: set[tuple[str, int]] = set()
        self._marks = 0
        self._states = _states(libraries)

    def mark(self) -> None:
        now = _states(self._states)
        self.found |= {(library, self._marks) for library, state in now.items() if state != self._states[library]}
        self._marks += 1
        self._states = now

    def libraries(self) -> set[str]:
        """Those whose state has changed by now, or that nobody had imported before: NumPy imports numpy.random late."""
        self.mark()
        return {library for library, _ in self.found} | (_states(_STATES).keys() - self._states.keys())


def _states(libraries: Collection[str]) -> dict[str, Any]:
    """Of those that are imported; one that another thread is importing may have no generator yet."""
    states = {}
    for library, (name, read) in _STATES.items():
        state = getattr(sys.modules.get(library), name, None) if library in libraries else None
        if state is not None:
            states[library] = read(state)
    return states
