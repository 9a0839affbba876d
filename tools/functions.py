"""Writes docs/functions.md: what becomes of NumPy's and torch's functions in a traced function.

    python -m tools.functions

Run it after entering a function; a test compares the page with what it writes. It needs torch.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
import torch

from kfusion._ops import primitives
from kfusion._tracing import (
    numpy_calls,
    numpy_functions,
    numpy_joins,
    numpy_ufuncs,
    refusals,
    torch_functions,
    torch_joins,
    torch_nn,
    torch_views,
)

PAGE = Path(__file__).parents[1] / "docs" / "functions.md"
_NUMPY_VIEWS = ((numpy_functions.VIEWS & numpy_functions._FUNCTIONS.keys()) | {"copy"}) - numpy_joins.FUNCTIONS.keys()

_HEAD = """\
# What becomes of each function

Written by `python -m tools.functions` from the tables that tracing reads, with NumPy {numpy} and torch {torch}.

| | in a plan | |
|---|---|---|
| kernel | stages of fused kernels | elementwise functions, reductions, products, and what is made of them |
| view | nothing: where a kernel reads | a reshape that no strides describe is a copy |
| join | nothing: where the kernels of the parts store | |
| library call | a kernel of its own, by the array library | reason `library_call`; attention, linear layers, convolutions and normalisations are kernels where that is predicted to be faster, else library calls, reason `library_is_faster` |
| error | a `TraceError` | what needs values, or draws random numbers, while the function is traced |

`kf.call(f, *arrays, result=spec)` makes a library call of any other function. In-place versions (`x.add_(y)`, `x += y`,
`x[...] = y`, `out=x`) are what their plain functions are. An argument that is not honoured (`where=`, a `dtype=` of
integers) makes a library call of a kernel.
"""  # noqa: E501 - rows of a table


def text() -> str:
    """What the page is to be."""
    head = _HEAD.format(numpy=_release(np.__version__), torch=_release(torch.__version__))
    return "\n".join([head, "## NumPy", "", *_numpy(), "## torch", "", *_torch()])


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _numpy() -> Iterable[str]:
    joins = set(numpy_joins.FUNCTIONS)
    ufuncs = {n for n in (*primitives.MAPS, *numpy_ufuncs._FORMULAS, "matmul", "float_power") if hasattr(np, n)}
    known = set(numpy_functions._FUNCTIONS) | ufuncs
    yield from _row("kernel", known - joins - _NUMPY_VIEWS, "also scipy.special's ufuncs of these names")
    yield from _row("view", _NUMPY_VIEWS)
    yield from _row("join", joins)
    library = {n for n in numpy_calls.NAMES if ("." in n or hasattr(np, n)) and not refusals.is_impossible(n)}
    yield from _row("library call", library - known, "and every other ufunc, `x[i] = y`, `x.sort()`")
    yield from _errors({n for n in refusals._REASONS if hasattr(np, n) or hasattr(np.ndarray, n)} - known - library)


def _torch() -> Iterable[str]:
    functions = {n: f for n, f in torch_functions.FUNCTIONS.items() if n not in torch_nn.OF_LIBRARY}
    of = {name: function.__module__ for name, function in functions.items()}
    named = {name.removeprefix("Tensor.") for name in of}
    joins, views = ({n.removeprefix("Tensor.") for n, m in of.items() if m == module.__name__}
                    for module in (torch_joins, torch_views))  # fmt: skip
    yield from _row("kernel", named - joins - views)
    yield from _row("view", views - joins)
    yield from _row("join", joins)
    others = {n for n in _overridable() - named if not n.startswith("_") and not n.endswith("_")}
    library = {n for n in others if not refusals.is_impossible(n)}
    yield from _row(
        "library call", library, "kernels where torch makes them of functions that are, such as `einsum`, `kron`"
    )
    modules = (torch, torch.Tensor, torch.nn.functional)
    yield from _errors({n for n in refusals._REASONS if any(hasattr(m, n) for m in modules)} - named - library)


def _overridable() -> set[str]:
    """Functions of torch's that a class like a traced value's may replace, by name."""
    modules = (torch, torch.nn.functional, torch.linalg, torch.fft, torch.special)
    of = torch.overrides.get_overridable_functions()
    return {f.__name__ for module in modules for f in of.get(module, ()) if hasattr(module, f.__name__)}


def _errors(of_library: Collection[str]) -> Iterable[str]:
    """Those of names that the library has and that stand in no other row."""
    for reason, _ in refusals._IMPOSSIBLE:
        if names := {n for n in of_library if refusals._REASONS[n][0] == reason and not n.startswith("_")}:
            yield from _row(f"error ({reason})", names)


def _row(kind: str, names: Collection[str], more: str = "") -> Iterable[str]:
    listed = ", ".join(f"`{n}`" for n in sorted(names)) + (f"; {more}" if more else "")
    yield textwrap.fill(f"**{kind}** ({len(names)}): {listed}", 120, break_long_words=False, break_on_hyphens=False)
    yield ""


if __name__ == "__main__":
    PAGE.write_text(text())
