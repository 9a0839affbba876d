"""What a measurement ran on: names, caches, threads, versions. Nothing that identifies a user or a path."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from .. import _core

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def cpu() -> dict[str, Any]:
    """Name, threads that kfusion uses, instruction set that it chose, cache sizes in bytes by level."""
    return {
        "name": _cpu_name(),
        "threads": _core.get_num_threads(),
        "isa": _core.isa(),
        "caches_bytes": _cpu_caches_bytes(),
    }


def gpu(device: int) -> dict[str, Any]:
    """What the driver says of a CUDA device."""
    return dict(_core.cuda_device_info(device))


def versions(libraries: Iterable[str]) -> dict[str, str]:
    """Versions of Python, kfusion, NumPy and those of the named libraries that are imported."""
    found = {"python": platform.python_version(), "kfusion": _core.__version__, "numpy": np.__version__}
    for name in libraries:
        if name in sys.modules:
            found[name] = str(getattr(sys.modules[name], "__version__", "unknown"))
    return found


def last_level_cache_bytes() -> int:
    """Size of the CPU's largest cache; 64 MiB, more than most have, where the system does not say."""
    return max(_cpu_caches_bytes().values(), default=64 * 2**20)


def half_products(float32: float) -> dict[str, float]:
    """FLOP/s that torch's products of half types reach on this CPU, where those of float32 reach so many.

    Measured on a core of an EPYC (Zen 5) with torch 2.13, 105 GFLOP/s in float32: bfloat16 440 to 500, as with AVX-512
    but no instructions for bfloat16 85, as with AVX2 28; float16 28 throughout.
    """
    flags = _cpu_flags()
    native = flags & {"avx512_bf16", "amx_bf16"}
    bfloat16 = 4.0 if native else 0.85 if "avx512f" in flags else 0.28
    return {"matrix_bfloat16": bfloat16 * float32, "matrix_float16": 0.28 * float32}


def available_memory_bytes() -> int | None:
    """Host memory that can be had without swapping, or None where the system does not say."""
    meminfo = _lines("/proc/meminfo")
    limits = [int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable:")]
    maximum, used = _lines("/sys/fs/cgroup/memory.max"), _lines("/sys/fs/cgroup/memory.current")
    if maximum and used and maximum[0].isdigit():
        limits.append(int(maximum[0]) - int(used[0]))
    return min(limits, default=None)


def _cpu_name() -> str:
    for line in _lines("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _cpu_flags() -> set[str]:
    for line in _lines("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            return set(value.split())
    return set()


def _cpu_caches_bytes() -> dict[str, int]:
    caches = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_lines(index / name) for name in ("level", "type", "size"))
        if level and kind and size and kind[0] != "Instruction":
            caches[f"L{level[0]}"] = int(size[0][:-1]) * _UNITS.get(size[0][-1], 1)
    return caches


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
