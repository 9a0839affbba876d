"""Linear + cross entropy with gradients by chunks of rows, against torch's in float64."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from kfusion._ops import logit_chunks
from kfusion._tracing.trace import trace
from kinds import HAVE_GPU, np_dtype
from reference import float64
from sweeps import refusals, sweep

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if HAVE_GPU and torch.cuda.is_available() else [])]
ERROR = {"float64": 1e-13, "float32": 5e-6, "float16": 1e-3, "bfloat16": 1e-2}  # of the norm


@pytest.fixture(autouse=True)
def _seed(seed: int) -> None:
    torch.manual_seed(seed)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """What each pass over the rows was asked for."""
    seen: list[set[int]] = []
    run = logit_chunks.Chunks.run

    def noting(self: Any, arrays: Any, g: Any, wanted: dict[int, Any]) -> Any:
        seen.append(set(wanted))
        return run(self, arrays, g, wanted)

    monkeypatch.setattr(logit_chunks.Chunks, "run", noting)
    return seen


def drawn(n: int, k: int, v: int, dtype: str = "float64", device: str = "cpu", *, bias: bool = True) -> list[Any]:
    """x, weight, targets and a bias or None."""
    x = torch.randn(n, k, dtype=torch.float64)
    w = torch.randn(v, k, dtype=torch.float64) * max(1, k) ** -0.5
    b = torch.randn(v, dtype=torch.float64) if bias else None
    kind = getattr(torch, dtype)
    x, w, b = (a if a is None else a.to(kind).to(device) for a in (x, w, b))
    return [x, w, torch.randint(v, (n,), device=device), b]


def leaves(*arrays: Any) -> list[Any]:
    return [a if a is None else a.detach().clone().requires_grad_() for a in arrays]


def oracle(
    x: Any,
    w: Any,
    t: Any,
    b: Any,
    g: Any = None,
    *,
    ignore_index: int | None = None,
    class_weight: Any = None,
    **options: Any,
) -> tuple[Any, list[Any]]:
    """The loss and gradients in float64."""
    if class_weight is not None:
        options["weight"] = class_weight.double().cpu()
    x, w, b = leaves(*(a if a is None else a.double().cpu() for a in (x, w, b)))
    ignored = -100 if ignore_index is None else ignore_index
    loss = F.cross_entropy(F.linear(x, w, b), t.cpu(), ignore_index=ignored, **options)
    loss.backward(torch.ones_like(loss) if g is None else g.double().cpu())
    return loss.detach(), [a.grad for a in (x, w, b) if a is not None]


def ours(x: Any, w: Any, t: Any, b: Any, g: Any = None, **options: Any) -> tuple[Any, list[Any]]:
    x, w, b = leaves(x, w, b)
    loss = kf.fused_linear_cross_entropy(x, w, t, b, **options)
    loss.backward(torch.ones_like(loss) if g is None else g)
    return loss.detach(), [a.grad for a in (x, w, b) if a is not None]


def assert_close(got: Any, want: Any, dtype: str) -> None:
    """In the norm, and NaN where the other one has it."""
    got, want = float64(got), float64(want)
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    got, want = got[finite], want[finite]
    assert np.linalg.norm(got - want) <= ERROR[dtype] * max(np.linalg.norm(want), 1e-3)


def assert_same(got: tuple[Any, list[Any]], want: tuple[Any, list[Any]], dtype: str) -> None:
    assert_close(got[0], want[0], dtype)
    for g, w in zip(got[1], want[1], strict=True):
        assert str(g.dtype) == f"torch.{dtype}"
        assert_close(g, w, dtype)


# ---- values ----


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", list(ERROR))
def test_gradients(dtype: str, reduction: str, device: str, some: Any) -> None:
    cases = [(True, 3, 0.1), (False, None, 0.0)]  # each has kernels of its own, which take long to compile on a GPU
    if device == "cpu":
        cases = list(itertools.product([True, False], [None, 3], [0.0, 0.1]))
    for (bias, ignore_index, label_smoothing), is_weighed in some(itertools.product(cases, [False, True]), 5):
        x, w, t, b = drawn(37, 24, 71, dtype, device, bias=bias)
        if ignore_index is not None:
            t[::3] = ignore_index
        options: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
        options |= {"reduction": reduction, "class_weight": torch.rand(71).to(x) if is_weighed else None}
        g = torch.randn(37 if reduction == "none" else (), device=device).to(x.dtype)
        want = oracle(x, w, t, b, g, **options)
        assert_same(ours(x, w, t, b, g, chunk_rows=10, **options), want, dtype)
        with torch.no_grad():
            assert_close(kf.linear_cross_entropy(x, w, t, b, **options), want[0], dtype)


SHAPES = [(1, 1, 1), (1, 5, 7), (2, 3, 1), (9, 3, 5), (10, 3, 5), (11, 3, 5), (21, 1, 33), (20, 64, 257), (31, 7, 1023)]


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_shapes(dtype: str, device: str, some: Any) -> None:
    def check(shape: tuple[int, ...], chunk_rows: int | None, reduction: str) -> None:
        args = drawn(*shape, dtype, device)
        want = oracle(*args, reduction=reduction)
        assert_same(ours(*args, reduction=reduction, chunk_rows=chunk_rows), want, dtype)

    shapes = SHAPES if device == "cpu" else [s for s in SHAPES if s[-1] in (1, 7, 257)]  # which compile long
    sweep(check, some(itertools.product(shapes, [1, 10, None], ["mean", "none"]), 16))
    sweep(check, itertools.product([(0, 4, 6), (0, 0, 6), (3, 0, 6)], [None], ["mean", "sum", "none"]))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_rows_of_which_none_counts(dtype: str, device: str) -> None:
    """Where all rows are ignored gradients are 0, where all weigh nothing they are NaN, as torch's."""

    def check(weights: Any, target: int, reduction: str) -> None:
        x, w, t, b = drawn(7, 4, 6, dtype, device)
        t[:] = target
        options = {"ignore_index": 2, "class_weight": None if weights is None else weights.to(x)}
        g = torch.ones(7 if reduction == "none" else ()).to(x)
        want = oracle(x, w, t, b, g, reduction=reduction, **options)
        assert_same(ours(x, w, t, b, g, chunk_rows=3, reduction=reduction, **options), want, dtype)

    cases = (None, 2), (torch.rand(6), 2), (torch.zeros(6), 5)
    sweep(check, [(*case, reduction) for case in cases for reduction in ("mean", "sum", "none")])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers(value: float, device: str) -> None:
    for where, reduction in itertools.product(["x", "weight", "bias"], ["sum", "none"]):
        x, w, t, b = drawn(9, 5, 12, device=device)
        x, w = x.abs() + 0.1, w.abs() + 0.1  # so that infinite products have one sign
        t[0], t[1], t[5] = 2, 3, -100
        {"x": x[5], "weight": w[2], "bias": b[2:3]}[where][0] = value
        options = {"reduction": reduction, "ignore_index": -100}
        assert_same(ours(x, w, t, b, chunk_rows=4, **options), oracle(x, w, t, b, **options), "float64")


