"""Generated reductions that need few elements of a row: the place of an extreme, and a loss by class numbers."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

import kfusion as kf
from graph_runs import draw, wide
from kinds import DTYPES, np_dtype
from loops_by import assert_same_bits, generated

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(find_spec("llvmlite") is None, reason="llvmlite compiles generated loops"),
]

NUMBERS = [*DTYPES, "int32", "int64"]
# Less than a register, whole ones, around a chunk of each width, and around what is searched as a whole.
COLS = [64, 65, 127, 511, 512, 513, 1023, 1024, 1025, 1100, 2049, 5000]


def rows_of(rng, dtype, shape, kind):
    x = draw(rng, dtype, shape)
    floats = not dtype.startswith("int")
    if kind == "equal":
        return np.broadcast_to(x[:, :1], shape).copy()
    if kind == "few values":
        return (x.astype(np.float64) // 3).astype(np_dtype(dtype))
    if kind == "NaN" and floats:
        x[rng.integers(0, shape[0], 5), rng.integers(0, shape[1], 5)] = np.nan
    if kind == "least":
        x[...] = -np.inf if floats else np.iinfo(dtype).min
    if kind == "last":
        x[:, -1] = 100
        x[::2, -1] = -100
    return x


@pytest.mark.parametrize("dtype", NUMBERS)
def test_places_of_extremes(dtype, isa, rng):
    for kind in ("drawn", "equal", "few values", "NaN", "least", "last"):
        for rows, cols in ((20, int(rng.choice(COLS))), (1, int(rng.integers(64, 4000)))):
            x = rows_of(rng, dtype, (rows, cols), kind)
            for f, g in ((kf.argmax, np.argmax), (kf.argmin, np.argmin)):
                np.testing.assert_array_equal(generated(lambda x, f=f: f(x, -1), x), g(wide(x), -1), f"{kind} {cols}")


@pytest.mark.parametrize("cols", [100, 3000])
def test_beside_other_reductions(cols, isa, rng):
    """Positions in computed values, in two arrays at once, and with elements stored in the same sweep."""
    x, y = rng.standard_normal((2, 30, cols)).astype(np.float32)
    for f in (
        lambda x, y: kf.argmax(x * y + 1, -1) * 2 + kf.argmin(y - x, -1),
        lambda x, y: kf.argmax(x, -1) + x.max(-1).astype("int32"),
        lambda x, y: (x == x.max(-1, keepdims=True)) & (kf.argmax(x, -1, keepdims=True) > 3),
    ):
        assert_same_bits(f, x, y)
    e = generated(lambda x, y: kf.softmax(x, -1) * kf.argmax(x, -1, keepdims=True), x, y)
    w = np.exp(wide(x) - wide(x).max(-1, keepdims=True))
    want = w / w.sum(-1, keepdims=True) * x.argmax(-1)[:, None]
    np.testing.assert_allclose(e, want, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_losses_by_class_numbers(dtype, isa, rng):
    cols = int(rng.choice([64, 130, 3000]))
    x, t = draw(rng, dtype, (20, cols)), rng.integers(-cols, cols, 20).astype(rng.choice(["int32", "int64"]))

    def loss(x, t):
        return kf.logsumexp(x, -1) - kf.take_along_axis(x * 2, t[:, None], 1)[:, 0]

    w = wide(x)
    want = np.log(np.exp(w).sum(-1)) - 2 * w[np.arange(20), t]
    within = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}[dtype]
    np.testing.assert_allclose(wide(generated(loss, x, t)), want, atol=within)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy_of_torch(reduction, isa):
    torch = pytest.importorskip("torch")
    x, t = torch.randn(40, 300), torch.randint(0, 300, (40,))
    t[3] = -100
    x[5, 7], x[6, 8] = float("nan"), float("inf")
    for smoothing in (0.0, 0.1):

        def loss(x, t, smoothing=smoothing):
            return torch.nn.functional.cross_entropy(x, t, reduction=reduction, label_smoothing=smoothing)

        got = torch.from_numpy(np.array(generated(loss, x, t)))
        torch.testing.assert_close(got, loss(x, t), rtol=2e-6, atol=2e-6, equal_nan=True)
    t[2] = 300
    with pytest.raises(IndexError):
        generated(loss, x, t)


@pytest.mark.parametrize(("shape", "axis"), [((300, 40), 1), ((40, 300), 0), ((3, 9, 300), (0, 1))], ids=str)
@pytest.mark.parametrize("step", [1, -1])
def test_positions_that_descend(shape, axis, step, rng):
    """The least position of an extreme is the last one's then."""
    x = rng.integers(0, 3, shape).astype(np.float32)
    axes = axis if isinstance(axis, tuple) else (axis,)
    along = axes[-1]

    def least(x, positions, to):
        hit = to.logical_or(x == x.max(axis, keepdims=True), to.isnan(x))
        return to.where(hit, to.flip(positions, along) if step < 0 else positions, 1000).min(axis)

    numbers = np.moveaxis(np.broadcast_to(np.arange(shape[along]), (*np.delete(shape, along), shape[along])), -1, along)
    got = kf.fuse(lambda x: least(x, kf.iota(shape, along), kf))(x)
    np.testing.assert_array_equal(got, least(x, numbers, np))
