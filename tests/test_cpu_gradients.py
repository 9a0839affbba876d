"""Gradients of normalisations and losses on the CPU: loops over rows, and sums of columns in the same pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from graph_runs import wide
from kfusion import _core
from kinds import np_dtype

pytestmark = pytest.mark.native

WIDTHS = (1, 7, 16, 64, 127, 128, 129, 255, 515, 1024, 1040, 4096, 4099, 9001)
DTYPES = ("float32", "float64", "float16", "bfloat16")
RELATIVE = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
EPS = 1e-5


def backward(function: Callable[..., Any], *arguments: Any) -> Any:
    *primals, g = arguments
    return kf.vjp(function, *primals)[1](g)


def kernels_of(function: Callable[..., Any], *arguments: Any) -> list[dict[str, Any]]:
    graph = kf.trace(function, *arguments).to_dict()
    for node, x in zip((n for n in graph["nodes"] if n["op"] == "input"), arguments, strict=True):
        if isinstance(x, np.ndarray):
            node["strides"] = [s // x.itemsize for s in x.strides]
    return list(_core.testing.lower(_core.Graph.from_dict(graph), kf.device("cpu").to_dict())["kernels"])


def exact_layernorm(x: Any, w: Any, b: Any, g: Any) -> tuple[Any, ...]:
    centred = x - x.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS)
    y, given = centred * scale, g * w
    dx = scale * (given - given.mean(-1, keepdims=True) - y * (given * y).mean(-1, keepdims=True))
    return dx, (g * y).sum(0), g.sum(0)


def exact_relu_layernorm(x: Any, w: Any, b: Any, g: Any) -> tuple[Any, ...]:
    dx, dw, db = exact_layernorm(np.maximum(x, 0), w, b, g)
    return np.where(x <= 0, 0, dx), dw, db  # of NaN, NaN


def exact_plain_layernorm(x: Any, w: Any, b: Any, g: Any) -> tuple[Any, ...]:
    return exact_layernorm(x, np.ones_like(w), b, g)[:1]


def exact_rmsnorm(x: Any, w: Any, b: Any, g: Any) -> tuple[Any, ...]:
    scale = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)
    y, given = x * scale, g * w
    return scale * (given - y * (given * y).mean(-1, keepdims=True)), (g * y).sum(0)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def exact_softmax(x: Any, w: Any, b: Any, g: Any) -> tuple[Any, ...]:
    y = softmax(x)
    return (y * (g - (y * g).sum(-1, keepdims=True)),)


def exact_log_softmax(x: Any, w: Any, b: Any, g: Any) -> tuple[Any, ...]:
    return (g - softmax(x) * g.sum(-1, keepdims=True),)


def of_relu_layernorm(x: Any, w: Any, b: Any, g: Any) -> Any:
    return backward(lambda x, w, b: kf.layernorm(kf.relu(x), w, b, eps=EPS), x, w, b, g)


# By name: the gradients, and what they are.
GRADIENTS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "layernorm": (lambda x, w, b, g: backward(lambda x, w, b: kf.layernorm(x, w, b, eps=EPS), x, w, b, g),
                  exact_layernorm),
    "plain layernorm": (lambda x, w, b, g: backward(lambda x: kf.layernorm(x, eps=EPS), x, g),
                        exact_plain_layernorm),
    "relu and layernorm": (of_relu_layernorm, exact_relu_layernorm),
    "rmsnorm": (lambda x, w, b, g: backward(lambda x, w: kf.rmsnorm(x, w, eps=EPS), x, w, g), exact_rmsnorm),
    "softmax": (lambda x, w, b, g: backward(kf.softmax, x, g), exact_softmax),
    "log_softmax": (lambda x, w, b, g: backward(kf.log_softmax, x, g), exact_log_softmax),
}  # fmt: skip


def arrays(shape: tuple[int, int], dtype: str, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = (shape, shape[-1:], shape[-1:], shape)
    return [rng.standard_normal(s).astype(np_dtype(dtype)) for s in shapes]


def computed(name: str, given: list[np.ndarray]) -> list[np.ndarray]:
    made = kf.fuse(GRADIENTS[name][0])(*given)
    return [np.asarray(x) for x in (made if isinstance(made, tuple) else (made,))]


def largest_term(name: str, x: Any, w: Any, b: Any, g: Any) -> float:
    """What dx of a norm is the difference of: |g w| over the root of a row's mean square, which may be tiny."""
    if "norm" not in name:
        return 0.0
    x = np.maximum(x, 0) if "relu" in name else x
    x = x if name == "rmsnorm" else x - x.mean(-1, keepdims=True)
    return float(np.nanmax(np.abs(g * w).max(-1) / np.sqrt((x**2).mean(-1) + EPS)))