def test_a_target_that_is_no_class(device: str) -> None:
    x, w, t, b = drawn(5, 3, 4, device=device)
    g = torch.ones_like(x[:, 0])
    for options in ({}, {"class_weight": torch.rand(4).to(x), "label_smoothing": 0.3}):
        t[2] = 0
        want = oracle(x, w, t, b, g, reduction="none", **options)[0]
        t[2], want[2] = 4, float("nan")
        loss, (dx, *_) = ours(x, w, t, b, g, reduction="none", chunk_rows=2, **options)
        assert_close(loss, want, "float64")
        assert (dx[2] == 0).all()
    assert ours(x, w, t, b)[0].isnan()


def test_large_logits(device: str) -> None:
    x, w, t, b = drawn(8, 4, 9, device=device)
    assert_same(ours(x * 1e4, w, t, b, chunk_rows=3), oracle(x * 1e4, w, t, b), "float64")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_many_chunks_are_summed_in_float32(dtype: str, device: str) -> None:
    x, w, t, b = drawn(2048, 16, 40, dtype, device)
    x, t = x.abs() + 1, torch.zeros_like(t)  # what is added has one sign
    b[0] += 5  # and is no power of two
    want = oracle(x, w, t, b, reduction="sum")
    got = ours(x, w, t, b, reduction="sum", chunk_rows=8)
    for g, v in zip(got[1][1:], want[1][1:], strict=True):
        assert (g.double().cpu() - v).norm() <= 0.6 * torch.finfo(g.dtype).eps * v.norm()  # 0.5 is one rounding


