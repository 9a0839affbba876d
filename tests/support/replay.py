"""Graphs as functions, to be traced again: what the random graphs of the tests are to `kf.fuse`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kfusion import _core

KINDS = {row["name"]: row["kind"] for row in _core.op_table()}


def replay(graph: _core.Graph) -> Callable[[list[Any]], tuple[Any, ...]]:
    """A function of a list of arrays, the inputs of `graph`, that builds the same nodes in the same stages."""
    d = graph.to_dict()

    def build(arrays: list[Any]) -> tuple[Any, ...]:
        tracer = arrays[0]._tracer
        given = iter(arrays)
        nodes: list[int] = []
        stage = None
        for n in d["nodes"]:
            if KINDS[n["op"]] != "source" and n["stage"] != stage:
                if stage is not None:
                    tracer.graph.end_stage()
                stage = None if n.get("rounds") else n["stage"]  # such a cast is a call of its own
                if stage is not None:
                    tracer.graph.begin_stage(d["stages"][stage]["name"], "")
            is_input = n["op"] == "input"
            nodes.append(tracer.node(next(given)) if is_input else _node(tracer.graph, n, nodes))
        if stage is not None:
            tracer.graph.end_stage()
        return tuple(tracer.value(nodes[o["node"]]) for o in d["outputs"])

    return build


def _node(g: Any, n: dict[str, Any], nodes: list[int]) -> int:
    op, kind = n["op"], KINDS[n["op"]]
    arguments = [nodes[a] for a in n["arguments"]]
    if op == "constant":
        return int(g.cast(g.scalar(n["value"]), n["dtype"]))
    if op == "iota":
        return int(g.iota(n["shape"], n["axis"], n["dtype"]))
    if kind == "map":
        return int(g.map(op, arguments))
    if kind == "reduce":
        return int(g.reduce(op, arguments[0], None if n["whole"] else n["axes"], n["keepdims"]))
    if op == "cast":
        return int(g.cast(arguments[0], n["dtype"]))
    if op == "slice":
        ranges = [
            (s, s + k * (e - 1) + (1 if k > 0 else -1) if e else s, k)
            for s, k, e in zip(n["start"], n["step"], n["shape"], strict=True)
        ]
        return int(g.slice(arguments[0], ranges))
    if op == "transpose":
        return int(g.transpose(arguments[0], n["axes"]))
    if op == "concatenate":
        return int(g.concatenate(arguments, n["axis"]))
    if op in ("take", "take_along_axis"):
        return int(getattr(g, op)(*arguments, n["axis"], n["nonnegative"]))
    return int(g.matmul(*arguments) if op == "matmul" else getattr(g, op)(arguments[0], n["shape"]))
