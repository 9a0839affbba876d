"""`kfusion bench`: measure, and what can be done with results that there are."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from kfusion import _files, _progress
from kfusion._cli.options import parse_positive

from . import changes, drawn, options, plots, readme, runner, show, suites, targets
from .results import Results

_EPILOG = """\
examples:
  kfusion bench --quick                              a minute on a GPU, some on a CPU
  kfusion bench --out h200.json --plots pictures     all that fits the device
  kfusion bench norms softmax --dtype bfloat16 --peers torch,triton
  kfusion bench --compare before.json after.json     what changed beyond noise
  kfusion bench --targets h200.json                  which of the project's targets hold
  kfusion bench --plot h200.json --plots pictures    pictures of results that there are
  kfusion bench --readme README.md                   the tables and pictures of README and docs/ from results/
"""


def main(arguments: Sequence[str]) -> None:
    """Runs what the arguments say."""
    run(_parser().parse_args(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kfusion bench",
        description="Measures suites of fused kernels. Every version is checked against float64 first; the copy of the "
        "same bytes, timed between all samples, is the yardstick. What is measured goes to a JSON file with the "
        "hardware, the versions and the commit, case by case; Ctrl-C keeps what there is.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(suites.SUITES)} (default: all that "
                        "fit the device)")  # fmt: skip
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: the GPU if any")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cases, no peers that compile slowly")
    parser.add_argument("--dtype", type=_names, metavar="NAMES", help=f"of {','.join(options.DTYPES)} (default: each "
                        "suite's own)")  # fmt: skip
    parser.add_argument("--peers", type=_names, metavar="NAMES", help=f"of {','.join(options.PEERS)}, or none; in all "
                        "cases (default: all that are installed, those that compile slowly in some)")  # fmt: skip
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="cases whose titles have this text, or one of several: 'x 257|x 1023' (see --list)",
    )
    parser.add_argument("--bytes", type=parse_positive, metavar="N", help="of a case's input (default: 256 MB on "
                        "a GPU, 1 GB in all on the CPU, 64 MB with --quick)")  # fmt: skip
    parser.add_argument("--repeats", type=parse_positive, metavar="N", help="samples of each version")
    parser.add_argument("--seconds", type=parse_positive, metavar="N", help="begin no case after that")
    parser.add_argument("--out", default="kfusion_bench.json", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--add", action="store_true", help="add to the results in FILE, in the place of the same cases")
    parser.add_argument("--plots", metavar="FOLDER", help="draw pictures into this folder")
    parser.add_argument("--commit", metavar="ID", help="what is measured, where git cannot say")
    parser.add_argument("--list", action="store_true", help="list the suites and their cases, measure nothing")
    parser.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"), help="compare two results")
    parser.add_argument("--targets", nargs="+", metavar="FILE", help="which of the project's targets results meet")
    parser.add_argument("--plot", metavar="FILE", help="draw results into the folder of --plots")
    parser.add_argument(
        "--readme", metavar="README.md", help="write a README's tables and pictures, and docs/ beside it"
    )
    return parser


def run(args: argparse.Namespace) -> None:
    """One of the actions."""
    if args.compare:
        print(changes.Changes(*map(Results.load, args.compare)))
    elif args.targets:
        print(targets.Targets([Results.load(path) for path in args.targets]))
    elif args.plot:
        _print_paths(plots.save_all(Results.load(args.plot), args.plots or ".", Path(args.plot).stem))
    elif args.readme:
        _print_paths(readme.update(args.readme))
    elif args.list:
        _list(args)
    else:
        _measure(args)


def _options(args: argparse.Namespace) -> options.Options:
    device = options.chosen_device(args.device)
    named = None if args.peers is None else [] if args.peers == ("none",) else args.peers
    peers = options.installed(device) if named is None else options.checked_peers(named, device)
    return options.Options(
        device=device,
        quick=args.quick,
        dtypes=args.dtype,
        peers=peers,
        all_peers=named is not None,
        nbytes=args.bytes,
        repeats=args.repeats,
        processes=1 if args.quick else 2,
        calls=100 if args.quick else 500,
        only=args.only,
        seconds=args.seconds,
    )


def _measure(args: argparse.Namespace) -> None:
    chosen = _options(args)
    _files.check_writable(args.out)
    before = Results.load(args.out) if args.add and Path(args.out).exists() else None
    names = suites.chosen(args.suites, chosen.device)

    def merged(results: Results) -> Results:
        return results if before is None else before.merged(results)

    with _progress.reporting() as report:
        results = runner.run(
            names,
            chosen,
            command=_command(args),
            commit=args.commit,
            progress=report,
            show=lambda case: print(show.line(case), flush=True),
            keep=lambda found: merged(found).save(args.out),
        )
    results = merged(results)
    results.save(args.out)
    print()
    print(show.Tables(results))
    print(targets.Targets([results]))
    print(f"Results: {args.out}")
    if args.plots:
        _print_paths(plots.save_all(results, args.plots, Path(args.out).stem))
    if not results.complete:
        raise KeyboardInterrupt
    if "drawn" in names:
        drawn.require_no_loss(results)


def _command(args: argparse.Namespace) -> str:
    """The command line in a form that does not depend on where files are."""
    isa = os.environ.get("KFUSION_ISA")
    words = [*([f"KFUSION_ISA={isa}"] if isa else []), "kfusion bench", *args.suites]
    words += [f"--only '{args.only}'"] if args.only else []
    words += [f"--device {args.device}"] if args.device != "auto" else []
    words += ["--quick"] if args.quick else []
    named = {"dtype": args.dtype, "peers": args.peers}
    words += [f"--{name} {','.join(value)}" for name, value in named.items() if value]
    numbers = {"bytes": args.bytes, "repeats": args.repeats, "seconds": args.seconds}
    words += [f"--{name} {value}" for name, value in numbers.items() if value]
    return " ".join(words)


def _list(args: argparse.Namespace) -> None:
    chosen = _options(args)
    names = suites.chosen(args.suites, chosen.device) if args.suites else list(suites.SUITES)
    of_all = suites.jobs(names, chosen)
    for name in names:
        jobs = [job for job in of_all if job.suite == name]
        print(f"{name}: {suites.SUITES[name].about} ({len(jobs)} cases)")
        if args.suites:
            for job in jobs:
                print(f"  {job.title}")


def _print_paths(paths: list[Path]) -> None:
    for path in paths:
        print(f"Picture: {path}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))
