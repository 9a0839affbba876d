"""Products with what follows them, as CUDA C++ for tensor cores: what is one kernel, with which tile, in what text."""

from __future__ import annotations

import itertools
import re

import pytest

import golden
import kfusion as kf
from kfusion import _core
from sweeps import sweep
from test_codegen_compiles import nvcc

H200 = kf.device("H200")


def spec(*shape, dtype="bfloat16", like="numpy"):
    return kf.spec(shape, dtype, like=like)


OURS = ("tensor_cores", "cuda", "array_library")


def planned(f, *arguments, executors=OURS, device="H200"):
    return kf.plan(f, *arguments, device=device, executors=list(executors))


def kernel(f, *arguments):
    (only,) = _core.cuda_kernels(kf.trace(f, *arguments), H200.to_dict())
    assert isinstance(only, _core.ContractionKernel)
    return only


X, W, B = spec(8192, 4096), spec(16_384, 4096), spec(16_384)

ONE_KERNEL = {
    "bias and gelu": (lambda x, w, b: kf.gelu(x @ w.T + b, approximate="tanh"), (X, W, B)),
    "columns of the right factor": (lambda x, w: kf.relu(x @ w), (X, spec(4096, 512))),
    "columns of the left factor": (lambda x, w: kf.relu(x.T @ w), (spec(4096, 8192), spec(4096, 512))),
    "a residual": (lambda x, w, r: x @ w.T + r, (X, W, spec(8192, 16_384))),
    "float16": (lambda x, w: kf.relu(x @ w.T), (spec(512, 64, dtype="float16"), spec(512, 64, dtype="float16"))),
    "batches": (lambda x, w: kf.relu(x @ w), (spec(16, 512, 64), spec(16, 64, 512))),
    "leading axes": (lambda x, w, b: kf.relu(x @ w.T + b), (spec(4, 2048, 4096), W, B)),
    "a mask of rows": (lambda x, w, m: kf.where(m[:, None], x @ w.T, 0.0), (X, W, kf.spec((8192,), "bool"))),
    "a value computed of a vector": (lambda x, w, b: x @ w.T + (b * 2 + 1), (X, W, B)),
    "the largest of rows": (lambda x, w: (x @ w.T).max(-1), (X, spec(32_000, 4096))),
    "sums of squares of columns": (lambda x, w: ((x @ w.T) * (x @ w.T)).sum(0), (X, W)),
    "gates": (lambda x, g, u: kf.silu(x @ g.T) * (x @ u.T), (X, W, W)),
    "gates with biases": (lambda x, g, u, a, b: kf.gelu(x @ g.T + a) * (x @ u.T + b), (X, W, W, B, B)),
    "losses": (lambda x, w, t: kf.cross_entropy(x @ w.T, t, reduction="none"),
               (X, spec(32_000, 4096), kf.spec((8192,), "int64"))),
    "losses with class weights": (
        lambda x, w, t, c: kf.cross_entropy(x @ w.T, t, weight=c, ignore_index=-100, reduction="none"),
        (X, spec(32_000, 4096), kf.spec((8192,), "int64"), spec(32_000))),
    "smoothed losses with class weights": (
        lambda x, w, t, c: kf.cross_entropy(x @ w.T, t, weight=c, label_smoothing=0.1, reduction="none"),
        (X, spec(32_000, 4096), kf.spec((8192,), "int64"), spec(32_000))),
    "a loss and the square of logsumexp": (
        lambda x, w, t: kf.cross_entropy((y := x @ w.T), t, reduction="none") + kf.logsumexp(y, -1) ** 2,
        (X, spec(32_000, 4096), kf.spec((8192,), "int64"))),
    "argmax": (lambda x, w: kf.argmax(x @ w.T, -1), (X, spec(32_000, 4096))),
    "argmax of a large vocabulary": (lambda x, w, b: kf.argmax(x @ w.T + b, -1),
                                     (X, spec(128_256, 4096), spec(128_256))),
    "argmin of columns after a map": (lambda x, w, b: kf.argmin(kf.tanh(x @ w.T + b), 0), (X, W, B)),
    "top 1": (lambda x, w: ((y := x @ w.T).max(-1), kf.argmax(y, -1)), (X, spec(32_000, 4096))),
    "a loss and whether it was hit": (
        lambda x, w, t: (kf.cross_entropy((y := x @ w.T), t, reduction="none"), kf.argmax(y, -1) == t),
        (X, spec(32_000, 4096), kf.spec((8192,), "int64"))),
    "variance": (lambda x, w, b: kf.var(x @ w.T + b, axis=-1), (X, W, B)),
    "mean and standard deviation": (lambda x, w: ((y := x @ w.T).mean(0), kf.std(y, axis=0)), (X, W)),
    "the splade head": (golden.splade_head, (spec(32, 256, 768), spec(30_522, 768), spec(30_522))),
}  # fmt: skip


