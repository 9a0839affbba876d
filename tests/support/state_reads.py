"""Functions that read state beside their arguments, and changes of it: cases for `test_guards`.

`state_reads.txt` has some, each as Python's text: a comment that names it, what stands before the function, the
function `f`, and behind `>>>` what changes between calls. "(refused)" stands behind names where an error is wanted.
"""

from __future__ import annotations

import linecache
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import kfusion as kf
from kfusion._graph.source import TraceError

_MODULE = "kf_case"


class Case(NamedTuple):
    """Text that defines a function `f`, and statements that change what it reads."""

    text: str
    changes: tuple[str, ...]
    is_refused: bool = False

    def scope(self) -> dict[str, Any]:
        """The namespace in which the text has run."""
        module = sys.modules[_MODULE] = types.ModuleType(_MODULE)
        linecache.cache[_MODULE] = len(self.text), None, self.text.splitlines(keepends=True), _MODULE
        vars(module).update(np=np, kf=kf)
        exec(compile(self.text, _MODULE, "exec"), vars(module))
        return vars(module)


def cases() -> dict[str, Case]:
    """Those of the file, by name."""
    found = {}
    for block in Path(__file__).with_suffix(".txt").read_text().split("\n\n"):
        name, *lines = block.strip().splitlines()
        text = "\n".join(line for line in lines if not line.startswith(">>>")) + "\n"
        changes = tuple(line[4:] for line in lines if line.startswith(">>>"))
        found[name.removeprefix("# ").removesuffix(" (refused)")] = Case(text, changes, name.endswith("(refused)"))
    return found


def differs(case: Case, x: Any) -> str:
    """How the fused function differs from the plain one over the changes, called thrice; "" where it does not."""
    plain, fused = case.scope(), case.scope()
    function = kf.fuse(fused["f"])
    found = []
    for change in ("", *(c for each in case.changes for c in ("", each, "", ""))):
        for scope in (plain, fused):
            exec(change, scope)
        wanted, got = _called(plain["f"], x), _called(function, x)
        if isinstance(got, TraceError):
            found.append("" if case.is_refused else f"refused: {got}")
        elif not _are_same(got, wanted):
            found.append(f"after {change!r}: {got!r} in place of {wanted!r}")
    return found[0] if found else "frozen" if case.is_refused else ""


def _are_same(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, Exception) or isinstance(got, Exception):
        return type(got) is type(wanted)
    return np.array_equal(np.asarray(got), np.asarray(wanted))


def _called(function: Any, x: Any) -> Any:
    try:
        return function(x)
    except Exception as error:
        return error
