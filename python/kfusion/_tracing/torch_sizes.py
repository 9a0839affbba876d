"""Tensors that are made of sizes, where the graph is recorded for calls with other sizes: `torch.arange(x.shape[1])`.

Elsewhere sizes are ints, and what torch computes of them are constants. Here torch's calls are recorded as well: those
with sizes, or tensors made of sizes, among their arguments are made for both calls, and for each one that plays the
tape. Every other tensor must be known to be the same in all calls.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .._graph.sizes import RecordedGraph, is_size
from .._graph.structure import Slot, leaves
from .._graph.tracer import Tracer
from .library_trials import shares_memory


class SizedTensors:
    """Those of one trace. `is_named`: whether a tensor is one of outside that the function knows by name."""

    def __init__(self, tracer: Tracer, recorded: RecordedGraph, is_named: Callable[[Any], bool]) -> None:
        self._tracer = tracer
        self._recorded = recorded
        self._is_named = is_named
        self._constants: dict[int, Any] = {}  # by id, which keeps the ids
        recorded.is_constant = self._is_constant

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any, targets: Sequence[Any]) -> Any:
        """What a function of no traced values gives; NotImplemented where nothing is made of sizes.

        Args:
            function: a function or a method of tensors.
            args: its arguments.
            kwargs: likewise.
            targets: the tensors that it writes to.

        Raises:
            NotTheSame: it writes to a tensor that is not made of sizes alone, or that the graph has read, or nobody
                knows where one of the tensors comes from.
        """
        operands: list[Any] = []

        def visit(leaf: Any) -> Any:
            if isinstance(leaf, slice):
                return slice(visit(leaf.start), visit(leaf.stop), visit(leaf.step))
            if not self._is_sized(leaf):
                return leaf
            operands.append(leaf)
            return Slot(len(operands) - 1)

        structure = _within(visit, (args, kwargs))
        if not operands:
            return NotImplemented
        if not all(map(self._is_own, targets)):
            raise self._recorded.failed()

        def called(*values: Any) -> Any:
            args, kwargs = _within(lambda leaf: _filled(leaf, values), structure)
            return function(*args, **kwargs)

        here, there = (called(*[self._recorded.of_call(o, i) for o in operands]) for i in range(2))
        return self._result(called, tuple(map(self._recorded.register_of, operands)), here, there)

    def keep(self, result: Any) -> None:
        """Tensors that a function has made of others than those made of sizes."""
        self._constants.update((id(v), v) for v in leaves(result) if _is_tensor(v))

    def _is_sized(self, leaf: Any) -> bool:
        if _is_tensor(leaf) and id(leaf) not in self._recorded.tensors and not self._is_constant(leaf):
            raise self._recorded.failed()
        return self._recorded.is_made_of_sizes(leaf)

    def _is_own(self, target: Any) -> bool:
        """Whether a tensor can be written to in each call: it is made of sizes, and is no view of another one."""
        known = self._recorded.tensors
        base = target if target._base is None else target._base
        is_read = any(k.captured and shares_memory(k.array, base) for k in self._tracer.inputs)
        return id(target) in known and id(base) in known and not self._is_named(base) and not is_read

    def _is_constant(self, tensor: Any) -> bool:
        base = getattr(tensor, "_base", None)
        return id(tensor) in self._constants or self._is_named(tensor) or (base is not None and self._is_named(base))

    def _result(self, function: Callable[..., Any], operands: tuple[Any, ...], here: Any, there: Any) -> Any:
        if type(here) is not type(there):
            raise self._recorded.failed()
        if _is_tensor(here):
            return self._recorded.add_tensor(function, operands, here, there)
        if not isinstance(here, (tuple, list)):
            return self._recorded.add_value(function, operands, here, there)
        if len(here) != len(there):
            raise self._recorded.failed()
        whole = (self._recorded.add(function, operands, type(here)),)
        pairs = enumerate(zip(here, there, strict=True))
        return type(here)([self._result(operator.itemgetter(i), whole, h, t) for i, (h, t) in pairs])


def _is_tensor(value: Any) -> bool:
    return isinstance(value, sys.modules["torch"].Tensor) and not is_size(value)


def _within(function: Callable[[Any], Any], value: Any) -> Any:
    """The structure of a call's arguments, torch.Size as tuples, with function(leaf) in place of each leaf."""
    kind = type(value)
    if issubclass(kind, (tuple, list)):
        return (list if issubclass(kind, list) else tuple)([_within(function, item) for item in value])
    return {k: _within(function, v) for k, v in value.items()} if kind is dict else function(value)


def _filled(leaf: Any, values: Any) -> Any:
    if isinstance(leaf, slice):
        return slice(*(_filled(v, values) for v in (leaf.start, leaf.stop, leaf.step)))
    return values[leaf.index] if type(leaf) is Slot else leaf
