"""Whether a traced function draws random numbers from a generator that everyone shares."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Collection, Hashable
from typing import Any, TypeVar

from .._graph.source import transformed
from .._graph.values import Watch
from .refusals import refused_random

_Trace = TypeVar("_Trace")
_MOST_TRACES = 20

# Reading Python's own comes last: it never waits for another thread, which would draw before the others are read.
_STATES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "torch": ("get_rng_state", lambda state: state().numpy().tobytes()),
    "numpy.random": ("get_state", lambda state: pickle.dumps(state(legacy=False))),
    "random": ("getstate", lambda state: state()),
}


def refused(function: str, trace: Callable[[Watch | None], _Trace]) -> _Trace:
    """What `trace(watch)` gives. `watch`, where there is one, is to be told when the function's own code begins to run,
    and when it stops, as where an operation is added to the graph.

    The states of the shared generators say that numbers were drawn, not by which thread. What the function draws, it
    draws between the same two operations in each trace of the same operations; what another thread draws meanwhile
    falls anywhere. So where a state has changed, the function is traced again, until no place is left where it changed
    every time. A trace of other operations begins anew.
    Only the function's own code counts. Other threads run where a library lets them, which is the same place each time.

    Raises:
        TraceError: numbers are drawn inside: every call would see the same ones.
        TypeError: torch.func differentiates what the function is called in.
    """
    try:
        before = _states(_STATES)
    except RuntimeError:  # torch's own generator cannot be read while it differentiates
        torch = sys.modules.get("torch")
        if torch is None or torch._C._functorch.peek_interpreter_stack() is None:
            raise
        raise transformed(f"kfusion.{function}") from None
    traced = trace(None)
    # NumPy imports numpy.random late: what nobody had imported before may have been drawn from.
    suspects = {library for library, state in _states(_STATES).items() if before.get(library) != state}
    places: set[tuple[str, int]] = set()
    operations: list[Hashable] = []
    for _ in range(_MOST_TRACES):
        if not suspects:
            return traced
        watch = _Changes(suspects)
        traced = trace(watch)
        places = places & watch.found if watch.operations == operations else watch.found
        operations = watch.operations
        suspects = {library for library, _ in places}
    raise refused_random(function, min(suspects))


class _Changes:
    """In which stretches of the function's own code the states of libraries changed: the library and the stretch, each
    of which ends with an operation.
    """

    def __init__(self, libraries: Collection[str]) -> None:
        self.found: set[tuple[str, int]] = set()
        self.operations: list[Hashable] = []
        self._libraries = libraries
        self._pauses = 1
        self._states: dict[str, Any] = {}

    def resume(self) -> None:
        self._pauses -= 1
        if self._pauses == 0:
            self._states = _states(self._libraries)

    def pause(self, operation: Hashable) -> None:
        if self._pauses == 0:
            now, stretch = _states(self._libraries), len(self.operations)
            self.found |= {(library, stretch) for library in now if now[library] != self._states.get(library)}
            self.operations.append(operation)
        self._pauses += 1


def _states(libraries: Collection[str]) -> dict[str, Any]:
    """Of those that are imported; one that another thread is importing may have no generator yet."""
    states = {}
    for library, (name, read) in _STATES.items():
        state = getattr(sys.modules.get(library), name, None) if library in libraries else None
        if state is not None:
            states[library] = read(state)
    return states
