"""torch's threads of backward passes, when the process ends.

The thread of a GPU's backward passes returns a pass to its caller before it gives up what the pass held, for which it
asks for the GIL. Where the interpreter shuts down meanwhile, CPython ends the thread in the middle of destructors that
may not throw, and the process aborts. So one more pass, without Python, goes through each such thread before: when that
one returns, the thread holds nothing of those before it.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Iterable
from typing import Any

_devices: set[Any] = set()
_held: list[Any] = []  # the last passes' tensors, which no thread may be the last to give up


def used(gradients: Iterable[Any]) -> None:
    """Says that a backward pass of these tensors runs."""
    for device in {g.device for g in gradients if not g.is_cpu} - _devices:
        if not _devices:
            atexit.register(_wait)
        _devices.add(device)


def _wait() -> None:
    torch = sys.modules["torch"]
    for device in _devices:
        with contextlib.suppress(RuntimeError):  # of a device that has failed, or of the parent of a forked process
            _held.append(torch.zeros((), device=device, requires_grad=True))
            _held[-1].backward(torch.ones((), device=device))
