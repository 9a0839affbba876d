"""Products on the CPU with what follows them, block by block: results against float64, for every shape and layout."""

from __future__ import annotations

import concurrent.futures
import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kfusion as kf
from cpu_products import (
    LAYOUTS,
    REDUCED,
    SHAPES,
    STORED,
    draw,
    forced,
    logsumexp,
    operands,
    padded,
    poisoned,  # noqa: F401
    require_blas,
    sliced,
)
from kfusion import _core

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = None

pytestmark = pytest.mark.native
require_blas()
needs_torch = pytest.mark.skipif(torch is None, reason="needs torch")

ROUNDING = {np.dtype(np.float32): 2.0**-23, np.dtype(np.float64): 2.0**-52}


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def check(f, *arrays, scale=1.0, kernels=1):
    """`f` on the arrays in one kernel, beside what it gives in float64; fresh results, and given ones."""
    fused = forced(f)
    plan = fused.plan(*arrays)
    assert [g.executor for g in plan.groups].count("cpu_products") >= 1, plan.groups
    assert len(plan.groups) == kernels, plan.groups
    with np.errstate(all="ignore"):
        want = as_tuple(f(*(a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays)))
        got = as_tuple(fused(*arrays))
        out = tuple(np.full_like(g, 77) for g in got)
        fused(*arrays, out=out if len(out) > 1 else out[0])
    for one, given, wanted in zip(got, out, want, strict=True):
        assert one.shape == wanted.shape
        assert one.tobytes() == given.tobytes()
        if one.dtype == bool:
            assert np.array_equal(one, wanted)
            continue
        assert np.array_equal(np.isnan(one), np.isnan(wanted))
        assert np.array_equal(np.isposinf(one), np.isposinf(wanted))
        assert np.array_equal(np.isneginf(one), np.isneginf(wanted))
        fine = np.isfinite(wanted)
        bound = 64 * ROUNDING[arrays[0].dtype] * scale * (1 + np.abs(wanted[fine]))
        assert (np.abs(one[fine] - wanted[fine]) <= bound).all()
    return got


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", STORED)
def test_stored(rng, case, shape):
    check(STORED[case], *operands(rng, *shape))


@pytest.mark.parametrize("shape", [(m, k, n) for m, k, n in SHAPES if m > 1 and n > 1])
@pytest.mark.parametrize("case", REDUCED)
def test_reduced(rng, case, shape):
    m, _, n = shape
    check(REDUCED[case], *operands(rng, *shape), scale=(m + n) ** 0.5)


@pytest.mark.parametrize("case", ["bias and gelu", "residual"])
def test_float64(rng, case):
    check(STORED[case], *operands(rng, 300, 200, 600, dtype=np.float64))
    check(REDUCED["logsumexp"], *operands(rng, 40, 30, 5000, dtype=np.float64))


@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize("which", range(4))
def test_layouts(rng, how, which):
    arrays = list(operands(rng, 150, 90, 210))
    arrays[which] = how(arrays[which])
    check(STORED["residual" if which == 3 else "bias and gelu"], *arrays)
    check(REDUCED["sums of rows"], *arrays, scale=20)
    check(REDUCED["splade"], *arrays)


@pytest.mark.parametrize("how", [lambda x: x, sliced, padded])
def test_batches(rng, how):
    x, w, b = how(draw(rng, 5, 30, 20)), how(draw(rng, 20, 40)), draw(rng, 40)
    ws, q = how(draw(rng, 5, 20, 40)), how(draw(rng, 2, 3, 9, 20))  # along several axes
    check(lambda x, w, b: kf.relu(x @ w + b), x, w, b)
    check(lambda x, w, b: kf.relu(x @ w + b), x, ws, b)
    check(lambda x, w, b: (x @ w + b).max(1), x, w, b)
    check(lambda x, w, b: (x @ w + b).max(-1), x, ws, b)
    check(lambda x, w, b: logsumexp(x @ w + b, axis=1), x, ws, b, scale=10)
    check(lambda q, k: kf.tanh(q @ k.swapaxes(-1, -2)), q, how(draw(rng, 2, 3, 11, 20)))
    check(lambda x, w: (x @ w.T).max(1), how(draw(rng, 3, 200, 20)), how(draw(rng, 3000, 20)))  # batches are rows
    check(lambda x, w: logsumexp(x @ w.T, axis=-1), how(draw(rng, 3, 20, 20)), how(draw(rng, 3000, 20)), scale=10)
    check(lambda x, w: kf.tanh(x @ w), np.broadcast_to(draw(rng, 1, 30, 20), (4, 30, 20)), how(draw(rng, 4, 20, 40)))


