"""Attention on the CPU, block by block with an online softmax: results against float64, for every mask and layout."""

import concurrent.futures
import itertools

import numpy as np
import pytest

import kfusion as kf
from cpu_products import HALVES, forced, poisoned, require_blas  # noqa: F401
from loops_by import all_generated
from sweeps import sweep

pytestmark = pytest.mark.native
require_blas()

PEAKS = {"vector_float32": 1e11, "vector_float64": 5e10, "matrix_float32": 1e11}
SLOW = kf.Device("slow", bandwidth=20e9, peaks=PEAKS, is_cpu=True)
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


def positions_within(s):
    """Positions in the scores' own shape, made in the kernel."""
    return kf.iota(s.shape, s.ndim - 2), kf.iota(s.shape, s.ndim - 1)


def causal_within(s):
    i, j = positions_within(s)
    return kf.where(j <= i, s, -np.inf)


def band_within(s):
    i, j = positions_within(s)
    return kf.where((j < i - 300) | (j > i + 20), -np.inf, s)


def late_within(s):
    """The first queries see nothing, and the others begin behind a block of keys."""
    i, j = positions_within(s)
    return kf.where(kf.logical_and(j >= 270, j <= 2 * i - 270), s * 2, -np.inf) * 0.5


def sloped_within(s):
    """A mask and a slope of int32, int64 and floats."""
    i, j = positions_within(s)
    i = (i.astype(np.int32) + 3).astype(np.int64)
    return kf.where((abs(i - j) <= 400) & (j.astype(np.int32) > 5), s - 0.125 * (i - j).astype(np.float32), -np.inf)


