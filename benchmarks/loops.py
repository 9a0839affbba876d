"""The executors of loops on the CPU beside one another: those that were compiled when kfusion was built, and code that
is generated for the machine at hand."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import kfusion as kf
from kfusion import _core, _timing
from kfusion._compare import contest as _contest

from .inputs import Inputs
from .options import Options
from .results import Measured, Row, rounded
from .throughput import Case

_LEVELS = ("avx512", "avx2")
_SAMPLES = 15
_HOT_SAMPLE_US = 200.0  # shorter calls are repeated within a sample


@dataclass(frozen=True)
class LoopsCase:
    """A case by each executor on each instruction set. Samples of the executors are taken in turn; those that other
    processes disturbed least are compared: with KFUSION_NUM_THREADS=1 the least CPU times, else the least times.
    """

    case: Case
    loops: tuple[str, ...]

    @property
    def suite(self) -> str:
        """That it belongs to."""
        return self.case.suite

    @property
    def title(self) -> str:
        """In one line."""
        return self.case.title

    def measure(self, inputs: Inputs, options: Options, report: _timing.Progress) -> Measured:
        """Checks and times all executors.

        Raises:
            AssertionError: one of them is wrong.
        """
        report(0.0, self.title)
        arrays = tuple(self.case.arguments(inputs))
        rows: list[Row] = []
        nbytes = 0
        for isa in _levels():
            with _using(isa, _core.loops_by()):
                contests = {by: _contest.prepare(self._fresh(isa, by), arrays, {}, (), {}) for by in self.loops}
                nbytes = contests[self.loops[0]].problem.moved_bytes
                for state in self.case.states:
                    rows += self._rows(isa, state, contests, options)
        c = self.case
        return Measured(c.suite, c.name, c.shape, c.dtype, c.layout, nbytes, tuple(rows))

    def _fresh(self, isa: str, by: str) -> Callable[..., Any]:
        """The function with no kernels yet: those that it gets are of one executor."""
        _core.set_loops_by(by)
        return kf.fuse(getattr(self.case.function, "__wrapped__", self.case.function))

    def _rows(self, isa: str, state: str, contests: dict[str, _contest.Contest], options: Options) -> Iterator[Row]:
        runs = {by: _call(contest) for by, contest in contests.items()}
        taken: dict[str, list[float]] = {by: [] for by in runs}
        for _ in range(options.repeats or _SAMPLES):
            for by, run in runs.items():
                taken[by].append(_sample_us(run, flush=state == "cold"))
        least = {by: min(times) for by, times in taken.items()}
        for by, times in taken.items():
            samples = _timing.Samples(times)
            median, p20, p80 = (rounded(samples.percentile_us(q)) for q in (50, 20, 80))
            yield Row(
                f"{by}, {isa}",
                state,
                median,
                p20,
                p80,
                len(times),
                error=rounded(contests[by].errors["fused"]),
                least_us=rounded(least[by]),
                of_first=rounded(least[by] / least[self.loops[0]]),
            )


def _sample_us(run: Callable[[], Any], *, flush: bool) -> float:
    """One thread's CPU time, which other processes change least; wall time of several threads."""
    now = time.thread_time_ns if kf.get_num_threads() == 1 else time.perf_counter_ns

    def calls_us(calls: int) -> float:
        start = now()
        for _ in range(calls):
            run()
        return (now() - start) / 1e3 / calls

    if flush:
        _core.flush_cpu_cache()
        return calls_us(1)
    return calls_us(max(1, math.ceil(_HOT_SAMPLE_US / max(calls_us(1), 0.1))))


def _call(contest: _contest.Contest) -> Callable[[], Any]:
    return next(v.run for v in contest.variants if v.name == "fused")


def _levels() -> tuple[str, ...]:
    """KFUSION_ISA, else those of these that this machine has."""
    wanted = os.environ.get("KFUSION_ISA")
    return (
        (wanted,) if wanted else tuple(level for level in _LEVELS if level in _core.available_isas()) or (_core.isa(),)
    )


@contextlib.contextmanager
def _using(isa: str, loops: str) -> Iterator[None]:
    before = _core.isa(), loops
    _core.set_isa(isa)
    try:
        yield
    finally:
        _core.set_isa(before[0])
        _core.set_loops_by(before[1])


def small(case: Case) -> Case:
    """A call of 16 rows of 256."""
    return replace(case, shape=(16, 256), states=("hot",))
