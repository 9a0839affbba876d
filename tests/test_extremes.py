"""Positions of the largest and smallest elements: NumPy's and torch's own, of ties, NaN, zeros and every dtype; and how
many kernels they are."""

import itertools

import numpy as np
import pytest

import kfusion as kf
from graph_runs import draw, wide
from kfusion._ops import extremes
from kinds import DTYPES as FLOATS
from sweeps import sweep

pytestmark = pytest.mark.native

DTYPES = ("float32", "float64", "float16", "int32", "int64", "bool")
ARG = [(kf.argmax, np.argmax), (kf.argmin, np.argmin)]


def arrays(shape, dtype):
    """Few values, so that many are equal; zeros of both signs; with an infinity, with NaN, with both; nothing else."""
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, shape).astype(dtype)
    yield x
    if x.dtype.kind != "f":
        return
    yield np.where(rng.random(shape) < 0.5, -0.0, 0.0).astype(dtype)
    for value in (np.inf, -np.inf, np.nan):
        yield np.full(shape, value, dtype)
        x = np.where(rng.random(shape) < 1.5 / max(shape[-1], 1), value, x).astype(dtype)
        yield x


def check(x, axis, keepdims=False):
    for ours, numpys in ARG:
        got, want = ours(x, axis, keepdims), numpys(x, axis, keepdims=keepdims)
        assert got.dtype == np.int64
        np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpys_positions(dtype):
    """Rows of registers, of tiles and of several chunks; columns; strided arrays; everything."""
    for shape in ((1,), (17,), (3, 5), (5, 300), (2, 3, 4), (3, 9001)):
        for x in arrays(shape, dtype):
            for axis in (None, *range(x.ndim)):
                check(x, axis, keepdims=x.ndim == 3)
    for x in arrays((6, 70), dtype):
        check(x[::-2, ::-1], -1)
        check(x.T, -1)
        check(x[:, ::3], 0)
    check(np.array(1, dtype), None)
    assert kf.argmax(np.zeros((0, 3), dtype), 1).shape == (0,)


# Less than a register, whole ones, around a chunk of each width, and around what is searched as a whole.
COLS = [64, 65, 127, 511, 512, 513, 1023, 1024, 1025, 1100, 2049, 5000]


def test_rows_around_a_chunk(isa, some, rng):
    """The extreme is in the last element, in each other row; or everywhere."""

    def checked(dtype, cols):
        for rows in (1, 20):
            for x in arrays((rows, cols), dtype):
                last = x.copy()
                last[:, -1], last[::2, -1] = 100, -100
                for given in (x, last):
                    got = kf.fuse(lambda x: (x.argmax(-1), x.argmin(-1), x.max(-1)))(given)
                    for a, b in zip(got, (given.argmax(-1), given.argmin(-1), given.max(-1)), strict=True):
                        np.testing.assert_array_equal(a, b)

    sweep(checked, [("int32", COLS[-1]), *some(itertools.product(DTYPES[:5], COLS), 7)])


@pytest.mark.parametrize("shape", [(20, 9), (3, 40), (2, 7, 11), (60, 2), (131,)])
def test_long_rows_are_searched_in_parts(shape, monkeypatch):
    monkeypatch.setattr(extremes, "_LONG", 30)
    monkeypatch.setattr(extremes, "_PART", range(4, 13))
    for x in arrays(shape, "float32"):
        for axis in {None, len(shape) - 1}:
            f = kf.fuse(lambda v, axis=axis: (v.argmax(axis), v.argmin(axis, keepdims=True)))
            for version in (f, f.unfused):
                for got, want in zip(version(x), f.__wrapped__(x), strict=True):
                    np.testing.assert_array_equal(got, want)


