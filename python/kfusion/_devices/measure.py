"""`kfusion.measure_device`: what the present CPU or GPU reaches, measured with plain copies and matrix products."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .. import _core
from .._timing import Progress
from . import hardware
from .device import Device
from .device_table import find, from_properties

_MB = 2**20
_ROUNDS = 15  # samples of each size, in turn; medians are kept
_LEAST_ROUNDS, _BUDGET_S = 3, 2.5  # on a slow machine
_LEGACY_STREAM = 0  # the one that cuda_time's events are on
_MATMUL = {False: 1024, True: 2048}  # rows of the square matrices; large where the small product is quick
_QUICK_S = 0.02
_PLACE = re.compile(r"(cpu|cuda)(?::(\d{1,3}))?")


def measure_device(place: str = "cpu", *, progress: Progress | None = None) -> Device:
    """Measures a device of this machine, in a few seconds.

    Bandwidths come from copies: bytes read plus bytes written, over the time less launch_us; that of the memory from a
    copy far beyond the cache, that of the cache from one within half of it. On CUDA launch_us is the intercept of the
    times of cold copies over their bytes, on the CPU the time of a copy of a few bytes. The CPU's peaks are those of
    NumPy's matrix product, which is as close to its units' peak as a program gets; a GPU's are the data sheet's, or
    follow from its clock where the device table has none of this name. Medians are taken, but of the matrix product the
    best.

    Args:
        place: "cpu", "cuda" or "cuda:1".
        progress: called with the fraction done (0 to 1) and a word on what is being done.

    Returns:
        A Device named as the system names it; `source` and `assumed` say which numbers were measured.

    Raises:
        ValueError: place is nothing like that.
        kfusion.DeviceError: there is no such GPU.
        MemoryError: not even small arrays fit into memory.
    """
    kind, index = parse_place("measure_device", place)
    report = progress or (lambda fraction, what: None)
    device = _measure_cpu(report) if kind == "cpu" else _measure_cuda(index, report)
    report(1.0, "done")
    return device


def is_place(text: str) -> bool:
    """Whether the text is "cpu", "cuda" or "cuda:1", not a name."""
    return _PLACE.fullmatch(text.strip().lower()) is not None


def parse_place(function: str, place: str) -> tuple[str, int]:
    """ "cuda:1" -> ("cuda", 1)."""
    match = _PLACE.fullmatch(place.strip().lower()) if isinstance(place, str) else None
    if not match or (match[1] == "cpu" and match[2]):
        raise ValueError(f"kfusion.{function}: place must be 'cpu', 'cuda' or 'cuda:<index>', got {place!r}")
    return match[1], int(match[2] or 0)


def intercept_us(nbytes: Sequence[int], times_us: Sequence[float]) -> float:
    """launch_us of the line time = launch_us + bytes / bandwidth, relative errors squared; 0 where it is negative."""
    b, t = np.asarray(nbytes, dtype=float), np.asarray(times_us, dtype=float)
    (launch_us, _), *_ = np.linalg.lstsq(np.stack([1 / t, b / t], axis=1), np.ones_like(t))
    return max(float(launch_us), 0.0)


def _measure_cpu(report: Progress) -> Device:
    cpu, cache_bytes = hardware.cpu(), hardware.last_level_cache_bytes()
    available = hardware.available_memory_bytes() or 2**31
    # Beyond 3/4 of the cache the copy stores past it, as kernels with large results do.
    sizes = {
        "launch": 64,
        "cache": min(cache_bytes // 8, available // 8),
        "memory": min(max(cache_bytes, 64 * _MB), available // 4),
    }
    times_us = _copy_times_us(sizes, lambda fraction: report(0.6 * fraction, "copying"))
    rates = {name: 2e6 * sizes[name] / us for name, us in times_us.items()}
    peaks = {}
    for i, dtype in enumerate(("float32", "float64")):
        report(0.6 + 0.2 * i, f"matrix product, {dtype}")
        peaks[f"vector_{dtype}"] = peaks[f"matrix_{dtype}"] = _matmul_flops(np.dtype(dtype))
    peaks |= hardware.half_products(peaks["matrix_float32"])
    core_cache = int(cpu["caches_bytes"].get("L2", 256 * 1024))
    threads = int(cpu["threads"])
    return Device(
        name=f"{cpu['name']}, {threads} {'core' if threads == 1 else 'cores'}",
        bandwidth=rates["memory"],
        cache_bandwidth=max(rates["cache"], rates["memory"]),
        cache_bytes=cache_bytes,
        on_chip_bytes=core_cache,
        tile_bytes=core_cache,
        units=threads,
        launch_us=times_us["launch"],
        is_cpu=True,
        write_allocate=True,
        peaks=peaks,
        source={
            "bandwidth": f"measured: a copy of {sizes['memory'] / 1e6:.0f} MB",
            "cache": f"sizes from the system; bandwidth measured: a copy of {sizes['cache'] / 1e6:.1f} MB",
            "launch": "measured: the time of a copy of 64 bytes",
            "on_chip": "the system's figures for a core's L2, and the threads that kfusion uses",
            "peaks": f"measured: the matrix product of NumPy {np.__version__}, with the threads of its BLAS; "
            "of half types what torch's reaches of it on such a CPU",
        },
        assumed={"peak_bandwidth": "as measured: the system does not say what the memory could reach"},
    )


def _copy_times_us(sizes: dict[str, int], report: Callable[[float], None]) -> dict[str, float]:
    """Median time of a copy of each size, all sampled in turn."""
    arrays = {name: (np.ones(n // 4, np.float32), np.zeros(n // 4, np.float32)) for name, n in sizes.items()}
    samples: dict[str, list[float]] = {name: [] for name in sizes}
    end = time.perf_counter() + _BUDGET_S
    for i in range(_ROUNDS):
        if i >= _LEAST_ROUNDS and time.perf_counter() > end:
            break
        report(i / _ROUNDS)
        for name, (source, target) in arrays.items():
            _core.copy(source, out=target)  # the caches as such a copy leaves them
            start = time.perf_counter_ns()
            _core.copy(source, out=target)
            samples[name].append((time.perf_counter_ns() - start) / 1e3)
    return {name: float(np.median(taken)) for name, taken in samples.items()}


def _matmul_flops(dtype: np.dtype[Any]) -> float:
    """2 n^3 / time of the best of several products."""
    best = 0.0
    for large in (False, True):
        n = _MATMUL[large]
        a, b = np.random.default_rng(0).standard_normal((2, n, n)).astype(dtype)
        times_s = [_seconds(lambda a=a, b=b: a @ b) for _ in range(5)]  # type: ignore[misc]
        best = max(best, 2 * n**3 / min(times_s))
        if min(times_s) > _QUICK_S:
            break
    return best


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _measure_cuda(index: int, report: Progress) -> Device:
    info = hardware.gpu(index)
    known = find(info["name"]) or from_properties(info)
    l2, memory = int(info["l2_bytes"]), int(info["memory_bytes"])
    cold = [n * _MB for n in (16, 32, 64, 128, 256, 512) if n * _MB <= memory // 16]
    hot = [l2 // 4]
    cold_us = _cuda_copy_times_us(cold, index, True, lambda fraction: report(0.7 * fraction, "copying, cold"))
    hot_us = _cuda_copy_times_us(hot, index, False, lambda fraction: report(0.7 + 0.3 * fraction, "copying, in L2"))
    launch_us = intercept_us([2 * n for n in cold], cold_us)
    bandwidth, cache_bandwidth = (2e6 * n[-1] / (us[-1] - launch_us) for n, us in ((cold, cold_us), (hot, hot_us)))
    return replace(
        known,
        name=info["name"],
        launch_us=launch_us,
        bandwidth=bandwidth,
        peak_bandwidth=max(known.peak_bandwidth, bandwidth),
        cache_bandwidth=max(cache_bandwidth, bandwidth),
        source={
            **known.source,
            "bandwidth": f"measured: a cold copy of {cold[-1] / 1e6:.0f} MB",
            "cache": f"size from the driver; bandwidth measured: a copy of {hot[-1] / 1e6:.1f} MB that lies in L2",
            "launch": "measured: the intercept of the cold copies' times over their bytes",
        },
        assumed={name: text for name, text in known.assumed.items() if name in ("peaks", "peak_bandwidth")},
    )


def _cuda_copy_times_us(sizes: Sequence[int], index: int, cold: bool, report: Callable[[float], None]) -> list[float]:
    """Median device time of a copy of each size."""
    medians = []
    block = np.random.default_rng(0).random(_MB, dtype=np.float32)
    for i, nbytes in enumerate(sizes):
        report(i / len(sizes))
        host = np.resize(block, nbytes // 4)
        source, target = _core.to_device(host, index), _core.to_device(host, index)
        run = lambda: _core.copy(source, out=target, stream=_LEGACY_STREAM)  # noqa: E731, B023
        medians.append(float(np.median(_core.cuda_time(run, _ROUNDS, cold=cold, device=index))))
    return medians
