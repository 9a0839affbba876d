"""The table from ONNX operators to kfusion's functions. Rows are entered by the modules `rows_*`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Build = Callable[..., Any]


class Row(NamedTuple):
    """How an operator is built: `build(interpreter, node, *inputs)` gives its outputs. It holds from opset `since` on.
    `kind` says what becomes of it in a plan: "kernel", "view" or "join".
    """

    build: Build
    since: int
    kind: str
    is_onnxs: bool  # whether onnx has a schema of the operator


ROWS: dict[tuple[str, str], Row] = {}  # by domain and operator


def row(
    *ops: str, since: int = 1, kind: str = "kernel", domain: str = "", one: bool = False
) -> Callable[[Build], Build]:
    """Enters a builder for operators of a domain. `one`: what it makes is one stage, named after the operator."""

    def enter(build: Build) -> Build:
        for op in ops:
            assert (domain, op) not in ROWS, op
            ROWS[domain, op] = Row(
                _in_one_stage(build, op.lower()) if one else build, since, kind, domain != "com.microsoft"
            )
        return build

    return enter


def _in_one_stage(build: Build, name: str) -> Build:
    def staged(at: Any, node: Any, *inputs: Any) -> Any:
        with at.tracer.stage(name):
            return build(at, node, *inputs)

    return staged


_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # of GridSample before opset 20


def aliased(proto: Any, opsets: dict[str, int]) -> tuple[Any, dict[str, int]]:
    """A node as the operator that took its place: Scatter is ScatterElements from opset 11 on, and GridSample's modes
    have other names from opset 20 on, which are the only ones that onnx.reference knows.
    """
    if proto.op_type not in ("Scatter", "GridSample") or proto.domain not in ("", "ai.onnx"):
        return proto, opsets
    copy = type(proto)()
    copy.CopyFrom(proto)
    if proto.op_type == "Scatter":
        copy.op_type = "ScatterElements"
        return copy, opsets | {"": max(11, opsets.get("", 0))}
    for attribute in copy.attribute:
        if attribute.name == "mode" and opsets.get("", 0) < 20:
            name = attribute.s.decode("utf-8", "replace")
            attribute.s = _MODES.get(name, name).encode()
    return copy, opsets | {"": max(20, opsets.get("", 0))}
