"""Reductions that give the same however their elements are grouped: joined where one reduces the other's results, split
where their rows are reduced beside something else; short ones are written out, so that they share a kernel."""

import itertools

import numpy as np
import pytest

import kfusion as kf
from graph_runs import assert_close, wide
from kfusion._plans.records import Bytes
from sweeps import sweep

pytestmark = pytest.mark.native

CPU = "EPYC 9654"
ROWS, COLS = 37, 1030
X, CUBE = kf.spec((ROWS, COLS)), kf.spec((5, 7, COLS))
N = 4 * ROWS * COLS  # bytes


def kinds(f, *specs, device="H200", **options):
    return [g.kind for g in kf.plan(f, *specs, device=device, **options).groups]


REDUCED_AGAIN = {
    "rows": (lambda x: x.max(-1).max(-1), ["rows"]),
    "axes that stay": (lambda x: x.min(-1, keepdims=True).min(-2, keepdims=True), ["rows"]),
    "columns": (lambda x: abs(x).max(0).max(0), ["columns"]),
    "everything": (lambda x: (x > 0).any(-1).any(-1).any(-1), ["full_reduction"]),
    "and in the end whole": (lambda x: x.max(-1).max(), ["full_reduction"]),
    "integers": (lambda x: kf.astype(x, "int32").sum(-1).sum(-1), ["rows"]),
    "sums of floats": (lambda x: x.sum(-1).sum(-1), ["rows", "rows"]),
    "of another kind": (lambda x: x.max(-1).min(-1), ["rows", "rows"]),
    "no neighbours": (lambda x: x.max(-1).max(0), ["rows", "columns"]),
    "read by others": (lambda x: ((y := x.max(-1)), y.max(-1)), ["rows", "rows"]),
}


def test_reductions_of_reductions():
    def check(case, device):
        f, wanted = REDUCED_AGAIN[case]
        assert kinds(f, CUBE, device=device) == wanted

    sweep(check, itertools.product(REDUCED_AGAIN, ("H200", CPU)))
    assert kinds(REDUCED_AGAIN["rows"][0], CUBE, forbid=[("max", "max_2")]) == ["rows", "rows"]
    (refusal,) = kf.plan(lambda x: x.sum(-1).max(-1), CUBE, device="H200").refusals
    assert str(refusal.reason) == "domain_mismatch"
    assert refusal.sentence.endswith(f"would save {2 * 4 * 5 * 7} bytes and one launch.")


def largest_of_normalised(x):
    y = kf.layernorm(x)
    return y, abs(y).max()


def test_the_largest_of_what_rows_are_normalised_to_is_found_beside_it():
    """Not sums, nor rows that a CPU takes one by one."""
    for device in ("H200", CPU):
        p = kf.plan(largest_of_normalised, X, device=device)
        assert [g.kind for g in p.groups] == ["rows", "full_reduction"]
        assert p.fused.compulsory == Bytes(N + 4 * ROWS, N + 4 * ROWS + 4)
        p = kf.plan(lambda x: (x.sum(-1), x.max()), X, device=device)
        assert p.fused.compulsory == Bytes(N + 4 * ROWS, 8 * ROWS + 4)
    assert kf.plan(lambda x: ((y := kf.layernorm(x)), y.sum()), X, device="H200").fused.compulsory.read == 2 * N
    short = kf.spec((COLS, 64))
    assert kf.plan(largest_of_normalised, short, device=CPU).fused.compulsory.read == 2 * 4 * COLS * 64
    assert kf.plan(largest_of_normalised, short, device="H200").fused.compulsory.read == 4 * COLS * 65


def test_values(rng):
    """They are NumPy's and the unfused version's to the bit, with NaN, strides, and no or one row."""

    def f(x):
        largest = x.max(-1).max(-1), (x > 1).all(1).all(-1), np.maximum(x, 2).min(0).min(0)
        return (*largest, x - x.min(-1, keepdims=True), x.max((1, 2)), x.min(), x.max())

    def check(dtype, shape):
        fused, x = kf.fuse(f), rng.integers(-9, 9, shape).astype(dtype)
        if dtype != "int32":
            x.flat[-1] = np.nan
        for given in (x, x[::-1, :, ::-1], np.asfortranarray(x)):
            for got, apart, want in zip(fused(given), fused.unfused(given), f(given), strict=True):
                np.testing.assert_array_equal(got, want)
                np.testing.assert_array_equal(got, apart)

    sweep(check, itertools.product(("float32", "float16", "int32"), ((3, 5, 1030), (2, 1, 1), (1, 4, 33))))
    np.testing.assert_array_equal(kf.fuse(lambda x: x.max(-1).max(-1))(np.ones((0, 2, 3))), np.ones(0))