def test_gradients_of_float16_that_are_small_by_themselves(device: str) -> None:
    """GradScaler has them: the loss's gradient makes up for a mean over many rows."""
    x, w, t, b = drawn(4096, 8, 64, "float16", device)
    scale = torch.tensor(2.0**13, device=device).half()
    assert_same(ours(x, w, t, b, scale, chunk_rows=1000), oracle(x, w, t, b, scale), "float16")


def test_leading_axes_and_strides(device: str) -> None:
    x, w, t, b = drawn(24, 5, 11, device=device)
    for reduction, g in (("mean", None), ("none", torch.randn(24, dtype=x.dtype, device=device))):
        given = [x.reshape(2, 3, 4, 5), w, t.reshape(2, 3, 4), b, None if g is None else g.reshape(2, 3, 4)]
        loss, (dx, dw, db) = ours(*given, reduction=reduction, chunk_rows=7)
        found = loss.reshape(24) if loss.ndim else loss, [dx.reshape(24, 5), dw, db]
        assert_same(found, oracle(x, w, t, b, g, reduction=reduction), "float64")
    want = oracle(x, w, t, b)
    turned = x.t().contiguous().t(), w.t().contiguous().t(), torch.stack([t, t], 1)[:, 0], b
    assert_same(ours(*turned, chunk_rows=7), want, "float64")
    wide = torch.zeros(24, 10, dtype=x.dtype, device=device)[:, ::2].copy_(x)
    assert_same(ours(wide, w, t.int(), b, chunk_rows=7), want, "float64")
    loss, (dx, _, _) = ours(x[0], w, t[0], b)
    assert_same((loss, [dx]), (lambda y: (y[0], [y[1][0][0]]))(oracle(x[:1], w, t[:1], b)), "float64")


def test_other_sizes_and_numbers_need_no_other_trace() -> None:
    for n, k, v in [(10, 4, 6), (13, 4, 6), (29, 5, 8), (7, 3, 11), (1, 4, 6)]:
        args = drawn(n, k, v)
        assert_same(ours(*args), oracle(*args), "float64")
        assert_same(ours(*args, ignore_index=-100), oracle(*args), "float64")
    x, w, t, b = drawn(40, 8, 6)
    f = kf.value_and_grad(lambda x, n, s: kf.linear_cross_entropy(x, w, t, b, ignore_index=n, label_smoothing=s))
    for ignore_index, label_smoothing in [(3, 0.1), (5, 0.1), (5, 0.2), (2, 0.0), (-100, 0.0)]:
        options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
        want = oracle(x, w, t, b, **options)
        assert_same(ours(x, w, t, b, chunk_rows=ignore_index + 200, **options), want, "float64")
        loss, dx = f(x, ignore_index, label_smoothing)
        assert_close(loss, want[0], "float64")
        assert_close(dx, want[1][0], "float64")


# ---- torch's autograd ----


