"""The report of a plan of many kernels: layers that are alike are shown once, with the sums of all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .._tables import Table, byte_unit, in_unit, number, room, shorten, si, wrapped
from . import fusions, layers, pass_tables, report
from .folds import Fold, folds

if TYPE_CHECKING:
    from .plan import Plan
    from .records import Group, Refusal

TOP = 10
_MAX_ROWS = 60
_NUMBERED = re.compile(r"(?<=\w)_\d+\b")


def folds_of(plan: Plan) -> list[Fold]:
    """The plan's layers, where it is one to be shown by layers: it repeats some, or it is too long for a table and its
    modules are known. Else nothing.
    """
    if len(plan.groups) <= report.MAX_GROUPS and not plan.modules:
        return []
    found = folds(plan)
    is_long = len(plan.groups) > report.MAX_GROUPS and bool(plan.modules)
    return found if is_long or any(len(fold.blocks) > 1 for fold in found) else []


def parts(plan: Plan, found: Sequence[Fold], width: int | None) -> Iterator[Table | str]:
    """Layers, kernels, totals, the fusions that pay, refusals."""
    yield report.heading(plan, width)
    yield layers.table([fold.layer for fold in found], width, layers_title(found))
    yield kernels_table(plan, found, width)
    yield report.totals_table(plan)
    yield from pass_tables.tables(plan, width, report.MAX_GROUPS)
    if (best := plan.top(TOP)).rows:
        yield fusions.table(best, width)
        yield f"print(plan.top({TOP})) says where they are, and what the last column means.\n"
    if plan.refusals:
        yield refusals_text(plan.refusals, width)
    yield "\n".join(wrapped(line, width) for line in (report.savings_line(plan), *report.notes(plan)))


def layers_title(found: Sequence[Fold]) -> str:
    """What the table of layers shows."""
    alike = max((len(fold.blocks) for fold in found), default=1)
    return "Layers (before: one kernel for each call" + (f"; {alike} are alike)" if alike > 1 else ")")


def kernels_table(plan: Plan, found: Sequence[Fold], width: int | None) -> Table:
    """The kernels of one layer of each kind."""
    rows = [row for fold in found for row in fold_rows(fold)]
    shown = rows[:_MAX_ROWS]
    groups = [g for _, g, _ in shown]
    unit, size = byte_unit(max((max(g.issued.read, g.issued.written) for g in groups), default=0))
    header = ("#", "kernel", "in", "x", "kind", f"read {unit}", "written", "FLOPs", "bound", "us")
    cells = [_kernel_cells(name, g, count, size) for name, g, count in shown]
    if width is not None:
        spare = room(1, header, cells, width) + max(len(c[2]) for c in (header, *cells))
        label, place = max(spare * 2 // 3, 12), max(spare // 3, 8)
        cells = [(c[0], shorten(c[1], label), shorten(c[2], place), *c[3:]) for c in cells]
    more = f", the first {len(shown)} of {len(rows)} kinds" if len(shown) < len(rows) else ""
    title = f"Fused: {len(plan.groups)} kernels instead of {len(plan.unfused_groups)}{more} (x: of the same kind)"
    return Table(title, header, tuple(cells), left=(0, 1, 2, 4, 8))


def fold_rows(fold: Fold) -> list[tuple[str, Group, int]]:
    """The kernels of a fold's first block, each with the fold's name and how many blocks there are."""
    return [(fold.name, group, len(fold.blocks)) for group in fold.kernels[0]]


def _kernel_cells(name: str, g: Group, count: int, size: float) -> tuple[str, ...]:
    return (
        f"{g.id}" if g.executable else f"{g.id}*",
        layers.plain_label(g.label) if count > 1 else g.label,
        name,
        str(count) if count > 1 else "",
        report.SHORT_KINDS.get(g.kind, g.kind),
        in_unit(g.issued.read, size),
        in_unit(g.issued.written, size),
        si(g.flop_total),
        g.bound,
        number(g.time_us),
    )


def refusals_text(refusals: Sequence[Refusal], width: int | None) -> str:
    """Each kind of boundary once, and how often there is one."""
    kinds = folded_refusals(refusals)
    lines = ["Kept apart"]
    for sentence, count in list(kinds.items())[: report.MAX_REFUSALS]:
        lines.append(wrapped(sentence + (f" ({count} times)" if count > 1 else ""), width, "  ", "    "))
    if len(kinds) > report.MAX_REFUSALS:
        lines.append(f"  ... and {len(kinds) - report.MAX_REFUSALS} more kinds in plan.refusals")
    return "\n".join(lines) + "\n"


def folded_refusals(refusals: Sequence[Refusal]) -> dict[str, int]:
    """Boundaries by their sentences without the numbers of calls, and how many there are of each."""
    kinds: dict[str, int] = {}
    for r in refusals:
        sentence = _NUMBERED.sub("", f"{r.producer} | {r.consumer}: {r.reason}. {r.sentence}")
        kinds[sentence] = kinds.get(sentence, 0) + 1
    return kinds
