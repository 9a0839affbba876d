"""Whether a graph treats the points of its arrays' first axis alike, so that a few of them can be checked alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_REFUSED = ("take", "conv2d", "library_call", "library_result")


class Batch(NamedTuple):
    """The common first axis: its extent, and the nodes that vary along it."""

    extent: int
    nodes: frozenset[int]

    def shrunk(self, nodes: Sequence[Mapping[str, Any]], extent: int) -> list[dict[str, Any]]:
        """The graph's nodes with fewer points along the axis."""
        return [
            {**node, "shape": [extent, *node["shape"][1:]]} if i in self.nodes else dict(node)
            for i, node in enumerate(nodes)
        ]


def batch(nodes: Sequence[Mapping[str, Any]], outputs: Sequence[int]) -> Batch | None:
    """The axis that all outputs have in common and nothing reduces or reorders, or None where there is none.

    A node either varies along the axis, which is then its first, or is the same all along it.
    """
    extents = {node["shape"][0] if node["shape"] else 0 for node in (nodes[o] for o in outputs)}
    if len(extents) != 1 or (rows := extents.pop()) < 2:
        return None
    ndim = max(len(n["shape"]) for n in nodes if n["op"] == "input")
    varying: set[int] = set()
    for i, node in enumerate(nodes):
        arguments = [nodes[a] if a in varying else None for a in node["arguments"]]
        if node["op"] == "input":
            varies = len(node["shape"]) == ndim and node["shape"][0] == rows
        else:
            varies = any(arguments)
            if not (_keeps_rows(node, arguments, rows) if varies else _has_no_rows(node, rows)):
                return None
        if varies:
            varying.add(i)
    return Batch(rows, frozenset(varying)) if varying.issuperset(outputs) else None


def _has_no_rows(node: Mapping[str, Any], rows: int) -> bool:
    """It is no value made for all rows, such as positions along them: that would not fit fewer."""
    return len(node["shape"]) < 2 or node["shape"][0] != rows


def _keeps_rows(node: Mapping[str, Any], batched: Sequence[Mapping[str, Any] | None], rows: int) -> bool:
    """The first axis of each batched argument is the result's, point by point."""
    op, shape = node["op"], node["shape"]
    if not shape or shape[0] != rows or op in _REFUSED:
        return False
    if op == "take_along_axis":
        return node["axis"] != 0 and None not in batched
    if "axes" in node and op != "transpose":
        return 0 not in node["axes"]
    if op == "transpose":
        return bool(node["axes"][0] == 0)
    if op == "slice":
        return (node["start"][0], node["step"][0]) == (0, 1)
    if op == "reshape":
        return True  # C order: what follows the first axis stays within its row
    if op == "concatenate":
        return bool(node["axis"] != 0)
    if op == "matmul":
        return batched[1] is None and len(shape) > 1
    return all(a is None or len(a["shape"]) == len(shape) for a in batched)