def test_only_what_is_wanted_is_computed(passes: list[set[int]]) -> None:
    x, w, t, b = drawn(10, 4, 6)
    for asked, reduction in itertools.product(itertools.product([False, True], repeat=3), ("mean", "none")):
        given = [a.clone().requires_grad_(is_asked) for a, is_asked in zip((x, w, b), asked, strict=True)]
        loss = kf.fused_linear_cross_entropy(*given[:2], t, given[2], reduction=reduction, chunk_rows=4)
        assert loss.requires_grad == any(asked)
        if any(asked):
            loss.backward(torch.ones_like(loss))
        wanted = {number for number, is_asked in zip((1, 2, 3), asked, strict=True) if is_asked}
        assert passes == ([wanted | ({0} if reduction == "mean" else set())] if any(asked) else [])
        passes.clear()
        _, grads = oracle(x, w, t, b, torch.ones(loss.shape), reduction=reduction)
        for a, want, is_asked in zip(given, grads, asked, strict=True):
            assert (a.grad is not None) == is_asked
            if is_asked:
                assert_close(a.grad, want, "float64")
    with torch.no_grad():  # which takes the kernel
        loss = kf.fused_linear_cross_entropy(x.requires_grad_(), w, t, b)
    assert (loss.requires_grad, passes) == (False, [])
    assert_close(loss, oracle(x, w, t, b)[0], "float64")


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_backward_twice_and_accumulation(reduction: str, passes: list[set[int]]) -> None:
    """What is done to gradients between two backward passes does not show in the second one's."""
    args = drawn(10, 4, 6)
    x, w, b = leaves(args[0], args[1], args[3])
    loss = kf.fused_linear_cross_entropy(x, w, args[2], b, reduction=reduction, chunk_rows=3)
    for retained in (True, True, False):
        g = torch.randn(loss.shape, dtype=loss.dtype)
        for a in (x, w, b):
            a.grad = torch.ones_like(a)
        loss.backward(g, retain_graph=retained)
        for a, want in zip((x, w, b), oracle(*args, g, reduction=reduction)[1], strict=True):
            assert_close(a.grad - 1, want, "float64")
        grads = torch.autograd.grad(loss, (x, w, b), g, retain_graph=True) if retained else ()
        for a in grads:
            a.zero_()
    assert len(passes) == (1 if reduction == "mean" else 5)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_autocast(reduction: str, device: str) -> None:
    x, w, t, b = drawn(20, 16, 33, "float32", device)
    g = torch.randn(20 if reduction == "none" else (), device=device)
    for options in ({}, {"class_weight": torch.rand(33, device=device)}):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss, got = ours(x, w, t, b, g, reduction=reduction, chunk_rows=7, **options)
            plain = kf.linear_cross_entropy(x, w, t, b, reduction=reduction, **options)
        want = oracle(*(a.bfloat16() for a in (x, w)), t, b.bfloat16(), g, reduction=reduction, **options)
        assert loss.dtype == plain.dtype == torch.float32
        for a, v in zip([loss, plain, *got], [want[0], want[0], *want[1]], strict=True):
            assert a.dtype == torch.float32
            assert_close(a, v, "bfloat16")


# ---- gradients that a graph is told ----


def test_gradients_by_a_rule() -> None:
    """Each element of an argument gets what its own element of the result does, that of its row, or the only one."""
    rng = np.random.default_rng(0)
    for of in (
        lambda g, x: g.map("exp", [x]),
        lambda g, x: g.reduce("sum", x, [1], keepdims=True),
        lambda g, x: g.reshape(g.reduce("sum", x, None), ()),
    ):
        g = _core.Graph()
        x, known = g.input("x", (2, 3), "float64"), g.input("known", (2, 3), "float32")
        y = of(g, x)
        g.set_gradients([y], [x], [], [known])
        seed = g.input("seed", g.shape(y), "float64")
        (dx,), calls = g.vjp([y], [seed], [x])
        assert calls == []
        g.set_outputs([("dx", dx)])
        given = [rng.integers(-8, 8, g.shape(n)).astype(g.dtype(n)) for n in (x, known, seed)]
        np.testing.assert_array_equal(_core.run_graph(g, given, "f")[0], given[1] * given[2])
    for arguments, gradients in [([x], [known, known]), ([seed], [known]), ([x, x], [known])]:
        with pytest.raises(ValueError, match="set_gradients: "):
            g.set_gradients([y], arguments, [], gradients)
    with pytest.raises(ValueError, match=r"set_gradients: the result must broadcast"):
        g.set_gradients([x], [seed], [], [seed])


# ---- other arrays ----


