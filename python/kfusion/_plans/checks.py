"""What must hold of a plan that was read from a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .plan import Plan
    from .records import Group

_SAVINGS = ("unfused_bytes", "fused_bytes", "savings_bytes", "savings_pct")  # what kfusion.savings always has


def check_references(plan: Plan, who: str) -> None:
    """Every number of a node, stage or group is one of the plan's own, and every unit one of the device's.

    Raises:
        ValueError: one is not; `who` begins the message.
    """

    def require(condition: bool, rule: str) -> None:
        if not condition:
            raise ValueError(f"{who}: {rule}")

    groups = range(len(plan.groups))
    for name in _SAVINGS:
        require(name in plan.savings, f"savings must have {name!r}")
    computed = _check_groups(require, "groups", plan.groups, plan._graph)
    _check_groups(require, "unfused_groups", plan.unfused_groups, plan.unfused_graph.to_dict())
    for i, r in enumerate(plan.refusals):
        is_input = plan._is_input(r.producer_node)
        require(r.consumer_node in computed, f"refusals[{i}].consumer_node must be the number of a computed node")
        require(is_input or r.producer_node in computed, f"refusals[{i}].producer_node must be computed or an input")
        require(r.consumer_group in groups, f"refusals[{i}].consumer_group must be the number of a group")
        require(r.producer_group in ((-1,) if is_input else groups), f"refusals[{i}].producer_group must be a group's")
    costs = (*plan.groups, *plan.unfused_groups, plan.fused, plan.unfused)
    for dtype, unit in {(f.dtype, f.unit) for cost in costs for f in cost.flops}:
        plan.device.peak_flops(dtype, unit)


def _check_groups(
    require: Callable[[bool, str], None], name: str, groups: Iterable[Group], graph: dict[str, Any]
) -> set[int]:
    """The graph's computed nodes, after checking that the groups name nothing but what the graph has."""
    nodes, stages = range(len(graph["nodes"])), {stage["name"] for stage in graph["stages"]}
    computed = {i for i, node in enumerate(graph["nodes"]) if node["stage"] is not None}
    for i, g in enumerate(groups):
        named = (*g.views, *g.deferred, *(v.node for v in g.loads), *(v.node for v in g.stores))
        require(g.id == i, f"{name}[{i}].id must be {i}")
        require(computed.issuperset(g.nodes), f"{name}[{i}].nodes must be numbers of computed nodes")
        require(all(n in nodes for n in named), f"{name}[{i}] must name nodes of the graph")
        require(stages.issuperset(g.stages), f"{name}[{i}].stages must be the graph's")
    return computed
