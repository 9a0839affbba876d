"""The named kernels, fused and unfused, against their formulas in float64, on every kind of array."""

from __future__ import annotations

import inspect
import itertools
import math
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import kfusion as kf
from kfusion import _named
from kinds import SPACING, np_dtype
from sweeps import sweep

NAMES = [f.__name__ for f in _named.KERNELS]
VERSIONS = ("fused", "unfused")
erf = np.vectorize(math.erf, otypes=[float])


def normal(x, w=None, b=None, eps=1e-5):
    d = x - x.mean(-1, keepdims=True)
    y = d / np.sqrt((d * d).mean(-1, keepdims=True) + eps)
    return y * (1 if w is None else w) + (0 if b is None else b)


def rms(x, w, eps=1e-5):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def exponentials(x):
    return np.exp(x - x.max(-1, keepdims=True))


def softmax(x):
    return exponentials(x) / exponentials(x).sum(-1, keepdims=True)


def log_softmax(x):
    return x - x.max(-1, keepdims=True) - np.log(exponentials(x).sum(-1, keepdims=True))


def channels(x, *parameters):
    mean, var, weight, bias = (p.reshape(-1, *[1] * (x.ndim - 2)) for p in parameters)
    return (x - mean) / np.sqrt(var + 1e-5) * weight + bias


def cross_entropy(x, t):
    return -np.take_along_axis(log_softmax(x), t[..., None], -1).mean()


# The formula in float64, and the arguments beside x, of which w is like a row, c like the channels, t are classes, m is
# a matrix of some rows, and tm are numbers of these.
FORMULAS = {
    "relu_layernorm": (lambda x, w, b: normal(np.maximum(x, 0), w, b), "w w"),
    "layernorm": (normal, "w w"),
    "rmsnorm": (rms, "w"),
    "softmax": (softmax, ""),
    "log_softmax": (log_softmax, ""),
    "gelu": (lambda x: x * (1 + erf(x / math.sqrt(2))) / 2, ""),
    "bias_relu_log": (lambda x, b: np.log(np.maximum(x + b, 0)), "w"),
    "mul_add_relu": (lambda x, scale, b: np.maximum(x * scale + b, 0), "w w"),
    "batchnorm": (channels, "c c+ c c"),
    "add_layernorm": (lambda x, r, w, b: (x + r, normal(x + r, w, b)), "x w w"),
    "add_rmsnorm": (lambda x, r, w: (x + r, rms(x + r, w)), "x w"),
    "mse": (lambda x, y: ((x - y) ** 2).mean(), "x"),
    "cross_entropy": (cross_entropy, "t"),
    "linear_cross_entropy": (lambda x, m, t: cross_entropy(x @ m.T, t), "m tm"),
}


def arguments(name, shape, rng):
    """x and what else the kernel takes, float64 but for classes; what a logarithm is taken of is not close to 0."""
    x = np.asarray(rng.standard_normal(shape))
    other = {
        "x": lambda: rng.standard_normal(shape),
        "w": lambda: rng.uniform(0.5, 1.5, shape[-1:]),
        "c": lambda: rng.uniform(-1, 1, shape[1:2]),
        "c+": lambda: rng.uniform(0.5, 2, shape[1:2]),
        "t": lambda: rng.integers(0, shape[-1], shape[:-1]),
        "m": lambda: rng.uniform(-1, 1, (7, shape[-1])) / max(1, shape[-1]) ** 0.5,
        "tm": lambda: rng.integers(0, 7, shape[:-1]),
    }
    if name == "bias_relu_log":
        x = np.abs(x)
    return [x, *(other[letter]() for letter in FORMULAS[name][1].split())]


def rounded(args, dtype):
    return [a.astype(np_dtype(dtype)) if a.dtype == np.float64 else a for a in args]


def assert_right(name, results, args, dtype):
    """Within a few roundings, of every step where halves go through memory, at the size of the largest result."""
    expected = FORMULAS[name][0](*(a.astype(np.float64) if a.dtype.kind != "i" else a for a in args))
    pairs = zip(results, expected, strict=True) if isinstance(expected, tuple) else [(results, expected)]
    for got, want in pairs:
        assert got.shape == np.shape(want)
        spacings = 32 if dtype in ("float32", "float64") else 12
        np.testing.assert_allclose(got, want, rtol=0, atol=spacings * SPACING[dtype] * max(1, np.abs(want).max()))


