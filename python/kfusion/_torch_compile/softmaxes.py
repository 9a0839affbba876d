"""Softmaxes in a joint graph of both passes. The backward pass makes them again, of their argument and of two numbers
of each row that the forward pass has anyway: its maximum and the sum of its exponentials. So the argument is kept in
their place, which is there anyway, and is often of fewer bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any

import torch

from .._tracing import fx_graphs

_aten = torch.ops.aten
_SOFTMAXES = (_aten._softmax.default, _aten._log_softmax.default)
_HALF = (torch.float16, torch.bfloat16)


class Softmaxes:
    """The softmaxes of one graph.

    Args:
        graph: FX graph of both passes.
        results: the nodes that the forward pass gives to the caller, who may write to them, as to the arguments.
        late: the nodes that depend on gradients of results.
        is_cheap: whether the backward pass computes a node again rather than have it kept.
    """

    def __init__(self, graph: Any, results: Iterable[Any], late: Set[Any], is_cheap: Callable[[Any], bool]) -> None:
        self._graph = graph
        self._late = late
        self._is_cheap = is_cheap
        self._of_caller = {_memory(r) for r in results}

    def make_again(self, kept: Set[Any]) -> None:
        """Puts maps of arguments and of rows' numbers in the place of softmaxes, for the backward pass alone. `kept`:
        those that the cut keeps stay as they are.
        """
        for node in list(self._graph.nodes):
            if node.target not in _SOFTMAXES or node in kept or node in self._late:
                continue
            same = _detached(node)
            readers = [(u, s) for s in same for u in s.users if u in self._late]
            if readers and self._is_worth_it(node, same):
                with self._graph.inserting_before(node.next):
                    again = _again(self._graph, node)
                for reader, read in readers:
                    reader.replace_input_with(read, again)

    def _is_worth_it(self, node: Any, same: Set[Any]) -> bool:
        """Not where the softmax is there anyway, for the caller or for what is made again of it, nor where its argument
        is the caller's, or is made again of more bytes than it has.
        """
        value = node.meta["val"]
        early = {u for s in same for u in s.users if u not in self._late and u not in same}
        is_there = any(u.op == "output" or fx_graphs.is_view(u) or self._is_cheap(u) for u in early)
        if value.ndim == 0 or 0 in value.shape or is_there:
            return False
        roots = self._roots(node.args[0])
        if any(r.op == "placeholder" or _memory(r) in self._of_caller for r in roots):
            return False
        of_roots = sum(fx_graphs.known(r.meta["val"].nbytes) for r in roots)
        return bool(of_roots <= fx_graphs.known(value.nbytes))

    def _roots(self, node: Any) -> set[Any]:
        """The tensors that a node is made again of."""
        waiting, seen, found = [node], set(), set()
        while waiting:
            n = waiting.pop()
            if n in seen or not (fx_graphs.is_tensor(n.meta.get("val")) or fx_graphs.is_view(n)):
                continue
            seen.add(n)
            if fx_graphs.is_view(n) or self._is_cheap(n):
                waiting += n.all_input_nodes
            else:
                found.add(n)
        return found


def _memory(node: Any) -> Any:
    """The node whose memory a node's tensor has."""
    node = fx_graphs.base(node)
    return _memory(node.args[0]) if node.target is _aten._unsafe_view.default else node


def _detached(node: Any) -> set[Any]:
    """A node, and as what autograd keeps it."""
    found, waiting = set(), [node]
    while waiting:
        found.add(same := waiting.pop())
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
    values = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args]
    with values[0].fake_mode:
        value = op(*values, **kwargs)
    node = graph.call_function(op, args, kwargs)
    node.meta["val"] = value
    return node
