"""The memory that a process has: now, and at most while something runs."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfusion import _core

_PROCESS = Path("/proc/self")


def resident() -> int | None:
    """Bytes of the process in memory; None where the system does not say."""
    statm = _PROCESS / "statm"
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else None


def peak(run: Callable[[], Any], device: str) -> int | None:
    """Bytes that a call has at most beside what was there before: torch's of the device, or the process's on the CPU,
    where kept memory is given back first; None where the system does not say.
    """
    run()
    return _peak_of_device(run) if device == "cuda" else _peak_of_process(run)


def _peak_of_device(run: Callable[[], Any]) -> int:
    import torch

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    _core.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def _peak_of_process(run: Callable[[], Any]) -> int | None:
    gc.collect()
    _core.empty_cache()
    try:
        (_PROCESS / "clear_refs").write_text("5")  # the peak is counted from here (Linux 4.0)
        before = resident()
        run()
        lines = (_PROCESS / "status").read_text().splitlines()
    except OSError:
        return None
    most = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
    return None if most is None or before is None else max(most - before, 0)
