"""Whole models through torch.compile: kfusion's backend beside inductor and eager torch. What a call takes, what the
first one does, how often Dynamo leaves the graph, and the memory that is taken afterwards: of the process, or of the
GPU's that calls keep.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kfusion import _timing

from .inputs import Inputs
from .memory import resident
from .models import ModelCase, call_us, error, free_bytes, synchronize, tensors
from .options import Options
from .results import Measured, Row, rounded

# By version: the mode of torch.compile. Those of kfusion's backend, eager torch, and those of inductor's.
_OURS = {"kfusion": None, "kfusion.graphs": "reduce-overhead"}
_INDUCTORS = {
    "torch.compile": None,
    "torch.compile.graphs": "reduce-overhead",
    "torch.compile.max": "max-autotune",
}
_MODES = _OURS | _INDUCTORS
PEERS = ("torch", *_INDUCTORS)
_SLOW = ("torch.compile.graphs", "torch.compile.max")  # to compile
CALL, CALL_CPU, FIRST, FIRST_CPU = "call", "call, CPU time", "first call", "first call, CPU time"
_STATES = {"cpu": (CALL, CALL_CPU), "cuda": (CALL,)}  # who waits for a GPU spends CPU time, too
_LEAST, _MOST = 4, 30  # samples
_BUDGET_S = 4.0  # of each version
_WARM = 2  # calls behind the first on a GPU, in which CUDA graphs are recorded


class _First(NamedTuple):
    """The first call of a version: its error, times, breaks and memory."""

    error: float
    wall_us: float
    cpu_us: float
    breaks: int | None
    held_bytes: int | None


@dataclass(frozen=True)
class CompileCase(ModelCase):
    """A model of the zoo, compiled by each backend. Times are taken in turn; CPU time is that of all threads and, of
    first calls, of the compilers that they start: other processes on the machine change it least.
    """

    def measure(self, inputs: Inputs, options: Options, report: _timing.Progress) -> Measured:
        """Checks every version against float64, and times their calls in turn.

        Raises:
            AssertionError: kfusion's result is wrong.
        """
        import torch

        model, given = self._built(options.device, getattr(torch, self.dtype))
        exact_model, exact_given = self._built(options.device, torch.float64)
        with torch.no_grad():
            exact = [t.to(torch.float64) for t in tensors(exact_model(**exact_given))]
        del exact_model, exact_given
        runs, firsts, notes = self._compiled(model, given, exact, options, report)
        taken: dict[str, list[tuple[float, float]]] = {version: [] for version in runs}
        with torch.no_grad():
            for sample in range(options.repeats or _MOST):
                for version, run in runs.items():
                    report(sample / _MOST, f"{self.title}: {version}")
                    start = time.process_time_ns()
                    wall = call_us(functools.partial(run, **given))
                    taken[version].append((wall, (time.process_time_ns() - start) / 1e3))
                spent_us = sum(wall for times in taken.values() for wall, _ in times)
                if options.repeats is None and sample >= _LEAST and spent_us > 1e6 * _BUDGET_S * len(runs):
                    break
        states = _STATES[options.device]
        rows = [row for version in runs for row in _rows(version, states, taken[version], firsts[version])]
        shape = max((tuple(x.shape) for x in given.values()), key=len)
        library = "torch" if options.device == "cuda" else "torch cpu"
        return Measured(self.suite, self.name, shape, self.dtype, library, 0, tuple(rows), tuple(notes))

    def _compiled(
        self, model: Any, given: Any, exact: list[Any], options: Options, report: _timing.Progress
    ) -> tuple[dict[str, Callable[..., Any]], dict[str, _First], list[str]]:
        import torch

        torch._dynamo.reset()  # here only: it forgets every version's graphs
        gc.collect()
        _warm_up()
        runs, firsts, notes = {}, {}, []
        peers = options.asked(PEERS, _SLOW)
        # Eager torch loads what all need on a GPU; CUDA graphs of the CPU are none.
        ours = ["kfusion", *(["kfusion.graphs"] if options.device == "cuda" else [])]
        for version in sorted([*ours, *peers], key=lambda version: version != "torch"):
            report(0.0, f"{self.title}: {version}, first call")
            run = _version(model, version)
            try:
                with torch.no_grad(), _cold():
                    firsts[version] = _first(functools.partial(run, **given), exact, options.device)
                runs[version] = run
            except Exception as failure:
                if version == "kfusion":
                    raise
                notes.append(f"{version} is left out: {(str(failure) or repr(failure)).splitlines()[0]}")
        allowed = 2.0 * firsts["torch"].error + 1e-6 if "torch" in firsts else float("inf")
        for version in _OURS:
            if version in firsts and not firsts[version].error <= allowed:
                raise AssertionError(f"{self.name}: {version} is wrong by {firsts[version].error:.1e}")
        return runs, firsts, notes


def _warm_up() -> None:
    """Imports Dynamo and AOTAutograd, for which no version should pay."""
    import torch

    torch.compile(torch.neg, backend="aot_eager")(torch.ones(2))


def _version(model: Any, version: str) -> Callable[..., Any]:
    import torch

    from kfusion._torch_compile.backend import backend

    if version == "torch":
        return model  # type: ignore[no-any-return]
    named: Any = {"backend": backend} if version in _OURS else {}
    compiled: Callable[..., Any] = torch.compile(model, dynamic=False, mode=_MODES[version], **named)
    return compiled


@contextlib.contextmanager
def _cold() -> Iterator[None]:
    """Hides what former processes and versions left on disk: kernels of ours, and inductor's."""
    import torch._inductor.config
    from torch._inductor import utils

    fresh = getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache
    before = os.environ.get("KFUSION_CACHE_DIR")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, fresh():
        os.environ["KFUSION_CACHE_DIR"] = folder
        try:
            with torch._inductor.config.patch(force_disable_caches=True):
                yield
        finally:
            os.environ.pop("KFUSION_CACHE_DIR")
            if before is not None:
                os.environ["KFUSION_CACHE_DIR"] = before


