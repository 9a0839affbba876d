"""Arguments that overlap otherwise than when their graph was made: AOTAutograd's functions take them to lie as then.

Dynamo's guards know of tensors that are one object, and not of views that share memory. A graph that writes to one
argument and reads another runs as it is written where they do.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

_log = logging.getLogger(__name__)
_NAMES = "setitem iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift imatmul"
_IN_PLACE = frozenset(getattr(operator, name) for name in _NAMES.split())


def guarded(module: Any, inputs: Sequence[Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, or the graph itself where memory is shared otherwise than at the first call.

    Args:
        module: Dynamo's graph.
        inputs: examples of its arguments. Parameters and buffers stay as they are.
        run: what was made of it.
    """
    indices = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and not _is_static(x)]
    if len(indices) < 2 or not any(map(_writes, module.graph.nodes)):
        return run
    known: list[Any] = []

    def call(*arguments: Any) -> Any:
        found = _shared([arguments[i] for i in indices])
        if not known:
            known.append(found)
        if found == known[0]:
            return run(*arguments)
        _log.warning("kfusion runs a graph operator by operator: its arguments share memory otherwise than before")
        return module(*arguments)

    return call


def _is_static(x: Any) -> bool:
    return isinstance(x, torch.nn.Parameter) or hasattr(x, "_dynamo_static_input_type")


def _writes(node: Any) -> bool:
    """Whether a node may write to an argument of its own."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    is_named = name.endswith("_") and not name.endswith("__")
    says = "out" in node.kwargs or node.kwargs.get("inplace") is True
    return node.op in ("call_method", "call_function") and (is_named or says or node.target in _IN_PLACE)


def _shared(tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Which tensors share memory, and how they lie in it."""
    memory = [t.untyped_storage()._cdata for t in tensors]
    if len(set(memory)) == len(memory):
        return ()
    met: dict[int, tuple[int, int]] = {}
    found = []
    for i, (at, t) in enumerate(zip(memory, tensors, strict=True)):
        first, offset = met.setdefault(at, (i, t.storage_offset()))
        if memory.count(at) > 1:
            found.append((i, first, t.storage_offset() - offset, tuple(t.shape), t.stride()))
    return tuple(found)
