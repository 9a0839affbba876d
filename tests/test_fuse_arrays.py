"""`kf.fuse` on every kind of array: layouts, `out=`, overlap, libraries' own functions, gradients."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kinds import FRAMEWORKS, Kind, OnlyDlpack, np_dtype
from sweeps import sweep


@kf.fuse
def chain(x, b):
    return kf.exp(kf.minimum(x * b + 0.5, 2.0))


def chain_by_numpy(x, b):
    return np.exp(np.minimum(x * b + 0.5, 2.0))


@kf.fuse
def rows(x, w):
    return kf.softmax(x) * w, kf.mean(x, axis=-1)


def rows_by_numpy(x, w):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) * w, x.mean(-1)


def made(kind: Kind, x: np.ndarray, dtype: str = "float32") -> Any:
    return kind.make(x.astype(np_dtype(dtype)))


@pytest.mark.parametrize("kind", [p for p in FRAMEWORKS if p.values[0].name != "dlpack"], indirect=True)
def test_every_kind_and_dtype(kind, rng):
    """Those with a shape and a dtype, which tracing asks for."""
    x, b = rng.standard_normal((6, 9)), rng.standard_normal(9)
    kind_of_array = object if kind.name == "numba" else type(made(kind, x))
    for dtype in kind.dtypes:
        once = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
        given = made(kind, x, dtype), made(kind, b, dtype)
        for y, error in ((chain(*given), once), (chain(*given), once), (chain.unfused(*given), 2 * once)):
            assert isinstance(y, kind_of_array)
            np.testing.assert_allclose(kind.back(y), chain_by_numpy(x, b), rtol=error, atol=error)
    given = made(kind, x), made(kind, b)
    for got, want in zip(rows(*given), rows_by_numpy(x, b), strict=True):
        np.testing.assert_allclose(kind.back(got), want, rtol=1e-4, atol=1e-5)
    y = kf.relu(given[0])
    assert isinstance(y, kind_of_array)
    np.testing.assert_array_equal(kind.back(y), np.maximum(x.astype(np.float32), 0))
    np.testing.assert_allclose(kind.back(kf.sum(given[0], axis=0)), x.sum(0), rtol=1e-4, atol=1e-5)
    if not kind.immutable:
        out = made(kind, np.zeros((6, 9)))
        for _ in range(2):
            assert chain(*given, out=out) is out
            np.testing.assert_allclose(kind.back(out), chain_by_numpy(x, b), rtol=1e-5)


def test_results_lie_as_the_inputs_do(rng):
    x, y = np.asfortranarray(rng.standard_normal((5, 6))), np.asfortranarray(rng.standard_normal((5, 6)))
    assert chain(x, y).flags.f_contiguous
    assert chain(x, np.ones(6)).flags.f_contiguous
    assert chain(x, np.ones((5, 6))).flags.c_contiguous
    z = rng.standard_normal((3, 4, 5)).transpose(2, 0, 1)
    assert chain(z, 1.0).strides == z.strides
    np.testing.assert_allclose(chain(z, 1.0), chain_by_numpy(z, 1.0), rtol=1e-14)
    assert chain(z[::2], 1.0).flags.c_contiguous


def test_misaligned_arrays_are_copied(rng):
    memory = bytearray(8 * 6 + 3)
    x: np.ndarray = np.frombuffer(memory, np.uint8)[3:].view(np.float64)
    x[:] = rng.standard_normal(6)
    records = np.zeros(6, np.dtype([("a", np.int8), ("b", np.float64)]))
    records["b"] = rng.standard_normal(6)
    for array in (x, records["b"]):
        np.testing.assert_allclose(chain(array, 1.0), chain_by_numpy(array, 1.0), rtol=1e-14)
    with pytest.raises(ValueError, match="out must be aligned"):
        chain(np.ones(6), 1.0, out=x)


# ---- out= ----


def test_outs_with_strides(rng):
    def check(make, body):
        f, out = kf.fuse(body), make()
        expected = f(x, b)
        base = out.base
        base[:] = 7
        assert f(x, b, out=out) is out
        np.testing.assert_array_equal(out, expected)
        assert np.sum(base == 7) == base.size - out.size

    x, b = rng.standard_normal((4, 6)), rng.standard_normal(6)
    makes = [
        lambda: np.empty((8, 6))[::2],
        lambda: np.empty((4, 12))[:, 1::2],
        lambda: np.empty((6, 4)).T,
        lambda: np.empty((4, 6))[::-1, ::-1],
    ]
    bodies = chain.__wrapped__, lambda x, b: kf.softmax(x) * b, lambda x, b: (x @ x.T @ x) * b
    sweep(check, itertools.product(makes, bodies))


def test_outs_that_are_refused(rng):
    def check(f, out, error, text):
        with pytest.raises(error, match=text):
            f(x, x, out=out)

    x = rng.standard_normal((4, 6)).astype(np.float32)
    out = np.empty((4, 6), np.float32)
    sweep(
        check,
        [
            (chain, np.empty((4, 6)), TypeError, "out must be float32, got float64"),
            (chain, np.empty((4, 5), np.float32), ValueError, r"out must have shape \(4, 6\), got \(4, 5\)"),
            (chain, np.broadcast_to(np.float32(0), (4, 6)), ValueError, "out must be writable"),
            (chain, np.lib.stride_tricks.as_strided(x, (4, 6), (4, 4)), ValueError, "out must not overlap itself"),
            (chain, [[1.0]], TypeError, "out must be a NumPy array"),
            (rows, out, ValueError, "out must be one array for each of 2 results, got 1"),
            (rows, (out, out[:, 0]), ValueError, "do not overlap each other"),
        ],
    )


def test_out_may_overlap_the_inputs(rng):
    def check(target, body):
        memory = rng.standard_normal((8, 6))
        expected = kf.fuse(body)(memory[:4].copy())
        kf.fuse(body)(memory[:4], out=target(memory))
        np.testing.assert_array_equal(target(memory), expected)

    targets = lambda m: m[:4], lambda m: m[1:5], lambda m: m[3::-1], lambda m: m[4:]
    bodies = [
        lambda x: kf.exp(x) + x,
        lambda x: x + x[::-1],
        lambda x: kf.softmax(x, axis=0),
        lambda x: x - x.sum(),
        lambda x: x @ x.T @ x,
        lambda x: x,
    ]
    sweep(check, itertools.product(targets, bodies))


# ---- the library's own functions ----


def test_products_of_other_dtypes(rng):
    for dtype in ("float16", "bfloat16", "int64", "bool"):
        x = rng.integers(-3, 4, (4, 5)).astype(np_dtype(dtype))
        got, wide = kf.fuse(lambda x: x @ x.T)(x), x.astype(np.float64)
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got.astype(np.float64), (wide @ wide.T).astype(x.dtype))


def test_libraries_read_what_kernels_would_make(rng):
    x = rng.standard_normal((4, 3))
    f = kf.fuse(lambda x, i: kf.take(x, i, axis=0) * 2)
    np.testing.assert_array_equal(f(x, np.array([3, 0, -1])), x[[3, 0, -1]] * 2)
    with pytest.raises(IndexError, match=r"kfusion\..*take"):
        f(x, np.array([4]))
    taken = kf.fuse(lambda x: kf.take(x, kf.iota((2, 3), 1), axis=0) * 2)
    np.testing.assert_array_equal(taken(x), np.stack([x[:3], x[:3]]) * 2)
    products = kf.fuse(lambda x: (kf.full_like(x, 2).T @ x, (x + 1) @ kf.full_like(x, 0.5).T))
    for got, want in zip(products(x), (np.full((3, 4), 2.0) @ x, (x + 1) @ np.full((3, 4), 0.5)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-13)
    with pytest.raises(ValueError, match="make an array of it outside"):
        kf.fuse(lambda x, a: x @ kf.full_like(x, a).T)(x, 0.5)


# ---- one kind, one device ----


def test_arrays_that_only_export():
    ones = np.ones(3)
    np.testing.assert_allclose(np.from_dlpack(chain(OnlyDlpack(ones), OnlyDlpack(ones))), chain(ones, ones))


# ---- CUDA ----


@pytest.mark.cuda
def test_a_cuda_graph_of_a_warm_call(rng):
    torch = pytest.importorskip("torch")
    x, w = torch.randn(64, 1000, device="cuda"), torch.randn(1000, device="cuda")
    f = kf.fuse(lambda x, w: (kf.softmax(x) * w, (x * w).sum(), kf.relu(x + w).T @ x))
    f(x, w)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        f(x, w)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = f(x, w)
    for scale in (1.0, 2.0):
        x.mul_(scale)
        graph.replay()
        torch.cuda.synchronize()
        for got, want in zip(results, f(x, w), strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.cuda
def test_streams_devices_and_alignment(rng):
    torch = pytest.importorskip("torch")
    memory = torch.randn((1 << 20) + 4, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    for start in range(5):
        x = memory[start:]
        want = torch.exp(torch.clamp(x * x + 0.5, max=2.0))
        torch.testing.assert_close(chain(x, x), want)
        torch.cuda.synchronize()
        y = chain(x, x, stream=side)
        side.synchronize()
        torch.testing.assert_close(y, want)
    with pytest.raises(TypeError, match=r"b must be on x's device \(cuda:0\), got cpu"):
        chain(torch.ones(3, device="cuda"), torch.ones(3))
