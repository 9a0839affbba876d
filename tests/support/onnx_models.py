"""Small ONNX models in files, and what onnx.reference makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper


def info(name: str, like: Any) -> Any:
    """What is said of an input: floats of a shape that may have symbols, or as an array is."""
    if isinstance(like, list):
        return h.make_tensor_value_info(name, T.FLOAT, like)
    return h.make_tensor_value_info(name, h.np_dtype_to_tensor_dtype(like.dtype), like.shape)


def nodes(text: str) -> list[Any]:
    """Nodes in onnx's own notation, "y = Concat<axis=1>(x, z)", which " ; " separates."""
    return [onnx.parser.parse_node(node.strip()) for node in text.split(" ; ")]


def model(
    path: Path,
    text: Any,
    inputs: dict[str, Any],
    weights: dict[str, Any] | None = None,
    outputs: str = "y",
    opset: int = 21,
    **more: Any,
) -> str:
    """The file of a model of nodes, in text or made; inputs as for `info`; results by name, of whatever dtype."""
    made = nodes(text) if isinstance(text, str) else text
    results = [h.make_tensor_value_info(name, T.UNDEFINED, None) for name in outputs.split()]
    values = [numpy_helper.from_array(np.asarray(w), name) for name, w in (weights or {}).items()]
    infos = [like if isinstance(like, onnx.ValueInfoProto) else info(name, like) for name, like in inputs.items()]
    graph = h.make_graph(made, "g", infos, results, initializer=values)
    file = path / "model.onnx"
    opsets = [h.make_opsetid("", opset), h.make_opsetid("own", 1)]
    onnx.save(h.make_model(graph, opset_imports=opsets, **more), file)
    return str(file)


def expected(file: str, *arrays: Any, inputs: int | None = None) -> Any:
    """What onnx.reference gives for the first inputs."""
    from onnx.reference import ReferenceEvaluator

    read = onnx.load(file)
    names = [i.name for i in read.graph.input][:inputs]
    return ReferenceEvaluator(read).run(None, dict(zip(names, arrays, strict=True)))
