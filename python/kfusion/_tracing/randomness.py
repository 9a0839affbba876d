"""Whether a traced function drew random numbers from a generator that everyone shares."""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Callable, Iterator

from .refusals import refused_random

_STATES: dict[str, Callable[[], bytes]] = {
    "random": lambda: pickle.dumps(sys.modules["random"].getstate()),
    "numpy.random": lambda: pickle.dumps(sys.modules["numpy.random"].get_state(legacy=False)),
    "torch": lambda: bytes(sys.modules["torch"].get_rng_state().numpy().tobytes()),
}


@contextlib.contextmanager
def refused(function: str) -> Iterator[None]:
    """Raises a TraceError where numbers were drawn inside: every call would see the same ones."""
    before = {name: state() for name, state in _STATES.items() if name in sys.modules}
    yield
    for name, state in before.items():
        if _STATES[name]() != state:
            raise refused_random(function, name)
