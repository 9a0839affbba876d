"""What a function for each of many sets of arrays runs: the plans of its calls, together or one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .. import _tables
from .._devices.device import Device
from .plan import Plan


@dataclass(frozen=True)
class EachPart:
    """Calls that are alike. `together`: they are one kernel, and the plan is that of all their elements; else each runs
    by itself, and the plan is that of one.
    """

    calls: int
    together: bool
    plan: Plan

    @property
    def times(self) -> int:
        """How often the plan runs."""
        return 1 if self.together else self.calls

    @property
    def launches(self) -> int:
        """Kernels of all these calls."""
        return self.times * self.plan.fused.launches

    @property
    def read(self) -> int:
        """Bytes that all these calls load."""
        return self.times * self.plan.fused.issued.read

    @property
    def written(self) -> int:
        """Bytes that all these calls store."""
        return self.times * self.plan.fused.issued.written

    @property
    def time_us(self) -> float:
        """Predicted, of all these calls."""
        return self.times * self.plan.fused.time_us


@dataclass(frozen=True)
class EachPlan(_tables.Report):
    """What a call of a `kfusion.for_each` function runs, counted and priced on a device: `print` it, or look at parts,
    each of which has a `Plan`.
    """

    function: str
    device: Device
    parts: tuple[EachPart, ...]

    @property
    def calls(self) -> int:
        """Sets of arrays."""
        return sum(p.calls for p in self.parts)

    @property
    def launches(self) -> int:
        """Kernels of all calls."""
        return sum(p.launches for p in self.parts)

    @property
    def bytes(self) -> int:
        """That all calls load and store."""
        return sum(p.read + p.written for p in self.parts)

    @property
    def time_us(self) -> float:
        """Predicted, of all calls."""
        return sum(p.time_us for p in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        parts = [{"calls": p.calls, "together": p.together, "plan": p.plan.to_dict()} for p in self.parts]
        return {
            "function": self.function,
            "device": self.device.name,
            "calls": self.calls,
            "launches": self.launches,
            "bytes": self.bytes,
            "time_us": self.time_us,
            "parts": parts,
        }

    def __repr__(self) -> str:
        return f"<EachPlan: {self.function}: {self.calls} calls, {self.launches} launches>"

    def _parts(self, width: int | None) -> Iterable[_tables.Table | str]:
        unit, size = _tables.byte_unit(max((max(p.read, p.written) for p in self.parts), default=0))
        rows = [
            (
                str(p.calls),
                "one kernel" if p.together else "one by one",
                _tables.shorten("+".join(dict.fromkeys(g.label for g in p.plan.groups)), 28),
                str(p.launches),
                _tables.in_unit(p.read, size),
                _tables.in_unit(p.written, size),
                _tables.number(p.time_us),
            )
            for p in self.parts
        ]
        title = f"{self.function} on {self.device.name}: {self.calls} calls, {self.launches} launches"
        header = ("calls", "run as", "kernels", "launches", f"read {unit}", "written", "us")
        yield _tables.Table(title, header, tuple(rows), left=(1, 2))
        unit, size = _tables.byte_unit(self.bytes)
        yield f"All: {_tables.in_unit(self.bytes, size)} {unit} in {_tables.number(self.time_us)} us, as predicted."
