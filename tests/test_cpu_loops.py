"""Loops that are generated for the CPU: functions of NumPy's arrays over shapes of every kind of loop, with arrays that
lie anyhow and hold anything, against the same functions in float64; the interpreter's bits where these are promised."""

import itertools
from contextlib import contextmanager

import numpy as np
import pytest

import kfusion as kf
from graph_runs import draw, wide
from kfusion import _core
from kinds import ALL_DTYPES, DTYPES, np_dtype
from layouts import laid_out
from loops_by import GENERATED, RELATIVE, assert_near, check, generated, generated_all, loops_by
from sweeps import sweep

pytestmark = GENERATED
EPS = 0.25  # of norms: rows of elements that are nearly equal would show nothing but roundings


def kept(axis):
    return {"axis": axis, "keepdims": True}


def moments(x, y, w, axis):
    centred = x - x.mean(**kept(axis))
    variance = np.square(centred).mean(**kept(axis))
    return centred / np.sqrt(variance + EPS) * w, x.mean(axis), variance


def gradient(x, y, w, axis):
    """The gradient of a norm: several sums, of two arrays."""
    centred = x - x.mean(**kept(axis))
    scale = 1 / np.sqrt(np.square(centred).mean(**kept(axis)) + EPS)
    normal, given = centred * scale, y * w
    dx = scale * (given - given.mean(**kept(axis)) - normal * (given * normal).mean(**kept(axis)))
    return dx, (y * normal).sum(**kept(axis))


def softmax(x, y, w, axis):
    e = np.exp(x - x.max(**kept(axis)))
    return e / e.sum(**kept(axis)), np.tanh(x) * y


def several(x, y, w, axis):
    """Reductions that are loops of their own, and what is stored beside them."""
    high, low = x.max(axis), x.min(axis)
    return (high, low, abs(x).max(axis), x.sum(axis), np.maximum(x, 0).mean(axis), x * 2,
            np.square(x).sum(axis) * (high - low), abs(x - x.mean(**kept(axis))))  # fmt: skip


def shared(x, y, w, axis):
    """What several sweeps make of a long function."""
    z = np.exp(np.tanh(x)) * w + 1
    return z - z.mean(**kept(axis)), z * y * (z * y).mean(**kept(axis))


# Functions of x, of y like it, of w that broadcasts to it, and of axes.
SUMMED = {
    "sums": lambda x, y, w, axis: (x.sum(axis), (x * y).sum(axis), (x + w).mean(axis)),
    "squares": lambda x, y, w, axis: ((d := np.square(x - x.mean(**kept(axis)))).mean(axis), d.sum(axis)),
    "product": lambda x, y, w, axis: (np.sign(x - 0.5) * 2**-7 + 1).prod(axis),
    "of two widths": lambda x, y, w, axis: (x.max(axis), x.astype("float64").sum(axis)),
    "counts": lambda x, y, w, axis: (c := (x > w).sum(**kept(axis)), x * (c.astype(x.dtype) * 2.0**-9)),
    **{f.__name__: f for f in (moments, gradient, softmax, several, shared)},
}
CHOSEN = {  # to the bit
    "extremes": lambda x, y, w, axis: (x.max(axis), x.min(axis), np.maximum(x, w).max(**kept(axis))),
    "truth": lambda x, y, w, axis: ((x > w).any(axis), (x != y).all(axis), (x > 0).sum(axis)),
    "beside elements": lambda x, y, w, axis: (x - x.max(**kept(axis)), np.minimum(x, y), x.min(axis)),
    "positions": lambda x, y, w, axis: (x.argmax(axis), x.argmin(axis), x.max(axis)),
    "of integers": lambda x, y, w, axis: (x.sum(axis), x.prod(axis), x.mean(axis)),
}


def of(axis, *shapes):
    return [(shape, axis) for shape in shapes]


