"""Whether a traced function draws random numbers: from a generator that everyone shares, or from one that it names."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from .._graph.source import transformed
from .._graph.values import Watch
from .refusals import refused_random

_Trace = TypeVar("_Trace")
_MOST_TRACES = 20

# Reading Python's own comes last: it never waits for another thread, which would draw before the others are read.
_STATES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "torch": ("get_rng_state", lambda state: state().numpy().tobytes()),
    "torch.cuda": ("default_generators", lambda generators: _of_gpus(generators)),
    "numpy.random": ("get_state", lambda state: pickle.dumps(state(legacy=False))),
    "random": ("getstate", lambda state: state()),
}
# Classes of generators, and their states.
_KINDS: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("torch", "Generator", lambda generator: generator.get_state().numpy().tobytes()),
    ("numpy.random", "Generator", lambda generator: pickle.dumps(generator.bit_generator.state)),
    ("numpy.random", "BitGenerator", lambda generator: pickle.dumps(generator.state)),
    ("numpy.random", "RandomState", lambda generator: pickle.dumps(generator.get_state(legacy=False))),
    ("random", "Random", lambda generator: generator.getstate()),
)


_SHARED = (("random", "_inst"), ("numpy.random.mtrand", "_rand"))  # generators that everyone draws from


def _of_gpus(generators: Sequence[Any]) -> list[bytes]:
    """None while a CUDA graph is recorded: then they cannot be read."""
    cuda = sys.modules["torch.cuda"]
    is_readable = cuda.is_initialized() and not cuda.is_current_stream_capturing()
    return [g.get_state().numpy().tobytes() for g in generators] if is_readable else []


def refused(function: str, trace: Callable[[Watch | None], _Trace], named: Iterable[Any] = ()) -> _Trace:
    """What `trace(watch)` gives. `watch`, where there is one, is to be told when the function's own code begins to run,
    and when it stops, as where an operation is added to the graph. Generators may be among what the function names.

    The states of generators say that numbers were drawn, not by which thread. What the function draws, it
    draws between the same two operations in each trace of the same operations; what another thread draws meanwhile
    falls anywhere. So where a state has changed, the function is traced again, until no place is left where it changed
    every time. A trace of other operations begins anew.
    Only the function's own code counts. Other threads run where a library lets them, which is the same place each time.

    Raises:
        TraceError: numbers are drawn inside: every call would see the same ones.
        TypeError: torch.func differentiates what the function is called in.
    """
    own = dict(generators_among(named))
    try:
        before = states_of(own, (*_STATES, *own))
    except RuntimeError:  # torch's own generator cannot be read while it differentiates
        torch = sys.modules.get("torch")
        if torch is None or torch._C._functorch.peek_interpreter_stack() is None:
            raise
        raise transformed(f"kfusion.{function}") from None
    traced = trace(None)
    # NumPy imports numpy.random late: what nobody had imported before may have been drawn from.
    suspects = {library for library, state in states_of(own, (*_STATES, *own)).items() if before.get(library) != state}
    places: set[tuple[str, int]] = set()
    operations: list[Hashable] = []
    for _ in range(_MOST_TRACES):
        if not suspects:
            return traced
        watch = _Changes(own, suspects)
        traced = trace(watch)
        places = places & watch.found if watch.operations == operations else watch.found
        operations = watch.operations
        suspects = {library for library, _ in places}
    raise refused_random(function, min(suspects).partition(" (")[0])


def generators_among(named: Iterable[Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Generators among values, each under a name of its own, with what gives its state."""
    shared = [getattr(sys.modules.get(module), name, None) for module, name in _SHARED]
    for number, value in enumerate(v for v in named if not any(v is s for s in shared)):
        for library, kind, state in _KINDS:
            known = getattr(sys.modules.get(library), kind, None)
            if known is not None and isinstance(value, known):
                yield f"a {library}.{kind} (number {number})", functools.partial(state, value)
                break


class _Changes:
    """In which stretches of the function's own code the states of libraries changed: the library and the stretch, each
    of which ends with an operation.
    """

    def __init__(self, own: Mapping[str, Callable[[], Any]], libraries: Collection[str]) -> None:
        self._own = own
        self.found: set[tuple[str, int]] = set()
        self.operations: list[Hashable] = []
        self._libraries = libraries
        self._pauses = 1
        self._states: dict[str, Any] = {}

    def resume(self) -> None:
        self._pauses -= 1
        if self._pauses == 0:
            self._states = states_of(self._own, self._libraries)

    def pause(self, operation: Hashable) -> None:
        if self._pauses == 0:
            now, stretch = states_of(self._own, self._libraries), len(self.operations)
            self.found |= {(library, stretch) for library in now if now[library] != self._states.get(library)}
            self.operations.append(operation)
        self._pauses += 1


def states_of(own: Mapping[str, Callable[[], Any]], names: Collection[str]) -> dict[str, Any]:
    """The states of the function's own generators of these names, and of shared ones whose library is imported; one
    that another thread is importing may have no generator yet.
    """
    states = {name: state() for name, state in own.items() if name in names}
    for library, (name, read) in _STATES.items():
        state = getattr(sys.modules.get(library), name, None) if library in names else None
        if state is not None:
            states[library] = read(state)
    return states
