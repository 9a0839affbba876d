"""`kf.fuse` on every kind of array: layouts, `out=`, overlap, libraries' own functions, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kfusion as kf
from graph_runs import LAYOUTS
from kinds import FRAMEWORKS, HAVE_GPU, KINDS, Kind, OnlyDlpack, np_dtype


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


@pytest.fixture(params=[p for p in FRAMEWORKS if p.values[0].name != "dlpack"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Kinds with a shape and a dtype, which tracing asks for."""
    request.param.require()
    return request.param


def test_every_kind_and_dtype(kind, rng):
    x, b = rng.standard_normal((6, 9)), rng.standard_normal(9)
    for dtype in kind.dtypes:
        tolerance = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
        for _ in range(2):
            y = chain(made(kind, x, dtype), made(kind, b, dtype))
            assert isinstance(y, type(made(kind, x))) or kind.name == "numba"
            np.testing.assert_allclose(kind.back(y), chain_by_numpy(x, b), rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(
                kind.back(chain.unfused(made(kind, x, dtype), made(kind, b, dtype))),
                chain_by_numpy(x, b),
                rtol=2 * tolerance,
                atol=2 * tolerance,
            )


def test_several_results_and_rows(kind, rng):
    x, w = rng.standard_normal((7, 33)), rng.standard_normal(33)
    for _ in range(2):
        for got, want in zip(rows(made(kind, x), made(kind, w)), rows_by_numpy(x, w), strict=True):
            np.testing.assert_allclose(kind.back(got), want, rtol=1e-4, atol=1e-5)


def test_eager_functions(kind, rng):
    x = rng.standard_normal((5, 8))
    y = kf.relu(made(kind, x))
    assert isinstance(y, type(made(kind, x))) or kind.name == "numba"
    np.testing.assert_array_equal(kind.back(y), np.maximum(x.astype(np.float32), 0))
    np.testing.assert_allclose(kind.back(kf.sum(made(kind, x), axis=0)), x.sum(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_layouts(layout, rng):
    x = layout(lambda shape: np.asarray(rng.standard_normal(shape)))
    keep = x.copy()
    b = np.asarray(0.5)
    for f in (chain, chain.unfused):
        y = f(x, b)
        np.testing.assert_allclose(y, chain_by_numpy(x, b), rtol=1e-14)
    np.testing.assert_array_equal(x, keep)


def test_results_lie_as_the_inputs_do(rng):
    x, y = np.asfortranarray(rng.standard_normal((5, 6))), np.asfortranarray(rng.standard_normal((5, 6)))
    assert chain(x, y).flags.f_contiguous
    assert chain(x, np.ones(6)).flags.f_contiguous
    assert chain(x, np.ones((5, 6))).flags.c_contiguous
    z = rng.standard_normal((3, 4, 5)).transpose(2, 0, 1)
    assert chain(z, 1.0).strides == z.strides
    np.testing.assert_allclose(chain(z, 1.0), chain_by_numpy(z, 1.0), rtol=1e-14)
    assert chain(z[::2], 1.0).flags.c_contiguous


def test_results_of_reductions_with_strides(rng):
    x = np.asfortranarray(rng.standard_normal((5, 6)))
    for axis in (0, 1, None):
        f = kf.fuse(lambda x, axis=axis: (x * 2, x.sum(axis=axis)))
        for got, want in zip(f(x), (x * 2, x.sum(axis=axis)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-13)


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


def test_out(kind, rng):
    if kind.immutable:
        pytest.skip("nothing to write to")
    x, b = rng.standard_normal((4, 6)), rng.standard_normal(6)
    out = made(kind, np.zeros((4, 6)))
    for _ in range(2):
        assert chain(made(kind, x), made(kind, b), out=out) is out
        np.testing.assert_allclose(kind.back(out), chain_by_numpy(x, b), rtol=1e-5)


def test_several_outs(rng):
    x, w = rng.standard_normal((4, 6)), rng.standard_normal(6)
    outs = np.empty((4, 6)), np.empty(4)
    y, m = rows(x, w, out=outs)
    assert y is outs[0]
    assert m is outs[1]
    for got, want in zip(outs, rows_by_numpy(x, w), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-13)
    with pytest.raises(ValueError, match="out must be one array for each of 2 results, got 1"):
        rows(x, w, out=outs[0])
    with pytest.raises(ValueError, match="do not overlap each other"):
        rows(x, w, out=(outs[0], outs[0][:, 0]))


STRIDED_OUTS = {
    "rows": lambda: np.empty((8, 6))[::2],
    "columns": lambda: np.empty((4, 12))[:, 1::2],
    "fortran": lambda: np.empty((6, 4)).T,
    "reversed": lambda: np.empty((4, 6))[::-1, ::-1],
}


@pytest.mark.parametrize("make", STRIDED_OUTS.values(), ids=STRIDED_OUTS.keys())
@pytest.mark.parametrize("body", [chain.__wrapped__, lambda x, b: kf.softmax(x) * b, lambda x, b: (x @ x.T @ x) * b])
def test_outs_with_strides(make, body, rng):
    x, b = rng.standard_normal((4, 6)), rng.standard_normal(6)
    f, out = kf.fuse(body), make()
    expected = f(x, b)
    base = out.base
    base[:] = 7
    assert f(x, b, out=out) is out
    np.testing.assert_array_equal(out, expected)
    assert np.sum(base == 7) == base.size - out.size


def test_outs_that_are_refused(rng):
    x = rng.standard_normal((4, 6)).astype(np.float32)
    refused: list[tuple[Any, type[Exception], str]] = [
        (np.empty((4, 6)), TypeError, "out must be float32, got float64"),
        (np.empty((4, 5), np.float32), ValueError, r"out must have shape \(4, 6\), got \(4, 5\)"),
        (np.broadcast_to(np.float32(0), (4, 6)), ValueError, "out must be writable"),
        (np.lib.stride_tricks.as_strided(x, (4, 6), (4, 4)), ValueError, "out must not overlap itself"),
        ([[1.0]], TypeError, "out must be a NumPy array"),
    ]
    for out, error, text in refused:
        with pytest.raises(error, match=text):
            chain(x, x, out=out)


OVERLAPS: dict[str, Any] = {
    "itself": (lambda m: m[:4], lambda m: m[:4]),
    "shifted": (lambda m: m[:4], lambda m: m[1:5]),
    "reversed": (lambda m: m[:4], lambda m: m[3::-1]),
    "apart": (lambda m: m[:4], lambda m: m[4:]),
}


@pytest.mark.parametrize("overlap", OVERLAPS.values(), ids=OVERLAPS.keys())
@pytest.mark.parametrize(
    "body",
    [
        lambda x: kf.exp(x) + x,
        lambda x: x + x[::-1],
        lambda x: kf.softmax(x, axis=0),
        lambda x: x - x.sum(),
        lambda x: x @ x.T @ x,
        lambda x: x,
    ],
)
def test_out_may_overlap_the_inputs(overlap, body, rng):
    source, target = overlap
    memory = rng.standard_normal((8, 6))
    expected = kf.fuse(body)(source(memory.copy()))
    kf.fuse(body)(source(memory), out=target(memory))
    np.testing.assert_array_equal(target(memory), expected)


def test_out_of_one_value_twice(rng):
    x = rng.standard_normal((4, 6))
    f = kf.fuse(lambda x: (y := x + 1, y))
    outs = np.empty((6, 4)).T, np.empty((8, 6))[::2]
    f(x, out=outs)
    for out in outs:
        np.testing.assert_array_equal(out, x + 1)


# ---- the library's own functions ----


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_products(name, rng):
    kind = KINDS[name]
    kind.require()
    x, w, b = rng.standard_normal((5, 7)), rng.standard_normal((7, 3)), rng.standard_normal(3)

    @kf.fuse
    def f(x, w, b):
        return kf.relu(kf.flip(x, 0) @ w + b), (w.T @ x.T).sum()

    for dtype in ("float32", "float64"):
        for _ in range(2):
            y, total = f(*(made(kind, a, dtype) for a in (x, w, b)))
            np.testing.assert_allclose(kind.back(y), np.maximum(x[::-1] @ w + b, 0), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(np.float64(total), (x @ w).sum(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int64", "bool"])
def test_products_of_other_dtypes(dtype, rng):
    x = rng.integers(-3, 4, (4, 5)).astype(np_dtype(dtype))
    got = kf.fuse(lambda x: x @ x.T)(x)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(
        got.astype(np.float64), (x.astype(np.float64) @ x.astype(np.float64).T).astype(x.dtype)
    )


def test_convolutions(rng):
    x, w = rng.standard_normal((2, 4, 6, 6)), rng.standard_normal((3, 4, 3, 3))
    f = kf.fuse(lambda x, w: kf.relu(kf.conv2d(x, w, padding=1)))
    expected = f(x, w)
    assert expected.shape == (2, 3, 6, 6)
    torch = pytest.importorskip("torch")
    got = f(torch.from_numpy(x), torch.from_numpy(w))
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-10, atol=1e-10)


def test_gathers(rng):
    x = rng.standard_normal((6, 4))
    f = kf.fuse(lambda x, i: kf.take(x, i, axis=0) * 2)
    np.testing.assert_array_equal(f(x, np.array([5, 0, -1])), x[[5, 0, -1]] * 2)
    with pytest.raises(IndexError, match=r"kfusion\..*take"):
        f(x, np.array([6]))


def test_libraries_read_what_kernels_would_make(rng):
    x = rng.standard_normal((4, 3))
    taken = kf.fuse(lambda x: kf.take(x, kf.iota((2, 3), 1), axis=0) * 2)
    np.testing.assert_array_equal(taken(x), np.stack([x[:3], x[:3]]) * 2)
    products = kf.fuse(lambda x: (kf.full_like(x, 2).T @ x, (x + 1) @ kf.full_like(x, 0.5).T))
    for got, want in zip(products(x), (np.full((3, 4), 2.0) @ x, (x + 1) @ np.full((3, 4), 0.5)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-13)
    with pytest.raises(ValueError, match="make an array of it outside"):
        kf.fuse(lambda x, a: x @ kf.full_like(x, a).T)(x, 0.5)


# ---- one kind, one device ----


def test_kinds_do_not_mix():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="b must be an array of numpy as x is, got one of torch"):
        chain(np.ones(3), torch.ones(3))
    weight = torch.ones(3)
    with pytest.raises(TypeError, match="weight"):
        kf.fuse(lambda x: x * weight)(np.ones(3))


def test_arrays_that_only_export():
    ones = np.ones(3)
    np.testing.assert_allclose(np.from_dlpack(chain(OnlyDlpack(ones), OnlyDlpack(ones))), chain(ones, ones))


def test_gradients_only_where_they_are_asked_for():
    torch = pytest.importorskip("torch")
    x = torch.ones(3, requires_grad=True)
    assert chain(x, x).requires_grad
    with torch.no_grad():
        assert not chain(x, x).requires_grad
        np.testing.assert_allclose(chain(x, x).numpy(), chain_by_numpy(np.ones(3), 1), rtol=1e-6)


def test_writing_to_out_is_seen_by_autograd():
    torch = pytest.importorskip("torch")
    out = torch.zeros(3)
    before = out._version
    chain(torch.ones(3), torch.ones(3), out=out)
    assert out._version > before


def test_torch_s_rules_hold(rng):
    torch = pytest.importorskip("torch")
    f = kf.fuse(lambda x: (x / 7, x.sum(0)))
    quotient, total = f(torch.arange(6).reshape(2, 3))
    assert quotient.dtype == torch.float32
    assert total.dtype == torch.int64
    assert f(torch.ones(2, 3))[1].shape == (3,)


# ---- CUDA ----

cuda = pytest.mark.skipif(not HAVE_GPU, reason="needs an NVIDIA GPU")


@cuda
@pytest.mark.cuda
def test_a_cuda_graph_of_a_warm_call(rng):
    torch = pytest.importorskip("torch")
    x, w = torch.randn(64, 1000, device="cuda"), torch.randn(1000, device="cuda")
    f = kf.fuse(lambda x, w: (kf.softmax(x) * w, (x * w).sum(), kf.relu(x + w).T @ x))
    expected = f(x, w)
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
    assert len(expected) == 3


@cuda
@pytest.mark.cuda
def test_streams(rng):
    torch = pytest.importorskip("torch")
    x = torch.randn(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    y = chain(x, x, stream=side)
    side.synchronize()
    torch.testing.assert_close(y, torch.exp(torch.clamp(x * x + 0.5, max=2.0)))


@cuda
@pytest.mark.cuda
def test_misaligned_cuda_arrays(rng):
    torch = pytest.importorskip("torch")
    memory = torch.randn(1001, device="cuda")
    for start in (0, 1, 2, 3, 4):
        x = memory[start:]
        torch.testing.assert_close(chain(x, x), torch.exp(torch.clamp(x * x + 0.5, max=2.0)))


@cuda
@pytest.mark.cuda
def test_devices_do_not_mix():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"b must be on x's device \(cuda:0\), got cpu"):
        chain(torch.ones(3, device="cuda"), torch.ones(3))