def assert_right(name: str, given: list[np.ndarray], dtype: str) -> None:
    with np.errstate(all="ignore"):
        exact = GRADIENTS[name][1](*[wide(x) for x in given])
        term = largest_term(name, *[wide(x) for x in given])
    for got, want in zip(computed(name, given), exact, strict=True):
        assert got.dtype == np_dtype(dtype)
        numbers = np.isfinite(want)
        np.testing.assert_array_equal(np.isfinite(wide(got)), numbers)
        scale = max(1.0, term, np.abs(want[numbers]).max(initial=0))
        np.testing.assert_allclose(wide(got)[numbers], want[numbers], rtol=0, atol=RELATIVE[dtype] * scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GRADIENTS)
def test_widths(isa: str, name: str, dtype: str, seed: int) -> None:
    for n in WIDTHS:
        assert_right(name, arrays((70 if n < 2000 else 65, n), dtype, seed % 1000), dtype)


@pytest.mark.parametrize("name", GRADIENTS)
def test_strange_numbers_stay_in_their_rows(isa: str, name: str) -> None:
    x, w, b, g = arrays((96, 300), "float32")
    x[3, 17], x[40, 299], g[70, 0] = np.nan, np.inf, np.nan
    assert_right(name, [x, w, b, g], "float32")


@pytest.mark.parametrize("name", GRADIENTS)
def test_layouts(isa: str, name: str) -> None:
    x, w, b, g = arrays((80, 257), "float32")
    assert_right(name, [x.T.copy().T, w[::-1], b, g[:, ::-1]], "float32")
    assert_right(name, [x[::2], w, b, np.broadcast_to(g[:1], (40, 257))], "float32")


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_give_the_same_bits(threads: Any, name: str, dtype: str) -> None:
    given = arrays((2100, 516), dtype)
    threads(1)
    want = computed(name, given)
    for count in (2, 3, 5):
        threads(count)
        for got, expected in zip(computed(name, given), want, strict=True):
            assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", GRADIENTS)
def test_past_the_caches(isa: str, name: str) -> None:
    for n in (2048, 2047):
        assert_right(name, arrays((4100, n), "float32"), "float32")


def test_sums_that_floats_cannot_hold(isa: str) -> None:
    x, w, _, g = arrays((64, 512), "float32")
    w[:] = 1
    g[:] = np.where(np.arange(512) // 64 % 2, -3e38, 3e38)
    got = kf.fuse(lambda x, g, w: ((x * (g * w)).sum(-1), kf.softmax(x)))(np.ones_like(x), g, w)[0]
    np.testing.assert_array_equal(got, 0)


@pytest.mark.parametrize("rows", [64, 95, 8192, 10_001])
@pytest.mark.parametrize("n", [128, 333, 5000])
def test_sums_of_columns_are_in_the_pass_over_rows(isa: str, rows: int, n: int) -> None:
    if rows * n > 6e6:
        rows = 1000
    shapes = ((rows, n), (n,), (n,), (rows, n))
    kernels = kernels_of(GRADIENTS["layernorm"][0], *[kf.Spec(s) for s in shapes])
    assert [len([s for s in k["stores"] if s["parts"]]) for k in kernels] == [2, 0]
    assert_right("layernorm", arrays((rows, n), "float32"), "float32")


def beside_rows(x: Any, a: Any) -> Any:
    y = np.minimum(x, a)
    return y.sum(tuple(range(x.ndim - 1)), keepdims=True), y, y.mean(-1, keepdims=True)


def moved(x: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """The array, with its axes in this order in memory."""
    return np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "order"),
    [((130, 520), (0, 1)), ((130, 520), (1, 0)), ((131, 4100), (1, 0)), ((3, 40, 200), (2, 0, 1)),
     ((3, 40, 200), (1, 2, 0)), ((5, 30, 129), (2, 1, 0))],
)  # fmt: skip
def test_sums_of_columns_however_arrays_lie(
    isa: str, threads: Any, dtype: str, shape: tuple[int, ...], order: tuple[int, ...]
) -> None:
    """A kernel sums what it stores: the result lies as the input does."""
    values = np.float32([-0.5, 1.125, -0.5, -0.125, 0.375, 0.125, 1.125])
    x = moved(np.resize(values, shape).astype(np_dtype(dtype)), order)
    exact = beside_rows(wide(x), 0.875)
    for count in (1, 2, 5):
        threads(count)
        for got, want in zip(kf.fuse(beside_rows)(x, np.float32(0.875)), exact, strict=True):
            np.testing.assert_allclose(wide(got), want, rtol=RELATIVE[dtype], atol=1e-6)


def of_rows_and_columns(x: Any, y: Any) -> tuple[Any, Any]:
    return (x * y).sum(0), x * y - x.mean(1, keepdims=True)


