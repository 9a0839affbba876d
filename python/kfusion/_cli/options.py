"""What options of several commands are read by."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from .._spec import DTYPES


def add_arrays(parser: argparse.ArgumentParser, example: str, parse: Callable[[str], Any] | None = None) -> None:
    """The options that say what arrays a function is given; `parse` reads one of them."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        type=parse or parse_array,
        metavar="SHAPE[:DTYPE]",
        help=f"of one array, such as {example}; once for each, in the function's order",
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="of shapes without one (default: %(default)s)"
    )


def parse_array(text: str) -> tuple[tuple[int, ...], str | None]:
    """ "4096x1024:bfloat16" -> ((4096, 1024), "bfloat16")."""
    shape, colon, dtype = text.partition(":")
    if colon and dtype not in DTYPES:
        raise argparse.ArgumentTypeError(f"the dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return parse_shape(shape), dtype or None


def parse_shape(text: str) -> tuple[int, ...]:
    """ "4096x1024" -> (4096, 1024); any number of axes, all positive."""
    parts = text.lower().split("x")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"a shape is positive numbers joined by x, such as 4096x1024; got {text!r}")
    return tuple(map(int, parts))


def parse_positive(text: str) -> int:
    """A number of at least 1."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"must be a number of at least 1, got {text!r}")
    return int(text)
