"""`kfusion tune`: measures who computes a function's kernels fastest, for plans to come. The file is executed."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .. import _progress, _spec, _tune, _user_code
from . import targets
from .options import add_arrays

_WHO = "kfusion tune"


def add(subcommands: Any) -> None:
    """Adds the subcommand to argparse's subparsers."""
    parser = subcommands.add_parser(
        "tune",
        help="measure who computes a function's kernels fastest, for plans to come",
        description="Measures the kernels about which the function's plan has a choice, on random numbers, and keeps "
        "the times in the folder of compiled kernels (kfusion cache): plans of any process choose by them, unless "
        "KFUSION_TUNE=off. The function's file is executed, as an import does.",
    )
    parser.add_argument("target", metavar="FUNCTION", help=targets.HELP)
    add_arrays(parser, "4096x1024 or 1024:bfloat16")
    parser.add_argument(
        "--like", choices=("numpy", "torch"), default="numpy", help="whose arrays (default: %(default)s)"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1 (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Measures, and prints what was found."""
    function, shapes = targets.load(args.target, args.shape, _WHO)
    specs = [_spec.spec(shape, dtype or args.dtype, like=args.like, device=args.device) for shape, dtype in shapes]
    _user_code.require_arguments(function, specs, _WHO)
    with _progress.reporting() as report:
        tuned = _tune.tune(function, *specs, progress=report)
    print(json.dumps(tuned.to_dict(), indent=2) if args.json else tuned)
