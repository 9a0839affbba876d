"""The user's own line, and the error that names it."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import Any

# Frames of these packages are between the user's line and the tracer, never the user's.
_LIBRARIES = frozenset(
    {"kfusion", "numpy", "scipy", "torch", "cupy", "cupyx", "jax", "jaxlib", "functools", "contextlib"}
)


class TraceError(TypeError):
    """What a function does with a value that a graph cannot hold; the message names the line and what to write."""


class TraceAttributeError(TraceError, AttributeError):
    """A TraceError that leaves `hasattr` working."""


def user_frame() -> FrameType | None:
    """The innermost frame that belongs to no library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and in_library(frame.f_globals):
        frame = frame.f_back
    return frame


def user_line() -> str:
    """ "model.py:12: y = kf.relu(x)", or "" where no user's frame is left."""
    frame = user_frame()
    return _text(frame, frame.f_lineno) if frame is not None else ""


def raised_line(traceback: TracebackType | None) -> str:
    """The user's line, as above, that an exception came from, and "" where none did."""
    line = ""
    while traceback is not None:
        if not in_library(traceback.tb_frame.f_globals):
            line = _text(traceback.tb_frame, traceback.tb_lineno)
        traceback = traceback.tb_next
    return line


def trace_error(what: str, hint: str = "", line: str | None = None) -> TraceError:
    """A TraceError that says what was done, on which line, and what to do instead."""
    return TraceError(message(what, hint, line))


def message(what: str, hint: str = "", line: str | None = None) -> str:
    """The text of every TraceError; `line` is the user's present one by default."""
    line = user_line() if line is None else line
    return "\n  ".join(part for part in (f"kfusion.trace: {what}", line, hint) if part)


def in_library(scope: Mapping[str, Any]) -> bool:
    """Whether the globals of a frame or function are those of a library's module."""
    name: str = scope.get("__name__") or ""
    return name.partition(".")[0] in _LIBRARIES


def _text(frame: FrameType, line: int) -> str:
    file = frame.f_code.co_filename
    return f"{_place(file)}:{line}: {linecache.getline(file, line).strip()}".removesuffix(": ")


def _place(file: str) -> str:
    """The file's name, or "In[3]" for a notebook's cell, whose file is a number that tells nobody anything."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    cell = shell.compile.format_code_name(file) if shell else None
    return cell[1] if cell else os.path.basename(file)
