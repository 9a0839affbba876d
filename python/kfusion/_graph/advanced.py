"""Iterators, generators and queues that a function can reach: what they give next is gone then, and cannot be set."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from types import GeneratorType
from typing import Any

from .structure import ATOMS, HEAP_TYPE

_DEEPEST = 4  # of iterators of iterators


class Positions:
    """Where those among some values are."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._before = [(value, _position(value)) for value in values if _is_advanced(value)]

    def moved(self) -> list[Any]:
        """Those that are elsewhere now."""
        return [value for value, before in self._before if _position(value) != before]


def _is_advanced(value: Any) -> bool:
    kind = type(value)
    if hasattr(kind, "__kfusion_traced__") or (kind.__flags__ & HEAP_TYPE and not _is_of_c(kind)):
        return False
    return hasattr(kind, "__next__") or hasattr(kind, "qsize")


def _is_of_c(kind: type) -> bool:
    """Whether a class is one of Python's own in C, whose attributes do not say where its objects are."""
    return kind.__module__ in ("itertools", "builtins", "_queue", "_csv")


def _position(value: Any, depth: int = 0) -> Any:
    if type(value) in ATOMS or depth == _DEEPEST:
        return value if type(value) in ATOMS else id(value)
    if isinstance(value, tuple):
        return tuple(_position(part, depth) for part in value)
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        return frame and (frame.f_lasti, _position(tuple(frame.f_locals.values()), depth + 1))
    if not _is_advanced(value):
        return id(value)
    if hasattr(value, "qsize"):
        return value.qsize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _position(value.__reduce__(), depth + 1)
        except TypeError:  # it cannot be copied: a count has its position in its text
            return repr(value)
