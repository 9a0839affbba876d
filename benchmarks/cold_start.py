"""What a first call costs, each in a fresh process: with an empty cache on disk, from the disk, and once more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kfusion import _timing

from .inputs import Inputs
from .options import Options
from .results import Measured, Row, rounded

EMPTY, FROM_DISK, AGAIN = "first call, empty cache", "first call, from disk", "second call"
STATES = (EMPTY, FROM_DISK, AGAIN)
_ROOT = str(Path(__file__).resolve().parents[1])  # where processes of their own find this package
_CACHES = ("KFUSION_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR",
           "JAX_COMPILATION_CACHE_DIR")  # fmt: skip


@dataclass(frozen=True)
class FirstCall:
    """The first call of a function of this package's `functions`, by name, on an array that is there already."""

    suite: str
    name: str
    function: str
    shape: tuple[int, ...]
    peers: tuple[str, ...]
    dtype: str = "float32"

    @property
    def title(self) -> str:
        """The case in one line."""
        return f"first call of {self.name}, {'x'.join(map(str, self.shape))}"

    def measure(self, inputs: Inputs, options: Options, report: _timing.Progress) -> Measured:
        """Runs every version in processes of its own."""
        rows: list[Row] = []
        notes: list[str] = []
        versions = ["fused", *(p for p in options.peers if p in self.peers)]
        for i, version in enumerate(versions):
            report(i / len(versions), f"{self.title}: {version}")
            try:
                rows += self._rows(version, inputs, options)
            except RuntimeError as error:
                if version == "fused":
                    raise
                notes.append(f"{version} is left out: {str(error).splitlines()[-1]}")
        return Measured(self.suite, self.name, self.shape, self.dtype, inputs.library, 0, tuple(rows), tuple(notes))

    def _rows(self, version: str, inputs: Inputs, options: Options) -> list[Row]:
        arguments = [version, self.function, "x".join(map(str, self.shape)), inputs.device, self.dtype]
        runs = []
        for _ in range(1 if version != "fused" else options.processes):
            with tempfile.TemporaryDirectory() as empty:
                (cold, _), (disk, again) = (times_ms(arguments, empty) for _ in range(2))
                runs.append((cold, disk, again))
        columns = zip(STATES, np.transpose(runs), strict=True)
        return [_row(version, state, [1e3 * ms for ms in times]) for state, times in columns]


def times_ms(arguments: list[str], caches: str) -> list[float]:
    """Times of the first and second call in a process of its own.

    Raises:
        RuntimeError: the process failed; the message is its last words.
    """
    folders = {name: os.path.join(caches, name.lower()) for name in _CACHES}
    path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
    more = {
        "PYTHONPATH": path,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    done = subprocess.run(
        [sys.executable, "-m", f"{__package__}.first_call", *arguments],
        env={**os.environ, **folders, **more},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"kfusion bench: the timed process failed:\n{done.stderr.strip()}")
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    return times


def _row(version: str, state: str, times_us: list[float]) -> Row:
    low, middle, high = (rounded(float(np.percentile(times_us, q))) for q in (20, 50, 80))
    return Row(version, state, middle, low, high, len(times_us))