# Around registers, tiles and chunks; short ones, a lane each; long ones, which go by in pieces.
ROWS = of(-1, (17, 64), (20, 65), (33, 300), (18, 1023), (20, 4096), (3, 4097), (1, 100), (16, 127), (9, 9001))
ROWS += of(-1, *zip((1, 7, 16, 40, 131) * 3, (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 24, 31, 33, 50, 63), strict=True))
ROWS += of(-1, (1, 16_385), (3, 20_001), (2, 5, 70_001), (17, 65_537), (0, 5), (77, 0))
WHOLE = of(None, (1,), (5,), (64,), (4097,), (16_385,), (90_000,), (300, 70), (40, 6, 50))
# Few rows are in tiles, more in blocks, many in parts; narrow ones lie side by side.
COLUMNS = of(0, (1, 40), (3, 16), (7, 17), (64, 63), (65, 64), (66, 65), (130, 333), (9, 2100), (70, 2049))
COLUMNS += of(0, (9000, 70), (70_000, 5), (4200, 300), (2000, 301), (40, 5000), (900, 1001))
COLUMNS += of(0, (300, 1), (65, 5), (257, 3), (1000, 20), (997, 50), (1300, 129), (9001, 24), (32_772, 8))
SEVERAL = of((0, 2, 3), (20, 17, 5, 7), (3, 20, 1, 65), (4, 33, 3, 32), (2, 18, 40, 2))
SEVERAL += [((4, 9, 5, 40), axes) for axes in (1, (0, 2), (1, 2), (0, 1))] + of((0, 1), (3, 70, 3, 33), (30, 2, 2, 100))
SEVERAL += [((6, 50, 7), (1, 2)), ((2, 5, 3, 4), (2, 3)), ((3, 501, 6), 1), ((2, 300, 70), (0, 2)), ((6, 70, 50), 1)]
SEVERAL += of((1, 2), (3, 10, 1024), (2, 7, 999), (3, 70, 1000), (4, 2100, 3))
# Runs of a channel's elements: around a tile, a chunk, and lines that runs share.
RUNS = of((0, 2), (40, 3, 255), (17, 2, 256), (19, 3, 257), (5, 2, 1000), (2, 3, 4096), (3, 2, 4097), (2, 2, 9001))
RUNS += of((0, 2), (33, 1, 300), (96, 1, 9001))


def drawn(rng, dtype, shape, special=0.25):
    """Values of some units; ones that are alike and, sometimes, special ones among them."""
    if dtype == "bool" or dtype.startswith("int"):
        return draw(rng, dtype, shape)
    x = np.asarray(rng.normal(0.5, 1, shape)).round(int(rng.choice([1, 9])))
    if rng.random() < special and x.size:
        x.flat[rng.integers(0, x.size, 3)] = rng.choice([np.nan, np.inf, -np.inf, -0.0, 0.0], 3)
    return x.astype(np_dtype(dtype))


def lying(rng, x, repeats=True):
    """The array as it is, or lying otherwise: in another order, with gaps, backwards, among others, repeated."""
    how = rng.integers(6)
    if how < 2 or x.ndim == 0 or x.size > 300_000:
        return x
    if how == 2 and repeats:
        axis = rng.integers(x.ndim)
        return np.broadcast_to(x[(slice(None),) * axis + (slice(0, 1),)], x.shape)
    if how == 3:
        room = np.full([*x.shape[:-1], x.shape[-1] + 5], 77, x.dtype)
        room[..., 3:-2] = x
        return room[..., 3:-2]
    order = map(int, rng.permutation(x.ndim)) if how == 4 else range(x.ndim)
    return laid_out(x, (list(order), [int(s) for s in rng.choice([1, 1, 1, 2, -1, -3], x.ndim)]))


def draws(rng, dtypes):
    """A dtype, an instruction set and a seed."""
    return str(rng.choice(dtypes)), str(rng.choice(_core.available_isas())), int(rng.integers(2**31))


@contextmanager
def instructions(isa):
    before = _core.isa()
    _core.testing.set_isa(isa)
    try:
        yield
    finally:
        _core.testing.set_isa(before)


NUMBERS = [d for d in ALL_DTYPES if d != "bool"]
DTYPES_OF = {
    "of integers": ("bool", "int32", "int64"),
    "extremes": ALL_DTYPES,
    "truth": ALL_DTYPES,
    "beside elements": NUMBERS,
    "positions": NUMBERS,
}


def cases(shapes, some, rng):
    """Each function for each shape, or some of them in a sample."""
    for shape, axis in shapes:
        for name in some([*SUMMED, *CHOSEN], 2):
            if name in ("truth", "counts") or 0 not in shape:
                yield name, shape, axis, *draws(rng, DTYPES_OF.get(name, DTYPES))