@pytest.mark.parametrize("dtype", list(ERROR))
@pytest.mark.parametrize("library", ["numpy", *(["cupy"] if HAVE_GPU else [])])
def test_value_and_grad(library: str, dtype: str) -> None:
    if library == "cupy" and dtype == "bfloat16":
        pytest.skip("CuPy has no products of bfloat16")
    xp = pytest.importorskip(library)
    x, w, t, b = drawn(37, 24, 71)
    c = torch.rand(71).double()
    given = [xp.asarray(a.numpy().astype(np_dtype(dtype))) for a in (x, w, b, c)]
    *exact, c = [torch.from_numpy(float64(a.get() if library == "cupy" else a)) for a in given]
    for reduction, is_weighed in itertools.product(("mean", "sum", "none"), (False, True)):
        options: dict[str, Any] = {"reduction": reduction, "ignore_index": 4}

        def f(x: Any, w: Any, b: Any, c: Any, t: Any) -> Any:
            more = {"class_weight": c} if is_weighed else {}  # noqa: B023
            losses = kf.linear_cross_entropy(x, w, t, b, chunk_rows=10, **options, **more)  # noqa: B023
            return kf.sum(losses * losses) if losses.ndim else losses

        loss, grads = kf.value_and_grad(f, (0, 1, 2))(*given, xp.asarray(t.numpy()))
        options |= {"class_weight": c} if is_weighed else {}
        rows = oracle(*exact[:2], t, exact[2], **options)[0]
        want, wanted = oracle(*exact[:2], t, exact[2], 2 * rows if reduction == "none" else None, **options)
        assert_close(loss.get() if library == "cupy" else loss, (want**2).sum() if want.ndim else want, dtype)
        for a, v in zip(grads, wanted, strict=True):
            assert str(a.dtype) == dtype
            assert_close(a.get() if library == "cupy" else a, v, dtype)


def test_arrays_that_cannot_be_written_to() -> None:
    jax = pytest.importorskip("jax")
    x, w, t, b = (a.numpy() for a in drawn(37, 24, 71))
    f = kf.value_and_grad(lambda x, w, b, t: kf.linear_cross_entropy(x, w, t, b, chunk_rows=10), (0, 1, 2))
    want = f(x, w, b, t)
    with jax.default_device(jax.devices("cpu")[0]):  # on a GPU JAX has no products that work on memory of others
        loss, grads = f(*map(jax.numpy.asarray, (x, w, b, t)))
    for got, exact in zip((loss, *grads), (want[0], *want[1]), strict=True):
        assert isinstance(got, jax.Array)
        assert_close(np.asarray(got), exact, "float64")


# ---- memory ----


