"""Reductions that give the same however their elements are grouped: joined where one reduces the other's results, split
where their rows are reduced beside something else."""

from __future__ import annotations

import numpy as np
import pytest

import kfusion as kf
from kfusion._plans.records import Bytes

pytestmark = pytest.mark.native

CPU = "EPYC 9654"
ROWS, COLS = 37, 1030
X, CUBE = kf.spec((ROWS, COLS)), kf.spec((5, 7, COLS))
N = 4 * ROWS * COLS  # bytes


def kinds(f, *specs, device="H200", **options):
    return [g.kind for g in kf.plan(f, *specs, device=device, **options).groups]


JOINED = {
    "rows": (lambda x: x.max(-1).max(-1), ["rows"]),
    "axes that stay": (lambda x: x.min(-1, keepdims=True).min(-2, keepdims=True), ["rows"]),
    "columns": (lambda x: abs(x).max(0).max(0), ["columns"]),
    "everything": (lambda x: (x > 0).any(-1).any(-1).any(-1), ["full_reduction"]),
    "and in the end whole": (lambda x: x.max(-1).max(), ["full_reduction"]),
    "integers": (lambda x: kf.astype(x, "int32").sum(-1).sum(-1), ["rows"]),
}
APART = {
    "sums of floats": (lambda x: x.sum(-1).sum(-1), ["rows", "rows"]),
    "of another kind": (lambda x: x.max(-1).min(-1), ["rows", "rows"]),
    "no neighbours": (lambda x: x.max(-1).max(0), ["rows", "columns"]),
    "read by others": (lambda x: ((y := x.max(-1)), y.max(-1)), ["rows", "rows"]),
}


@pytest.mark.parametrize("case", JOINED | APART)
def test_reductions_of_reductions(case):
    f, wanted = (JOINED | APART)[case]
    for device in ("H200", CPU):
        assert kinds(f, CUBE, device=device) == wanted


def test_named_pairs_stay():
    assert kinds(JOINED["rows"][0], CUBE, forbid=[("max", "max_2")]) == ["rows", "rows"]


def largest_of_normalised(x):
    y = kf.layernorm(x)
    return y, abs(y).max()


@pytest.mark.parametrize("device", ["H200", CPU])
def test_the_largest_of_what_rows_are_normalised_to_is_found_beside_it(device):
    p = kf.plan(largest_of_normalised, X, device=device)
    assert [g.kind for g in p.groups] == ["rows", "full_reduction"]
    assert p.fused.compulsory == Bytes(N + 4 * ROWS, N + 4 * ROWS + 4)
    p = kf.plan(lambda x: (x.sum(-1), x.max()), X, device=device)
    assert p.fused.compulsory == Bytes(N + 4 * ROWS, 8 * ROWS + 4)


def test_sums_and_rows_that_a_cpu_takes_one_by_one_are_not_split():
    assert kf.plan(lambda x: ((y := kf.layernorm(x)), y.sum()), X, device="H200").fused.compulsory.read == 2 * N
    short = kf.spec((COLS, 64))
    assert kf.plan(largest_of_normalised, short, device=CPU).fused.compulsory.read == 2 * 4 * COLS * 64
    assert kf.plan(largest_of_normalised, short, device="H200").fused.compulsory.read == 4 * COLS * 65


def test_plans_say_what_nested_loops_would_save():
    refusals = kf.plan(lambda x: x.sum(-1).max(-1), CUBE, device="H200").refusals
    assert [str(r.reason) for r in refusals] == ["domain_mismatch"]
    assert refusals[0].sentence.endswith(f"would save {2 * 4 * 5 * 7} bytes and one launch.")


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_values(dtype, rng):
    """They are NumPy's and the unfused version's to the bit, with NaN, strides, and no or one row."""

    def f(x):
        largest = x.max(-1).max(-1), (x > 1).all(1).all(-1), kf.maximum(x, 2).min(0).min(0)
        return (*largest, x - x.min(-1, keepdims=True), x.max((1, 2)), x.min(), x.max())

    def numpys(x):
        largest = x.max((1, 2)), (x > 1).all((1, 2)), np.maximum(x, 2).min((0, 1))
        return (*largest, x - x.min(-1, keepdims=True), x.max((1, 2)), x.min(), x.max())

    fused = kf.fuse(f)
    for shape in ((3, 5, 1030), (2, 1, 1), (1, 4, 33)):
        x = rng.integers(-9, 9, shape).astype(dtype)
        if dtype != "int32":
            x.flat[-1] = np.nan
        for given in (x, x[::-1, :, ::-1], np.asfortranarray(x)):
            for got, apart, want in zip(fused(given), fused.unfused(given), numpys(given), strict=True):
                np.testing.assert_array_equal(got, want)
                np.testing.assert_array_equal(got, apart)
    np.testing.assert_array_equal(kf.fuse(lambda x: x.max(-1).max(-1))(np.ones((0, 2, 3), dtype)), np.ones(0, dtype))
