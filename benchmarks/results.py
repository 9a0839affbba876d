"""What a run found, as frozen records."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from kfusion import _timing

from .runs import Run

_DIGITS = 5
_ISAS = {"avx512": "AVX-512", "avx2": "AVX2"}
NOISE = "fused, again"  # the same version once more: what differs is noise
YARDSTICKS = ("copy", "read")  # what memory allows: neither a version nor a peer


@dataclass(frozen=True)
class Row:
    """One version of a case, in one state.

    state: "cold" (caches flushed), "hot", or of first calls what was there before. gbps: the case's bytes / time
    (GB = 1e9 bytes). of_copy: time of a copy of the same bytes / time, 1 is as fast as the copy; the median over pairs
    measured right after one another. error: the largest against float64. launches: kernels of a call as planned;
    held_bytes: memory that a call takes and the process then keeps. tflops: of a case's products; of_copy is then
    of the bare products. breaks: how often torch.compile left the graph. What does not apply is None.
    """

    version: str
    state: str
    median_us: float
    p20_us: float
    p80_us: float
    samples: int
    gbps: float | None = None
    of_copy: float | None = None
    error: float | None = None
    launches: int | None = None
    held_bytes: int | None = None
    tflops: float | None = None
    breaks: int | None = None


@dataclass(frozen=True)
class Measured:
    """One case: a function on arrays of one shape (that of its largest), dtype and layout.

    nbytes: of all that it reads and writes, each array once; 0 where no rate is meant. notes: who was left out, and
    why. commit: what was measured, where that is not the run's.
    """

    suite: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str
    nbytes: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    commit: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes it the same case in another run."""
        return self.suite, self.name, self.shape, self.dtype, self.layout

    @property
    def states(self) -> tuple[str, ...]:
        """Those measured, in order."""
        return tuple(dict.fromkeys(row.state for row in self.rows))

    @property
    def slowdown(self) -> float:
        """The time of the fused version over that of the fastest other one, which is no yardstick; infinite where
        nothing was measured."""
        rows = [row for row in self.rows if row.state in self.states[:1] and row.version not in YARDSTICKS]
        ours = [row.median_us for row in rows if row.version in ("fused", NOISE)]
        others = [row.median_us for row in rows if not row.version.startswith("fused")]
        return min(ours) / min(others) if ours and others else math.inf

    def find(self, version: str, state: str | None = None) -> Row | None:
        """The row of a version in a state (the first one measured by default), or None."""
        state = state or (self.states[0] if self.rows else "")
        return next((r for r in self.rows if (r.version, r.state) == (version, state)), None)


@dataclass(frozen=True, kw_only=True)
class Results(Run):
    """A run of `kfusion bench`: what was measured, on what, with which versions, by which command.

    `save` writes JSON, `Results.load` reads it.
    """

    WRITER: ClassVar[str] = "kfusion bench --out"

    device: str
    complete: bool
    cases: tuple[Measured, ...]

    @property
    def device_name(self) -> str:
        """The GPU that was measured, or the CPU with its threads and the instruction set that kfusion used."""
        if self.device == "cuda":
            return str(self.hardware["gpu"].get("name", "CUDA"))
        cpu = self.hardware["cpu"]
        name = f"{cpu.get('name', 'CPU')}, {cpu.get('threads', '?')} threads"
        return f"{name}, {_ISAS.get(self.isa, self.isa)}" if self.isa else name

    @property
    def isa(self) -> str:
        """The instruction set that kfusion used on the CPU: "avx512", "avx2", "baseline"."""
        return str(self.hardware["cpu"].get("isa", ""))

    def of_suite(self, *suites: str) -> list[Measured]:
        """The cases of some suites, in order."""
        return [case for case in self.cases if case.suite in suites]

    @property
    def suites(self) -> tuple[str, ...]:
        """Those measured, in order."""
        return tuple(dict.fromkeys(case.suite for case in self.cases))

    def merged(self, other: Results) -> Results:
        """This run with the other's cases, each in the place of the same case here, else behind.

        Cases of this run keep its commit.

        Raises:
            ValueError: the two are of different devices.
        """
        if self.device_name != other.device_name:
            raise ValueError(f"kfusion bench: results of {other.device_name} cannot be added to {self.device_name}'s")
        newer = {case.key: case for case in other.cases}
        kept = [newer.pop(case.key, replace(case, commit=case.commit or self.commit)) for case in self.cases]
        commands = dict.fromkeys((*self.command.split(" && "), other.command))
        return replace(
            other,
            command=" && ".join(commands),
            complete=self.complete and other.complete,
            versions=self.versions | other.versions,
            cases=(*kept, *newer.values()),
        )


def row_of(
    version: str,
    state: str,
    taken: _timing.Samples,
    *,
    moved: int | None = None,
    copied: int = 1,
    error: float | None = None,
    launches: int | None = None,
    held_bytes: int | None = None,
    flops: float | None = None,
) -> Row:
    """A version's row, of its samples beside those of a copy.

    Args:
        version: "copy" is that of the copy itself.
        state: as of `Row`.
        taken: with the ratios to the copy that was measured beside each.
        moved: the case's bytes; 0: no rate is meant but the copy's; None: there is no copy, but the bare products.
        copied: the copy's bytes.
        error: as of `Row`.
        launches: likewise.
        held_bytes: likewise.
        flops: of the case's products.
    """
    import numpy as np

    us, is_copy = taken.percentile_us(50), version == "copy"
    rate = None if moved is None else copied / us if is_copy else moved / us if moved else None
    ratio = float(np.median(taken.copy_ratios))
    of_copy = ratio if moved is None else None if moved == 0 else 1.0 if is_copy else ratio * moved / copied
    return Row(
        version,
        state,
        rounded(us),
        rounded(taken.percentile_us(20)),
        rounded(taken.percentile_us(80)),
        len(taken.times_us),
        gbps=None if rate is None else rounded(rate / 1e3),
        of_copy=None if of_copy is None else rounded(of_copy),
        error=None if error is None else rounded(error),
        launches=launches,
        held_bytes=held_bytes,
        tflops=None if flops is None else rounded(flops / us / 1e6),
    )


def rounded(value: float) -> float:
    """Rounds to the digits that a measurement has."""
    return float(f"{value:.{_DIGITS}g}")
