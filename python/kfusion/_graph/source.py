"""The user's own line, and the error that names it."""

from __future__ import annotations

import dis
import functools
import linecache
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType, TracebackType
from typing import Any

# Frames of these packages are between the user's line and the tracer, never the user's.
_LIBRARIES = frozenset(
    {"kfusion", "numpy", "scipy", "torch", "cupy", "cupyx", "jax", "jaxlib", "functools", "contextlib"}
)

_TRACE = "kfusion._tracing.trace"  # whose frame is around those of the traced function
_COMMANDS = "kfusion._cli.main"  # around it is what Python or the console script starts, no user's code


class TraceError(TypeError):
    """What a function does with a value that a graph cannot hold; the message names the line and what to write."""


class NotTraced(TraceError):
    """A graph has no ops for a call; a function of the array library may compute it as a node of its own."""


class NothingReturned(TraceError):
    """A function returns nothing that is made of its arrays."""


class RandomDraw(TraceError):
    """Numbers were drawn from a shared generator, whatever stood for the function's arguments."""


class TraceAttributeError(TraceError, AttributeError):
    """A TraceError that leaves `hasattr` working."""


class SetsState(BaseException):
    """A function that is traced sets something that each call must set. No code of the user's is to handle it.

    `targets` are where (`targets.Target`); none: in lists, dicts and objects among its arguments.
    `what` names them, for messages.
    """

    __kfusion_effects__ = True  # what C++ knows it by

    def __init__(self, function: str, targets: Sequence[Any] = (), what: str = "something in its arguments") -> None:
        super().__init__(f"kfusion.{function}: it sets what only a call of its own can set")
        self.targets, self.what = tuple(targets), what


class NamesObjects(BaseException):
    """A function that is traced can reach objects by names that its calls would take apart."""


def user_frame() -> FrameType | None:
    """The innermost frame that belongs to no library: of the user's own files, if the trace has such a frame."""
    found = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (found and frame.f_globals.get("__name__") == _TRACE):
        if frame.f_globals.get("__name__") == _COMMANDS:
            break
        if not in_library(frame.f_globals):
            if not is_installed(frame.f_code.co_filename):
                return frame
            found = found or frame
        frame = frame.f_back
    return found


Site = tuple[CodeType, int]  # an instruction: of which code, and its place there


def code_site() -> Site | None:
    """The instruction that runs in the innermost frame of no library's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and in_library(frame.f_globals):
        frame = frame.f_back
    if frame is None:
        return None
    offsets = (i.offset for i in dis.get_instructions(frame.f_code))
    return frame.f_code, max((offset for offset in offsets if offset <= frame.f_lasti), default=-1)


def user_line() -> str:
    """ "model.py:12: y = kf.relu(x)", or "" where no user's frame is left."""
    frame = user_frame()
    return _text(frame, frame.f_lineno) if frame is not None else ""


def raised_line(traceback: TracebackType | None) -> str:
    """The user's line, as above, that an exception came from, and "" where none did."""
    line = own = ""
    while traceback is not None:
        frame = traceback.tb_frame
        if not in_library(frame.f_globals):
            line = _text(frame, traceback.tb_lineno)
            own = own if is_installed(frame.f_code.co_filename) else line
        traceback = traceback.tb_next
    return own or line


def raised_by_kfusion(error: BaseException) -> bool:
    """Whether an exception came out of kfusion's own code, and so says all that there is to say."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    name: str = traceback.tb_frame.f_globals.get("__name__", "") if traceback is not None else ""
    return name.partition(".")[0] == __name__.partition(".")[0]


def trace_error(what: str, hint: str = "", line: str | None = None) -> TraceError:
    """A TraceError that says what was done, on which line, and what to do instead."""
    return TraceError(message(what, hint, line))


def not_traced(what: str, hint: str = "") -> NotTraced:
    """An error like `trace_error`'s, for what the array library may compute instead."""
    return NotTraced(message(what, hint))


def message(what: str, hint: str = "", line: str | None = None) -> str:
    """The text of every TraceError; `line` is the user's present one by default."""
    line = user_line() if line is None else line
    return "\n  ".join(part for part in (f"kfusion.trace: {what}", line, hint) if part)


def in_library(scope: Mapping[str, Any]) -> bool:
    """Whether the globals of a frame or function are those of a library's module."""
    name: str = scope.get("__name__") or ""
    return name.partition(".")[0] in _LIBRARIES


@functools.cache
def is_installed(file: str) -> bool:
    """Whether a file is of Python's library or of an installed package."""
    folders = ("site-packages", "dist-packages")
    return file.startswith(sysconfig.get_path("stdlib")) or any(folder in file for folder in folders)


def _text(frame: FrameType, line: int) -> str:
    file = frame.f_code.co_filename
    return f"{_place(file)}:{line}: {linecache.getline(file, line).strip()}".removesuffix(": ")


def _place(file: str) -> str:
    """The file's name, or "In[3]" for a notebook's cell, whose file is a number that tells nobody anything."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_shell() if get_shell else None
    cell = shell.compile.format_code_name(file) if shell else None
    return cell[1] if cell else os.path.basename(file)


def transformed(who: str) -> TypeError:
    """The error for torch.func's transforms around a function of kfusion."""
    what = "torch.func's grad, vmap and others do not see into fused functions"
    return TypeError(f"{who}: {what}: take kfusion.grad, value_and_grad or vjp, or give them the plain function")
