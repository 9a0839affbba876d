"""`plan.explain(a, b)`: why two calls do or do not share a kernel."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .plan import Plan
    from .records import Group, Refusal

_WHO = "kfusion.Plan.explain"
_LISTED = 40

_WHY_TOGETHER = {
    "pointwise": "both run over the same elements, so what is between them stays in registers",
    "rows": "both run over the same rows, and a row stays on chip from the first read to the last write",
    "columns": "both run over the same columns, and a tile of columns stays on chip",
    "full_reduction": "the elements are reduced as they are made, and the reduction finishes in the same launch",
    "matmul": "the product's tile is still in registers when the following calls use it",
    "conv2d": "the convolution's tile is still in registers when the following calls use it",
    "attention": "the scores are reduced as they are made and never stored",
    "contraction_reduction": "the product is reduced as it is made and never stored",
    "library_call": "one call of the array library computes both",
    "copy": "the elements are used where they are read",
}


def explain(plan: Plan, a: str, b: str) -> str:
    """See `Plan.explain`."""
    return _Explainer(plan).explain(a, b)


class _Explainer:
    """A plan's graph with its consumers, and its kernels by node (several where it is a copy of one computed twice)."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.nodes = plan._nodes
        self.stages = plan.stages
        self.groups_of: dict[int, set[int]] = defaultdict(set)
        for group in plan.groups:
            for node in (*group.nodes, *group.views):
                self.groups_of[node].add(group.id)
        self.consumers: dict[int, list[int]] = defaultdict(list)
        for i, reader in enumerate(self.nodes):
            for argument in reader["arguments"]:
                self.consumers[argument].append(i)

    def explain(self, a: str, b: str) -> str:
        first, second = self.find(a), self.find(b)
        for nodes, other, others in ((first, b, second), (second, a, first)):
            if inputs := [n for n in nodes if self.plan._is_input(n)]:
                refusals = self.between(nodes, others)
                return " ".join((self.about_input(inputs[0], other, others), *_reasons(refusals)))
        if shared := self.kernel_ids(first) & self.kernel_ids(second):
            also = (self.elsewhere(name, self.kernel_ids(nodes) - shared) for name, nodes in ((a, first), (b, second)))
            return self.together(a, b, self.plan.groups[min(shared)]) + "".join(also)
        path = self.path(first, second) or self.path(second, first)
        refusals = self.between(first, second) or self.boundaries(path) or self.between_kernels(first, second)
        where = f"{a} is in {self.kernels(first)} and {b} in {self.kernels(second)}"
        if not refusals:
            return f"{where}: neither reads what the other gives."
        neighbours = len(path) < 2 or len(set(map(self.stage, path))) <= 2
        way = "" if neighbours else f" The way is {' -> '.join(dict.fromkeys(map(self.stage, path)))}."
        return " ".join((f"{where}.{way}", *_reasons(refusals)))

    # What a name means

    def find(self, name: str) -> set[int]:
        """The nodes that a name stands for: all of a stage's, of an op's, one input or result."""
        stages, values = self.by_stage(), self.by_value()
        parts = {c: set().union(*(stages.get(s, ()) for s in names)) for c, names in self.plan.composites.items()}
        for names in (stages, parts, self.by_op(), values):
            if names.get(name):
                return names[name]
        if name in (stage["name"] for stage in self.plan.unfused_graph.to_dict()["stages"]):
            raise ValueError(f"{_WHO}: {name} gives what another call gives or nobody reads, so no kernel computes it")
        return _by_prefix(name, stages | parts, values)

    def by_stage(self) -> dict[str, set[int]]:
        names: dict[str, set[int]] = defaultdict(set)
        for i in self.groups_of:
            names[self.stage(i)].add(i)
        return names

    def by_op(self) -> dict[str, set[int]]:
        """Ops that occur in one stage only: elsewhere the stage's name says which is meant."""
        names: dict[str, set[int]] = defaultdict(set)
        for i in self.groups_of:
            names[self.nodes[i]["op"]].add(i)
        return {op: nodes for op, nodes in names.items() if len(set(map(self.stage, nodes))) == 1}

    def by_value(self) -> dict[str, set[int]]:
        """Inputs, results, and what is passed between kernels."""
        names: dict[str, set[int]] = {node["name"]: {i} for i, node in enumerate(self.nodes) if node["op"] == "input"}
        for group in self.plan.groups:
            names |= {store.value: {store.node} for store in group.stores if store.value not in names}
        outputs = self.plan._graph["outputs"]
        return {output["name"]: {output["node"]} for output in outputs if output["name"]} | names

    # What is between two names

    def path(self, first: set[int], second: set[int]) -> list[int]:
        """A shortest way from a node of the first to one of the second along what reads what; [] if there is none."""
        before: dict[int, int | None] = dict.fromkeys(first)
        queue = deque(first)
        while queue:
            node = queue.popleft()
            if node in second:
                return self.way_back(node, before)
            for consumer in self.consumers[node]:
                if consumer not in before:
                    before[consumer] = node
                    queue.append(consumer)
        return []

    @staticmethod
    def way_back(node: int, before: dict[int, int | None]) -> list[int]:
        path, at = [], node
        while at is not None:
            path.append(at)
            at = before[at]  # type: ignore[assignment]
        return path[::-1]

    def between(self, first: set[int], second: set[int]) -> list[Refusal]:
        """The refusals of neighbours that are directly in the two."""
        pairs = ((first, second), (second, first))
        return [r for r in self.plan.refusals if any(r.producer_node in p and r.consumer_node in c for p, c in pairs)]

    def between_kernels(self, first: set[int], second: set[int]) -> list[Refusal]:
        """The refusals of the kernels that the two are in."""
        a, b = self.kernel_ids(first), self.kernel_ids(second)
        groups = ((r, r.producer_group, r.consumer_group) for r in self.plan.refusals)
        return [r for r, p, c in groups if (p in a and c in b) or (p in b and c in a)]

    def boundaries(self, path: list[int]) -> list[Refusal]:
        """The refusals along a way, each kernel's edge once."""
        computed = [node for node in path if node in self.groups_of]
        crossed: dict[int, Refusal] = {}
        for producer, consumer in pairwise(computed):
            if not self.groups_of[producer] & self.groups_of[consumer]:
                for i, r in enumerate(self.plan.refusals):
                    if (r.producer_node, r.consumer_node) == (producer, consumer) or (
                        r.producer_group in self.groups_of[producer] and r.consumer_group in self.groups_of[consumer]
                    ):
                        crossed.setdefault(i, r)
                        break
        return list(crossed.values())

    # Sentences

    def together(self, a: str, b: str, group: Group) -> str:
        why = _WHY_TOGETHER.get(group.kind, "they are parts of one kernel")
        again = "" if group.row_on_chip else f" (too long to stay there, a row is read {group.passes} times)"
        return f"{a} and {b} share kernel {group.id} ({group.label}): {why}{again}."

    def elsewhere(self, name: str, ids: set[int]) -> str:
        return f" {name} is also in {self.named(ids)}." if ids else ""

    def about_input(self, node: int, other: str, others: set[int]) -> str:
        name = self.nodes[node]["name"]
        readers = {g.id for g in self.plan.groups if any(load.node == node for load in g.loads)}
        said = f"{name} is an input, read by {self.named(readers)}"
        if both := readers & self.kernel_ids(others):
            return f"{said}; {other} is computed in {self.named(both)}, from the same read."
        return f"{said}; {other} is in {self.kernels(others)}." if self.kernel_ids(others) else f"{said}."

    def kernels(self, nodes: set[int]) -> str:
        return self.named(self.kernel_ids(nodes))

    def named(self, ids: Iterable[int]) -> str:
        groups = [self.plan.groups[i] for i in sorted(ids)]
        return " and ".join(f"kernel {g.id} ({g.label})" for g in groups) or "no kernel"

    def kernel_ids(self, nodes: set[int]) -> set[int]:
        return set().union(*(self.groups_of[n] for n in nodes if n in self.groups_of))

    def stage(self, node: int) -> str:
        index = self.nodes[node]["stage"]
        return str(self.nodes[node]["op"]) if index is None else self.stages[index]


def _reasons(refusals: Iterable[Refusal]) -> list[str]:
    """Each with its sentence; a copy's is the same."""
    return list(dict.fromkeys(f"{r.producer} | {r.consumer}: {r.reason}. {r.sentence}" for r in refusals))


def _by_prefix(name: str, calls: dict[str, set[int]], values: dict[str, set[int]]) -> set[int]:
    found = sorted(call for call in calls if call.startswith(name)) if name else []
    if len(found) == 1:
        return calls[found[0]]
    known = found or [*sorted(calls), *sorted(values.keys() - calls.keys())]
    listed = ", ".join(known[:_LISTED]) + (", ..." if len(known) > _LISTED else "")
    problem = "could be any of" if found else "is no call, input or result; there are"
    raise ValueError(f"{_WHO}: {name[:80]!r} {problem} {listed}")