def test_batches_along_several_axes(rng):
    x = draw(rng, 2, 30, 3, 20).swapaxes(1, 2)
    r = draw(rng, 3, 30, 40)
    for w in (draw(rng, 2, 3, 20, 40), draw(rng, 1, 3, 20, 40), draw(rng, 2, 40, 3, 20).transpose(0, 2, 3, 1)):
        check(lambda x, w, r: kf.tanh(x @ w) + r, x, w, r)
        check(lambda x, w, r: (x @ w + r).max(-1), x, w, r)
        check(lambda x, w, r: logsumexp(x @ w * r, axis=-2), x, w, r, scale=10)


def test_gates(rng):
    x, g, u = draw(rng, 300, 64), draw(rng, 700, 64) / 8, draw(rng, 700, 64) / 8
    check(lambda x, g, u: kf.silu(x @ g.T) * (x @ u.T), x, g, u)
    check(lambda x, g, u: kf.silu((y := x @ g.T)[:, :300]) * y[:, 300:600], x, g[:600], u)


def test_losses(rng):
    x, w = draw(rng, 300, 32), draw(rng, 5000, 32) / 5
    t = rng.integers(0, 5000, 300)
    t[::7] = -100
    fused = forced(lambda x, w, t: kf.cross_entropy(x @ w.T, t, ignore_index=-100, reduction="none"))
    (group,) = fused.plan(x, w, t).groups
    assert (group.kind, group.executor) == ("contraction_reduction", "cpu_products")
    y = x.astype(np.float64) @ w.T.astype(np.float64)
    y -= y.max(-1, keepdims=True)
    want = np.where(t < 0, 0, np.log(np.exp(y).sum(-1)) - y[np.arange(300), np.maximum(t, 0)])
    np.testing.assert_allclose(fused(x, w, t), want, rtol=1e-5, atol=1e-5)


def exact_losses(y, t, weight=None, ignored=None, smoothing=0.0):
    """By the definition, in float64."""
    log = y - y.max(-1, keepdims=True)
    log -= np.log(np.exp(log).sum(-1, keepdims=True))
    w = np.ones(y.shape[-1]) if weight is None else weight.astype(np.float64)
    own = -log[np.arange(len(y)), np.maximum(t, 0)] * w[np.maximum(t, 0)]
    losses = (1 - smoothing) * own - smoothing * (log * w).mean(-1)
    return losses if ignored is None else np.where(t == ignored, 0, losses)


LOSSES = [{"weight": True}, {"smoothing": 0.1}, {"weight": True, "smoothing": 0.25, "ignored": -100},
          {"weight": True, "ignored": 3}]  # fmt: skip


@pytest.mark.parametrize("classes", [40, 5000])
@pytest.mark.parametrize("options", LOSSES)
def test_losses_with_options(rng, options, classes):
    x, w, c = draw(rng, 300, 32), draw(rng, classes, 32) / 5, np.abs(draw(rng, classes))
    ignored, smoothing = options.get("ignored"), options.get("smoothing", 0.0)
    t = rng.integers(0, classes, 300)
    if ignored is not None:
        t[::7] = ignored

    def f(x, w, t, c):
        return kf.cross_entropy(x @ w.T, t, weight=c if "weight" in options else None, label_smoothing=smoothing,
                                ignore_index=ignored, reduction="none")  # fmt: skip

    fused = forced(f)
    (group,) = fused.plan(x, w, t, c).groups
    assert (group.kind, group.executor) == ("contraction_reduction", "cpu_products")
    y = x.astype(np.float64) @ w.T.astype(np.float64)
    want = exact_losses(y, t, c if "weight" in options else None, ignored, smoothing)
    np.testing.assert_allclose(fused(x, w, t, c), want, rtol=2e-5, atol=2e-5)


POSITIONS = {
    "argmax of rows": lambda x, w, b: kf.argmax(x @ w + b, -1),
    "argmin of columns": lambda x, w, b: kf.argmin(x @ w + b, 0),
    "top 1": lambda x, w, b: ((x @ w).max(-1), kf.argmax(x @ w, -1)),
    "argmax and logsumexp": lambda x, w, b: (kf.argmax(x @ w, -1), logsumexp(x @ w, axis=-1)),
}


