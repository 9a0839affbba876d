"""Short reductions that are written out, so that they share a kernel with another one over their results: which those
are, and what they compute."""

from __future__ import annotations

import numpy as np
import pytest

import kfusion as kf
from graph_runs import assert_close, wide

pytestmark = pytest.mark.native

CPU = "EPYC 9654"
A, B = kf.spec((500, 1, 3)), kf.spec((1, 700, 3))
HALVES = kf.spec((500, 1, 3), "float16"), kf.spec((1, 700, 3), "float16")


def kinds(f, *specs, device="H200"):
    return [g.kind for g in kf.plan(f, *specs, device=device).groups]


def squares(a, b):
    return kf.square(a - b)


ONE_KERNEL = {
    "largest distance": (lambda a, b: squares(a, b).sum(-1).max(-1), (A, B)),
    "of half types": (lambda a, b: squares(a, b).mean(-1).min(-1), HALVES),
    "which is nearest": (lambda a, b: squares(a, b).sum(-1).argmin(-1), (A, B)),
    "and the value": (lambda a, b: ((d := squares(a, b).sum(-1)).min(-1), d.argmin(-1)), (A, B)),
    "functions between": (lambda a, b: kf.softmax(-kf.sqrt(squares(a, b).sum(-1)), -1), (A, B)),
    "across": (lambda a, b: squares(a, b).sum(-1).min(0), (A, B)),
    "of two axes": (lambda a, b: squares(a, b).sum((-2, -1)).max(-1), (kf.spec((500, 1, 2, 1)), kf.spec((700, 1, 2)))),
}


@pytest.mark.parametrize("case", ONE_KERNEL)
def test_one_kernel(case):
    f, specs = ONE_KERNEL[case]
    assert len(kinds(f, *specs)) == 1


def test_what_is_not_written_out():
    for device, most in (("H200", 4), (CPU, 32)):
        for n, kernels in ((most, 1), (most + 1, 2)):
            many = (kf.spec((500, 1, n)), kf.spec((1, 700, n)))
            assert len(kinds(lambda a, b: squares(a, b).sum(-1).max(-1), *many, device=device)) == kernels
    x = kf.spec((1000, 8))
    assert kinds(lambda x: kf.layernorm(x).sum(-1), x) == ["rows"]
    assert kinds(kf.softmax, x) == ["rows"]
    assert kinds(lambda x: x.sum(-1), x) == ["rows"]
    # A GPU reads neighbours; a CPU elements a few apart as well.
    x = kf.spec((100, 1000, 4))
    assert kinds(lambda x: x.sum(-1).max(-1), x) == ["rows", "rows"]
    assert kinds(lambda x: x.sum(-1).max(-1), x, device=CPU) == ["rows"]


def test_products_of_pairs_on_a_cpu():
    """A row of three elements takes a CPU as long as one of a hundred."""
    assert kinds(lambda a, b: squares(a, b).sum(-1), A, B) == ["rows"]
    assert kinds(lambda a, b: squares(a, b).sum(-1), A, B, device=CPU) == ["pointwise"]


REDUCTIONS = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
    "any": np.any,
    "all": np.all,
}


# The shapes of two arrays, and the axes over which their products are reduced first.
SHAPES = [((4, 1, 3), (6, 3), -1), ((2, 5, 1), (2, 5, 7), 1), ((4, 1, 16), (1, 6, 16), 2), ((2, 3, 1), (3, 7), (0, 1))]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "bool"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_values(name, dtype, rng):
    """Every reduction, of several dtypes and numbers of elements, over the last axis, another, and two; of NaN too."""
    for first, second, axis in SHAPES:
        a, b = (rng.integers(-2, 3, shape).astype(dtype) for shape in (first, second))
        if dtype.startswith("float"):
            a.flat[0] = np.nan

        def f(x, y, axis=axis):
            v = getattr(kf, name)(kf.multiply(x, y), axis)
            return v, kf.max(v, -1)

        got = kf.fuse(f)(a, b)
        want = REDUCTIONS[name](wide(a) * wide(b), axis)
        for mine, numpys in zip(got, (want, want.max(-1)), strict=True):
            assert_close(mine, numpys, scale=8)


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
