"""Ops of the table through `kf.fuse` where values and lengths are special (all others: test_reference_ops.py)."""

import math

import numpy as np
import pytest

import kfusion as kf
import reference_ops
import test_reference_ops as rows
from graph_runs import assert_close, draw, wide
from kinds import ALL_DTYPES, DTYPES, SPACING, np_dtype

pytestmark = pytest.mark.native


def back(a):
    """The result as a NumPy array of its dtype."""
    return a.numpy() if hasattr(a, "numpy") else np.asarray(a)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_special_values_in_one_kernel(place, dtype):
    """There are as few kernels as results allow: a GPU's are compiled when they are first called."""
    if dtype not in place.dtypes and dtype in DTYPES:
        pytest.skip("no such arrays")
    names = [n for n in reference_ops.MAPS if dtype in rows.takes(n)]
    arguments = {n: rows.special_arguments(n, dtype) for n in names}
    arrays = {}  # the same meshes serve all ops but power
    numbers = [
        [arrays.setdefault(a.tobytes() + bytes(a.shape), (len(arrays), a))[0] for a in arguments[n]] for n in names
    ]

    def function(arrays):
        return tuple(getattr(kf, n)(*(arrays[i] for i in which)) for n, which in zip(names, numbers, strict=True))

    results = kf.fuse(function)([place.make(np.ascontiguousarray(a)) for _, a in arrays.values()])
    for name, got in zip(names, results, strict=True):
        rows.assert_special(name, arguments[name], back(got))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_functions_of_every_half(place, dtype):
    """Each value that the type has is an argument: a GPU takes short functions of floats, which have no subnormal
    results.
    """
    if dtype not in place.dtypes:
        pytest.skip("no such arrays")
    names, least = ["erf", "exp", "exp2", "sigmoid", "tanh"], 2.0**-126
    x = np.arange(2**16, dtype=np.uint16).view(np_dtype(dtype))
    for name, result in zip(
        names, kf.fuse(lambda v: tuple(getattr(kf, n)(v) for n in names))(place.make(x)), strict=True
    ):
        got = back(result)
        with np.errstate(all="ignore"):
            want = reference_ops.MAPS[name](wide(x))
        subnormal = abs(want) < least
        assert (abs(wide(got[subnormal])) <= least).all()
        assert_close(got[~subnormal], want[~subnormal], spacings=1)


LENGTHS = (1, 2, 7, 8, 9, 31, 33, 64, 127, 1025, 4099)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_sums_of_any_length(place, name, dtype, rng):
    reduce = kf.fuse(lambda x: (getattr(kf, name)(x, axis=-1), getattr(kf, name)(x, axis=0), getattr(kf, name)(x)))
    for n in LENGTHS:
        x = draw(rng, dtype, (3, n))
        for got, axis in zip(reduce(place.make(x)), (1, 0, None), strict=True):
            exact = np.apply_along_axis(math.fsum, axis, wide(x)) if axis is not None else math.fsum(wide(x).flat)
            size = x.size // max(np.size(exact), 1)
            scale = abs(wide(x)).sum(axis) / (size if name == "mean" else 1)
            error = SPACING[dtype] * abs(exact) + 4 * SPACING["float64" if dtype == "float64" else "float32"] * scale
            assert (abs(wide(back(got)) - exact / (size if name == "mean" else 1)) <= error).all()


@pytest.mark.parametrize("n", [1, 3, 1000, 200_001])
def test_infinities_in_pairs_of_reductions(place, n):
    """Softmax of masked scores, mean and variance of what is infinite or far apart, along rows and columns."""
    column = np.float32([[1, 2, -np.inf, 3, -np.inf], [-np.inf, 0, -np.inf, -np.inf, 1], [2, 1, 5, -np.inf, -np.inf]])
    far = np.float32([[np.inf, 1e20], [1, 1e20], [1, 1e20]])
    rows = [np.repeat(v.T, n, axis=1) for v in (column, far)] if n > 1 else [column.T, far.T]
    f = kf.fuse(lambda x, y, axis: (kf.softmax(x, axis=axis), y.mean(axis), kf.var(y, axis=axis)))
    with np.errstate(invalid="ignore", over="ignore"):
        for x, y, axis in ((*rows, 1), *(((column, far, 0),) if n == 1 else ((rows[0].T, rows[1].T, 0),))):
            normal, mean, var = map(back, f(place.make(x.copy()), place.make(y.copy()), axis))
            w = wide(x)
            e = np.exp(w - w.max(axis, keepdims=True))
            np.testing.assert_allclose(normal, e / e.sum(axis, keepdims=True), rtol=1e-5)
            np.testing.assert_allclose(mean, wide(y).mean(axis), rtol=1e-5)
            assert np.isnan(var[0])
            np.testing.assert_allclose(var[1], 0, atol=1e30)


def test_extremes_and_truths_of_any_length(place, rng):
    ops = ("max", "min", "any", "all", "prod")
    reduce = kf.fuse(lambda x, b: tuple(getattr(kf, o)(b if o in ("any", "all") else x, axis=-1) for o in ops))
    for n in LENGTHS:
        x, b = rng.integers(-2, 3, (5, n)).astype(np.int32), rng.random((5, n)) < 1 / n
        for op, got in zip(ops, reduce(place.make(x), place.make(b)), strict=True):
            assert_close(back(got), getattr(np, op)(b if op in ("any", "all") else x, axis=-1))


def test_nan_anywhere_in_a_row_reaches_its_maximum(place):
    x = np.zeros((67, 67), np_dtype("float32"))
    np.fill_diagonal(x, np.nan)
    results = kf.fuse(lambda v: (v.max(-1), v.min(0), kf.softmax(v), v.max()))(place.make(x))
    for r in results:
        assert np.isnan(back(r)).all()
