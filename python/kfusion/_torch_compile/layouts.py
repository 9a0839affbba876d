"""Which convolutions on the CPU run on images whose channels lie innermost.

oneDNN computes such a convolution as it lies. Of images in C order it makes a copy in an order of its own, and turns the
result back. So a graph's convolutions begin with a weight that lies so: what they make of it follows, as do maps and
pools behind it (cpp/kfusion/lower/layouts.cpp), and results of the graph are laid as eager torch lays them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .._tracing import fx_graphs

_DTYPES = (torch.float32, torch.bfloat16)
_FEW = 4  # channels of a result below which nothing was gained
# Weights are turned in each call, which takes 0.09 ms a MB. Copying images takes as long, and much longer with many
# channels: one thread of a Zen 5.
_MOST_WEIGHTS = 0.5  # elements of weights for each one of images
_LIKE_MAPS = (
    "avg_pool2d",
    "max_pool2d_with_indices",
    "_adaptive_avg_pool2d",
    "_native_batch_norm_legit_no_training",
    "cat",
    "getitem",
)


def weights_to_turn(nodes: Sequence[Any], given: Sequence[Any]) -> list[int]:
    """The weights that are turned before a graph runs, by place among `given`: the nodes of its tensor arguments. A
    weight is written to between calls, in ways that no version counts: so each call turns it again.
    """
    convolutions = [n for n in nodes if _is_convolution(n)]
    images = sum(_size(n) + _size(n.args[0]) for n in convolutions)
    if sum(_size(n.args[1]) for n in convolutions) > _MOST_WEIGHTS * images:
        return []
    last: set[Any] = set()  # nodes whose channels lie innermost
    found: dict[Any, None] = {}
    for node in nodes:
        if node in convolutions:
            image, weight = node.args[:2]
            if image not in last and weight in given and _window(weight) > 1 and _shape(weight)[1] > 1:
                found[weight] = None
            last.add(node)
        elif _is_like_a_map(node) and any(n in last for n in node.all_input_nodes):
            last.add(node)
    return [given.index(w) for w in found]


def turned(tensors: Sequence[Any], places: Iterable[int]) -> list[Any]:
    """The tensors, those at the given places with their channels innermost."""
    made = list(tensors)
    for i in places:
        made[i] = made[i].contiguous(memory_format=torch.channels_last)
    return made


def _is_convolution(node: Any) -> bool:
    """Whether a node is a convolution of images by oneDNN: neither transposed nor of groups."""
    if node.target is not torch.ops.aten.convolution.default or node.args[6] or node.args[8] != 1:
        return False
    value = node.meta["val"]
    return value.ndim == 4 and value.device.type == "cpu" and value.dtype in _DTYPES and _shape(node)[1] > _FEW


def _is_like_a_map(node: Any) -> bool:
    if getattr(node.target, "__name__", "") == "getitem":
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in node.target.tags or node.target._schema.name.partition("::")[2] in _LIKE_MAPS


def _shape(node: Any) -> list[int]:
    return [int(fx_graphs.known(n)) for n in node.meta["val"].shape]


def _size(node: Any) -> int:
    return math.prod(_shape(node))


def _window(weight: Any) -> int:
    return math.prod(_shape(weight)[2:])
