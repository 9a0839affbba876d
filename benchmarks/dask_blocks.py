"""GB/s of functions of a dask array: fused by blocks, fused in one call on the whole array, and dask's own.

    python -m benchmarks.dask_blocks

The three take turns, nine times each; medians. CPU seconds tell more than GB/s on a machine that does other work, too.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np

import kfusion as kf

TURNS = 9


def chain(x: Any) -> Any:
    return np.log1p(np.maximum(x * 2 - 1, 0)).max(0)


def moments(x: Any) -> Any:
    return x.mean(0), x.var(axis=0)


def softmax_sums(x: Any) -> Any:
    return kf.softmax(x).sum(0)


def dask_softmax_sums(x: Any) -> Any:
    e = da.exp(x - x.max(axis=-1, keepdims=True))
    return (e / e.sum(axis=-1, keepdims=True)).sum(0)


def timed(f: Callable[[], Any]) -> tuple[float, float]:
    """Seconds, and CPU seconds of all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    f()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    whole = np.random.default_rng(0).standard_normal((100_000, 1000), dtype="float32")
    x = da.from_array(whole, chunks=(5000, 1000))
    cases = [(chain, chain), (moments, moments), (softmax_sums, dask_softmax_sums)]
    print("| | who | GB/s | CPU s |\n|---|---|---|---|")
    for function, own in cases:
        fused = kf.fuse(function)
        ways: dict[str, Callable[[], Any]] = {
            "fused blocks": lambda fused=fused: dask.compute(fused(x)),  # type: ignore[misc]
            "fused, one call": lambda fused=fused: fused(whole),  # type: ignore[misc]
            "dask's own": lambda own=own: dask.compute(own(x)),  # type: ignore[misc]
        }
        for run in ways.values():
            run()
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(TURNS):
            for name, run in ways.items():
                times[name].append(timed(run))
        for name, seen in times.items():
            wall, cpu = (statistics.median(column) for column in zip(*seen, strict=True))
            print(f"| `{function.__name__}` | {name} | {whole.nbytes / wall / 1e9:.2f} | {cpu:.3f} |")
    print(f"load {os.getloadavg()[0]:.1f}, dask {dask.__version__}")


if __name__ == "__main__":
    with dask.config.set(scheduler="threads", num_workers=2):
        main()
