"""Products on the CPU with what follows them, block by block: results against float64, for every shape, dtype, layout.
Products of half types are computed in float32, and rounded once, where a result is stored."""

import concurrent.futures
import ctypes
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kfusion as kf
from cpu_products import (
    HALVES,
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
from loops_by import all_generated
from sweeps import sweep

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = None

pytestmark = pytest.mark.native
require_blas()
needs_torch = pytest.mark.skipif(torch is None, reason="needs torch")

SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
DTYPES = [SINGLE, *HALVES, DOUBLE]
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # a rounding, as a part of a number
LEAST = {"float16": 2.0**-24}  # distance of the smallest numbers


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def wide(x):
    return x if x.dtype.kind in "bi" else x.astype(np.float64)


def check(f, *arrays, scale=1.0):
    """`f` on the arrays in one kernel, beside what it gives in float64; fresh results, and given ones."""
    fused = forced(f)
    (group,) = fused.plan(*arrays).groups
    assert group.executor == "cpu_products"
    with np.errstate(all="ignore"):
        want = as_tuple(f(*map(wide, arrays)))
        with all_generated():
            got = as_tuple(fused(*arrays))
        out = tuple(np.full_like(g, 77) for g in got)
        fused(*arrays, out=out if len(out) > 1 else out[0])
        for one, given, wanted in zip(got, out, want, strict=True):
            assert one.shape == wanted.shape
            assert one.tobytes() == given.tobytes()
            if one.dtype.kind in "bi":
                assert np.array_equal(one, wanted)
                continue
            exact = wide(wanted.astype(one.dtype))  # beyond its range: infinite
            fine = np.isfinite(wanted) & np.isfinite(exact)
            assert np.array_equal(wide(one)[~fine], exact[~fine], equal_nan=True)
            size, name = np.abs(wanted[fine]), one.dtype.name
            rounding = 2.0**-52 if arrays[0].dtype == DOUBLE else 2.0**-23
            bound = 64 * rounding * scale * (1 + size) + UNIT.get(name, 0) * size + LEAST.get(name, 0)
            assert (np.abs(wide(one)[fine] - wanted[fine]) <= bound).all()


def is_decided(case, shape, dtype):
    """Comparisons of halves that are equal are decided by a digit; a long vector may be predicted to be stored."""
    is_long = case == "vector computed here" and shape[0] > 1000
    return dtype not in HALVES or not (case in ("bools", "any") or is_long)


def test_stored(some, rng):
    rows = [row for row in itertools.product(STORED, SHAPES, DTYPES) if is_decided(*row)]
    sweep(lambda case, shape, dtype: check(STORED[case], *operands(rng, *shape, dtype=dtype)), some(rows, 10))


def test_reduced(some, rng):
    def checked(case, shape, dtype):
        check(REDUCED[case], *operands(rng, *shape, dtype=dtype), scale=(shape[0] + shape[2]) ** 0.5)

    shapes = [(m, k, n) for m, k, n in SHAPES if m > 1 and n > 1]
    sweep(checked, some([row for row in itertools.product(REDUCED, shapes, DTYPES) if is_decided(*row)], 10))


def test_halves_alone(rng):
    """NumPy has no product of them, so ours is taken."""

    def checked(shape, dtype):
        x, w = operands(rng, *shape, dtype=dtype)[:2]
        check(lambda x, w: x @ w, x, w)

    sweep(checked, itertools.product(SHAPES, HALVES))
    x, w = operands(rng, 64, 64, 64, dtype=HALVES[0])[:2]
    for f in (lambda x, w: x @ w, lambda x, w: kf.relu(x @ w)):
        assert [g.executor for g in kf.fuse(f).plan(x, w).groups] == ["cpu_products"]


def test_layouts(some, rng):
    def checked(how, which, dtype):
        is_half = dtype in HALVES  # of several panels
        arrays = list(operands(rng, *((150, 1090, 610) if is_half else (150, 90, 210)), dtype=dtype))
        arrays[which] = how(arrays[which])
        check(STORED["residual" if which == 3 else "bias and gelu"], *arrays, scale=4 if is_half else 1)
        check(REDUCED["sums of rows"], *arrays, scale=60 if is_half else 20)
        check(REDUCED["splade"], *arrays, scale=4 if is_half else 1)

    sweep(checked, some(itertools.product(LAYOUTS, range(4), [SINGLE, *HALVES]), 6))


def test_batches(some, rng):
    def checked(how, dtype):
        made = lambda *shape: how(draw(rng, *shape, dtype=dtype))  # noqa: E731
        x, w, ws, b = made(5, 30, 20), made(20, 40), made(5, 20, 40), draw(rng, 40, dtype=dtype)
        rows, scale = (
            (draw(rng, 1, 30, 20, dtype=dtype), draw(rng, 3, 30, 40, dtype=dtype)),
            4 if dtype in HALVES else 1,
        )
        for right in (w, ws):
            check(lambda x, w, b: kf.relu(x @ w + b), x, right, b, scale=scale)
            check(lambda x, w, b: (x @ w + b).max(1), x, right, b, scale=scale)
            check(lambda x, w: kf.where(x[..., :1] > 0, kf.relu(x @ w), -1.0).max(-1), x, right, scale=scale)
            check(lambda x, w, b: (x @ w + b).max(-1), x, right, b, scale=scale)
        check(lambda x, w, b: logsumexp(x @ w + b, axis=1), x, ws, b, scale=10)
        check(lambda x, w, b: logsumexp(x @ w + b, axis=-1), x, ws, b, scale=10)
        check(lambda q, k: kf.tanh(q @ k.swapaxes(-1, -2)), made(2, 3, 9, 20), made(2, 3, 11, 20))
        check(lambda x, w: kf.tanh(x @ w), made(700, 1, 20), w)  # rows of one element each
        check(lambda x, w: kf.tanh(x @ w), np.broadcast_to(rows[0], (4, 30, 20)), made(4, 20, 40))
        check(lambda x, w: (x @ w.T).max(1), made(3, 200, 20), made(3000, 20), scale=4)  # batches are rows
        along = draw(rng, 2, 30, 3, 20, dtype=dtype).swapaxes(1, 2)  # several axes
        for s in ((2, 3, 20, 40), (1, 3, 20, 40)):
            right = draw(rng, *s, dtype=dtype)
            check(lambda x, w, r: kf.tanh(x @ w) + r, along, right, rows[1])
            check(lambda x, w, r: (x @ w + r).max(-1), along, right, rows[1], scale=scale)
            check(lambda x, w, r: logsumexp(x @ w * r, axis=-2), along, right, rows[1], scale=10)

    rows = itertools.product((lambda x: x, sliced, padded), (SINGLE, *HALVES))
    sweep(checked, [(sliced, SINGLE), (sliced, HALVES[1]), *some(rows, 1)])


def test_gates(rng):
    x, g, u = draw(rng, 300, 64), draw(rng, 700, 64) / 8, draw(rng, 700, 64) / 8
    check(lambda x, g, u: kf.silu(x @ g.T) * (x @ u.T), x, g, u)
    check(lambda x, g, u: kf.silu((y := x @ g.T)[:, :300]) * y[:, 300:600], x, g[:600], u)
    for half in HALVES:
        x, g, u = (draw(rng, *s, dtype=half) for s in ((300, 700), (900, 700), (900, 700)))
        check(lambda x, g, u: kf.silu(x @ g.T / 26) * (x @ u.T / 26), x, g, u, scale=8)


def test_one_of_two_reductions_is_of_a_map_that_follows_it(rng):
    x, w = draw(rng, 300, 64), draw(rng, 64, 70) / 8
    check(lambda x, w: (kf.relu(y := x @ w).max(-1), kf.sin(kf.tanh(y)).sum(-1)), x, w, scale=30)


def test_losses(rng):
    def checked(is_weighted, ignored, smoothing, classes):
        x, w, c = draw(rng, 300, 32), draw(rng, classes, 32) / 5, np.abs(draw(rng, classes))
        t = rng.integers(0, classes, 300)
        t[::7] = t[::7] if ignored is None else ignored
        options = {"label_smoothing": smoothing, "ignore_index": ignored, "reduction": "none"}
        weight = (lambda c: c) if is_weighted else lambda c: None
        check(lambda x, w, t, c: kf.cross_entropy(x @ w.T, t, weight=weight(c), **options), x, w, t, c, scale=4)

    losses = [(False, -100, 0.0), (True, None, 0.0), (False, None, 0.1), (True, -100, 0.25), (True, 3, 0.0)]
    sweep(checked, [(*options, classes) for options in losses for classes in (40, 5000)])


POSITIONS = {
    "argmax of rows": lambda x, w, b: kf.argmax(x @ w + b, -1),
    "argmin of columns": lambda x, w, b: kf.argmin(x @ w + b, 0),
    "top 1": lambda x, w, b: ((x @ w).max(-1), kf.argmax(x @ w, -1)),
    "argmax and logsumexp": lambda x, w, b: (kf.argmax(x @ w, -1), logsumexp(x @ w, axis=-1)),
}


def test_positions_of_extremes(some, rng):
    """The numbers are whole, their sums are exact and often equal: the first one counts."""

    def checked(case, shape):
        m, k, n = shape
        x, w, b = (rng.integers(-2, 3, s).astype(np.float32) for s in ((m, k), (k, n), (n,)))
        check(POSITIONS[case], x, w, b, scale=(m + n) ** 0.5)

    shapes = [(m, k, n) for m, k, n in SHAPES if m > 1 and n > 1]
    sweep(checked, some(itertools.product(POSITIONS, shapes), 10))


def test_values_that_are_not_finite(some, rng):
    def checked(value, dtype):
        x, w, b, r, c = operands(rng, 70, 30, 2200, dtype=dtype)
        x[3, 5] = value
        r[10, 100] = value
        for f in (STORED["residual"], STORED["bias and gelu"], REDUCED["largest of rows"], REDUCED["logsumexp"]):
            check(f, x, w, b, r, c)
        x[3, 5], b[40] = 1, value  # infinities of different sign would meet before the maximum, and not after it
        check(REDUCED["splade"], x, w, b, r, c, scale=4)
        x, w, b = (rng.integers(-2, 3, s).astype(np.float32) for s in ((70, 30), (30, 5000), (5000,)))
        b[[40, 3000]] = value
        check(POSITIONS["argmax of rows"], x, w, b)
        check(POSITIONS["argmin of columns"], x, w, b)
        b[:] = value
        check(POSITIONS["argmax of rows"], x, w, b)

    sweep(checked, some(itertools.product((np.nan, np.inf, -np.inf), [SINGLE, *HALVES]), 3))


def test_large_sums_do_not_overflow():
    """float16 ends at 65504: sums beyond it are what follows sees, and not infinities."""
    x, w = np.full((40, 2000), 16, np.float16), np.full((2000, 30), 16, np.float16)
    assert (forced(lambda x, w: x @ w * 2**-10)(x, w) == 500).all()
    assert np.isinf(forced(lambda x, w: x @ w)(x, w)).all()


def test_threads_and_callers(threads, rng):
    """Bits depend on neither, and the BLAS has its threads back."""

    def checked(rows, cols, dtype):
        arrays = operands(rng, rows, 1300 if dtype in HALVES else 300, cols, dtype=dtype)
        fs = [forced(f) for f in (STORED["bias and gelu"], REDUCED["splade"], REDUCED["logsumexp"])]
        results, before = [], _core.testing.blas_threads()
        for n in (1, 2, 3):
            threads(n)
            results.append([f(*arrays).tobytes() for f in fs])
        assert results[0] == results[1] == results[2]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(lambda f=f: f(*arrays).tobytes()) for _ in range(4) for f in fs]
            assert [j.result() for j in jobs] == results[0] * 4
        assert _core.testing.blas_threads() == before

    # few rows, or columns: threads share parts of what is reduced
    rows = [(700, 900, dtype) for dtype in (SINGLE, *HALVES)]
    sweep(checked, [*rows, (30, 9000, SINGLE), (9000, 30, SINGLE)])


