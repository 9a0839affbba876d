"""Which module each kernel of a plan belongs to, and what the modules cost: parts that add up to the plan's totals."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _json, _schema
from .._tables import Report, Table, byte_unit, in_unit, number, room, shorten
from .records import Savings

if TYPE_CHECKING:
    from .plan import Plan
    from .records import Group

_MIN_NAME = 12
BACKWARD = "(backward)"  # in place of the module of calls that a backward pass makes
_NUMBER = re.compile(r"_\d+\b")  # what tells the calls of one name apart


@dataclass(frozen=True)
class Layer(Savings):
    """What the kernels of a module cost, fused and with one for each call.

    module: its path ("model.layers.3"; "" is the function itself), or several with the same costs each, "layers.1..78",
    of which these are the sums. count: how many modules these are. A fused kernel belongs to the module of its last
    call, an unfused one to that of its only one.
    """

    module: str
    count: int
    kernels: int
    unfused_kernels: int
    bytes: int
    unfused_bytes: int
    flops: int
    us: float
    unfused_us: float


@dataclass(frozen=True)
class Layers(Report):
    """A plan's costs by module. `print` shows a table; `rows` and `to_dicts()` are the same as records."""

    rows: tuple[Layer, ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as plain records."""
        return [_schema.to_plain(row) for row in self.rows]

    def to_json(self, indent: int | None = None) -> str:
        """`to_dicts` as text."""
        return _json.dumps(self.to_dicts(), indent)

    def _parts(self, width: int | None) -> Iterator[Table | str]:
        yield table(self.rows, width)


def of_stages(graph: Any, modules: Sequence[str]) -> dict[str, str]:
    """The module of each stage by the name that a plan gives the stage; `modules`: those of the graph's by number."""
    counts: Counter[str] = Counter()
    named: dict[str, str] = {}
    for stage, module in zip(graph.to_dict()["stages"] if any(modules) else (), modules, strict=False):
        name = _unique(stage["name"], counts, named)
        named[name] = BACKWARD if "_backward" in name else module
    return named


def _unique(name: str, counts: Counter[str], taken: dict[str, str]) -> str:
    """Does what make_stage_names_unique does in cpp/kfusion/plan/names.cpp."""
    counts[name] += 1
    unique = name if counts[name] == 1 else f"{name}_{counts[name]}"
    while unique in taken:
        counts[name] += 1
        unique = f"{name}_{counts[name]}"
    return unique


def module_of(plan: Plan, group: Group) -> str:
    """The module of a kernel's last call, of the forward pass if it has any; of a call that planning has put in place
    of others, the one that what it reads is of.
    """
    known = [plan.modules[stage] for stage in group.stages if stage in plan.modules]
    if known or not plan.modules:
        forward = [path for path in known if path != BACKWARD]
        return (forward or known or [""])[-1]
    stages = (plan._nodes[load.node]["stage"] for load in group.loads)
    read = [
        plan.modules[name] for stage in stages if stage is not None and (name := plan.stages[stage]) in plan.modules
    ]
    return _common(read)


def _common(paths: Sequence[str]) -> str:
    """The innermost module that all of them are in."""
    levels = zip(*(path.split(".") for path in paths), strict=False)
    return ".".join(level[0] for level in itertools.takewhile(lambda level: len(set(level)) == 1, levels))


def block_of(path: str) -> str:
    """The path up to its first number: "model.layers.3.mlp" is in "model.layers.3"."""
    parts = path.split(".")
    end = next((i + 1 for i, part in enumerate(parts) if part.isdecimal()), len(parts))
    return ".".join(parts[:end])


def starred(path: str) -> str:
    """The path with a star for each number."""
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def plain_label(label: str) -> str:
    """A kernel's label without the numbers that tell calls of one name apart."""
    return _NUMBER.sub("", label)


def replaced(plan: Plan) -> tuple[list[list[Group]], list[Group]]:
    """By fused kernel, the unfused ones in its place; and those unfused ones in whose place there is none, since
    another call gives the same. Each unfused kernel counts once: where several fused ones compute it, for the one that
    computes most of it. A call's stage that nothing is left of counts for the kernel of its other stages, and one that
    a call of the library stands for counts for that.
    """
    holders: dict[str, list[int]] = defaultdict(list)
    for group in plan.groups:
        for stage in group.stages:
            for name in (stage, f"{composite_of(stage)}."):
                holders[name].append(group.id)
    for composite, kernel in zip(*_put_in_place(plan, holders), strict=True):
        holders[f"{composite}."] = [kernel]
    made: list[list[Group]] = [[] for _ in plan.groups]
    gone: list[Group] = []
    shares = _shares(plan) if any(len(ids) > 1 for ids in holders.values()) else Counter()
    for group in plan.unfused_groups:
        own = dict.fromkeys(i for stage in group.stages for i in holders.get(stage, ()))
        ids = own or dict.fromkeys(i for s in group.stages for i in holders.get(f"{composite_of(s)}.", ()))
        if not ids:
            gone.append(group)
            continue
        most = max(ids, key=lambda i: (sum(shares[i, stage] for stage in group.stages), -i))
        made[most].append(group)
    return made, gone


def composite_of(stage: str) -> str:
    """The call that a stage is of: "layernorm_2" for "layernorm.centre_2"."""
    name, dot, part = stage.partition(".")
    number = _NUMBER.search(part)
    return name + (number.group() if number else "") if dot else stage


def _put_in_place(plan: Plan, holders: Mapping[str, Sequence[int]]) -> tuple[list[str], list[int]]:
    """Calls whose stages are all gone, and the kernels of calls of the library that planning has made of such: one
    for each, in the same order, or nothing.
    """
    known = [stage for group in plan.unfused_groups for stage in group.stages]
    named = frozenset(known)
    added = [g.id for g in plan.groups if not named.intersection(g.stages)]
    if not added:
        return [], []
    calls = dict.fromkeys(composite_of(stage) for stage in known if "." in stage)
    lost = [call for call in calls if f"{call}." not in holders]
    return (lost, added) if len(lost) == len(added) else ([], [])


def _shares(plan: Plan) -> Counter[tuple[int, str]]:
    """How many nodes of a stage a kernel computes."""
    shares: Counter[tuple[int, str]] = Counter()
    stages, nodes = plan.stages, plan._nodes
    for group in plan.groups:
        for node in group.nodes:
            shares[group.id, stages[nodes[node]["stage"]]] += 1
    return shares


def by_module(plan: Plan, depth: int | None) -> Layers:
    """See `Plan.by_module`."""

    def cut(path: str) -> str:
        return block_of(path) if depth is None else ".".join(path.split(".")[:depth])

    fused: dict[str, list[Group]] = defaultdict(list)
    unfused: dict[str, list[Group]] = defaultdict(list)
    first: dict[str, int] = {}
    for groups, into in ((plan.unfused_groups, unfused), (plan.groups, fused)):
        for i, group in enumerate(groups):
            name = cut(module_of_unfused(plan, group) if groups is plan.unfused_groups else module_of(plan, group))
            into[name].append(group)
            first.setdefault(name, i)
    return Layers(tuple(made(name, 1, fused[name], unfused[name]) for name in sorted(first, key=lambda n: first[n])))


def module_of_unfused(plan: Plan, group: Group) -> str:
    """The module of an unfused kernel's only call."""
    return next((plan.modules[stage] for stage in reversed(group.stages) if stage in plan.modules), "")


def made(name: str, count: int, fused: Sequence[Group], unfused: Sequence[Group]) -> Layer:
    """The sums of some kernels."""
    return Layer(
        name,
        count,
        len(fused),
        len(unfused),
        sum(g.issued.total for g in fused),
        sum(g.issued.total for g in unfused),
        sum(g.flop_total for g in fused),
        sum(g.time_us for g in fused),
        sum(g.time_us for g in unfused),
    )


def table(rows: Sequence[Layer], width: int | None, title: str = "By module") -> Table:
    """One line a module, and their sum."""
    total = _total(rows)
    unit, size = byte_unit(total.unfused_bytes)
    header = ("module", "x", "kernels", "before", unit, "before", "ms", "before", "saved ms", "time %")
    cells = [_cells(row, size, total.us) for row in (*rows, total)]
    name_width = None if width is None else max(room(0, header, cells, width), _MIN_NAME)
    shown = tuple((shorten(line[0] or "-", name_width), *line[1:]) for line in cells)
    return Table(title, header, shown, left=(0,), styles={"total": "bold green"})


def _cells(row: Layer, size: float, all_us: float) -> tuple[str, ...]:
    return (
        row.module,
        str(row.count) if row.count > 1 else "",
        str(row.kernels),
        str(row.unfused_kernels),
        in_unit(row.bytes, size),
        in_unit(row.unfused_bytes, size),
        number(row.us / 1e3),
        number(row.unfused_us / 1e3),
        number(row.saved_us / 1e3),
        f"{100 * row.us / all_us:.1f}" if all_us else "0",
    )


def _total(rows: Sequence[Layer]) -> Layer:
    return Layer(
        "total",
        1,
        sum(r.kernels for r in rows),
        sum(r.unfused_kernels for r in rows),
        sum(r.bytes for r in rows),
        sum(r.unfused_bytes for r in rows),
        sum(r.flops for r in rows),
        sum(r.us for r in rows),
        sum(r.unfused_us for r in rows),
    )
