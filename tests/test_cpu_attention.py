"""Attention on the CPU, block by block with an online softmax: results against float64, for every mask and layout."""

from __future__ import annotations

import concurrent.futures

import numpy as np
import pytest

import kfusion as kf
from cpu_products import HALVES, forced, poisoned, require_blas  # noqa: F401

pytestmark = pytest.mark.native
require_blas()

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # of a result, as a part of it

# batches, heads, queries, keys, numbers of a key, of a value: one query, tails, several blocks of queries, of keys
SHAPES = [(2, 3, 50, 70, 16, 24), (1, 1, 300, 1100, 8, 8), (2, 2, 700, 300, 16, 16), (1, 2, 1, 2300, 32, 32),
          (3, 1, 5, 2, 1, 1), (1, 2, 260, 2050, 4, 5)]  # fmt: skip


def scores(q, k):
    return q @ k.swapaxes(-1, -2) * 0.5 ** (q.shape[-1].bit_length() // 2)  # a number of every type


def positions(s):
    return kf.iota(s.shape[-2:], 0), kf.iota(s.shape[-2:], 1)


def causal(s):
    i, j = positions(s)
    return kf.where(i + s.shape[-1] - s.shape[-2] >= j, s, -np.inf)


def window(s):
    i, j = positions(s)
    return kf.where((i >= j) & (i - j < 40), s, -1e9)


FORMS = {
    "plain": lambda q, k, v, m, b: kf.softmax(scores(q, k)) @ v,
    "a mask": lambda q, k, v, m, b: kf.softmax(kf.where(m, scores(q, k), -np.inf)) @ v,
    "a bias of each head": lambda q, k, v, m, b: kf.softmax(scores(q, k) + b) @ v,
    "a soft cap": lambda q, k, v, m, b: kf.softmax(20 * kf.tanh(scores(q, k) / 20)) @ v,
    "a chain": lambda q, k, v, m, b: kf.softmax(kf.where(m, kf.tanh(scores(q, k) + b) * 3, -1e9)) @ v,
    "followed by maps": lambda q, k, v, m, b: kf.tanh(kf.softmax(scores(q, k)) @ v) * 2 + 1,
    "turned": lambda q, k, v, m, b: (kf.softmax(scores(q, k)) @ v).swapaxes(1, 2),
}
OF_POSITIONS = {
    "causal": lambda q, k, v, m, b: kf.softmax(causal(scores(q, k))) @ v,
    "a window": lambda q, k, v, m, b: kf.softmax(window(scores(q, k))) @ v,
}


def operands(rng, b, h, q, k, d, e, dtype=np.float32):
    draw = lambda *shape: rng.standard_normal(shape).astype(dtype)  # noqa: E731
    mask = rng.random((q, k)) < 0.7
    mask[:, 0] = True
    return draw(b, h, q, d), draw(b, h, k, d), draw(b, h, k, e), mask, draw(h, q, k)


def check(f, *arrays, single=True):
    """`f` on the arrays, beside what it gives in float64; one kernel, whatever its mask is made of."""
    fused = forced(f)
    groups = [(g.kind, g.executor) for g in fused.plan(*arrays).groups]
    assert ("attention", "cpu_products") in groups, groups
    assert len(groups) == 1 or not single, groups
    with np.errstate(all="ignore"):
        got, again = fused(*arrays), fused(*arrays)
        want = f(*(a.astype(np.float64) if a.dtype != bool else a for a in arrays))
    assert got.tobytes() == again.tobytes()
    assert got.shape == want.shape
    assert np.array_equal(np.isnan(got), np.isnan(want))
    bound = 1e-13 * (1 + np.abs(want)) if got.dtype == np.float64 else 1e-5 * (1 + np.abs(want))
    if got.itemsize == 2:  # rounded once, at the end
        bound += ROUNDING[got.dtype.name] * np.abs(want) + 1e-7
        got = got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        assert (np.isnan(want) | (got == want) | (np.abs(got - want) <= bound)).all()
    return got


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_forms(rng, form, shape):
    check(FORMS[form], *operands(rng, *shape))


@pytest.mark.parametrize("shape", [s for s in SHAPES if s[2] <= s[3]])
@pytest.mark.parametrize("form", OF_POSITIONS)
def test_masks_of_positions(rng, form, shape):
    check(OF_POSITIONS[form], *operands(rng, *shape), single=False)


def test_float64(rng):
    arrays = operands(rng, 2, 2, 300, 1500, 16, 16, dtype=np.float64)
    for form in ("a chain", "plain"):
        check(FORMS[form], *arrays)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_half_types(rng, shape, dtype):
    for form in ("plain", "a chain", "followed by maps", "turned"):
        check(FORMS[form], *operands(rng, *shape, dtype=dtype))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_half_types_that_are_not_finite(rng, value, dtype):
    for where in range(3):
        arrays = operands(rng, 1, 2, 70, 1300, 8, 8, dtype=dtype)
        arrays[where][0, 1, 33, 5] = value
        check(FORMS["plain"], *arrays)
    q, k, v, m, b = operands(rng, 1, 2, 60, 2300, 8, 8, dtype=dtype)
    m[:, :], m[:, 2200] = False, True
    m[3] = False
    assert np.isnan(check(FORMS["a mask"], q, k, v, m, b)[:, :, 3].astype(np.float32)).all()


@pytest.mark.parametrize("rank", [2, 3])
def test_without_heads(rng, rank):
    q, k, v, m, b = operands(rng, 2, 1, 60, 80, 8, 8)
    index = (0,) * (4 - rank)
    check(FORMS["a mask"], q[index], k[index], v[index], m, b)


def heads_behind_positions(x):
    return np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)


