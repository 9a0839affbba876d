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
_MOST_PLANS = 64  # of a function
_DIFFERENTIABLE = ("sum", "mean", "moments")


class Operand(NamedTuple):
    """How a DTensor lies, and what messages call it."""

    name: str
    shape: tuple[int, ...]
    placements: tuple[Any, ...]

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
    mesh = _mesh(operands)
    plan = _planned(operands, mesh)
    given = [operands.arrays[i.argument] if i.argument >= 0 else _replicated(i.array, mesh) for i in plan.traced.inputs]
    differentiates = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    with torch.set_grad_enabled(differentiates):  # without, torch unwraps DTensors in a fraction of the time
        return plan.traced.returned(_Run(plan, given).results())


def _mesh(operands: Operands) -> Any:
    mesh = next(x.device_mesh for x in operands.arrays if isinstance(x, DTensor))
    for name, x in zip(operands.names, operands.arrays, strict=True):
        if not isinstance(x, DTensor):
            raise TypeError(f"{operands.who}: {name} must be a DTensor as the others are, got {type(x).__name__}: pass "
                            f"distribute_tensor({name}, mesh, [Replicate()])")  # fmt: skip
        if x.device_mesh is not mesh and x.device_mesh != mesh:
            raise TypeError(f"{operands.who}: {name} is on another mesh ({x.device_mesh}) than the others ({mesh})")
    return mesh


def _planned(operands: Operands, mesh: Any) -> _Plan:
    """The plan of such a call, made again where what the function names is bound to something else."""
    fused, environment = operands.fused, operands.fused._environment()
    kept: dict[Any, tuple[int, _Plan]] = fused.__dict__.setdefault("_sharded", {})
    lie = tuple((_spec(x), x.placements) for x in operands.arrays)
    structure = operands.structure
    key = None if structure is None else (structure, lie, mesh, _torch_state(mesh.device_type))
    if key is not None and (known := kept.get(key)) is not None and known[0] == environment:
        return known[1]
    plan = _Plan(operands, lie, mesh)
    if key is not None and fused._environment() == environment:
        while len(kept) >= _MOST_PLANS:
            kept.pop(next(iter(kept)), None)
        kept[key] = environment, plan
    return plan


def _torch_state(device_type: str) -> tuple[Any, ...]:
    """What else torch's functions depend on."""
    casts = torch.is_autocast_enabled(device_type) and torch.get_autocast_dtype(device_type)
    return casts, torch.is_grad_enabled(), torch.get_default_dtype()


def _spec(x: DTensor) -> Spec:
    return Spec(tuple(x.shape), dtype_name(x), "torch", _place(x.device))


def _place(device: Any) -> str:
    return "cpu" if device.type == "cpu" else f"cuda:{torch.cuda.current_device()}"


def _replicated(x: Any, mesh: Any) -> DTensor:
    """A tensor that the function names, the same on every rank."""
    if isinstance(x, DTensor):
        return x
    return DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)


