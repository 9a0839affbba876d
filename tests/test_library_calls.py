"""Calls that a graph has no form for: the array library computes them among the kernels, as it does without kfusion."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

import kfusion as kf
from kinds import HAVE_GPU

X, Y = (np.random.default_rng(i).standard_normal((4, 6)).astype(np.float32) for i in range(2))
I = np.array([0, 2, 1])  # noqa: E741


@pytest.mark.parametrize(
    "view", [np.real_if_close, lambda h: np.rollaxis(h, 0), lambda h: kf.call(lambda a: a[:], h, result=h)]
)
def test_results_that_share_memory_with_an_argument(view):
    """Kernels that come later use the memory of an argument again, in which the view lies."""

    def f(x):
        h = np.exp(x)
        seen = view(h)
        for _ in range(3):
            h = np.cos(np.sort(h)) + 2
        return seen * 1.0, h

    x = np.random.default_rng(0).standard_normal(1 << 14).astype(np.float32)
    np.testing.assert_allclose(kf.fuse(f)(x)[0], np.exp(x), rtol=1e-5)


def test_plan():
    torch = pytest.importorskip("torch")

    def f(x):
        return torch.sort(x + 1, -1).values * 2

    plan = kf.plan(f, kf.spec((64, 128), like="torch"))
    assert [g.kind for g in plan.groups] == ["pointwise", "library_call", "pointwise"]
    assert [r.reason for r in plan.refusals] == [kf.Reason.LIBRARY_CALL] * 2
    assert all("torch.sort is a function of the array library" in r.sentence for r in plan.refusals)
    n = 64 * 128 * 4
    assert plan.fused.compulsory.total == 6 * n
    assert kf.Plan.from_json(plan.to_json()).groups[1].kind == "library_call"


def test_results_that_nobody_reads_are_not_counted():
    torch = pytest.importorskip("torch")
    x = kf.spec((64, 128), like="torch")
    both = kf.plan(lambda x: tuple(torch.sort(x)), x).fused.compulsory.total
    assert both - kf.plan(lambda x: torch.sort(x).values, x).fused.compulsory.total == 64 * 128 * 8
    assert len(kf.plan(lambda x: (torch.sort(x), x + 1)[1], x).groups) == 1


def test_errors_of_the_library_name_the_line():
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError, match=r"kfusion.linalg_solve: .*same dtype.*\n  test_library_calls.py:\d+: "):
        kf.plan(lambda x: torch.linalg.solve(x, torch.mm(x.T, x).argsort(7)), kf.spec((3, 4), like="torch"))
    with pytest.raises(ValueError, match=r"kfusion.linalg.solve: (?s:.*)\n  test_library_calls.py:\d+: "):
        kf.plan(lambda x: np.linalg.solve(x @ x.T, np.sort(x[:2])), kf.spec((3, 4)))


def test_writes_that_torch_makes_through_an_index_or_to_a_shape():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X)
    refused = {
        "through a view of it that may be a copy": lambda x: x[torch.tensor(1)].mul_(2),
        "unsqueeze_ changes the shape of an argument": lambda x: x.unsqueeze_(0),
        r"add_ makes float32\[4, 6\] of float32\[6\]": lambda x: x[0].add_(x),
    }
    for message, f in refused.items():
        with pytest.raises(kf.TraceError, match=message):
            kf.fuse(f)(x)


def test_a_call_on_constants_gives_a_tensor():
    torch = pytest.importorskip("torch")
    f = lambda x: torch.full_like(x, 2).cumsum(1).double() * x.sort(-1).values  # noqa: E731
    x = torch.randn(3, 5)
    torch.testing.assert_close(kf.fuse(f)(x), f(x))


def test_an_alias_that_is_written_to_is_refused():
    torch = pytest.importorskip("torch")

    def f(x):
        y = x * 2
        y.diagonal().fill_(0)
        return y

    with pytest.raises(kf.TraceError, match="shares memory with one that was changed in place"):
        kf.plan(f, kf.spec((3, 3), like="torch"))
    torch.manual_seed(0)


def test_call_checks_what_it_gets():
    wrong = kf.fuse(lambda x: kf.call(lambda a: a[:2], x * 1, result=x))
    with pytest.raises(ValueError, match=r"kfusion.call\(<lambda>\) gave float32 \(2, 6\) on cpu, where it was traced"):
        wrong(X)
    with pytest.raises(ValueError, match="must return 2 results, got 1"):
        kf.fuse(lambda x: kf.call(lambda a: [a], x, result=(x, x)))(X)
    with pytest.raises(TypeError, match="at least one array"):
        kf.call(np.sort, result=kf.spec(3))
    with pytest.raises(TypeError, match="result must be a spec or an array, got int"):
        kf.call(np.sort, X, result=3)
    with pytest.raises(ValueError, match=r"must return float32 \(4, 7\), got float32 \(4, 6\)"):
        kf.call(np.sort, X, result=kf.spec((4, 7)))
    np.testing.assert_array_equal(kf.call(np.sort, X, result=X), np.sort(X))


def test_errors_of_the_function_come_out():
    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        kf.fuse(lambda x: kf.call(fails, x * 1, result=x) + 1)(X)


def test_values_between_are_let_go():
    """The library's memory goes back after its last reader, and nothing is held between calls."""
    alive = []

    class Array(np.ndarray):
        pass

    def tracked(a):
        made = (a + 1).view(Array)
        alive.append(weakref.ref(made))
        return np.asarray(made)

    def f(x):
        for _ in range(3):
            x = kf.call(tracked, x, result=x)
        return x * 2

    np.testing.assert_allclose(kf.fuse(f)(X), (X + 3) * 2, rtol=1e-6)
    gc.collect()
    assert not any(r() is not None for r in alive)


