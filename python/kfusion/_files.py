"""Output files: whole or not at all, and bad paths found before the work rather than after it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

StrPath = str | os.PathLike[str]


def check_writable(path: StrPath) -> None:
    """Raises OSError where `replacing` could not write path."""
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a file")
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"the folder of {path} does not exist")
    if not os.access(Path(path).parent, os.W_OK | os.X_OK):
        raise PermissionError(f"the folder of {path} cannot be written to")


def require_file(path: StrPath, who: str) -> None:
    """Raises FileNotFoundError, in words, where there is no file to read; "-" is standard input."""
    if str(path) != "-" and not Path(path).exists():
        raise FileNotFoundError(f"{who}: there is no file {path}")


@contextmanager
def replacing(path: StrPath) -> Iterator[str]:
    """A temporary file's name beside path; it becomes path on success and vanishes on an error."""
    handle, temporary = tempfile.mkstemp(dir=Path(path).parent, prefix=".", suffix=Path(path).suffix)
    os.close(handle)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # mkstemp's 0600 is not what a new file would have
        os.replace(temporary, path)
    except BaseException:  # Ctrl-C too must leave nothing behind
        os.unlink(temporary)
        raise
