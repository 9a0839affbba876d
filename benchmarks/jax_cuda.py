"""jax.jit on CUDA, whose streams are its own: timed by the wall clock, many calls in a row.

The device is busy all through where a call takes longer than its launch, so this is for large arrays only. These are
also beyond the L2 cache, so that every call finds it cold.
"""

from __future__ import annotations

import time
from typing import Any

from kfusion import _arrays, _core, _timing
from kfusion._compare import libraries
from kfusion._compare.evaluate import program
from kfusion._compare.problem import Problem

LEAST_BYTES = 2**28  # that a case moves
_CALLS, _SAMPLES = 20, 9


class Pipelined:
    """The compiled function on its arrays. Called, it waits for the result."""

    def __init__(self, problem: Problem) -> None:
        import jax

        if jax.default_backend() != "gpu":
            raise TypeError("JAX is installed without CUDA")
        if problem.moved_bytes < LEAST_BYTES:
            raise TypeError("JAX runs on CUDA streams of its own, which are timed for large arrays only")
        _core.cuda_synchronize()  # what made the arrays may still run on another stream
        self._arrays = [_arrays.convert(x, "jax") for x in problem.arrays]
        self._run = jax.jit(program(problem.traced, libraries.Jax()))
        self._wait: Any = jax.block_until_ready

    def __call__(self) -> Any:
        return self._wait(self._run(*self._arrays))

    def samples(self, copy_us: float) -> _timing.Samples:
        """Microseconds of a call among many."""
        taken = _timing.Samples()
        for _ in range(_SAMPLES):
            self()
            start = time.perf_counter_ns()
            for _ in range(_CALLS):
                result = self._run(*self._arrays)
            self._wait(result)
            us = (time.perf_counter_ns() - start) / 1e3 / _CALLS
            taken.times_us.append(us)
            taken.copy_ratios.append(copy_us / us)
        return taken
