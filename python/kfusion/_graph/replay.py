"""A graph's nodes, built again in another graph: of arrays of other extents, and only those that are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _core

KINDS: dict[str, str] = {row["name"]: row["kind"] for row in _core.op_table()}
Shapes = Callable[[int], Sequence[int]]


def build(
    builder: Any, graph: Mapping[str, Any], nodes: Sequence[int], known: dict[int, int], shape_of: Shapes | None = None
) -> dict[int, int]:
    """Builds nodes in a graph under construction, in the stages that they stand in.

    Args:
        builder: the graph, a `_core.Graph`.
        graph: `to_dict()` of the one that they come from.
        nodes: what to build, in order: arguments before what reads them.
        known: for nodes of `graph` that exist in `builder` (inputs at least) the nodes there. The new ones are added.
        shape_of: the extents of a node, where they are not the same.

    Returns:
        `known`.

    Raises:
        TypeError: a call of the array library, whose function a graph does not hold.
    """
    source = _core.Graph.from_dict(graph)
    stage = None
    for i in nodes:
        if i in known:
            continue
        n = graph["nodes"][i]
        if KINDS[n["op"]] == "library":
            raise TypeError(f"kfusion: {n.get('function', n['op'])} cannot be built again")
        if KINDS[n["op"]] != "source" and n["stage"] != stage:
            if stage is not None:
                builder.end_stage()
            stage = n["stage"]
            builder.begin_stage(graph["stages"][stage]["name"], graph["stages"][stage]["source"])
        known[i] = builder.again(source, i, [known[a] for a in n["arguments"]], shape_of and shape_of(i))
    if stage is not None:
        builder.end_stage()
    return known
