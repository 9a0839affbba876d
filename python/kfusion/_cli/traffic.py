"""`kfusion traffic`: predicted bytes beside those that the GPU's counters saw."""

from __future__ import annotations

import argparse
from typing import Any

from .. import _json, _spec
from .._traffic import traffic
from . import checkout, targets
from .options import add_arrays

_WHO = "kfusion traffic"


def add(subcommands: Any) -> None:
    """Adds the subcommand to argparse's subparsers."""
    parser = subcommands.add_parser(
        "traffic",
        help="run a function's kernels under the GPU's counters: predicted against measured bytes",
        description="Runs a function's kernels, fused and unfused, on random numbers under the GPU's hardware counters "
        "(needs an NVIDIA GPU and ncu of NVIDIA Nsight Compute), and prints the bytes that the plan predicts beside "
        "those that went through memory.",
    )
    parser.add_argument(
        "target",
        metavar="FUNCTION",
        nargs="?",
        help=targets.HELP,
    )
    add_arrays(parser, "65536x8192 or 8192:bfloat16")
    parser.add_argument(
        "--suite", action="store_true", help="every fused row and pointwise kernel, instead of one (in a checkout)"
    )
    parser.add_argument(
        "--gigabytes",
        type=_parse_gigabytes,
        default=4,  # dirty lines that stay in an L2 cache are less than 3 % of it
        metavar="N",
        help="that each kernel of the suite moves at least (default: %(default)s)",
    )
    parser.add_argument("--commit", metavar="ID", help="what the suite measures, where git cannot say")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the tables")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Measures and prints."""
    if args.suite == (args.target is not None):
        raise ValueError(f"{_WHO}: give a function, or --suite and none")
    if args.suite:
        _print_suite(args)
        return
    specs = tuple(_spec.spec(shape, dtype or args.dtype) for shape, dtype in args.shape)
    measured = traffic.measure([traffic.Request(_target(args.target), specs)])[0]
    print(_json.dumps(measured.to_dict(), 2) if args.json else measured)


def _print_suite(args: argparse.Namespace) -> None:
    command = f"kfusion traffic --suite --gigabytes {args.gigabytes}"
    suite = checkout.benchmarks("traffic_suite", _WHO)
    results = suite.run(args.gigabytes * 10**9, command, args.commit)
    if args.json:
        print(results.to_json())
        return
    for table in (results.by_width(), results.saved()):
        print(table.plain())
    count, outside = len(results.cases), results.outside
    print("\n  ".join([f"{count - len(outside)} of {count} are within 3 %.", *outside]))


def _target(text: str) -> str:
    """A bare name is a named kernel's."""
    if ":" in text:
        return text
    return f"kfusion:fused_{targets.named(text, _WHO).__name__}"


def _parse_gigabytes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1000):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 1000, got {text!r}")
    return int(text)
