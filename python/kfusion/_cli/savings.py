"""`kfusion savings`: the calculator on a file."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from typing import Any

from .. import _core, _files, _json
from .._tables import Table, byte_unit, in_unit, wrapped
from .options import parse_positive

_WHO = "kfusion savings"
_MAX_ROWS = 40


def add(subcommands: Any) -> None:
    """Adds the subcommand to argparse's subparsers."""
    parser = subcommands.add_parser(
        "savings",
        help="bytes that a chain of operations moves, unfused and fused",
        description='Reads a JSON list of operations, {"name": ..., "input_size": ..., "output_size": ...} with sizes '
        "in elements, and prints what fusing the chain saves.",
    )
    parser.add_argument("ops", metavar="FILE", help="the JSON file; - reads standard input")
    parser.add_argument("--dtype-bytes", type=parse_positive, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the tables")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Reads, calculates, prints."""
    _files.require_file(args.ops, _WHO)
    ops = _json.read(args.ops, _WHO)
    if not isinstance(ops, list):
        raise ValueError(f"{_WHO}: {args.ops} must hold a list of operations, got {type(ops).__name__}")
    result = _core.savings(ops, dtype_bytes=args.dtype_bytes)
    print(_json.dumps(result, 2) if args.json else "\n".join(_lines(ops, result, args.dtype_bytes)))


def _lines(ops: Sequence[dict[str, Any]], result: dict[str, Any], dtype_bytes: int) -> list[str]:
    unit, size = byte_unit(result["unfused_bytes"])
    if not ops:
        return ["No operations: nothing is moved."]
    rows = [
        (str(op.get("name", i)), *(in_unit(op[key] * dtype_bytes, size) for key in ("input_size", "output_size")))
        for i, op in enumerate(ops[:_MAX_ROWS])
    ]
    more = f", the first {_MAX_ROWS} of {len(ops)}" if len(ops) > _MAX_ROWS else ""
    table = Table(f"Unfused{more}", ("operation", f"read {unit}", "written"), tuple(rows))
    unfused, fused, saved = (in_unit(result[f"{k}_bytes"], size) for k in ("unfused", "fused", "savings"))
    summary = (
        f"Unfused {unfused} {unit}, fused {fused} {unit}: fusing saves {saved} {unit} ({result['savings_pct']:g}%), "
        f"{result['speedup_estimate']:g}x as fast where bytes are all that counts."
    )
    return [table.plain(), wrapped(summary, shutil.get_terminal_size((80, 24)).columns)]
