"""NVIDIA Nsight Compute (ncu): the bytes that the kernels of another process move, by the GPU's own counters.

Source: Nsight Compute CLI documentation, docs.nvidia.com/nsight-compute/NsightComputeCli.
"""

from __future__ import annotations

import csv
import glob
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

DRAM_READ, DRAM_WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
# Sectors of 32 bytes that the multiprocessors ask the L2 cache for and hand to it; without "srcunit_tex" those that go
# from one of the cache's partitions to the other would be counted twice.
L2_READ, L2_WRITTEN = "lts__t_sectors_srcunit_tex_op_read.sum", "lts__t_sectors_srcunit_tex_op_write.sum"
SECTOR_BYTES = 32
METRICS = (DRAM_READ, DRAM_WRITTEN, L2_READ, L2_WRITTEN)  # all counted in one pass: no kernel runs twice

# Each kernel begins with an empty cache, and clocks are left alone: bytes do not depend on them.
_OPTIONS = ("--cache-control", "all", "--clock-control", "none", "--profile-from-start", "off")
_OUTPUT = ("--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(METRICS))
_PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute/*")
_NO_PERMISSION = (
    "only administrators may read the GPU's counters here (ERR_NVGPUCTRPERM): run as root (a container also needs "
    "--cap-add=SYS_ADMIN), or load the driver's module nvidia with NVreg_RestrictProfilingToAdminUsers=0"
)


class Launch(NamedTuple):
    """A kernel that ran: its function's name, and its counts by metric."""

    function: str
    counts: Mapping[str, int]


def find(who: str) -> str:
    """The path of ncu: on PATH, in the CUDA toolkit, or where its own installer puts it.

    Raises:
        FileNotFoundError: there is none.
    """
    toolkits = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    places = [os.path.join(toolkit, "bin") for toolkit in toolkits]
    places += [found for pattern in _PLACES for found in sorted(glob.glob(pattern), reverse=True)]
    for folder in (None, *places):
        if found := shutil.which("ncu", path=folder):
            return found
    raise FileNotFoundError(
        f"{who}: the profiler ncu was not found on PATH, in $CUDA_HOME or in /usr/local/cuda; install NVIDIA Nsight "
        "Compute (it comes with the CUDA toolkit)"
    )


def count(command: Sequence[str], who: str) -> list[Launch]:
    """Runs a command under ncu: the kernels between its calls of cudaProfilerStart and cudaProfilerStop.

    Args:
        command: a program and its arguments; what it prints is shown to nobody unless it fails.
        who: starts the messages.

    Returns:
        The kernels in the order in which they ran.

    Raises:
        FileNotFoundError: there is no ncu.
        PermissionError: the driver does not let this user read the counters.
        RuntimeError: the command or ncu failed; the message has what it said.
    """
    with tempfile.TemporaryDirectory(prefix="kfusion_") as folder:
        log = Path(folder, "ncu.csv")
        ncu = [find(who), *_OPTIONS, *_OUTPUT, "--log-file", str(log)]
        done = subprocess.run([*ncu, *command], capture_output=True, text=True, check=False, errors="replace")
        text = log.read_text(errors="replace") if log.exists() else ""
    errors = _errors(text + done.stdout)
    if any("ERR_NVGPUCTRPERM" in line for line in errors):
        raise PermissionError(f"{who}: {_NO_PERMISSION}")
    said = done.stderr.strip().splitlines()
    if done.returncode != 0 and said:  # the program's own words say more than that it failed
        raise RuntimeError(said[-1] if said[-1].startswith("kfusion") else f"{who}: under ncu: {said[-1]}")
    if done.returncode != 0 or errors:
        raise RuntimeError(f"{who}: ncu failed: {' '.join(errors) or f'it ended with {done.returncode}'}")
    return parse(text, who)


def parse(text: str, who: str) -> list[Launch]:
    """The kernels in what `ncu --csv --page raw --print-units base` printed, other lines between; none in none.

    Raises:
        RuntimeError: a metric is missing, in another unit, or no whole number.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    units, *rows = csv.DictReader(lines) if len(lines) > 1 else [{}]
    return [Launch(row["Kernel Name"].partition("(")[0], _counts(row, units, who)) for row in rows]


def _counts(row: Mapping[str, str], units: Mapping[str, str], who: str) -> dict[str, int]:
    counts = {}
    for metric in METRICS:
        value, unit = row.get(metric), units.get(metric)
        wanted = "byte" if "bytes" in metric else "sector"
        if value is None or unit != wanted:
            raise RuntimeError(f"{who}: ncu must give {metric} in {wanted}s, gave {value!r} in {unit!r}")
        try:
            counts[metric] = int(float(value.replace(",", "")))
        except (ValueError, OverflowError):  # "n/a", "nan", "inf": this GPU does not have the counter
            raise RuntimeError(f"{who}: this GPU does not count {metric}: ncu gave {value!r}") from None
    return counts


def _errors(text: str) -> list[str]:
    marked = (line.partition("==ERROR==")[2].strip() for line in text.splitlines())
    return list(dict.fromkeys(filter(None, marked)))
