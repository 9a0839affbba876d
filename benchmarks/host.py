"""What a call costs its caller where there is next to nothing to compute: microseconds until it returns."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kfusion import _core, _timing
from kfusion._compare import contest as _contest
from kfusion._compare.versions import versions_of

from . import rivals
from .inputs import Inputs
from .options import Options
from .results import Measured, Row, rounded

_BATCHES = 9
_SETTLE_S = 0.01  # other libraries' threads go on waiting busily for work that long
CALL = "call"  # the state of these rows


@dataclass(frozen=True)
class HostCase:
    """A function on a small array of one library; `shape` may be empty.

    peers: for each, the calls of that library on its own arrays. dtype: another one than float32 of torch's only.
    """

    suite: str
    name: str
    function: Callable[..., Any]
    shape: tuple[int, ...]
    library: str
    peers: tuple[str, ...]
    dtype: str = "float32"

    @property
    def title(self) -> str:
        """The case in one line."""
        return f"{self.name}, {'x'.join(map(str, self.shape))}, {self.library}"

    def measure(self, inputs: Inputs, options: Options, report: _timing.Progress) -> Measured:
        """Times batches of calls, those of all versions in turn."""
        report(0.0, self.title)
        x = array_of(self.library, np.random.default_rng(0).standard_normal(self.shape, np.float32))
        if self.dtype != "float32":
            x = x.to(getattr(importlib.import_module("torch"), self.dtype))
        runs, notes = self._runs(x, [p for p in options.peers if p in self.peers])
        taken: dict[str, list[float]] = {version: [] for version in runs}
        for batch in range(_BATCHES):
            report(batch / _BATCHES, self.title)
            for version, run in runs.items():
                taken[version].append(_call_us(run, options.calls))
                time.sleep(_SETTLE_S)
        rows = tuple(_row(version, times) for version, times in taken.items())
        return Measured(self.suite, self.name, self.shape, self.dtype, self.library, 0, rows, tuple(notes))

    def _runs(self, x: Any, peers: list[str]) -> tuple[dict[str, Callable[[], Any]], list[str]]:
        fused, unfused, _ = versions_of(self.function)
        runs: dict[str, Callable[[], Any]] = {"fused, fresh": lambda: fused(x)}
        if 0 in self.shape:  # nothing to check, nothing for peers to do
            return runs, []
        libraries, entrants = rivals.split(peers, "cpu")  # the host's time: JAX is as good as any
        contest = _contest.prepare(self.function, (x,), {}, libraries, entrants)
        if contest.out is not None:
            runs["fused"] = lambda: fused(x, out=contest.out)
        runs["unfused"] = lambda: unfused(x)
        return runs | {call.name: call.run for call in contest.calls}, contest.notes


def array_of(library: str, x: np.ndarray) -> Any:
    """x as the library's own array: NumPy's and "torch cpu" on the CPU, the others on the GPU."""
    if library == "numpy":
        return x
    if library == "torch cpu":
        return importlib.import_module("torch").from_numpy(x)
    if library == "kfusion":
        return _core.to_device(x)
    module = importlib.import_module(library)
    return module.as_tensor(x, device="cuda") if library == "torch" else module.asarray(x)


def _call_us(run: Callable[[], Any], calls: int) -> float:
    """Time of one call among many in a row; the device catches up afterwards."""
    run()
    start = time.perf_counter_ns()
    for _ in range(calls):
        run()
    taken_us = (time.perf_counter_ns() - start) / 1e3 / calls
    if _core.cuda_device_count():
        _core.cuda_synchronize()
    return taken_us


def _row(version: str, times_us: list[float]) -> Row:
    low, middle, high = (rounded(float(np.percentile(times_us, q))) for q in (20, 50, 80))
    return Row(version, CALL, middle, low, high, len(times_us))
