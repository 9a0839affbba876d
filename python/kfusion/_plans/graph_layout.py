"""Where a plan's kernels and calls lie when drawn as a graph, in inches, top to bottom. Knows nothing of matplotlib."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from .._tables import number, shorten

if TYPE_CHECKING:
    from .plan import Plan
    from .records import Group

MAX_CALLS = 40  # beyond these a kernel's calls are drawn as one
MAX_KERNELS = 40  # of more kernels only the first are drawn
CALL_HEIGHT = 0.24
_CHARACTER, _TEXT_PADDING, _MAX_NAME = 0.082, 0.16, 30
_CALL_PITCH, _CALL_GAP = 0.44, 0.16
_CAPTION, _PADDING, _BOX_GAP, _LAYER_GAP = 0.24, 0.14, 0.3, 0.55
_MAX_CALLS_WIDTH, _MAX_WIDTH = 5.0, 9.0  # of a row: what is left over goes to the next

Member = tuple[int, int]  # a kernel, and one of its stages (-1: all of them)
Item = TypeVar("Item")


@dataclass(frozen=True)
class Call:
    """A call's box: its middle and its width."""

    name: str
    x: float
    y: float
    width: float


@dataclass(frozen=True)
class Kernel:
    """A kernel's box: its upper left corner, its size and what is in it."""

    id: int
    caption: str
    x: float
    y: float
    width: float
    height: float
    calls: dict[Member, Call]


@dataclass(frozen=True)
class Edge:
    """From one call to another. Without data the two are only neighbours; is_bent goes around what is in between."""

    start: Call
    end: Call
    is_inside: bool
    has_data: bool
    is_bent: bool
    reason: str


@dataclass(frozen=True)
class Layout:
    """The drawing, and a note on what it leaves out."""

    kernels: tuple[Kernel, ...]
    edges: tuple[Edge, ...]
    width: float
    height: float
    note: str


def layout(plan: Plan) -> Layout:
    """Kernels in layers by what they read, the calls in each likewise."""
    graph = _CallGraph(plan)
    boxes = {i: _box(graph, i) for i in graph.calls}
    placed = _placed(boxes, [(a[0], b[0]) for a, b in graph.data if a[0] != b[0]])
    width = max((k.x + k.width for k in placed), default=1.0)
    height = max((k.y + k.height for k in placed), default=1.0)
    return Layout(tuple(placed), tuple(_edges(graph, placed)), width, height, graph.note)