FORKED = {
    "numpy": """
import os, signal, numpy as np, kfusion as kf
x, w, tanh, count = np.ones((600, 200), np.float32), np.ones((200, 700), np.float32), kf.tanh, 3
once = lambda: (f(x, w) + x @ w).tolist()
""",
    "torch": """
import os, signal, torch, kfusion as kf
x, w, tanh, count = torch.ones(600, 200), torch.ones(200, 700), torch.tanh, 1
once = lambda: f(x, w).tolist()  # torch's own functions would wait for threads that the child has not
""",
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=[pytest.mark.slow, needs_torch])])
def test_in_a_forked_child(library):
    """Which has none of its parent's threads, neither ours nor the BLAS's."""
    script = (
        FORKED[library]
        + """
f = kf.FusedFunction(lambda x, w: tanh(x @ w), {"executors": ["cpu_products", "cpu"]})
want = once()
for _ in range(count):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that waits for ever
        os._exit(0 if once() == want else 1)
    assert os.waitpid(child, 0)[1] == 0
"""
    )
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
def test_tensors(some, rng):
    def checked(shape, how, dtype):
        tensors = [TENSORS[how](torch.from_numpy(a)) for a in operands(rng, *shape, dtype=dtype)]
        fused, tolerance = forced(of_tensors), 1e-5 if dtype == SINGLE else 1e-12
        got, want = fused(*tensors), of_tensors(*(t.double() for t in tensors))
        assert isinstance(got, torch.Tensor)
        assert [g.executor for g in fused.plan(*tensors).groups] == ["cpu_products"]
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)

    sweep(checked, some(itertools.product(SHAPES, TENSORS, (SINGLE, DOUBLE)), 8))


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