def test_one_kernel():
    def check(f, arguments):
        (group,) = planned(f, *arguments).groups
        assert group.executor == "tensor_cores"
        assert group.how.startswith("tiles of ")

    sweep(check, ONE_KERNEL.values())


def queries(rows, width=4096, keys=1024, depth=4096, dtype="bfloat16"):
    """The queries of one input, with biases: arguments of golden.queries_keys_values."""
    columns = (width, keys, keys)
    weights = [spec(n, depth, dtype=dtype) for n in columns]
    return [spec(rows, depth, dtype=dtype), *weights, *[spec(n, dtype=dtype) for n in columns]]


BESIDE = "3 products beside one another, in tiles of "


def test_queries_keys_and_values_are_one_kernel():
    def check(rows, executors):
        arguments = queries(rows)
        chosen = kf.plan(golden.queries_keys_values, *arguments, device="H200", executors=executors)
        (group,) = chosen.groups
        assert group.executor == "tensor_cores"
        assert group.how.startswith(BESIDE)
        apart = sum(planned(lambda x, w, b: x @ w.T + b, arguments[0], w, b).fused.time_us
                    for w, b in zip(arguments[1:4], arguments[4:], strict=True))  # fmt: skip
        assert chosen.fused.time_us < apart

    sweep(check, itertools.product([1, 16, 128, 512, 2048, 8192], [OURS, None]))


APART = {
    "weights in another order": (lambda x, w, u: (x @ w.T, x @ u), (X, W, spec(4096, 512)), [1, 1]),
    "other inputs": (lambda x, y, w: (x @ w.T, y @ w.T), (X, X, W), [1, 1]),
    "other depths": (lambda x, y, w, u: (x @ w.T, y @ u.T), (X, spec(8192, 512), W, spec(512, 512)), [1, 1]),
    "other dtypes": (lambda x, y: (x.T @ x, y.T @ y), (X, spec(8192, 4096, dtype="float16")), [1, 1]),
    "left factors in another order": (lambda x, y, w: (x @ w.T, y.T @ w.T), (X, spec(4096, 8192), W), [1, 1]),
    "one that is read": (lambda x, y, w: (kf.softmax(x @ w.T), y @ w.T), (X, X, W), [1, 1, 0]),
    "one that reads a join of another's result": (
        lambda x, y: x @ kf.concatenate([x @ y, y], 1),
        (spec(1024, 1024), spec(1024, 1024)),
        [1, 1, 0],
    ),
    "a residual": (lambda x, w, u, r: (x @ w.T + r, x @ u.T), (X, W, W, spec(8192, 16_384)), [1, 1]),
    "products that are read together": (lambda x, w, u: (y := x @ w.T, y * (x @ u.T)), (X, W, W), [2]),  # a gate
    "a gate and a product": (lambda x, g, u, w: (kf.silu(x @ g.T) * (x @ u.T), x @ w.T), (X, W, W, W), [2, 1]),
    "a product that is reduced": (lambda x, w, u: ((x @ w.T).max(-1), x @ u.T), (X, W, W), [1, 1]),
    "five of them": (lambda x, *ws: tuple(x @ w.T for w in ws), (spec(128, 1024), *[spec(1024, 1024)] * 5), [4, 1]),
}


def test_what_lies_beside_what():
    def check(f, arguments, products):
        counts = sorted((g.ops.count("matmul") for g in planned(f, *arguments).groups), reverse=True)
        assert counts == products

    sweep(check, APART.values())


