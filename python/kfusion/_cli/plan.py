"""`kfusion plan`: what a function of a file of yours would become. The file is executed, as an import does."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any

from .. import _files, _json, _pictures, _spec, _user_code
from .._core import Graph
from .._devices import devices
from .._graph import source
from .._plans.against import Against
from .._plans.plan import Plan
from .._plans.planned import plan
from .._plans.sweep import Sweep
from .._plans.sweeping import sweep
from . import targets
from .options import add_arrays, parse_array, parse_positive

_WHO = "kfusion plan"
_ONE_EACH = "--against compares one plan with another: without --sweep, and of one device each"
_OUTPUTS = ("against", "top", "modules", "json", "html", "plot")


def add(subcommands: Any) -> None:
    """Adds the subcommand to argparse's subparsers."""
    parser = subcommands.add_parser(
        "plan",
        help="plan a function into kernels: what fusing saves, and why pairs stay apart",
        description="Traces a function on arrays of the given shapes, plans it into kernels, counts bytes and FLOPs, "
        "and predicts times. The function's file is executed, as an import does, and so is the function, on values "
        "that record instead of computing: name only files that you trust. No array is computed, and no GPU is needed.",
    )
    _add_arguments(parser)
    parser.set_defaults(run=run)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="FUNCTION",
        nargs="?",
        help=f"{targets.HELP}; or {targets.READ}",
    )
    add_arrays(parser, "4096x1024, 1024:bfloat16 or, of named sizes, Nx1024", parse_sized_array)
    parser.add_argument("--default-size", type=int, metavar="N", help="of its symbols without one")
    parser.add_argument(
        "--like", choices=("numpy", "torch"), default="numpy", help="whose arrays (default: %(default)s)"
    )
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        help="a name from `kfusion devices`, cuda:0 or cpu (default: the GPU, else H200); several give a table",
    )
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        type=_parse_size,
        metavar="NAME=N",
        help="a named size, of shapes or of a model.onnx; repeatable",
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        type=_parse_sweep,
        metavar="NAME=N,N,...",
        help="plan for each value of a named size, also 1..4096 by doubling: a table, and where the bound changes",
    )
    parser.add_argument(
        "--against",
        metavar="ARGUMENTS",
        help="the plan of other arguments beside it: a FUNCTION, options such as '--dtype bfloat16', or both, in one "
        "word; what is not given is as for the first",
    )
    _add_choices(parser)
    parser.add_argument("--top", type=parse_positive, metavar="N", help="print only the N fusions that save most")
    parser.add_argument("--modules", action="store_true", help="print only what each torch module costs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the tables")
    parser.add_argument("--html", metavar="FILE", help="write a page with tables and pictures")
    parser.add_argument("--plot", metavar="PICTURE", help="write the pictures")


def _add_choices(parser: argparse.ArgumentParser) -> None:
    """The options that say which kernels there may be."""
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


def run(args: argparse.Namespace) -> None:
    """Checks the outputs' paths, plans, writes and prints."""
    if args.plot is not None:
        _pictures.check_path(args.plot)
    if args.html is not None:
        _files.check_writable(args.html)
    if args.html is not None and (args.sweep or args.against or len(args.device) > 1):
        raise ValueError(f"{_WHO}: --html is for one plan, without --sweep, --against or several devices")
    if args.plot is not None and args.against:
        raise ValueError(f"{_WHO}: --plot is for a plan or a sweep, without --against")
    _check(args)
    made: Plan | Sweep | Against = _made(args)
    if isinstance(made, Plan) and args.against is not None:
        made = made.against(_one_plan(_other(args)))
    if isinstance(made, Plan) and (args.top or args.modules):
        print(_text(made.top(args.top) if args.top else made.by_module(), args))
    else:
        print(_text(made, args))
    _write(made, args)


