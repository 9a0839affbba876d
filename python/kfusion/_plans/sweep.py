"""`kfusion.sweep`: a function's plans over sizes and devices, and where they turn from one bound to another."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _json, _schema
from .._devices.device import Device
from .._tables import Report, Table, byte_unit, in_unit, number, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .._files import StrPath
    from .plan import Plan

WHO = "kfusion.sweep"
_MAX_POINTS = 10_000
_MAX_ROWS = 60


@dataclass(frozen=True)
class Point:
    """The totals of one plan: what `Plan.fused` and `Plan.unfused` say for these sizes on that device.

    compute_share: the part of the predicted time in kernels that computing bounds. intensity: FLOPs per byte of the
    fused kernels.
    """

    sizes: dict[str, int]
    device: str
    kernels: int
    unfused_kernels: int
    bytes: int
    unfused_bytes: int
    flops: int
    intensity: float
    us: float
    unfused_us: float
    library_us: float
    bound: str
    compute_share: float


@dataclass(frozen=True)
class Sweep(Report):
    """Plans of one function over sizes and devices, the last size the fastest to change.

    `print` shows a table and where the bound changes, `.plot()` draws, `points`, `to_dicts()` and `to_json()` are the
    same as records.
    """

    function: str
    points: tuple[Point, ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        """The points as plain records."""
        return [_schema.to_plain(point) for point in self.points]

    def to_json(self, indent: int | None = None) -> str:
        """`to_dicts` as text."""
        return _json.dumps(self.to_dicts(), indent)

    def plot(self, path: StrPath | None = None) -> Figure:
        """Draws times, bytes and FLOPs per byte over the size with the most values, or over the devices.

        Args:
            path: file to write (its ending chooses the format), if any.

        Returns:
            The pyplot Figure, closed, so that a notebook shows it once.
        """
        from .. import _pictures
        from . import sweep_plot

        figure = sweep_plot.draw(self)
        if path is not None:
            _pictures.save(figure, path)
        return figure

    def turns(self) -> list[str]:
        """Sentences that say what bounds the time, and between which sizes that changes."""
        axis = self.axis
        if axis is None:
            return [f"{p.device}: bound by {_BOUNDS[p.bound]}." for p in self.points]
        return [f"{name}: {_turns(axis, points)}." for name, points in self.series().items()]

    @property
    def axis(self) -> str | None:
        """The size with the most values; None where there is none."""
        values = {name: len({p.sizes[name] for p in self.points}) for name in self.points[0].sizes}
        axis = max(values, key=lambda name: values[name], default=None)
        return axis if axis is not None and values[axis] > 1 else None

    def series(self) -> dict[str, list[Point]]:
        """The points by all but the axis, in words: "batch=8 on H100 SXM", in the axis's order."""
        axis, found = self.axis, dict[str, list[Point]]()
        for point in self.points:
            others = ", ".join(f"{name}={n}" for name, n in point.sizes.items() if name != axis)
            found.setdefault(f"{others} on {point.device}" if others else point.device, []).append(point)
        key = operator.itemgetter(axis or "")
        return {name: sorted(points, key=lambda p: key(p.sizes) if axis else 0) for name, points in found.items()}

    def _parts(self, width: int | None) -> Iterator[Table | str]:
        yield _table(self)
        yield "\n".join(wrapped(line, width) for line in self.turns()) + "\n"


_BOUNDS = {"launch": "launches", "memory": "memory", "compute": "computing"}


def point_of(plan: Plan, sizes: Mapping[str, int]) -> Point:
    """A plan's totals."""
    computing = sum(g.time_us for g in plan.groups if g.bound == "compute")
    return Point(
        dict(sizes),
        plan.device.name,
        len(plan.groups),
        len(plan.unfused_groups),
        plan.fused.issued.total,
        plan.unfused.issued.total,
        plan.fused.flop_total,
        plan.fused.intensity,
        plan.fused.time_us,
        plan.unfused.time_us,
        plan.library.time_us,
        plan.fused.bound,
        computing / plan.fused.time_us if plan.fused.time_us else 0.0,
    )


def grid(swept: Mapping[str, Iterable[int]]) -> list[dict[str, int]]:
    """All combinations of sizes, the last the fastest to change.

    Raises:
        TypeError: the values of a size are no integers.
        ValueError: there are none, or too many combinations.
    """
    values = {name: _values(name, given) for name, given in swept.items()}
    points = [dict(zip(values, found, strict=True)) for found in itertools.product(*values.values())]
    if len(points) > _MAX_POINTS:
        raise ValueError(f"{WHO}: at most {_MAX_POINTS} combinations of sizes are planned, got {len(points)}")
    return points


def _values(name: str, given: Any) -> list[int]:
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else [given]
    for n in listed:
        if isinstance(n, bool) or not hasattr(n, "__index__"):
            raise TypeError(f"{WHO}: {name} must be integers, as in {name}=[1, 2, 4], got {n!r}")
    if not listed:
        raise ValueError(f"{WHO}: {name} must have a value at least")
    return list(dict.fromkeys(map(operator.index, listed)))


def require_devices(devices: Any) -> list[str | Device | None]:
    """The devices to plan for, at least one.

    Raises:
        TypeError: it is no list of them.
        ValueError: it is empty.
    """
    if isinstance(devices, (str, Device)) or not isinstance(devices, Iterable):
        raise TypeError(f'{WHO}: devices must be a list, as in devices=["H100", "L4"], got {devices!r}')
    if not (listed := list(devices)):
        raise ValueError(f"{WHO}: devices must have one at least")
    return listed


def _turns(axis: str, points: Sequence[Point]) -> str:
    """ "bound by memory up to batch=64, by computing from batch=128"."""
    runs = [list(group) for _, group in itertools.groupby(points, key=lambda p: p.bound)]
    if len(runs) == 1:
        return f"bound by {_BOUNDS[points[0].bound]} at each {axis}"
    said = []
    for i, run in enumerate(runs):
        first, last = run[0].sizes[axis], run[-1].sizes[axis]
        where = f"up to {axis}={last}" if i == 0 else f"from {axis}={first}" + f" to {last}" * (i + 1 < len(runs))
        said.append(f"by {_BOUNDS[run[0].bound]} {where}")
    return f"bound {', '.join(said)}"


def _table(sweep: Sweep) -> Table:
    shown = sweep.points[:_MAX_ROWS]
    names = list(sweep.points[0].sizes) if sweep.points else []
    unit, size = byte_unit(max((p.unfused_bytes for p in shown), default=0))
    time, us = ("ms", 1e3) if any(p.unfused_us >= 1e4 for p in shown) else ("us", 1.0)
    header = (*names, "device", "kernels", unit, "unfused", "FLOP/B", "bound", "compute %", time, "unfused", "x")
    rows = tuple(
        (
            *(str(p.sizes[name]) for name in names),
            p.device,
            str(p.kernels),
            in_unit(p.bytes, size),
            in_unit(p.unfused_bytes, size),
            number(p.intensity, 3),
            p.bound,
            f"{100 * p.compute_share:.0f}",
            number(p.us / us),
            number(p.unfused_us / us),
            f"{p.unfused_us / p.us:.2f}" if p.us else "",
        )
        for p in shown
    )
    more = f", the first {len(shown)} of {len(sweep.points)}" if len(shown) < len(sweep.points) else ""
    return Table(f"{sweep.function or 'graph'}{more}", header, rows, left=(len(names), len(names) + 5))
