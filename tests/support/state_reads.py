"""Functions that read or set state beside their arguments, and changes of it: cases for `test_guards`.

`state_reads.txt` and others have some, each as Python's text: a comment that names it, what stands before the function,
the function `f`, what is compared after each call beside its result (`seen`), and behind `>>>` what changes between
calls. "(refused)" stands behind names where an error is wanted.
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

    def scope(self, **given: Any) -> dict[str, Any]:
        """The namespace in which the text has run."""
        sys.modules.pop(f"{_MODULE}_m", None)  # which changes make
        module = sys.modules[_MODULE] = types.ModuleType(_MODULE)
        linecache.cache[_MODULE] = len(self.text), None, self.text.splitlines(keepends=True), _MODULE
        vars(module).update(np=np, kf=kf, **given)
        exec(compile(self.text, _MODULE, "exec", dont_inherit=True), vars(module))
        return vars(module)


def cases(file: str = "state_reads.txt") -> dict[str, Case]:
    """Those of the file, by name."""
    found = {}
    for block in Path(__file__).with_name(file).read_text().split("\n\n"):
        name, *lines = block.strip().splitlines()
        text = "\n".join(line for line in lines if not line.startswith(">>>")) + "\n"
        changes = tuple(line[4:] for line in lines if line.startswith(">>>"))
        found[name.removeprefix("# ").removesuffix(" (refused)")] = Case(text, changes, name.endswith("(refused)"))
    return found


def differs(case: Case, x: Any, **given: Any) -> str:
    """How the fused function differs from the plain one over the changes, called thrice, or five times where there are
    none; "" where it does not.
    """
    changes = ("", *(c for each in case.changes or ("",) for c in ("", each, "", "")))
    plain = _run(case, lambda f: f, x, changes, given)
    fused = _run(case, kf.fuse, x, changes, given)
    found = []
    for change, (got, seen), (wanted, state) in zip(changes, fused, plain, strict=True):
        if isinstance(got, TraceError):
            found.append("" if case.is_refused else f"refused: {got}")
            break
        if not _are_same(got, wanted):
            found.append(f"after {change!r}: {got!r} in place of {wanted!r}")
        elif str(seen) != str(state):
            found.append(f"after {change!r}: {seen!r} is set in place of {state!r}")
    return found[0] if found else "frozen" if case.is_refused else ""


def _run(case: Case, fuse: Any, x: Any, changes: tuple[str, ...], given: Any) -> list[tuple[Any, Any]]:
    """What each call gives, and what can be seen then. Some state is the process's: no other call is between."""
    scope = case.scope(**given)
    function, found = fuse(scope["f"]), []
    for change in changes:
        exec(change, scope)
        result = _called(function, x)
        found.append((result, scope["seen"]() if "seen" in scope else None))
    return found


def _are_same(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, Exception) or isinstance(got, Exception):
        return type(got) is type(wanted)
    return np.allclose(np.asarray(got), np.asarray(wanted), rtol=1e-6, atol=1e-6, equal_nan=True)


def _called(function: Any, x: Any) -> Any:
    try:
        return function(x)
    except Exception as error:
        return error