def _check(args: argparse.Namespace) -> None:
    """Raises ValueError for options that would be ignored."""
    if args.top and args.modules:
        raise ValueError(f"{_WHO}: --top or --modules, not both")
    if (args.top or args.modules) and (args.sweep or args.against or len(args.device) > 1):
        raise ValueError(f"{_WHO}: --top and --modules are for one plan, without --sweep, --against or several devices")
    names = [name for name, _ in (*args.size, *args.sweep)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{_WHO}: the size {twice[0]} is given twice, by --size or --sweep")
    known = {d.name for d in devices.devices()}
    if lists := [name for name in args.device if "," in name and name not in known]:
        each = " ".join(f"--device {name.strip()}" for name in lists[0].split(","))
        raise ValueError(f"{_WHO}: repeat --device for several devices: {each}")


def _text(made: Any, args: argparse.Namespace) -> str:
    return made.to_json(indent=2) if args.json else str(made)


def _write(made: Plan | Sweep | Against, args: argparse.Namespace) -> None:
    messages = sys.stderr if args.json else sys.stdout
    if args.html is not None and isinstance(made, Plan):
        with _files.replacing(args.html) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.write(made.to_html())
        print(f"Page: {args.html}", file=messages)
    if args.plot is not None and isinstance(made, (Plan, Sweep)):
        made.plot(args.plot)
        print(f"Picture: {args.plot}", file=messages)


def _other(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments of the other plan: those of --against, and the first one's where it says nothing."""
    parser = argparse.ArgumentParser(prog=f"{_WHO} --against", add_help=False)
    _add_arguments(parser)
    first = vars(args)
    lists: dict[str, Any] = {name: [] for name, value in first.items() if isinstance(value, list)}
    other = parser.parse_args(shlex.split(args.against), argparse.Namespace(**first | lists | dict.fromkeys(_OUTPUTS)))
    if outputs := [name for name in _OUTPUTS if getattr(other, name)]:
        raise ValueError(f"{_WHO}: --{outputs[0]} is about what is printed, and has no place within --against")
    if other.sweep or len(other.device) > 1:
        raise ValueError(f"{_WHO}: {_ONE_EACH}")
    _check(other)
    for name in ("target", *lists):
        if not getattr(other, name):
            setattr(other, name, first[name])
    return other


def _one_plan(args: argparse.Namespace) -> Plan:
    made = _made(args)
    if not isinstance(made, Plan):
        raise ValueError(f"{_WHO}: {_ONE_EACH}")
    return made


def _made(args: argparse.Namespace) -> Plan | Sweep:
    """The plan, or the table of several."""
    if args.target is None:
        raise ValueError(f"{_WHO}: FUNCTION is needed: {targets.HELP}; or {targets.READ}")
    if args.against is not None and (args.sweep or len(args.device) > 1):
        raise ValueError(f"{_WHO}: {_ONE_EACH}")
    if args.target.endswith((".json", ".onnx")):
        _files.require_file(args.target, _WHO)
    if args.target.endswith(".json"):
        if args.shape or args.size or args.sweep:
            raise ValueError(f"{_WHO}: a graph has its shapes; --shape is for functions")
        return _planned(_read_graph(args.target), [], args)
    if args.target.endswith(".onnx"):
        if args.shape:
            raise ValueError(f"{_WHO}: a model has its shapes; --shape is for functions, --size for a model's symbols")
        return _planned(args.target, [], args)
    if args.default_size is not None:
        raise ValueError(f"{_WHO}: --default-size is for the symbols of a model.onnx")
    function, shapes = targets.load(args.target, args.shape, _WHO)
    specs = [_spec.spec(shape, dtype or args.dtype, like=args.like) for shape, dtype in shapes]
    _user_code.require_arguments(function, specs, _WHO)
    try:
        return _planned(function, specs, args)
    except Exception as error:
        if source.raised_by_kfusion(error):
            raise
        what = f"{_WHO}: {args.target.rpartition(':')[2]} cannot be traced: {type(error).__name__}: {error}"
        line = source.raised_line(error.__traceback__)
        raise RuntimeError("\n  ".join(filter(None, (what, line)))) from error


def _planned(function: Any, specs: list[Any], args: argparse.Namespace) -> Plan | Sweep:
    sizes = dict(args.size)
    where: dict[str, Any] = (
        {"devices": args.device} if len(args.device) > 1 else {"device": next(iter(args.device), None)}
    )
    if args.sweep:
        if args.no_fuse or args.allow or args.forbid:
            raise ValueError(f"{_WHO}: --sweep plans what is possible, without --no-fuse, --allow and --forbid")
        default = {} if args.default_size is None else {"default_size": args.default_size}
        fixed = {name: [n] for name, n in (sizes | default).items()}
        swept: dict[str, Any] = fixed | dict(args.sweep)
        return sweep(function, *specs, executors=args.executors, **where, **swept)
    symbols = {} if args.default_size is None else {"default_size": args.default_size}
    options = {"fuse": not args.no_fuse, "allow": args.allow, "forbid": args.forbid, "executors": args.executors}
    made: Plan | Sweep = plan(function, *specs, **where, **options, **symbols, sizes=sizes)
    return made


def _read_graph(path: str) -> Graph:
    """A graph's JSON, or the graph in a plan's."""
    plain = _json.read(path, _WHO)
    return Graph.from_dict(plain["unfused_graph"] if isinstance(plain, dict) and "unfused_graph" in plain else plain)


def parse_sized_array(text: str) -> tuple[tuple[int | str, ...], str | None]:
    """Reads an array whose extents may be names of sizes: "Nx1024". A name has no x in it."""
    shape, colon, dtype = text.partition(":")
    names = shape.split("x")
    if not any(name.isidentifier() for name in names):
        return parse_array(text)
    parse_array("1" + colon + dtype)
    if not all(name.isidentifier() or (name.isascii() and name.isdigit()) for name in names):
        raise argparse.ArgumentTypeError(
            f"a shape is numbers and names of sizes joined by x, such as Nx1024; got {text!r}"
        )
    return tuple(int(name) if name.isdigit() else name for name in names), dtype or None


def _parse_size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name.isidentifier() or not (number.isascii() and number.isdigit()):
        raise argparse.ArgumentTypeError(f"must be a name and a number, such as N=8; got {text!r}")
    return name, int(number)


def _parse_sweep(text: str) -> tuple[str, list[int]]:
    """ "N=1,2,4" -> ("N", [1, 2, 4]); "N=1..8" doubles: [1, 2, 4, 8]."""
    name, _, listed = text.partition("=")
    values: list[int] = []
    for part in listed.split(","):
        first, dots, last = part.partition("..")
        if not name.isidentifier() or not all(
            n.isascii() and n.isdigit() and int(n) > 0 for n in (first, last or first)
        ):
            raise argparse.ArgumentTypeError(f"must be a name and numbers, such as N=1,2,4 or N=1..4096; got {text!r}")
        n = int(first)
        if int(last or first) < n:
            raise argparse.ArgumentTypeError(f"must go from less to more, such as N=1..64; got {text!r}")
        values.append(n)
        while dots and 2 * n <= int(last or first):
            n *= 2
            values.append(n)
    return name, values


def _parse_executors(text: str) -> str | list[str]:
    return text if text == "available" else text.split(",")


def _parse_pair(text: str) -> tuple[str, str]:
    names = text.split(",")
    if len(names) != 2 or not all(names):
        raise argparse.ArgumentTypeError(f"must be two names joined by a comma, such as relu,sum; got {text!r}")
    return names[0], names[1]
