"""Sums of columns beside what is computed of rows: one kernel that reads all once, and a small one."""

import itertools

import numpy as np
import pytest

import kernel_loops
import kfusion as kf
from kfusion import _core
from kinds import np_dtype
from sweeps import sweep

pytestmark = pytest.mark.native

GPU = {**kf.device("H200").to_dict(), "units": 2, "cache_bytes": 1 << 16, "launch_us": 0.0}  # few rows are many


def backward(function, *arguments):
    *primals, g = arguments
    return kf.vjp(function, *primals)[1](g)


def of_layernorm(x, w, b, g):
    return backward(kf.layernorm, x, w, b, g)


def of_rmsnorm(x, w, b, g):
    return *backward(kf.rmsnorm, x, w, g), b


def sums(x, w, b, g):
    """A softmax stored, and sums of what sweeps have at different times."""
    y = kf.softmax(x * w)
    return y, x.sum(0), (y * g).sum(0), (x - b).sum(0, keepdims=True)


def last(x, w, b, g):
    """The last sweep reduces, too, and reads what the others do not."""
    y = kf.softmax(x * w)
    z = y * g - b
    return y, z.sum(0), kf.max(z, -1), x.sum(0)


FUNCTIONS = {"layernorm": of_layernorm, "rmsnorm": of_rmsnorm, "sums": sums, "last": last}
DTYPES = ("float32", "float64", "float16", "bfloat16")


def arrays(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (shape, shape[-1:], shape[-1:], shape)
    return [rng.standard_normal(s).astype(np_dtype(dtype)) for s in shapes]


def in_float64(function, given):
    """One kernel per call: no partial sums."""
    return list(kf.fuse(function).unfused(*[x.astype(np.float64) for x in given]))


def assert_right(got, want, dtype, *, finite_alone=False):
    """`finite_alone`: what is not finite need only be where it is."""
    relative = {"float64": 1e-13, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    for g, v in zip(got, want, strict=True):
        assert g.shape == v.shape
        g, finite = np.asarray(g, np.float64), np.isfinite(v)
        scale = max(1.0, np.abs(v).max(initial=0, where=finite))
        if finite_alone:
            np.testing.assert_array_equal(np.isfinite(g), finite)
            g, v = g[finite], v[finite]
        np.testing.assert_allclose(g, v, atol=relative * scale)


def kernels_of(graph, device):
    return _core.testing.lower(_core.Graph.from_dict(graph.to_dict()), kf.device(device).to_dict())["kernels"]


def parts_of(kernel):
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


def test_where_there_are_none():
    def check(_, function, shape):
        assert not any(parts_of(k) for k in kernels_of(kf.trace(function, kf.Spec(shape)), "H200"))

    rows = [
        ("no rows", lambda x: x.sum(0), (4096, 4096)),
        ("few", lambda x: (kf.softmax(x), x.sum(0)), (20, 4096)),
        ("short", lambda x: (kf.softmax(x), x.sum(0)), (2**16, 8)),
        ("of clusters", lambda x: (kf.softmax(x), x.sum(0)), (4096, 32768)),
        ("of columns, too", lambda x: (kf.softmax(x, axis=0), x.sum(0)), (512, 512)),
        ("the largest", lambda x: (kf.softmax(x), x.max(0)), (4096, 4096)),
        ("of everything", lambda x: (kf.softmax(x), x.sum()), (4096, 4096)),
    ]
    sweep(check, rows)


def graph_of(function, given):
    graph = kf.trace(function, *given).to_dict()
    for node, x in zip((n for n in graph["nodes"] if n["op"] == "input"), given, strict=True):
        node["strides"] = [s // x.itemsize for s in x.strides]
    return _core.Graph.from_dict(graph)


LAYOUTS = {
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


def test_on_the_cpu(isa, threads, some, rng):
    """Rows of any width and number, with odd numbers in some; the same bits on any number of threads."""

    def check(name, shape, dtype):
        given = arrays(shape, dtype, int(rng.integers(99)))
        for dirty in (False, True):
            if dirty:
                given[0][3, 7], given[3][7, 0] = np.nan, np.inf
            results = []
            for n in (1, 2, 5):
                threads(n)
                results.append([np.asarray(r) for r in kf.fuse(FUNCTIONS[name])(*given)])
            with np.errstate(all="ignore"):
                assert_right(results[0], in_float64(FUNCTIONS[name], given), dtype, finite_alone=dirty)
            for other in results[1:]:
                assert [r.tobytes() for r in other] == [r.tobytes() for r in results[0]]

    shapes = [(64, 128), (95, 333), (70, 515), (1000, 1040), (2100, 516), (65, 4099), (64, 9001), (10_001, 129)]
    sweep(check, some(itertools.product(FUNCTIONS, shapes, DTYPES), 12))


def of_rows_and_columns(x, y):
    return (x * y).sum(0), x * y - x.mean(1, keepdims=True)


def test_kernels_on_the_cpu_go_by_rows():
    """Not where an array lies across."""
    x = np.zeros((130, 520), np.float32)
    y = np.asfortranarray(x)
    rows, totals = _core.testing.lower(graph_of(of_rows_and_columns, [x, x]), kf.device("cpu").to_dict())["kernels"]
    assert parts_of(rows) == [4]
    assert (rows["kind"], rows["kept"], rows["reduced"], totals["kind"]) == ("rows", [130], [520], "columns")
    for given in ([y, y], [x, y]):
        kernels = _core.testing.lower(graph_of(of_rows_and_columns, given), kf.device("cpu").to_dict())["kernels"]
        assert not any(map(parts_of, kernels))
    for shape in ((64, 333), (1000, 5000), (10_001, 128)):
        specs = [kf.Spec(s) for s in (shape, shape[-1:], shape[-1:], shape)]
        assert [len(parts_of(k)) for k in kernels_of(kf.trace(of_layernorm, *specs), "cpu")] == [2, 0]


@pytest.mark.cuda
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
