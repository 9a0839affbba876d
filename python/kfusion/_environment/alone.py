"""One thread at a time has values of a trace in objects that others see."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

_WAIT = 30.0  # seconds: a traced function may itself wait for the thread that waits here

_lock = threading.RLock()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A context in which this thread traces, or reads and sets what traces set, and no other one does."""
    lock = _lock
    is_held = lock.acquire(timeout=_WAIT)
    try:
        yield
    finally:
        if is_held:
            lock.release()


def _forget() -> None:
    """Forgets them in a forked child, where nobody ends what other threads do."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