def test_two_threads():
    f = kf.fuse(lambda x, y: np.sort(x * 2, -1) + np.cumsum(y, 0))
    want = np.sort(X * 2, -1) + np.cumsum(Y, 0)
    results = []
    threads = [threading.Thread(target=lambda: results.extend(f(X, Y) for _ in range(50))) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 100
    for r in results:
        np.testing.assert_array_equal(r, want)


def test_float_arguments_reach_the_library():
    torch = pytest.importorskip("torch")
    f = kf.fuse(lambda x, s: torch.sort(torch.full_like(x, s) * x).values)
    x = torch.from_numpy(X)
    for s in (2.0, 3.5):
        torch.testing.assert_close(f(x, s), torch.sort(x * s).values)


def test_empty_arrays():
    torch = pytest.importorskip("torch")
    f = kf.fuse(lambda x: torch.sort(x * 2).values + 1)
    assert f(torch.empty(0, 3)).shape == (0, 3)
    assert f(torch.empty(3, 0)).shape == (3, 0)


def test_compare():
    torch = pytest.importorskip("torch")
    c = kf.compare(lambda x: torch.sort(x * 2, -1).values + 1, torch.randn(64, 64), peers=["torch"])
    assert "torch" in str(c)


@pytest.mark.cuda
@pytest.mark.skipif(not HAVE_GPU, reason="needs a GPU")
@pytest.mark.parametrize("shape", [(8, 64), (2, 4, 64), (3, 1000, 64), (7, 64)])
@pytest.mark.parametrize("columns", [257, 1001, 1024])
def test_products_with_odd_rows(shape, columns):
    """Products of half types are computed transposed where that is faster."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    linear = torch.nn.functional.linear
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(columns, shape[-1], device="cuda", dtype=torch.bfloat16)
    functions = {
        "a result": lambda x, w: linear(x, w),
        "read by a kernel": lambda x, w: torch.relu(linear(x * 2, w)) + 1,
        "both": lambda x, w: (y := linear(x, w), torch.softmax(y, -1)),
        "read by the library": lambda x, w: torch.cumsum(linear(x, w), -1),
    }
    bounds = {"both": 0.05, "read by the library": 0.05}  # exponentials and sums of rounded values
    for what, function in functions.items():
        f = kf.fuse(function)
        want = function(x.double(), w.double())
        want = want if isinstance(want, tuple) else (want,)
        for _ in range(2):
            got = f(x, w)
            for g, expected in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
                error = (g.double() - expected).norm() / expected.norm()
                assert error < bounds.get(what, 0.01), (what, error)
    out = torch.empty(*shape[:-1], 2 * columns, device="cuda", dtype=torch.bfloat16)[..., ::2]
    kf.fuse(functions["a result"])(x, w, out=out)
    torch.testing.assert_close(out, linear(x, w), rtol=0.02, atol=0.05)


@pytest.mark.cuda
@pytest.mark.skipif(not HAVE_GPU, reason="needs a GPU")
@pytest.mark.parametrize("kept", [True, False])
def test_numbers_of_the_cpu_among_tensors_of_a_gpu(kept):
    """Tensors without axes are numbers to torch, wherever they are."""
    torch = pytest.importorskip("torch")
    held = torch.tensor(2.0)

    def scaled(x):
        y = x * (held if kept else torch.tensor(2.0))
        y[torch.tensor(1)] = 7
        return torch.where(y > torch.tensor(0.5), y, torch.tensor(-1.0, dtype=torch.float64)) + y[torch.tensor(0)]

    f, x = kf.fuse(scaled), torch.randn(4, 6, device="cuda")
    for number in (2.0, 3.0):
        held.fill_(number)
        for _ in range(2):
            torch.testing.assert_close(f(x), scaled(x))
