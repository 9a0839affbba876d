"""A plan as tables and paragraphs: what `print`, Jupyter and the HTML page show."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .._devices.running import HOW_TO_MEASURE
from .._spec import ITEM_BYTES
from .._tables import Table, byte_unit, counted, in_unit, number, room, shorten, si, wrapped
from . import pass_tables

if TYPE_CHECKING:
    from .plan import Plan
    from .records import Group, Refusal, Total

MAX_GROUPS = 40
MAX_REFUSALS = 20
_LISTED = 8
_MAX_CAPTURED = 24
_MIN_LABEL = 12
_HOUR_S = 3600  # a million calls of 1 us take a second
SHORT_KINDS = {"full_reduction": "reduction", "contraction_reduction": "product"}


def parts(plan: Plan, width: int | None) -> Iterator[Table | str]:
    """Header, kernels, totals, refusals, savings."""
    yield heading(plan, width)
    directions = None if plan.passes is None else plan.passes.kernels
    yield groups_table(plan.groups, width, len(plan.unfused_groups), directions=directions)
    yield totals_table(plan)
    yield from pass_tables.tables(plan, width, MAX_GROUPS)
    if plan.refusals:
        yield refusals_text(plan.refusals, width)
    yield "\n".join(wrapped(line, width) for line in (savings_line(plan), *notes(plan)))


def heading(plan: Plan, width: int | None) -> str:
    """What was planned, and on what."""
    return "\n".join(wrapped(line, width) for line in (title(plan), device_line(plan))) + "\n"


def title(plan: Plan) -> str:
    """ "f(x: float32[4096,1024]) on H200"."""
    return f"{signature(plan)} on {plan.device.name}"


def signature(plan: Plan) -> str:
    """The function's name and its inputs; captured arrays stand in brackets behind."""
    inputs = [node for node in plan._nodes if node["op"] == "input"]
    given = ", ".join(_given([n for n in inputs if not n["captured"]]))
    named = [n for n in inputs if n["captured"]]
    captured = ", ".join(map(_input_text, named)) if len(named) <= _MAX_CAPTURED else _summed(named)
    return f"{plan.function or 'graph'}({given})" + (f" [{captured}]" if captured else "")