class _CallGraph:
    """The calls of each kernel, and which reads which."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stages = plan.stages
        self.groups = plan.groups[:MAX_KERNELS]
        self.whole = sum(len(g.stages) for g in self.groups) > MAX_CALLS
        self.calls = {g.id: list(dict.fromkeys(self.member(g.id, n) for n in g.nodes)) for g in self.groups}
        self.data = list(dict.fromkeys(self.reads()))
        drawn = (r for r in plan.refusals if r.producer_group in self.calls and r.consumer_group in self.calls)
        self.reasons = {
            (self.member(r.producer_group, r.producer_node), self.member(r.consumer_group, r.consumer_node)): r.reason
            for r in drawn
        }

    def member(self, group: int, node: int) -> Member:
        return group, -1 if self.whole else self.plan._nodes[node]["stage"]

    def name(self, member: Member) -> str:
        group, stage = member
        return shorten(self.plan.groups[group].label if stage < 0 else self.stages[stage], _MAX_NAME)

    def reads(self) -> Iterator[tuple[Member, Member]]:
        made_in = {n: g.id for g in reversed(self.groups) for n in g.nodes}
        for group in self.groups:
            inside = set(group.nodes)
            for n in group.nodes:
                for source in self.sources(n, made_in):
                    edge = (
                        self.member(group.id if source in inside else made_in[source], source),
                        self.member(group.id, n),
                    )
                    if edge[0] != edge[1]:
                        yield edge

    def sources(self, node: int, made_in: dict[int, int]) -> Iterator[int]:
        """The computed nodes that a node reads, views looked through."""
        waiting = list(self.plan._nodes[node]["arguments"])
        while waiting:
            argument = waiting.pop()
            if argument in made_in:
                yield argument
            else:
                waiting += self.plan._nodes[argument]["arguments"]

    @property
    def note(self) -> str:
        if len(self.groups) < len(self.plan.groups):
            return f"The first {len(self.groups)} of {len(self.plan.groups)} kernels."
        return "A box is a kernel: there are too many calls to draw each." if self.whole else ""


def _box(graph: _CallGraph, group: int) -> Kernel:
    """A kernel at the origin, its calls in layers."""
    caption = _caption(graph.plan.groups[group])
    edges = [edge for edge in graph.data if edge[0][0] == edge[1][0] == group]
    widths = {m: _text_width(graph.name(m)) for m in graph.calls[group]}
    rows = _wrapped(_rows(graph.calls[group], edges), widths, _CALL_GAP, _MAX_CALLS_WIDTH)
    row_widths = [sum(widths[m] for m in row) + _CALL_GAP * (len(row) - 1) for row in rows]
    width = max((_text_width(caption) - _PADDING, *row_widths)) + 2 * _PADDING
    calls = {}
    for i, (row, row_width) in enumerate(zip(rows, row_widths, strict=True)):
        x = (width - row_width) / 2
        for m in row:
            calls[m] = Call(graph.name(m), x + widths[m] / 2, _CAPTION + _CALL_PITCH * (i + 0.5), widths[m])
            x += widths[m] + _CALL_GAP
    return Kernel(group, caption, 0, 0, width, _CAPTION + _CALL_PITCH * len(rows), calls)


def _caption(group: Group) -> str:
    return f"{group.id}: {group.kind}, {number(group.time_us, 3)} us"


def _placed(boxes: dict[int, Kernel], edges: Sequence[tuple[int, int]]) -> list[Kernel]:
    """Layers of kernels below each other, each centred."""
    rows = _wrapped(_rows(list(boxes), edges), {i: b.width for i, b in boxes.items()}, _BOX_GAP, _MAX_WIDTH)
    widths = [sum(boxes[i].width for i in row) + _BOX_GAP * (len(row) - 1) for row in rows]
    placed, y = [], 0.0
    for row, row_width in zip(rows, widths, strict=True):
        x = (max(widths) - row_width) / 2
        for i in row:
            placed.append(_moved(boxes[i], x, y))
            x += boxes[i].width + _BOX_GAP
        y += max(boxes[i].height for i in row) + _LAYER_GAP
    return placed


def _moved(kernel: Kernel, x: float, y: float) -> Kernel:
    calls = {m: replace(call, x=call.x + x, y=call.y + y) for m, call in kernel.calls.items()}
    return replace(kernel, x=x, y=y, calls=calls)


def _edges(graph: _CallGraph, kernels: Sequence[Kernel]) -> Iterator[Edge]:
    """What reads what, then neighbours without data; of edges between the same kernels one names the reason."""
    calls = {m: call for kernel in kernels for m, call in kernel.calls.items()}
    named = set()
    for a, b in dict.fromkeys((*graph.data, *graph.reasons)):
        reason = str(graph.reasons.get((a, b), ""))
        shown = "" if (a[0], b[0], reason) in named else reason
        named.add((a[0], b[0], reason))
        is_bent = any(_blocks(call, calls[a], calls[b]) for m, call in calls.items() if m not in (a, b))
        yield Edge(calls[a], calls[b], a[0] == b[0], (a, b) in graph.data, is_bent, shown)


def _blocks(call: Call, start: Call, end: Call) -> bool:
    """Whether a call's box lies on the straight line between two others."""
    if start.y == end.y:
        return call.y == start.y and min(start.x, end.x) < call.x < max(start.x, end.x)
    part = (call.y - start.y) / (end.y - start.y)
    return 0 < part < 1 and abs(start.x + part * (end.x - start.x) - call.x) < call.width / 2


def _rows(items: Sequence[Item], edges: Iterable[tuple[Item, Item]]) -> list[list[Item]]:
    """Items in layers, each below all that it reads and near the middle of these."""
    sources: dict[Item, list[Item]] = defaultdict(list)
    for source, target in edges:
        sources[target].append(source)
    layer: dict[Item, int] = {}
    for item in items:  # each comes after what it reads
        layer[item] = max((layer[s] + 1 for s in sources[item] if s in layer), default=0)
    rows: list[list[Item]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for item in items:
        rows[layer[item]].append(item)
    position: dict[Item, float] = {}
    for row in rows:
        means = {item: _mean([position[s] for s in sources[item] if s in position]) for item in row}
        row.sort(key=means.__getitem__)
        position |= {item: i - (len(row) - 1) / 2 for i, item in enumerate(row)}
    return rows


def _wrapped(rows: Iterable[list[Item]], widths: dict[Item, float], gap: float, limit: float) -> list[list[Item]]:
    """The rows, those too wide as several."""
    result: list[list[Item]] = []
    for row in rows:
        used = math.inf
        for item in row:
            used += gap + widths[item]
            if used > limit:
                result.append([])
                used = widths[item]
            result[-1].append(item)
    return result


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _text_width(text: str) -> float:
    return _CHARACTER * len(text) + _TEXT_PADDING
