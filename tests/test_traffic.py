"""Bytes, FLOPs, launches, memory and time of plans, written out as formulas over small co-prime extents."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kfusion as kf
from benchmarks import Results
from kfusion import _core
from sweeps import sweep

pytestmark = pytest.mark.native

M, N, K = 7, 11, 5
F16, F32, F64 = 2, 4, 8
DEVICE = kf.Device(
    "test",
    bandwidth=1e9,
    peak_bandwidth=2e9,
    cache_bandwidth=4e9,
    cache_bytes=20_000,
    tile_bytes=1000,
    on_chip_bytes=2000,
    units=4,
    launch_us=3.0,
    peaks={"vector_float32": 1e12, "vector_float64": 5e11, "matrix_float16": 8e12, "matrix_float64": 1e12},
)
H200 = kf.device("H200")


class Builder:
    """Graphs in few words: every method returns a node; `plan` ends it."""

    def __init__(self):
        self.graph = _core.Graph()

    def input(self, *shape, dtype="float32"):
        return self.graph.input(f"x{len(self.graph)}", shape, dtype)

    def __getattr__(self, op):  # relu, add, ...
        return lambda *arguments: self.graph.map(op, [self.node(a) for a in arguments])

    def node(self, value):
        return value if type(value) is int else self.graph.scalar(value)

    def number(self, value):
        return self.graph.scalar(value)

    def reduce(self, op, x, axes=(-1,), keepdims=True):
        return self.graph.reduce(op, x, None if axes is None else list(axes), keepdims)

    def stage(self, name, build):
        self.graph.begin_stage(name)
        result = build()
        self.graph.end_stage()
        return result

    def plan(self, *outputs, device=DEVICE, **options):
        self.graph.set_outputs([(str(i), n) for i, n in enumerate(outputs)])
        return _core.make_plan(self.graph, device.to_dict(), options)


def moved(total, kind="compulsory"):
    return total[kind]["read"], total[kind]["written"]


def flops(total):
    return {(f["dtype"], f["unit"]): f["count"] for f in total["flops"]}


def relu_layernorm(b, x, weight=None, bias=None, eps=1e-5):
    r = b.relu(x)
    mean = b.stage("layernorm.mean", lambda: b.reduce("mean", r))
    var = b.stage("layernorm.var", lambda: b.reduce("mean", b.square(b.subtract(r, mean))))
    centred = b.stage("layernorm.centre", lambda: b.subtract(r, mean))

    def scale():
        y = b.divide(centred, b.sqrt(b.add(var, b.number(eps))))
        y = y if weight is None else b.multiply(y, weight)
        return y if bias is None else b.add(y, bias)

    return b.stage("layernorm.scale", scale)


# ---- bytes


def test_a_map_reads_once_and_writes_once():
    b = Builder()
    p = b.plan(b.relu(b.input(M, N)))
    assert moved(p["fused"]) == moved(p["fused"], "issued") == (M * N * F32, M * N * F32)
    assert p["fused"] == p["unfused"]
    assert p["fused"]["launches"] == 1
    assert flops(p["fused"]) == {("float32", "vector"): M * N}
    assert p["fused"]["intensity"] == M * N / (2 * M * N * F32)


def twice(b, x):
    return b.add(x, x)


def first_of(b, x, *slices):
    return b.graph.slice(x, list(slices))


def with_transpose(b, x):
    return b.add(x, b.graph.transpose(x, [1, 0]))


def iota_and_constant(b, x):
    return b.add(b.multiply(x, 2.0), b.graph.iota((M, N), 1, "float32"))


def difference(b, x, one, other):
    return b.subtract(first_of(b, x, one), first_of(b, x, other))


def both_ways(b, x):
    part = first_of(b, x, (0, N, 1))
    return b.add(part, first_of(b, part, (N - 1, -1, -1)))


def head(b, x, w):
    return b.reduce("max", b.log1p(b.relu(b.graph.matmul(x, w))), (0,), keepdims=False)


VECTOR, MATRIX = ("float32", "vector"), ("float32", "matrix")
# Shapes of inputs, which are float32 or of a dtype that is named; results; bytes read and written in one kernel, and
# apart; FLOPs. What is None is not looked at.
MOVED = {
    **{f"sizes of {dtype}": ([(M, N, dtype)], twice, (M * N * size, M * N * size), None, {(computed, "vector"): M * N})
       for dtype, size, computed in (("float16", 2, "float32"), ("bfloat16", 2, "float32"), ("float64", 8, "float64"),
                                     ("int32", 4, "int32"))},
    "a comparison writes bytes": ([(M, N, "float16")] * 2, lambda b, x, y: b.greater(x, y), (2 * M * N * F16, M * N),
                                  None, {VECTOR: M * N}),
    "a mask": ([(M, N, "bool"), (M, N)], lambda b, m, x: b.where(m, x, 0.0), (M * N * (1 + F32), M * N * F32)),
    "a cast computes nothing": ([(M, N)], lambda b, x: b.graph.cast(x, "float16"), (M * N * F32, M * N * F16), None,
                                {}),
    "constants and iota": ([(M, N)], iota_and_constant, (M * N * F32, M * N * F32)),
    "an array read twice": ([(M, N)], lambda b, x: b.multiply(x, x), (M * N * F32, M * N * F32)),
    "x + x.T": ([(N, N)], with_transpose, (N * N * F32, N * N * F32)),
    "a part of x + x.T": ([(N, M)], lambda b, x: with_transpose(b, first_of(b, x, (2, 7, 1), (0, 5, 1))),
                          (5 * 5 * F32, 5 * 5 * F32)),
    "a slice": ([(M, N)], lambda b, x: b.relu(first_of(b, x, (0, M, 2), (N - 1, -1, -3))), (4 * 4 * F32, 4 * 4 * F32)),
    "slices that overlap": ([(N,)], lambda b, x: difference(b, x, (1, N, 1), (0, N - 1, 1)), (N * F32, (N - 1) * F32)),
    "slices apart": ([(N,)], lambda b, x: difference(b, x, (0, 3, 1), (5, 8, 1)), (6 * F32, 3 * F32)),
    "x and x reversed": ([(2 * N,)], both_ways, (N * F32, N * F32)),
    "broadcast arguments": ([(M, N), (N,), (M, 1)], lambda b, x, row, column: b.multiply(b.add(x, row), column),
                            ((M * N + N + M) * F32, M * N * F32), ((M * N + N + M * N + M) * F32, 2 * M * N * F32),
                            None),
    "a broadcast result": ([(M, 1), (N,)], lambda b, x, y: b.add(x, y), ((M + N) * F32, M * N * F32)),
    "several outputs": ([(M, N)], lambda b, x: (b.sin(x), b.cos(x)), (M * N * F32, 2 * M * N * F32),
                        (2 * M * N * F32, 2 * M * N * F32), None),
    "a value that is returned": ([(M, N)], lambda b, x: (y := b.relu(x), b.exp(y)), (M * N * F32, 2 * M * N * F32),
                                 (2 * M * N * F32, 2 * M * N * F32), None),
    "an output that is an input": ([(M, N)], lambda b, x: b.graph.transpose(x, [1, 0]), (0, 0), None, {}),
    **{f"empty {shape}": ([shape], lambda b, x: b.relu(x), (0, 0), None, {}) for shape in ((0, N), (M, 0), (0,))},
    "the sum of nothing": ([(M, 0)], lambda b, x: b.reduce("sum", x, keepdims=False), (0, M * F32)),
    **{f"a sum over {axes}": ([(M, N)], lambda b, x, axes=axes: b.reduce("sum", x, axes), (M * N * F32, n * F32), None,
                              {VECTOR: M * N}) for axes, n in (((-1,), M), ((0,), N), (None, 1), ((0, 1), 1))},
    "a mean of half types": ([(M, N, "bfloat16")], lambda b, x: b.reduce("mean", x), (M * N * F16, M * F16), None,
                             {VECTOR: M * N}),
    "a sum of masks": ([(M, N, "bool")], lambda b, x: b.reduce("sum", x), (M * N, M * 8)),
    "FLOPs by the op table": ([(M, N)] * 3, lambda b, x, y, z: b.logaddexp(b.clip(x, y, z), b.positive(x)), None, None,
                              {VECTOR: (4 + 2 + 0) * M * N}),
    "FLOPs by dtype": ([(M, N, "float16")], lambda b, x: b.sqrt(b.graph.cast(b.exp(x), "float64")), None, None,
                       {VECTOR: M * N, ("float64", "vector"): M * N}),
    "a product and its epilogue": (
        [(M, K, "float16"), (K, N, "float16")], lambda b, x, w: b.relu(b.graph.matmul(x, w)),
        ((M * K + K * N) * F16, M * N * F16), ((M * K + K * N + M * N) * F16, 2 * M * N * F16),
        {("float16", "matrix"): 2 * M * N * K, VECTOR: M * N}),
    "a product with leading axes": ([(3, M, K), (K, N)], lambda b, x, w: b.graph.matmul(x, w),
                                    ((3 * M * K + K * N) * F32, 3 * M * N * F32), None, {MATRIX: 2 * 3 * M * N * K}),
    "a product of vectors": ([(K,), (K,)], lambda b, x, y: b.graph.matmul(x, y), (2 * K * F32, F32), None,
                             {MATRIX: 2 * K}),
    "a convolution": ([(2, 6, 9, 8), (4, 3, 3, 2)], lambda b, x, w: b.graph.conv2d(x, w, padding=(1, 0), groups=2),
                      ((2 * 6 * 9 * 8 + 4 * 3 * 3 * 2) * F32, 2 * 4 * 9 * 7 * F32), None,
                      {MATRIX: 2 * (2 * 4 * 9 * 7) * 3 * 3 * 2}),
    **{f"gathering of {rows} rows": ([(rows, N), (M, "int64")], lambda b, x, i: b.graph.take(x, i, 0),
                                     (min(rows, M) * N * F32 + M * 8, M * N * F32)) for rows in (1000, 3)},
    "maps after a maximum": ([(M, K), (K, N)], head, ((M * K + K * N) * F32, N * F32), None,
                             {MATRIX: 2 * M * N * K, VECTOR: M * N + 2 * N}),
    "log(relu(x + y))": ([(N * M,)] * 2, lambda b, x, y: b.log(b.relu(b.add(x, y))), (2 * N * M * F32, N * M * F32),
                         (4 * N * M * F32, 3 * N * M * F32), None),
}  # fmt: skip


def test_bytes_and_flops():
    def check(inputs, build, fused, unfused=None, counts=None):
        b = Builder()
        shapes = [(s[:-1], s[-1]) if isinstance(s[-1], str) else (s, "float32") for s in inputs]
        results = build(b, *(b.input(*shape, dtype=dtype) for shape, dtype in shapes))
        p = b.plan(*(results if isinstance(results, tuple) else [results]))
        assert fused in (None, moved(p["fused"]))
        assert unfused in (None, moved(p["unfused"]))
        assert counts in (None, flops(p["fused"]))
        moves_nothing = fused == (0, 0)
        assert (p["fused"]["launches"] == 0, p["fused"]["time_us"] == 0) == (moves_nothing, moves_nothing)
        assert not moves_nothing or p["savings"].get("speedup_estimate", 0) == 0

    sweep(check, MOVED.values())


def test_a_captured_array_counts_as_an_argument():
    b = Builder()
    c = b.graph.input("table", (N,), "float32", captured=True)
    assert moved(b.plan(b.add(b.input(M, N), c))["fused"])[0] == (M * N + N) * F32


# ---- the known chains


def test_multiply_add_relu_moves_28_bytes_an_element_apart_and_12_fused():
    b = Builder()
    n = 1_000_000
    p = b.plan(b.relu(b.add(b.multiply(b.input(n), 2.0), b.input(n))))
    assert sum(moved(p["unfused"])) == 28 * n
    assert sum(moved(p["fused"])) == 12 * n
    assert p["savings"] == {
        "unfused_bytes": 28 * n,
        "fused_bytes": 12 * n,
        "savings_bytes": 16 * n,
        "savings_pct": 57.14,
        "speedup_estimate": 2.33,
    }


def test_relu_layernorm_is_eight_passes_apart_and_two_fused():
    rows, cols = 4096, 1024
    b = Builder()
    p = b.plan(relu_layernorm(b, b.input(rows, cols)), device=H200)
    matrix, row = rows * cols * F32, rows * F32
    assert moved(p["fused"]) == (matrix, matrix)
    assert sum(moved(p["fused"])) == 33_554_432
    assert (p["fused"]["launches"], p["unfused"]["launches"]) == (1, 5)
    # Beside the eight passes over the matrix, mean and variance of the rows are written, and read by three kernels.
    assert moved(p["unfused"]) == (5 * matrix + 3 * row, 3 * matrix + 2 * row)
    assert sum(moved(p["unfused"])) == 134_217_728 + 5 * row


def test_a_value_that_two_stages_compute_is_computed_twice_apart_and_once_fused():
    b = Builder()
    x = b.input(M, N)
    p = b.plan(b.exp(b.relu(x)), b.sqrt(b.relu(x)))
    assert moved(p["unfused"]) == (4 * M * N * F32, 4 * M * N * F32)
    assert flops(p["fused"]) == {("float32", "vector"): 3 * M * N}
    assert (len(b.graph.simplify()), len(b.graph.simplify(across_stages=False))) == (4, 5)


def test_a_chain_of_one_kernel_per_stage_is_the_calculators_chain():
    b = Builder()
    sizes = [M * N] * 5
    x = b.input(M, N)
    for op in ("relu", "exp", "sqrt", "tanh"):
        x = getattr(b, op)(x)
    ops = [{"input_size": i, "output_size": o} for i, o in itertools.pairwise(sizes)]
    assert b.plan(x)["savings"] == kf.savings(ops, dtype_bytes=F32)


# ---- rows that do not stay on chip


def long_rows(cols, **kinds):
    b = Builder()
    return b.plan(relu_layernorm(b, b.input(M, cols), **{k: b.input(cols) for k in kinds}))


def test_rows_on_chip_are_read_once_and_longer_ones_once_per_sweep():
    p = long_rows(500, weight=1)  # 2000 bytes, as much as there is
    assert p["groups"][0]["row_on_chip"]
    assert moved(p["fused"], "issued") == moved(p["fused"]) == ((M * 500 + 500) * F32, M * 500 * F32)
    p = long_rows(501, weight=1, bias=1)
    (group,) = p["groups"]
    assert (group["row_on_chip"], group["passes"]) == (False, 2)
    assert moved(p["fused"]) == ((M * 501 + 2 * 501) * F32, M * 501 * F32)
    assert moved(p["fused"], "issued") == ((2 * M * 501 + 2 * 501) * F32, M * 501 * F32)
    assert p["savings"]["fused_bytes"] == sum(moved(p["fused"], "issued"))


def test_what_only_the_last_sweep_needs_is_read_once():
    b = Builder()
    x, y = b.input(M, 501), b.input(M, 501)
    p = b.plan(b.multiply(b.subtract(x, b.reduce("mean", x)), y))
    assert not p["groups"][0]["row_on_chip"]
    assert moved(p["fused"], "issued")[0] == (2 + 1) * M * 501 * F32


def test_rows_read_again_from_the_cache_are_cheap():
    def memory_us(cache_bytes):
        device = kf.Device.from_dict(DEVICE.to_dict() | {"cache_bytes": cache_bytes})
        b = Builder()
        return b.plan(relu_layernorm(b, b.input(M, 501)), device=device)["fused"]["memory_us"]

    matrix, row = M * 501 * F32, 501 * F32
    assert memory_us(4 * row) == pytest.approx((2 * matrix / 1e9 + matrix / 4e9) * 1e6)  # two rows at a time
    assert memory_us(4 * row - 2) == pytest.approx(3 * matrix / 1e9 * 1e6)


# ---- memory between kernels


def test_peak_of_intermediates():
    n = 100 * F32
    b = Builder()
    x = b.input(100)
    chain = b.tanh(b.sqrt(b.exp(x)))
    p = b.plan(chain)
    assert p["fused"]["peak_intermediate_bytes"] == 0
    assert p["unfused"]["peak_intermediate_bytes"] == 2 * n  # one is read while the next is written
    b = Builder()
    x = b.input(100)
    early = b.exp(x)
    late = b.cos(b.sin(b.sqrt(x)))
    p = b.plan(b.add(early, late))
    assert p["unfused"]["peak_intermediate_bytes"] == 3 * n


# ---- limits


def test_counts_beyond_63_bits_are_errors():
    b = Builder()
    huge = b.input(2**60)
    with pytest.raises(OverflowError, match="bytes"):
        b.plan(b.add(huge, huge))
    b = Builder()
    with pytest.raises(OverflowError, match="operations"):
        b.plan(b.graph.matmul(b.input(2**25, 2**25), b.input(2**25, 2**25)))


@given(
    st.lists(st.sampled_from(["relu", "exp", "add", "sum", "transpose", "slice", "self"]), min_size=1, max_size=8),
    st.sampled_from(["float16", "float32", "float64"]),
)
@settings(max_examples=80, deadline=None)
def test_fused_moves_no_more_than_unfused(ops, dtype):
    b = Builder()
    x = first = b.input(M, M, dtype=dtype)
    for op in ops:
        if op in ("relu", "exp"):
            x = getattr(b, op)(x)
        elif op == "add":
            x = b.add(x, first)
        elif op == "sum":
            x = b.add(x, b.reduce("sum", x))
        elif op == "transpose":
            x = b.graph.transpose(x, [1, 0])
        elif op == "slice":
            x = b.graph.slice(x, [(M - 1, -1, -1), (0, M, 1)])
        else:
            x = b.multiply(x, b.graph.transpose(x, [1, 0]))
    p = b.plan(x)
    assert p["fused"]["launches"] <= p["unfused"]["launches"]
    assert sum(moved(p["fused"])) <= sum(moved(p["unfused"]))
    for total in (p["fused"], p["unfused"], *p["groups"]):
        assert all(c <= i for c, i in zip(moved(total), moved(total, "issued"), strict=True))


# ---- time: what limits a kernel, what a cache still has, and how near to measured times predicted ones are


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