def reduced(name, shape, axis, dtype, isa, seed):
    if name == "positions" and isinstance(axis, tuple):
        name = "extremes"
    rng, f = np.random.default_rng(seed), (SUMMED | CHOSEN)[name]
    x = lying(
        rng, drawn(rng, dtype, shape), repeats=name in CHOSEN
    )  # where a variance is 0, roundings are all there is
    y = lying(rng, drawn(rng, dtype, shape))
    w = drawn(rng, dtype, [e if rng.random() < 0.5 else 1 for e in shape], special=0)
    own = lambda x, y, w: f(x, y, w, axis)  # noqa: E731
    is_split = dtype in DTYPES[:2] and len(kf.fuse(own).plan(x, y, w).groups) > 1
    if name == "gradient" and (is_split or x.size > 10_000 * np.size(x.any(axis))):
        x, y, w = (v.astype(np.float64) for v in (x, y, w))  # a mean is rounded, which adds up
    with instructions(isa):
        check(own, x, y, w, exact=name in CHOSEN)


def test_rows(some, rng):
    sweep(reduced, cases([*ROWS, *WHOLE], some, rng))


def test_columns(some, rng):
    sweep(reduced, cases(COLUMNS, some, rng))


def test_several_axes(some, rng):
    sweep(reduced, cases([*SEVERAL, *RUNS], some, rng))


# Functions of arrays of m short rows of c elements in n images; the interpreter's bits.
MAPS = {
    "two results": lambda x, y, w: (np.maximum(x, y), y + x),
    "a row's and a column's": lambda x, y, w: np.maximum(x * w, y[..., :1]) + np.sqrt(abs(w[:, :1])),
    "axes turned": lambda x, y, w: np.maximum(x.transpose(1, 0, 2), y[:, :, ::-1].transpose(1, 0, 2)),
    "all axes turned": lambda x, y, w: np.maximum(x.transpose(2, 1, 0), y.transpose(2, 1, 0)),
    "the same row": lambda x, y, w: np.maximum(x, y[0, :1]) - w,
    "a number": lambda x, y, w: (np.minimum(y[..., :1], y[:1, :1, :1]), x + y[:1, :1, :1]),
    "results without axes": lambda x, y, w: (np.maximum(y[:, 0], x[:1, 0]), np.maximum(x, y[:, :1])),
    "a join": lambda x, y, w: np.concatenate((np.maximum(x, y[..., :1]), x, x[..., ::-1]), 2),
    "places": lambda x, y, w: np.maximum(x, np.arange(x.shape[-1])) + np.arange(x.shape[1])[:, None],
    "casts": lambda x, y, w: (x.astype("float64") + y, (x * 4).astype("int32"), x.astype("float16"), x > y),
    "choices": lambda x, y, w: np.where((x > y) | (w > 0), x, y) * np.where(x == x, w, 1),
}
COUNTS, ROWS_OF, COLUMNS_OF = (
    (1, 2, 5),
    (2, 63, 64, 65, 300),
    (2, 3, 7, 8, 15, 16, 17, 31, 32, 63, 64, 100, 1, 33, 1000),
)
IMAGES = list(zip(COUNTS * 5, ROWS_OF * 3, COLUMNS_OF, strict=True))
IMAGES += [(1, 1, 1), (1, 1, 63), (3, 1, 1001), (2, 0, 5)]


def mapped(name, shape, dtype, isa, seed):
    rng = np.random.default_rng(seed)
    x, y = (lying(rng, drawn(rng, dtype, shape, special=0 if name == "casts" else 0.25)) for _ in range(2))
    w = drawn(rng, dtype, shape[1:], special=0)
    with instructions(isa):
        check(MAPS[name], x, y, w, exact=True)


def test_maps(some, rng):
    rows = [(name, shape) for shape in IMAGES for name in some(MAPS, 3) if 0 not in shape or name == "two results"]
    sweep(mapped, [(*row, *draws(rng, NUMBERS if row[0] != "two results" else ALL_DTYPES)) for row in rows])


