"""The console script `kfusion`. Each subcommand is a module with `add(subcommands)` that sets `run`."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence

from .. import _core
from . import bench, cache, demo, devices, plan, savings, traffic, tune

_SUBCOMMANDS = (demo, bench, savings, plan, tune, traffic, devices, cache)
_EXPECTED = (
    ValueError,
    TypeError,
    OSError,
    OverflowError,
    RuntimeError,
    ImportError,
    MemoryError,
    AssertionError,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        argv: the arguments after the program's name; the process's own by default.

    Returns:
        The exit status: 0 (of no arguments too, which print the help), 2 after an error (one sentence on stderr), 130
        after Ctrl-C.
    """
    try:
        args = _parsed(sys.argv[1:] if argv is None else list(argv))
        args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("kfusion: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe went away, as `| head` does: nothing left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except _EXPECTED as error:
        text = str(error).strip() or type(error).__name__
        print(text if text.startswith("kfusion") else f"kfusion: {text}", file=sys.stderr)
        return 2
    return 0


def _parsed(argv: list[str]) -> argparse.Namespace:
    """The arguments as the parser reads them; for an unknown command it says which may be meant."""
    parser = _parser()
    commands = [module.__name__.rpartition(".")[2] for module in _SUBCOMMANDS]
    if argv and not argv[0].startswith("-") and argv[0] not in commands:
        close = difflib.get_close_matches(argv[0], commands, n=1)
        known = f"did you mean {close[0]}?" if close else f"the commands are {', '.join(commands)}"
        parser.error(f"there is no command {argv[0]!r}; {known}")
    return parser.parse_args(argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kfusion", description="Shows what kernel fusion saves, and proves it by measuring."
    )
    parser.add_argument("--version", action="version", version=f"kfusion {_core.__version__}")
    parser.set_defaults(run=lambda args: parser.print_help())
    subcommands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in _SUBCOMMANDS:
        module.add(subcommands)
    return parser
