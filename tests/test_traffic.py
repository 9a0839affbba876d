"""Bytes, FLOPs, launches, memory and time of plans, written out as formulas over small co-prime extents."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kfusion as kf
from kfusion import _core

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


@pytest.mark.parametrize(
    ("dtype", "size", "computed"),
    [("float16", 2, "float32"), ("bfloat16", 2, "float32"), ("float64", 8, "float64"), ("int32", 4, "int32")],
)
def test_dtypes_have_their_own_sizes(dtype, size, computed):
    b = Builder()
    x = b.input(M, N, dtype=dtype)
    p = b.plan(b.add(x, x))
    assert moved(p["fused"]) == (M * N * size, M * N * size)
    assert flops(p["fused"]) == {(computed, "vector"): M * N}


def test_a_comparison_writes_bytes_and_computes_in_the_type_it_compares():
    b = Builder()
    x, y = b.input(M, N, dtype="float16"), b.input(M, N, dtype="float16")
    p = b.plan(b.greater(x, y))
    assert moved(p["fused"]) == (2 * M * N * F16, M * N)
    assert flops(p["fused"]) == {("float32", "vector"): M * N}
    q = Builder()
    mask, x = q.input(M, N, dtype="bool"), q.input(M, N)
    assert moved(q.plan(q.where(mask, x, 0.0))["fused"]) == (M * N * (1 + F32), M * N * F32)


def test_a_cast_moves_both_sizes_and_computes_nothing():
    b = Builder()
    p = b.plan(b.graph.cast(b.input(M, N), "float16"))
    assert moved(p["fused"]) == (M * N * F32, M * N * F16)
    assert p["fused"]["flops"] == []
    assert p["fused"]["intensity"] == 0


def test_constants_and_iota_cost_nothing():
    b = Builder()
    x = b.input(M, N)
    p = b.plan(b.add(b.multiply(x, 2.0), b.graph.iota((M, N), 1, "float32")))
    assert moved(p["fused"]) == (M * N * F32, M * N * F32)


def test_an_array_read_twice_counts_once():
    b = Builder()
    x = b.input(M, N)
    assert moved(b.plan(b.multiply(x, x))["fused"])[0] == M * N * F32


def test_x_plus_its_transpose_reads_x_once():
    b = Builder()
    x = b.input(N, N)
    p = b.plan(b.add(x, b.graph.transpose(x, [1, 0])))
    assert moved(p["fused"]) == (N * N * F32, N * N * F32)


def test_part_of_x_plus_its_transpose_reads_the_part_once():
    b = Builder()
    part = b.graph.slice(b.input(N, M), [(2, 7, 1), (0, 5, 1)])
    p = b.plan(b.add(part, b.graph.transpose(part, [1, 0])))
    assert moved(p["fused"])[0] == 5 * 5 * F32


def test_a_slice_reads_what_it_takes():
    b = Builder()
    x = b.input(M, N)
    p = b.plan(b.relu(b.graph.slice(x, [(0, M, 2), (N - 1, -1, -3)])))
    assert moved(p["fused"]) == (4 * 4 * F32, 4 * 4 * F32)


def test_slices_that_overlap_read_no_more_than_there_is():
    b = Builder()
    x = b.input(N)
    p = b.plan(b.subtract(b.graph.slice(x, [(1, N, 1)]), b.graph.slice(x, [(0, N - 1, 1)])))
    assert moved(p["fused"]) == (N * F32, (N - 1) * F32)


def test_slices_apart_add_up():
    b = Builder()
    x = b.input(N)
    p = b.plan(b.subtract(b.graph.slice(x, [(0, 3, 1)]), b.graph.slice(x, [(5, 8, 1)])))
    assert moved(p["fused"])[0] == 6 * F32


def test_x_and_x_reversed_read_the_same_elements():
    b = Builder()
    part = b.graph.slice(b.input(2 * N), [(0, N, 1)])
    p = b.plan(b.add(part, b.graph.slice(part, [(N - 1, -1, -1)])))
    assert moved(p["fused"])[0] == N * F32


def test_a_broadcast_argument_counts_its_own_elements():
    b = Builder()
    x, bias, column = b.input(M, N), b.input(N), b.input(M, 1)
    p = b.plan(b.multiply(b.add(x, bias), column))
    assert moved(p["fused"]) == ((M * N + N + M) * F32, M * N * F32)
    assert moved(p["unfused"]) == ((M * N + N + M * N + M) * F32, 2 * M * N * F32)


def test_a_broadcast_result_is_written_whole():
    b = Builder()
    p = b.plan(b.add(b.input(M, 1), b.input(N)))
    assert moved(p["fused"]) == ((M + N) * F32, M * N * F32)


def test_several_outputs_of_one_input():
    b = Builder()
    x = b.input(M, N)
    p = b.plan(b.sin(x), b.cos(x))
    assert moved(p["fused"]) == (M * N * F32, 2 * M * N * F32)
    assert moved(p["unfused"]) == (2 * M * N * F32, 2 * M * N * F32)


def test_an_intermediate_that_is_returned_is_written_but_not_read_again():
    b = Builder()
    y = b.relu(b.input(M, N))
    p = b.plan(y, b.exp(y))
    assert moved(p["fused"]) == (M * N * F32, 2 * M * N * F32)
    assert moved(p["unfused"]) == (2 * M * N * F32, 2 * M * N * F32)
    assert p["fused"]["peak_intermediate_bytes"] == p["unfused"]["peak_intermediate_bytes"] == 0


def test_a_captured_array_counts_as_an_argument():
    b = Builder()
    c = b.graph.input("table", (N,), "float32", captured=True)
    assert moved(b.plan(b.add(b.input(M, N), c))["fused"])[0] == (M * N + N) * F32


@pytest.mark.parametrize("shape", [(0, N), (M, 0), (0,)])
def test_empty_arrays_launch_nothing(shape):
    b = Builder()
    p = b.plan(b.relu(b.input(*shape)))
    assert moved(p["fused"]) == (0, 0)
    assert (p["fused"]["launches"], p["fused"]["time_us"]) == (0, 0)
    assert p["savings"]["speedup_estimate"] == 0


def test_the_sum_of_nothing_is_written():
    b = Builder()
    p = b.plan(b.reduce("sum", b.input(M, 0), keepdims=False))
    assert moved(p["fused"]) == (0, M * F32)
    assert p["fused"]["launches"] == 1


def test_an_output_that_is_an_input_moves_nothing():
    b = Builder()
    x = b.input(M, N)
    p = b.plan(b.graph.transpose(x, [1, 0]))
    assert (p["groups"], moved(p["fused"]), p["fused"]["launches"]) == ([], (0, 0), 0)


# ---- reductions, products, gathering


@pytest.mark.parametrize(("axes", "result"), [((-1,), M), ((0,), N), (None, 1), ((0, 1), 1)])
def test_a_reduction_reads_all_and_writes_its_results(axes, result):
    b = Builder()
    p = b.plan(b.reduce("sum", b.input(M, N), axes))
    assert moved(p["fused"]) == (M * N * F32, result * F32)
    assert flops(p["fused"]) == {("float32", "vector"): M * N}


def test_reductions_of_half_types_and_of_masks():
    b = Builder()
    p = b.plan(b.reduce("mean", b.input(M, N, dtype="bfloat16")))
    assert moved(p["fused"]) == (M * N * F16, M * F16)
    assert flops(p["fused"]) == {("float32", "vector"): M * N}
    b = Builder()
    p = b.plan(b.reduce("sum", b.input(M, N, dtype="bool")))
    assert moved(p["fused"]) == (M * N, M * 8)


def test_flops_by_the_op_table():
    b = Builder()
    x, y, z = b.input(M, N), b.input(M, N), b.input(M, N)
    p = b.plan(b.logaddexp(b.clip(x, y, z), b.positive(x)))
    assert flops(p["fused"]) == {("float32", "vector"): (4 + 2 + 0) * M * N}


def test_flops_are_kept_apart_by_dtype():
    b = Builder()
    x = b.input(M, N, dtype="float16")
    y = b.graph.cast(b.exp(x), "float64")
    p = b.plan(b.sqrt(y))
    assert flops(p["fused"]) == {("float32", "vector"): M * N, ("float64", "vector"): M * N}


def test_a_matrix_product_and_its_epilogue():
    b = Builder()
    p = b.plan(b.relu(b.graph.matmul(b.input(M, K, dtype="float16"), b.input(K, N, dtype="float16"))))
    assert moved(p["fused"]) == ((M * K + K * N) * F16, M * N * F16)
    assert moved(p["unfused"]) == ((M * K + K * N + M * N) * F16, 2 * M * N * F16)
    assert flops(p["fused"]) == {("float16", "matrix"): 2 * M * N * K, ("float32", "vector"): M * N}


def test_products_with_leading_axes_and_of_vectors():
    b = Builder()
    p = b.plan(b.graph.matmul(b.input(3, M, K), b.input(K, N)))
    assert moved(p["fused"]) == ((3 * M * K + K * N) * F32, 3 * M * N * F32)
    assert flops(p["fused"]) == {("float32", "matrix"): 2 * 3 * M * N * K}
    b = Builder()
    p = b.plan(b.graph.matmul(b.input(K), b.input(K)))
    assert (moved(p["fused"]), flops(p["fused"])) == ((2 * K * F32, F32), {("float32", "matrix"): 2 * K})


def test_a_convolution():
    b = Builder()
    p = b.plan(b.graph.conv2d(b.input(2, 6, 9, 8), b.input(4, 3, 3, 2), padding=(1, 0), groups=2))
    out = 2 * 4 * 9 * 7
    assert moved(p["fused"]) == ((2 * 6 * 9 * 8 + 4 * 3 * 3 * 2) * F32, out * F32)
    assert flops(p["fused"]) == {("float32", "matrix"): 2 * out * 3 * 3 * 2}


def test_gathering_reads_no_more_than_it_returns():
    b = Builder()
    p = b.plan(b.graph.take(b.input(1000, N), b.input(M, dtype="int64"), 0))
    assert moved(p["fused"]) == (M * N * F32 + M * 8, M * N * F32)
    b = Builder()
    p = b.plan(b.graph.take(b.input(3, N), b.input(M, dtype="int64"), 0))
    assert moved(p["fused"])[0] == 3 * N * F32 + M * 8


def test_maps_after_a_maximum_run_once_per_result():
    b = Builder()
    product = b.graph.matmul(b.input(M, K), b.input(K, N))
    p = b.plan(b.reduce("max", b.log1p(b.relu(product)), (0,), keepdims=False))
    assert moved(p["fused"]) == ((M * K + K * N) * F32, N * F32)
    assert flops(p["fused"])["float32", "vector"] == M * N + 2 * N


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


def test_log_relu_add_is_seven_transfers_apart_and_three_fused():
    b = Builder()
    n = N * M
    p = b.plan(b.log(b.relu(b.add(b.input(n), b.input(n)))))
    assert sum(moved(p["unfused"])) == 7 * n * F32
    assert sum(moved(p["fused"])) == 3 * n * F32


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


def test_rows_on_chip_are_read_once():
    p = long_rows(500, weight=1)  # 2000 bytes, as much as there is
    assert p["groups"][0]["row_on_chip"]
    assert moved(p["fused"], "issued") == moved(p["fused"]) == ((M * 500 + 500) * F32, M * 500 * F32)


def test_longer_rows_are_read_once_per_sweep_and_parameters_once():
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
