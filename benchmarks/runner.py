"""Runs suites: one case after the other, what was measured kept whatever happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kfusion import _core, _timing

from . import runs, suites
from .inputs import Inputs
from .options import Options, module_of, prepare_environment
from .results import Measured, Results

Show = Callable[[Measured], None]


@np.errstate(all="ignore")  # a peer's warnings are its own business
def run(
    names: Sequence[str],
    options: Options,
    *,
    command: str = "benchmarks.run",
    commit: str | None = None,
    progress: _timing.Progress | None = None,
    show: Show | None = None,
    keep: Callable[[Results], None] | None = None,
) -> Results:
    """Measures suites on this machine.

    Args:
        names: of suites; () for all that fit the device.
        options: what is asked for.
        command: how the results say that they were made.
        commit: what is measured; None asks git.
        progress: called with the fraction done and a word on what is being done.
        show: called with each case when it is measured.
        keep: likewise, with all that there is by then, not `complete`.

    Returns:
        The results; after Ctrl-C what there is by then, not `complete`. A case that cannot be measured (a kernel that
        is wrong, memory that is not there) has no rows and a note that says why.

    Raises:
        ValueError: a suite is unknown.
    """
    jobs = suites.jobs(suites.chosen(names, options.device), options)
    prepare_environment()
    found: list[Measured] = []
    modules = sorted({module_of(p) for p in options.peers} - {"numpy"})
    end = time.monotonic() + (float("inf") if options.seconds is None else options.seconds)

    def results(complete: bool) -> Results:
        facts = runs.facts(command, commit, modules, gpu=options.device == "cuda")
        return Results(**facts, device=options.device, complete=complete, cases=tuple(found))

    try:
        inputs = Inputs(options.device)
        for i, job in enumerate(jobs):
            if time.monotonic() > end:
                found.append(_left_out(job, f"{options.seconds:g} s were over"))
                continue
            found.append(_measured(job, inputs, options, _part(progress, i, len(jobs))))
            if show is not None:
                show(found[-1])
            if keep is not None:
                keep(results(complete=False))
    except KeyboardInterrupt:
        return results(complete=False)
    return results(complete=True)


def _measured(job: Any, inputs: Inputs, options: Options, report: _timing.Progress) -> Measured:
    try:
        measured: Measured = job.measure(inputs, options, report)
        return measured
    except Exception as error:  # what one case does not survive should not cost the others
        return _left_out(job, (str(error).strip() or type(error).__name__).splitlines()[0])
    finally:
        _core.empty_cache()


def _left_out(job: Any, why: str) -> Measured:
    layout = getattr(job, "layout", getattr(job, "library", ""))
    return Measured(job.suite, job.name, job.shape, job.dtype, layout, 0, (), (f"not measured: {why}",))


def _part(report: _timing.Progress | None, index: int, count: int) -> _timing.Progress:
    if report is None:
        return lambda done, what: None
    return lambda done, what: report((index + done) / count, what)
