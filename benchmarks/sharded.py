"""Fused functions of torch's DTensors on several GPUs: how much faster than the whole array on one.

    python -m benchmarks.sharded --out results/sharded.json        # two GPUs of one host, by NCCL
    python -m benchmarks.sharded --backend gloo --rows 64          # on the CPU, to try it

The array is cut by rows. Each rank calls the function on its shard many times in a row, between two barriers; the time
is the slowest rank's. One GPU's time is that of plain tensors in the same process, the other ranks idle. Maps and rows
need no communication, sums of columns an all-reduce of one row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS, SAMPLES = 30, 7


def functions() -> dict[str, Callable[..., Any]]:
    import torch
    from torch.nn import functional as F

    return {
        "gelu(x + b) * x": lambda x, b: F.gelu(x + b) * x,
        "layer norm of relu": lambda x, b: F.layer_norm(F.relu(x), (x.shape[-1],), b, b),
        "softmax": lambda x, b: torch.softmax(x + b, -1),
        "sums of columns": lambda x, b: (x * x + b).sum(0),
    }


def ms(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """The middle of several runs of many calls; `wait` ends what is under way everywhere."""
    call()
    taken = []
    for _ in range(SAMPLES):
        wait()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        wait()
        taken.append((time.perf_counter() - start) * 1e3 / CALLS)
    return statistics.median(taken)


def measure(rank: int, world: int, backend: str, shape: tuple[int, int], meeting: str, out: str) -> None:
    """One rank's part; rank 0 writes what was measured."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    import kfusion as kf

    kind = "cuda" if backend == "nccl" else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=world)
    mesh = init_device_mesh(kind, (world,))
    torch.manual_seed(0)
    x, b = (torch.randn(s, dtype=torch.bfloat16, device=kind) for s in (shape, shape[1:]))
    parts = distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Replicate()])

    def done() -> None:
        if kind == "cuda":
            torch.cuda.synchronize()

    def everywhere() -> None:
        done()
        dist.barrier()

    rows = []
    for name, function in functions().items():
        fused = kf.fuse(function)

        def run(f: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
            def call() -> Any:
                result = f(*arguments)
                return result.redistribute(placements=[Replicate()]) if hasattr(result, "redistribute") and (
                    result.placements[0].is_partial()) else result  # fmt: skip

            return call

        error = (run(fused, *parts)().full_tensor().double() - function(x.double(), b.double())).abs().max().item()
        several = ms(run(fused, *parts), everywhere)
        eager = ms(run(function, *parts), everywhere)
        everywhere()
        alone = ms(run(fused, x, b), done) if rank == 0 else 0.0
        everywhere()
        rows.append({"case": name, "one": alone, "several": several, "eager, several": eager, "error": error})
    if rank == 0:
        device = torch.cuda.get_device_name() if kind == "cuda" else "cpu"
        found = {"device": device, "ranks": world, "backend": backend, "torch": torch.__version__, "shape": shape,
                 "dtype": "bfloat16", "unit": "ms", "rows": rows}  # fmt: skip
        Path(out).write_text(json.dumps(found, indent=1) + "\n")
    dist.destroy_process_group()


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="nccl", choices=["nccl", "gloo"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=65536)
    parser.add_argument("--columns", type=int, default=8192)
    parser.add_argument("--out", default="sharded.json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shape = (asked.rows, asked.columns)
        arguments = asked.ranks, asked.backend, shape, f"{folder}/meeting", asked.out
        processes: Any = torch.multiprocessing
        processes.spawn(measure, arguments, nprocs=asked.ranks)
    found = json.loads(Path(asked.out).read_text())
    print(f"{found['ranks']} x {found['device']}, {asked.rows} x {asked.columns} bfloat16, ms of a call")
    for row in found["rows"]:
        times = f"one {row['one']:.3f}, several {row['several']:.3f}, eager DTensor {row['eager, several']:.3f}"
        print(f"{row['case']:20} {row['one'] / row['several']:.2f} x: {times}; error {row['error']:.1e}")


if __name__ == "__main__":
    main()
