"""`kfusion bench`: hands its arguments to the benchmarks of a checkout."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from . import checkout


def add(subcommands: Any) -> None:
    """Adds the subcommand to argparse's subparsers."""
    parser = subcommands.add_parser(
        "bench", help="measure suites of fused kernels beside a copy and other libraries (in a checkout)"
    )
    parser.parse_known_args = _taken  # all that follows is for another parser, which is imported only when it is asked


def _taken(arguments: Sequence[str], _: object = None) -> tuple[argparse.Namespace, list[str]]:
    return argparse.Namespace(run=lambda _: checkout.benchmarks("cli", "kfusion bench").main(arguments)), []
