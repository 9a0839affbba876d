"""Resize by torch: each axis as a sum of few elements, whose positions and weights are those of onnx.reference.

Weights of an axis are what the reference makes of a unit matrix. torch's own interpolation runs where it is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import tensors
from .library import onnx, reference
from .nodes import Node
from .values import is_known, shape_of

_MOST_TAPS = 8  # elements of a sum; more of them are a product
_MOST_ELEMENTS = 4096  # of an axis
_SPATIAL = {1: "linear", 2: "bilinear", 3: "trilinear"}


def function(node: Node, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Callable[..., Any] | None:
    """Resize as a function of torch's tensors; None where an axis cannot be told from the others, or is too long."""
    shape = shape_of(x)
    axes = [int(a) % len(shape) for a in node.attr("axes", range(len(shape)))]
    targets = sizes if scales is None or not np.size(scales) else scales
    mode = node.attr("coordinate_transformation_mode", "half_pixel")
    if node.version < 11 or mode == "tf_crop_and_resize" or targets is None or not is_known(targets):
        return None
    if targets is sizes and node.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    changed = []
    for axis, target in zip(axes, np.asarray(targets).tolist(), strict=True):
        if target != (1 if targets is scales else shape[axis]):
            changed.append((axis, target))
    results = [int(shape[axis] * target) if targets is scales else target for axis, target in changed]
    if any(shape[axis] > _MOST_ELEMENTS for axis, _ in changed) or 0 in (*shape, *results):
        return None
    if (made := _interpolated(node, shape, changed, mode, targets is scales)) is not None:
        return made
    steps = [(axis, *_weights(node, shape[axis], target, targets is scales)) for axis, target in changed]

    def run(x: Any, *more: Any) -> Any:
        for axis, positions, weights in steps:
            x = _along(x, axis, positions, weights)
        return x

    return run


def _weights(node: Node, n: int, target: float, is_scale: bool) -> tuple[np.ndarray | None, np.ndarray]:
    """Positions and weights of the elements that each element of a resized axis is a sum of; None: of all elements."""
    helper, proto = onnx().helper, onnx().TensorProto
    attributes = {k: onnx().helper.get_attribute_value(a) for k, a in node.attributes.items() if k != "axes"}
    inner = helper.make_node("Resize", ["x", "", "by"] if is_scale else ["x", "", "", "by"], ["y"], **attributes)
    by = np.array([target, 1], np.float32) if is_scale else np.array([target, n], np.int64)
    infos = [helper.make_tensor_value_info("x", proto.DOUBLE, None)]
    infos.append(helper.make_tensor_value_info("by", proto.FLOAT if is_scale else proto.INT64, None))
    graph = helper.make_graph([inner], "axis", infos, [helper.make_tensor_value_info("y", proto.DOUBLE, None)])
    opsets = [helper.make_opsetid(d, v) for d, v in node.opsets.items()]
    run = reference().ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets))
    (matrix,) = run.run(None, {"x": np.eye(n), "by": by})
    most = int((matrix != 0).sum(1).max())
    if most > _MOST_TAPS:
        return None, matrix
    positions = np.argsort(matrix == 0, axis=1, kind="stable")[:, :most]
    return positions, np.take_along_axis(matrix, positions, 1)


def _along(x: Any, axis: int, positions: np.ndarray | None, weights: np.ndarray) -> Any:
    """x with an axis resized."""
    t = tensors.torch()
    of_device = t.from_numpy(weights).to(x.device, x.dtype)
    if positions is None:
        return t.matmul(x.movedim(axis, -1), of_device.T).movedim(-1, axis)
    made = None
    for tap in range(positions.shape[1]):
        part = x.index_select(axis, t.from_numpy(np.ascontiguousarray(positions[:, tap])).to(x.device))
        if positions.shape[1] == 1 and (weights == 1).all():
            return part
        factor = of_device[:, tap].reshape(-1, *[1] * (x.ndim - axis - 1))
        part = part * factor if (weights[:, tap] != 0).all() else t.where(factor != 0, part * factor, 0.0)
        made = part if made is None else made + part
    return made


def _interpolated(node: Node, shape: Any, changed: Any, mode: str, is_scale: bool) -> Callable[..., Any] | None:
    """torch's own linear interpolation of the last axes, where it is the same, but beside infinities: it multiplies
    them by 0, which is NaN. It takes a twentieth of the time.
    """
    n = len(shape) - 2
    is_plain = node.attr("mode", "nearest") == "linear" and mode == "half_pixel" and not node.attr("antialias", 0)
    if not is_plain or n not in _SPATIAL or any(axis < 2 for axis, _ in changed):
        return None
    by_axis = {axis: (1.0 if is_scale else size) for axis, size in enumerate(shape)} | dict(changed)
    given = [by_axis[axis] for axis in range(2, len(shape))]
    options = {"scale_factor" if is_scale else "size": given, "mode": _SPATIAL[n], "align_corners": False}
    return lambda x, *more: tensors.torch().nn.functional.interpolate(x, **options)
