"""The planner's verdicts: what shares a kernel, what does not, and the reason."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import kfusion as kf
from kfusion._plans.records import Bytes
from sweeps import sweep

pytestmark = pytest.mark.native

N, D = 37, 53  # co-prime, so that no two extents are mistaken for each other
X, Y = kf.spec((N, D)), kf.spec((N, D))
ROW, COLUMN, VECTOR = kf.spec((D,)), kf.spec((N, 1)), kf.spec((N * D,))


def kinds(plan):
    return [g.kind for g in plan.groups]


def reasons(plan):
    return sorted({str(r.reason) for r in plan.refusals})


def plan(f, *specs, **options):
    return kf.plan(f, *specs, **{"device": "H200"} | options)


# The lesson's tables and exercises, and their neighbours: function, arguments, kinds of the kernels, reasons.
VERDICTS = {
    "case a": (lambda x: kf.relu(x + 1) * 2, (X,), ["pointwise"], []),
    "case b": (lambda x: x / x.sum(), (X,), ["full_reduction", "pointwise"], ["reduction_barrier"]),
    "case c": (lambda x: kf.sqrt((x * x).sum()), (X,), ["full_reduction"], []),
    "case d": (lambda x, y: kf.relu(x) + kf.sigmoid(y), (X, Y), ["pointwise"], []),
    "pointwise to pointwise": (lambda x, y: kf.relu(x + y), (X, Y), ["pointwise"], []),
    "pointwise to reduction": (lambda x, y: (x * y).sum(), (X, Y), ["full_reduction"], []),
    "fused loss": (lambda x, y: kf.square(x - y).mean(), (X, Y), ["full_reduction"], []),
    "matmul to pointwise": (lambda a, b: kf.relu(a @ b), (X, kf.spec((D, 11))), ["matmul"], []),
    "strided slice": (lambda x, y: x[::2] + y, (kf.spec((2 * N, D)), Y), ["pointwise"], []),
    "data-dependent positions": (lambda x, i, y: x[i] + y, (X, kf.spec((5,), "int64"), kf.spec((5, D))),
                                 ["pointwise"], []),
    "positions in what a kernel makes": (lambda x, i, y: kf.softmax(x)[i] + y, (X, kf.spec((5,), "int64"),
                                         kf.spec((5, D))), ["rows", "pointwise"], ["gather"]),
    "two devices": (lambda x, y: kf.relu(x) + y, (X, kf.spec((N, D), device="cuda:0")), ["pointwise"] * 2,
                    ["cross_device"]),
    "across a reduction": (lambda x: (kf.multiply(x.sum(), 2) + 1, x * x.sum()), (X,),
                           ["full_reduction", "pointwise"], ["reduction_barrier"]),
    "horizontal": (lambda x: (kf.sin(x), kf.cos(x)), (X,), ["pointwise"], []),
    "horizontal reductions": (lambda x: (x.sum(1), x.max(1), kf.exp(x)), (X,), ["rows"], []),
    "two sets of reduced axes": (lambda x: (x.sum(0), x.sum(1)), (X,), ["columns", "rows"], ["domain_mismatch"]),
    "two results over different domains": (lambda x, y: (x + 1, y[:5] * 2), (X, Y), ["pointwise"] * 2, []),
    "softmax": (lambda x: kf.softmax(x), (X,), ["rows"], []),
    "softmax over columns": (lambda x: kf.softmax(x, axis=0), (X,), ["columns"], []),
    "softmax of one vector": (lambda x: kf.softmax(x), (VECTOR,), ["rows"], []),
    "explicit axis of a vector": (lambda x: x / x.sum(axis=0), (VECTOR,), ["rows"], []),
    "log_softmax": (lambda x: kf.log_softmax(x), (X,), ["rows"], []),
    "layernorm": (lambda x, w, b: kf.layernorm(x, w, b), (X, ROW, ROW), ["rows"], []),
    "rmsnorm": (lambda x, w: kf.rmsnorm(x, w), (X, ROW), ["rows"], []),
    "relu and layernorm": (lambda x: kf.layernorm(kf.relu(x)), (X,), ["rows"], []),
    "residual and layernorm": (lambda x, y: (s := x + y, kf.layernorm(s)), (X, Y), ["rows"], []),
    "variance": (lambda x: kf.var(x, axis=-1), (X,), ["rows"], []),
    "variance of everything": (lambda x: kf.var(x), (X,), ["full_reduction"], []),
    "centred by the mean of everything": (lambda x: x - x.mean(), (X,), ["full_reduction", "pointwise"],
                                          ["reduction_barrier"]),
    "statistics of two inputs": (lambda x, y: kf.layernorm(x) + kf.softmax(y), (X, Y), ["rows"], []),
    "outer product of statistics": (lambda x, y: x.sum(1)[:, None] * y.sum(1)[None, :], (X, Y),
                                    ["rows", "rows", "pointwise"], ["domain_mismatch"]),
    "batchnorm, inference": (lambda x, m, v: kf.batchnorm(x, m, v), (X, ROW, ROW), ["pointwise"], []),
    "cross entropy": (lambda x, t: kf.cross_entropy(x, t), (X, kf.spec((N,), "int64")), ["rows", "full_reduction"],
                      ["domain_mismatch"]),
    "gelu": (lambda x: kf.gelu(x), (X,), ["pointwise"], []),
    "transposed result": (lambda x: kf.relu(x).T, (X,), ["pointwise"], []),
    "transposed result of rows": (lambda x: ((y := x * x.T) + y.sum(-1, keepdims=True)).T, (kf.spec((N, N)),),
                                  ["rows"], []),
    "transposed between": (lambda x, y: kf.relu(x).T + y, (X, kf.spec((D, N))), ["pointwise"], []),
    "x and its transpose": (lambda x: x + x.T, (kf.spec((N, N)),), ["pointwise"], []),
    "heads split": (lambda x, b: kf.relu(x + b).reshape(N, 7, 3).sum(-1), (kf.spec((N, 21)), kf.spec((21,))),
                    ["rows"], []),
    "flattened": (lambda x: kf.exp(kf.relu(x).reshape(-1)), (X,), ["pointwise"], []),
    "reshape that copies": (lambda x: kf.relu(x.T.reshape(-1)), (X,), ["pointwise"], []),
    "pointwise into matmul": (lambda a, b: kf.relu(a) @ b, (X, kf.spec((D, 11))), ["pointwise", "matmul"],
                              ["contraction"]),
    "softmax and the sum of everything": (lambda x: (x.sum(), kf.softmax(x)), (VECTOR,),
                                          ["full_reduction", "rows"], []),
    "two products": (lambda a, b, c: (a @ b) @ c, (X, kf.spec((D, 11)), kf.spec((11, 5))), ["matmul"] * 2,
                     ["contraction"]),
    "product and softmax": (lambda a, b: kf.softmax(a @ b), (X, kf.spec((D, 11))), ["matmul", "rows"], ["contraction"]),
    "product and row maximum": (lambda a, b: (a @ b).max(-1), (X, kf.spec((D, 11))), ["contraction_reduction"], []),
    "gates": (lambda x, g, u: kf.silu(x @ g) * (x @ u), (X, kf.spec((D, 11)), kf.spec((D, 11))), ["matmul"], []),
    "gates with biases": (lambda x, g, u, a, b: kf.gelu(x @ g + a) * (x @ u + b),
                          (X, *[kf.spec((D, 11))] * 2, *[kf.spec((11,))] * 2), ["matmul"], []),
    "gates and the next layer": (lambda x, g, u, d: (kf.silu(x @ g) * (x @ u)) @ d,
                                 (X, *[kf.spec((D, 11))] * 2, kf.spec((11, D))), ["matmul"] * 2, ["contraction"]),
    "gates of two inputs": (lambda x, y, g: kf.silu(x @ g) * (y @ g), (X, Y, kf.spec((D, 11))), ["matmul"] * 2,
                            ["contraction"]),
    "gates of two widths": (lambda x, g, u: kf.silu(x @ g) * (x @ u), (X, kf.spec((D, 11)), kf.spec((D, 1))),
                            ["matmul"] * 2, ["contraction"]),
    "halves of one product": (lambda x, w: kf.silu((y := x @ w)[:, :11]) * y[:, 11:], (X, kf.spec((D, 22))), ["matmul"],
                              []),
    "halves of a result": (lambda x, w: (kf.silu((y := x @ w)[:, :11]) * y[:, 11:], y),
                                    (X, kf.spec((D, 22))), ["matmul", "pointwise"], ["domain_mismatch"]),
    "two parts that are no halves": (lambda x, w: kf.silu((y := x @ w)[:, :11]) * y[:, 10:21], (X, kf.spec((D, 22))),
                                     ["matmul", "pointwise"], ["domain_mismatch"]),
    "product and logsumexp": (lambda a, b: kf.logsumexp(a @ b, -1), (X, kf.spec((D, 11))), ["contraction_reduction"],
                              []),
    "product and variance": (lambda a, b: kf.var(a @ b, axis=-1), (X, kf.spec((D, 11))), ["contraction_reduction"],
                             []),
    "product and its normalised rows' maximum": (lambda a, b: kf.softmax(a @ b).max(-1), (X, kf.spec((D, 11))),
                                                 ["matmul", "rows"], ["contraction"]),
    "convolution and batchnorm": (lambda x, w, *of: kf.relu(kf.batchnorm(kf.conv2d(x, w), *of)),
                                  (kf.spec((2, 3, 9, 9)), kf.spec((5, 3, 3, 3)), *[kf.spec((5,))] * 4), ["conv2d"], []),
    "a pick of a product": (lambda x, w, t: kf.take_along_axis(x @ w.T, t[:, None], 1), (X, kf.spec((101, D)),
                            kf.spec((N,), "int64")), ["matmul", "pointwise"], ["gather"]),
    "tiles of columns": (lambda x: kf.softmax(x, axis=0), (kf.spec((1000, 64)),), ["columns"], []),
    "columns that fit no tile": (lambda x: kf.softmax(x, axis=0), (kf.spec((1_000_000, 64)),), ["columns", "pointwise"],
                                 ["resources"]),
    "columns that pairs reduce in one sweep": (lambda x: x.var(0), (kf.spec((1_000_000, 64)),), ["columns"], []),
    "of no elements": (lambda x: kf.relu(x + 1), (kf.spec((0, 5)),), ["pointwise"], []),
    "rows of no elements": (lambda x: kf.layernorm(kf.relu(x)), (kf.spec((5, 0)),), ["pointwise"], []),
    "scalars": (lambda x: kf.relu(x + 1), (kf.spec(()),), ["pointwise"], []),
    "a view of an input": (lambda x: x.T, (X,), [], []),
    "linear and gelu": (lambda x, w, b: kf.gelu(kf.linear(x, w, b)), (X, kf.spec((11, D)), kf.spec((11,))),
                        ["matmul"], []),
}  # fmt: skip


def test_verdicts():
    def check(f, specs, expected_kinds, expected_reasons):
        p = plan(f, *specs)
        assert (sorted(kinds(p)), reasons(p)) == (sorted(expected_kinds), expected_reasons), str(p)
        for r in p.refusals:
            assert r.sentence[0] != " "
            assert r.sentence.endswith(".")

    sweep(check, VERDICTS.values())


Q4, K4, V4 = kf.spec((2, 3, 7, 5)), kf.spec((2, 3, 11, 5)), kf.spec((2, 3, 11, 13))
ATTENTION = {
    "by name": lambda q, k, v: kf.attention(q, k, v),
    "scaled": lambda q, k, v: kf.attention(q, k, v, scale=0.3),
    "causal": lambda q, k, v: kf.attention(q, k, v, causal=True),
    "primitives": lambda q, k, v: kf.softmax(kf.matmul(q, kf.transpose(k, (0, 1, 3, 2))) / 8.0) @ v,
    "numpy": lambda q, k, v: _numpy_softmax(np.matmul(q, np.swapaxes(k, -1, -2)) * 0.125) @ v,
    "no maximum": lambda q, k, v: _naive_softmax(q @ k.swapaxes(-1, -2)) @ v,
}


def _numpy_softmax(s):
    e = np.exp(s - np.max(s, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def _naive_softmax(s):
    e = kf.exp(s)
    return e / kf.sum(e, axis=-1, keepdims=True)


def test_attention_is_recognised():
    """Where its weights are returned they are stored."""

    def check(f):
        p = plan(f, Q4, K4, V4)
        assert (kinds(p), p.refusals) == (["attention"], ()), str(p)
        elements = 2 * 3 * (7 * 5 + 11 * 5 + 11 * 13)
        assert p.fused.compulsory == Bytes(4 * elements, 4 * 2 * 3 * 7 * 13)

    sweep(check, [(f,) for f in ATTENTION.values()])
    p = plan(lambda q, k, v: (w := kf.softmax(q @ kf.transpose(k, (0, 1, 3, 2))), w @ v), Q4, K4, V4)
    assert (kinds(p), reasons(p)) == (["matmul", "rows", "matmul"], ["contraction"])


Q, K, V = kf.spec((2, 37, 8)), kf.spec((2, 8, 41)), kf.spec((2, 41, 5))


def masked_by_mean(s):
    return kf.where(s > s.mean(-1, keepdims=True), s, -1e9)


NO_PATTERNS = {
    "normalised scores": (lambda q, k, v: kf.softmax(kf.layernorm(q @ k)) @ v, (Q, K, V)),
    "scores masked by a statistic": (lambda q, k, v: kf.softmax(masked_by_mean(q @ k)) @ v, (Q, K, V)),
    "softmax over the other axis": (lambda q, k, v: kf.softmax(q @ k, axis=-2) @ v, (Q, K, V)),
    "scores of a convolution": (lambda x, w, v: kf.softmax(kf.conv2d(x, w)) @ v,
                                (kf.spec((2, 3, 9, 11)), kf.spec((5, 3, 3, 3)), kf.spec((9, 7)))),
    "maximum over a batch": (lambda q, k: (q @ k).max(0), (Q, K)),
    "maximum over a flattened batch": (lambda q, k: (q @ k).reshape(74, 41).max(0), (Q, K)),
}  # fmt: skip


def test_no_online_kernel():
    def check(f, specs):
        assert not {"attention", "contraction_reduction"} & set(kinds(plan(f, *specs)))

    sweep(check, NO_PATTERNS.values())
    # Patterns take a product once.
    attention = plan(lambda q, k, v, w: kf.softmax(kf.softmax(q @ k) @ v) @ w, Q, K, V, kf.spec((2, 5, 3)))
    assert kinds(attention) == ["attention", "rows", "matmul"]
    assert kinds(plan(lambda q, k, v: (kf.softmax(q @ k) @ v).max(-1), Q, K, V)) == ["attention", "rows"]
    assert kinds(plan(lambda q, k: (q @ k).max(-1).min(-1), Q, K)) == ["contraction_reduction", "rows"]


def test_reduction_of_a_product_seen_in_another_shape():
    a, b, c = kf.spec((4, 5)), kf.spec((5, 6)), kf.spec((6,))
    (group,) = plan(lambda a, b, c: (a @ b + c).reshape(8, 3, 1).max((1, 2)), a, b, c).groups
    assert (group.kind, list(group.domain), list(group.reduced)) == ("contraction_reduction", [4, 2, 3], [2])


def test_splade_head_never_stores_the_logits():
    h, w, b = kf.spec((2, 19, 7)), kf.spec((101, 7)), kf.spec((101,))
    for f in (
        lambda h, w, b: kf.splade_head(h, w, b),
        lambda h, w, b: np.max(np.log1p(np.maximum(h @ w.T + b, 0)), axis=1),
        lambda h, w, b: kf.log1p(kf.relu(h @ w.T + b)).max(axis=1),
    ):
        p = plan(f, h, w, b)
        assert kinds(p) == ["contraction_reduction"], str(p)
        assert p.fused.compulsory == Bytes(4 * (2 * 19 * 7 + 101 * 7 + 101), 4 * 2 * 101)


def test_only_maps_that_cannot_give_nan_run_after_the_maximum():
    h, w = kf.spec((2, 19, 7)), kf.spec((7, 101))
    (safe,) = plan(lambda h, w: kf.log1p(kf.relu(h @ w)).max(axis=1), h, w).groups
    (unsafe,) = plan(lambda h, w: kf.log1p(h @ w).max(axis=1), h, w).groups
    assert (len(safe.deferred), len(unsafe.deferred)) == (2, 0)


LOGITS = (X, kf.spec((101, D)))
TARGETS, CLASSES = kf.spec((N,), "int64"), kf.spec((101,))
LOSSES = {
    "cross entropy": (lambda x, w, t: kf.cross_entropy(x @ w.T, t), (TARGETS,)),
    "of rows": (lambda x, w, t: kf.cross_entropy(x @ w.T, t, reduction="none"), (TARGETS,)),
    "a bias": (lambda x, w, t, b: kf.cross_entropy(x @ w.T + b, t), (TARGETS, CLASSES)),
    "a scale": (lambda x, w, t: kf.cross_entropy(x @ w.T / 0.7, t), (TARGETS,)),
    "an ignored class": (lambda x, w, t: kf.cross_entropy(x @ w.T, t, ignore_index=-100), (TARGETS,)),
    "weights": (lambda x, w, t, b: kf.cross_entropy(x @ w.T, t, weight=b), (TARGETS, CLASSES)),
    "int32": (lambda x, w, t: kf.cross_entropy(x @ w.T, t), (kf.spec((N,), "int32"),)),
    "log_softmax": (lambda x, w, t: -kf.take_along_axis(kf.log_softmax(x @ w.T), t[:, None], 1).mean(), (TARGETS,)),
}  # fmt: skip


def test_losses_of_a_product_store_no_logits():
    def check(f, specs):
        p = plan(f, *LOGITS, *specs)
        assert kinds(p)[0] == "contraction_reduction", str(p)
        assert set(kinds(p)) <= {"contraction_reduction", "full_reduction"}
        assert sum(np.prod(load.shape) for g in p.groups for load in g.stores) <= 2 * N + 3

    sweep(check, LOSSES.values())
    (refusal,) = plan(LOSSES["cross entropy"][0], *LOGITS, TARGETS).refusals
    assert (str(refusal.reason), "all tiles of a row" in refusal.sentence) == ("contraction", True)


def test_two_picks_of_each_row_reduce_nothing():
    p = plan(
        lambda x, w, t: kf.take_along_axis(y := x @ w.T, t, 1).sum() + y.max(-1), *LOGITS, kf.spec((N, 2), "int64")
    )
    assert "contraction_reduction" not in kinds(p)


H, VOCABULARY, BIAS = kf.spec((2, 19, 7)), kf.spec((101, 7)), kf.spec((101,))
TRUTH, NUMBERS, INTEGERS = (kf.spec((2, 19), dtype) for dtype in ("bool", "float32", "int64"))
# The head with a mask, as models write it: function, mask, how many maps run once per result.
MASKED_HEADS = {
    "numbers": (lambda z, m: (kf.log1p(kf.relu(z)) * m[:, :, None]).max(1), NUMBERS, 0),
    "integers": (lambda z, m: (kf.log(1 + kf.relu(z)) * m[:, :, None]).max(1), INTEGERS, 0),
    "truth": (lambda z, m: (kf.log1p(kf.relu(z)) * m[:, :, None]).max(1), TRUTH, 1),
    "truth as numbers": (lambda z, m: (m.astype("float32")[:, :, None] * kf.log1p(kf.relu(z))).max(1), TRUTH, 1),
    "log(1 + x)": (lambda z, m: (kf.log(1 + kf.relu(z)) * m[:, :, None]).max(1), TRUTH, 2),
    "selected": (lambda z, m: kf.where(m[:, :, None], kf.log1p(kf.relu(z)), 0).max(1), TRUTH, 2),
    "selected log(1 + x)": (lambda z, m: kf.where(m[:, :, None], kf.log(kf.relu(z) + 1), 0).max(1), TRUTH, 3),
    "the other way": (lambda z, m: kf.where(m[:, :, None] == 0, 0.0, kf.log1p(kf.relu(z))).max(1), INTEGERS, 2),
    "selected before": (lambda z, m: kf.log1p(kf.relu(kf.where(m[:, :, None], z, -np.inf))).max(1), TRUTH, 2),
    "another value in its place": (lambda z, m: kf.where(m[:, :, None], kf.log1p(kf.relu(z)), 0.5).max(1), TRUTH, 0),
    "of what may be negative": (lambda z, m: (kf.log1p(z) * m[:, :, None]).max(1), TRUTH, 0),
    "summed": (lambda z, m: (kf.log1p(kf.relu(z)) * m[:, :, None]).sum(1), TRUTH, 0),
}  # fmt: skip


def test_masked_heads_are_one_kernel():
    def check(f, mask, deferred):
        p = plan(lambda h, w, b, m: f(h @ w.T + b, m), H, VOCABULARY, BIAS, mask)
        (group,) = p.groups
        assert (group.kind, len(group.deferred)) == ("contraction_reduction", deferred), str(p)

    sweep(check, MASKED_HEADS.values())
    # Named kernels keep their masks.
    f, mask, _ = MASKED_HEADS["selected"]
    p = plan(lambda h, w, b, m: f(h @ w.T + b, m), H, VOCABULARY, BIAS, mask, forbid=[("relu", "log1p")])
    assert p.groups[0].ops[-1] == "relu"


def test_refusals_name_the_executor_that_a_pattern_lacks():
    p = plan(lambda x, w: kf.logsumexp(x @ w.T, -1), *LOGITS, executors="available", device="A100")
    assert reasons(p) == ["not_implemented"]
    assert "is possible, but no executor" in p.refusals[0].sentence
    p = plan(lambda x, w: kf.softmax(x @ w.T).max(-1), *LOGITS, executors="available", device="A100")
    assert reasons(p) == ["contraction"]


def test_order_of_operands_does_not_matter():
    p, q = (
        plan(lambda x, y, order=order: order(kf.softmax(kf.relu(x)), kf.exp(y) * x.sum(0)), X, Y)
        for order in (lambda a, b: a + b, lambda a, b: b + a)
    )
    assert [sorted(g.ops) for g in p.groups] == [sorted(g.ops) for g in q.groups]
    assert [r.reason for r in p.refusals] == [r.reason for r in q.refusals]


def test_only_what_a_slice_takes_is_computed_and_stored():
    (g,) = plan(lambda x: kf.relu(x)[::4], kf.spec((4 * N, D))).groups
    assert (g.compulsory, g.stores[0].shape) == (Bytes(4 * N * D, 4 * N * D), (N, D))
    assert sum(f.count for f in g.flops) == N * D


def test_a_repeated_value_is_computed_once():
    p = plan(lambda w, x: kf.broadcast_to(kf.relu(w), (5, D, 3)) @ x, kf.spec((D, 3)), kf.spec((5, 3, 2)))
    assert p.groups[0].compulsory == Bytes(4 * D * 3, 4 * D * 3)


def test_cheap_producer_is_computed_twice_rather_than_stored():
    p = plan(lambda x: (kf.relu(x).sum(0), kf.relu(x).sum(1)), X)
    assert sorted(kinds(p)) == ["columns", "rows"]
    assert all("relu" in g.ops for g in p.groups)
    assert p.fused.compulsory == Bytes(2 * 4 * N * D, 4 * (N + D))
    f = lambda *xs: ((y := kf.exp(xs[0] + xs[1] + xs[2] + xs[3])).sum(0), y.sum(1))  # noqa: E731
    p = plan(f, X, X, X, X)  # one of many inputs is stored for both
    assert sum("exp" in g.ops for g in p.groups) == 1
    assert p.fused.compulsory.written == 4 * (N * D + N + D)


def test_a_copy_can_make_another_one_pay():
    x = kf.spec((32, 64, 56, 56), "float16")  # channels too large for a tile; x in float32 is cheap to make again
    p = plan(lambda x: kf.batchnorm(x), x, device="A100")
    assert [[load.value for load in g.loads].count("x") for g in p.groups] == [1, 1, 1]
    assert p.fused.issued.total <= p.unfused.issued.total


def test_copies_begin_with_results_that_are_stored_anyway():
    def f(x):
        y = kf.layernorm(x)
        return y, abs(y).sum()

    p = plan(f, X)
    assert [[load.value for load in g.loads] for g in p.groups] == [["x"], ["result[0]"]]
    assert p.fused.compulsory == Bytes(2 * 4 * N * D, 4 * N * D + 4)
    p = plan(lambda x: ((y := kf.relu(x)), (y + x).sum(0), (y * 2 + x).sum(1)), X)  # x is read in any case
    assert all("result[0]" not in [load.value for load in g.loads] for g in p.groups)


def test_exponentials_that_take_a_cpu_longer_than_memory_are_stored():
    """To compute softmax's again for the sum saves a third of the bytes, and took three times as long."""
    x = kf.spec((64, 1024, 1024))
    p = plan(lambda x: kf.softmax(x, -1).sum(-2), x, device="Xeon, 2 cores")
    assert [list(g.ops).count("exp") for g in p.groups] == [1, 0]
    assert p.fused.time_us <= p.unfused.time_us
    a_gpu_s = plan(lambda x: kf.softmax(x, -1).sum(-2), x)
    assert a_gpu_s.fused.compulsory.total < p.fused.compulsory.total


