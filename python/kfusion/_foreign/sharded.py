"""A call with torch's DTensors: each rank computes its shards, and reductions along sharded axes are all-reduced.

Maps and functions of rows need no communication where the rows are whole. Where a rank would need elements of others to
go on with its own, the call is refused: what to redistribute, and when, is the caller's to decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from .._arrays import dtype_name
from .._graph.axes import Axes, axes_of, call_of, meeting
from .._graph.blocks import Cut, value_of
from .._spec import Spec, is_array
from .block_task import task_of
from .calls import Operands, graph_of

_REDUCED_BY = {"sum": "sum", "mean": "sum", "prod": "product", "max": "max", "min": "min", "any": "max", "all": "min"}
_DIFFERENTIABLE = ("sum", "mean", "moments")


class Operand(NamedTuple):
    """A DTensor, and what messages call it."""

    name: str
    tensor: DTensor

    def must(self, who: str, why: str, placements: Sequence[Any]) -> ValueError:
        """The error for one that lies in a wrong way."""
        written = ", ".join(f"{type(p).__name__}({p.dim if isinstance(p, Shard) else ''})" for p in placements)
        return ValueError(f"{who}: {why}: pass {self.name}.redistribute(placements=[{written}])")


def call(fused: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The function's results as DTensors on the mesh of its arguments.

    Raises:
        TypeError: plain tensors beside DTensors, or another mesh.
        ValueError: an axis is sharded that a call needs all of.
    """
    operands = Operands(fused, args, kwargs, is_array)
    who = operands.who
    mesh = next(x.device_mesh for x in operands.arrays if isinstance(x, DTensor))
    for name, x in zip(operands.names, operands.arrays, strict=True):
        if not isinstance(x, DTensor):
            raise TypeError(f"{who}: {name} must be a DTensor as the others are, got {type(x).__name__}: pass "
                            f"distribute_tensor({name}, mesh, [Replicate()])")  # fmt: skip
        if x.device_mesh != mesh:
            raise TypeError(f"{who}: {name} is on another mesh ({x.device_mesh}) than the others ({mesh})")
    traced = operands.traced([_spec(x) for x in operands.arrays])
    graph = graph_of(traced)
    given = [operands.arrays[i.argument] if i.argument >= 0 else _replicated(i.array, mesh) for i in traced.inputs]
    nodes = [i for i, n in enumerate(graph["nodes"]) if n["op"] == "input"]
    inputs = {i: Operand(str(graph["nodes"][i]["name"]), x) for i, x in zip(nodes, given, strict=True)}
    return traced.returned(_Call(fused, who, graph, inputs, mesh).results())


def _spec(x: DTensor) -> Spec:
    return Spec(tuple(x.shape), dtype_name(x), "torch", _place(x.device))


def _place(device: Any) -> str:
    return "cpu" if device.type == "cpu" else f"cuda:{torch.cuda.current_device()}"


def _replicated(x: Any, mesh: Any) -> DTensor:
    """A tensor that the function names, the same on every rank."""
    if isinstance(x, DTensor):
        return x
    return DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)


