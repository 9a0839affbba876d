"""A case whose time is that of memory: checked, then timed beside a copy of the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kfusion import _core, _timing
from kfusion._compare import contest as _contest
from kfusion._devices import hardware

from . import jax_cuda, rivals
from .inputs import Inputs
from .options import Options
from .results import Measured, Row, rounded

# What takes a second or more for each new shape.
_SLOW = {
    "cpu": ("torch.compile", "torch.compile.warm"),
    "cuda": ("torch.compile", "triton", "jax.jit", "cupy", "cupy.fuse"),
}
_BUDGET_S = {("cpu", "cold"): 4.0, ("cpu", "hot"): 1.0, ("cuda", "cold"): 0.2, ("cuda", "hot"): 0.2}  # of a case
_SEED = 0
_LEGACY_STREAM = 0  # the one that cuda_time's events are on


@dataclass(frozen=True)
class Case:
    """A function on arrays of one shape.

    arrays: how many of that shape it reads. parameters: how many more of a row's length. peers: those that make sense.
    slow_peers: whether those are asked that compile for a second or more. states: "cold", "hot". leaves_little: its
    result is small, so that on the CPU it is timed beside plain reading, too.
    """

    suite: str
    name: str
    function: Callable[..., Any]
    shape: tuple[int, ...]
    dtype: str
    peers: tuple[str, ...]
    arrays: int = 1
    parameters: int = 0
    layout: str = "dense"
    slow_peers: bool = True
    states: tuple[str, ...] = ("cold",)
    leaves_little: bool = False

    @property
    def title(self) -> str:
        """The case in one line."""
        layout = "" if self.layout == "dense" else f" {self.layout}"
        return f"{self.name}, {'x'.join(map(str, self.shape))} {self.dtype}{layout}"

    def measure(self, inputs: Inputs, options: Options, report: _timing.Progress) -> Measured:
        """Checks and times all versions.

        Raises:
            AssertionError: a version of kfusion's is wrong.
        """
        report(0.0, self.title)
        arrays = self.arguments(inputs)
        libraries, entrants = rivals.split(self._asked(options), options.device)
        contest = _contest.prepare(self.function, tuple(arrays), {}, libraries, entrants)
        rows: list[Row] = []
        for state in self.states:
            rows += self._rows(contest, inputs, options, state, report)
        return Measured(
            suite=self.suite,
            name=self.name,
            shape=self.shape,
            dtype=self.dtype,
            layout=self.layout,
            nbytes=contest.problem.moved_bytes,
            rows=tuple(rows),
            notes=tuple(contest.notes),
        )

    def arguments(self, inputs: Inputs) -> list[Any]:
        """The arrays that the function is called with."""
        arrays = [inputs.random(self.shape, self.dtype, seed, self.layout) for seed in range(self.arrays)]
        return arrays + [inputs.random(self.shape[-1:], self.dtype, 50 + k) for k in range(self.parameters)]

    def _asked(self, options: Options) -> list[str]:
        return options.asked(self.peers, () if self.slow_peers else _SLOW[options.device])

    def _rows(
        self, contest: _contest.Contest, inputs: Inputs, options: Options, state: str, report: _timing.Progress
    ) -> Iterable[Row]:
        copied_bytes, source, target = inputs.copy_of(contest.problem.moved_bytes)
        stream = _LEGACY_STREAM if contest.problem.cuda else None
        pipelined = {c.name: c.run for c in contest.calls if isinstance(c.run, jax_cuda.Pipelined)}
        variants = [v for v in contest.variants if v.name not in pipelined]
        if self.leaves_little and not contest.problem.cuda:
            variants.append(_timing.Variant("read", lambda: _core.read(contest.problem.largest)))
        samples = _timing.measure(
            variants,
            _timing.Variant("copy", lambda: _core.copy(source, out=target, stream=stream)),
            _contest.clock(contest.problem, flush=state == "cold" and _flush_helps(contest, copied_bytes)),
            repeats=options.repeats,
            budget_s=_BUDGET_S[options.device, state] / (4 if options.quick else 1),
            seed=_SEED,
            progress=lambda done, what: report(done, f"{self.title}: {what}"),
        )
        for name, run in pipelined.items() if state == "cold" else ():
            samples[name] = run.samples(samples["copy"].percentile_us(50))
        nbytes = contest.problem.moved_bytes
        return [
            row_of(name, state, taken, copied_bytes if name == "copy" else nbytes, contest.errors)
            for name, taken in samples.items()
        ]


def row_of(version: str, state: str, taken: _timing.Samples, nbytes: int, errors: dict[str, float]) -> Row:
    """A version's samples as one row."""
    median_us = taken.percentile_us(50)
    error = errors.get(version.partition(",")[0] if version.startswith("fused, ") else version)
    return Row(
        version=version,
        state=state,
        median_us=rounded(median_us),
        p20_us=rounded(taken.percentile_us(20)),
        p80_us=rounded(taken.percentile_us(80)),
        samples=len(taken.times_us),
        gbps=rounded(nbytes / median_us / 1e3),
        of_copy=rounded(float(np.median(taken.copy_ratios))),
        error=None if error is None else rounded(error),
    )


def _flush_helps(contest: _contest.Contest, copied_bytes: int) -> bool:
    """Always on a GPU, where it costs little. On the CPU the copy of before, in arrays of its own, is flush enough
    where it moves twice what the caches hold."""
    return contest.problem.cuda or copied_bytes < 2 * hardware.last_level_cache_bytes()
