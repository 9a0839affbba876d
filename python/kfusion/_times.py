"""The times that `kfusion.tune` has measured: a file beside the compiled kernels, for plans of any process."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import _core, _files, _json

FILE = "times.json"
_SCHEMA = 1
_WHO = "kfusion.tune"
_lock = threading.RLock()
_seen: Any = None  # the state of the file that the planner knows


def path() -> Path | None:
    """Where times are kept; None where nothing is to be.

    Raises:
        ValueError: KFUSION_CACHE_DIR or KFUSION_TUNE has a value that makes no sense.
    """
    folder = _core.cache_directory() if _is_on() else ""
    return Path(folder) / FILE if folder else None


def refresh() -> None:
    """Lets plans choose by what the file says now, if that is new. A damaged file is ignored, with a warning."""
    global _seen
    is_on = _is_on()
    try:
        file = path() if is_on else None
    except ValueError:  # of the folder: who keeps something there says so
        file = None
    state = _state(file)
    if state == _seen:
        return
    with _lock:
        times = _times(_read(file)) if file is not None and state[1] is not None else {}
        if times or _seen is not None:
            _core.set_measured(times)
        _seen = state


def add(device: str, kernels: dict[str, dict[str, Any]]) -> Path | None:
    """Keeps what was measured of kernels, by their keys, beside what the file has.

    Returns:
        The file; None where nothing is kept.

    Raises:
        OSError: it cannot be written.
    """
    file = path()
    if file is None:
        return None
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _lock, _alone(file):
        devices = _read(file) if file.exists() else {}
        devices.setdefault(device, {}).update(kernels)
        with _files.replacing(file) as temporary:
            Path(temporary).write_text(_json.dumps({"schema": _SCHEMA, "devices": devices}, 1), "utf-8")
    refresh()
    return file


def versions(library: str) -> dict[str, str]:
    """What times depend on beside the device and the kernel, whose products are those of `library`."""
    found = {"kfusion": _core.__version__, "isa": _core.isa(), "numpy": np.__version__}
    if library != "numpy" and library in sys.modules:
        found[library] = str(sys.modules[library].__version__)
    return found


def _is_on() -> bool:
    wanted = os.environ.get("KFUSION_TUNE", "")
    if wanted not in ("", "on", "off"):
        raise ValueError(f"kfusion: KFUSION_TUNE must be on or off, got {wanted!r}")
    return wanted != "off"


def _state(file: Path | None) -> Any:
    """Differs where the file, or what its times depend on, does."""
    torch = getattr(sys.modules.get("torch"), "__version__", None)
    try:
        s = None if file is None else os.stat(file)
    except OSError:
        s = None
    return file, s and (s.st_mtime_ns, s.st_size, s.st_ino), torch, _core.isa()


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """The times by device and key."""
    try:
        if hasattr(os, "getuid") and os.stat(file).st_uid != os.getuid():
            raise ValueError("it belongs to another user")
        plain = _json.loads(file.read_text("utf-8"), str(file))
        if type(plain) is not dict or plain.get("schema") != _SCHEMA:
            raise ValueError(f"its schema is not {_SCHEMA}")
        _check(plain["devices"])
        devices: dict[str, dict[str, Any]] = plain["devices"]
        return devices
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        warnings.warn(f"{_WHO}: {file} is ignored: {error}", RuntimeWarning, stacklevel=2)
        return {}


def _check(devices: dict[str, dict[str, Any]]) -> None:
    """Raises what `_read` handles where a record is none."""
    for kernels in devices.values():
        for record in kernels.values():
            if type(record["versions"]) is not dict:
                raise TypeError("versions are no dict")
            for executor, us in record["times_us"].items():
                if type(executor) is not str or type(us) not in (int, float) or not 0 < us < 1e12:
                    raise ValueError(f"{us!r} is no time")


def _times(devices: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Those that hold for what this process has loaded."""
    return {
        device: {key: r["times_us"] for key, r in kernels.items() if _holds(r["versions"])}
        for device, kernels in devices.items()
    }


def _holds(wanted: dict[str, str]) -> bool:
    libraries = [name for name in wanted if name not in ("kfusion", "isa", "numpy")]
    here = versions("numpy")
    for name in libraries:
        here |= versions(name)
    return here == wanted


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    """No other process changes the file meanwhile, where the system has locks for that."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
