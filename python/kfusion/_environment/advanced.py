"""Iterators, generators, queues, files and others that a function can reach: what they give next is gone then, and what
they are is not set again.
"""

from __future__ import annotations

import io
import re
import sys
import warnings
from _thread import LockType
from collections.abc import Callable, Iterable
from contextvars import Context
from types import BuiltinMethodType, GeneratorType
from typing import Any, NamedTuple

from .._graph.structure import ATOMS, HEAP_TYPE
from .asked import is_table, of_table

_DEEPEST = 4  # of iterators of iterators
_SCANNER: type = type(re.compile("").scanner(""))  # type: ignore[attr-defined]  # which does not say where it is


class Positions:
    """Where those among some values are."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._before = [(value, _position(value)) for value in values if _is_advanced(value)]

    def moved(self) -> list[Any]:
        """Those that are elsewhere now."""
        return [value for value, before in self._before if _position(value) != before]


class States:
    """What files, locks and others are in, that a function can reach."""

    def __init__(self, values: Iterable[Any]) -> None:
        own = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
        known = (v for v in values if not any(v is stream for stream in own))
        kinds = ((v, next((kind for kind in _KINDS if kind.is_one(v)), None)) for v in known)
        self._before = [(value, kind, kind.state(value)) for value, kind in kinds if kind is not None]

    def changed(self) -> list[Any]:
        """Those that are in another one now."""
        return [value for value, kind, before in self._before if kind.state(value) != before]

    def restore(self) -> None:
        """Puts files back to where they were."""
        for value, kind, before in self._before:
            if kind.restore is not None and kind.state(value) != before:
                kind.restore(value, before)


class _Kind(NamedTuple):
    """What tells the state of a value, and puts it back."""

    is_one: Callable[[Any], bool]
    state: Callable[[Any], Any]
    restore: Callable[[Any, Any], Any] | None = None


def _in_memory(file: Any) -> Any:
    return None if file.closed else (file.tell(), file.getvalue())


def _put_back(file: Any, state: Any) -> None:
    if state is not None and not file.closed:
        file.seek(0)
        file.truncate()
        file.write(state[1])
        file.seek(state[0])


def _place(file: Any) -> Any:
    """Where a file is that is read."""
    try:
        return file.tell() if file.readable() and file.seekable() else None
    except (OSError, ValueError):  # it is gone through line by line, or closed
        return None


def _is_hash(value: Any) -> bool:
    kind = type(value)
    return kind.__module__.startswith(("_hash", "_blake", "_sha", "_md")) and hasattr(kind, "hexdigest")


_KINDS = (
    _Kind(lambda v: isinstance(v, (io.StringIO, io.BytesIO)), _in_memory, _put_back),
    _Kind(lambda v: isinstance(v, io.IOBase), _place, lambda file, place: place is None or file.seek(place)),
    _Kind(is_table, lambda table: [part if type(part) is bytes else id(part) for part in of_table(table)]),
    _Kind(lambda v: type(v) is LockType, lambda lock: lock.locked()),
    _Kind(lambda v: isinstance(v, Context), lambda context: [(name, id(held)) for name, held in context.items()]),
    _Kind(_is_hash, lambda state: state.copy().hexdigest(*[8] * (state.digest_size == 0))),
)


def _is_advanced(value: Any) -> bool:
    kind = type(value)
    if isinstance(value, io.IOBase):
        return False
    if hasattr(kind, "__kfusion_traced__") or (kind.__flags__ & HEAP_TYPE and not _is_of_c(kind)):
        return False
    return hasattr(kind, "__next__") or hasattr(kind, "qsize") or kind is _SCANNER


def _is_of_c(kind: type) -> bool:
    """Whether a class is one of Python's own in C, whose attributes do not say where its objects are."""
    return kind.__module__ in ("itertools", "builtins", "_queue", "_csv") or kind is _SCANNER


def _position(value: Any, depth: int = 0) -> Any:
    if type(value) in ATOMS or depth == _DEEPEST:
        return value if type(value) in ATOMS else id(value)
    if isinstance(value, tuple):
        return tuple(_position(part, depth) for part in value)
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        return frame and (frame.f_lasti, _position(tuple(frame.f_locals.values()), depth + 1))
    if type(value) is _SCANNER or (type(value) is BuiltinMethodType and type(value.__self__) is _SCANNER):
        return object()  # another one each time
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
