"""A graph whose inputs have one more leading axis, node by node: what jax.vmap makes of a program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .. import _core
from .nodes import Node, Nodes


class _Batch(Nodes):
    """`has[i]`: whether what stands for node i of the other graph has the axis."""

    def __init__(self, stages: Sequence[dict[str, str]], size: int) -> None:
        super().__init__(stages)
        self.size = size
        self.has: list[bool] = []

    def flags(self, node: Node) -> list[bool]:
        """The flags of the arguments."""
        return [self.has[a] for a in node["arguments"]]

    def arguments(self, node: Node) -> list[int]:
        """What stands for the arguments."""
        return [self.made[a] for a in node["arguments"]]

    def inner(self, argument: int) -> list[int]:
        """The extents of what stands for an argument, without the axis."""
        return self.shape(self.made[argument])[self.has[argument] :]

    def aligned(self, argument: int, ndim: int, like: Node) -> int:
        """What stands for an argument with ndim axes beside the leading one, where it has that."""
        inner = self.inner(argument)
        if not self.has[argument]:
            return self.made[argument]
        return self.reshaped(self.made[argument], [self.size, *[1] * (ndim - len(inner)), *inner], like)

    def with_axis(self, argument: int, like: Node) -> int:
        """What stands for an argument, with the axis in any case."""
        return self.broadcast(self.made[argument], [self.size, *self.inner(argument)], like)

    def outer(self, node: Node) -> list[int]:
        """The extents of a node, behind the axis."""
        return [self.size, *node["shape"]]

    def transposed(self, node: int, axes: Sequence[int], like: Node) -> int:
        """Axis i of the result is axis axes[i]."""
        shape = self.shape(node)
        like = like | {"dtype": self.nodes[node]["dtype"]}
        return self.add("transpose", [node], [shape[a] for a in axes], like, axes=list(axes))


def batched(
    graph: dict[str, Any], stops: Sequence[int], flags: Sequence[bool], size: int
) -> tuple[dict[str, Any], list[int], tuple[bool, ...]]:
    """The graph of inputs with a leading axis where `flags` say so; its stops; which outputs have the axis.

    Raises:
        NotImplementedError: a node is a call of the array library.
    """
    made = _Batch(graph["stages"], size)
    given = iter(flags)
    for node in graph["nodes"]:
        has = next(given) if node["op"] == "input" else any(made.flags(node))
        made.made.append(_batched(made, node) if has else made.copy(node))
        made.has.append(has)
    made.stops = {made.made[s] for s in stops}
    outputs = [o["node"] for o in graph["outputs"]]
    return *made.closed([made.made[o] for o in outputs]), tuple(made.has[o] for o in outputs)


def _batched(b: _Batch, node: Node) -> int:
    rule = _RULES.get(node["op"])
    if rule is not None:
        return rule(b, node)
    if node["op"] in ("library_call", "library_result", "partial_sums"):
        raise NotImplementedError(f"kfusion: {node['op']} has no batching rule")
    return _behind(b, node)


def _behind(b: _Batch, node: Node) -> int:
    """The op itself. Arguments that broadcast need no axis, others of several do."""
    if node["op"] in ("concatenate", "take_along_axis"):
        arguments = [b.with_axis(a, node) for a in node["arguments"]]
    else:
        broadcasts = node["op"] == "broadcast" or len(node["arguments"]) > 1
        arguments = [b.aligned(a, len(node["shape"]) if broadcasts else 0, node) for a in node["arguments"]]
    b.nodes.append(_core.behind_axis(node, b.size) | {"arguments": arguments})
    return len(b.nodes) - 1


def _matmul(b: _Batch, node: Node) -> int:
    """Factors become matrices with as many leading axes as both have."""
    x, y = node["arguments"]
    rows, columns = b.inner(x), b.inner(y)
    left = rows if len(rows) > 1 else [1, *rows]
    right = columns if len(columns) > 1 else [*columns, 1]
    ndim = max(len(left), len(right))

    def factor(argument: int, matrices: list[int]) -> int:
        if not b.has[argument]:
            return b.reshaped(b.made[argument], matrices, node)
        shape = [b.size, *[1] * (ndim - len(matrices)), *matrices]
        return b.reshaped(b.made[argument], shape, node)

    leading = node["shape"][: len(node["shape"]) - (len(rows) > 1) - (len(columns) > 1)]
    shape = [b.size, *leading, left[-2], right[-1]]
    product = b.add("matmul", [factor(x, left), factor(y, right)], shape, node)
    return b.reshaped(product, b.outer(node), node)


def _conv2d(b: _Batch, node: Node) -> int:
    """More images, or, where the filters differ, more groups."""
    x, w = node["arguments"]
    keys = ("stride", "padding", "dilation")
    attributes = {k: node[k] for k in keys}
    n, o, *rest = node["shape"]
    if not b.has[w]:
        shape = [b.size * n, *b.inner(x)[1:]]
        images = b.reshaped(b.made[x], shape, node)
        made = b.add("conv2d", [images, b.made[w]], [shape[0], o, *rest], node, groups=node["groups"], **attributes)
        return b.reshaped(made, b.outer(node), node)
    images = b.with_axis(x, node)
    _, _, c, h, width = b.shape(images)
    turned = b.transposed(images, [1, 0, 2, 3, 4], node)
    images = b.reshaped(turned, [n, b.size * c, h, width], node)
    filters = b.reshaped(b.made[w], [b.size * o, *b.inner(w)[1:]], node)
    groups = b.size * node["groups"]
    made = b.add("conv2d", [images, filters], [n, b.size * o, *rest], node, groups=groups, **attributes)
    return b.transposed(b.reshaped(made, [n, b.size, o, *rest], node), [1, 0, 2, 3, 4], node)


def _take(b: _Batch, node: Node) -> int:
    x, indices = node["arguments"]
    axis, how = node["axis"], {"nonnegative": node["nonnegative"]}
    if not b.has[indices]:
        return b.add("take", b.arguments(node), b.outer(node), node, axis=axis + 1, **how)
    if not b.has[x]:
        shape = list(node["shape"])
        shape.insert(axis, b.size)
        made = b.add("take", b.arguments(node), shape, node, axis=axis, **how)
        return b.transposed(made, [axis, *(i for i in range(len(shape)) if i != axis)], node)
    inner, where = b.inner(x), b.inner(indices)
    before, after = math.prod(inner[:axis]), math.prod(inner[axis + 1 :])
    table = b.reshaped(b.made[x], [b.size, before, inner[axis], after], node)
    count = math.prod(where)
    shape = [b.size, before, count, after]
    positions = b.broadcast(b.reshaped(b.made[indices], [b.size, 1, count, 1], node), shape, node)
    return b.reshaped(b.add("take_along_axis", [table, positions], shape, node, axis=2, **how), b.outer(node), node)


_RULES: dict[str, Callable[[_Batch, Node], int]] = {
    "matmul": _matmul,
    "conv2d": _conv2d,
    "take": _take,
}