def test_gradients_of_weights_are_one_kernel():
    """Whose left factors and rows are their own."""
    x, h, wide, narrow = spec(8192, 2048), spec(8192, 5504), spec(8192, 5504), spec(8192, 2048)

    def f(x, h, gate, up, down):
        return gate.T @ x, up.T @ x, down.T @ h

    chosen = planned(f, x, h, wide, wide, narrow)
    (group,) = chosen.groups
    assert group.how.startswith(BESIDE)
    library = planned(f, x, h, wide, wide, narrow, executors=("array_library", "cuda"))
    assert chosen.fused.time_us < library.fused.time_us
    assert "kApart" in kernel(f, x, h, wide, wide, narrow).source

    def with_epilogues(a, b, c, d, bias, row):
        return kf.relu(a @ b.T), c @ d.T * row + bias, kf.tanh(b @ d.T) * 2.0

    (group,) = planned(with_epilogues, *(spec(n, 264) for n in (300, 136, 1000, 72)), spec(72), spec(1000, 1)).groups
    assert group.how.startswith(BESIDE)


def test_products_stay_apart_elsewhere():
    for device, executors in (("A100 80GB", None), ("H200", ("array_library", "cuda")), ("cpu", None)):
        groups = kf.plan(golden.queries_keys_values, *queries(128), device=device, executors=executors).groups
        assert max(g.ops.count("matmul") for g in groups) == 1


def test_thirds_of_one_matrix_are_one_product():
    """GPT-2 has its queries, keys and values so: nothing is cut or copied."""

    def attend(x, w, b):
        q, k, v = kf.split(x @ w.T + b, 3, -1)
        return kf.softmax(q @ k.T) @ v

    groups = planned(attend, spec(256, 768), spec(2304, 768), spec(2304)).groups
    assert groups[0].executor == "tensor_cores"
    assert groups[0].ops.count("matmul") == 1
    assert not any(g.kind in ("copy", "pointwise") for g in groups)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [16, 130, 512, 2048])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_kernels_of_products_beside_one_another_compile(rows, dtype, tmp_path):
    def f(x, q, k, v, a, b, c):
        return kf.relu(x @ q.T + a), (x @ k.T).astype("float32") if rows == 2048 else x @ k.T, (x @ v.T) * b - c

    report = nvcc(kernel(f, *queries(rows, dtype=dtype)).source, tmp_path, architecture="sm_90a")
    assert "Used 168 registers" in report
    assert int(re.findall(r"(\d+) bytes spill stores", report)[0]) <= 64


REFUSED = {
    "float32": (lambda x, w: kf.relu(x @ w.T), (kf.spec((64, 64)), kf.spec((64, 64))),
                "computes products of float16 or bfloat16"),
    "rows between multiples of 16 bytes": (lambda x, w: kf.relu(x @ w.T), (spec(64, 60), spec(64, 60)),
                                           "reads factors of which the rows begin at multiples of 16 bytes"),
    "a slice that begins between them": (lambda x, w: kf.relu(x[:, 4:] @ w.T), (spec(64, 68), spec(64, 64)),
                                         "reads factors of which the rows begin at multiples of 16 bytes"),
    "a product of depth 0": (lambda x, w: kf.relu(x @ w.T), (spec(64, 0), spec(64, 0)), ""),
}  # fmt: skip


def test_refused():
    def check(f, arguments, why, device="H200"):
        p = planned(f, *arguments, device=device)
        assert all(g.executor != "tensor_cores" for g in p.groups)
        assert not why or any(f"tensor_cores {why}" in r.sentence for r in p.refusals), p.refusals

    sweep(check, REFUSED.values())
    sweep(check, [(*ONE_KERNEL["bias and gelu"], "", device) for device in ("A100 80GB", "B200", "RTX 4090")])


