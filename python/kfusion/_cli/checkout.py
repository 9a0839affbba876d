"""The benchmarks, which are part of the source tree and not of the package: those of the checkout that this runs in."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any


def benchmarks(module: str, who: str) -> Any:
    """A module of benchmarks/ of the checkout that the current folder is in.

    Args:
        module: its name.
        who: the command that needs it, for the message.

    Raises:
        ImportError: the current folder is in no checkout.
    """
    here = Path.cwd()
    root = next((str(folder) for folder in (here, *here.parents) if _is_checkout(folder)), None)
    if root is None:
        raise ImportError(
            f"{who}: the benchmarks are part of kfusion's source tree, not of the installed package: get the source "
            "(the repository, or the unpacked sdist) and run the command inside its folder"
        )
    if root not in sys.path:
        sys.path.insert(0, root)
    return importlib.import_module(f"benchmarks.{module}")


def _is_checkout(folder: Path) -> bool:
    project = folder / "pyproject.toml"
    is_ours = project.is_file() and '\nname = "kfusion"\n' in project.read_text(errors="replace")
    return is_ours and (folder / "benchmarks" / "cli.py").is_file()
