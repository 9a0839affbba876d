"""Where a joint graph of both passes is cut: what the forward pass keeps for the backward pass.

kfusion's minimal cut of the forward pass and its gradients (cpp/kfusion/grad/joint.hpp) says which values are worth
keeping. The backward pass here is torch's, which reads others too: what it reads is computed again from what is kept,
as far as that takes maps and views alone. Anything else that it reads is kept. So each choice of values is a sound one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._functorch import partitioners
from torch.utils._python_dispatch import _disable_current_modes

from .._graph.tracer import current
from .._graph.values import Traced
from .._spec import DTYPES, FLOATS, Spec
from .._tracing import fx_graphs
from .._tracing.dtype_names import name_of_dtype
from .._tracing.trace import trace
from .softmaxes import Softmaxes

_log = logging.getLogger(__name__)
# Maps beside what torch calls pointwise.
_MAPS = (
    "_unsafe_view",
    "clone",
    "_to_copy",
    "full",
    "full_like",
    "zeros_like",
    "ones_like",
    "scalar_tensor",
    "zeros",
    "ones",
    "arange",
)


def partition(joint: Any, inputs: Sequence[Any], *, num_fwd_outputs: int, **more: Any) -> tuple[Any, Any]:
    """The graphs of the forward and the backward pass, as AOTAutograd asks for them.

    Args:
        joint: the graph of both.
        inputs: its arguments without data.
        num_fwd_outputs: how many of its results are the forward pass's.
        more: for torch's own partitioner, which is asked where checkpoints say what is computed again, and where a
            gradient is known to torch alone.
    """
    if not partitioners.has_recomputable_ops(joint):
        try:
            joint.graph.eliminate_dead_code()
            values, sizes = _Joint(joint, num_fwd_outputs).saved()
            made = partitioners._extract_fwd_bwd_modules(joint, values, sizes, num_fwd_outputs=num_fwd_outputs)
            return made[0], made[1]
        except Exception as error:
            _log.info("kfusion leaves the choice of what is kept to torch: %s", error)
    made = partitioners.min_cut_rematerialization_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **more)
    return made[0], made[1]


class _Joint:
    """A joint graph, its nodes told apart by whether they depend on gradients of results."""

    def __init__(self, joint: Any, results: int) -> None:
        self._graph = joint.graph
        self._constants = fx_graphs.constants(joint)
        self._nodes = list(joint.graph.nodes)
        self._placeholders = [n for n in self._nodes if n.op == "placeholder"]
        outputs = self._nodes[-1].args[0]
        self._results = [n for n in outputs[:results] if isinstance(n, torch.fx.Node)]
        self._gradients = outputs[results:]
        late = {n for n in self._placeholders if "tangents" in n.name}
        for node in self._nodes:
            if any(n in late for n in node.all_input_nodes):
                late.add(node)
        self._late = late - {self._nodes[-1]}
        self._primals = [n for n in self._placeholders if n not in late]
        self._written = _written(self._nodes)

    def saved(self) -> tuple[list[Any], list[Any]]:
        """The tensors and the sizes that the backward pass is given."""
        wanted = [n for n in self._gradients if isinstance(n, torch.fx.Node)]
        backward = _ancestors(wanted) & self._late
        kept = self._kept()
        Softmaxes(self._graph, self._results, self._late, self._is_cheap).make_again(kept)
        read = {n for b in backward for n in b.all_input_nodes} | set(wanted)
        values: dict[Any, None] = {}
        sizes: dict[Any, None] = {}
        waiting, seen = [n for n in read if n not in self._late], set()
        while waiting:
            node = waiting.pop()
            if node in seen or node.op == "get_attr":
                continue
            seen.add(node)
            if fx_graphs.is_view(node) and node not in kept:
                waiting += node.all_input_nodes
            elif not fx_graphs.is_tensor(node.meta.get("val")):
                sizes[node] = None
            elif node.op == "placeholder" or node in kept or not self._is_cheap(node):
                values[node] = None
            else:
                waiting += node.all_input_nodes
        order = {n: i for i, n in enumerate(self._graph.nodes)}
        if any(isinstance(n.meta.get("val"), (tuple, list)) for n in sizes):
            raise NotImplementedError("several results are read as one")
        return sorted(values, key=order.__getitem__), sorted(sizes, key=order.__getitem__)

    def _is_cheap(self, node: Any) -> bool:
        """Whether the backward pass computes a tensor again: by a map, of what is still there then."""
        return _is_map(node) and not any(fx_graphs.base(n) in self._written for n in node.all_input_nodes)

    def _kept(self) -> set[Any]:
        """Nodes that kfusion's cut keeps, of those that are one of torch's operators each."""
        forward = _ancestors(self._results)
        tensors = [n for n in self._primals if n in forward and fx_graphs.is_tensor(n.meta["val"])]
        numbers = {n: fx_graphs.known(n.meta["val"]) for n in self._primals if n not in tensors}
        wanted = {p for p, g in zip(self._primals, self._gradients, strict=False) if isinstance(g, torch.fx.Node)}
        inside = [n for n in self._nodes if n in forward and n.op != "placeholder"]
        found: set[Any] = set()

        def function(*given: Any) -> Any:
            values = numbers | dict(zip(tensors, given, strict=True))
            fx_graphs.run(inside, values, self._constants)
            found.update(self._cut(values, [values[n] for n in tensors if n in wanted]))
            return tuple(v for r in self._results if isinstance(v := values[r], Traced))

        function.__name__ = "joint"
        specs = [_spec(n.meta["val"]) for n in tensors]
        with _disable_current_modes():  # AOTAutograd's, in which tensors are fake
            trace(function, *specs)
        return found

    def _cut(self, values: Mapping[Any, Any], wanted: Sequence[Any]) -> Iterable[Any]:
        tracer: Any = current.get()
        results = [v for r in self._results if isinstance(v := values[r], Traced) and v._dtype in FLOATS]
        floats = [v for v in wanted if isinstance(v, Traced) and v._dtype in FLOATS]
        nodes: dict[int, Any] = {}
        for node, value in values.items():
            if isinstance(value, Traced):
                nodes.setdefault(tracer.node(value), node)
        return [nodes[k] for k, _ in tracer.kept_for_backward(results, floats) if k in nodes]


def _ancestors(nodes: Iterable[Any]) -> set[Any]:
    waiting, found = list(nodes), set()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def _is_map(node: Any) -> bool:
    """Whether a tensor is made by a map, which draws no random numbers."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in op.tags:
        return False
    return torch.Tag.pointwise in op.tags or op._schema.name.partition("::")[2] in _MAPS


def _written(nodes: Sequence[Any]) -> set[Any]:
    """The arguments that the forward pass writes to, such as buffers: the backward pass would find something else. Of
    a torch that does not say which: none, and autograd refuses the backward pass.
    """
    said = [getattr(d, "mutated_input", None) for d in nodes[-1].meta.get("desc") or ()]
    written = {d for d in said if d is not None}
    return {n for n in nodes if n.op == "placeholder" and n.meta.get("desc") in written} if written else set()


def _spec(value: Any) -> Spec:
    dtype = name_of_dtype(value)
    if dtype not in DTYPES:
        raise NotImplementedError(f"a tensor of {dtype}")
    return Spec(tuple(map(fx_graphs.known, value.shape)), dtype, "torch", str(value.device))
