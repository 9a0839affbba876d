"""Two runs beside each other: what changed by more than the noise of either."""

from __future__ import annotations

from collections.abc import Iterator

from kfusion import _tables

from . import show
from .results import NOISE, Measured, Results, Row

_LEAST = 0.02  # changes below this are nobody's business


class Changes(_tables.Report):
    """The rows whose ratio to the copy (of rows without a copy: whose time) differs beyond the noise of both runs.

    The noise of a row is half of p20 to p80 over the median, or what the same version measured twice differs by,
    whichever is more.
    """

    def __init__(self, old: Results, new: Results) -> None:
        self._old, self._new = old, new

    def rows(self) -> list[tuple[str, ...]]:
        """Case, state, version, old, new, change, noise; slower ones first."""
        found = []
        before = {case.key: case for case in self._old.cases}
        for case in self._new.cases:
            if case.key in before:
                found += list(_changes(before[case.key], case))
        return [cells for _, cells in sorted(found, key=lambda item: item[0])]

    def _parts(self, width: int | None) -> Iterator[_tables.Table | str]:
        keys = [{case.key for case in run.cases} for run in (self._old, self._new)]
        both = len(keys[0] & keys[1])
        rows = self.rows()
        if rows:
            header = ("case", "state", "version", "old", "new", "speed", "noise")
            yield _tables.Table("Changes beyond noise", header, tuple(rows), left=(0, 1, 2))
        yield _tables.wrapped(
            f"{len(rows)} changes beyond noise among {both} cases that both have; {len(keys[0] - keys[1])} only in the "
            f"first, {len(keys[1] - keys[0])} only in the second.",
            width,
        )


def _changes(old: Measured, new: Measured) -> Iterator[tuple[float, tuple[str, ...]]]:
    for row in new.rows:
        was = old.find(row.version, row.state)
        if was is None or row.version in ("copy", NOISE):
            continue
        speed = _speed(was, row)
        noise = max(_noise(old, was), _noise(new, row))
        if abs(speed - 1) > max(noise, _LEAST):
            cells = (show.title(new), row.state, row.version, show.cell(was), show.cell(row))
            yield speed, (*cells, f"{speed:.2f}x", f"{100 * noise:.0f}%")


def _speed(old: Row, new: Row) -> float:
    if old.of_copy and new.of_copy:
        return new.of_copy / old.of_copy
    return old.median_us / new.median_us


def _noise(case: Measured, row: Row) -> float:
    spread = 0.5 * (row.p80_us - row.p20_us) / row.median_us
    fused, again = case.find("fused", row.state), case.find(NOISE, row.state)
    return max(spread, abs(again.median_us / fused.median_us - 1) if fused and again else 0.0)