class _Plan:
    """What each rank computes of its shards. `on` says for each label that is split along which dimension of the mesh;
    `aligned` how inputs are laid before, where they lie otherwise.
    """

    def __init__(self, operands: Operands, lie: Sequence[tuple[Spec, tuple[Any, ...]]], mesh: Any) -> None:
        self.who, self.mesh = operands.who, mesh
        self.traced = operands.traced([spec for spec, _ in lie])
        graph = graph_of(self.traced)
        self.nodes = graph["nodes"]
        found = [i for i, n in enumerate(self.nodes) if n["op"] == "input"]
        inputs = {i: self._operand(i, x, lie) for i, x in zip(found, self.traced.inputs, strict=True)}
        axes = axes_of(graph)
        self.on = self._found(axes, inputs)
        self._require_whole(axes, inputs)
        self.aligned = {i: self._alignment(axes, i, x) for i, x in inputs.items()}
        inputs = {i: x._replace(placements=self.aligned[i] or x.placements) for i, x in inputs.items()}
        self._require_apart(axes, graph, inputs)
        self.cut = Cut(graph, self.on, axes)
        self._require_no_exchange(inputs)
        fused = operands.fused
        self.tasks = [task_of(fused, self.cut.function(part, fused.__name__).text) for part in self.cut.parts]
        self.read = {i for part in self.cut.parts for i in part.inputs}

    def _operand(self, node: int, x: Any, lie: Sequence[tuple[Spec, tuple[Any, ...]]]) -> Operand:
        name, shape = str(self.nodes[node]["name"]), tuple(self.nodes[node]["shape"])
        if x.argument >= 0:
            return Operand(name, shape, lie[x.argument][1])
        return Operand(name, shape, _replicated(x.array, self.mesh).placements)

    # ---- where things lie ----

    def _found(self, axes: Axes, inputs: Mapping[int, Operand]) -> dict[int, int]:
        found: dict[int, int] = {}
        for i, x in inputs.items():
            for m, placement in enumerate(x.placements):
                if type(placement) not in (Shard, Replicate):
                    raise x.must(self.who, f"{x.name} lies as {placement}", self._without(x, m))
                if type(placement) is Replicate or self.mesh.size(m) == 1:
                    continue
                axis = placement.dim % len(x.shape)
                label = axes.labels[i][axis]
                if x.shape[axis] == 1 or found.setdefault(label, m) != m:
                    why = f"axis {axis} of {x.name} cannot be sharded along dimension {m} of the mesh"
                    raise x.must(self.who, why, self._without(x, m))
        return found

    def _without(self, x: Operand, *dims: int) -> list[Any]:
        return [Replicate() if m in dims or type(p) not in (Shard, Replicate) else p
                for m, p in enumerate(x.placements)]  # fmt: skip

    def _require_whole(self, axes: Axes, inputs: Mapping[int, Operand]) -> None:
        for label, why in axes.whole.items():
            self._refuse_if_split(axes, inputs, label, f"{why}")
        for reduced in axes.reduced.values():
            for label in self.on.keys() & set(reduced):
                x, axis = _holder(axes, inputs, label)
                ranks, n = self.mesh.size(self.on[label]), x.shape[axis]
                if n == 0 or math.ceil(n / math.ceil(n / ranks)) < ranks:
                    why = f"axis {axis} of {x.name} is reduced, and a rank has no element of it"
                    raise x.must(self.who, why, self._without(x, self.on[label]))

    def _refuse_if_split(self, axes: Axes, inputs: Mapping[int, Operand], label: int, why: str) -> None:
        if label in self.on:
            x, axis = _holder(axes, inputs, label)
            what = f"axis {axis} of {x.name} is sharded, but {why}"
            raise x.must(self.who, what, self._without(x, self.on[label]))

    def _alignment(self, axes: Axes, i: int, x: Operand) -> tuple[Any, ...] | None:
        """Where an input's shards must be for those of others: a replicated one is cut without communication."""
        wanted: list[Any] = list(x.placements)
        for axis, label in enumerate(axes.labels[i]):
            m = self.on.get(label)
            if m is None or wanted[m] == Shard(axis):
                continue
            if type(wanted[m]) is not Replicate:
                others = [Shard(axis) if k == m else p for k, p in enumerate(wanted)]
                why = f"axis {wanted[m].dim} of {x.name} lies on the mesh where axis {axis} meets shards of others"
                raise x.must(self.who, why, others)
            wanted[m] = Shard(axis)
        return None if wanted == list(x.placements) else tuple(wanted)

    def _require_apart(self, axes: Axes, graph: Mapping[str, Any], inputs: Mapping[int, Operand]) -> None:
        """No value may have two axes on one dimension of the mesh: nobody would compute most of its blocks."""
        if (found := meeting(axes, self.on)) is not None:
            node, other, label = found
            x, axis = _holder(axes, inputs, other)
            where = f"which lies along the same dimension {self.on[label]} of the mesh"
            what = f"{call_of(self.nodes[node], graph['stages'])} joins it with axis {axis} of {x.name}, {where}"
            self._refuse_if_split(axes, inputs, label, what)

    def _require_no_exchange(self, inputs: Mapping[int, Operand]) -> None:
        for label, call in self.cut.needed_again():
            what = f"{call} needs all of it to go on with each element"
            self._refuse_if_split(self.cut.axes, inputs, label, what)

    def placements(self, node: int) -> list[Any]:
        """How a value lies."""
        found: list[Any] = [Replicate()] * self.mesh.ndim
        for axis, label in enumerate(self.cut.axes.labels[node]):
            if label in self.on:
                found[self.on[label]] = Shard(axis)
        return found

    def over(self, node: int, how: str) -> list[Any]:
        """The placements of a value whose ranks have a part each of what it sums."""
        lie = self.placements(node)
        for label in self.cut.axes.reduced[node]:
            if label in self.on:
                lie[self.on[label]] = Partial(how)
        return lie