def test_kernels_with_sums_of_columns_go_by_rows() -> None:
    x = np.zeros((130, 520), np.float32)
    rows, totals = kernels_of(of_rows_and_columns, x, x)
    assert sorted(s["parts"] for s in rows["stores"]) == [0, 4]
    assert (rows["kind"], rows["kept"], rows["reduced"]) == ("rows", [130], [520])
    assert totals["kind"] == "columns"


def test_arrays_that_lie_across_have_no_sums_of_columns_in_that_pass() -> None:
    x, y = np.zeros((130, 520), np.float32), moved(np.zeros((130, 520), np.float32), (1, 0))
    for given in ((y, y), (x, y)):
        assert all(s["parts"] == 0 for k in kernels_of(of_rows_and_columns, *given) for s in k["stores"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("n", [5, 100, 1000, 5001])
def test_cross_entropy(isa: str, dtype: str, n: int, seed: int) -> None:
    x, *_ = arrays((75, n), dtype, seed % 1000)
    target = np.random.default_rng(seed).integers(0, n, 75)
    target[[0, 1, 2]] = 0, n - 1, -100
    got = kf.fuse(kf.grad(lambda x: kf.cross_entropy(x, target, ignore_index=-100)))(x)
    y = softmax(wide(x))
    want = np.where((target == -100)[:, None], 0, y - np.eye(n)[np.maximum(target, 0)]) / 74
    np.testing.assert_allclose(wide(got), want, rtol=0, atol=RELATIVE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_beside_a_map(isa: str, dtype: str) -> None:
    """A bias has the sums of the columns of what is stored."""
    for shape in ((200, 2048), (64, 5000), (3000, 70)):
        x, b, _, g = arrays(shape, dtype)
        dx, db = kf.fuse(lambda x, b, g: backward(lambda x, b: kf.gelu(x + b, approximate="tanh"), x, b, g))(x, b, g)
        want = wide(dx).sum(0)
        atol = RELATIVE[dtype] * max(1, np.abs(want).max())
        np.testing.assert_allclose(wide(db), want, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3000, 7), (2000, 300), (700, 1031), (3, 40_000), (20, 3, 5000)])
def test_rows_that_come_again(isa: str, threads: Any, dtype: str, shape: tuple[int, ...]) -> None:
    """A bias beside all elements: stored, and reduced to one number by several threads."""
    rng = np.random.default_rng(0)
    x, b = (rng.standard_normal(s).astype(np_dtype(dtype)) for s in (shape, shape[-1:]))
    exact = wide(x) * wide(b) + wide(b)
    for count in (1, 2, 3):
        threads(count)
        y = np.asarray(kf.fuse(lambda x, b: x * b + b)(x, b))
        np.testing.assert_allclose(wide(y), exact, rtol=0, atol=2 * RELATIVE[dtype] * np.abs(exact).max())
        total = np.asarray(kf.fuse(lambda x, b: kf.square(x * b + b).sum(dtype="float64"))(x, b))
        np.testing.assert_allclose(total, np.square(exact).sum(), rtol=RELATIVE[dtype])


@pytest.mark.parametrize("columns", [1, 3, 5, 8, 31, 33, 64, 100, 250, 256, 257])
def test_rows_of_few_columns(isa: str, threads: Any, columns: int) -> None:
    """They lie side by side where their number has factors of two."""
    for rows in (64, 1000, 2**13, 2**13 + 2, 2**15 + 4):
        x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
        w = np.arange(columns, dtype=np.float32)
        for count in (1, 2):
            threads(count)
            got = kf.fuse(lambda x, w: ((x * w).sum(0), x.max(0), x.mean(0), kf.var(x, 0)))(x, w)
            want = (wide(x) * w).sum(0), x.max(0), wide(x).mean(0), wide(x).var(0)
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * max(1, np.abs(b).max()))


def test_values_that_sweeps_share(isa: str) -> None:
    """What both sweeps make of a long function is kept, in groups of rows, in chunks, and as a sum's term."""
    for dtype in ("float32", "bfloat16", "float64"):
        for shape in ((70, 3), (70, 257), (65, 4096), (33, 9001)):
            x, w, _, g = arrays(shape, dtype)

            def shared(x: Any, w: Any, g: Any) -> Any:
                y = kf.exp(kf.tanh(x)) * w + 1
                z = y * g
                return y - y.mean(-1, keepdims=True), z * z.sum(-1, keepdims=True), z.sum(0)

            y = np.exp(np.tanh(wide(x))) * wide(w) + 1
            z = y * wide(g)
            exact = y - y.mean(-1, keepdims=True), z * z.sum(-1, keepdims=True), z.sum(0)
            for got, want in zip(kf.fuse(shared)(x, w, g), exact, strict=True):
                atol = 2 * RELATIVE[dtype] * max(1, np.abs(want).max())
                np.testing.assert_allclose(wide(np.asarray(got)), want, rtol=0, atol=atol)
