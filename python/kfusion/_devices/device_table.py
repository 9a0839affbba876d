"""The device table: devices.json as Device objects, and how they look side by side.

The file holds what vendors publish. What they do not publish (what a copy reaches, what a launch costs) is derived here
from what was measured on the H200, and each Device says that it is assumed.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from .._tables import Report, Table, number, room, shorten, wrapped
from .device import Device

_MIN_NAME = 16
_COPY_FRACTION = {False: 0.9, True: 0.8}  # of the data sheet's bandwidth, by is_cpu
_CACHE_BYTES_PER_CLOCK = 26  # and SM: on the H200, 6.9e12 / (132 * 1.98e9)
_CORE_CACHE_BANDWIDTH = 35e9  # of a CPU core: a hot copy of 4096 x 1024 float32, measured on two cores of an EPYC
_LAUNCH_US = {False: 2.9, True: 1.0}
_GEFORCE_RATE = 0.5  # of half matrix products that are accumulated in float32, against other GPUs of the architecture

_ASSUMED = {
    False: {
        "bandwidth": "0.9 of the data sheet's, as copies reach on an H200 and in the experiment on an RTX 3050",
        "cache_bandwidth": "26 bytes per clock and multiprocessor, as copies within the L2 of an H200",
        "launch_us": "as measured on an H200",
    },
    True: {
        "bandwidth": "0.8 of the data sheet's, about what STREAM reaches on servers",
        "cache_bandwidth": "35 GB/s a core, as two cores of an EPYC reach with a copy of 16.8 MB",
        "launch_us": "about what a small copy takes through Python on the CPUs that we measured",
    },
}
_FROM_CLOCK = {
    "peaks": "multiprocessors x clock x operations per clock of the compute capability",
    "peak_bandwidth": "memory clock x bus width, as the driver gives them",
}

_VENDORS = re.compile(r"\b(nvidia|geforce|tesla|amd|instinct|apple|gpu)\b")
GEFORCE = ("GeForce", "GeForce laptop")  # kinds whose matrix products run at _GEFORCE_RATE


class DeviceTable(Report, Sequence[Device]):
    """Devices side by side, as tables in a terminal and in Jupyter."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = tuple(devices)

    def __len__(self) -> int:
        return len(self._devices)

    def __iter__(self) -> Iterator[Device]:
        return iter(self._devices)

    @overload
    def __getitem__(self, index: int | str) -> Device: ...
    @overload
    def __getitem__(self, index: slice) -> DeviceTable: ...
    def __getitem__(self, index: int | str | slice) -> Device | DeviceTable:
        if isinstance(index, slice):
            return DeviceTable(self._devices[index])
        if isinstance(index, int):
            return self._devices[index]
        for found in self._devices:
            if key_of(found.name) == key_of(index):
                return found
        raise KeyError(index)

    def to_dict(self) -> dict[str, Any]:
        """{"devices": the dict of each}."""
        return {"devices": [d.to_dict() for d in self._devices]}

    def __repr__(self) -> str:
        return f"<DeviceTable: {', '.join(d.name for d in self._devices)}>"

    def _parts(self, width: int | None) -> Any:
        header = ("device", "GB/s", "peak", "f32", "f64", "half", "ridge", "cache", "row kB", "units", "us")
        rows = [_cells(d) for d in self._devices]
        name_width = None if width is None else max(room(0, header, rows, width), _MIN_NAME)
        yield Table("Devices", header, tuple((shorten(name, name_width), *cells) for name, *cells in rows))
        yield wrapped(
            "GB/s: what a copy reaches (read plus write), peak: the data sheet's. f32, f64: TFLOP/s of the vector "
            "units; half: of matrix products of float16, dense. ridge: FLOP/B at which those meet the peak bandwidth. "
            "cache: MB of the last level. row kB: what a row can occupy on chip. us: before the first byte. "
            "~: assumed. kfusion.device(name) shows one with its sources.",
            width,
        )


def _cells(d: Device) -> tuple[str, ...]:
    def cell(name: str, value: float, digits: int = 3) -> str:
        return ("~" if name in d.assumed else "") + number(value, digits)

    return (
        d.name,
        cell("bandwidth", d.bandwidth / 1e9),
        cell("peak_bandwidth", d.peak_bandwidth / 1e9),
        cell("peaks", d.peaks["vector_float32"] / 1e12),
        cell("peaks", d.peaks["vector_float64"] / 1e12),
        cell("peaks", d.peak_flops("float16") / 1e12),
        number(d.ridge_point("float16"), 3),
        cell("cache_bytes", d.cache_bytes / 1e6),
        number(d.on_chip_bytes / 1e3, 3),
        str(d.units),
        cell("launch_us", d.launch_us, 2),
    )


def find(name: str) -> Device | None:
    """The device of the table with this name, or None. No other is made: a first call waits for this."""
    row = _rows().get(key_of(name))
    return None if row is None else _at(row)


