"""One operator of a model: its attributes, opset and name."""

from __future__ import annotations

from typing import Any

import numpy as np

from .library import onnx
from .values import NeedsValues, is_unknown

_MISSING: Any = object()


class Node:
    """A NodeProto whose attributes are read by name, those that a function's caller gives too."""

    def __init__(self, proto: Any, opsets: dict[str, int], given: dict[str, Any], sources: Any = None) -> None:
        self.proto = proto
        self.op = str(proto.op_type)
        self.domain = "" if proto.domain == "ai.onnx" else str(proto.domain)
        self.opsets = opsets
        self.version = opsets.get(self.domain, 0)
        self.attributes = {a.name: a for a in self._resolved(given)}
        self._sources = sources or (lambda value: None)

    def _resolved(self, given: dict[str, Any]) -> Any:
        """The attributes; those that stand for a function's own are its caller's, or left out."""
        for attribute in self.proto.attribute:
            if not attribute.ref_attr_name:
                yield attribute
            elif attribute.ref_attr_name in given:
                copy = onnx().AttributeProto()
                copy.CopyFrom(given[attribute.ref_attr_name])
                copy.name = attribute.name
                yield copy

    @property
    def who(self) -> str:
        """The node for people: its operator, and its name where it has one."""
        kind = f"{self.domain}.{self.op}" if self.domain else self.op
        return f"{kind} {self.proto.name!r}" if self.proto.name else f"{kind} that gives {list(self.proto.output)}"

    def attr(self, name: str, default: Any = _MISSING) -> Any:
        """The value of an attribute: numbers, text, lists of these, a NumPy array of a tensor.

        Raises:
            ValueError: it has none, and there is no default.
        """
        if name not in self.attributes:
            if default is _MISSING:
                raise ValueError(f"the attribute {name} is missing")
            return default
        value = onnx().helper.get_attribute_value(self.attributes[name])
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, onnx().TensorProto):
            return onnx().numpy_helper.to_array(value)
        return list(value) if isinstance(value, (list, tuple)) or hasattr(value, "append") else value

    def with_attributes(self) -> Any:
        """The proto with its attributes resolved."""
        copy = onnx().NodeProto()
        copy.CopyFrom(self.proto)
        del copy.attribute[:]
        copy.attribute.extend(self.attributes.values())
        return copy

    def known(self, value: Any) -> np.ndarray:
        """The elements of an input that decides on shapes.

        Raises:
            NeedsValues: they are those of inputs of the model that are not known.
            ValueError: they are computed when the model runs.
        """
        if not is_unknown(value):
            return np.asarray(value)
        names = self._sources(value)
        if not names:
            raise ValueError("the shape of its result, or what it does, depends on values that the model computes")
        raise NeedsValues(names, self.who)

    def needs(self, values: Any) -> None:
        """Asks for the values of those inputs that can be known.

        Raises:
            NeedsValues: there are such.
        """
        names: frozenset[str] = frozenset().union(*(self._sources(v) or () for v in values if is_unknown(v)))
        if names:
            raise NeedsValues(names, self.who)
