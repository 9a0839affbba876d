"""Two plans side by side: `Plan.against`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _json, _schema
from .._tables import Report, Table, byte_unit, counted, in_unit, number, room, shorten, wrapped
from . import layers, report

if TYPE_CHECKING:
    from .plan import Plan
    from .records import Group, Total

_MAX_ROWS = 40
_MIN_LABEL = 12
_LONG_US = 1e4


@dataclass(frozen=True)
class Pair:
    """Kernels of the same calls in the same place of two plans, with the sums of each; none of a side: (), 0, 0."""

    label: str
    module: str
    kernels: tuple[int, ...]
    other_kernels: tuple[int, ...]
    bytes: int
    other_bytes: int
    us: float
    other_us: float


@dataclass(frozen=True)
class Against(Report):
    """A plan and another one. `print` shows both, `rows` and `to_dicts()` are the matched kernels as records, those
    whose times differ most first. Kernels match where they are made of calls of the same names in modules of the same
    path, but for numbers.
    """

    plan: Plan
    other: Plan
    rows: tuple[Pair, ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as plain records."""
        return [_schema.to_plain(row) for row in self.rows]

    def to_json(self, indent: int | None = None) -> str:
        """`to_dicts` as text."""
        return _json.dumps(self.to_dicts(), indent)

    def _parts(self, width: int | None) -> Iterator[Table | str]:
        titles = (f"A: {report.title(self.plan)}", f"B: {report.title(self.other)}")
        yield "\n".join(wrapped(line, width, then="   ") for line in titles) + "\n"
        yield _totals(self)
        yield _pairs(self, width)
        yield "\n".join(wrapped(line, width) for line in self.sentences()) + "\n"

    def sentences(self) -> list[str]:
        """How the two differ in time and bytes, and how many kernels have no counterpart."""
        a, b = self.plan.fused, self.other.fused
        matched = [row for row in self.rows if row.kernels and row.other_kernels]
        alone = [sum(len(k) for k in side) for side in self._unmatched()]
        times, moved = _times(b.time_us, a.time_us), _times(b.issued.total, a.issued.total)
        both = f"{counted(len(matched), 'kind')} of kernels {'is' if len(matched) == 1 else 'are'} in both."
        said = [f"B takes {times} A's predicted time and moves {moved} its bytes; {both}"]
        if any(alone):
            said.append(f"Only in A: {counted(alone[0], 'kernel')}; only in B: {alone[1]}.")
        return said

    def _unmatched(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        only_a = [row.kernels for row in self.rows if not row.other_kernels]
        return only_a, [row.other_kernels for row in self.rows if not row.kernels]


def against(plan: Plan, other: Plan) -> Against:
    """See `Plan.against`."""
    first, second = _by_key(plan), _by_key(other)
    rows = [_pair(key, first.get(key, []), second.get(key, [])) for key in dict.fromkeys((*first, *second))]
    rows.sort(key=lambda row: -abs(row.other_us - row.us))
    return Against(plan, other, tuple(rows))


def _by_key(plan: Plan) -> dict[tuple[str, str], list[Group]]:
    found: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in plan.groups:
        where = layers.starred(layers.module_of(plan, group))
        found[where, " ".join(map(layers.plain_label, group.stages))].append(group)
    return found


def _pair(key: tuple[str, str], first: list[Group], second: list[Group]) -> Pair:
    a, b = layers.made("", 1, first, ()), layers.made("", 1, second, ())
    ids = [tuple(g.id for g in groups) for groups in (first, second)]
    label = layers.plain_label((first or second)[0].label)
    return Pair(label, key[0], ids[0], ids[1], a.bytes, b.bytes, a.us, b.us)


def _times(value: float, base: float) -> str:
    return f"{number(value / base, 3)} times" if base else "any number of times"


def _time_unit(times: Iterable[float]) -> tuple[str, float]:
    """The unit that suits times in microseconds, and what to divide them by."""
    return ("ms", 1e3) if max(times, default=0.0) >= _LONG_US else ("us", 1.0)


def _totals(found: Against) -> Table:
    plans = (found.plan, found.other)
    unit, size = byte_unit(max(p.unfused.issued.total for p in plans))
    time, us = _time_unit(p.unfused.time_us for p in plans)

    def row(name: str, of: Callable[[Plan], Total]) -> tuple[str, ...]:
        a, b = map(of, plans)
        return (
            name,
            *(str(t.launches) for t in (a, b)),
            *(in_unit(t.issued.total, size) for t in (a, b)),
            *(number(t.intensity, 3) for t in (a, b)),
            *(t.bound for t in (a, b)),
            *(number(t.time_us / us) for t in (a, b)),
            f"{b.time_us / a.time_us:.2f}" if a.time_us else "",
        )

    header = ("", "launches", "B", unit, "B", "FLOP/B", "B", "bound", "B", time, "B", "B/A")
    rows = (row("unfused", lambda p: p.unfused), row("fused", lambda p: p.fused))
    return Table("Totals (A's, then B's)", header, rows, left=(0, 7, 8), styles={"fused": "bold green"})


def _pairs(found: Against, width: int | None) -> Table:
    shown = found.rows[:_MAX_ROWS]
    unit, size = byte_unit(max((max(r.bytes, r.other_bytes) for r in shown), default=0))
    time, us = _time_unit(value for row in shown for value in (row.us, row.other_us))
    header = ("kernel", "in", "x", "B", unit, "B", time, "B", "B - A")
    cells = [_cells(row, size, us) for row in shown]
    if width is not None:
        spare = room(0, header, cells, width) + max(len(c[1]) for c in (header, *cells))
        label, place = max(spare * 2 // 3, _MIN_LABEL), max(spare // 3, _MIN_LABEL)
        cells = [(shorten(c[0], label), shorten(c[1], place), *c[2:]) for c in cells]
    more = f", the first {len(shown)} of {len(found.rows)}" if len(shown) < len(found.rows) else ""
    return Table(f"Kernels (A's, then B's){more}", header, tuple(cells), left=(0, 1))


def _cells(row: Pair, size: float, us: float) -> tuple[str, ...]:
    has_a, has_b = bool(row.kernels), bool(row.other_kernels)
    difference = (row.other_us - row.us) / us
    return (
        row.label,
        row.module,
        str(len(row.kernels)) if has_a else "-",
        str(len(row.other_kernels)) if has_b else "-",
        in_unit(row.bytes, size) if has_a else "-",
        in_unit(row.other_bytes, size) if has_b else "-",
        number(row.us / us) if has_a else "-",
        number(row.other_us / us) if has_b else "-",
        ("+" if difference > 0 else "-" if difference < 0 else "") + number(abs(difference)),
    )
