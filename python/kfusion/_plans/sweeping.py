"""`kfusion.sweep`: plans of one function over sizes and devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._devices.device import Device
from .frontends import frontend_of
from .plan import device_of, plan_graph
from .sweep import WHO, Point, Sweep, grid, point_of, require_devices


def sweep(
    function: Any,
    *arguments: Any,
    device: str | Device | None = None,
    devices: Iterable[str | Device] | None = None,
    executors: str | Iterable[str] | None = None,
    **sizes: Iterable[int],
) -> Sweep:
    """Plans a function for each combination of sizes (and devices): time, bytes, FLOPs per byte, and what bounds it.

        kf.sweep(f, kf.spec(("batch", "seq", 4096)), batch=[1, 8, 64], seq=[128, 1024])

    Args:
        function: as for `kfusion.plan`; its own keyword arguments by functools.partial.
        arguments: its arguments; specs name sizes.
        device: as for `kfusion.plan`.
        devices: several of them.
        executors: as for `kfusion.plan`.
        sizes: by name, the values of a size; of an ONNX model also default_size, as for `kfusion.plan`.

    Returns:
        A `Sweep`: print it, `.plot()` it, take its `points`.

    Raises:
        TraceError: the function does what cannot be traced.
        ValueError: a size that specs name has no values, or none names it; a device is not known.
        TypeError: an argument is of a wrong kind.
    """
    if devices is not None and device is not None:
        raise TypeError("kfusion.sweep: give device or devices, not both")
    places = [device_of(d) for d in ([device] if devices is None else require_devices(devices))]
    points: list[Point] = []
    name, frontend = "", frontend_of(function)
    options = {"executors": executors if executors is None or isinstance(executors, str) else list(executors)}
    for found in grid(sizes):
        name, graph, modules = frontend.traced(*frontend.filled(arguments, {}, found, WHO))
        points += [point_of(plan_graph(name, graph, place, options, modules), found) for place in places]
    return Sweep(name, tuple(points))
