"""What is known when a model is traced, such as shapes, by NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .library import onnx
from .nodes import Node
from .values import integers, is_known

_BINARY = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Equal": np.equal,
    "Less": np.less,
    "Greater": np.greater,
    "And": np.logical_and,
    "Or": np.logical_or,
}


def folded(node: Node, inputs: list[Any]) -> np.ndarray | None:
    """The output of a node that computes with shapes; None for any other node, which onnx.reference runs."""
    if node.domain or None in [v if v is None else True for v in inputs]:
        return None
    if node.op in _BINARY and len(inputs) == 2 and inputs[0].dtype == inputs[1].dtype != object:
        with np.errstate(all="ignore"):
            return np.asarray(_BINARY[node.op](*inputs))
    build = _FOLDED.get(node.op)
    return None if build is None else build(node, *inputs)


def _concat(node: Node, *parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts, node.attr("axis"))


def _unsqueeze(node: Node, x: np.ndarray, axes: Any = None) -> np.ndarray:
    places = node.attr("axes") if axes is None else integers(axes)
    return np.expand_dims(x, tuple(places))


def _squeeze(node: Node, x: np.ndarray, axes: Any = None) -> np.ndarray:
    places = node.attr("axes", None) if axes is None else integers(axes)
    return np.squeeze(x, None if places is None else tuple(places))


def _gather(node: Node, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.asarray(np.take(x, indices, node.attr("axis", 0)))


def _gather_elements(node: Node, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """The reference takes some arrays of one row wrongly."""
    axis = node.attr("axis", 0) % x.ndim
    part = x[tuple(slice(None) if a == axis else slice(n) for a, n in enumerate(indices.shape))]
    return np.take_along_axis(part, indices, axis)


def _constant_of_shape(node: Node, shape: np.ndarray) -> np.ndarray:
    value = node.attr("value", np.zeros(1, np.float32))
    return np.full(integers(shape), value.ravel()[0], value.dtype)


def _cast(node: Node, x: np.ndarray) -> np.ndarray | None:
    to = np.dtype(onnx().helper.tensor_dtype_to_np_dtype(node.attr("to")))
    return x.astype(to) if x.dtype.kind in "bi" and to.kind in "bi" else None


def _slice(node: Node, x: np.ndarray, *ranges: np.ndarray) -> np.ndarray | None:
    if len(ranges) < 2:
        return None
    starts, stops = map(integers, ranges[:2])
    axes = integers(ranges[2]) if len(ranges) > 2 else list(range(len(starts)))
    steps = integers(ranges[3]) if len(ranges) > 3 else [1] * len(starts)
    return x[sliced(x.shape, starts, stops, axes, steps)]


def sliced(shape: Any, starts: Any, stops: Any, axes: Any, steps: Any) -> tuple[slice, ...]:
    """ONNX's Slice as an index of NumPy's.

    Raises:
        ValueError: there are not as many of each, no such axis, or a step of 0.
    """
    index = [slice(None)] * len(shape)
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        if not -len(shape) <= axis < len(shape) or step == 0:
            raise ValueError(f"axis {axis} or step {step} is out of bounds for {len(shape)} axes")
        n = shape[axis]
        start, stop = (v + n if v < 0 else v for v in (start, stop))
        if step > 0:
            index[axis] = slice(min(max(start, 0), n), min(max(stop, 0), n), step)
        else:
            first = min(max(start, 0), n - 1)
            last = min(max(stop, -1), n - 1)
            index[axis] = slice(first, None if last < 0 else last, step) if n else slice(0, 0, 1)
    return tuple(index)


def _where(node: Node, c: Any, x: Any, y: Any) -> np.ndarray | None:
    return np.asarray(np.where(c, x, y)) if x.dtype == y.dtype else None


def _constant(node: Node) -> np.ndarray | None:
    for name, dtype in (
        ("value", None),
        ("value_int", np.int64),
        ("value_ints", np.int64),
        ("value_float", np.float32),
    ):
        if name in node.attributes:
            return np.asarray(node.attr(name), dtype)
    return None


def _range(node: Node, start: np.ndarray, stop: np.ndarray, step: np.ndarray) -> np.ndarray | None:
    if start.dtype.kind != "i" or not step.all():
        return None
    made: np.ndarray = np.arange(start.item(), stop.item(), step.item(), dtype=start.dtype)
    return made


_FOLDED: dict[str, Callable[..., np.ndarray | None]] = {
    "Constant": _constant,
    "Range": _range,
    "Identity": lambda node, x: x,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "ConstantOfShape": _constant_of_shape,
    "Cast": _cast,
    "Slice": _slice,
    "Where": _where,
    "Not": lambda node, x: np.logical_not(x),
}


def size(node: Node, inputs: list[Any]) -> int:
    """How many elements the output of a node has, of known inputs: of those that may make large ones of small."""
    given = [v for v in inputs if is_known(v)]
    if node.op in ("ConstantOfShape", "Expand", "Tile") and given:
        factor = int(np.prod([0 if n < 0 else n for n in integers(given[-1])], dtype=np.float64))
        return factor * (given[0].size if node.op == "Tile" else 1)
    if node.op == "Range" and len(given) == 3:
        start, stop, step = (v.item() for v in given)
        return max(0, math.ceil((stop - start) / step)) if step else 0
    return max((v.size for v in given), default=0) if len(given) < 2 else _broadcast_size(given)


def _broadcast_size(given: list[np.ndarray]) -> int:
    try:
        return math.prod(np.broadcast_shapes(*(v.shape for v in given)))
    except ValueError:
        return 0
