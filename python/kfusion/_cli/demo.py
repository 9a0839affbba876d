"""`kfusion demo`: ReLU + LayerNorm fused and unfused on random data, checked and measured: the result, then why."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _core, _files, _named, _pictures, _progress
from .._compare import comparison_plot
from .._compare import peers as _peers
from .._compare.compare import compare
from .._compare.comparison import Comparison
from .._devices import hardware
from . import demo_text
from .options import parse_positive, parse_shape

_DTYPES = ("float16", "bfloat16", "float32", "float64")
_FIRST_SHAPE = (4096, 1024)  # the CuPy experiment's
_LARGE_COLS = 4096
_LARGE_BYTES = 2**29  # input and output together are twice that
_ARRAYS = 8  # of x's size at once: x, result, and up to six temporaries of the peers
_BLOCK = 2**22
_REPEATS = 9  # enough for a median; more is what --full is for


def add(subcommands: Any) -> None:
    """Adds the subcommand to argparse's subparsers."""
    parser = subcommands.add_parser(
        "demo",
        help="measure fused against unfused ReLU + LayerNorm on this machine, in seconds",
        description="Checks fused and unfused ReLU + LayerNorm against float64, and measures them beside NumPy (on a "
        "GPU torch, where it is installed) and a copy of the same bytes. Prints the result, why it is so, and a table, "
        "and saves a picture.",
    )
    parser.add_argument(
        "--shape",
        type=parse_shape,
        action="append",
        metavar="ROWSxCOLS",
        help="shape to measure, may be repeated (default: 4096x1024; with --full also one beyond every cache)",
    )
    parser.add_argument("--dtype", choices=_DTYPES, default="float32", help="default: %(default)s")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: the GPU if any")
    parser.add_argument("--out", default="kfusion_demo.png", metavar="PICTURE", help="default: %(default)s")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="write JSON to FILE, or instead of the tables to stdout"
    )
    parser.add_argument("--repeats", type=parse_positive, metavar="N", help="samples of each version")
    parser.add_argument(
        "--peers",
        type=parse_peers,
        metavar="NAMES",
        help=f"libraries to measure too, of {','.join(_peers.PEERS)}; or none (default: numpy, on a GPU torch; with "
        "--full all that are installed)",
    )
    parser.add_argument(
        "--full", action="store_true", help="a second shape, with caches empty and full, and every library: minutes"
    )
    parser.set_defaults(run=run)


def parse_peers(text: str) -> list[str]:
    """ "numpy,torch" -> ["numpy", "torch"]; "none" -> []."""
    names = [] if text == "none" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in _peers.PEERS:
            raise argparse.ArgumentTypeError(f"unknown library {name!r}; known are {', '.join(_peers.PEERS)}")
    return names


def run(args: argparse.Namespace) -> None:
    """Checks the outputs' paths, measures each shape, prints and saves."""
    _pictures.check_path(args.out)
    if args.json not in (None, "-"):
        _files.check_writable(args.json)
    cuda = args.device == "cuda" or (args.device == "auto" and _core.cuda_device_count() > 0)
    dtype = numpy_dtype(args.dtype)
    shapes = args.shape or [_FIRST_SHAPE, *([_large_shape(dtype.itemsize)] if args.full else [])]
    for shape in shapes:
        _require_memory(shape, dtype.itemsize)
    options: dict[str, Any] = {"cache": None, "repeats": args.repeats}
    if not args.full:
        options = {"cache": "cold", "repeats": args.repeats or _REPEATS}
    with _progress.reporting() as report:
        options["peers"] = _default_peers(cuda, full=args.full) if args.peers is None else args.peers
        for name in options["peers"]:
            report(0.0, f"importing {name}")
            _peers.load(name)
        comparisons = [
            _compare_one(shape, dtype, cuda, options, report.part(i, len(shapes))) for i, shape in enumerate(shapes)
        ]
        report(1.0, "done")
    _pictures.save(comparison_plot.draw(comparisons), args.out)
    _print(comparisons, args)


def _compare_one(
    shape: tuple[int, ...], dtype: np.dtype[Any], cuda: bool, options: Any, report: Callable[[float, str], None]
) -> Comparison:
    report(0.0, "random data")
    x: Any = random_array(shape, dtype)
    if cuda:
        x = _core.to_device(x)
    return compare(vars(_named)["fused_relu_layernorm"], x, progress=report, **options)


def _print(comparisons: list[Comparison], args: argparse.Namespace) -> None:
    text = json.dumps([c.to_dict() for c in comparisons], indent=2)
    if args.json == "-":
        print(text)
        print(f"Picture: {args.out}", file=sys.stderr)
        return
    if args.json is not None:
        with _files.replacing(args.json) as temporary, open(temporary, "w") as file:
            file.write(text + "\n")
    print(demo_text.text(comparisons, args.out, full=args.full))


def random_array(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int = 0) -> np.ndarray:
    """Standard normal numbers; one block, repeated, because drawing a gigabyte takes longer than measuring it."""
    size = int(np.prod(shape, dtype=np.int64))
    block = np.random.default_rng(seed).standard_normal(min(size, _BLOCK), dtype=np.float32).astype(dtype)
    return np.resize(block, size).reshape(shape)


def numpy_dtype(name: str) -> np.dtype[Any]:
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise ValueError("--dtype bfloat16 needs the package ml_dtypes (pip install ml_dtypes)") from None
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def _large_shape(itemsize: int) -> tuple[int, int]:
    available = hardware.available_memory_bytes() or 2**33
    rows = min(_LARGE_BYTES, available // (2 * _ARRAYS)) // (_LARGE_COLS * itemsize)
    return (max(rows, 1), _LARGE_COLS)


def _require_memory(shape: tuple[int, ...], itemsize: int) -> None:
    available = hardware.available_memory_bytes()
    needed = int(np.prod(np.array(shape, dtype=object))) * max(itemsize, 4) * _ARRAYS
    if available is not None and needed > available:
        raise MemoryError(
            f"--shape {'x'.join(map(str, shape))} needs about {needed / 1e9:.1f} GB of memory here, "
            f"{available / 1e9:.1f} GB are available"
        )


def _default_peers(cuda: bool, *, full: bool) -> list[str]:
    """What a reader would use otherwise; with `full` all that are installed, whose imports take seconds."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the GPU's memory
    fit = ("torch", "cupy") if cuda else ("numpy", "torch", "jax")
    found = [name for name in fit if importlib.util.find_spec(name) is not None]
    return found if full else found[:1]
