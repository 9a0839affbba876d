"""Results as text: a line while it runs, tables when it is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kfusion import _tables
from kfusion._pictures import time_unit

from .results import NOISE, Measured, Results, Row


class Tables(_tables.Report):
    """One table for each suite and state of the caches: time of the fused version, and the copy's time over each."""

    def __init__(self, results: Results) -> None:
        self._results = results

    def _parts(self, width: int | None) -> Iterator[_tables.Table | str]:
        for suite in self._results.suites:
            cases = self._results.of_suite(suite)
            for state in dict.fromkeys(s for case in cases for s in case.states):
                yield table(f"{suite} on {self._results.device_name}, {state}", cases, state)
            for note in dict.fromkeys(note for case in cases for note in case.notes):
                yield _tables.wrapped(note, width)
        if not self._results.complete:
            yield "Interrupted: this is not all."


def line(case: Measured) -> str:
    """One case, for who waits."""
    if not case.rows:
        return f"{title(case)}: {'; '.join(case.notes)}"
    times = (f"{row.version} {cell(row)}" for row in case.rows if row.state == case.states[0] and row.version != NOISE)
    return f"{title(case)}: " + ", ".join(times)


def title(case: Measured) -> str:
    """Name, shape, dtype and what is special about the layout."""
    layout = "" if case.layout in ("dense", "") else f" {case.layout}"
    return f"{case.name}, {shape(case)} {case.dtype}{layout}"


def shape(case: Measured) -> str:
    """ "4096 x 1024"."""
    return " x ".join(map(str, case.shape))


def cell(row: Row | None) -> str:
    """The copy's time over this one's; of rows without a copy the time."""
    if row is None:
        return ""
    return time_text(row.median_us) if row.of_copy is None else f"{row.of_copy:.2f}"


def time_text(us: float) -> str:
    """ "12.3 us"."""
    unit, scale = time_unit(us) if us < 1e6 else ("s", 1e6)
    return f"{_tables.number(us / scale, 3)} {unit}"


def versions_of(cases: Sequence[Measured]) -> list[str]:
    """Those that were measured in some case, in order."""
    return list(dict.fromkeys(row.version for case in cases for row in case.rows))


def table(heading: str, cases: Sequence[Measured], state: str) -> _tables.Table:
    """A line for each case, a column for each version."""
    cases = [case for case in cases if state in case.states]
    versions = versions_of(cases)
    timed = any(row.of_copy is not None for case in cases for row in case.rows)
    header = ("case", *(("time",) if timed else ()), *versions)
    rows = tuple(_line(case, state, versions, timed) for case in cases)
    if timed:
        heading += ": time of fused, and the copy's time over each"
    return _tables.Table(heading, header, rows)


def _line(case: Measured, state: str, versions: Sequence[str], timed: bool) -> tuple[str, ...]:
    fused = case.find("fused", state)
    times = (time_text(fused.median_us) if fused else "",) if timed else ()
    return (title(case), *times, *(cell(case.find(v, state)) for v in versions))
