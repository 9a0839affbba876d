"""Measures the figures of results/: fused functions against copies and other libraries, first calls, cost of a call.

python -m kfusion._figures cpu --out results/fuser_cpu.json
python -m kfusion._figures gpu --out results/fuser_h200.json
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from . import _activations as a
from . import _core, _files, _hardware, _named, _peers, _progress, _timing
from . import _primitives as p
from ._compare import compare
from ._demo import random_array
from ._fuse import fuse
from ._report import Comparison
from ._tables import Table

_CPU_BYTES = 2**30  # of a case's arrays together, results included
_CPU_PEERS = ("numpy", "numexpr", "torch", "jax.jit")
_GPU_PEERS = ("torch", "torch.compile", "cupy", "cupy.fuse")
_GPU_SIZES = (1024, 4096, 16384)
_ROW = 4096
_SMALL = (16, 16)
_CALLS, _BATCHES = 1000, 9


# ---- the functions --------------------------------------------------------------------------------------------------


def light(x: Any, y: Any) -> Any:
    """2x + 3y."""
    return 2 * x + 3 * y


def exp_chain(x: Any, y: Any) -> Any:
    """exp(x) y + 1."""
    return p.exp(x) * y + 1


def tanh_chain(x: Any, y: Any) -> Any:
    """tanh(x) y."""
    return p.tanh(x) * y


def gelu_chain(x: Any, y: Any, b: Any) -> Any:
    """gelu(x y + b)."""
    return a.gelu(x * y + b)


def five_ops(x: Any) -> Any:
    """sigmoid(relu((x + 1) 2) - 0.5), the lesson's chain."""
    return p.sigmoid(p.relu((x + 1.0) * 2.0) - 0.5)


def five_ops_of_two(x: Any, y: Any) -> Any:
    """sigmoid(relu((x + y) 2) - 1), the lesson's other chain."""
    return p.sigmoid(p.relu((x + y) * 2.0) - 1.0)


def pointwise_chain(x: Any, w: Any, b: Any) -> Any:
    """relu(x w + b) 0.5, the lesson's chain of three arrays."""
    return p.relu(x * w + b) * 0.5


def mul_add_relu(x: Any, bias: Any) -> Any:
    """relu(2 x + bias), the lesson's first example."""
    return p.relu(x * 2 + bias)


class _Case(NamedTuple):
    function: Callable[..., Any]
    arrays: int  # of full size that it reads
    rows_of: int = 0  # length of a row, where it works by rows
    parameters: int = 0  # arrays of a row's length

    @property
    def formula(self) -> str:
        """In one line."""
        return f"{self.function.__name__}, rows" if self.rows_of else str(self.function.__doc__).rstrip(".")


CPU_CASES = (
    _Case(light, 2),
    _Case(exp_chain, 2),
    _Case(tanh_chain, 2),
    _Case(gelu_chain, 3),
    _Case(five_ops, 1),
    _Case(_named.fused_softmax, 1, _ROW),
    _Case(_named.fused_layernorm, 1, _ROW, 2),
)
GPU_CASES = (_Case(five_ops, 1), _Case(five_ops_of_two, 2), _Case(pointwise_chain, 3), _Case(mul_add_relu, 2))


# ---- measuring ------------------------------------------------------------------------------------------------------


