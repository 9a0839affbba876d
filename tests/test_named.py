"""The named kernels, fused and unfused, against their formulas in float64, on every kind of array."""

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
from reference import layernorm, relu_layernorm
from sweeps import sweep

NAMES = [f.__name__ for f in _named.KERNELS]
VERSIONS = ("fused", "unfused")
erf = np.vectorize(math.erf, otypes=[float])


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
    "relu_layernorm": (relu_layernorm, "w w"),
    "layernorm": (layernorm, "w w"),
    "rmsnorm": (rms, "w"),
    "softmax": (softmax, ""),
    "log_softmax": (log_softmax, ""),
    "gelu": (lambda x: x * (1 + erf(x / math.sqrt(2))) / 2, ""),
    "bias_relu_log": (lambda x, b: np.log(np.maximum(x + b, 0)), "w"),
    "mul_add_relu": (lambda x, scale, b: np.maximum(x * scale + b, 0), "w w"),
    "batchnorm": (channels, "c c+ c c"),
    "add_layernorm": (lambda x, r, w, b: (x + r, layernorm(x + r, w, b)), "x w w"),
    "add_rmsnorm": (lambda x, r, w: (x + r, rms(x + r, w)), "x w"),
    "mse": (lambda x, y: ((x - y) ** 2).mean(), "x"),
    "cross_entropy": (cross_entropy, "t"),
    "linear_cross_entropy": (lambda x, m, t: cross_entropy(x @ m.T, t), "m tm"),
}


def arguments(name, shape, rng):
    """x and what else the kernel takes, float64 but for classes; what a logarithm is taken of is not close to 0."""
    x = np.asarray(rng.standard_normal(shape))
    if tuple(shape[-1:]) in ((2,), (3,)):  # a norm of close numbers is mostly their rounding
        x[..., 0] += 8
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
def test_out(version, isa, rng):
    """In a larger buffer, where nothing else is written; over the argument."""

    def check(name):
        args, f = arguments(name, (13, 77), rng), getattr(kf, f"{version}_{name}")
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

    sweep(check, [(name,) for name in NAMES if not name.startswith("add_")])


def test_fused_is_fewer_kernels_and_bytes(rng):
    """But for sums, the bits are the unfused ones."""

    def check(name):
        args = rounded(arguments(name, (64, 128), rng), "float32")
        functions = [getattr(kf, f"{version}_{name}") for version in VERSIONS]
        fused, unfused = (f.plan(*args) for f in functions)
        assert len(fused.groups) < len(unfused.groups)
        assert len(fused.groups) <= (2 if "cross_entropy" in name else 1)
        assert fused.fused.issued.total < unfused.fused.issued.total
        if not any("sum" in g.ops or "mean" in g.ops for g in fused.groups):
            np.testing.assert_array_equal(*(f(*args) for f in functions))

    sweep(check, [(name,) for name in NAMES])


def test_how_it_looks():
    def check(name, version):
        f = getattr(kf, f"{version}_{name}")
        signature = inspect.signature(f)
        assert list(signature.parameters)[-2:] == ["out", "stream"]
        assert list(signature.parameters)[:-2] == list(inspect.signature(f.__wrapped__).parameters)
        assert all(part in f.__doc__ for part in ("Args:", "    out:", "    stream:", "Returns:", "Raises:", " = "))
        assert (f.__name__, f.__module__) == (f"{version}_{name}", "kfusion")
        assert pickle.loads(pickle.dumps(f)) is f

    sweep(check, itertools.product(NAMES, VERSIONS))


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


def test_empty(kind):
    for version, shape in itertools.product(VERSIONS, [(0,), (0, 5), (5, 0), (3, 0, 7), (2, 3, 0)]):
        for name in ("relu_layernorm", "softmax", "gelu"):
            f = getattr(kf, f"{version}_{name}")
            if name == "softmax" and shape[-1] == 0:
                continue
            assert kind.back(f(kind.make(np.empty(shape, np.float32)))).shape == shape


def test_what_other_arguments_do(rng):
    x, b, m, v = rng.standard_normal((6, 9)), rng.standard_normal(9), rng.standard_normal(9), rng.uniform(1, 2, 9)
    losses = kf.fused_cross_entropy(x, np.arange(6), reduction="none")
    half, single = x.astype(np.float16), b.astype(np.float32)  # mixed parameters
    for got, want in (
        (kf.fused_softmax(x, 0), softmax(x.T).T),
        (kf.fused_gelu(np.array([1.0]), approximate="tanh"), [0.8411919906082768]),
        (kf.fused_bias_relu_log(np.array([-2.0, -1.0, 0.0, np.nan]), np.array(1.0)), [-np.inf, -np.inf, 0, np.nan]),
        (kf.fused_mul_add_relu(x, 2, b), np.maximum(x * 2 + b, 0)),
        (kf.fused_mul_add_relu(x, 2.5, b), np.maximum(x * 2.5 + b, 0)),
        (kf.fused_batchnorm(x, m, v, axis=-1), (x - m) / np.sqrt(v + 1e-5)),
        (losses, -log_softmax(x)[range(6), range(6)]),
        (kf.fused_cross_entropy(x, np.arange(6), ignore_index=2), np.delete(losses, 2).mean()),
        (kf.fused_cross_entropy(np.eye(9)[:6] * 1e3, np.arange(6)), 0),
    ):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    y = kf.fused_layernorm(half, single, single)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, layernorm(half, single, single), atol=0.01)


WRONG = [
    ("layernorm", (np.ones((3, 4)), np.ones(3)), {}, ValueError, r"weight must have shape \(4,\), got \(3,\)"),
    ("layernorm", (np.ones((3, 4), int),), {}, TypeError, "x must be floats, got int64"),
    ("rmsnorm", (np.ones((3, 4)),), {"eps": -1.0}, ValueError, "eps must be finite and >= 0"),
    ("softmax", (np.ones((3, 4)), 2), {}, ValueError, "axis"),
    ("gelu", (np.ones(3),), {"approximate": "sigmoid"}, ValueError, "approximate must be"),
    ("batchnorm", (np.ones((3, 4)), np.ones(3), np.ones(3)), {}, ValueError, r"mean must have shape \(4,\)"),
    ("add_rmsnorm", (np.ones((3, 4)), np.ones((2, 4))), {}, ValueError, "shape"),
    ("mse", (np.ones(3), np.ones(3)), {"reduction": "max"}, ValueError, "reduction must be"),
    ("cross_entropy", (np.ones((3, 4)), np.ones(3)), {}, TypeError, "targets must be int32 or int64"),
    ("mul_add_relu", (np.ones(3), 2.0), {}, TypeError, "bias"),
    ("softmax", (), {}, TypeError, "x"),
]


def test_errors():
    def check(name, arguments, options, error, message):
        for version in VERSIONS:
            with pytest.raises(error, match=message):
                getattr(kf, f"{version}_{name}")(*arguments, **options)

    sweep(check, WRONG)


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