# Positions in what is computed, kept, stored as well, or reduced in other ways beside them.
BESIDE = {
    "computed": lambda x: kf.negative(x).argmax(-1),
    "kept": lambda x: ((p := kf.sqrt(kf.absolute(x))).max(-1), p.argmax(-1), p.argmin(-1)),
    "stored": lambda x: ((p := x + 1), p.argmin(-1)),
    "stored later": lambda x: ((p := kf.sqrt(kf.absolute(x))) - p.max(-1, keepdims=True), p.argmax(-1)),
    "of a quotient": lambda x: ((p := x / x.max(-1, keepdims=True)).min(-1), p.argmin(-1)),
    "bools": lambda x: ((x > 1).argmax(-1), (x == x.max(-1, keepdims=True)).argmin(-1)),
    "integers": lambda x: ((i := kf.astype(x * 4, "int32")).max(-1), i.argmax(-1), kf.astype(i, "int64").argmin(-1)),
    "two": lambda x: (x.argmax(-1), x.argmin(-1), x.sum(-1), kf.exp(x - x.max(-1, keepdims=True)).sum(-1)),
}


def test_positions_beside_other_values(isa, some, rng):
    def checked(case, shape):
        f = kf.fuse(BESIDE[case])
        x = rng.integers(-50, 50, shape).astype(np.float32) / 8 + 7
        got, want = f(x), f.unfused(x)
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
            np.testing.assert_allclose(a, b, rtol=0 if a.dtype == np.int64 else 1e-6)

    shapes = ((3, 5), (9, 40), (7, 1030), (2, 9000), (1, 20_000), (2, 66_000))
    sweep(checked, some(itertools.product(BESIDE, shapes), 10))


def test_what_is_no_search_stays():
    """The smallest of chosen numbers that are not positions, or whose bound is one; of a number that differs."""
    rng = np.random.default_rng(0)
    x, numbers = rng.integers(0, 9, (7, 40)).astype(np.float32), rng.integers(0, 99, (7, 80)).astype(np.int32)
    cases = {
        "numbers": lambda x, n: kf.where(x == kf.max(x, -1, True), n[:, ::2], 1000).min(-1),
        "bound": lambda x, n: kf.where(x == kf.max(x, -1, True), kf.iota(40, dtype="int32"), 5).min(-1),
        "rows": lambda x, n: kf.where(x == kf.max(x, -1, True), kf.iota((7, 40), 0, dtype="int32") + 0, 99).min(-1),
        "columns": lambda x, n: kf.where(x == kf.max(x, 0, True), kf.iota(40, dtype="int32"), 99).min(-1),
        "not NaN": lambda x, n: kf.where((x == kf.max(x, -1, True)) | kf.isnan(x + n[:, :40]), n[:, ::2], 99).min(-1),
        "each": lambda x, n: kf.where(x == x * 1, kf.iota(40, dtype="int32"), 99).min(-1),
    }
    for name, f in cases.items():
        fused = kf.fuse(f)
        np.testing.assert_array_equal(fused(x, numbers), fused.unfused(x, numbers), err_msg=name)


@pytest.mark.parametrize(("shape", "axis"), [((300, 40), 1), ((40, 300), 0), ((3, 9, 300), (0, 1))], ids=str)
@pytest.mark.parametrize("step", [1, -1])
def test_positions_that_descend(shape, axis, step, rng):
    """The least position of an extreme is the last one's then."""
    x = rng.integers(0, 3, shape).astype(np.float32)
    along = axis[-1] if isinstance(axis, tuple) else axis

    def least(x, positions, to):
        hit = to.logical_or(x == x.max(axis, keepdims=True), to.isnan(x))
        return to.where(hit, to.flip(positions, along) if step < 0 else positions, 1000).min(axis)

    got = kf.fuse(lambda x: least(x, kf.iota(shape, along), kf))(x)
    np.testing.assert_array_equal(got, least(x, np.indices(shape)[along], np))


@pytest.mark.parametrize("dtype", FLOATS)
def test_losses_by_class_numbers(dtype, isa, rng):
    cols = int(rng.choice([64, 130, 3000]))
    x, t = draw(rng, dtype, (20, cols)), rng.integers(-cols, cols, 20).astype(rng.choice(["int32", "int64"]))
    f = kf.fuse(lambda x, t: kf.logsumexp(x, -1) - kf.take_along_axis(x * 2, t[:, None], 1)[:, 0])
    want = np.log(np.exp(wide(x)).sum(-1)) - 2 * wide(x)[np.arange(20), t]
    within = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}[dtype]
    np.testing.assert_allclose(wide(f(x, t)), want, atol=within)


