"""Sums of columns beside what is computed of rows: one kernel that reads all once, and a small one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import kfusion as kf
from host_cuda import HAVE_COMPILER, HostKernels
from kfusion import _core
from kinds import np_dtype

pytestmark = pytest.mark.native


def backward(function: Callable[..., Any], *arguments: Any) -> Any:
    *primals, g = arguments
    return kf.vjp(function, *primals)[1](g)


def of_layernorm(x: Any, w: Any, b: Any, g: Any) -> Any:
    return backward(kf.layernorm, x, w, b, g)


def of_rmsnorm(x: Any, w: Any, b: Any, g: Any) -> Any:
    return *backward(kf.rmsnorm, x, w, g), b


def sums(x: Any, w: Any, b: Any, g: Any) -> Any:
    """A softmax stored, and sums of what sweeps have at different times."""
    y = kf.softmax(x * w)
    return y, x.sum(0), (y * g).sum(0), (x - b).sum(0, keepdims=True)


FUNCTIONS = {"layernorm": of_layernorm, "rmsnorm": of_rmsnorm, "sums": sums}
DTYPES = ("float32", "float64", "float16", "bfloat16")


def arrays(shape: tuple[int, ...], dtype: str, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = (shape, shape[-1:], shape[-1:], shape)
    return [rng.standard_normal(s).astype(np_dtype(dtype)) for s in shapes]


def in_float64(function: Callable[..., Any], given: list[np.ndarray]) -> list[np.ndarray]:
    """One kernel per call: no partial sums."""
    return list(kf.fuse(function).unfused(*[x.astype(np.float64) for x in given]))


def assert_right(got: Any, want: list[np.ndarray], dtype: str) -> None:
    relative = {"float64": 1e-13, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    for g, v in zip(got, want, strict=True):
        assert g.shape == v.shape
        np.testing.assert_allclose(np.asarray(g, np.float64), v, atol=relative * max(1.0, np.abs(v).max()))


def kernels_of(graph: Any, device: str) -> list[dict[str, Any]]:
    return _core.lower(_core.Graph.from_dict(graph.to_dict()), kf.device(device).to_dict())["kernels"]


def parts_of(kernel: dict[str, Any]) -> list[int]:
    return [s["parts"] for s in kernel["stores"] if s["parts"]]


@pytest.mark.parametrize("shape", [(8192, 4096), (16384, 8192), (4096, 32768), (4, 2048, 1024), (10_000, 1023)])
def test_plans_read_rows_once(shape):
    specs = [kf.Spec(s, "bfloat16") for s in (shape, shape[-1:], shape[-1:], shape)]
    for device in ("H200", "EPYC 9654") if shape[-1] <= 8192 else ("H200",):
        rows, totals = kernels_of(kf.trace(of_layernorm, *specs), device)
        assert len(parts_of(rows)) == 2
        assert not parts_of(totals)
    matrix = 2 * np.prod(shape)
    moved = kf.plan(of_layernorm, *specs, device="H200").fused.issued
    assert 3 * matrix <= moved.read + moved.written <= 3.4 * matrix


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.sum(0), (4096, 4096)),  # no rows
        (lambda x: (kf.softmax(x), x.sum(0)), (20, 4096)),  # few
        (lambda x: (kf.softmax(x), x.sum(0)), (2**16, 8)),  # short
        (lambda x: (kf.softmax(x), x.sum(0)), (256, 2**20)),  # longer than registers
        (lambda x: (kf.softmax(x, axis=0), x.sum(0)), (512, 512)),  # of columns too
        (lambda x: (kf.softmax(x), x.max(0)), (4096, 4096)),
        (lambda x: (kf.softmax(x), x.sum()), (4096, 4096)),
    ],
)
def test_where_there_are_none(function, shape):
    assert not any(parts_of(k) for k in kernels_of(kf.trace(function, kf.Spec(shape)), "H200"))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(300, 64), (1000, 1023), (129, 4097), (7, 31, 257), (160, 16384)])
def test_on_the_cpu(name, dtype, shape):
    given = arrays(shape, dtype)
    assert_right(kf.fuse(FUNCTIONS[name])(*given), in_float64(FUNCTIONS[name], given), dtype)


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "strided rows": lambda x: np.repeat(x, 2, 0)[::2],
    "strided columns": lambda x: np.repeat(x, 2, -1)[:, ::2],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "transposed": lambda x: x.T.copy().T,
    "offset": lambda x: np.concatenate([x[:, :1], x], 1)[:, 1:],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    x, w, b, g = arrays((300, 257), "float32")
    given = [LAYOUTS[layout](x), w, b, LAYOUTS[layout](g)]
    assert_right(kf.fuse(of_layernorm)(*given), in_float64(of_layernorm, given), "float32")


def test_not_finite():
    given = arrays((300, 257), "float32")
    given[0][17, 5], given[3][100, 7] = np.nan, np.inf
    got, want = kf.fuse(of_layernorm)(*given), in_float64(of_layernorm, given)
    for g, v in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.isfinite(g), np.isfinite(v))


def test_a_result_may_lie_in_an_argument():
    f = kf.fuse(lambda x, g: (kf.softmax(x), (x * g).sum(0)))
    x, _, _, g = arrays((500, 300), "float32")
    want = f(x, g)
    out = (x, np.empty(300, np.float32))
    f(x, g, out=out)
    np.testing.assert_array_equal(out[0], want[0])
    np.testing.assert_array_equal(out[1], want[1])


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(st.integers(2, 400), st.integers(60, 600), st.sampled_from(sorted(FUNCTIONS)), st.integers(0, 99))
def test_any_shape(rows, columns, name, seed):
    given = arrays((rows, columns), "float32", seed)
    assert_right(kf.fuse(FUNCTIONS[name])(*given), in_float64(FUNCTIONS[name], given), "float32")


@pytest.mark.slow
@pytest.mark.skipif(not HAVE_COMPILER, reason="needs g++")
def test_cuda_text(tmp_path):
    """What generated kernels compute, on a host that plays the GPU."""
    cases = [
        (FUNCTIONS[name], arrays(shape, dtype))
        for name, shape, dtype in [
            ("layernorm", (200, 256), "float16"),
            ("layernorm", (133, 1031), "float32"),
            ("sums", (150, 520), "float32"),
            ("rmsnorm", (5, 40, 130), "float64"),
        ]
    ]
    graphs = [_core.Graph.from_dict(kf.trace(f, *given).to_dict()) for f, given in cases]
    kernels = HostKernels(graphs, tmp_path)
    assert all("summed_rows<" in k[0].source for k in kernels.kernels)
    for i, (f, given) in enumerate(cases):
        assert_right(kernels.run(i, given), in_float64(f, given), str(given[0].dtype))


@pytest.mark.cuda
@pytest.mark.skipif(_core.cuda_device_count() == 0, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(3000, 128), (5000, 1023), (9000, 4096), (4097, 8192), (700, 32768), (40, 50, 777), (600, 20_002)]
)
def test_on_a_gpu(name, dtype, shape):
    torch = pytest.importorskip("torch")
    given = arrays(shape, "float32")
    tensors = [torch.tensor(x, device="cuda").to(getattr(torch, dtype)) for x in given]
    f = kf.fuse(FUNCTIONS[name])
    got = f(*tensors)
    want = in_float64(FUNCTIONS[name], [t.cpu().double().numpy() for t in tensors])
    assert_right([t.cpu().double().numpy() for t in got], want, dtype)
    again = f(*tensors)
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True)), "sums depend on the order of blocks"