def run(name, version, args, kind, **options):
    function = getattr(kf, f"{version}_{name}")
    try:
        result = function(*map(kind.make, args), **options)
    except kf.DeviceError as error:
        if name != "linear_cross_entropy" or "runs through the array library" not in str(error):
            raise
        pytest.skip("on a GPU a product needs a library's")
    back = [kind.back(r) for r in (result if isinstance(result, tuple) else (result,))]
    return tuple(back) if isinstance(result, tuple) else back[0]


# Around a vector (4 to 64 elements), a chunk of the CPU (4096), a warp, a block and a cluster of the GPU.
WIDTHS = [1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 255, 256, 257, 511, 768, 1000, 1023, 1024, 1025]
LONG_WIDTHS = [2047, 2048, 4095, 4096, 4097, 8192, 8193, 16383, 16384, 32768, 50257, 65537, 131072, 262147]


def test_every_kernel_has_its_formula():
    assert sorted(FORMULAS) == sorted(NAMES)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_values_on_every_kind_of_array(name, version, kind, rng):
    for dtype in kind.dtypes:
        args = rounded(arguments(name, (6, 37), rng), dtype)
        assert_right(name, run(name, version, args, kind), args, dtype)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_shapes(name, version, place, some, rng):
    """Rows around a vector, a tile and a chunk of the CPU, a warp, a block and a cluster of the GPU; some of them in a
    sample of the tests."""

    def check(shape, dtype):
        args = rounded(arguments(name, shape, rng), dtype)
        assert_right(name, run(name, version, args, place), args, dtype)

    shapes = [(1, 1), (3, 1), (1, 64), (2, 3, 5), (5, 1023), (3, 4, 2, 9), *((5, n) for n in WIDTHS)]
    long = [(3, n) for n in LONG_WIDTHS]
    rows = [*itertools.product(shapes, place.dtypes), *((s, "float32") for s in long)]
    sweep(check, some(rows, 15))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_layouts(name, version, isa, rng):
    """Arguments are read where they lie, and stay as they are."""

    def check(layout):
        args = arguments(name, (6, 8), rng)
        laid = [layout_of(a, layout) for a in args]
        assert_right(name, getattr(kf, f"{version}_{name}")(*laid), args, "float64")
        sweep(np.testing.assert_array_equal, zip(laid, args, strict=True))

    sweep(check, [(layout,) for layout in ("fortran", "strided", "unaligned", "read-only")])


def layout_of(a, layout):
    """The values of `a`, laid out another way."""
    if layout == "strided":
        part = np.zeros([2 * n for n in a.shape], a.dtype)[tuple(slice(None, None, -2) for _ in a.shape)]
    elif layout == "unaligned":
        part = np.ndarray(a.shape, a.dtype, bytearray(a.nbytes + 1), 1)
    else:
        part = np.empty_like(a, order="F" if layout == "fortran" else "C")
    part[...] = a
    part.setflags(write=layout != "read-only")
    return part


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith("add_")])
def test_out(name, version, isa, rng):
    """In a larger buffer, where nothing else is written; over the argument."""
    args = arguments(name, (13, 77), rng)
    f = getattr(kf, f"{version}_{name}")
    want = np.asarray(f(*args))
    if not want.ndim:
        return  # a loss
    for columns in (slice(5, 82), slice(4, 158, 2), slice(158, 4, -2)):
        buffer = np.full((15, 160), 7.0)
        out = buffer[1:14, columns]
        assert f(*args, out=out) is out
        np.testing.assert_array_equal(out, want)
        out[...] = 7.0
        assert (buffer == 7.0).all()
    assert f(*args, out=args[0]) is args[0]
    np.testing.assert_array_equal(args[0], want)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_results_do_not_depend_on_threads(name, version, threads, rng):
    for shape in ((1, 200_000), (700, 70)):
        args = rounded(arguments(name, shape, rng), "float32")
        results = []
        for n in (1, 2, 3, 7):
            threads(n)
            found = getattr(kf, f"{version}_{name}")(*args)
            results.append(b"".join(r.tobytes() for r in (found if isinstance(found, tuple) else (found,))))
        assert len(set(results)) == 1