def test_cross_entropy_of_torch(isa, some):
    torch = pytest.importorskip("torch")
    x, t = torch.randn(40, 300), torch.randint(0, 300, (40,))
    t[3] = -100
    x[5, 7], x[6, 8] = float("nan"), float("inf")

    def checked(reduction, smoothing):
        def loss(x, t):
            return torch.nn.functional.cross_entropy(x, t, reduction=reduction, label_smoothing=smoothing)

        torch.testing.assert_close(kf.fuse(loss)(x, t), loss(x, t), rtol=2e-6, atol=2e-6, equal_nan=True)

    sweep(checked, some(itertools.product(("none", "mean", "sum"), (0.0, 0.1)), 3))


def test_errors():
    with pytest.raises(ValueError, match=r"kfusion\.argmax: there must be an element to find, got shape \(0, 3\)"):
        kf.argmax(np.zeros((0, 3)), 0)
    with pytest.raises(ValueError, match=r"kfusion\.argmin: axis 2 is out of bounds"):
        kf.argmin(np.zeros((2, 3)), 2)
    with pytest.raises(TypeError, match=r"kfusion\.argmax: axis must be integers"):
        kf.argmax(np.zeros((2, 3)), (0, 1))


@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_torchs_positions(dtype):
    torch = pytest.importorskip("torch")
    cases = [
        lambda t: t.argmax(),
        lambda t: t.argmin(-1, keepdim=True),
        lambda t: torch.argmax(t, dim=0),
        lambda t: torch.argmax(t, None, True),
        lambda t: tuple(t.max(1)),
        lambda t: torch.min(t, dim=0, keepdim=True).indices,
        lambda t: t.max(0)[1] + t.min(0)[1],
        lambda t: t[0, 0].max(0).indices,
    ]
    for x in arrays((5, 37), "float32" if dtype == "bfloat16" else dtype):
        x = torch.from_numpy(x).to(getattr(torch, dtype))
        for f in cases[4:] if dtype == "bool" else cases:
            got, want = (r if isinstance(r, tuple) else (r,) for r in (kf.fuse(f)(x), f(x)))
            for a, b in zip(got, want, strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a.float().numpy(), b.float().numpy())


def test_booleans_have_no_positions_in_torch():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"kfusion\.argmax: torch wants numbers other than bools"):
        kf.plan(lambda t: t.argmax(), torch.ones(3) > 0)


ONE_KERNEL = {
    "alone": lambda x: x.argmax(-1),
    "with its value": lambda x: (x.max(-1), x.argmax(-1)),
    "of what is computed": lambda x: kf.relu(x * 2).argmax(0) + 1,
    "beside softmax": lambda x: (kf.softmax(x), x.argmax(-1)),
    "everything": lambda x: x.argmax(),
    "both": lambda x: (x.argmax(-1), x.argmin(-1)),
}


def test_kernels():
    def checked(case):
        plan = kf.plan(ONE_KERNEL[case], kf.spec((37, 53)), device="H200")
        assert [len(g.loads) for g in plan.groups] == [1]

    sweep(checked, [(case,) for case in ONE_KERNEL])


def test_what_max_of_torch_gives_is_one_kernel():
    x = kf.spec((64, 128), like="torch")
    plan = kf.plan(lambda x: tuple(x.max(-1)), x)
    assert len(plan.groups) == 1
    assert plan.fused.compulsory.total == 64 * 128 * 4 + 64 * 12
    assert len(kf.trace(lambda x: x.max(-1).values, x)) == 2


def test_long_rows_are_read_once():
    plan = kf.plan(lambda x: x.argmax(), kf.spec((4096, 4096)), device="H200")
    assert [(g.kind, g.passes if not g.row_on_chip else 1) for g in plan.groups] == [("rows", 1)] * 2
    assert plan.fused.issued.total < 1.01 * 4096 * 4096 * 4
