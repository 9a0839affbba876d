"""A graph, node by node, in torch, whose autograd then says what gradients must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import kfusion as kf
from kfusion import _core
from kfusion._compare import libraries

OPS = {row["name"]: row for row in _core.op_table()}
_OTHER_NAMES = {"equal": "eq", "power": "pow", "invert": "bitwise_not", "rint": "round"}
MAPS: dict[str, Callable[..., torch.Tensor]] = {
    "cbrt": lambda x: torch.sign(x) * torch.pow(torch.abs(x), 1 / 3),
    "where": lambda c, x, y: torch.where(c.bool(), x, y),
    "clip": lambda x, y, z: torch.clamp(x, y, z),
    "relu": torch.relu,
    "left_shift": torch.bitwise_left_shift,
    "right_shift": torch.bitwise_right_shift,
    "arctan2": torch.arctan2,
    "philox": libraries.Torch("cpu").function("philox"),
}
REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.amax,
    "min": torch.amin,
}


def map_of(op: str) -> Callable[..., torch.Tensor]:
    """torch's function for a row of the table."""
    return MAPS.get(op) or getattr(torch, _OTHER_NAMES.get(op, op))  # type: ignore[no-any-return]


def _reduced(n: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    if n["op"] in REDUCTIONS:
        return REDUCTIONS[n["op"]](x, dim=tuple(n["axes"]), keepdim=n["keepdims"])
    for axis in reversed(n["axes"]):
        x = getattr(torch, n["op"])(x, dim=axis, keepdim=n["keepdims"])
    return x


def _sliced(n: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    for axis, (start, step, extent) in enumerate(zip(n["start"], n["step"], n["shape"], strict=True)):
        x = x.index_select(axis, start + step * torch.arange(extent))
    return x


def _taken(n: Mapping[str, Any], x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    axis = n["axis"]
    indices = torch.where(indices < 0, indices + x.shape[axis], indices).long()
    if n["op"] == "take_along_axis":
        return torch.take_along_dim(x, indices, axis)
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return x.index_select(axis, indices.flatten()).reshape(shape)


def _constant(n: Mapping[str, Any], *_: torch.Tensor) -> torch.Tensor:
    return torch.tensor(float(n["value"]) if isinstance(n["value"], str) else n["value"], dtype=_dtype(n))


def _iota(n: Mapping[str, Any], *_: torch.Tensor) -> torch.Tensor:
    axis, shape = n["axis"], n["shape"]
    line = torch.arange(shape[axis], dtype=_dtype(n)).reshape([-1 if d == axis else 1 for d in range(len(shape))])
    return line.expand(shape)


NODES: dict[str, Callable[..., torch.Tensor]] = {
    "constant": _constant,
    "iota": _iota,
    "cast": lambda n, x: x.to(_dtype(n)),
    "transpose": lambda n, x: x.permute(n["axes"]),
    "reshape": lambda n, x: x.reshape(n["shape"]),
    "slice": _sliced,
    "broadcast": lambda n, x: x.expand(n["shape"]),
    "matmul": lambda n, x, y: x @ y,
    "conv2d": lambda n, x, w: torch.conv2d(x, w, None, n["stride"], n["padding"], n["dilation"], n["groups"]),
    "take": _taken,
    "take_along_axis": _taken,
    "concatenate": lambda n, *parts: torch.cat(parts, n["axis"]),
}


def _dtype(n: Mapping[str, Any]) -> torch.dtype:
    return getattr(torch, n["dtype"])  # type: ignore[no-any-return]


def _node(n: Mapping[str, Any], arguments: Sequence[torch.Tensor]) -> torch.Tensor:
    kind = OPS[n["op"]]["kind"]
    if kind == "map":
        return map_of(n["op"])(*arguments)
    if kind == "reduce":
        return _reduced(n, *arguments)
    return NODES[n["op"]](n, *arguments)


def run(graph: kf.Graph, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of a graph without calls of the array library."""
    plain, given = graph.to_dict(), iter(inputs)
    values: list[torch.Tensor] = []
    for n in plain["nodes"]:
        values.append(next(given) if n["op"] == "input" else _node(n, [values[a] for a in n["arguments"]]))
    return [values[o["node"]] for o in plain["outputs"]]