def test_limits_of_inputs_and_outputs():
    p = plan(lambda x: tuple(x + i for i in range(20)), X)
    assert sorted(len(g.stores) for g in p.groups) == [4, 16]
    q = plan(lambda *xs: sum(xs[1:], xs[0]), *[kf.spec((N,))] * 70)
    assert (len(q.groups), reasons(q)) == (2, ["resources"])
    assert max(len(g.loads) for g in q.groups) <= 64


def test_long_rows_are_read_again_not_refused():
    p = plan(lambda x: kf.layernorm(x), kf.spec((64, 10_000_000)))
    (g,) = p.groups
    assert (g.row_on_chip, g.passes) == (False, 2)
    assert g.issued.read == 2 * g.compulsory.read
    (short,) = plan(lambda x: kf.layernorm(x), X).groups
    assert short.row_on_chip
    assert short.issued == short.compulsory


def test_sweeps():
    for f, passes in (
        (lambda x: kf.var(x, axis=-1), 1),  # mean and squared distances merge
        (lambda x: kf.softmax(x), 2),  # maximum and sum of exponentials merge
        (lambda x: kf.layernorm(x), 2),
        (lambda x: kf.layernorm(kf.layernorm(x)), 3),
        (lambda x: kf.log_softmax(x), 2),
        (lambda x: x.sum(-1), 1),
        # a row's value times another
        (lambda x: x / (x.sum(-1, keepdims=True) * (kf.iota(N).reshape(N, 1) * 0.5)), 2),
    ):
        (g,) = plan(f, X).groups
        assert g.passes == passes


