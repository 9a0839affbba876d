"""`kfusion cache`: the compiled kernels that are kept on disk."""

from __future__ import annotations

import argparse
import json
from importlib import metadata
from typing import Any

from .. import _core
from .._tables import byte_unit, in_unit


def add(subcommands: Any) -> None:
    """Adds the subcommand to argparse's subparsers."""
    parser = subcommands.add_parser(
        "cache",
        help="show or clear the compiled kernels that are kept on disk",
        description="Compiled kernels, of CPUs and GPUs, are kept in the folder kfusion of $KFUSION_CACHE_DIR, else of "
        "$XDG_CACHE_HOME, else of ~/.cache, up to $KFUSION_CACHE_MB (256); those not used for longest go first. The "
        "folder must belong to you, and nobody else may write to it.",
    )
    parser.add_argument("--clear", action="store_true", help="remove them all")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Clears if asked to, and prints what there is."""
    removed = _core.clear_kernel_cache() if args.clear else None
    cache = _core.kernel_cache()
    nvrtc, why_no_nvrtc = _nvrtc()
    llvmlite = _llvmlite()
    if args.json:
        print(
            json.dumps(
                {**cache, "nvrtc": nvrtc, "llvmlite": llvmlite, **({"removed": removed} if removed else {})}, indent=2
            )
        )
        return
    if removed:
        print(f"Removed {_kernels(removed['entries'])}, {_size(removed['bytes'])}.")
    print(f"Directory: {cache['directory'] or 'none'}")
    print(f"Content:   {_kernels(cache['entries'])}, {_size(cache['bytes'])} of at most {_size(cache['limit_bytes'])}")
    print(f"NVRTC:     {nvrtc or why_no_nvrtc}")
    print(f"llvmlite:  {llvmlite or 'not installed (pip install llvmlite)'}")
    if cache["problem"]:
        print(f"Nothing is kept: {cache['problem']}.")


def _nvrtc() -> tuple[str | None, str]:
    try:
        return _core.nvrtc_library(), ""
    except _core.DeviceError as error:
        return None, str(error).removeprefix("kfusion: ")


def _llvmlite() -> str | None:
    try:
        return metadata.version("llvmlite")
    except metadata.PackageNotFoundError:
        return None


def _kernels(count: int) -> str:
    return f"{count} kernel" if count == 1 else f"{count} kernels"


def _size(nbytes: int) -> str:
    unit, size = byte_unit(nbytes)
    return f"{in_unit(nbytes, size)} {unit}"
