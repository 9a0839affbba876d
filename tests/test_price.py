"""Predicted times of plans: what limits a kernel, what a cache still has, and how near to measured ones they are."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import kfusion as kf
from benchmarks import Results
from kfusion import _core
from sweeps import sweep
from test_traffic import F32, H200, Builder, M, N, flops, relu_layernorm

pytestmark = pytest.mark.native

ARITY = {row["name"]: row["arity"] for row in _core.op_table()}
QUICK = [row["name"] for row in _core.op_table() if "quick" in row["facts"]]


def test_time_is_launch_and_the_slower_of_memory_and_compute():
    b = Builder()
    p = b.plan(b.relu(b.input(M, N)))["fused"]
    assert p["launch_us"] == 3
    assert p["memory_us"] == pytest.approx(2 * M * N * F32 / 1e9 * 1e6)
    assert p["compute_us"] == pytest.approx(M * N / 1e12 * 1e6)
    assert p["time_us"] == pytest.approx(3 + p["memory_us"])


def test_what_limits():
    def bound(n, k, dtype="float32"):
        b = Builder()
        return b.plan(b.graph.matmul(b.input(n, k, dtype=dtype), b.input(k, n, dtype=dtype)))["fused"]

    assert bound(1, 1)["bound"] == "launch"
    assert bound(1, 10_000)["bound"] == "memory"
    assert bound(10_000, 10_000)["bound"] == "compute"
    # the units of each dtype: half on its matrix units, float32 and bfloat16 on the vector units
    for dtype, peak in (("float16", 8e12), ("bfloat16", 1e12), ("float32", 1e12), ("float64", 1e12)):
        assert bound(10_000, 10_000, dtype)["compute_us"] == pytest.approx(2 * 10_000**3 / (0.78 * peak) * 1e6)


# One core of the Xeon that plan/prices/op_cost.cpp's figures are of, with the memory bandwidth of a laptop's.
CORE = kf.Device("core", bandwidth=25e9, is_cpu=True, peaks={"vector_float32": 153e9, "vector_float64": 74e9})


def priced(op, dtype, device, n=10**6):
    b = Builder()
    x = [b.input(n, dtype=dtype) for _ in range(ARITY[op])]
    return b.plan(getattr(b, op)(*x), device=device)["fused"]


def test_functions_on_the_cpu_are_priced_as_measured():
    for op, dtype, ns in (  # measured, an element; those of libmvec by what they take of a logarithm on another core
        *(("exp", "float64", 0.59), ("sin", "float64", 1.4), ("power", "float64", 4.5), ("erf", "float64", 2.1)),
        *(("arctan2", "float64", 2.1), ("cbrt", "float64", 2.6), ("power", "float32", 3.1), ("sinh", "float32", 1.2)),
    ):
        p = priced(op, dtype, CORE)
        assert ns / 2 < p["compute_us"] * 1e3 / 10**6 < ns * 2
        assert p["bound"] == "compute"
        assert flops(p) == {(dtype, "vector"): 10**6}, "FLOPs are those of published tables"
    for op, device in itertools.product(("relu", "add", "maximum"), (CORE, H200)):  # simple maps take their FLOPs
        p = priced(op, "float32", device)
        assert p["compute_us"] == pytest.approx(10**6 / device.peaks["vector_float32"] * 1e6)
        assert p["bound"] != "compute"


def test_on_gpus_half_types_have_quick_functions():
    for op in QUICK:
        assert priced(op, "bfloat16", H200)["compute_us"] < priced(op, "float32", H200)["compute_us"]
        assert priced(op, "bfloat16", CORE)["compute_us"] == priced(op, "float32", CORE)["compute_us"]
    assert priced("log", "bfloat16", H200)["compute_us"] == priced("log", "float32", H200)["compute_us"]


def test_functions_that_limit_on_the_h200_are_priced_as_measured():
    for us, function in (  # measured, of 8192 x 4096 float32
        (149, lambda x, row: kf.pad((kf.abs(0.5 * kf.tanh(x) + 1) + 0.5) ** 1.7, ((0, 0), (2, 0)))),
        (130, lambda x, row: kf.max(kf.sin(kf.exp(-kf.abs(kf.sin(x)))) + row, 0)),
        (107, lambda x, row: kf.sigmoid(x) / (kf.sum(kf.abs(kf.tanh(kf.relu(kf.gelu(x)))), -1, keepdims=True) + 1)),
    ):
        plan = kf.plan(function, kf.spec((8192, 4096)), kf.spec((4096,)), device="H200")
        assert plan.groups[-1].bound == "compute"
        assert plan.fused.time_us == pytest.approx(us, rel=0.15)


def test_functions_that_branch_run_beside_no_product():
    specs = [kf.spec(shape, "bfloat16") for shape in ((2048, 4096), (4096, 4096), (4096,))]
    for kernels, function in (  # by what was measured: fused takes 1.54 and 1.35 of two kernels' time, and 0.75 to 0.83
        (2, lambda x, w, row: kf.sum(kf.sin(x @ w), -1)),
        (2, lambda x, w, row: x + (0.5 * (kf.abs(x @ w) + 0.5) ** 1.7 + 1) * row),
        (1, lambda x, w, row: kf.gelu(x @ w + row)),
        (1, lambda x, w, row: x + kf.sigmoid(x @ w) * row),
        (1, lambda x, w, row: kf.max(kf.log1p(kf.relu(x @ w + row)), 0)),
    ):
        plan = kf.plan(function, *specs, device="H200")
        assert plan.groups[0].label.split("+")[0] == "matmul"
        assert len(plan.groups) == kernels


def test_functions_of_a_row_are_counted_once_for_it():
    b = Builder()
    x = b.input(M, N)
    p = b.plan(b.multiply(x, b.rsqrt(b.reduce("mean", x))), device=CORE)["fused"]
    each = priced("rsqrt", "float32", CORE, n=1)["compute_us"]
    assert p["compute_us"] == pytest.approx(M * each + 2 * M * N / 153e9 * 1e6)


def test_quotients_by_a_value_of_the_row_are_products():
    b = Builder()
    x = b.input(M, N)
    p = b.plan(b.divide(x, b.reduce("max", x)), device=CORE)["fused"]
    assert p["compute_us"] == pytest.approx(2 * M * N / 153e9 * 1e6)
    assert priced("divide", "float32", CORE)["compute_us"] > 20 * priced("add", "float32", CORE)["compute_us"]


def test_values_that_were_just_written_come_from_the_cache():
    def times(n):
        b = Builder()
        p = b.plan(b.exp(b.relu(b.input(n))), fuse=False)
        return [g["memory_us"] for g in p["groups"]]

    nbytes = 2500 * F32  # half the cache
    assert times(2500) == pytest.approx([2 * nbytes / 1e9 * 1e6, (nbytes / 1e9 + nbytes / 4e9) * 1e6])
    nbytes = 2501 * F32
    assert times(2501) == pytest.approx([2 * nbytes / 1e9 * 1e6] * 2)


def test_an_input_is_cold_for_its_first_kernel_only():
    b = Builder()
    x = b.input(1000)
    first, second = b.plan(b.sin(x), b.cos(x), fuse=False)["groups"]
    assert first["memory_us"] == pytest.approx(8.0)
    assert second["memory_us"] == pytest.approx(5.0)


def test_what_was_touched_long_ago_is_not_in_the_cache():
    b = Builder()
    y = b.relu(b.input(500))
    z = b.input(4000)
    for op in ("sin", "cos"):
        z = getattr(b, op)(z)
    p = b.plan(b.add(b.graph.slice(z, [(0, 500, 1)]), y), fuse=False)
    add = next(g for g in p["groups"] if "add" in g["ops"])
    assert add["memory_us"] == pytest.approx(3 * 500 * F32 / 1e9 * 1e6)


def measured_on_the_h200():
    results = Results.load(Path(__file__).parents[1] / "results" / "h200.json")
    for c in results.of_suite("relu_layernorm"):
        if c.layout == "dense" and c.shape[0] >= 512 and c.shape[1] in (1024, 4096, 8192, 131072):
            times = {version: c.find(version, "cold").median_us for version in ("unfused", "fused", "copy")}
            yield *c.shape, c.dtype, times


def test_relu_layernorm_as_measured_on_the_h200():
    """The five kernels' time, and the fused kernel's as a part of a copy's in the same run: that of 17 MB took 10.7 us
    on one H200 and 12.4 us on another."""

    def check(rows, cols, dtype, times):
        b = Builder()
        x = b.input(rows, cols, dtype=dtype)
        p, copy = (b.plan(y, device=H200) for y in (relu_layernorm(b, x), b.relu(x)))
        assert p["unfused"]["time_us"] == pytest.approx(times["unfused"], rel=0.15)
        predicted = p["fused"]["time_us"] / copy["fused"]["time_us"]
        assert predicted == pytest.approx(times["fused"] / times["copy"], rel=0.15)

    sweep(check, measured_on_the_h200())