def test_a_variance_of_everything_reads_once():
    """Also of an array far larger than any cache: what chunks give is merged."""

    def check(f, device):
        p = plan(f, kf.spec((2**14, 2**15)), device=device)
        assert [(g.kind, g.passes, g.issued.read) for g in p.groups] == [("full_reduction", 1, 4 * 2**29)]

    variances = [
        lambda x: x.var(),
        lambda x: x.std(),
        lambda x: (x * 2 + 1).std(),
        lambda x: (x.mean(), kf.relu(x).var()),
        lambda x: kf.sqrt(kf.square(x - x.mean()).mean() + 1e-5),
    ]
    sweep(check, itertools.product(variances, ["H200", "EPYC 9654"]))


def test_unfused_is_one_kernel_per_stage():
    p = plan(lambda x: kf.layernorm(kf.relu(x)), X, fuse=False)
    stages = ("relu", "layernorm.mean", "layernorm.var", "layernorm.centre", "layernorm.scale")
    assert [g.stages for g in p.groups] == [(stage,) for stage in stages]
    assert reasons(p) == ["unfused"]
    assert len(plan(lambda x: kf.softmax(kf.gelu(x)), X, fuse=False).groups) == 2


# One kernel per call is no more than what kernels can be: a call that needs two sweeps over everything is two.
def test_fusing_never_moves_more_bytes():
    def check(name, view, executors):
        def f(x):
            y = getattr(kf, name)(view(x))
            return view(y) if y.shape else y

        p = plan(f, kf.spec((4096, 4096)), executors=executors)
        for fused, unfused in ((p.fused.compulsory, p.unfused.compulsory), (p.fused.issued, p.unfused.issued)):
            assert fused.read + fused.written <= unfused.read + unfused.written
        assert p.fused.launches <= p.unfused.launches

    names = ("var", "std", "logsumexp", "softmax", "log_softmax", "layernorm")
    views = (lambda x: x, lambda x: x[::-1], lambda x: x.T[:, ::2])
    sweep(check, itertools.product(names, views, ["available", None]))