# Functions of a table (n, m), indices of its rows (i), of elements along rows (j) and across them (k).
TAKEN = {
    "rows": lambda x, i, j, k: x[i],
    "rows of many tables": lambda x, i, j, k: np.sqrt(abs(x[i])) + x[-1 - i] * 2,
    "columns": lambda x, i, j, k: np.take(x.T, i, 1) + 1,
    "along rows": lambda x, i, j, k: np.take_along_axis(x, j, 1) * 3,
    "across rows": lambda x, i, j, k: np.take_along_axis(x, k, 0),
    "of both axes": lambda x, i, j, k: x[i[: j.shape[1]], j[0, : i.size]],
    "by what is taken": lambda x, i, j, k: x[i[k[:, 0] % i.size]] + 1,
    "reduced": lambda x, i, j, k: (x[i].max(-1), np.take_along_axis(x, j, 1).min(-1), x[i].max(0)),
    "by what is reduced": lambda x, i, j, k: x + np.take_along_axis(x, j.max(1, keepdims=True), 1),
    "for each group": lambda x, i, j, k: x.reshape(x.shape[0], 1, -1)[i].max(axis=2),
}


def taken(name, shape, dtype, isa, seed):
    rng, (n, m) = np.random.default_rng(seed), shape
    index = rng.choice(["int32", "int64"])
    rows = int(rng.choice([1, 5, min(n, m), 40]))
    i, j, k = (rng.integers(-e, e, s).astype(index) for e, s in ((n, min(n, rows)), (m, (n, m)), (n, (30, m))))
    x = lying(rng, drawn(rng, dtype, shape))
    with instructions(isa):
        got = check(TAKEN[name], x, i, j, lying(rng, k), exact=True)
    if name == "rows":
        assert got[0].tobytes() == x[i].tobytes()


def test_gathers(some, rng):
    shapes = [(9, 32), (9, 65), (50, 300), (70, 5), (40, 2), (41, 64), (9, 1000), (500, 33), (3, 5000)]
    rows = [(name, shape) for shape in shapes for name in some(TAKEN, 4)]
    sweep(taken, [(*row, *draws(rng, ALL_DTYPES if row[0] == "rows" else NUMBERS)) for row in rows])


def past_the_caches(name, f, shape, isa, seed):
    x = np.resize(np.random.default_rng(seed).standard_normal(100_003).astype(np.float32), (*shape[:-1], shape[-1] + 1))
    with instructions(isa):
        check(f, x[..., 1:], exact=name in ("map", "columns", "turned"))


def test_what_goes_past_the_caches(some, rng):
    """No row begins at a line: its first register is masked up to one."""
    rows = [
        ("map", lambda x: (np.sqrt(abs(x)), -x), (7_000_001,)),
        ("rows", lambda x: softmax(x, x, 1, -1), (3, 2_400_001)),
        ("columns", lambda x: x - x.max(0), (40, 180_000)),
        ("columns", lambda x: x - x.max(0), (3000, 2400)),
        ("columns", lambda x: x - x.max(0), (240_001, 30)),
        ("sums of columns", lambda x: ((y := x + x), y.sum(0), y.max(0), (y < 2).all(0)), (70, 100_001)),
        ("short rows", lambda x: softmax(x, x, 1, -1)[0], (800_000, 9)),
        ("turned", lambda x: x.transpose(1, 0, 2) + 1, (3000, 900, 3)),
    ]
    sweep(past_the_caches, [(*row, *draws(rng, DTYPES)[1:]) for row in some(rows, 4)])


def with_sums_of_columns(x, y, w):
    """A gradient of rows, what is summed over them, and a bias of what is stored."""
    dx, _ = gradient(x, y, w, -1)
    axes = tuple(range(x.ndim - 1))
    return dx, (np.tanh(x) * y).sum(axes), y.sum(axes), np.minimum(x, 0.875).sum(axes, keepdims=True)


def summed(shape, dtype, isa, seed):
    rng = np.random.default_rng(seed)
    x, y = (lying(rng, drawn(rng, dtype, shape, special=0), repeats=False) for _ in range(2))
    with instructions(isa):
        check(with_sums_of_columns, x, y, drawn(rng, dtype, shape[-1:], special=0), threads=(1, 2, 5))


def test_sums_of_columns_beside_rows(some, rng):
    """Rows are read once, and what is summed over them is added up by parts."""
    shapes = [(64, 128), (101, 1023), (500, 130), (95, 333), (8192, 128), (10_001, 333), (1000, 5000), (131, 4100)]
    shapes += [(3, 40, 200), (5, 30, 129), (130, 520)]
    sweep(summed, [(shape, *draws(rng, DTYPES)) for shape in shapes])


