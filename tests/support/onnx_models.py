"""Small ONNX models in files, and what onnx.reference makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper


def info(name: str, kind: int, shape: Any) -> Any:
    return h.make_tensor_value_info(name, kind, shape)


def weight(name: str, array: Any) -> Any:
    return numpy_helper.from_array(np.asarray(array), name)


def saved(path: Path, nodes: Any, inputs: Any, outputs: Any, weights: Any = (), opset: int = 21, **more: Any) -> str:
    graph = h.make_graph(nodes, "g", inputs, outputs, initializer=list(weights))
    file = path / "model.onnx"
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", opset), h.make_opsetid("own", 1)], **more), file)
    return str(file)


def one(
    path: Path, op: str, inputs: dict[str, Any], outputs: Any = ("y",), weights: Any = (), **attributes: Any
) -> str:
    """A model of one node; inputs by name: arrays like those that it takes."""
    nodes = [h.make_node(op, [*inputs, *(w.name for w in weights)], outputs, name="it", **attributes)]
    infos = [info(n, h.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()]
    return saved(path, nodes, infos, [info(o, T.UNDEFINED, None) for o in outputs])


def expected(file: str, *arrays: Any, inputs: int | None = None) -> Any:
    """What onnx.reference gives for the first inputs."""
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(file)
    names = [i.name for i in model.graph.input][:inputs]
    return ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))
