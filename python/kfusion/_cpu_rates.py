"""Rates of the CPU's kernels as fractions of a copy's, measured in slices of large arrays.

Slices are taken in random order, each with a copy of as many bytes right before it: the memory rate of a shared machine
drifts by more than what is to be seen. Run as `python -m kfusion._cpu_rates`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kfusion as kf

from . import _core, _running
from ._trace import trace

CASES: dict[str, tuple[Callable[..., Any], int]] = {
    "copy": (lambda a: +a, 0),
    "2a+3b": (lambda a, b: 2 * a + 3 * b, 0),
    "exp(a)*b+1": (lambda a, b: kf.exp(a) * b + 1, 0),
    "tanh(a)*b": (lambda a, b: kf.tanh(a) * b, 0),
    "gelu(a*b+b)": (lambda a, b: kf.gelu(a * b + b), 0),
    "relu(2a+b)*.5-1": (lambda a, b: kf.relu(2 * a + b) * 0.5 - 1, 0),
    "log(relu(a+b)+1)": (lambda a, b: kf.log(kf.relu(a + b) + 1), 0),
    "20 ops": (lambda a, b: _chain(a, b), 0),
    "softmax 512": (lambda a: kf.softmax(a), 512),
    "softmax 4096": (lambda a: kf.softmax(a), 4096),
    "softmax 1023": (lambda a: kf.softmax(a), 1023),
    "layernorm 512": (lambda a: kf.layernorm(a), 512),
    "layernorm 1023": (lambda a: kf.layernorm(a), 1023),
    "layernorm 4096": (lambda a: kf.layernorm(a), 4096),
    "layernorm 16384": (lambda a: kf.layernorm(a), 16384),
    "layernorm 262144": (lambda a: kf.layernorm(a), 262144),
    "relu layernorm 4096": (lambda a: kf.layernorm(kf.relu(a)), 4096),
    "sum": (lambda a: a.sum(), 0),
    "sum rows 1024": (lambda a: a.sum(1), 1024),
    "sum columns 4096": (lambda a: a.sum(0), 4096),
}


def _chain(a: Any, b: Any) -> Any:
    for k in range(10):
        a = a * b + 0.1 * k
    return a


class Case:
    """A function's kernel on slices of shared memory."""

    def __init__(self, function: Callable[..., Any], columns: int, arrays: list[np.ndarray], elements: int) -> None:
        rows = elements // columns if columns else 0
        shape = (rows, columns) if columns else (elements,)
        specs = [kf.spec(shape, "float32") for _ in range(function.__code__.co_argcount)]
        graph = trace(function, *specs).graph
        device = _running.device("cpu").to_dict()
        lowered = _core.lower(graph, device)
        (self._run,) = _core.fused_kernels(graph, device)
        (kernel,) = lowered["kernels"]
        inputs = [i for i, n in enumerate(lowered["graph"]["nodes"]) if n["op"] == "input"]
        self._loads = [arrays[inputs.index(o["node"])] for o in kernel["loads"]]
        self._store = arrays[-1]
        self.bytes = kernel["bytes"]

    def __call__(self, first: int) -> None:
        self._run([x[first:].ctypes.data for x in self._loads], [self._store[first:].ctypes.data])


def _seconds(run: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
    begin = time.perf_counter()
    run(*args, **kwargs)
    return time.perf_counter() - begin


def measure(names: list[str], megabytes: int, slice_megabytes: int, samples: int) -> dict[str, list[float]]:
    """By case: copy time / time of as many bytes, one number per sample."""
    total, elements = megabytes * 2**18, slice_megabytes * 2**18
    rng = np.random.default_rng(0)
    block = rng.standard_normal(2**20, np.float32)
    arrays = [_core.copy(np.resize(block, total)) for _ in range(3)]
    target = _core.copy(arrays[0])
    cases = {name: Case(*CASES[name], arrays, elements) for name in names}
    ratios: dict[str, list[float]] = {name: [] for name in names}
    plan = [name for name in names for _ in range(samples)]
    random.shuffle(plan)
    for name in plan:
        first = random.randrange(total // elements) * elements
        x, y = arrays[0][first : first + elements], target[first : first + elements]
        copied = _seconds(_core.copy, x, out=y)
        taken = _seconds(cases[name], first)
        ratios[name].append(copied * cases[name].bytes / (2 * x.nbytes) / taken)
    return ratios


def main() -> None:
    """Prints the median and quartiles of each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(CASES))
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--slice", type=int, default=512)
    parser.add_argument("--samples", type=int, default=15)
    args = parser.parse_args()
    names = [n for n in CASES if not args.names or any(want in n for want in args.names)]
    for name, values in measure(names, args.megabytes, args.slice, args.samples).items():
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"{name:24} {middle:.2f} of copy (quartiles {low:.2f} {high:.2f}, best {max(values):.2f})")


if __name__ == "__main__":
    main()
