"""`kfusion.device` and `kfusion.devices`: devices of the table by name, and the present machine's."""

from __future__ import annotations

import functools
import threading

from .device import Device
from .device_names import hint
from .device_table import DeviceTable, by_key, find
from .measure import is_place, measure_device, parse_place

_measuring = threading.Lock()


def device(name: str | Device) -> Device:
    """A device by name.

    Args:
        name: one of the table (`kfusion.devices()`), upper or lower case, with or without spaces, dashes and the
            vendor's name; or "cpu", "cuda" or "cuda:1" for the present machine's, which is measured in a few seconds,
            once per process. A Device is handed through.

    Returns:
        A Device.

    Raises:
        ValueError: the table has no such device.
        TypeError: name is no text.
        kfusion.DeviceError: "cuda" where there is no such GPU.
    """
    if isinstance(name, Device):
        return name
    if not isinstance(name, str):
        raise TypeError(f"kfusion.device: name must be text or a kfusion.Device, got {name!r}")
    if is_place(name):
        with _measuring:
            return _measured(*parse_place("device", name))
    if found := find(name):
        return found
    raise ValueError(
        f"kfusion.device: name must be 'cpu', 'cuda' or one of kfusion.devices(), got {name!r}; {hint(name)}"
    )


def devices() -> DeviceTable:
    """The table of devices: real GPUs and CPUs, by what their vendors publish.

    Returns:
        A DeviceTable: print it, index it by number or name, `.to_dict()` it.
    """
    return DeviceTable(list(dict.fromkeys(by_key().values())))


@functools.cache
def _measured(kind: str, index: int) -> Device:
    return measure_device(kind if kind == "cpu" else f"{kind}:{index}")