@pytest.mark.parametrize("cols", [1, 8, 64, 70, 5000])
@pytest.mark.parametrize("rows", [1, 3])
def test_each_lane_is_taken_once(rows, cols, isa):
    """LLVM 22.1 took a lane twice and its neighbour never, with AVX-512, where all lanes were shuffled to add them up
    and the sum was then compared, as a cast to float16 does."""
    for lane in range(16):
        x = np.zeros((rows, cols))
        x[:, lane % cols] = 5
        got = generated(lambda x: x.sum(1).astype("float16"), x)
        np.testing.assert_array_equal(got, np.full(rows, 5, np.float16))


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_signed_zeros(zero, isa):
    x = np.full((2, 40_000), zero, np.float32)
    for axis in (None, 1, 0):
        for v in generated_all(lambda x, axis=axis: (x.max(axis), x.min(axis), x.mean(axis)), x):
            assert (np.signbit(v) == np.signbit(zero)).all()


def test_pieces_of_one_value(isa, rng):
    """A piece of infinities alone is beside others; a piece without the extreme is not searched."""
    for special, at in itertools.product((np.nan, np.inf, -np.inf, 99), (0, 5, 16_383, 16_384, 70_000)):
        x = rng.standard_normal((3, 70_001)).astype(np.float32)
        x[1, at : 2 * 16_384], x[2, at:], x[0, at] = special, special, special
        check(lambda x: softmax(x, x, 1, -1)[0], x, threads=[2])
        check(lambda x: (x.argmax(1), x.argmin(1)), x, threads=[2])


@pytest.mark.parametrize(("dtype", "offset"), [("float32", 1e4), ("float64", 1e4)])
def test_variances_far_from_zero(dtype, offset, isa, rng):
    for shape, axis in (
        ((18, 100), 1),
        ((18, 4096), 1),
        ((3, 20_001), 1),
        ((130, 333), 0),
        ((20, 17, 5, 7), (0, 2, 3)),
    ):
        x = (rng.standard_normal(shape) + offset).astype(dtype)
        got, mean, variance = generated_all(lambda x, axis=axis: moments(x, x, 1, axis), x)
        away = wide(x) - wide(mean).reshape(variance.shape)
        squares = np.square(away).mean(**kept(axis))
        assert_near(variance, squares, dtype)
        np.testing.assert_allclose(
            got, away / np.sqrt(squares + EPS), atol=4 * RELATIVE[dtype], rtol=4 * RELATIVE[dtype]
        )


def in_order(terms):
    """Sums over the first axis in double precision, row after row."""
    return np.cumsum(terms, axis=0, dtype=np.float64)[-1]