# ---- written out ----

A, B = kf.spec((500, 1, 3)), kf.spec((1, 700, 3))
HALVES = kf.spec((500, 1, 3), "float16"), kf.spec((1, 700, 3), "float16")


def squares(a, b):
    return kf.square(a - b)


ONE_KERNEL = {
    "largest distance": (lambda a, b: squares(a, b).sum(-1).max(-1), A, B),
    "of half types": (lambda a, b: squares(a, b).mean(-1).min(-1), *HALVES),
    "which is nearest": (lambda a, b: squares(a, b).sum(-1).argmin(-1), A, B),
    "and the value": (lambda a, b: ((d := squares(a, b).sum(-1)).min(-1), d.argmin(-1)), A, B),
    "functions between": (lambda a, b: kf.softmax(-kf.sqrt(squares(a, b).sum(-1)), -1), A, B),
    "across": (lambda a, b: squares(a, b).sum(-1).min(0), A, B),
    "of two axes": (lambda a, b: squares(a, b).sum((-2, -1)).max(-1), kf.spec((500, 1, 2, 1)), kf.spec((700, 1, 2))),
}


def test_what_is_written_out():
    for name, (f, *specs) in ONE_KERNEL.items():
        assert len(kinds(f, *specs)) == 1, name
    for device, most in (("H200", 4), (CPU, 32)):
        for n, kernels in ((most, 1), (most + 1, 2)):
            many = (kf.spec((500, 1, n)), kf.spec((1, 700, n)))
            assert len(kinds(lambda a, b: squares(a, b).sum(-1).max(-1), *many, device=device)) == kernels
    for f in (lambda x: kf.layernorm(x).sum(-1), kf.softmax, lambda x: x.sum(-1)):
        assert kinds(f, kf.spec((1000, 8))) == ["rows"]
    # A GPU reads neighbours; a CPU elements a few apart as well.
    x = kf.spec((100, 1000, 4))
    assert kinds(lambda x: x.sum(-1).max(-1), x) == ["rows", "rows"]
    assert kinds(lambda x: x.sum(-1).max(-1), x, device=CPU) == ["rows"]
    # A row of three elements takes a CPU as long as one of a hundred.
    assert kinds(lambda a, b: squares(a, b).sum(-1), A, B) == ["rows"]
    assert kinds(lambda a, b: squares(a, b).sum(-1), A, B, device=CPU) == ["pointwise"]


# The shapes of two arrays, and the axes over which their products are reduced first.
SHAPES = [((4, 1, 3), (6, 3), -1), ((2, 5, 1), (2, 5, 7), 1), ((4, 1, 16), (1, 6, 16), 2), ((2, 3, 1), (3, 7), (0, 1))]


def test_values_of_what_is_written_out(some, rng):
    """Every reduction, of several dtypes and numbers of elements, over the last axis, another, and two; of NaN too."""

    def check(name, dtype, shapes):
        *both, axis = shapes
        a, b = (rng.integers(-2, 3, shape).astype(dtype) for shape in both)
        if dtype.startswith("float"):
            a.flat[0] = np.nan

        def f(x, y):
            v = getattr(kf, name)(kf.multiply(x, y), axis)
            return v, kf.max(v, -1)

        want = getattr(np, name)(wide(a) * wide(b), axis)
        for mine, numpys in zip(kf.fuse(f)(a, b), (want, want.max(-1)), strict=True):
            assert_close(mine, numpys, scale=8)

    names, dtypes = ("sum", "mean", "max", "min", "prod", "any", "all"), ("float32", "float16", "int32", "bool")
    sweep(check, some(itertools.product(names, dtypes, SHAPES), 14))


def test_every_position_is_read_once(rng):
    """Views, casts and constants before the reduction; its result is used again, beside the second one."""
    x, w = rng.standard_normal((7, 9, 4)).astype(np.float32), rng.standard_normal(4).astype(np.float32)

    def f(x, w):
        d = kf.sum(kf.astype(kf.flip(x, -1) * w, "float64") + kf.iota(4) * 0.5, -1)
        return d.max(-1), d * 2, (x * w).sum(-1, keepdims=True).min(1)

    d = (x[..., ::-1] * w).astype(float).sum(-1) + 3
    want = d.max(-1), d * 2, (x.astype(float) * w).sum(-1, keepdims=True).min(1)
    for got, expected in zip(kf.fuse(f)(x, w), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
