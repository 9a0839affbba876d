"""What maps take on this machine's CPU: the figures of cpp/kfusion/plan/prices/op_cost.cpp.

    python tests/support/op_costs.py

One thread, data in L1. For each map the time that it adds to a sum of such maps, an element: in nanoseconds, and times
the peak of one core's matrix product in FLOPs, which is what prices are in. OPENBLAS_NUM_THREADS=1 for the peak.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import kfusion as kf
import vector_maps
from kfusion import _core

SIZE = 2048
TERMS = (2, 6)
# Brings normal numbers to where functions have values and take their usual way.
DOMAIN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    **dict.fromkeys(("arcsin", "arccos", "arctanh"), np.tanh),
    **dict.fromkeys(("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "arccosh", "power"), lambda x: np.abs(x) + 1),
}


def best_ns(run: Callable[[], object], calls: int = 20, rounds: int = 150) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter_ns()
        for _ in range(calls):
            run()
        best = min(best, (time.perf_counter_ns() - start) / calls)
    return best


def sum_of(terms: int, op: str, arity: int, dtype: str) -> float:
    """Nanoseconds of op(x + c0, x + d) + op(x + c1, x + d) + ...; of additions alone where op is ""."""

    def build(g: _core.Graph, ids: list[int]) -> int:
        plus = [g.map("add", [ids[0], g.scalar(0.001 * i)]) for i in range(terms + 1)]
        values = [g.map(op, [v] + [plus[-1]] * (arity - 1)) for v in plus[:-1]] if op else plus[:-1]
        total = values[0]
        for v in values[1:]:
            total = g.map("add", [total, v])
        return total

    run = vector_maps.kernel_of(build, dtype, size=SIZE)
    x = DOMAIN.get(op, np.asarray)(np.random.default_rng(0).normal(0, 2, SIZE)).astype(dtype)
    return best_ns(lambda: run(x))


def added_ns(op: str, arity: int, dtype: str) -> float:
    """What one more term adds, an element."""
    few, many = (sum_of(terms, op, arity, dtype) for terms in TERMS)
    return (many - few) / (TERMS[1] - TERMS[0]) / SIZE


def main() -> None:
    kf.set_num_threads(1)
    for dtype in ("float32", "float64"):
        a, b = np.random.default_rng(0).standard_normal((2, 1024, 1024)).astype(dtype)
        peak = 2 * 1024**3 / best_ns(lambda a=a, b=b: a @ b, 1, 20)  # type: ignore[misc]
        additions = added_ns("", 1, dtype)
        print(f"{dtype}: {peak:.0f} GFLOP/s, an addition {additions / 2:.3f} ns")
        for row in _core.op_table():
            if row["kind"] == "map" and row["cost"] != "simple":
                ns = added_ns(row["name"], row["arity"], dtype) - additions
                print(f"  {row['cost']:12} {row['name']:12} {ns:7.3f} ns {ns * peak:7.0f} FLOPs")


if __name__ == "__main__":
    main()
