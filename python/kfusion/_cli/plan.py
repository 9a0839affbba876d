"""`kfusion plan`: what a function of a file of yours would become. The file is executed, as an import does."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .. import _files, _json, _pictures, _spec, _user_code
from .._core import Graph
from .._graph import source
from .._plans import plan as _plan
from .demo import parse_shape

_WHO = "kfusion plan"
DTYPES = ("bool", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def add(subcommands: Any) -> None:
    """Adds the subcommand to argparse's subparsers."""
    parser = subcommands.add_parser(
        "plan",
        help="plan a function into kernels: what fusing saves, and why pairs stay apart",
        description="Traces a function on arrays of the given shapes, plans it into kernels, counts bytes and FLOPs, "
        "and predicts times. The function's file is executed, as an import does, and so is the function, on values "
        "that record instead of computing: name only files that you trust. No array is computed, and no GPU is needed.",
    )
    parser.add_argument(
        "target",
        metavar="FUNCTION",
        help="module.py:function or package.module:function, whose file is executed; or graph.json, model.onnx, which "
        "are only read",
    )
    add_arrays(parser, "4096x1024 or 1024:bfloat16")
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        type=_parse_size,
        metavar="NAME=N",
        help="of a symbol of a model.onnx, such as batch=8; repeatable",
    )
    parser.add_argument("--default-size", type=int, metavar="N", help="of its symbols without one")
    parser.add_argument(
        "--like", choices=("numpy", "torch"), default="numpy", help="whose arrays (default: %(default)s)"
    )
    parser.add_argument("--device", help="a name from `kfusion devices`, cuda:0 or cpu (default: the GPU, else H200)")
    parser.add_argument("--no-fuse", action="store_true", help="one kernel per call")
    for option, what in (("allow", "of calls that may share a kernel, and no others"), ("forbid", "that may not")):
        parser.add_argument(
            f"--{option}",
            action="append",
            default=[],
            type=_parse_pair,
            metavar="A,B",
            help=f"a pair {what}; repeatable",
        )
    parser.add_argument(
        "--executors",
        type=_parse_executors,
        metavar="NAMES",
        help='who runs the kernels: names joined by commas, or "available" for those that there are (default: also '
        "kernels that nobody has written yet)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the tables")
    parser.add_argument("--html", metavar="FILE", help="write a page with tables and pictures")
    parser.add_argument("--plot", metavar="PICTURE", help="write the pictures")
    parser.set_defaults(run=run)


def add_arrays(parser: argparse.ArgumentParser, example: str) -> None:
    """The options that say what arrays a function is given."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        type=parse_array,
        metavar="SHAPE[:DTYPE]",
        help=f"of one array, such as {example}; once for each, in the function's order",
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="of shapes without one (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> None:
    """Checks the outputs' paths, plans, writes and prints."""
    if args.plot is not None:
        _pictures.check_path(args.plot)
    if args.html is not None:
        _files.check_writable(args.html)
    plan = _plan_of(args)
    print(plan.to_json(indent=2) if args.json else plan)
    messages = sys.stderr if args.json else sys.stdout
    if args.html is not None:
        with _files.replacing(args.html) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.write(plan.to_html())
        print(f"Page: {args.html}", file=messages)
    if args.plot is not None:
        plan.plot(args.plot)
        print(f"Picture: {args.plot}", file=messages)


def _plan_of(args: argparse.Namespace) -> _plan.Plan:
    options = {
        "device": args.device,
        "fuse": not args.no_fuse,
        "allow": args.allow,
        "forbid": args.forbid,
        "executors": args.executors,
    }
    if args.target.endswith(".json"):
        if args.shape:
            raise ValueError(f"{_WHO}: a graph has its shapes; --shape is for functions")
        return _plan.plan(_read_graph(args.target), **options)
    if args.target.endswith(".onnx"):
        if args.shape:
            raise ValueError(f"{_WHO}: a model has its shapes; --shape is for functions, --size for a model's symbols")
        return _plan.plan(args.target, sizes=dict(args.size), default_size=args.default_size, **options)
    if args.size or args.default_size is not None:
        raise ValueError(f"{_WHO}: --size is for the symbols of a model.onnx")
    function = _user_code.load(args.target, _WHO)
    specs = [_spec.spec(shape, dtype or args.dtype, like=args.like) for shape, dtype in args.shape]
    _user_code.require_arguments(function, specs, _WHO)
    try:
        return _plan.plan(function, *specs, **options)
    except Exception as error:
        if source.raised_by_kfusion(error):
            raise
        what = f"{_WHO}: {args.target.rpartition(':')[2]} cannot be traced: {type(error).__name__}: {error}"
        line = source.raised_line(error.__traceback__)
        raise RuntimeError("\n  ".join(filter(None, (what, line)))) from error


def _read_graph(path: str) -> Graph:
    """A graph's JSON, or the graph in a plan's."""
    plain = _json.read(path, _WHO)
    return Graph.from_dict(plain["unfused_graph"] if isinstance(plain, dict) and "unfused_graph" in plain else plain)


def parse_array(text: str) -> tuple[tuple[int, ...], str | None]:
    """ "4096x1024:bfloat16" -> ((4096, 1024), "bfloat16")."""
    shape, colon, dtype = text.partition(":")
    if colon and dtype not in DTYPES:
        raise argparse.ArgumentTypeError(f"the dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return parse_shape(shape), dtype or None


def _parse_size(text: str) -> tuple[str, int]:
    name, equals, size = text.rpartition("=")
    if not equals or not name or not size.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a name and a size, such as batch=8; got {text!r}")
    return name, int(size)


def _parse_executors(text: str) -> str | list[str]:
    return text if text == "available" else text.split(",")


def _parse_pair(text: str) -> tuple[str, str]:
    names = text.split(",")
    if len(names) != 2 or not all(names):
        raise argparse.ArgumentTypeError(f"must be two names joined by a comma, such as relu,sum; got {text!r}")
    return names[0], names[1]