@pytest.mark.parametrize("shape", [(m, k, n) for m, k, n in SHAPES if m > 1 and n > 1])
@pytest.mark.parametrize("case", POSITIONS)
def test_positions_of_extremes(rng, case, shape):
    """The numbers are whole, their sums are exact and often equal: the first one counts."""
    m, k, n = shape
    x, w, b = (rng.integers(-2, 3, s).astype(np.float32) for s in ((m, k), (k, n), (n,)))
    check(POSITIONS[case], x, w, b, scale=(m + n) ** 0.5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_positions_of_what_is_not_finite(rng, value):
    x, w, b = (rng.integers(-2, 3, s).astype(np.float32) for s in ((70, 30), (30, 5000), (5000,)))
    b[[40, 3000]] = value
    check(POSITIONS["argmax of rows"], x, w, b)
    check(POSITIONS["argmin of columns"], x, w, b)
    b[:] = value
    check(POSITIONS["argmax of rows"], x, w, b)


def test_numbers_of_positions(rng):
    """A causal mask, made where it is used."""

    def f(q, k):
        shape = (q.shape[0], k.shape[0])
        return kf.where(kf.iota(shape, 0) >= kf.iota(shape, 1), q @ k.T, -np.inf)

    check(f, draw(rng, 1200, 16), draw(rng, 1300, 16))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(rng, value):
    x, w, b, r, c = operands(rng, 70, 30, 2200)
    x[3, 5] = value
    r[10, 100] = value
    with np.errstate(all="ignore"):
        for f in (STORED["residual"], STORED["bias and gelu"], REDUCED["largest of rows"], REDUCED["logsumexp"]):
            check(f, x, w, b, r, c)
    x[3, 5], b[40] = 1, value  # infinities of different sign would meet before the maximum, and not after it
    check(REDUCED["splade"], x, w, b, r, c)


def test_rows_of_nothing_but_minus_infinity(rng):
    x, w, b, r, c = operands(rng, 40, 10, 5000)
    b[:4000] = -np.inf  # some parts of each row, then all of it
    check(REDUCED["logsumexp"], x, w, b, r, c)
    b[:] = -np.inf
    check(REDUCED["logsumexp"], x, w, b, r, c)


def test_numbers_of_a_call(rng):
    x, w, *_ = operands(rng, 30, 20, 40)
    f = forced(lambda x, w, s: kf.tanh(x @ w * s) + s)
    for s in (2.0, -0.5):
        np.testing.assert_allclose(f(x, w, s), np.tanh(x @ w * s) + s, rtol=1e-5, atol=1e-5)


def test_bits_do_not_depend_on_threads(rng):
    arrays = operands(rng, 700, 300, 900)
    fs = [forced(f) for f in (STORED["bias and gelu"], REDUCED["splade"], REDUCED["logsumexp"])]
    before = kf.get_num_threads()
    results = []
    for n in (1, 2, 3):
        kf.set_num_threads(n)
        results.append([f(*arrays).tobytes() for f in fs])
    kf.set_num_threads(before)
    assert results[0] == results[1] == results[2]


def test_several_callers(rng):
    arrays = operands(rng, 600, 200, 700)
    fs = [forced(f) for f in (STORED["bias and gelu"], REDUCED["splade"])]
    want = [f(*arrays).tobytes() for f in fs]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(lambda f=f: f(*arrays).tobytes()) for _ in range(10) for f in fs]
        assert [j.result() for j in jobs] == want * 10