WITHIN = {
    "causal": lambda q, k, v, m, b: kf.softmax(causal_within(scores(q, k))) @ v,
    "a band": lambda q, k, v, m, b: kf.softmax(band_within(scores(q, k) + b)) @ v,
    "sloped": lambda q, k, v, m, b: kf.softmax(sloped_within(scores(q, k))) @ v,
    "late": lambda q, k, v, m, b: kf.softmax(late_within(scores(q, k))) @ v,
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
        with all_generated():
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


DTYPES = [np.dtype(np.float32), *HALVES, np.dtype(np.float64)]


def test_forms(some, rng):
    def checked(form, shape, dtype):
        is_single = form in FORMS
        check((FORMS | OF_POSITIONS)[form], *operands(rng, *shape, dtype=dtype), single=is_single)

    rows = [*itertools.product(FORMS, SHAPES, DTYPES)]
    rows += [*itertools.product(OF_POSITIONS, [s for s in SHAPES if s[2] <= s[3]], DTYPES[:1])]
    sweep(checked, some(rows, 10))


def test_hidden_keys(some, rng):
    """Blocks that no query sees are left out, unless their values are not finite: those give NaN, as in a product."""

    def checked(form, shape, dtype, value):
        arrays = operands(rng, *shape, dtype=dtype)
        arrays[2][-1, -1, -1, -1] = value
        with np.errstate(all="ignore"):
            check(WITHIN[form], *arrays)

    shapes = [(1, 2, 700, 700, 8, 8), (1, 1, 300, 2400, 8, 12), (1, 2, 1500, 260, 4, 5)]
    rows = itertools.product(WITHIN, shapes, DTYPES, (1, np.nan, np.inf))
    rows = [row for row in rows if row[0] != "sloped" or row[2] not in HALVES]  # whose scores would be float32
    sweep(checked, [*some(rows, 12), *itertools.product(WITHIN, [(2, 1, 1100, 1300, 4, 8)], DTYPES[:1], (1, np.inf))])


def test_a_causal_mask_is_made_where_it_hides_keys():
    def only_group(causal):
        f = lambda q, k, v: kf.attention(q, k, v, causal=causal)  # noqa: E731
        (group,) = kf.plan(f, *[kf.spec((1, 12, 1024, 64))] * 3, device=SLOW, executors="available").groups
        return group

    causal, whole = only_group(True), only_group(False)
    assert (causal.how, whole.how) == ("blocks of 256 x 1024, but for keys that positions hide", "blocks of 256 x 1024")
    assert causal.time_us < 0.7 * whole.time_us


def test_without_heads(rng):
    q, k, v, m, b = operands(rng, 2, 1, 60, 80, 8, 8)
    for index in ((0, 0), (0,)):
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


def test_layouts(some, rng):
    def checked(how, which, dtype):
        arrays = list(operands(rng, 2, 3, 90, 1300, 8, 12, dtype=dtype))
        for i in which:
            arrays[i] = how(arrays[i])
        check(FORMS["a mask"], *arrays)

    hows = (heads_behind_positions, transposed, every_second, backwards)
    sweep(checked, some(itertools.product(hows, ((0,), (1,), (2,), range(3)), DTYPES[:2]), 5))


def test_heads_that_share_keys(rng):
    q, k, v, m, b = operands(rng, 2, 6, 40, 1200, 8, 8)
    check(FORMS["a bias of each head"], q, k[:, :1], v[:, :1], m, b)
    check(FORMS["plain"], q, np.broadcast_to(k[:1, :1], k.shape), v, m, b)


def test_values_that_are_not_finite(some, rng):
    """Rows that see nothing are NaN, as in every softmax; those that see only the first or the last keys are not."""

    def checked(value, dtype):
        for where in range(3):
            arrays = operands(rng, 1, 2, 70, 2300, 8, 8, dtype=dtype)
            arrays[where][0, 1, 33, 5] = value
            check(FORMS["plain"], *arrays)

    def masked(rows, dtype):
        q, k, v, m, b = operands(rng, 1, 2, 60, 2300, 8, 8, dtype=dtype)
        m[:, :], m[:, 2200] = False, True
        m[10, :] = np.arange(2300) < 5
        m[rows] = False
        assert np.isnan(check(FORMS["a mask"], q, k, v, m, b)[:, :, rows].astype(np.float32)).all()

    sweep(checked, some(itertools.product((np.nan, np.inf, -np.inf), DTYPES[:3]), 3))
    sweep(masked, some(itertools.product((slice(3, 4), slice(0, 50)), DTYPES[:3]), 2))


def test_large_scores(rng):
    q, k, v, m, b = operands(rng, 1, 2, 70, 2300, 8, 8)
    with np.errstate(all="ignore"):
        got = forced(FORMS["plain"])(q * 300, k * 300, v, m, b)
        want = FORMS["plain"](*((a * s).astype(np.float64) for a, s in ((q, 300), (k, 300), (v, 1))), m, b)
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() < 0.3  # scores are rounded to hundredths


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_threads_and_callers(rng, threads, dtype):
    arrays, f = operands(rng, 2, 2, 600, 1100, 16, 16, dtype=dtype), forced(FORMS["a chain"])
    results = set()
    for n in (1, 2, 3):
        threads(n)
        results.add(f(*arrays).tobytes())
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results |= {j.result() for j in [pool.submit(lambda: f(*arrays).tobytes()) for _ in range(12)]}
    assert len(results) == 1


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


def test_a_mask_of_positions_is_of_the_library():
    """It leaves all hidden scores out, also of blocks on the diagonal."""
    torch = pytest.importorskip("torch")
    spec = kf.spec((2, 4, 256, 32), like="torch")
    f = lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
    for device in ("EPYC-9654", SLOW):
        (group,) = kf.plan(f, spec, spec, spec, device=device, executors="available").groups
        assert (group.executor, group.kind) == ("array_library", "library_call")


def test_refused():
    """Scores that are stored, and weights that are changed."""
    for f in (
        lambda q, k, v: (kf.softmax(q @ k.swapaxes(-1, -2)) @ v, q @ k.swapaxes(-1, -2)),
        lambda q, k, v: (kf.softmax(q @ k.swapaxes(-1, -2)) * 2) @ v,
    ):
        groups = kf.plan(f, *[kf.spec((2, 64, 16))] * 3, device="EPYC-9654", executors="available").groups
        assert "attention" not in [g.kind for g in groups]
