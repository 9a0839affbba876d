"""The process of one first call: python -m benchmarks.first_call VERSION FUNCTION SHAPE DEVICE [DTYPE] prints
milliseconds.

Everything that is not the call's own is done before: imports, the array, a context on the GPU.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from kfusion import _core
from kfusion._compare.contest import library
from kfusion._compare.problem import problem_of
from kfusion._compare.versions import versions_of

from . import functions, rivals
from .inputs import Inputs


def main(version: str, function: str, shape: str, device: str, dtype: str = "float32") -> None:
    """Makes the call twice."""
    library = "kfusion" if device == "cuda" and version == "fused" else None  # what no peer needs is not imported
    x = Inputs(device, library).random(tuple(map(int, shape.split("x"))), dtype, 0)
    call = prepared(version, getattr(functions, function), x)
    wait: Callable[[], Any] = _core.cuda_synchronize if device == "cuda" else lambda: None
    wait()
    times = [time.perf_counter()]
    for _ in range(2):
        call()
        wait()
        times.append(time.perf_counter())
    print(json.dumps([1e3 * (b - a) for a, b in itertools.pairwise(times)]))


def prepared(version: str, function: Any, x: Any) -> Callable[[], Any]:
    """The call to time; nothing of it has happened yet."""
    problem = problem_of(versions_of(function), (x,), {})
    if version == "fused":
        return lambda: problem.call(problem.versions.fused)
    (entrant,) = rivals.of(version).values() or (library(version),)
    return entrant(problem)


if __name__ == "__main__":
    main(*sys.argv[1:])
