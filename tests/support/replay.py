"""Graphs as functions, to be traced again: what the random graphs of the tests are to `kf.fuse`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kfusion import _core
from kfusion._graph.replay import build


def replay(graph: _core.Graph) -> Callable[[list[Any]], tuple[Any, ...]]:
    """A function of a list of arrays, the inputs of `graph`, that builds the same nodes in the same stages."""
    d = graph.to_dict()
    inputs = [i for i, n in enumerate(d["nodes"]) if n["op"] == "input"]

    def built(arrays: list[Any]) -> tuple[Any, ...]:
        tracer = arrays[0]._tracer
        known = {i: tracer.node(x) for i, x in zip(inputs, arrays, strict=True)}
        build(tracer.graph, d, range(len(d["nodes"])), known)
        return tuple(tracer.value(known[o["node"]]) for o in d["outputs"])

    return built