def test_kernels_never_wait_for_each_other():
    def f(x):
        c = x - x.mean(axis=1, keepdims=True)
        return kf.exp(c) * (c / c.sum(axis=0, keepdims=True)).sum(axis=1, keepdims=True)

    assert "cycle" in reasons(plan(f, X))


def test_forbidden_and_allowed_pairs():
    def f(x):
        return kf.sigmoid(kf.relu(x + 1) * 2)

    p = plan(f, X, forbid=[("relu", "multiply")])
    assert [g.ops for g in p.groups] == [("add", "relu"), ("multiply", "sigmoid")]
    assert reasons(p) == ["forbidden"]
    q = plan(f, X, allow=[("add", "relu")])
    assert [g.ops for g in q.groups] == [("add", "relu"), ("multiply",), ("sigmoid",)]
    layers = lambda x: kf.layernorm(kf.tanh(kf.layernorm(kf.relu(x))))  # noqa: E731
    p = plan(layers, X, forbid=[("relu", "layernorm"), ("tanh", "layernorm_2")])  # composites
    assert [g.label for g in p.groups] == ["relu", "layernorm+tanh", "layernorm_2"]
    inside = plan(layers, X, allow=[("layernorm", "layernorm")])
    assert [g.label for g in inside.groups][:2] == ["relu", "layernorm"]