@pytest.mark.parametrize("name", NAMES)
def test_float32_and_float64_are_the_same_fused_and_unfused_but_for_sums(name, rng):
    for dtype in ("float32", "float64"):
        args = rounded(arguments(name, (7, 50), rng), dtype)
        fused, unfused = (getattr(kf, f"{version}_{name}")(*args) for version in VERSIONS)
        if not any("sum" in g.ops or "mean" in g.ops for g in getattr(kf, f"fused_{name}").plan(*args).groups):
            np.testing.assert_array_equal(fused, unfused)


@pytest.mark.parametrize("name", NAMES)
def test_fused_is_fewer_kernels_and_bytes(name, rng):
    args = rounded(arguments(name, (64, 128), rng), "float32")
    fused, unfused = (getattr(kf, f"{version}_{name}").plan(*args) for version in VERSIONS)
    assert len(fused.groups) < len(unfused.groups)
    assert len(fused.groups) <= (2 if "cross_entropy" in name else 1)
    assert fused.fused.issued.total < unfused.fused.issued.total


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_how_it_looks(name, version):
    f = getattr(kf, f"{version}_{name}")
    signature = inspect.signature(f)
    assert list(signature.parameters)[-2:] == ["out", "stream"]
    assert list(signature.parameters)[:-2] == list(inspect.signature(f.__wrapped__).parameters)
    for part in ("Args:", "    out:", "    stream:", "Returns:", "Raises:", " = "):
        assert part in f.__doc__
    assert f.__name__ == f"{version}_{name}"
    assert f.__module__ == "kfusion"
    assert pickle.loads(pickle.dumps(f)) is f


def test_mixed_parameters_of_half_types(rng):
    x, w = rng.standard_normal((4, 33)).astype(np.float16), rng.standard_normal(33).astype(np.float32)
    y = kf.fused_layernorm(x, w, w)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, normal(x.astype(float), w, w), atol=0.01)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["relu_layernorm", "layernorm", "rmsnorm", "softmax", "log_softmax", "gelu"])