def _first(call: Callable[[], Any], exact: list[Any], device: str) -> _First:
    from torch._dynamo.utils import counters

    counters.clear()
    on_gpu = device == "cuda"
    before, start, cpu = free_bytes() if on_gpu else resident(), time.perf_counter(), _cpu_s()
    result = call()
    synchronize()
    wall, cpu = time.perf_counter() - start, _cpu_s() - cpu
    breaks = sum(counters["graph_break"].values()) if counters["stats"] else None
    after = None if on_gpu else resident()
    wrong = error(tensors(result), exact)
    for _ in range(_WARM if on_gpu else 0):
        del result
        result = call()
        wrong = max(wrong, error(tensors(result), exact))
    del result
    if on_gpu:
        before, after = 0, before - _free_behind(call) if before is not None else None
    held = max(after - before, 0) if before is not None and after is not None else None
    return _First(wrong, 1e6 * wall, 1e6 * cpu, breaks, held)


def _free_behind(call: Callable[[], Any]) -> int:
    """Bytes of the GPU's memory that are free behind a call, which keeps some for the next one."""
    import torch

    free_bytes()
    call()
    synchronize()
    return int(torch.cuda.mem_get_info()[0])


def _cpu_s() -> float:
    """CPU seconds of this process and of the ended processes that it started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _rows(version: str, states: tuple[str, ...], taken: list[tuple[float, float]], first: _First) -> list[Row]:
    rows = []
    for state, times in zip(states, zip(*taken, strict=True), strict=False):
        low, middle, high = (rounded(float(np.percentile(times, q))) for q in (20, 50, 80))
        wrong, held = (rounded(first.error), first.held_bytes) if state == CALL else (None, None)
        rows.append(
            Row(version, state, middle, low, high, len(times), error=wrong, held_bytes=held, breaks=first.breaks)
        )
    for state, us in ((FIRST, rounded(first.wall_us)), (FIRST_CPU, rounded(first.cpu_us))):
        rows.append(Row(version, state, us, us, us, 1))
    return rows