def test_contractions_that_run_are_alone():
    def f(x, w):
        return kf.relu(kf.tanh(x) @ w + 1), kf.softmax(x @ w)

    p = plan(f, X, kf.spec((D, 8)), executors="available")
    assert [g.label for g in p.groups] == ["tanh", "matmul", "add+relu", "matmul_2", "softmax"]
    assert reasons(p) == ["contraction", "not_implemented"]


def test_unfused_kernels_that_run_never_join_two_calls():
    p = plan(lambda x: kf.relu(kf.softmax(x, axis=None)) + kf.relu(x), X, executors="available", fuse=False)
    labels = [g.label for g in p.groups]
    assert labels.count("softmax") > 1, "for all elements of x"
    assert set(labels) == {"add", "relu", "relu_2", "softmax"}


def test_results_are_arrays_of_their_own():
    for fuse in (True, False):

        def labels(f, spec=X, fuse=fuse):
            return [g.label for g in plan(f, spec, executors="available", fuse=fuse).groups]

        assert labels(lambda x: x) == ["copy"]
        assert labels(lambda x: x[1:].T) == ["copy"]
        assert labels(lambda x: kf.relu(x).T) == ["relu"]  # a view of what is stored
        assert labels(lambda x: kf.relu(x)[1:]) == (["relu+copy"] if fuse else ["relu", "copy"])
        assert labels(lambda x: (kf.relu(x), kf.tanh(x).T)) == (["relu+tanh"] if fuse else ["relu", "tanh"])
        assert len(labels(lambda x: (y := kf.relu(x), y.T))) == 2
        # Nothing is computed of nothing.
        assert labels(lambda x: (x.sum(0), x.mean(0) + 1, kf.exp(x)), kf.spec((0, 5))) == ["add", "copy"]


