"""Which convolutions on the CPU run on images whose channels lie innermost.

oneDNN computes such a convolution as it lies. It copies images in C order into an order of its own, and turns the
result back. So the images among the arguments are turned before a graph runs. What convolutions make of them follows,
as do maps and pools (cpp/kfusion/lower/layouts.cpp). Results of the graph are laid as eager torch lays them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .._tracing import fx_graphs, library_calls

_DTYPES = (torch.float32, torch.bfloat16)
_FEW = 4  # channels of a result below which nothing was gained
# torch turns weights in C order for such images, in each call: what an element of them costs, where one of an image
# saves 1. ResNet-50's convolutions of 1 and of 8 images were slower so with more than 0.8 elements of weights for each
# one of images, and none with less than 0.7 (two threads of a Zen 5).
_WEIGHT_COST = 1.4
_LEAST = 300_000  # elements that a graph must save: less is lost in noise
_FOLLOWING = (
    "avg_pool2d",
    "max_pool2d_with_indices",
    "_adaptive_avg_pool2d",
    "_native_batch_norm_legit_no_training",
    "cat",
    "convolution",
    "upsample_nearest2d",
    "upsample_bilinear2d",
)


class Turned:
    """The images among a graph's arguments that are turned, and where the order of their channels ends.

    Args:
        module: its graph is changed where that order ends: weights are larger than images behind.
    """

    def __init__(self, module: Any) -> None:
        nodes = list(module.graph.nodes)
        end = _Images(nodes).best_end()
        graph = _Images(nodes, end)
        self._arguments = graph.arguments
        for node in graph.convolutions[end:]:
            if node.args[0] in graph.last:
                with module.graph.inserting_before(node):
                    image = module.graph.call_function(in_c_order, (node.args[0],))
                image.meta["val"] = node.args[0].meta["val"]
                node.update_arg(0, image)
        if end:
            module.recompile()

    def __bool__(self) -> bool:
        return bool(self._arguments)

    def of(self, nodes: Sequence[Any]) -> list[int]:
        """Their indices among the nodes that a function is given."""
        return [nodes.index(n) for n in self._arguments if n in nodes]


def in_c_order(x: Any) -> Any:
    """A copy of an image, which no planner lays otherwise."""
    if not hasattr(type(x), "__kfusion_traced__"):
        return _copied(x)
    return library_calls.torch_call(_copied, "torch.clone", (x,), {})


def _copied(x: Any) -> Any:
    return x.clone(memory_format=torch.contiguous_format)


def turned(tensors: Sequence[Any], indices: Iterable[int]) -> list[Any]:
    """The tensors, those at the given indices with their channels innermost."""
    made = list(tensors)
    for i in indices:
        made[i] = made[i].contiguous(memory_format=torch.channels_last)
    return made


class _Images:
    """A graph's convolutions, in their order, and what is saved where the images of the first ones lie with their
    channels innermost: of all but those from number `end` on.
    """

    def __init__(self, nodes: Sequence[Any], end: int | None = None) -> None:
        self.convolutions = [n for n in nodes if _is_convolution(n)]
        self.arguments: list[Any] = []  # the images that are turned for it
        self.last: set[Any] = set()  # nodes that then lie so
        self._saved: list[float] = []
        behind = set() if end is None else set(self.convolutions[end:])
        before = set(self.convolutions) - behind
        for node in nodes if before else ():
            if node in before:
                self._add(node)
            elif node not in behind and _follows(node) and any(n in self.last for n in node.all_input_nodes):
                self.last.add(node)

    def _add(self, node: Any) -> None:
        image, weight = node.args[:2]
        is_first = image.op == "placeholder" and not _lies_last(image)
        if is_first and image not in self.arguments:
            self.arguments.append(image)
        if is_first or image in self.last:
            self.last.add(node)
            self._saved.append(_size(image) + _size(node) - _WEIGHT_COST * _size(weight))
        else:
            self._saved.append(0.0)

    def best_end(self) -> int:
        """How many of the convolutions are to have images that lie so."""
        saved = [0.0, *itertools.accumulate(self._saved)]
        end = max(range(len(saved)), key=saved.__getitem__)
        return end if saved[end] > _LEAST else 0


def _is_convolution(node: Any) -> bool:
    """Whether a node is a convolution of images by oneDNN: neither transposed nor of groups."""
    if node.target is not torch.ops.aten.convolution.default or node.args[6] or node.args[8] != 1:
        return False
    value = node.meta["val"]
    return value.ndim == 4 and value.device.type == "cpu" and value.dtype in _DTYPES and _shape(node)[1] > _FEW


def _lies_last(node: Any) -> bool:
    """Looks at sizes as they were when torch looked at them: a question to torch would be a guard."""
    return int(fx_graphs.known(node.meta["val"].stride()[1])) == 1 and _shape(node)[1] > 1


def _follows(node: Any) -> bool:
    if getattr(node.target, "__name__", "") == "getitem":
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in node.target.tags or node.target._schema.name.partition("::")[2] in _FOLLOWING


def _size(node: Any) -> int:
    return math.prod(_shape(node))


def _shape(node: Any) -> list[int]:
    return [int(fx_graphs.known(n)) for n in node.meta["val"].shape]
