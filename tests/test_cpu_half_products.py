"""Products of half types on the CPU: computed in float32, and rounded once, where a result is stored."""

from __future__ import annotations

import concurrent.futures

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

pytestmark = pytest.mark.native
require_blas()

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-23, "bool": 0.0}  # a rounding, as a part of a number
LEAST = {"float16": 2.0**-24}  # distance of the smallest numbers
ALONE = {"executors": ["cpu_products", "cpu"]}


@pytest.fixture(params=HALVES, ids=str)
def half(request):
    return request.param


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def wide(x, dtype):
    return x.astype(dtype) if x.dtype in HALVES else x


def check(f, *arrays, scale=1.0):
    """One kernel, beside float64: what it computes differs by float32's rounding, and by that of the result."""
    fused = forced(f)
    (group,) = fused.plan(*arrays).groups
    assert group.executor == "cpu_products"
    with np.errstate(all="ignore"):
        want = as_tuple(f(*(wide(a, np.float64) for a in arrays)))
        got, again = as_tuple(fused(*arrays)), as_tuple(fused(*arrays))
    for one, other, wanted in zip(got, again, want, strict=True):
        assert one.shape == wanted.shape
        assert one.tobytes() == other.tobytes()
        exact = wanted.astype(one.dtype) if one.dtype in HALVES else wanted  # beyond its range: infinite
        assert np.array_equal(np.isnan(one), np.isnan(exact))
        fine = np.isfinite(wanted) & np.isfinite(exact)
        assert np.array_equal(np.asarray(one, np.float64)[~fine], np.asarray(exact, np.float64)[~fine], equal_nan=True)
        bound = 64 * 2.0**-23 * scale * (1 + np.abs(wanted[fine])) + UNIT[one.dtype.name] * np.abs(wanted[fine])
        assert (np.abs(one[fine].astype(np.float64) - wanted[fine]) <= bound + LEAST.get(one.dtype.name, 0)).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", [c for c in STORED if c != "bools"])  # of halves that are equal: decided by a digit
def test_stored(rng, case, shape, half):
    if case == "vector computed here" and shape[0] > 1000:  # may be predicted to be stored
        shape = (40, *shape[1:])
    check(STORED[case], *operands(rng, *shape, dtype=half))


@pytest.mark.parametrize("shape", [(m, k, n) for m, k, n in SHAPES if m > 1 and n > 1])
@pytest.mark.parametrize("case", [c for c in REDUCED if c != "any"])
def test_reduced(rng, case, shape, half):
    m, _, n = shape
    check(REDUCED[case], *operands(rng, *shape, dtype=half), scale=(m + n) ** 0.5)


@pytest.mark.parametrize("shape", SHAPES)
def test_alone(rng, shape, half):
    check(lambda x, w: x @ w, *operands(rng, *shape, dtype=half)[:2])


@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize("which", range(4))
def test_layouts(rng, how, which, half):
    arrays = list(operands(rng, 150, 1090, 610, dtype=half))  # several panels
    arrays[which] = how(arrays[which])
    check(STORED["residual" if which == 3 else "bias and gelu"], *arrays, scale=4)
    check(REDUCED["sums of rows"], *arrays, scale=60)


@pytest.mark.parametrize("how", [lambda x: x, sliced, padded])
def test_batches(rng, how, half):
    def draw_half(*shape):
        return how(draw(rng, *shape, dtype=half))

    x, w, ws, b = draw_half(5, 30, 20), draw_half(20, 40), draw_half(5, 20, 40), draw(rng, 40, dtype=half)
    check(lambda x, w, b: kf.relu(x @ w + b), x, w, b, scale=4)
    check(lambda x, w, b: kf.relu(x @ w + b), x, ws, b, scale=4)
    check(lambda x, w, b: (x @ w + b).max(1), x, w, b, scale=4)
    check(lambda x, w, b: logsumexp(x @ w + b, axis=-1), x, ws, b, scale=10)
    check(lambda q, k: kf.tanh(q @ k.swapaxes(-1, -2)), draw_half(2, 3, 9, 20), draw_half(2, 3, 11, 20))
    check(lambda x, w: kf.tanh(x @ w), draw_half(700, 1, 20), draw_half(20, 40))  # rows of one element each
    check(
        lambda x, w: kf.tanh(x @ w),
        np.broadcast_to(draw(rng, 1, 30, 20, dtype=half), (4, 30, 20)),
        draw_half(4, 20, 40),
    )


