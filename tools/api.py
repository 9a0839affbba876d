"""Writes docs/api.md: public names, for mkdocstrings to fill in what Python's source has, the rest from docstrings.

    python -m tools.api

Run it after a new public name; a test compares the page with what it writes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kfusion as kf
from kfusion import _functions, _named

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
_SUBJECTS = {  # of names that are no functions of arrays; what is missing here stands under the last one
    "Plans": (
        *("plan", "Plan", "Group", "Refusal", "Reason", "spec", "Spec", "trace", "Graph", "executors", "savings"),
        *("sweep", "Sweep", "Mesh", "MeshPlan", "Exchange", "EachPlan", "EachPart"),
    ),
    "Running": (
        *("fuse", "FusedFunction", "for_each", "ForEach", "call", "elementwise", "register_torch_ops", "TraceError"),
    ),
    "Gradients": ("grad", "value_and_grad", "vjp", "stop_gradient", "kept_for_backward", "Kept", "KeptValue"),
    "Measuring": ("compare", "measure_traffic", "Traffic", "KernelTraffic", "tune", "Tuned", "TunedKernel"),
    "Devices": ("device", "devices", "Device", "DeviceTable", "measure_device"),
    "Arrays, threads, memory, errors": (),
}
_HEAD = """\
# API

Everything public is in the package `kfusion`, imported as `kf`; the optimizers for torch are in `kfusion.optim`
([using.md](using.md#optimizers-and-other-functions-for-each-of-many-arrays)). `help(kf.fuse)` shows the same in Python.
Written by `python -m tools.api`.
"""


def text() -> str:
    """What the page is to be."""
    return "\n".join([_HEAD, *_subjects(), *_array_functions()]) + "\n"


def _subjects() -> Iterator[str]:
    functions = {*_array_names(), *_named.__all__, "__version__"}
    left = [name for name in kf.__all__ if name not in functions]
    for subject, names in _SUBJECTS.items():
        named = [name for name in names or sorted(left, key=str.lower) if name in left]
        left = [name for name in left if name not in named]
        yield f"## {subject}\n"
        yield from (_entry(name, getattr(kf, name)) for name in named)


def _entry(name: str, value: Any) -> str:
    """What Python's source has by its place there; what C++ or a call makes by its docstring."""
    if value.__module__ not in ("kfusion", "kfusion._core"):
        return f"::: {value.__module__}.{name}\n"
    signature = "" if inspect.isclass(value) else str(inspect.signature(value))
    doc = (inspect.getdoc(value) or "").rstrip()
    return f"### {name}\n\n```text\nkfusion.{name}{signature}\n\n{doc}\n```\n"


def _array_names() -> list[str]:
    return list(dict.fromkeys(name for name in vars(_functions) if not name.startswith("_")))


def _array_functions() -> Iterator[str]:
    """A row for each function of arrays; other names of one stand beside it."""
    yield "## Functions of arrays\n"
    yield "On arrays they compute at once; in a traced function they are nodes of its graph. Pairs `fused_NAME` and"
    yield "`unfused_NAME` of some are in [using.md](using.md#the-named-kernels).\n"
    yield "| function | other names | computes |\n|---|---|---|"
    by_doc: dict[tuple[str, str], list[str]] = {}
    for name in _array_names():
        f = getattr(kf, name)
        by_doc.setdefault((_arguments(f), inspect.getdoc(f) or ""), []).append(name)
    for (arguments, doc), (name, *aliases) in by_doc.items():
        other = ", ".join(f"`{alias}`" for alias in aliases)
        yield f"| `{name}{arguments}` | {other} | {doc.splitlines()[0].replace('|', chr(92) + '|')} |"


def _arguments(f: Any) -> str:
    """The signature without types, which would be as long as the rest."""
    signature = inspect.signature(f)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(text())