def test_loops_and_lone_products_run():
    x, w = kf.spec((N, D), "bfloat16", like="torch"), kf.spec((D, D), "bfloat16", like="torch")
    assert all(g.executable for g in plan(lambda v: kf.softmax(kf.relu_layernorm(v), axis=0).sum(), x).groups)
    assert all(g.executable and not g.missing for g in plan(lambda v, m: v @ m, x, w).groups)
    (with_epilogue,) = plan(lambda v, m: kf.relu(v @ m), x, w).groups
    assert not with_epilogue.executable
    assert with_epilogue.missing == (
        "tensor_cores reads factors of which the rows begin at multiples of 16 bytes; "
        "cublaslt reads and stores rows that begin at multiples of 16 bytes; array_library computes a matmul alone"
    )
    (with_epilogue,) = kf.plan(lambda v, m: kf.relu(v @ m), x, w, device="T4").groups
    assert with_epilogue.missing == "array_library computes a matmul alone"
    (attention,) = plan(kf.attention, *[kf.spec((2, 64, 32))] * 3).groups
    assert attention.missing == "tensor_core_attention computes attention of float16 or bfloat16"
    (attention,) = kf.plan(kf.attention, *[kf.spec((2, 64, 32))] * 3, device="A100 80GB").groups
    assert attention.missing == "no executor has kernels for attention"