def test_blas_has_its_threads_back(rng):
    before = _core.testing.blas_threads()
    forced(STORED["residual"])(*operands(rng, 300, 300, 300))
    assert _core.testing.blas_threads() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_in_a_forked_child():
    """Which has none of its parent's threads, neither ours nor the BLAS's."""
    script = """
import os, signal, numpy as np, kfusion as kf
x, w = np.ones((600, 200), np.float32), np.ones((200, 700), np.float32)
f = kf.FusedFunction(lambda x, w: kf.tanh(x @ w), {"executors": ["cpu_products", "cpu"]})
want = (f(x, w) + x @ w).tobytes()
for _ in range(3):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that waits for ever
        os._exit(0 if (f(x, w) + x @ w).tobytes() == want else 1)
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)


TENSORS = {  # by torch's own BLAS, where it shows one
    "as they are": lambda t: t,
    "transposed": lambda t: t.mT.contiguous().mT if t.ndim > 1 else t,
    "padded": lambda t: F.pad(t, (3, 2))[..., 3:-2],
    "sliced": lambda t: t.repeat_interleave(2, -1)[..., ::2],
}


def of_tensors(x, w, b, r, c):
    return torch.relu(x @ w + b) * c + r


@needs_torch
@pytest.mark.parametrize("how", TENSORS)
@pytest.mark.parametrize("shape", SHAPES)
def test_tensors(rng, shape, how):
    for dtype, tolerance in ((np.float32, 1e-5), (np.float64, 1e-12)):
        tensors = [TENSORS[how](torch.from_numpy(a)) for a in operands(rng, *shape, dtype=dtype)]
        fused = forced(of_tensors)
        got, want = fused(*tensors), of_tensors(*(t.double() for t in tensors))
        assert isinstance(got, torch.Tensor)
        assert [g.executor for g in fused.plan(*tensors).groups] == ["cpu_products"]
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


@needs_torch
def test_batches_of_tensors(rng):
    x, v, w = (torch.from_numpy(draw(rng, *s)) for s in ((5, 30, 20), (5, 20, 40), (20, 40)))
    for right in (v, w, v.mT.contiguous().mT, w.T.contiguous().T):
        got = forced(lambda x, w: torch.tanh(x @ w))(x, right)
        torch.testing.assert_close(got, torch.tanh(x @ right), rtol=1e-5, atol=1e-5)


@needs_torch
def test_reduced_tensors(rng):
    x, w, b, *_ = map(torch.from_numpy, operands(rng, 300, 100, 5000))
    for f in (lambda x, w, b: torch.amax(x @ w + b, -1), lambda x, w, b: torch.logsumexp(x @ w + b, 0)):
        torch.testing.assert_close(forced(f)(x, w, b), f(x, w, b), rtol=1e-5, atol=1e-5)


@needs_torch
def test_threads_of_torch_stay(rng):
    """Blocks are computed by one thread each; torch's own products by as many as before."""
    before = torch.get_num_threads(), mkl_threads()
    tensors = list(map(torch.from_numpy, operands(rng, 600, 300, 700)))
    fused = forced(of_tensors)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        made = [j.result() for j in [pool.submit(fused, *tensors) for _ in range(12)]]
    for y in made:
        torch.testing.assert_close(y, of_tensors(*tensors), rtol=1e-5, atol=1e-5)
    assert (torch.get_num_threads(), mkl_threads()) == before


def mkl_threads():
    library = ctypes.CDLL(str(next(Path(torch.__file__).parent.glob("lib/libtorch_cpu*"))))
    return library.MKL_Get_Max_Threads() if hasattr(library, "MKL_Get_Max_Threads") else None


@pytest.mark.slow
@needs_torch
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_tensors_in_a_forked_child():
    script = """
import os, signal, torch, kfusion as kf
x, w = torch.ones(600, 200), torch.ones(200, 700)
f = kf.FusedFunction(lambda x, w: torch.tanh(x @ w), {"executors": ["cpu_products", "cpu"]})
f(x, w)
child = os.fork()
if child == 0:  # where torch's own threads are not, which its functions would wait for
    signal.alarm(60)
    os._exit(0 if (f(x, w).numpy() == 1).all() else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)


REFUSED = {
    "a product alone": (lambda x, w: x @ w, "float32", ""),
    "integers": (lambda x, w: kf.relu(x @ w), "int32", "computes products of floats of one type"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    f, dtype, why = REFUSED[case]
    plan = kf.plan(f, kf.spec((64, 64), dtype), kf.spec((64, 64), dtype), device="EPYC-9654", executors="available")
    assert "cpu_products" not in [g.executor for g in plan.groups]
    if why:
        assert any(f"cpu_products {why}" in r.sentence for r in plan.refusals), plan.refusals


def test_plans_say_how():
    spec = (kf.spec((4096, 1024)), kf.spec((4096, 1024)))
    (group,) = kf.plan(lambda x, w: kf.gelu(x @ w.T), *spec, device="EPYC-9654", executors="available").groups
    assert (group.executor, group.how[:10]) == ("cpu_products", "blocks of ")