BEFORE_A_PRODUCT = {
    "a weighted norm": (lambda x, g, w: kf.rmsnorm(x, g) @ w.T, (X, spec(4096), W),
                        "would be rounded to bfloat16 and stored in its place: other numbers, and as many bytes"),
    "a norm": (lambda x, w: kf.rmsnorm(x) @ w.T, (X, W),
               "is rounded to bfloat16 before it: these would be other numbers"),
    "batches of rows": (lambda x, w: kf.rmsnorm(x) @ w.T, (spec(4, 512, 4096), W),
                        "The scale of each row could follow"),
    "integers with a scale for each channel": (
        lambda x, w, s: x @ (w.astype("bfloat16") * s[:, None]).T, (X, kf.spec((16_384, 4096), "int32"), spec(16_384)),
        "The scale of each column could follow the product, but bfloat16 has to be made of what is scaled"),
    "an activation": (lambda x, w: kf.gelu(x) @ w.T, (X, W), "computing gelu inside it would repeat that work."),
    "a norm of float32": (lambda x, w: kf.rmsnorm(x) @ w.T, (kf.spec((64, 64)), kf.spec((64, 64))),
                          "inside it would repeat that work."),
    "a scale along the depth": (lambda x, g, w: (x * g) @ w.T, (X, spec(4096), W), "inside it would repeat that work."),
}  # fmt: skip


def test_what_comes_before_a_product_is_stored():
    """Slices of factors go from memory to the tensor cores as they are. A scale of rows would commute with them."""

    def check(f, arguments, why):
        p = planned(f, *arguments)
        assert len(p.groups) == 2
        (sentence,) = [r.sentence for r in p.refusals if r.reason == "contraction"]
        assert why in sentence
        assert ("could follow" in sentence) == ("could follow" in why or "numbers" in why)

    sweep(check, BEFORE_A_PRODUCT.values())


def test_rows_decide_the_executor():
    """Tiles of few rows wait for bytes, at a clock that no power limit lowers; of 256 L2 has to give more than it can;
    from 512 rows on tiles are larger."""
    f, _ = ONE_KERNEL["bias and gelu"]
    for device, rows in itertools.product(("H100", "H200"), (1, 16, 17, 32)):
        (group,) = planned(f, spec(rows, 4096), spec(4096, 4096), spec(4096), device=device).groups
        assert (group.executor, group.bound) == ("tensor_cores", "memory")
    for rows in (256, 384):
        chosen = planned(f, spec(rows, 4096), spec(4096, 4096), spec(4096), device="H100")
        assert [g.executor for g in chosen.groups] == ["array_library", "cuda"]


MEASURED = [((8192, 4096, 16_384), 1434.3), ((4096, 4096, 4096), 185.63), ((8192, 1024, 1024), 32.384),
            ((512, 4096, 4096), 28.064), ((256, 4096, 4096), 27.9), ((16, 4096, 4096), 17.3)]  # fmt: skip


def test_prices_are_what_was_measured():
    """On an H100, in microseconds (results/h100.json, but for 256 and 16 rows). Tiles follow the shape."""
    f, (_, w, b) = ONE_KERNEL["bias and gelu"]
    for (m, k, n), measured in MEASURED:
        (group,) = planned(f, spec(m, k), spec(n, k), spec(n), executors=["tensor_cores"], device="H100").groups
        assert group.time_us == pytest.approx(measured, rel=0.08)
    for (m, k, n), tile in (
        ((8192, 4096, 16_384), "256 x 192"),  # the fewest bytes
        ((8192, 1024, 1024), "128 x 256"),
        ((512, 4096, 4096), "128 x 128"),  # most blocks
    ):
        (group,) = planned(lambda x, w: kf.relu(x @ w.T), spec(m, k), spec(n, k), executors=["tensor_cores"]).groups
        assert f"tiles of {tile}" in group.how
    assert kernel(f, spec(8192, 4096), w, b).source == kernel(f, spec(8064, 4096), w, b).source  # of any batch size


@pytest.mark.slow
@pytest.mark.parametrize("name", golden.PRODUCTS)
def test_kernels_fit_their_registers(name, tmp_path):
    """What 384 threads start with; the loops that multiply spill nothing."""
    report = nvcc(golden.text_of(name), tmp_path, architecture="sm_90a")
    assert "Used 168 registers" in report
    assert int(re.findall(r"(\d+) bytes spill stores", report)[0]) <= 32


