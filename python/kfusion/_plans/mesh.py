"""`kfusion.Mesh`: a plan for several devices, of which each has a part of the arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._devices.device import Device
from .._devices.device_table import links_of
from .._graph.axes import Axes, axes_of, call_of, meeting
from .._graph.blocks import Cut, Part
from .._spec import ITEM_BYTES, Spec
from .._tables import Report, Table, number, wrapped
from .._tracing.trace import trace
from .plan import Plan, plan_graph

_WHO = "kfusion.Mesh"


@dataclass(frozen=True)
class Mesh:
    """Ranks that share a function's arrays, for `kfusion.plan`.

    Args:
        ranks: how many devices there are.
        shards: by the names of arguments, which of their axes is split among the ranks; the others are the same on
            every rank. An argument that runs along such an axis is split with it.
        link: what joins the devices: "nvlink" or "pcie", or bytes/s of both directions together. None is the fastest
            that the device table has for the device.

    Raises:
        TypeError: one is of a wrong kind.
        ValueError: fewer than one rank, or no positive rate.
    """

    ranks: int
    shards: Mapping[str, int] = field(hash=False)
    link: str | float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.ranks, bool) or not isinstance(self.ranks, int):
            raise TypeError(f"{_WHO}: ranks must be an int, got {self.ranks!r}")
        if self.ranks < 1:
            raise ValueError(f"{_WHO}: ranks must be >= 1, got {self.ranks}")
        if not isinstance(self.shards, Mapping) or not all(isinstance(axis, int) for axis in self.shards.values()):
            raise TypeError(f"{_WHO}: shards must map names of arguments to axes, got {self.shards!r}")
        if isinstance(self.link, (int, float)) and not self.link > 0:
            raise ValueError(f"{_WHO}: link must be > 0 bytes/s, got {self.link!r}")


@dataclass(frozen=True)
class Exchange:
    """A reduction over ranks, of a value with so many bytes. Each rank sends link_bytes, and receives as many."""

    value: str
    op: str
    nbytes: int
    link_bytes: int
    time_us: float


@dataclass(frozen=True)
class MeshPlan(Report):
    """What each rank runs and exchanges, beside all of it on one device.

    time_us = kernels of a rank + exchanges; speedup is that of one device over it. An all-reduce of n bytes by r ranks
    takes launch_us + 2 (r - 1) / r * n / (link / 2), as a ring moves it; the links' latency is not priced.
    """

    function: str
    device: Device
    mesh: Mesh
    link: str
    link_bandwidth: float
    link_source: str
    alone: Plan
    parts: tuple[Plan, ...]
    exchanges: tuple[Exchange, ...]

    @property
    def rank_bytes(self) -> int:
        """Bytes that the kernels of a rank load and store."""
        return sum(p.fused.issued.total for p in self.parts)

    @property
    def link_bytes(self) -> int:
        """Bytes that a rank sends."""
        return sum(e.link_bytes for e in self.exchanges)

    @property
    def time_us(self) -> float:
        """The time of a call, on each rank."""
        return sum(p.fused.time_us for p in self.parts) + sum(e.time_us for e in self.exchanges)

    @property
    def speedup(self) -> float:
        """Over one device that does all."""
        return self.alone.fused.time_us / self.time_us if self.time_us else 1.0

    def __repr__(self) -> str:
        return f"<MeshPlan: {self.function} on {self.mesh.ranks} x {self.device.name}: {self.speedup:.3g} x one>"

    def _parts(self, width: int | None) -> Iterator[Table | str]:
        rows = [("one device", _megabytes(self.alone.fused.issued.total), "", number(self.alone.fused.time_us, 4))]
        for k, part in enumerate(self.parts):
            name = f"kernels of a rank{f', {k + 1}' if len(self.parts) > 1 else ''}"
            rows.append((name, _megabytes(part.fused.issued.total), "", number(part.fused.time_us, 4)))
        for e in self.exchanges:
            rows.append((f"all-reduce {e.value}", "", _megabytes(e.link_bytes), number(e.time_us, 4)))
        rows.append(("a rank", _megabytes(self.rank_bytes), _megabytes(self.link_bytes), number(self.time_us, 4)))
        title = f"{self.function} on {self.mesh.ranks} x {self.device.name}"
        yield Table(title, ("", "MB memory", "MB links", "us"), tuple(rows))
        source = f" ({self.link_source})" if self.link_source else ""
        rate = f"{self.link}: {self.link_bandwidth / 1e9:.4g} GB/s in both directions together{source}."
        yield wrapped(f"{number(self.speedup, 3)} x one device. {rate}", width) + "\n"


def _megabytes(nbytes: float) -> str:
    return number(nbytes / 1e6, 4)


def plan_mesh(name: str, graph: Any, device: Device, options: dict[str, Any], mesh: Mesh) -> MeshPlan:
    """The plan of a graph for several ranks.

    Raises:
        ValueError: no such argument or axis, a call needs all of an axis that is split, or no link is known.
    """
    link, rate, source = _link(device, mesh)
    plain = graph.simplify().to_dict()
    axes = axes_of(plain)
    split = _split(plain, axes, mesh)
    cut = Cut(plain, split, axes)
    for _, call in cut.needed_again():  # as a call with DTensors refuses
        what = "needs all of an axis that is sharded to go on with each element: shard another axis"
        raise ValueError(f"{_WHO}: {call} {what}")
    parts = tuple(_planned(cut, part, name, device, options, mesh) for part in cut.parts)
    exchanges = tuple(_exchange(cut, i, device, mesh, rate / 2) for part in cut.parts for i in part.states)
    alone = plan_graph(name, graph, device, options)
    return MeshPlan(name, device, mesh, link, rate, source, alone, parts, exchanges)


def _link(device: Device, mesh: Mesh) -> tuple[str, float, str]:
    if isinstance(mesh.link, (int, float)):
        return "link", float(mesh.link), ""
    known = links_of(device)
    if not known or (mesh.link is not None and mesh.link not in known):
        has = f"has {', '.join(known)}" if known else "has none"
        raise ValueError(f"{_WHO}: link of {device.name}: the device table {has}; give bytes/s of both directions")
    link = mesh.link or next(iter(known))
    return link, *known[link]


def _split(graph: Mapping[str, Any], axes: Axes, mesh: Mesh) -> list[int]:
    inputs = {n["name"]: i for i, n in enumerate(graph["nodes"]) if n["op"] == "input"}
    found: list[int] = []
    for name, axis in mesh.shards.items():
        if name not in inputs:
            raise ValueError(f"{_WHO}: shards must name arguments ({', '.join(inputs)}), got {name!r}")
        labels = axes.labels[inputs[name]]
        if not -len(labels) <= axis < len(labels):
            raise ValueError(f"{_WHO}: {name} has {len(labels)} axes, got axis {axis}")
        label = labels[axis]
        extent = graph["nodes"][inputs[name]]["shape"][axis]
        if mesh.ranks > 1 and label in axes.whole:
            raise ValueError(f"{_WHO}: axis {axis} of {name} is sharded, but {axes.whole[label]}")
        if extent < mesh.ranks:
            raise ValueError(f"{_WHO}: axis {axis} of {name} has {extent} elements for {mesh.ranks} ranks")
        if mesh.ranks > 1:
            found.append(label)
    for name, i in inputs.items():
        both = [axis for axis, label in enumerate(axes.labels[i]) if label in found]
        if len(both) > 1:
            raise ValueError(f"{_WHO}: axes {both[0]} and {both[1]} of {name} would both be split among the same ranks")
    if (met := meeting(axes, dict.fromkeys(found, 0))) is not None:
        call = call_of(graph["nodes"][met[0]], graph["stages"])
        what = "has two axes, of different arguments, that would both be split among the same ranks: shard one of them"
        raise ValueError(f"{_WHO}: {call} {what}")
    return found


def _planned(cut: Cut, part: Part, name: str, device: Device, options: dict[str, Any], mesh: Mesh) -> Plan:
    """The plan of the rank that has most elements."""
    specs = []
    for i in part.inputs:
        n, labels = cut.graph["nodes"][i], cut.axes.labels[i]
        shape = [-(-e // mesh.ranks) if label in cut.split else e for e, label in zip(n["shape"], labels, strict=True)]
        specs.append(Spec(tuple(shape), n["dtype"], n["library"], n["device"]))
    return plan_graph(name, trace(cut.function(part, name), *specs).graph, device, options)


def _exchange(cut: Cut, i: int, device: Device, mesh: Mesh, rate: float) -> Exchange:
    n, join = cut.graph["nodes"][i], cut.joins[i]
    labels = cut.axes.labels[i]
    shape = [-(-e // mesh.ranks) if label in cut.split else e for e, label in zip(n["shape"], labels, strict=True)]
    is_pair = join.op == "moments"
    item = max(ITEM_BYTES[n["dtype"]], 1 if join.argument == i else 4)  # states of half types are float32
    nbytes = math.prod(shape) * item * (1 + is_pair)
    sent = 2 * (mesh.ranks - 1) * nbytes // mesh.ranks
    stage = cut.graph["stages"][n["stage"]]
    return Exchange(stage["name"], join.op, nbytes, sent, device.launch_us * (1 + is_pair) + 1e6 * sent / rate)
