"""kfusion's functions by names of the array API standard: on arrays and traced, beside NumPy's, and their errors."""

from __future__ import annotations

import numpy as np
import pytest

import kfusion as kf

A, B = np.arange(24.0).reshape(2, 3, 4), np.linspace(-2, 2, 60).reshape(4, 3, 5)
WIDE = np.tile(A, 3)[:1, :, :10]
CASES = {
    "concat": (lambda m, x: m.concat([x, x * 2], axis=1), np.concatenate([A, A * 2], 1)),
    "concat all": (lambda m, x: m.concat((x, x[0]), axis=None), np.concatenate([A, A[0]], None)),
    "permute_dims": (lambda m, x: m.permute_dims(x, (2, 0, 1)), A.transpose(2, 0, 1)),
    "unstack": (lambda m, x: m.unstack(x, axis=-1)[2], A[..., 2]),
    "signbit": (lambda m, x: m.signbit(x * -0.0 + (x - 3)), A < 3),
    "signbit of zeros": (lambda m, x: m.signbit(x * -0.0), np.ones(A.shape, bool)),
    "count_nonzero": (lambda m, x: m.count_nonzero(x, axis=(0, 2), keepdims=True), np.array([[[7], [8], [8]]])),
    "diff": (lambda m, x: m.diff(x * x, n=2, axis=1), np.diff(A * A, 2, 1)),
    "diff with ends": (
        lambda m, x: m.diff(x, prepend=x[..., :1], append=x[..., :2]),
        np.diff(A, prepend=A[..., :1], append=A[..., :2]),
    ),
    "ones_like": (lambda m, x: m.ones_like(x) + m.zeros_like(x), np.ones(A.shape)),
    "vecdot": (lambda m, x: m.vecdot(x, x[:, :1], axis=-1), (A * A[:, :1]).sum(-1)),
    "tensordot": (
        lambda m, x: m.tensordot(x, m.tile(x, 3)[:1, :, :10], axes=((1,), (1,))),
        np.tensordot(A, WIDE, ((1,), (1,))),
    ),
    "broadcast_arrays": (lambda m, x: m.broadcast_arrays(x[0], x)[0], np.broadcast_to(A[0], A.shape)),
    "meshgrid": (lambda m, x: m.meshgrid(x[0, 0], x[0, :, 0])[1], np.meshgrid(A[0, 0], A[0, :, 0])[1]),
    "meshgrid ij": (
        lambda m, x: m.meshgrid(x[0, 0], x[0, :, 0], indexing="ij")[0],
        np.meshgrid(A[0, 0], A[0, :, 0], indexing="ij")[0],
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_values(name, library):
    f, want = CASES[name]
    torch = pytest.importorskip("torch") if library == "torch" else None
    x = A if torch is None else torch.from_numpy(A)
    for got in (f(kf, x), kf.fuse(lambda x: f(kf, x))(x)):
        assert (type(got) is np.ndarray) is (torch is None)
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-12, atol=1e-12)
        assert np.asarray(got).dtype == want.dtype


def test_integers_keep_their_dtype(rng):
    x = rng.integers(-9, 9, (3, 5), np.int32)
    assert kf.vecdot(x, x).dtype == np.int32
    np.testing.assert_array_equal(kf.vecdot(x, x), np.vecdot(x, x) if hasattr(np, "vecdot") else (x * x).sum(-1))
    np.testing.assert_array_equal(kf.tensordot(x, x, axes=2), np.tensordot(x, x))
    np.testing.assert_array_equal(kf.diff(x > 0), np.diff(x > 0))
    assert kf.ones_like(x, dtype="float32").dtype == np.float32


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: kf.tensordot(A, A, axes=1), ValueError, "do not match"),
        (lambda: kf.tensordot(A, A, axes=4), ValueError, "axes must be between 0 and 3, got 4"),
        (lambda: kf.tensordot(A, A, axes=((0, 0), (0, 0))), ValueError, "name one twice"),
        (lambda: kf.tensordot(A, A, axes=((0, 1), (0,))), ValueError, "do not match"),
        (lambda: kf.broadcast_arrays(A, B), ValueError, r"shapes \(2, 3, 4\), \(4, 3, 5\) do not broadcast"),
        (lambda: kf.broadcast_arrays(A, [1]), TypeError, "arrays must be arrays, got list"),
        (lambda: kf.meshgrid(A), ValueError, "arrays must have one axis"),
        (lambda: kf.meshgrid(A[0, 0], indexing="yx"), ValueError, 'indexing must be "xy" or "ij"'),
        (lambda: kf.permute_dims(A, (0, 1)), ValueError, "permute|transpose"),
        (lambda: kf.concat([]), ValueError, "at least one array"),
        (lambda: kf.diff(A, n=-1), ValueError, "n must be at least 0, got -1"),
    ],
)  # fmt: skip
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_gradients():
    g = kf.grad(lambda x: kf.sum(kf.tensordot(x, kf.diff(kf.concat([x, x], axis=1), axis=1), axes=((0,), (0,)))))(
        A[:, :, 0]
    )
    x, n = A[:, :, 0], 3
    steps = np.diff(np.concatenate([x, x], 1), axis=1).sum(1)
    rest = np.zeros((2, 2 * n))
    rest[:, 0], rest[:, -1] = -1, 1  # of the sum of the differences
    ends = rest[:, :n] + rest[:, n:]
    np.testing.assert_allclose(g, steps[:, None] + x.sum(1, keepdims=True) * ends)


def test_dtypes():
    torch = pytest.importorskip("torch")
    x = torch.ones(2, dtype=torch.float16)
    assert kf.isdtype(x.dtype, "real floating")
    assert kf.isdtype(torch.bfloat16, ("bool", "numeric"))
    assert kf.isdtype(np.dtype("int8"), np.int8)
    assert not kf.isdtype(np.float32, ("integral", np.float64))
    assert kf.result_type(x, torch.bfloat16) == torch.float32
    assert kf.result_type(x, 2.5) == torch.float16
    assert kf.result_type(np.ones(2, np.float32), np.int32) == np.float64
    with pytest.raises(ValueError, match="kind must be a dtype or one of bool, signed integer"):
        kf.isdtype(np.float32, "float")


def test_dtypes_of_traced_values():
    def f(x, y):
        assert kf.isdtype(x.dtype, "integral")
        return kf.astype(x, kf.result_type(x, y)) + y

    assert kf.fuse(f)(np.ones(3, np.int32), np.ones(3, np.float32)).dtype == np.float64
    torch = pytest.importorskip("torch")
    assert kf.fuse(f)(torch.ones(3, dtype=torch.int64), torch.ones(3)).dtype == torch.float32