class _Run:
    """One call on one rank."""

    def __init__(self, plan: _Plan, given: Sequence[DTensor]) -> None:
        self._plan, self._who, self._cut, self._nodes = plan, plan.who, plan.cut, plan.nodes
        self._known: dict[int, DTensor] = {}
        for (i, wanted), x in zip(plan.aligned.items(), given, strict=True):
            self._known[i] = x if wanted is None else x.redistribute(placements=wanted)

    def results(self) -> list[Any]:
        """The outputs of the graph."""
        plan = self._plan
        for part, task in zip(self._cut.parts, plan.tasks, strict=True):
            made = task.results(*(self._local(i, part.grid) for i in part.inputs))
            for node, local in zip(part.outputs, made, strict=False):
                self._known[node] = self._global(node, local, plan.placements(node))
            for node, state in zip(part.states, made[len(part.outputs) :], strict=True):
                self._known[node] = self._join(node, state, is_read=node in plan.read)
        return [self._known[node] for node in self._cut.outputs]

    def _local(self, node: int, grid: Sequence[int]) -> Any:
        """This rank's part. The gradient of what ranks have in common, and use differently, is a sum of theirs."""
        x, used = self._known[node], {self._plan.on[label] for label in grid}
        lie = [Partial() if type(p) is Replicate and m in used else p for m, p in enumerate(x.placements)]
        return x.to_local(grad_placements=lie)

    def _global(self, node: int, local: Any, placements: Sequence[Any]) -> DTensor:
        shape = self._nodes[node]["shape"]
        order = sorted(range(len(shape)), key=lambda axis: (local.stride(axis), local.shape[axis]), reverse=True)
        strides, step = [0] * len(shape), 1
        for axis in reversed(order):
            strides[axis], step = step, step * max(shape[axis], 1)
        return DTensor.from_local(
            local, self._plan.mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(strides)
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
                return self._global(node, state, self._plan.over(node, "sum"))
        joined = self._reduced(node, state, _REDUCED_BY[join.op])
        if join.op in ("max", "min") and state.is_floating_point():  # Gloo compares, and so loses NaN
            is_nan = self._reduced(node, state.isnan().to(torch.int32), "max")
            joined = torch.where(is_nan > 0, torch.nan, joined)
        return self._converted(node, joined, dtype)

    def _reduced(self, node: int, local: Any, how: str, *, differs: bool = False) -> Any:
        """All ranks' values joined, on every rank; `differs`: what is computed of it is not."""
        over = self._plan.over(node, how)
        summed = self._global(node, local, over).redistribute(placements=self._plan.placements(node))
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
        return self._global(node, local.to(dtype), self._plan.placements(node))


def _holder(axes: Axes, inputs: Mapping[int, Operand], label: int) -> tuple[Operand, int]:
    """An operand that has a label, sharded along it where one is, and its axis."""
    found = [(x, axis) for i, x in inputs.items() if (axis := axes.axis_of(i, label)) is not None]
    return next((f for f in found if Shard(f[1]) in f[0].placements), found[0])
