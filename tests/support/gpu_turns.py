"""Turns of processes on one GPU: tests that need most of its memory, or measure it, run while no other does."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """A context in which others may hold the GPU, too, or nobody else does. Who waits for the latter keeps the gate, at
    which those who come later wait.
    """
    folder.mkdir(exist_ok=True)
    kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    with (folder / "gate").open("w") as gate, (folder / "gpu").open("w") as gpu:
        fcntl.flock(gate, kind)
        fcntl.flock(gpu, kind)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield  # closing a file ends its lock