def test_refused():
    def checked(f, dtype, why):
        plan = kf.plan(f, kf.spec((64, 64), dtype), kf.spec((64, 64), dtype), device="EPYC-9654", executors="available")
        assert "cpu_products" not in [g.executor for g in plan.groups]
        assert not why or any(f"cpu_products {why}" in r.sentence for r in plan.refusals), plan.refusals

    rows = [(lambda x, w: x @ w, "float32", "")]
    rows += [(lambda x, w: kf.relu(x @ w), "int32", "computes products of floats of one type")]
    sweep(checked, rows)


def test_plans_say_how():
    spec = (kf.spec((4096, 1024)), kf.spec((4096, 1024)))
    (group,) = kf.plan(lambda x, w: kf.gelu(x @ w.T), *spec, device="EPYC-9654", executors="available").groups
    assert (group.executor, group.how[:10]) == ("cpu_products", "blocks of ")


@pytest.mark.parametrize("quick", [True, False])
def test_the_library_computes_what_it_is_quick_at(quick):
    """Torch's products are quick where the CPU has instructions for them."""
    d = kf.device("Xeon, 2 cores").to_dict()
    d["peaks"] = {**d["peaks"], "matrix_bfloat16": d["peaks"]["matrix_float32"] * (4 if quick else 0.3)}
    spec = kf.spec((1024, 1024), "bfloat16", like="torch")
    plan = kf.plan(lambda x, w: kf.relu(x @ w), spec, spec, device=kf.Device.from_dict(d), executors="available")
    assert [g.executor for g in plan.groups] == (["array_library", "cpu"] if quick else ["cpu_products"])