def cpu(nbytes: int, repeats: int, report: _timing.Progress) -> dict[str, Any]:
    """Every CPU case at `nbytes` of arrays, and what a call of a small array costs."""
    peers = _installed(_CPU_PEERS)
    comparisons = []
    for i, case in enumerate(CPU_CASES):
        size = nbytes // 4 // (case.arrays + 1)
        shape = (max(size // case.rows_of, 1), case.rows_of) if case.rows_of else (size,)
        arrays = [_random(shape, k) for k in range(case.arrays)]
        arrays += [_random((case.rows_of,), 9 + k) for k in range(case.parameters)]
        comparisons.append(_compared(case, arrays, peers, repeats, _part(report, i, len(CPU_CASES))))
        del arrays
        _core.empty_cache()
    return {"cases": comparisons, "host_us": {"numpy": host_us(np.asarray)}}


def gpu(sizes: Sequence[int], repeats: int, report: _timing.Progress) -> dict[str, Any]:
    """Every GPU case at every size N x N, first calls, and what a call of a small array costs."""
    peers = _installed(_GPU_PEERS)
    comparisons = []
    cases = [(case, n) for n in sizes for case in GPU_CASES]
    for i, (case, n) in enumerate(cases):
        arrays = [_core.to_device(_random((n, n), k)) for k in range(case.arrays)]
        if importlib.util.find_spec("torch"):
            torch = importlib.import_module("torch")
            arrays = [torch.from_dlpack(x) for x in arrays]
        comparisons.append(_compared(case, arrays, peers, repeats, _part(report, i, len(cases))))
    report(1.0, "first calls")
    return {
        "cases": comparisons,
        "first_call_ms": asdict(_timing.first_calls(_FIRST_SETUP, _FIRST_CALL, processes=3)),
        "host_us": {name: host_us(make) for name, make in _small_arrays().items()},
    }


_FIRST_SETUP = """
import numpy as np
import kfusion as kf
from kfusion import _core, _figures
x = kf.to_device(np.ones((4096, 4096), np.float32))
f = kf.fuse(_figures.five_ops)
_core.cuda_synchronize()
"""
_FIRST_CALL = "f(x); _core.cuda_synchronize()"


def host_us(make: Callable[[np.ndarray], Any]) -> float:
    """Microseconds that the caller waits for f(x) of a small array, the chain of five already compiled.

    Args:
        make: a NumPy array as the kind of array to measure.
    """
    f, x = fuse(five_ops), make(np.ones(_SMALL, np.float32))
    samples = []
    for _ in range(_BATCHES):
        f(x)
        start = time.perf_counter()
        for _ in range(_CALLS):
            f(x)
        samples.append(1e6 * (time.perf_counter() - start) / _CALLS)
        if _core.cuda_device_count():
            _core.cuda_synchronize()
    return float(np.median(samples))


def _small_arrays() -> dict[str, Callable[[np.ndarray], Any]]:
    """NumPy's on the CPU, the others on the GPU."""
    makers: dict[str, Callable[[np.ndarray], Any]] = {"numpy": np.asarray, "kfusion": _core.to_device}
    for name in _installed(("torch", "cupy")):
        library: Any = importlib.import_module(name)
        makers[name] = lambda x, library=library: library.from_dlpack(_core.to_device(x))  # type: ignore[misc]
    return makers


def _compared(
    case: _Case, arrays: list[Any], peers: list[str], repeats: int, report: _timing.Progress
) -> dict[str, Any]:
    found = compare(case.function, *arrays, peers=peers, repeats=repeats, cache="cold", progress=report)
    print(line(found), flush=True)
    return {"formula": case.formula, **found.to_dict()}


def _installed(peers: Sequence[str]) -> list[str]:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return [name for name in peers if importlib.util.find_spec(_peers.library_of(name)) is not None]


def _random(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Normal numbers, other ones in each array: the same block begins elsewhere."""
    return np.roll(random_array(shape, np.dtype(np.float32)), seed * 12345)


def _part(report: _timing.Progress, index: int, count: int) -> _timing.Progress:
    return lambda done, what: report((index + done) / count, what)


# ---- showing --------------------------------------------------------------------------------------------------------


def line(comparison: Comparison) -> str:
    """One comparison in a line, for who waits."""
    times = ", ".join(f"{r.name} {r.median_us / 1e3:.4g}" for r in comparison.rows)
    return f"{comparison.subject}: ms: {times}"


def table(cases: Sequence[dict[str, Any]]) -> Table:
    """Milliseconds of each version, and the copy's time over that of the fused ones (1.00: as fast as a copy)."""
    names = list(dict.fromkeys(row["name"] for case in cases for row in case["rows"] if row["name"] != "fused, again"))
    header = ("function", "shape", *(f"{name} ms" for name in names), "copy/fused", "copy/fresh", "x best peer")
    return Table("float32, cold cache", header, tuple(_cells(case, names) for case in cases))


def _cells(case: dict[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    rows = {row["name"]: row for row in case["rows"]}
    ratios = {name: row["copy_pct"] / 100 for name, row in rows.items()}
    best_peer = max((ratios[name] for name, row in rows.items() if row["is_peer"]), default=float("nan"))
    fresh = ratios.get("fused, fresh", ratios["fused"])
    times = (f"{rows[n]['median_us'] / 1e3:.4g}" if n in rows else "-" for n in names)
    shape = "x".join(map(str, case["shape"]))
    return (case["formula"], shape, *times, f"{ratios['fused']:.2f}", f"{fresh:.2f}", f"{fresh / best_peer:.2f}")


# ---- from a shell ---------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(prog="python -m kfusion._figures", description=__doc__)
    parser.add_argument("device", choices=("cpu", "gpu"))
    parser.add_argument("--out", required=True, metavar="FILE.json")
    parser.add_argument("--repeats", type=int, default=11, help="samples of each version (default: %(default)s)")
    parser.add_argument("--bytes", type=int, default=_CPU_BYTES, help="of a CPU case's arrays (default: %(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=_GPU_SIZES, help="N of the GPU cases")
    parser.add_argument("--commit", help="what is measured, where git cannot say")
    args = parser.parse_args(argv)
    _files.check_writable(args.out)
    with _progress.reporting() as report:
        measured = (
            cpu(args.bytes, args.repeats, report) if args.device == "cpu" else gpu(args.sizes, args.repeats, report)
        )
    print(table(measured["cases"]).plain())
    print(json.dumps({k: v for k, v in measured.items() if k != "cases"}, indent=2))
    found = {
        "commit": args.commit or _commit(),
        "command": "python -m kfusion._figures " + " ".join(sys.argv[1:] if argv is None else argv),
        "hardware": {"cpu": _hardware.cpu()} | ({"gpu": _hardware.gpu(0)} if args.device == "gpu" else {}),
        "versions": _hardware.versions({_peers.library_of(n) for n in (*_CPU_PEERS, *_GPU_PEERS)} - {"numpy"}),
        **measured,
    }
    with _files.replacing(args.out) as temporary, open(temporary, "w") as file:
        file.write(json.dumps(found, indent=2) + "\n")


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