def _given(nodes: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Arguments, those that hold many arrays in few words."""
    for name, group in itertools.groupby(nodes, key=lambda n: n["name"].partition(".")[0]):
        arrays = list(group)
        yield from map(_input_text, arrays) if len(arrays) <= _MAX_CAPTURED else [f"{name}: {_summed(arrays)}"]


def _summed(nodes: Sequence[dict[str, Any]]) -> str:
    """Many arrays in few words: a model's parameters."""
    unit, size = byte_unit(nbytes := sum(math.prod(n["shape"]) * ITEM_BYTES[n["dtype"]] for n in nodes))
    return f"{len(nodes)} arrays, {in_unit(nbytes, size)} {unit}"


def _input_text(node: dict[str, Any]) -> str:
    return f"{node['name']}: {node['dtype']}[{','.join(map(str, node['shape']))}]"


def device_line(plan: Plan) -> str:
    """What the prices assume of the device."""
    d = plan.device
    peaks = ", ".join(f"{name} {peak / 1e12:.4g}" for name, peak in used_peaks(plan).items())
    sheet = "" if "peak_bandwidth" in d.assumed else f" (data sheet {d.peak_bandwidth / 1e9:.4g})"
    return (
        f"Priced with {d.bandwidth / 1e9:.4g} GB/s for a copy{sheet}, "
        f"{d.launch_us:.3g} us a launch, {d.cache_bytes / 1e6:.4g} MB of last-level cache"
        + (f", peaks in TFLOP/s: {peaks}." if peaks else ".")
        + (f" Assumed, not measured: {', '.join(d.assumed)}." if d.assumed else "")
        + (f" {HOW_TO_MEASURE} measures them." if any(HOW_TO_MEASURE in r for r in d.assumed.values()) else "")
    )


def used_peaks(plan: Plan) -> dict[str, float]:
    """FLOP/s of the units that the plan computes in, by dtype and unit."""
    used = dict.fromkeys((f.dtype, f.unit) for total in (plan.fused, plan.unfused) for f in total.flops if f.count)
    return {f"{dtype} {unit}": plan.device.peak_flops(dtype, unit) for dtype, unit in used}


def groups_table(
    groups: Sequence[Group],
    width: int | None,
    unfused: int,
    name: str = "Fused",
    limit: int | None = MAX_GROUPS,
    directions: Sequence[str] | None = None,
) -> Table:
    """One line a kernel; labels give way where the width does not suffice. directions: by kernel."""
    shown = groups[:limit]
    unit, size = byte_unit(max((max(g.issued.read, g.issued.written) for g in shown), default=0))
    columns = ("kind", "ops", f"read {unit}", "written", "FLOPs", "FLOP/B", "bound", "us")
    header: tuple[str, ...] = ("#", "kernel", *columns)
    rows = [_group_cells(g, size) for g in shown]
    left: tuple[int, ...] = (0, 1, 2, 8)
    if directions is not None:
        header, left = ("#", "kernel", "pass", *columns), (0, 1, 2, 3, 9)
        rows = [(*row[:2], pass_tables.SHORT[directions[g.id]], *row[2:]) for row, g in zip(rows, shown, strict=True)]
    label_width = None if width is None else max(room(1, header, rows, width), _MIN_LABEL)
    more = f", the first {limit} of them" if len(groups) > len(shown) else ""
    count = counted(len(groups), "kernel")
    instead = f" instead of {unfused}" if unfused != len(groups) else ""
    cells = tuple((row[0], shorten(row[1], label_width), *row[2:]) for row in rows)
    return Table(f"{name}: {count}{instead}{more}", header, cells, left=left)


def _group_cells(g: Group, size: float) -> tuple[str, ...]:
    return (
        f"{g.id}" if g.executable else f"{g.id}*",
        g.label,
        SHORT_KINDS.get(g.kind, g.kind),
        str(len(g.ops)),
        in_unit(g.issued.read, size),
        in_unit(g.issued.written, size),
        si(g.flop_total),
        number(g.intensity, 3),
        g.bound,
        number(g.time_us),
    )


def totals_table(plan: Plan) -> Table:
    """Unfused, as the library runs it where that differs, and fused."""
    largest = max(plan.unfused.issued.total, plan.fused.issued.total, plan.unfused.peak_intermediate_bytes)
    unit, size = byte_unit(largest)
    header = ("", "launches", f"read {unit}", "written", "peak", "FLOPs", "FLOP/B", "bound", "us")
    totals = {"unfused": plan.unfused, "as the library": plan.library, "fused": plan.fused}
    if plan.library == plan.unfused and plan.passes is None:
        del totals["as the library"]
    rows = tuple(_total_cells(name, t, size) for name, t in totals.items())
    return Table(
        "Total (peak: peak memory of intermediates)",
        header,
        rows,
        left=(0, 7),
        styles={"fused": "bold green"},
    )


def _total_cells(name: str, t: Total, size: float) -> tuple[str, ...]:
    return (
        name,
        str(t.launches),
        in_unit(t.issued.read, size),
        in_unit(t.issued.written, size),
        in_unit(t.peak_intermediate_bytes, size),
        si(t.flop_total),
        number(t.intensity, 3),
        t.bound,
        number(t.time_us),
    )


def refusals_text(refusals: Sequence[Refusal], width: int | None) -> str:
    """Each boundary with its reason, its sentence and the lines of the function it lies between."""
    entries = list(dict.fromkeys(map(_refusal_lines, refusals)))  # a copy's is the same
    lines = ["Kept apart"]
    for sentence, *where in entries[:MAX_REFUSALS]:
        lines.append(wrapped(sentence, width, "  ", "    "))
        lines += [wrapped(line, width, "    ", "      ") for line in where]
    if len(entries) > MAX_REFUSALS:
        lines.append(f"  ... and {len(entries) - MAX_REFUSALS} more in plan.refusals")
    return "\n".join(lines) + "\n"


def _refusal_lines(r: Refusal) -> tuple[str, ...]:
    return (f"{r.producer} | {r.consumer}: {r.reason}. {r.sentence}", *sources(r))


def sources(r: Refusal) -> list[str]:
    """The user's lines that a boundary lies between, where they are known."""
    return [source for source in dict.fromkeys((r.producer_source, r.consumer_source)) if source]


def savings_line(plan: Plan) -> str:
    """What fusing saves, in bytes and in time."""
    s, unit, size = plan.savings, *byte_unit(plan.savings["unfused_bytes"])
    return (
        f"Fusing saves {in_unit(s['savings_bytes'], size)} of {in_unit(s['unfused_bytes'], size)} {unit} "
        f"({s['savings_pct']:g}%): {s.get('speedup_estimate', 0):g}x by bytes, "
        f"{plan.predicted_speedup:.2f}x by predicted time."
    )


def _is_head(plan: Plan, group: Group) -> bool:
    calls = (plan._nodes[n].get("function", "") for n in group.nodes)
    return any(call.startswith("kfusion.linear_cross_entropy") for call in calls)


def notes(plan: Plan) -> Iterator[str]:
    """Costs, passes that run apart, bytes that are read again, how kernels run, and kernels that no executor has."""
    if hourly := plan.device.cost_per_hour:
        unfused, fused = (number(hourly * total.time_us / _HOUR_S, 3) for total in (plan.unfused, plan.fused))
        yield f"At {hourly:g} an hour, a million calls cost {fused} instead of {unfused}."
    if plan.passes is not None:
        yield (
            "This graph has both passes and stores all that later kernels read. For tensors that require grad the "
            "passes run apart and keep the least: kfusion.kept_for_backward lists it, with bytes."
        )
    if twice := [g for g in plan.groups if not g.row_on_chip]:
        extra = sum(g.issued.total - g.compulsory.total for g in twice)
        unit, size = byte_unit(extra)
        yield f"Rows that do not stay on chip are read again: {in_unit(extra, size)} {unit} of the bytes above."
    for g in [g for g in plan.groups if g.how][:_LISTED]:
        said = "measured" if g.measured else "predicted"
        rate = f"; {number(g.product_tflops, 3)} TFLOP/s {said}" if g.product_tflops else ""
        yield f"Kernel {g.id} is run by {g.executor}: {g.how}{rate}."
    for g in [g for g in plan.groups if _is_head(plan, g)][:_LISTED]:
        yield (
            f"Kernel {g.id} computes the cross entropy of a linear layer, or its gradients, in chunks of rows: "
            "the logits are never stored as a whole."
        )
    for g in [g for g in plan.groups if g.measured][:_LISTED]:
        yield f"Kernel {g.id}'s time was measured; predicted {number(g.predicted_us)} us."
    missing: dict[str, list[int]] = {}
    for g in plan.groups:
        if not g.executable:
            missing.setdefault(g.missing, []).append(g.id)
    for what, ids in missing.items():
        listed = ", ".join(map(str, ids[:_LISTED])) + (", ..." if len(ids) > _LISTED else "")
        yield f"* planned and priced only: {what} (kernel{'s' if len(ids) > 1 else ''} {listed})."
