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
    stage = None
    for i in nodes:
        if i in known:
            continue
        n = graph["nodes"][i]
        if KINDS[n["op"]] != "source" and n["stage"] != stage:
            if stage is not None:
                builder.end_stage()
            stage = None if n.get("rounds") else n["stage"]  # such a cast is a call of its own
            if stage is not None:
                builder.begin_stage(graph["stages"][stage]["name"], graph["stages"][stage]["source"])
        shape = n["shape"] if shape_of is None else list(shape_of(i))
        known[i] = _node(builder, n, [known[a] for a in n["arguments"]], shape)
    if stage is not None:
        builder.end_stage()
    return known


def _node(g: Any, n: Mapping[str, Any], arguments: list[int], shape: Sequence[int]) -> int:
    op, kind = n["op"], KINDS[n["op"]]
    if op == "constant":
        return _constant(g, n)
    if kind == "map":
        return int(g.map(op, arguments))
    if kind == "reduce":
        return int(g.reduce(op, arguments[0], None if n["whole"] else n["axes"], n["keepdims"]))
    if op == "iota":
        return int(g.iota(shape, n["axis"], n["dtype"], n["library"]))
    if op == "cast":
        return int(g.cast(arguments[0], n["dtype"]))
    if op == "slice":
        return int(g.slice(arguments[0], [_range(*r) for r in zip(n["start"], n["step"], shape, strict=True)]))
    if op == "transpose":
        return int(g.transpose(arguments[0], n["axes"]))
    if op == "concatenate":
        return int(g.concatenate(arguments, n["axis"]))
    if op in ("take", "take_along_axis"):
        return int(getattr(g, op)(*arguments, n["axis"], n["nonnegative"]))
    if op == "conv2d":
        return int(g.conv2d(*arguments, *(n[key] for key in ("stride", "padding", "dilation", "groups"))))
    if op == "matmul":
        return int(g.matmul(*arguments))
    if op in ("reshape", "broadcast"):
        return int(getattr(g, op)(arguments[0], shape))
    raise TypeError(f"kfusion: {n.get('function', op)} cannot be built again")


def _range(start: int, step: int, extent: int) -> tuple[int, int, int]:
    stop = start + step * (extent - 1) + (1 if step > 0 else -1) if extent else start
    return start, stop, step


def _constant(g: Any, n: Mapping[str, Any]) -> int:
    value = float(n["value"]) if isinstance(n["value"], str) else n["value"]  # "inf", "nan"
    if n["dtype"] not in ("bool", "int32", "int64"):
        value = float(value)
    weak = int(g.scalar(value))
    return weak if n["weak"] or n.get("wide") else int(g.cast(weak, n["dtype"]))
