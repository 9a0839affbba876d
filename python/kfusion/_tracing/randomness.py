"""Whether a traced function draws random numbers from a generator that everyone shares."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from .refusals import refused_random

_Trace = TypeVar("_Trace")
_MOST_TRACES = 10

_STATES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "random": ("getstate", lambda state: state()),
    "numpy.random": ("get_state", lambda state: pickle.dumps(state(legacy=False))),
    "torch": ("get_rng_state", lambda state: state().numpy().tobytes()),
}


def refused(function: str, trace: Callable[[Callable[[], None] | None], _Trace]) -> _Trace:
    """What `trace(mark)` gives. `mark`, where it is not None, is to be called before each operation that is traced.

    The states of the shared generators say that numbers were drawn, not by which thread. What the function draws, it
    draws between the same two operations each time; what another thread draws meanwhile falls anywhere. So where a
    state has changed, the function is traced again, until no place is left where it changed every time.

    Raises:
        TraceError: numbers are drawn inside: every call would see the same ones.
    """
    before = _states()
    traced = trace(None)
    if before == _states():
        return traced
    suspects: set[tuple[str, int]] | None = None
    for _ in range(_MOST_TRACES):
        changes = _Changes()
        traced = trace(changes.mark)
        changes.mark()
        suspects = changes.found if suspects is None else suspects & changes.found
        if not suspects:
            return traced
    raise refused_random(function, min(suspects or ())[0])


class _Changes:
    """Between which marks the states changed: the library and the number of the mark after it."""

    def __init__(self) -> None:
        self.found: set[tuple[str, int]] = set()
        self._marks = 0
        self._states = _states()

    def mark(self) -> None:
        now = _states()
        self.found |= {(library, self._marks) for library, state in now.items() if state != self._states.get(library)}
        self._marks += 1
        self._states = now


def _states() -> dict[str, Any]:
    """Of the libraries that are imported; one that another thread is importing may have no generator yet."""
    states = {}
    for library, (name, read) in _STATES.items():
        state = getattr(sys.modules.get(library), name, None)
        if state is not None:
            states[library] = read(state)
    return states
