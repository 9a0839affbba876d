"""Batch norms of known statistics on the CPU: a scale and a shift of each channel, which are computed before the graph.

A kernel over images whose channels lie innermost would compute both for each element. They are few, so another kernel
computes those of all layers in each call. torch's own batch norm does the same arithmetic.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch

from .._fuse import fuse
from .._ops import primitives as p
from .._tracing import fx_graphs

_OP = torch.ops.aten._native_batch_norm_legit_no_training.default
_DTYPES = (torch.float32, torch.float64)


class Channels:
    """The scales and shifts of a graph module's batch norms, which become arguments of its graph.

    Args:
        module: its graph is changed.
        name: what messages call the function that computes them.
    """

    def __init__(self, module: Any, name: str) -> None:
        graph = module.graph
        found = [n for n in graph.nodes if _is_known(n)]
        self.arguments: list[Any] = []  # the new arguments
        self._read = list(dict.fromkeys(n for norm in found for n in norm.args[1:5] if n is not None))
        self._norms = [[n and self._read.index(n) for n in norm.args[1:5]] for norm in found]
        self._eps = [norm.args[6] for norm in found]
        first = next(n for n in graph.nodes if n.op != "placeholder")
        for norm in found:
            self._replace(graph, norm, first)
        if found:
            module.recompile()
            self._function = fuse(self._traced(name))

    def values(self, given: Mapping[Any, Any]) -> dict[Any, Any]:
        """The new arguments, if there are any, of the others."""
        return dict(zip(self.arguments, self._function(*[given[n] for n in self._read]), strict=True))

    def _replace(self, graph: Any, norm: Any, first: Any) -> None:
        x, like = norm.args[0], norm.args[4].meta["val"]
        aten = torch.ops.aten
        with graph.inserting_before(first):
            pair = [graph.placeholder(f"channels_{len(self.arguments) + i}") for i in range(2)]
        shape = [-1, *[1] * (x.meta["val"].ndim - 2)]
        of_images = like.view(shape)
        for result in list(norm.users):
            value = result.meta["val"]
            with graph.inserting_before(result):
                views = [graph.call_function(aten.view.default, (n, shape)) for n in pair]
                scaled = graph.call_function(aten.mul.Tensor, (x, views[0]))
                shifted = graph.call_function(aten.add.Tensor, (scaled, views[1]))
            for node, v in zip((*views, scaled, shifted), (of_images, of_images, value, value), strict=True):
                node.meta["val"] = v
            result.replace_all_uses_with(shifted)
            graph.erase_node(result)
        for node in pair:
            node.meta["val"] = like
        graph.erase_node(norm)
        self.arguments += pair

    def _traced(self, name: str) -> Any:
        norms, each_eps = self._norms, self._eps

        def channels(*given: Any) -> Any:
            made: list[Any] = []
            for indices, eps in zip(norms, each_eps, strict=True):
                weight, bias, mean, var = (_at(given, i) for i in indices)
                scale = p.rsqrt(var + eps)
                scale = scale if weight is None else scale * weight
                shift = -mean * scale if bias is None else bias - mean * scale
                made += [scale, shift]
            return tuple(made)

        channels.__name__ = channels.__qualname__ = name
        return channels


def _at(values: Any, index: int | None) -> Any:
    return None if index is None else values[index]


def _is_known(node: Any) -> bool:
    """Whether a node is a batch norm on the CPU whose statistics and weights are arguments of the graph."""
    if node.target is not _OP or not all(n is None or n.op == "placeholder" for n in node.args[1:5]):
        return False
    if not all(u.target is operator.getitem and u.args[1] == 0 for u in node.users):
        return False
    values = [n.meta["val"] for n in node.args[:5] if n is not None]
    if not all(fx_graphs.is_tensor(v) and v.device.type == "cpu" for v in values):
        return False
    return values[0].dtype in _DTYPES and all(v.dtype == values[0].dtype for v in values)