def test_gates(rng, half):
    x, g, u = draw(rng, 300, 700, dtype=half), draw(rng, 900, 700, dtype=half), draw(rng, 900, 700, dtype=half)
    check(lambda x, g, u: kf.silu(x @ g.T / 26) * (x @ u.T / 26), x, g, u, scale=8)


def test_large_sums_do_not_overflow(rng):
    """float16 ends at 65504: sums beyond it are what follows sees, and not infinities."""
    x, w = np.full((40, 2000), 16, np.float16), np.full((2000, 30), 16, np.float16)
    assert (forced(lambda x, w: x @ w * 2**-10)(x, w) == 500).all()
    assert np.isinf(forced(lambda x, w: x @ w)(x, w)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(rng, value, half):
    x, w, b, r, c = operands(rng, 70, 30, 2200, dtype=half)
    x[3, 5] = value
    r[10, 100] = value
    for f in (STORED["residual"], STORED["bias and gelu"], REDUCED["largest of rows"], REDUCED["logsumexp"]):
        check(f, x, w, b, r, c)


def test_bits_do_not_depend_on_threads(rng, half):
    arrays = operands(rng, 700, 1300, 900, dtype=half)
    fs = [forced(f) for f in (STORED["bias and gelu"], REDUCED["splade"], REDUCED["logsumexp"])]
    before, results = kf.get_num_threads(), []
    for n in (1, 2, 3):
        kf.set_num_threads(n)
        results.append([f(*arrays).tobytes() for f in fs])
    kf.set_num_threads(before)
    assert results[0] == results[1] == results[2]


def test_several_callers(rng, half):
    arrays = operands(rng, 600, 200, 700, dtype=half)
    f = forced(STORED["bias and gelu"])
    want = f(*arrays).tobytes()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(lambda: f(*arrays).tobytes()) for _ in range(12)]
        assert [j.result() for j in jobs] == [want] * 12


def test_numpy_has_no_product_of_halves(rng, half):
    """So ours is taken, also alone."""
    x, w = operands(rng, 64, 64, 64, dtype=half)[:2]
    for f in (lambda x, w: x @ w, lambda x, w: kf.relu(x @ w)):
        assert [g.executor for g in kf.fuse(f).plan(x, w).groups] == ["cpu_products"]


@pytest.mark.parametrize("quick", [True, False])
def test_the_library_computes_what_it_is_quick_at(quick):
    """Torch's products are quick where the CPU has instructions for them."""
    cpu = kf.device("Xeon, 2 cores")
    d = cpu.to_dict()
    d["peaks"] = {**d["peaks"], "matrix_bfloat16": d["peaks"]["matrix_float32"] * (4 if quick else 0.3)}
    spec = kf.spec((1024, 1024), "bfloat16", like="torch")
    plan = kf.plan(lambda x, w: kf.relu(x @ w), spec, spec, device=kf.Device.from_dict(d), executors="available")
    assert [g.executor for g in plan.groups] == (["array_library", "cpu"] if quick else ["cpu_products"])


def test_tensors(rng):
    torch = pytest.importorskip("torch")
    x, w = torch.randn(300, 100, dtype=torch.float16), torch.randn(100, 500, dtype=torch.float16)
    fused = forced(lambda x, w: torch.relu(x @ w) * 0.5)
    got = fused(x, w)
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.double(), torch.relu(x.double() @ w.double()) * 0.5, rtol=2e-3, atol=1e-4)
