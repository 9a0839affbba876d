"""Softmaxes in a joint graph of both passes. The backward pass makes them again, of their argument and of two numbers
of each row that the forward pass has anyway: its maximum and the sum of its exponentials.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import torch

_aten = torch.ops.aten
_SOFTMAXES = (_aten._softmax.default, _aten._log_softmax.default)
_HALF = (torch.float16, torch.bfloat16)


def make_again(graph: Any, kept: Set[Any], late: Set[Any]) -> None:
    """Puts maps of arguments and of rows' numbers in the place of softmaxes, for the backward pass alone.

    Args:
        graph: FX graph of both passes, which is changed.
        kept: nodes that the forward pass keeps: those stay as they are.
        late: the nodes that depend on gradients of results.
    """
    for node in list(graph.nodes):
        if node.target not in _SOFTMAXES or node in kept or node in late or node.meta["val"].ndim == 0:
            continue
        readers = _readers(node, late)
        if readers:
            with graph.inserting_before(node.next):
                again = _again(graph, node)
            for reader, same in readers:
                reader.replace_input_with(same, again)


def _readers(node: Any, late: Set[Any]) -> list[tuple[Any, Any]]:
    """Late nodes that read a node, and as what: autograd keeps results detached from themselves."""
    found, waiting = [], [node]
    while waiting:
        same = waiting.pop()
        found += [(u, same) for u in same.users if u in late]
        waiting += [u for u in same.users if u.target is _aten.detach.default]
    return found


def _again(graph: Any, node: Any) -> Any:
    x, dim, half_to_float = node.args
    dtype = x.meta["val"].dtype
    wide = _called(graph, _aten._to_copy.default, x, dtype=torch.float32) if dtype in _HALF else x
    distance = _called(graph, _aten.sub.Tensor, wide, _called(graph, _aten.amax.default, wide, [dim], True))
    exponentials = _called(graph, _aten.exp.default, distance)
    total = _called(graph, _aten.sum.dim_IntList, exponentials, [dim], True)
    if node.target is _SOFTMAXES[0]:
        made = _called(graph, _aten.div.Tensor, exponentials, total)
    else:
        made = _called(graph, _aten.sub.Tensor, distance, _called(graph, _aten.log.default, total))
    narrows = dtype in _HALF and not half_to_float
    return _called(graph, _aten._to_copy.default, made, dtype=dtype) if narrows else made


def _called(graph: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    """A node, and its tensor without data."""
    node = graph.call_function(op, args, kwargs)
    values = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args]
    with values[0].fake_mode:
        node.meta["val"] = op(*values, **kwargs)
    return node
