"""The fusions that pay: a plan's kernels, those that are alike as one, by what each saves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _json, _schema
from .._tables import Report, Table, byte_unit, in_unit, number, room, shorten, wrapped
from . import elsewhere, folds, layers
from .records import Savings

if TYPE_CHECKING:
    from .plan import Plan
    from .records import Group

_MIN_LABEL = 12


@dataclass(frozen=True)
class Fusion(Savings):
    """Kernels that do the same in as many places, and what they save: the sums of all.

    kernels are their numbers; module is the path of all of them, with a star for what differs; unfused_kernels how many
    they replace. others says what other tools have for it, where that is known, and source where it stands; one_call
    whether one call of the array library does the whole.
    """

    label: str
    kind: str
    module: str
    kernels: tuple[int, ...]
    unfused_kernels: int
    bytes: int
    unfused_bytes: int
    us: float
    unfused_us: float
    others: str
    source: str
    one_call: bool


@dataclass(frozen=True)
class Fusions(Report):
    """The fusions of a plan that save most. `print` shows a table; `rows` and `to_dicts()` are the same as records.

    all_saved_us and all_saved_bytes are what all of the plan's fusions save.
    """

    rows: tuple[Fusion, ...]
    all_saved_bytes: int
    all_saved_us: float

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as plain records."""
        return [_schema.to_plain(row) | {"saved_bytes": row.saved_bytes, "saved_us": row.saved_us} for row in self.rows]

    def to_json(self, indent: int | None = None) -> str:
        """`to_dicts` as text."""
        return _json.dumps(self.to_dicts(), indent)

    def _parts(self, width: int | None) -> Iterator[Table | str]:
        if not self.rows:
            yield "No fusion saves time.\n"
            return
        yield table(self, width)
        yield "\n".join(wrapped(line, width) for line in notes(self)) + "\n"


def top(plan: Plan, count: int, *, known: bool) -> Fusions:
    """See `Plan.top`."""
    rows = [row for row in _all(plan) if row.saved_us > 0 and (known or not row.one_call)]
    rows.sort(key=lambda row: (-row.saved_us, -row.saved_bytes, row.kernels))
    fused, unfused = plan.fused, plan.unfused
    saved = unfused.issued.total - fused.issued.total, unfused.time_us - fused.time_us
    return Fusions(tuple(rows[:count]), *saved)


def _all(plan: Plan) -> list[Fusion]:
    replaced, _ = layers.replaced(plan)
    alike: dict[Hashable, list[Group]] = defaultdict(list)
    for group in plan.groups:
        where = layers.starred(layers.module_of(plan, group))
        before = tuple(sorted(folds.cost(g) for g in replaced[group.id]))
        alike[where, folds.signature(group), folds.cost(group), before].append(group)
    return [_fusion(plan, groups, [u for g in groups for u in replaced[g.id]]) for groups in alike.values()]


def _fusion(plan: Plan, groups: Sequence[Group], before: Sequence[Group]) -> Fusion:
    first = groups[0]
    paths = [layers.module_of(plan, g) for g in groups]
    fact = elsewhere.fact_of(first)
    sums = layers.made("", len(groups), groups, before)
    return Fusion(
        layers.plain_label(first.label),
        first.kind,
        paths[0] if len(set(paths)) == 1 else layers.starred(paths[0]),
        tuple(g.id for g in groups),
        len(before),
        sums.bytes,
        sums.unfused_bytes,
        sums.us,
        sums.unfused_us,
        fact.short if fact else "",
        fact.source if fact else "",
        bool(fact and fact.one_call),
    )


def table(found: Fusions, width: int | None) -> Table:
    """One line a fusion."""
    unit, size = byte_unit(max(row.saved_bytes for row in found.rows))
    time, us = ("ms", 1e3) if found.rows[0].saved_us >= 1e3 else ("us", 1.0)
    header = ("", "fusion", "x", "for", f"saves {time}", "%", unit, "elsewhere")
    cells = [
        (
            str(i),
            row.label,
            str(len(row.kernels)),
            str(row.unfused_kernels),
            number(row.saved_us / us),
            f"{100 * row.saved_us / found.all_saved_us:.0f}" if found.all_saved_us > 0 else "",
            in_unit(row.saved_bytes, size) if row.saved_bytes >= 0 else f"-{in_unit(-row.saved_bytes, size)}",
            row.others,
        )
        for i, row in enumerate(found.rows, 1)
    ]
    label_width = None if width is None else max(room(1, header, cells, width), _MIN_LABEL)
    shown = tuple((c[0], shorten(c[1], label_width), *c[2:]) for c in cells)
    return Table("The fusions that pay (x: kernels; for: those replaced)", header, shown, left=(0, 1, 7))


def notes(found: Fusions) -> Iterator[str]:
    """Where the fusions are, and what is known of other tools."""
    for i, row in enumerate(found.rows, 1):
        where = f" in {row.module}" if row.module else ""
        numbers = ", ".join(map(str, row.kernels[:3])) + (", ..." if len(row.kernels) > 3 else "")
        yield f"{i}: kernel{'s' * (len(row.kernels) > 1)} {numbers}{where}."
    said = {row.others for row in found.rows}
    for fact in elsewhere.FACTS.values():
        if fact.short in said:
            yield f"{fact.short}: {fact.text}" + (f" ({fact.source})" if fact.source else "")