def test_special_values(name, version, place):
    """NaN, infinities and zeros of either sign, rows of one value: as the formula, row by row."""

    def check(dtype, cols):
        x = np.tile(np.linspace(-2, 2, cols), (8, 1))
        x[0] = -1  # nothing survives a ReLU: variance 0
        x[1, cols // 2] = np.nan
        x[2, -1] = np.inf
        x[3] = 0.0
        x[4] = -0.0
        x[5, 0] = -np.inf
        x[6] = 3.0
        x = x.astype(np_dtype(dtype))
        with np.errstate(all="ignore"):
            other = {"rmsnorm": (np.ones(cols),)}.get(name, ())
            want = FORMULAS[name][0](x.astype(float), *(other or {"relu_layernorm": (None, None)}.get(name, ())))
        got = run(name, version, [x], place)
        # A mean of one value is off by a rounding, which the deviation of 0 enlarges by the root of eps.
        np.testing.assert_allclose(
            got, want, rtol=8 * SPACING[dtype], atol=max(4 * SPACING[dtype], 1e-4 if dtype == "float32" else 0)
        )

    sweep(check, itertools.product(place.dtypes, (1, 33, 1024, 5000)))


def test_sums_of_squares_that_overflow(place):
    """A constant row has variance 0 however large it is."""
    for dtype, value in (("float32", 2e19), ("bfloat16", 2e19), ("float64", 1e160)):
        for shape in ((1, 8704), (1, 17408), (3, 40000), (8, 25000), (5, 100)):
            y = place.back(kf.fused_relu_layernorm(place.make(np.full(shape, value, np_dtype(dtype)))))
            assert np.isfinite(y).all()


def test_a_large_mean_costs_no_digits(place, rng):
    for dtype in place.dtypes:
        x = (rng.standard_normal((4, 1500)) + 100).astype(np_dtype(dtype))  # E[x^2] - mean^2 would lose five digits
        for version, eps in itertools.product(VERSIONS, (0.0, 7.0)):
            got = place.back(getattr(kf, f"{version}_relu_layernorm")(place.make(x), eps=eps))
            want = normal(np.maximum(x.astype(float), 0), eps=eps)
            np.testing.assert_allclose(got, want, rtol=0, atol=100 * max(SPACING[dtype], 2.0**-40))


def test_streaming_stores(isa, rng):
    """Outputs beyond the last-level cache are written past it, in rows of every alignment."""
    for cols, version in itertools.product((1023, 4096), VERSIONS):
        x = rng.standard_normal((48_000_000 // 4 // cols, cols), np.float32)
        y = getattr(kf, f"{version}_relu_layernorm")(x)
        rows = rng.integers(0, len(x), 50)
        np.testing.assert_allclose(y[rows], normal(np.maximum(x[rows].astype(float), 0)), rtol=1e-5, atol=1e-5)
        assert np.isfinite(y).all()


def test_empty(kind):
    for version, shape in itertools.product(VERSIONS, [(0,), (0, 5), (5, 0), (3, 0, 7), (2, 3, 0)]):
        for name in ("relu_layernorm", "softmax", "gelu"):
            f = getattr(kf, f"{version}_{name}")
            if name == "softmax" and shape[-1] == 0:
                continue
            assert kind.back(f(kind.make(np.empty(shape, np.float32)))).shape == shape


class TestProperties:
    def test_rows_of_softmax_sum_to_1(self, rng):
        for scale in (1, 1e4):
            y = kf.fused_softmax(rng.standard_normal((50, 333)) * scale)
            assert (y >= 0).all()
            np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-13)
            np.testing.assert_allclose(kf.fused_softmax(np.full((2, 8), scale)), 1 / 8, rtol=1e-15)

    def test_softmax_and_log_softmax_agree_and_shift(self, rng):
        x = rng.standard_normal((20, 65))
        np.testing.assert_allclose(np.exp(kf.fused_log_softmax(x)), kf.fused_softmax(x), rtol=1e-12)
        np.testing.assert_allclose(kf.fused_softmax(x + 100), kf.fused_softmax(x), rtol=1e-11)
        np.testing.assert_allclose(kf.fused_softmax(x, 0).sum(0), 1, rtol=1e-13)

    def test_layernorm_has_mean_0_and_variance_1_whatever_the_mean(self, rng):
        for mean in (0, 1e6):
            y = kf.fused_layernorm(rng.standard_normal((20, 400)) + mean, eps=0.0)
            np.testing.assert_allclose(y.mean(-1), 0, atol=1e-9)
            np.testing.assert_allclose(y.var(-1), 1, rtol=1e-9)

    def test_rmsnorm_has_length_1(self, rng):
        y = kf.fused_rmsnorm(rng.standard_normal((20, 400)), eps=0.0)
        np.testing.assert_allclose((y * y).mean(-1), 1, rtol=1e-12)

    def test_gelu_is_x_far_above_0_and_0_far_below(self):
        x = np.array([-np.inf, -50, -0.0, 0, 50, np.inf, np.nan])
        y = kf.fused_gelu(x)
        np.testing.assert_array_equal(y[1:6], [0, 0, 0, 50, np.inf])
        assert np.isnan(y[6])
        np.testing.assert_allclose(kf.fused_gelu(np.array([1.0]), approximate="tanh"), 0.8411919906, rtol=1e-9)

    def test_bias_relu_log_at_the_edge(self):
        y = kf.fused_bias_relu_log(np.array([-2.0, -1.0, 0.0, np.nan]), np.array(1.0))
        np.testing.assert_array_equal(y, [-np.inf, -np.inf, 0, np.nan])

    def test_the_scale_may_be_a_number(self, rng):
        x, b = rng.standard_normal((4, 5)), rng.standard_normal(5)
        np.testing.assert_array_equal(kf.fused_mul_add_relu(x, 2, b), np.maximum(x * 2 + b, 0))
        np.testing.assert_array_equal(kf.fused_mul_add_relu(x, 2.5, b), np.maximum(x * 2.5 + b, 0))

    def test_losses_of_what_is_right(self, rng):
        x = rng.standard_normal((6, 9))
        assert kf.fused_mse(x, x) == 0
        assert kf.fused_cross_entropy(np.eye(9)[:6] * 1e3, np.arange(6)) == 0
        losses = kf.fused_cross_entropy(x, np.arange(6), reduction="none")
        np.testing.assert_allclose(losses.mean(), kf.fused_cross_entropy(x, np.arange(6)), rtol=1e-13)
        np.testing.assert_allclose(kf.fused_cross_entropy(x, np.arange(6), ignore_index=2), np.delete(losses, 2).mean())

    def test_batchnorm_over_the_last_axis(self, rng):
        x, m, v = rng.standard_normal((3, 4, 5)), rng.standard_normal(5), rng.uniform(1, 2, 5)
        np.testing.assert_allclose(kf.fused_batchnorm(x, m, v, axis=-1), (x - m) / np.sqrt(v + 1e-5), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda f: f("layernorm")(np.ones((3, 4)), np.ones(3)),
            ValueError,
            r"weight must have shape \(4,\), got \(3,\)",
        ),
        (lambda f: f("layernorm")(np.ones((3, 4), int)), TypeError, "x must be floats, got int64"),
        (lambda f: f("rmsnorm")(np.ones((3, 4)), eps=-1.0), ValueError, "eps must be finite and >= 0"),
        (lambda f: f("softmax")(np.ones((3, 4)), 2), ValueError, "axis"),
        (lambda f: f("gelu")(np.ones(3), approximate="sigmoid"), ValueError, "approximate must be"),
        (lambda f: f("batchnorm")(np.ones((3, 4)), np.ones(3), np.ones(3)), ValueError, r"mean must have shape \(4,\)"),
        (lambda f: f("add_rmsnorm")(np.ones((3, 4)), np.ones((2, 4))), ValueError, "shape"),
        (lambda f: f("mse")(np.ones(3), np.ones(3), reduction="max"), ValueError, "reduction must be"),
        (lambda f: f("cross_entropy")(np.ones((3, 4)), np.ones(3)), TypeError, "targets must be int32 or int64"),
        (lambda f: f("mul_add_relu")(np.ones(3), 2.0), TypeError, "bias"),
        (lambda f: f("softmax")(), TypeError, "x"),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_errors(version, call, error, message):
    with pytest.raises(error, match=message):
        call(lambda name: getattr(kf, f"{version}_{name}"))


@pytest.mark.parametrize("name", NAMES)
def test_compare_takes_either_version(name, rng):
    args = rounded(arguments(name, (8, 16), rng), "float32")
    for version in VERSIONS:
        c = kf.compare(getattr(kf, f"{version}_{name}"), *args, cache="hot", repeats=1, peers=["numpy"])
        assert c.row("fused").launches < c.row("unfused").launches


def test_the_bytes_in_the_docs_are_the_plans():
    page = Path(__file__).resolve().parents[1] / "docs/using.md"
    if not page.exists():
        pytest.skip("only the tests are here")
    table = page.read_text().partition("\n| name | computes | r w |\n")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| (`.*) \| .* \| (\d+) \((\d+)\) \|$", table, re.MULTILINE)
    found = {name: (int(r), int(w)) for names, r, w in listed for name in re.findall(r"`(\w+)\(", names)}
    assert set(found) == set(NAMES)
    for name in NAMES:
        shape = (32, 64, 56, 56) if name == "batchnorm" else (4096, 1024)
        specs = {"x": kf.spec(shape), "w": kf.spec(shape[-1]), "c": kf.spec(shape[1]), "c+": kf.spec(shape[1])}
        specs["t"] = specs["tm"] = kf.spec(shape[:-1], "int64")
        specs["m"] = kf.spec((32768, shape[-1]))
        args = [specs["x"], *(specs[letter] for letter in FORMULAS[name][1].split())]
        plans = [getattr(kf, f"{version}_{name}").plan(*args) for version in VERSIONS]
        assert found[name] == tuple(round(p.fused.issued.total / specs["x"].nbytes) for p in plans), name