class _Call:
    """One call on one rank. `on` says for each label that is split along which dimension of the mesh it is."""

    def __init__(self, fused: Any, who: str, graph: Mapping[str, Any], inputs: dict[int, Operand], mesh: Any) -> None:
        self._fused, self._who, self._mesh = fused, who, mesh
        self._nodes = graph["nodes"]
        axes = axes_of(graph)
        self._on = self._found(axes, inputs)
        self._require_whole(axes, inputs)
        self._inputs = {i: self._aligned(axes, i, x) for i, x in inputs.items()}
        self._require_apart(axes, graph)
        self._cut = Cut(graph, self._on, axes)
        self._require_no_exchange()
        self._known: dict[int, DTensor] = {i: x.tensor for i, x in self._inputs.items()}

    # ---- where things lie ----

    def _found(self, axes: Axes, inputs: Mapping[int, Operand]) -> dict[int, int]:
        found: dict[int, int] = {}
        for i, x in inputs.items():
            placements: list[Any] = list(x.tensor.placements)
            for m, placement in enumerate(placements):
                if type(placement) not in (Shard, Replicate):
                    raise x.must(self._who, f"{x.name} lies as {placement}", self._without(x, m))
                if type(placement) is Replicate or self._mesh.size(m) == 1:
                    continue
                axis = placement.dim % x.tensor.ndim
                label = axes.labels[i][axis]
                if x.tensor.shape[axis] == 1 or found.setdefault(label, m) != m:
                    why = f"axis {axis} of {x.name} cannot be sharded along dimension {m} of the mesh"
                    raise x.must(self._who, why, self._without(x, m))
        return found

    def _without(self, x: Operand, *dims: int) -> list[Any]:
        return [Replicate() if m in dims or type(p) not in (Shard, Replicate) else p
                for m, p in enumerate(x.tensor.placements)]  # fmt: skip

    def _require_whole(self, axes: Axes, inputs: Mapping[int, Operand]) -> None:
        for label, why in axes.whole.items():
            self._refuse_if_split(axes, inputs, label, f"{why}")
        for reduced in axes.reduced.values():
            for label in self._on.keys() & set(reduced):
                x, axis = _holder(axes, inputs, label)
                ranks, n = self._mesh.size(self._on[label]), x.tensor.shape[axis]
                if n == 0 or math.ceil(n / math.ceil(n / ranks)) < ranks:
                    why = f"axis {axis} of {x.name} is reduced, and a rank has no element of it"
                    raise x.must(self._who, why, self._without(x, self._on[label]))

    def _refuse_if_split(self, axes: Axes, inputs: Mapping[int, Operand], label: int, why: str) -> None:
        if label in self._on:
            x, axis = _holder(axes, inputs, label)
            what = f"axis {axis} of {x.name} is sharded, but {why}"
            raise x.must(self._who, what, self._without(x, self._on[label]))

    def _aligned(self, axes: Axes, i: int, x: Operand) -> Operand:
        """The operand with its shards where those of others are: a replicated one is cut without communication."""
        wanted: list[Any] = list(x.tensor.placements)
        for axis, label in enumerate(axes.labels[i]):
            m = self._on.get(label)
            if m is None or wanted[m] == Shard(axis):
                continue
            if type(wanted[m]) is not Replicate:
                others = [Shard(axis) if k == m else p for k, p in enumerate(wanted)]
                why = f"axis {wanted[m].dim} of {x.name} lies on the mesh where axis {axis} meets shards of others"
                raise x.must(self._who, why, others)
            wanted[m] = Shard(axis)
        same = wanted == list(x.tensor.placements)
        return x if same else Operand(x.name, x.tensor.redistribute(placements=wanted))

    def _require_apart(self, axes: Axes, graph: Mapping[str, Any]) -> None:
        """No value may have two axes on one dimension of the mesh: nobody would compute most of its blocks."""
        if (found := meeting(axes, self._on)) is not None:
            node, other, label = found
            x, axis = _holder(axes, self._inputs, other)
            where = f"which lies along the same dimension {self._on[label]} of the mesh"
            what = f"{call_of(self._nodes[node], graph['stages'])} joins it with axis {axis} of {x.name}, {where}"
            self._refuse_if_split(axes, self._inputs, label, what)

    def _require_no_exchange(self) -> None:
        for label, call in self._cut.needed_again():
            what = f"{call} needs all of it to go on with each element"
            self._refuse_if_split(self._cut.axes, self._inputs, label, what)

    def _placements(self, node: int) -> list[Any]:
        found: list[Any] = [Replicate()] * self._mesh.ndim
        for axis, label in enumerate(self._cut.axes.labels[node]):
            if label in self._on:
                found[self._on[label]] = Shard(axis)
        return found

    # ---- computing ----

    def results(self) -> list[Any]:
        """The outputs of the graph."""
        outputs = self._cut.outputs
        read = {i for part in self._cut.parts for i in part.inputs}
        for part in self._cut.parts:
            task = task_of(self._fused, self._cut.function(part, self._fused.__name__).text)
            made = task.results(*(self._local(i, part.grid) for i in part.inputs))
            for node, local in zip(part.outputs, made, strict=False):
                self._known[node] = self._global(node, local, self._placements(node))
            for node, state in zip(part.states, made[len(part.outputs) :], strict=True):
                self._known[node] = self._join(node, state, is_read=node in read)
        return [self._known[node] for node in outputs]

    def _local(self, node: int, grid: Sequence[int]) -> Any:
        """This rank's part. The gradient of what ranks have in common, and use differently, is a sum of theirs."""
        x, used = self._known[node], {self._on[label] for label in grid}
        lie = [Partial() if type(p) is Replicate and m in used else p for m, p in enumerate(x.placements)]
        return x.to_local(grad_placements=lie)

    def _global(self, node: int, local: Any, placements: Sequence[Any]) -> DTensor:
        shape = self._nodes[node]["shape"]
        order = sorted(range(len(shape)), key=lambda axis: (local.stride(axis), local.shape[axis]), reverse=True)
        strides, step = [0] * len(shape), 1
        for axis in reversed(order):
            strides[axis], step = step, step * max(shape[axis], 1)
        return DTensor.from_local(
            local, self._mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(strides)
        )

    def _join(self, node: int, state: Any, *, is_read: bool) -> DTensor:
        join = self._cut.joins[node]
        tensors = state[1:] if join.op == "moments" else [state]
        if join.op not in _DIFFERENTIABLE and any(t.requires_grad for t in tensors):
            raise RuntimeError(f"{self._who}: {join.op} along a sharded axis has no gradient: redistribute, or call it "
                               "under torch.no_grad()")  # fmt: skip
        dtype = getattr(torch, join.dtype)
        if join.op == "moments":
            return self._converted(node, value_of(join, self._moments(node, *state)), dtype)
        if join.op in ("any", "all"):
            state = state.to(torch.int32)
        if join.op in ("sum", "mean"):
            state = value_of(join, state)
            if state.dtype == dtype and not is_read:  # as torch's own sums and products lie
                return self._global(node, state, self._over(node, "sum"))
        joined = self._reduced(node, state, _REDUCED_BY[join.op])
        if join.op in ("max", "min") and state.is_floating_point():  # Gloo compares, and so loses NaN
            is_nan = self._reduced(node, state.isnan().to(torch.int32), "max")
            joined = torch.where(is_nan > 0, torch.nan, joined)
        return self._converted(node, joined, dtype)

    def _over(self, node: int, how: str) -> list[Any]:
        """The placements of a value whose ranks have a part each of what it sums."""
        lie = self._placements(node)
        for label in self._cut.axes.reduced[node]:
            if label in self._on:
                lie[self._on[label]] = Partial(how)
        return lie

    def _reduced(self, node: int, local: Any, how: str, *, differs: bool = False) -> Any:
        """All ranks' values joined, on every rank; `differs`: what is computed of it is not."""
        over = self._over(node, how)
        summed = self._global(node, local, over).redistribute(placements=self._placements(node))
        lie = [Partial() if differs and type(p) is Partial else q for p, q in zip(over, summed.placements, strict=True)]
        return summed.to_local(grad_placements=lie)

    def _moments(self, node: int, count: int, mean: Any, squares: Any) -> tuple[int, Any, Any]:
        """Chan's formula, for all ranks at once."""
        n = self._nodes[node]
        shape = self._nodes[self._cut.joins[node].argument]["shape"]
        total = math.prod(shape[axis] for axis in n["axes"])
        middle = self._reduced(node, mean * (count / total), "sum", differs=True)
        apart = mean - middle
        return total, middle, self._reduced(node, squares + apart * apart * count, "sum")

    def _converted(self, node: int, local: Any, dtype: Any) -> DTensor:
        return self._global(node, local.to(dtype), self._placements(node))


def _holder(axes: Axes, inputs: Mapping[int, Operand], label: int) -> tuple[Operand, int]:
    """An operand that has a label, sharded along it where one is, and its axis."""
    found = [(x, axis) for i, x in inputs.items() if (axis := axes.axis_of(i, label)) is not None]
    return next((f for f in found if Shard(f[1]) in f[0].tensor.placements), found[0])