def links_of(device: Device) -> dict[str, tuple[float, str]]:
    """What joins several of a device: bytes/s of both directions together, and the source, by the link's name, the
    fastest first; none where the table has none.
    """
    entry = _file()["links"].get(device.name, {})
    source = _file()["sources"].get(entry.get("source"), entry.get("source"))
    return {name: (rate, source) for name, rate in entry.items() if name != "source"}


def from_properties(info: Mapping[str, Any]) -> Device:
    """A CUDA device that the table does not have, by what its driver says."""
    known = sorted(_file()["architectures"], key=_version)
    capability = max(
        (a for a in known if _version(a) <= _version(info["compute_capability"])), key=_version, default=known[0]
    )
    units, clock_hz = info["multiprocessors"], info["clock_hz"]
    return _from_entry(
        {
            "name": info["name"],
            "kind": "GeForce" if "geforce" in info["name"].lower() else "NVIDIA data center",
            "compute_capability": capability,
            "clock_hz": clock_hz,
            "units": units,
            "peak_bandwidth": 2 * info["memory_clock_hz"] * info["memory_bus_bits"] / 8,
            "cache_bytes": info["l2_bytes"],
            "tile_bytes": info["shared_memory_per_block_bytes"],
            "source": dict.fromkeys(("cache", "on_chip"), "what the driver says"),
            "assumed": _FROM_CLOCK,
        }
    )


def peaks_from_clock(capability: str, units: int, clock_hz: float, *, geforce: bool) -> dict[str, float]:
    """Dense FLOP/s, a fused multiply-add being two, of `units` multiprocessors at `clock_hz`."""
    a = _file()["architectures"][capability]
    each = 2.0 * units * clock_hz
    half = each * (_GEFORCE_RATE if geforce else 1)
    return {
        "vector_float32": each * a["cores"],
        "vector_float64": each * a["cores"] * a["float64"],
        "matrix_float16": half * a["matrix_float16"],
        "matrix_bfloat16": half * a["matrix_bfloat16"],
        "matrix_float64": each * a["matrix_float64"],
    }


@functools.cache
def _file() -> Any:
    # By its path: to import importlib.resources takes longer than a first call from the cache of kernels may.
    return json.loads(Path(__file__).with_name("devices.json").read_text("utf-8"))


@functools.cache
def by_key() -> dict[str, Device]:
    """The devices by name and alias, as `key_of` writes them, in the order of the file."""
    return {key: _at(row) for key, row in _rows().items()}


@functools.cache
def kinds() -> dict[str, list[str]]:
    """The names of the table by kind of device, in the order of the file."""
    found: dict[str, list[str]] = {}
    for entry in _file()["devices"]:
        found.setdefault(entry["kind"], []).append(entry["name"])
    return found


@functools.cache
def _rows() -> dict[str, int]:
    """Where the file has what `key_of` makes of a name or an alias."""
    devices = enumerate(_file()["devices"])
    return {key_of(name): i for i, entry in devices for name in (entry["name"], *entry.get("aliases", ()))}


@functools.cache
def _at(row: int) -> Device:
    return _from_entry(_file()["devices"][row])


def _from_entry(entry: Mapping[str, Any]) -> Device:
    """An entry of the file, with what vendors do not publish."""
    is_cpu = entry.get("is_cpu", False)
    architecture = _file()["architectures"].get(entry.get("compute_capability"), {})
    tile_bytes = entry.get("tile_bytes") or architecture["shared_bytes"]
    bandwidth = _COPY_FRACTION[is_cpu] * entry["peak_bandwidth"]
    per_unit = _CORE_CACHE_BANDWIDTH if is_cpu else _CACHE_BYTES_PER_CLOCK * entry["clock_hz"]
    derived = {
        "bandwidth": bandwidth,
        "cache_bandwidth": max(per_unit * entry["units"], bandwidth),
        "launch_us": _LAUNCH_US[is_cpu],
        "tile_bytes": tile_bytes,
        "on_chip_bytes": tile_bytes * architecture.get("cluster_blocks", 1),
        "write_allocate": is_cpu,
    }
    if "peaks" not in entry:  # the vendor says how many units there are, and their clock
        geforce = entry["kind"] in GEFORCE
        derived["peaks"] = peaks_from_clock(
            entry["compute_capability"], entry["units"], entry["clock_hz"], geforce=geforce
        )
    reasons = {name: text for name, text in _ASSUMED[is_cpu].items() if name not in entry}
    texts = {
        "source": {group: _file()["sources"].get(text, text) for group, text in entry["source"].items()},
        "assumed": reasons | entry.get("assumed", {}),
    }
    extra = ("aliases", "clock_hz", "kind")
    return Device.from_dict(derived | {k: v for k, v in entry.items() if k not in extra} | texts)


def key_of(name: str) -> str:
    """The name without case, spaces, punctuation and the vendor's names."""
    return re.sub("[^a-z0-9]", "", _VENDORS.sub("", name.lower()))


def _version(capability: str) -> tuple[int, ...]:
    return tuple(map(int, capability.split(".")))