def transposed(x):
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def every_second(x):
    wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan, x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


def backwards(x):
    return x[:, ::-1, ::-1].copy()[:, ::-1, ::-1]


@pytest.mark.parametrize("dtype", [np.float32, HALVES[0]], ids=str)
@pytest.mark.parametrize("how", [heads_behind_positions, transposed, every_second, backwards])
@pytest.mark.parametrize("which", [0, 1, 2, None])
def test_layouts(rng, how, which, dtype):
    arrays = list(operands(rng, 2, 3, 90, 1300, 8, 12, dtype=dtype))
    for i in range(3) if which is None else [which]:
        arrays[i] = how(arrays[i])
    check(FORMS["a mask"], *arrays)


def test_heads_that_share_keys(rng):
    q, k, v, m, b = operands(rng, 2, 6, 40, 1200, 8, 8)
    check(FORMS["a bias of each head"], q, k[:, :1], v[:, :1], m, b)
    check(FORMS["plain"], q, np.broadcast_to(k[:1, :1], k.shape), v, m, b)


@pytest.mark.parametrize("rows", [slice(3, 4), slice(0, 50)])
def test_rows_that_see_nothing(rng, rows):
    """Are NaN, as in every softmax; those that see only the first or the last keys are not."""
    q, k, v, m, b = operands(rng, 1, 2, 60, 2300, 8, 8)
    m[:, :], m[:, 2200] = False, True
    m[10, :] = np.arange(2300) < 5
    m[rows] = False
    got = check(FORMS["a mask"], q, k, v, m, b)
    assert np.isnan(got[:, :, rows]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", range(3))
def test_values_that_are_not_finite(rng, value, where):
    arrays = operands(rng, 1, 2, 70, 2300, 8, 8)
    arrays[where][0, 1, 33, 5] = value
    check(FORMS["plain"], *arrays)


def test_large_scores(rng):
    q, k, v, m, b = operands(rng, 1, 2, 70, 2300, 8, 8)
    with np.errstate(all="ignore"):
        got = forced(FORMS["plain"])(q * 300, k * 300, v, m, b)
        want = FORMS["plain"](*((a * s).astype(np.float64) for a, s in ((q, 300), (k, 300), (v, 1))), m, b)
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() < 0.3  # scores are rounded to hundredths


def test_numbers_of_a_call(rng):
    q, k, v, *_ = operands(rng, 1, 2, 30, 40, 8, 8)
    f = forced(lambda q, k, v, s: kf.softmax(q @ k.swapaxes(-1, -2) * s) @ v)
    for s in (0.5, 2.0):
        np.testing.assert_allclose(f(q, k, v, s), kf.softmax(q @ k.swapaxes(-1, -2) * s) @ v, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, HALVES[0]], ids=str)
def test_bits_do_not_depend_on_threads(rng, dtype):
    arrays = operands(rng, 2, 2, 600, 1100, 16, 16, dtype=dtype)
    f, before, results = forced(FORMS["a chain"]), kf.get_num_threads(), []
    for n in (1, 2, 3):
        kf.set_num_threads(n)
        results.append(f(*arrays).tobytes())
    kf.set_num_threads(before)
    assert len(set(results)) == 1


def test_several_callers(rng):
    arrays = operands(rng, 2, 2, 300, 1100, 16, 16)
    f = forced(FORMS["a chain"])
    want = f(*arrays).tobytes()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(lambda: f(*arrays).tobytes()) for _ in range(12)]
        assert [j.result() for j in jobs] == [want] * 12


def test_tensors(rng):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rng.standard_normal((2, 300, 3, 4, 16)).astype(np.float32))

    def f(x, mask):
        q, k, v = (x[:, :, i].transpose(1, 2) for i in range(3))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    for mask in (None, torch.randn(300, 300)):
        fused = kf.fuse(f)
        torch.testing.assert_close(fused(x, mask), f(x, mask), rtol=1e-4, atol=1e-5)
        executors = [g.executor for g in fused.plan(x, mask).groups if g.kind == "attention"]
        assert executors == ["cpu_products"]


def test_a_mask_of_positions_is_the_librarys():
    """It leaves half of the scores out."""
    torch = pytest.importorskip("torch")
    spec = kf.spec((2, 4, 256, 32), like="torch")
    f = lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
    peaks = {"vector_float32": 1e11, "vector_float64": 5e10, "matrix_float32": 1e11}
    slow = kf.Device("slow", bandwidth=20e9, peaks=peaks, is_cpu=True)
    for device in ("EPYC-9654", slow):
        (group,) = kf.plan(f, spec, spec, spec, device=device, executors="available").groups
        assert (group.executor, group.kind) == ("array_library", "library_call")


REFUSED = {
    "scores that are stored": (lambda q, k, v: (kf.softmax(q @ k.swapaxes(-1, -2)) @ v, q @ k.swapaxes(-1, -2)),
                               "float32"),
    "weights that are changed": (lambda q, k, v: (kf.softmax(q @ k.swapaxes(-1, -2)) * 2) @ v, "float32"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    f, dtype = REFUSED[case]
    groups = kf.plan(f, *[kf.spec((2, 64, 16), dtype)] * 3, device="EPYC-9654", executors="available").groups
    assert "attention" not in [g.kind for g in groups]
