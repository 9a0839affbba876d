"""Sums of columns beside what is computed of rows: one kernel that reads all once, and a small one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_loops
import kfusion as kf
from host_cuda import HAVE_COMPILER, HostKernels
from kfusion import _core
from kinds import np_dtype

pytestmark = pytest.mark.native

GPU = {**kf.device("H200").to_dict(), "units": 2, "cache_bytes": 1 << 16, "launch_us": 0.0}  # few rows are many


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


def last(x: Any, w: Any, b: Any, g: Any) -> Any:
    """The last sweep reduces, too, and reads what the others do not."""
    y = kf.softmax(x * w)
    z = y * g - b
    return y, z.sum(0), kf.max(z, -1), x.sum(0)


FUNCTIONS = {"layernorm": of_layernorm, "rmsnorm": of_rmsnorm, "sums": sums, "last": last}
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
    return _core.testing.lower(_core.Graph.from_dict(graph.to_dict()), kf.device(device).to_dict())["kernels"]


def parts_of(kernel: dict[str, Any]) -> list[int]:
    return [s["parts"] for s in kernel["stores"] if s["parts"]]


@pytest.mark.parametrize("shape", [(8192, 4096), (16384, 8192), (4, 2048, 1024), (10_000, 1023), (4096, 32768)])
def test_plans_read_rows_once(shape):
    specs = [kf.Spec(s, "bfloat16") for s in (shape, shape[-1:], shape[-1:], shape)]
    rows, totals = kernels_of(kf.trace(of_layernorm, *specs), "H200")
    assert len(parts_of(rows)) == 2
    assert not parts_of(totals)
    matrix = 2 * np.prod(shape)
    moved = kf.plan(of_layernorm, *specs, device="H200").fused.issued
    assert 3 * matrix <= moved.read + moved.written <= 3.6 * matrix


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.sum(0), (4096, 4096)),  # no rows
        (lambda x: (kf.softmax(x), x.sum(0)), (20, 4096)),  # few
        (lambda x: (kf.softmax(x), x.sum(0)), (2**16, 8)),  # short
        (lambda x: (kf.softmax(x), x.sum(0)), (4096, 32768)),  # rows of clusters
        (lambda x: (kf.softmax(x, axis=0), x.sum(0)), (512, 512)),  # of columns too
        (lambda x: (kf.softmax(x), x.max(0)), (4096, 4096)),
        (lambda x: (kf.softmax(x), x.sum()), (4096, 4096)),
    ],
)
def test_where_there_are_none(function, shape):
    assert not any(parts_of(k) for k in kernels_of(kf.trace(function, kf.Spec(shape)), "H200"))


def graph_of(function: Callable[..., Any], given: list[np.ndarray]) -> Any:
    graph = kf.trace(function, *given).to_dict()
    for node, x in zip((n for n in graph["nodes"] if n["op"] == "input"), given, strict=True):
        node["strides"] = [s // x.itemsize for s in x.strides]
    return _core.Graph.from_dict(graph)


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "dense": lambda x: x,
    "strided rows": lambda x: np.repeat(x, 2, 0).reshape(-1)[: 2 * x.size].reshape(-1, x.shape[1])[::2],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "transposed": lambda x: x.T.copy().T,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loops(name, layout):
    """What kernels promise, element by element."""
    x, w, b, g = arrays((1200, 130), "float32")
    given = [LAYOUTS[layout](x), w, b, LAYOUTS[layout](g)]
    lowered = _core.testing.lower(graph_of(FUNCTIONS[name], given), GPU)
    assert layout != "dense" or any(parts_of(k) for k in lowered["kernels"])
    assert_right(kernel_loops.run(lowered, given), in_float64(FUNCTIONS[name], given), "float32")


@pytest.mark.slow
@pytest.mark.skipif(not HAVE_COMPILER, reason="needs g++")
def test_cuda_text(tmp_path):
    """What generated kernels compute, on a host that plays the GPU."""
    run_on_host(
        tmp_path,
        "summed_rows<",
        ("layernorm", (1100, 256), "float16"),
        ("layernorm", (333, 1031), "float32"),
        ("sums", (550, 480), "float32"),
        ("rmsnorm", (5, 200, 130), "float64"),
    )


@pytest.mark.slow
@pytest.mark.skipif(not HAVE_COMPILER, reason="needs g++")
def test_cuda_text_of_bulk_copies(tmp_path):
    """Teams of warps that stages feed, several in a block, and a row in the blocks of a cluster."""
    run_on_host(
        tmp_path,
        "summed_ring_rows<",
        ("layernorm", (77, 2056), "float16"),
        ("sums", (67, 1032), "float32"),
        ("rmsnorm", (65, 4096), "float32"),
        ("last", (66, 2048), "float32"),
        ("layernorm", (33, 20_000), "float16"),
        clusters=True,
        device={**GPU, "units": 4},
    )


def run_on_host(folder: Path, skeleton: str, *cases: tuple[str, tuple[int, ...], str], **options: Any) -> None:
    given = [arrays(shape, dtype) for _, shape, dtype in cases]
    graphs = [graph_of(FUNCTIONS[c[0]], x) for c, x in zip(cases, given, strict=True)]
    kernels = HostKernels(graphs, folder, **{"device": GPU, "multiprocessors": 2, **options})
    assert all(skeleton in k[0].source for k in kernels.kernels)
    for i, (name, _, dtype) in enumerate(cases):
        assert_right(kernels.run(i, given[i]), in_float64(FUNCTIONS[name], given[i]), dtype)


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


@pytest.mark.cuda
@pytest.mark.skipif(_core.cuda_device_count() == 0, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("width", [512, 4096, 32768])
def test_totals_wait_for_the_rows(width):
    """They start before the rows' kernel has ended: call after call, on two streams, and in a graph."""
    torch = pytest.importorskip("torch")
    f = kf.fuse(of_layernorm)
    sets = [[torch.tensor(a, device="cuda").bfloat16() for a in arrays((1500, width), "float32", k)] for k in range(3)]
    want = []
    for given in sets:
        want.append(f(*given))
        torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    got = []
    for call in range(24):
        with torch.cuda.stream(streams[call % 2]):
            got.append((call % 3, f(*sets[call % 3])))
    torch.cuda.synchronize()
    graph, given = torch.cuda.CUDAGraph(), [t.clone() for t in sets[0]]
    with torch.cuda.graph(graph):
        results = f(*given)
    for k in (1, 2, 0):
        for to, t in zip(given, sets[k], strict=True):
            to.copy_(t)
        graph.replay()
        got.append((k, [r.clone() for r in results]))
    for k, ours in got:
        assert all(torch.equal(a, b) for a, b in zip(ours, want[k], strict=True)), k


@pytest.mark.cuda
@pytest.mark.skipif(_core.cuda_device_count() == 0, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("width", [2048, 8192, 32768])
def test_what_is_not_finite_stays_in_its_row_and_column(width):
    torch = pytest.importorskip("torch")
    x, w, b, g = (torch.tensor(a, device="cuda").bfloat16() for a in arrays((1111, width), "float32"))
    f = kf.fuse(of_layernorm)
    plain = f(x, w, b, g)
    g[7, 3], g[1110, width - 1] = float("nan"), float("inf")
    dx, dw, db = f(x, w, b, g)
    rows = torch.isfinite(dx).all(1)
    assert sorted((~rows).nonzero().flatten().tolist()) == [7, 1110]
    assert torch.equal(dx[rows], plain[0][rows])
    for got, want in ((dw, plain[1]), (db, plain[2])):
        columns = torch.isfinite(got)
        assert (~columns).nonzero().flatten().tolist() == [3, width - 1]
        assert torch.equal(got[columns], want[columns])
