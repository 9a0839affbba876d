"""`kfusion demo`: both versions of ReLU + LayerNorm on random data, checked, measured, printed and drawn."""

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

_DTYPES = ("float16", "bfloat16", "float32", "float64")
_FIRST_SHAPE = (4096, 1024)  # the CuPy experiment's
_LARGE_COLS = 4096
_LARGE_BYTES = {False: 2**29, True: 2**27}  # by --quick; input and output together are twice that
_ARRAYS = 8  # of x's size at once: x, result, and up to six temporaries of the peers
_BLOCK = 2**22


def add(subcommands: Any) -> None:
    """Adds the subcommand to argparse's subparsers."""
    parser = subcommands.add_parser(
        "demo",
        help="measure fused against unfused ReLU + LayerNorm on this machine",
        description="Checks fused and unfused ReLU + LayerNorm against float64, measures them, a copy of the same "
        "bytes and other installed libraries, prints tables and saves a picture.",
    )
    parser.add_argument(
        "--shape",
        type=parse_shape,
        action="append",
        metavar="ROWSxCOLS",
        help="shape to measure, may be repeated (default: 4096x1024 and one beyond every cache)",
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
        help=f"libraries to measure too, of {','.join(_peers.PEERS)}; or none (default: all that are installed)",
    )
    parser.add_argument("--quick", action="store_true", help="a smaller second shape")
    parser.set_defaults(run=run)


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
    shapes = args.shape or [_FIRST_SHAPE, _large_shape(dtype.itemsize, quick=args.quick)]
    for shape in shapes:
        _require_memory(shape, dtype.itemsize)
    with _progress.reporting() as report:
        peers = _installed_peers(cuda) if args.peers is None else args.peers
        for name in peers:
            report(0.0, f"importing {name}")
            _peers.load(name)
        comparisons = [
            _compare_one(shape, dtype, cuda, peers, args.repeats, report.part(i, len(shapes)))
            for i, shape in enumerate(shapes)
        ]
    _pictures.save(comparison_plot.draw(comparisons), args.out)
    _print(comparisons, args)


def _compare_one(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    cuda: bool,
    peers: list[str],
    repeats: int | None,
    report: Callable[[float, str], None],
) -> Comparison:
    report(0.0, "random data")
    x: Any = random_array(shape, dtype)
    if cuda:
        x = _core.to_device(x)
    return compare(vars(_named)["fused_relu_layernorm"], x, peers=peers, repeats=repeats, progress=report)


def _print(comparisons: list[Comparison], args: argparse.Namespace) -> None:
    text = json.dumps([c.to_dict() for c in comparisons], indent=2)
    if args.json == "-":
        print(text)
    elif args.json is not None:
        with _files.replacing(args.json) as temporary, open(temporary, "w") as file:
            file.write(text + "\n")
    if args.json != "-":
        for comparison in comparisons:
            print(comparison, end="\n\n")
    print(f"Picture: {args.out}", file=sys.stderr if args.json == "-" else sys.stdout)


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


def _large_shape(itemsize: int, *, quick: bool) -> tuple[int, int]:
    available = hardware.available_memory_bytes() or 2**33
    rows = min(_LARGE_BYTES[quick], available // (2 * _ARRAYS)) // (_LARGE_COLS * itemsize)
    return (max(rows, 1), _LARGE_COLS)


def _require_memory(shape: tuple[int, ...], itemsize: int) -> None:
    available = hardware.available_memory_bytes()
    needed = int(np.prod(np.array(shape, dtype=object))) * max(itemsize, 4) * _ARRAYS
    if available is not None and needed > available:
        raise MemoryError(
            f"--shape {'x'.join(map(str, shape))} needs about {needed / 1e9:.1f} GB of memory here, "
            f"{available / 1e9:.1f} GB are available"
        )


def _installed_peers(cuda: bool) -> list[str]:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the GPU's memory
    fit = ("torch", "cupy") if cuda else ("numpy", "torch", "jax")
    return [name for name in fit if importlib.util.find_spec(name) is not None]
