"""Writes docs/onnx.md: what becomes of ONNX's operators, and of the node cases of the onnx package.

    python -m tools.onnx_operators

Run it after entering a row or a refusal; a test compares the page with what it writes. The cases are those of
results/onnx_nodes.json, which `python tests/support/onnx_nodes.py results/onnx_nodes.json` writes. It needs onnx.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx

from kfusion._onnx import function, refusals  # noqa: F401 - function enters the rows
from kfusion._onnx.table import ROWS
from kfusion._onnx.torch_calls import RULES

_ROOT = Path(__file__).parents[1]
PAGE = _ROOT / "docs" / "onnx.md"
RESULTS = _ROOT / "results" / "onnx_nodes.json"
_KINDS = ("kernels", "library", "known", "refused", "wrong", "error")

_HEAD = """\
# ONNX operators

Written by `python -m tools.onnx_operators` from the table that tracing reads, with onnx {version}. How to plan and run
a model: [using.md](using.md#onnx).

Opsets 13 to 24, and what is the same in others. What an operator becomes is decided in this order:

| | in a plan | |
|---|---|---|
| known | nothing: computed with NumPy while the model is traced | where all inputs are known: shapes, constants, and inputs of the model that decide on shapes |
| kernel, view, join | stages of fused kernels; where a kernel reads; where it stores | the table below, for float16, bfloat16, float32, float64, int32, int64 and bool |
| function body | what its operators become | functions of the model, and operators whose meaning onnx writes as others' |
| library call | a kernel of its own, reason `library_call`: of torch where it is installed and has the operator, else of onnx.reference, with NumPy | all other operators, other dtypes, Loop, Scan, and If where the condition is computed |
| refused | an error that names the operator and the reason | the table of refusals |
"""  # noqa: E501 - rows of a table


def text() -> str:
    """What the page is to be."""
    results = json.loads(RESULTS.read_text())
    head = _HEAD.format(version=results["onnx"])
    return "\n".join([head, "## The table", "", *_rows(), *_refusals(), *_cases(results)])


def _rows() -> list[str]:
    lines = []
    for kind in ("kernel", "view", "join"):
        names = sorted((f"{domain}." if domain else "") + op for (domain, op), row in ROWS.items() if row.kind == kind)
        lines += [*_wrapped(f"**{kind}** ({len(names)})", names), ""]
    lines += [*_wrapped(f"**library call of torch**, in most cases ({len(RULES)})", sorted(RULES)), ""]
    with_row = {op for domain, op in ROWS if not domain}
    schemas: Any = onnx.defs.get_all_schemas()
    bodies = [
        s.name
        for s in schemas
        if (s.has_function or s.has_context_dependent_function)
        and (s.domain, s.name) not in refusals.NO_BODIES
        and s.name not in with_row
    ]
    return [*lines, *_wrapped(f"**function body** ({len(bodies)})", sorted(bodies)), ""]


def _refusals() -> list[str]:
    lines = ["## What is refused", "", "| | why |", "|---|---|"]
    reasons: dict[str, list[str]] = {}
    for op, why in refusals.OPERATORS.items():
        reasons.setdefault(why, []).append(op)
    lines += [f"| {', '.join(f'`{op}`' for op in ops)} | {why} |" for why, ops in reasons.items()]
    lines += [f"| {case} | {why} |" for case, why in (refusals.CASES | refusals.TYPES).items()]
    before = ", ".join(f"`{op}` {version}" for op, version in sorted(refusals.CHANGED.items()))
    lines.append(
        f"| before opset: {before} | where it has no row: it was another operator, which onnx.reference has not |"
    )
    return [*lines, ""]


def _cases(results: dict[str, Any]) -> list[str]:
    total = results["total"]
    lines = [
        "## The node cases of the onnx package",
        "",
        f"Of {total['cases']} cases of onnx {results['onnx']}, {total['run']} run with the case's result, within its "
        "tolerances (two units in the last place",
        f"of float16 and bfloat16), {total['refused']} are refused, {total['wrong'] + total['error']} wrong or fail. "
        "A case of an operator's function body counts as one of the operator.",
        "",
        "| operator | " + " | ".join(_KINDS[:4]) + " |",
        "|---|" + "---|" * 4,
    ]
    rows = {**results["operators"], "**all**": total}
    lines += [f"| {op} | " + " | ".join(str(n.get(kind) or "") for kind in _KINDS[:4]) + " |" for op, n in rows.items()]
    return [*lines, ""]


def _wrapped(head: str, names: Iterable[str]) -> list[str]:
    return textwrap.wrap(f"{head}: " + ", ".join(f"`{name}`" for name in names), 120, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(text())