def test_no_array_of_a_plan_has_the_logits() -> None:
    n, k, v = 8192, 4096, 128256
    specs = kf.spec((n, k), "bfloat16"), kf.spec((v, k), "bfloat16"), kf.spec((n,), "int64")
    f = kf.value_and_grad(lambda x, w, t: kf.linear_cross_entropy(x, w, t), (0, 1))
    graph = trace(f.__wrapped__, *specs).graph
    sizes = [int(np.prod(graph.shape(node))) for node in range(len(graph))]
    assert max(sizes) == k * v
    assert n * v > max(sizes)
    assert kf.plan(f, *specs, device="H200").fused.peak_intermediate_bytes <= 1.1 * (4 * k * v + 2 * n * k)


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_memory_that_a_call_takes(library: str, reduction: str) -> None:
    """The most that the process has, above what it has for a few rows: of 410 MB of logits no more than some chunks."""
    code = f"""
import resource, sys
import numpy as np, kfusion as kf

def step(n, library, v=50000, k=16):
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((n, k), (v, k)))
    t = rng.integers(0, v, n)
    if library == "torch":
        import torch
        x, w, t = torch.from_numpy(x).requires_grad_(), torch.from_numpy(w).requires_grad_(), torch.from_numpy(t)
        kf.fused_linear_cross_entropy(x, w, t, reduction={reduction!r}, chunk_rows=64).sum().backward()
    else:
        f = lambda x, w: kf.sum(kf.linear_cross_entropy(x, w, t, reduction={reduction!r}, chunk_rows=64))
        kf.value_and_grad(f, (0, 1))(x, w)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

print(step(64, {library!r}), step(2048, {library!r}))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    few, many = map(int, run.stdout.split())
    assert many - few < 100


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")
def test_memory_on_a_gpu() -> None:
    x, w, t, _ = drawn(8192, 1024, 64000, "bfloat16", "cuda", bias=False)
    ours(x, w, t, None)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ours(x, w, t, None, chunk_rows=512)
    most = torch.cuda.max_memory_allocated() - before
    chunk, gradients = 512 * 64000 * 2, 64000 * 1024 * (4 + 2 + 2) + 8192 * 1024 * 6
    assert most < 2.5 * chunk + gradients < 8192 * 64000 * 2


# ---- errors ----

f, X, W, T = kf.linear_cross_entropy, np.ones((5, 3)), np.ones((4, 3)), np.ones(5, np.int64)
NO_GRADIENT = "class_weight has no gradient"
ERRORS: list[tuple[Any, type[Exception], str]] = [
    (
        lambda: f(X, W[:, :2], T),
        ValueError,
        "weight must have shape (classes, k) for x (..., k), got (4, 2)",
    ),
    (lambda: f(X, W, T, X[0]), ValueError, "bias must have shape (4,), got (3,)"),
    (lambda: f(X, W, T[:4]), ValueError, "targets must have shape (5,), got (4,)"),
    (lambda: f(X, W, T, class_weight=X[:, 0]), ValueError, "class_weight must have shape (4,), got (5,)"),
    (lambda: f(X, W.astype(np.float32), T), TypeError, "weight must be float64 as x is, got float32"),
    (lambda: f(X, W, T, class_weight=W[:, 0].astype("f4")), TypeError, "class_weight must be float64 as x is, got"),
    (lambda: f(X, W, T.astype(float)), TypeError, "targets must be int32 or int64, got float64"),
    (lambda: f(X.astype(int), W, T), TypeError, "x must be floats, got int64"),
    (lambda: f(X, W, T, chunk_rows=0), ValueError, "chunk_rows must be at least 1, got 0"),
    (lambda: f(X, W, T, reduction="all"), ValueError, 'reduction must be "mean", "sum" or "none", got \'all\''),
    (lambda: f(X, W, T, label_smoothing=2), ValueError, "label_smoothing must be from 0 to 1, got 2"),
    (lambda: f(X, W, T, label_smoothing="a"), TypeError, "label_smoothing must be a number, got 'a'"),
    *(
        (lambda n=name, v=value, g=g: g(X, **{n: v}), TypeError, f"{name} must be an integer or None, got {value!r}")
        for name, value in (("chunk_rows", 1.5), ("chunk_rows", "3"), ("ignore_index", 2.0))
        for g in (
            lambda x, **options: f(x, W, T, **options),
            lambda x, **options: kf.grad(lambda x: f(x, W, T, **options))(x),
            lambda x, **options: kf.fused_linear_cross_entropy(x, W, T, **options),
        )
    ),
    *(
        (lambda r=reduction, g=g: g(lambda x, c=None: f(x, W, T, class_weight=c, reduction=r).sum()), TypeError, text)
        for reduction in ("mean", "sum", "none")
        for text, g in (
            (NO_GRADIENT, lambda loss: kf.grad(lambda c: loss(X, c))(W[:, 0])),
            ("", lambda loss: kf.grad(lambda x: kf.grad(loss)(x).sum())(X)),  # second derivatives
        )
    ),
]


def test_errors() -> None:
    prefix = "linear_cross_entropy: "
    refusals((call, error, re.escape(prefix + text if text else prefix[:-2])) for call, error, text in ERRORS)
    x, w, t, _ = drawn(5, 3, 4)
    loss = kf.fused_linear_cross_entropy(x, w, t, class_weight=torch.rand(4).double().requires_grad_())
    refusals([(loss.backward, TypeError, f"linear_cross_entropy: {NO_GRADIENT}")])
