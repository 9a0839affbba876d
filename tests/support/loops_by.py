"""Which executor runs loops on the CPU, for as long as a test needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kfusion import _core


@contextmanager
def loops_by(name: str) -> Iterator[None]:
    before = _core.loops_by()
    _core.set_loops_by(name)
    try:
        yield
    finally:
        _core.set_loops_by(before)