@pytest.mark.slow
@pytest.mark.parametrize("case", ONE_KERNEL)
def test_every_kernel_compiles(case, tmp_path):
    f, arguments = ONE_KERNEL[case]
    source = kernel(f, *arguments).source
    report = nvcc(source, tmp_path, architecture="sm_90a")
    if "Reduced<" in source:
        assert int(re.findall(r"(\d+) bytes spill stores", report)[0]) <= 512


def test_what_leaves_without_boxes_costs_more_than_a_pass():
    """Two results of a half type leave by boxes; others are possible, and slower than a product and a kernel."""
    for function in (
        lambda x, w: (kf.relu(x @ w.T), -(x @ w.T), abs(x @ w.T)), lambda x, w: (x @ w.T).astype("float32") * 2
    ):  # fmt: skip
        forced = kf.FusedFunction(function, {"executors": ["tensor_cores"], "by_time": False})
        (one,) = forced.plan(X, W, device="H200").groups
        product, rest = planned(function, X, W).groups
        assert [g.executor for g in (one, product, rest)] == ["tensor_cores", "array_library", "cuda"]
        assert product.time_us + rest.time_us < one.time_us


# ---- matrices ----


def of_heads(f):
    return lambda q, k, v: f(*(x.swapaxes(1, 2) for x in (q, k, v)))


def scores_of(q, k):
    return q @ k.swapaxes(-1, -2) * 0.3


ATTENTION = {
    "plain": lambda q, k, v: kf.softmax(scores_of(q, k)) @ v,
    "a cap": lambda q, k, v: kf.softmax(kf.tanh(scores_of(q, k))) @ v,
    "float32": lambda q, k, v: kf.softmax(scores_of(q, k).float()).to(q.dtype) @ v,
    "keys by queries": lambda q, k, v: kf.softmax(scores_of(k, q), -2).swapaxes(-1, -2) @ v,
}
ATTENTION |= {f"{name}, heads behind": of_heads(f) for name, f in ATTENTION.items()}


def require_matrices_for_the_copy_engine(kernels):
    for k in kernels:
        for extents, strides, offset in getattr(k, "matrices", ()):
            assert offset % 16 == 0
            assert all(s % 16 == 0 and 0 < s < 2**40 for s in strides), (extents, strides)
            assert all(0 < n <= 2**32 for n in extents)


@pytest.mark.parametrize("form", ATTENTION)
def test_the_copy_engine_takes_all_matrices_of_gradients(form, rng):
    """Whatever order in memory values between kernels are given after they are planned."""
    f = ATTENTION[form]
    for queries, keys in [(384, 33), (33, 384), (33, 33), (int(rng.integers(2, 400)), int(rng.integers(2, 400)))]:
        b, h, d = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.choice([32, 64, 128]))
        q, k = (
            spec(*((b, n, h, d) if form.endswith("behind") else (b, h, n, d)), like="torch") for n in (queries, keys)
        )
        kept = kf.kept_for_backward(f, q, k, k, device="H200")
        both = kf.trace(kf.grad(lambda *a: kf.sum(f(*a).float()), (0, 1, 2)), q, k, k)
        for graph in (kept.forward.graph, kept.backward.graph, both):
            require_matrices_for_the_copy_engine(_core.cuda_kernels(graph, H200.to_dict()))


@pytest.mark.parametrize("dtype", ["bool", "bfloat16"])
def test_products_read_gradients_that_are_0_where_no_key_is_seen(dtype, rng):
    """That map would lie with its heads behind positions: two axes, where a product's kernel takes one."""
    pytest.importorskip("torch")
    b, h, s, t = 2, *(int(n) for n in rng.integers(2, 50, 3))
    q, k = (spec(b, h, n, 8, like="torch") for n in (s, t))
    mask = spec(b, 1, s, t, dtype=dtype, like="torch")
    kept = kf.kept_for_backward(lambda q, k, v, mask: kf.attention(q, k, v, mask=mask), q, k, k, mask, device="H200")
    for graph in (kept.forward.graph, kept.backward.graph):
        require_matrices_for_the_copy_engine(_core.cuda_kernels(graph, H200.to_dict()))