def test_sums_of_few_rows_are_in_order(isa, rng):
    """They have the bits of a loop over the rows, whatever is taken at once."""

    def checked(rows, cols):
        x, y = (draw(rng, "float32", (rows, cols)) for _ in range(2))
        got = generated_all(
            lambda x, y: (x.sum(0), x.mean(0), (x * x).sum(0), (x * y).sum(0), (x - x.max(0)).sum(0)), x, y
        )
        wants = in_order(x), in_order(x) / np.float64(rows), in_order(x * x), in_order(x * y), in_order(x - x.max(0))
        for a, b in zip(got, wants, strict=True):
            np.testing.assert_array_equal(a, b.astype(np.float32))

    sweep(checked, itertools.product((1, 7, 8, 9, 23, 60), (9, 16, 100, 127, 129, 1000, 4095)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_copies_keep_all_bits_of_half_types(dtype, isa, rng):
    """NaN's, too."""
    x = rng.integers(0, 2**16, (9, 1000)).astype(np.uint16).view(np_dtype(dtype))
    i = rng.integers(-9, 9, 40)
    assert generated(lambda x, i: x[i], x, i).tobytes() == x[i].tobytes()


def test_in_place(isa, rng):
    x, y = rng.standard_normal((50, 40, 3)).astype(np.float32), rng.standard_normal((40, 50, 3)).astype(np.float32)
    want, got = x.transpose(1, 0, 2) + y * 2, y.copy()
    f = kf.fuse(lambda x, y: x.transpose(1, 0, 2) + y * 2)
    with loops_by("generated"):
        assert f(x, got, out=got) is got
    np.testing.assert_array_equal(got, want)


def test_other_names_are_refused():
    with pytest.raises(ValueError, match="generated or interpreted, got 'fast'"):
        _core.testing.set_loops_by("fast")


def test_both_executors_have_kernels_of_their_own(rng):
    """Ready kernels of one graph are shared: never between executors."""
    x, results = rng.standard_normal((64, 332)).astype(np.float32), []

    def chain(v):
        v = v.sum(0)
        for _ in range(30):
            v = np.sin(v)
        return v

    for name in ("interpreted", "generated"):
        with loops_by(name):
            results.append(kf.fuse(chain)(x))
    assert (results[0] != results[1]).any(), "the last bits of sin"


# ---- positions that there are not: each is reported, and nothing is read there ----


@pytest.mark.parametrize("bad", [9, -10, 2**40, 2**62, -(2**63), 2**63 - 1])
def test_each_is_reported(bad, isa, threads, rng):
    place = rng.choice([0, 15, 16, 63, 64, 99, -1])
    x = rng.standard_normal((9, 100)).astype(np.float32)
    rows, elements = rng.integers(-9, 9, 100), rng.integers(-9, 9, (30, 100))
    rows[place], elements[place % 30, place] = bad, bad
    message = f"take: index {bad} is out of bounds for axis 0 with size 9"
    for n in (1, 2):
        threads(n)
        for i in (rows, elements):
            for f in (lambda x, i: kf.take(x, i, 0) + 1, lambda x, i: kf.take(x[:, 0], i, 0) + 1):
                with pytest.raises(IndexError, match=message):
                    generated(f, x, i)
        with pytest.raises(IndexError, match=message):
            generated(lambda x, i: kf.take(x, i, 0).max(-1), x, rows)
        with pytest.raises(IndexError, match=message.replace("take", "take_along_axis")):
            generated(lambda x, i: kf.take_along_axis(x, i, 0).max(-1), x, elements)


def test_the_first_of_a_row_is_named(isa, rng):
    x, i = rng.standard_normal(9), rng.integers(-9, 9, 200)
    i[[70, 71, 150]] = [-100, 50, 60]
    with pytest.raises(IndexError, match="index -100 is"):
        generated(lambda x, i: kf.take(x, i, 0), x, i)


def test_negative_ones_where_they_must_not_be(isa):
    torch = pytest.importorskip("torch")
    x, i = torch.randn(9, 100), torch.tensor([3, -1] * 40)
    with pytest.raises(IndexError, match=r"embedding: index -1 is out of bounds .* must not be negative"):
        generated(lambda x, i: torch.nn.functional.embedding(i, x), x, i)
    with pytest.raises(IndexError, match=r"gather: index -1 is out of bounds .* must not be negative"):
        generated(lambda x, i: torch.gather(x, 0, i[:, None] * torch.ones(1, 100, dtype=torch.int64)) + 1, x, i)


def test_nothing_is_read_there(isa):
    """Before and behind the table are pages that nobody may read."""
    mmap, ctypes = pytest.importorskip("mmap"), pytest.importorskip("ctypes")
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 3 * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None).mprotect
    for guard in (begin, begin + 2 * page):
        assert protect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0
    try:
        for dtype in ("float32", "float64", "int8"):
            whole = np.frombuffer(memory, np.uint8, page, page).view("bool" if dtype == "int8" else dtype)
            x = whole.reshape(4, -1)
            for bad in (4, -5, 1 << 33):
                i = np.array([0, 3, bad] * 30)
                for index in (i, i[:, None] + np.zeros((1, x.shape[1]), int)):
                    f = kf.take if index.ndim == 1 else kf.take_along_axis
                    with pytest.raises(IndexError, match=f"index {bad} is"):
                        generated(lambda x, i, f=f: f(x, i, 0), x, index)
            n = len(whole)
            for bad in (n, -n - 1):
                with pytest.raises(IndexError, match=f"index {bad} is"):
                    generated(lambda x, i: kf.take(x, i, 0), whole, np.array([n - 1, -n, bad] * 30))
            assert generated(lambda x, i: kf.take(x, i, 0), whole, np.array([n - 1, -n] * 33)).shape == (66,)
    finally:
        for guard in (begin, begin + 2 * page):
            protect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 3)
