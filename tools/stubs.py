"""Writes python/kfusion/__init__.pyi: all public names with their signatures, for type checkers and editors.

    python -m tools.stubs

The functions of the op table and the named kernels are made at run time, where type checkers see nothing of them. Run
it after a change of a public name or of such a function's parameters; a test compares the file with what it writes.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path

import kfusion
from kfusion import _functions, _named
from kfusion._ops import primitives

STUB = Path(kfusion.__file__).with_suffix(".pyi")

_HEAD = """\
# Written by `python -m tools.stubs`.
from typing import Any

from ._ops.operation import Array, Axes
"""
_KERNEL = """
class {kind}(FusedFunction):
    {call}

fused_{name}: {kind}
unfused_{name}: {kind}"""


def text() -> str:
    """What the stub is to be."""
    names = textwrap.fill(", ".join(map(repr, kfusion.__all__)), 120, initial_indent="    ", subsequent_indent="    ")
    functions = [_definition(name, inspect.signature(getattr(kfusion, name))) for name in primitives.__all__]
    kernels = map(_kernel, _named.KERNELS)
    return "\n".join([_HEAD + _imports(), f"__all__ = [\n{names}\n]\n", *functions, *kernels, ""])


def _imports() -> str:
    """What __init__.py imports by name, and the functions that are written in Python."""
    imported: dict[str | None, list[str]] = {}
    for node in ast.parse(Path(kfusion.__file__).read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            imported[node.module] = [n.name for n in node.names if n.name in kfusion.__all__]
    imported["_functions"] = [n for n in vars(_functions) if not n.startswith("_") and n not in primitives.__all__]
    return "".join(f"from .{module} import {', '.join(names)}\n" for module, names in imported.items() if names)


def _kernel(function: Callable[..., object]) -> str:
    """The fused and the unfused version, objects of a class whose call has the function's own parameters."""
    name = function.__name__
    signature = inspect.signature(function)
    keywords = inspect.signature(getattr(_named, f"fused_{name}")).parameters.values()
    added = [p.replace(annotation="Any") for p in keywords if p.name not in signature.parameters]
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    call = signature.replace(parameters=[this, *signature.parameters.values(), *added])
    return _KERNEL.format(name=name, kind="_" + name.title().replace("_", ""), call=_definition("__call__", call))


def _definition(name: str, signature: inspect.Signature) -> str:
    shown: list[str] = []
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        # Texts, as the modules that have these functions postpone annotations.
        annotation = "" if p.annotation is p.empty else f": {p.annotation}"
        shown.append(p.name + annotation + ("" if p.default is p.empty else f" = {p.default!r}"))
    return f"def {name}({', '.join(shown)}) -> {signature.return_annotation}: ..."


if __name__ == "__main__":
    STUB.write_text(text())
