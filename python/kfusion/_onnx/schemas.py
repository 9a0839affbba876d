"""What onnx says of its operators: how many inputs they have, and of which types."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .library import onnx
from .nodes import Node
from .values import dtype_of


@functools.cache
def _schema(op: str, version: int, domain: str) -> Any:
    try:
        return onnx().defs.get_schema(op, version, domain)
    except Exception:  # a class of onnx's C++ part
        return None


def schema_of(node: Node) -> Any:
    """The schema of an operator in the model's opset.

    Raises:
        ValueError: there is none.
    """
    found = _schema(node.op, node.version, node.domain)
    if found is None:
        raise ValueError(f"onnx has no such operator in opset {node.version}")
    return found


@functools.cache
def _type_names(op: str, version: int, domain: str) -> tuple[tuple[frozenset[str], str], ...]:
    """For each formal input, the types that it may have, and the name of the type that it shares with others."""
    schema = _schema(op, version, domain)
    return tuple((frozenset(i.types), i.type_str) for i in schema.inputs)


@functools.cache
def _name_of(dtype: np.dtype[Any]) -> str:
    kind = onnx().helper.np_dtype_to_tensor_dtype(dtype)
    name = onnx().TensorProto.DataType.Name(kind).lower()
    return f"tensor({name})"


def check(node: Node, inputs: list[Any]) -> None:
    """Compares a node's inputs with what its operator takes.

    Raises:
        ValueError: there are too few or too many, or there is no such operator.
        TypeError: one has a type that the operator does not take, or another type than one that it goes with.
    """
    schema = schema_of(node)
    if not schema.min_input <= len(inputs) <= schema.max_input:
        raise ValueError(f"it takes {schema.min_input} to {schema.max_input} inputs, got {len(inputs)}")
    formal = _type_names(node.op, node.version, node.domain)
    is_mixed = bool(schema.inputs) and not schema.inputs[-1].is_homogeneous
    shared: dict[str, str] = {}
    for i, value in enumerate(inputs):
        if value is None:
            continue
        types, name = formal[min(i, len(formal) - 1)]
        got = _name_of(dtype_of(value))
        if got not in types:
            raise TypeError(f"its input {node.proto.input[i]!r} must not be of {got}")
        is_variadic = i >= len(formal) - 1 and is_mixed
        if not is_variadic and shared.setdefault(name, got) != got:
            raise TypeError(f"its input {node.proto.input[i]!r} must be of {shared[name]} as another is, got {got}")
