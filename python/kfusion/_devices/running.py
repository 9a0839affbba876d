"""The machine that fused functions run on, as their plans see it: limits are looked up, never measured."""

from __future__ import annotations

import functools

from .. import _core
from . import hardware
from .device import Device
from .device_table import find, from_properties

HOW_TO_MEASURE = 'f.plan(x, device="cpu")'
# Figures of a server's core, so that a plan has prices; the kernels do not depend on them.
_CPU_BANDWIDTH, _CPU_FLOPS, _CPU_LAUNCH_US = 10e9, 50e9, 2.0


def device(place: str) -> Device:
    """The device that plans for arrays at a place are made for.

    Raises:
        kfusion.DeviceError: there is no such GPU.
    """
    return _cpu(_core.get_num_threads()) if place == "cpu" else _gpu(int(place.partition(":")[2]))


@functools.cache
def _gpu(index: int) -> Device:
    info = hardware.gpu(index)
    found = find(info["name"])  # several chips share some names: a desktop's and a laptop's, or parts of a GPU
    return found if found and found.units == info["multiprocessors"] else from_properties(info)


@functools.cache
def _cpu(threads: int) -> Device:
    cpu = hardware.cpu()
    core_cache = int(cpu["caches_bytes"].get("L2", 256 * 1024))
    return Device(
        name=f"{cpu['name']}, {threads} {'core' if threads == 1 else 'cores'}",
        bandwidth=_CPU_BANDWIDTH * threads,
        cache_bytes=hardware.last_level_cache_bytes(),
        on_chip_bytes=core_cache,
        tile_bytes=core_cache,
        units=threads,
        launch_us=_CPU_LAUNCH_US,
        is_cpu=True,
        write_allocate=True,
        peaks=dict.fromkeys(
            ("vector_float32", "matrix_float32", "vector_float64", "matrix_float64"), _CPU_FLOPS * threads
        )
        | hardware.half_products(_CPU_FLOPS * threads),
        source=dict.fromkeys(("cache", "on_chip"), "the system's figures, and the threads that kfusion uses"),
        assumed=dict.fromkeys(
            ("bandwidth", "peak_bandwidth", "cache_bandwidth", "launch_us", "peaks"),
            f"of a common server's core; {HOW_TO_MEASURE} measures this machine's",
        ),
    )
