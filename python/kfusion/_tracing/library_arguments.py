"""What a call of the array library is given, with slots in place of its arrays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from .._graph.number import is_number, read
from .._graph.sizes import has_sizes, is_size
from .._graph.structure import Slot, fill, leaves, walk
from .._graph.tracer import Tracer
from .._graph.values import Traced
from .._spec import is_array
from . import stored_numbers
from .dtype_names import is_complex, name_of_dtype


class Arguments:
    """A call's arguments with slots in place of its arrays."""

    def __init__(self, tracer: Tracer, arguments: Any, library: str) -> None:
        self._tracer = tracer
        self._library = library
        self.values: list[Traced] = []
        self.given: list[Any] = []  # what stands for them in the call: themselves, or complex numbers
        self._slots: dict[int, Slot] = {}
        self.structure = walk(arguments, self._visit)

    def filled(self, arrays: Sequence[Any]) -> Any:
        """The arguments with arrays in their slots."""
        return fill(self.structure, list(arrays))

    def viewed(self, tensors: Sequence[Any]) -> list[Any]:
        """The tensors, those that stand for complex numbers as such."""
        return [
            stored_numbers.torch_seen(t, name_of_dtype(g)) if g is not v else t
            for t, v, g in zip(tensors, self.values, self.given, strict=True)
        ]

    def _visit(self, _: str, leaf: Any) -> Any:
        if is_number(leaf):
            return read(leaf)
        if is_size(leaf):
            require_no_sizes(self._tracer, leaf)
        if is_array(leaf) and self._library == "torch" and name_of_dtype(leaf) in stored_numbers.STORED:
            leaf = stored_numbers.torch_numbers(leaf, self._tracer)
        if is_complex(leaf):
            return self._slot(leaf, leaf.pairs)
        if self._library == "numpy" and stored_numbers.numpy_spec(leaf) is not None:
            return leaf  # no kernel looks at it: the call itself reads it when it runs
        if is_array(leaf):
            leaf = self._tracer.lift(leaf, self._library)
        return self._slot(leaf, leaf) if isinstance(leaf, Traced) else leaf

    def _slot(self, given: Any, value: Traced) -> Slot:
        self._tracer.node(value)  # raises where it cannot be used
        if id(given) not in self._slots:
            self._slots[id(given)] = Slot(len(self.values))
            self.values.append(value)
            self.given.append(given)
        return self._slots[id(given)]


def generators(call: Arguments) -> list[Any]:
    """torch's generators among a call's arguments."""
    kind = sys.modules["torch"].Generator
    return [leaf for leaf in leaves(call.structure) if isinstance(leaf, kind)]


def require_no_sizes(tracer: Tracer, shapes: Any) -> None:
    if tracer.recorded is not None and has_sizes(shapes):
        raise tracer.recorded.failed()
