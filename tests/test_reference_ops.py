"""Every op of the table by the reference interpreter, and in kernels of `kf.fuse`, against NumPy: every dtype, awkward
layouts, special values."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import ClassVar

import numpy as np
import pytest

import graph_runs
import kfusion as kf
import reference_ops
from graph_runs import LAYOUTS, assert_close, draw, run, run_map, wide
from kfusion import _core
from kinds import ALL_DTYPES, DTYPES, TINY, np_dtype
from replay import replay
from sweeps import sweep

pytestmark = pytest.mark.native


@pytest.fixture(params=["reference", "kernels"])
def executor(request, monkeypatch):
    if request.param == "kernels":

        def execute(graph, arrays, name):
            return kf.fuse(replay(graph))([np.asarray(a) for a in arrays])

        monkeypatch.setattr(graph_runs, "execute", execute)
    return request.param


TABLE = {row["name"]: row for row in _core.op_table()}
HALF = ("float16", "bfloat16")
# The type that floats are computed in.
COMPUTE = {"float16": np.float32, "bfloat16": np.float32, "float32": np.float32, "float64": np.float64}

# What signatures take besides floats, without casts of the builder's.
TAKES = {"S_S": ("int32", "int64"), "SS_S": ("int32", "int64"), "ZZ_Z": ("int32", "int64"), "LLL_L": ("int32", "int64")}
TAKES |= {"II_I": ("bool", "int32", "int64")}
OF_NO_FLOATS = ("II_I", "ZZ_Z", "LLL_L")


def takes(name):
    """The dtypes of the arguments that an op takes."""
    others = TAKES.get(TABLE[name]["signature"], ("bool", "int32", "int64"))
    if name == "reciprocal":  # NumPy's of integers is another function
        others = ()
    return [*(() if TABLE[name]["signature"] in OF_NO_FLOATS else DTYPES), *others]


# Bits as NumPy's, of the compute type, rounded once.
EXACT = {name for name, row in TABLE.items() if "exact" in row["facts"]}
CHOICES = ("relu", "maximum", "minimum", "fmax", "fmin", "clip")  # of zeros of either sign


def specials(dtype):
    if dtype == "bool":
        return np.array([False, True])
    if dtype.startswith("int"):
        i = np.iinfo(dtype)
        return np.array([i.min, i.min + 1, -7, -2, -1, 0, 1, 2, 3, 7, i.max - 1, i.max], dtype)
    units = [0, 0.5, 1, 1.5, 2, 2.5, 3, 7, 1e4, math.pi, math.inf]
    tiny, small = TINY[dtype], 2.0**-14 if dtype == "float16" else 2.0**-126  # subnormal, normal
    values = [*units, tiny, 3 * tiny, small, float(np.finfo(np.float16).max), float("nan")]
    return np.array([s * v for v in values for s in (1, -1)]).astype(np_dtype(dtype))


def special_arguments(name, dtype):
    """Each special value with each other one."""
    arity, values = TABLE[name]["arity"], specials(dtype)
    if arity == 3:
        values = values[:: 2 if dtype in DTYPES else 1]
    arrays = list(np.meshgrid(*[values] * arity))
    if name == "power" and dtype.startswith("int"):
        arrays[1] = np.where(arrays[1] < 0, 5, arrays[1])
    return arrays


def assert_special(name, arrays, got):
    dtype = str(arrays[0].dtype)
    exact, floats = name in EXACT, dtype in DTYPES
    inputs = [x.astype(COMPUTE[dtype]) for x in arrays] if exact and floats else list(map(wide, arrays))
    with np.errstate(all="ignore"):
        want = np.asarray(reference_ops.MAPS[name](*inputs))
        if not (exact and floats):
            assert_close(got, want)
            return
        want = want.astype(got.dtype)
    np.testing.assert_array_equal(wide(got), wide(want))
    if got.dtype != bool and name not in CHOICES:
        numbers = ~np.isnan(wide(want))
        np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


def test_every_op_has_a_line_in_the_oracle():
    kinds = {"map": reference_ops.MAPS, "reduce": reference_ops.REDUCTIONS}
    for kind, oracle in kinds.items():
        assert {n for n, row in TABLE.items() if row["kind"] == kind} == set(oracle)
    plans_alone = {"partial"}
    assert {n for n, row in TABLE.items() if row["kind"] not in {*kinds, *plans_alone}} == set(reference_ops.NODES)


# Outside of these, some are NaN everywhere.
DOMAIN = {"arcsin": np.tanh, "arccos": np.tanh, "arctanh": np.tanh, "arccosh": lambda x: np.abs(x) + 1}


def arguments(name, dtype, make):
    """Arrays that a map takes, each of make(), brought to where it has values."""
    arrays = [make() for _ in range(TABLE[name]["arity"])]
    if dtype in DTYPES and name in DOMAIN:
        arrays = [DOMAIN[name](wide(x)).astype(x.dtype) for x in arrays]
    if name == "power" and dtype in ("int32", "int64"):
        arrays[1] = np.abs(arrays[1])
    return arrays


def run_maps(arguments):
    """The results of many maps in one function, where arguments that are alike are one array."""
    arrays = {}

    def place(x):
        key = x.tobytes(), x.shape, x.strides
        arrays.setdefault(key, x)
        return list(arrays).index(key)

    places = {name: [place(x) for x in some] for name, some in arguments.items()}

    def build(g, *inputs):
        return [g.map(name, [inputs[i] for i in some]) for name, some in places.items()]

    return dict(zip(arguments, run(build, *arrays.values()), strict=True))


@pytest.mark.usefixtures("executor")
class TestMaps:
    @pytest.mark.parametrize("dtype", ALL_DTYPES)
    def test_values(self, dtype, executor, rng):
        """In few functions, as each is compiled."""
        names = [name for name in reference_ops.MAPS if dtype in takes(name)]
        layouts = LAYOUTS if executor == "reference" else rng.choice(list(LAYOUTS), 2, replace=False)
        for layout in layouts:
            three = [LAYOUTS[layout](lambda shape: draw(rng, dtype, shape)) for _ in range(3)]
            given = {name: arguments(name, dtype, iter(three).__next__) for name in names}
            got = run_maps(given)

            def check(name, given=given, got=got):
                with np.errstate(all="ignore"):
                    want = reference_ops.MAPS[name](*map(wide, given[name]))
                assert_close(got[name], want, scale=4 if name == "logaddexp" else 0)

            sweep(check, [(name,) for name in names])

    def test_other_types_are_refused(self):
        def check(name, dtype):
            with pytest.raises(TypeError, match=f"{name}: "):
                run_map(name, *[np.ones(3, np_dtype(dtype))] * TABLE[name]["arity"])

        sweep(check, [(n, t) for n in reference_ops.MAPS for t in ALL_DTYPES if t not in takes(n)])

    def test_broadcasting(self, rng):
        def check(name, shapes):
            dtype = "int32" if name == "bitwise_or" else "float32"
            arrays = [draw(rng, dtype, s) for s in shapes[: TABLE[name]["arity"]]]
            if name == "where":
                arrays[0] = arrays[0] > 0
            assert_close(run_map(name, *arrays), reference_ops.MAPS[name](*map(wide, arrays)), scale=4)

        shapes = (
            ((3, 1), (4,), ()),
            ((), (2, 3), (1,)),
            ((2, 1, 3), (1, 4, 1), (4, 3)),
            ((0, 3), (1,), (1, 1)),
            ((1,), (1, 1), ()),
        )
        sweep(check, itertools.product(["add", "less", "where", "clip", "logaddexp", "bitwise_or"], shapes))

    def test_integers_to_negative_powers_are_truncated(self):
        """NumPy raises an error where one is in the data, which a kernel cannot."""
        x, y = np.meshgrid(np.array([-3, -2, -1, 0, 1, 2, 3]), np.array([-4, -3, -2, -1]))
        want = np.where(np.abs(x) == 1, np.where(y % 2 == 0, 1, x), 0)
        np.testing.assert_array_equal(run_map("power", x, y), want)
        np.testing.assert_array_equal(kf.fuse(lambda x, y: x**y)(x, y), want)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_special_values(dtype):
    given = {n: special_arguments(n, dtype) for n in reference_ops.MAPS if dtype in takes(n)}
    got = run_maps(given)
    sweep(lambda name: assert_special(name, given[name], got[name]), [(name,) for name in given])


@pytest.mark.usefixtures("executor")
class TestReductions:
    VIEWS: ClassVar = {
        "dense": lambda x: x,
        "transposed": lambda x: x.transpose(1, 2, 0),
        "strided": lambda x: x[::2, ::-1, 1:4],
        "broadcast": lambda x: np.broadcast_to(x[:, :1], x.shape),
    }
    SUBSETS = (None, *(s for n in (1, 2, 3) for s in itertools.combinations(range(3), n)), (-1,), ())

    @pytest.mark.parametrize("dtype", ALL_DTYPES)
    def test_every_subset_of_axes(self, dtype, executor, rng):
        """All reductions over the same axes in one function."""
        base = draw(rng, dtype, (4, 3, 5))

        def check(order, axes, keepdims):
            x = self.VIEWS[order](base)
            got = run(lambda g, i: [g.reduce(name, i, axes, keepdims) for name in reference_ops.REDUCTIONS], x)
            for value, (name, oracle) in zip(got, reference_ops.REDUCTIONS.items(), strict=True):
                want = oracle(wide(x), axis=axes, keepdims=keepdims)
                scale = oracle(np.abs(wide(x)), axis=axes, keepdims=keepdims) if name in ("sum", "mean") else 0
                assert_close(value, want, scale, spacings=64 if name == "prod" else 4)
                if dtype not in DTYPES and axes != ():
                    assert np.asarray(value).dtype == np.asarray(want).dtype, name

        both = [False, True] if executor == "reference" else [bool(rng.integers(2))]  # kernels are compiled
        sweep(check, itertools.product(self.VIEWS, self.SUBSETS, both))

    def test_of_nothing(self):
        def check(shape, name, axis):
            x, axes = np.zeros(shape, np.float32), None if axis < 0 else (axis,)

            def reduce(g, i):
                return g.reduce(name, i, axes)

            if name in ("max", "min") and (axes is None or shape[axis] == 0):
                with pytest.raises(ValueError, match="no identity"):
                    run(reduce, x)
                return
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing
                want = reference_ops.REDUCTIONS[name](x, axis=axes)
            assert_close(run(reduce, x)[0], want)

        shapes = (0,), (0, 3), (3, 0), (2, 0, 3)
        rows = [(s, n, d) for s in shapes for n in reference_ops.REDUCTIONS for d in range(-1, len(s))]
        sweep(check, rows)

    def test_special_values(self):
        x = np.array([[1, np.nan, 3], [-np.inf, 2, np.inf], [-0.0, -0.0, -0.0], [np.nan] * 3])
        for name, oracle in reference_ops.REDUCTIONS.items():
            with np.errstate(invalid="ignore"):
                assert_close(run(lambda g, i, n=name: g.reduce(n, i, [1]), x)[0], oracle(x, axis=1))

    def test_integers_wrap(self):
        x = np.array([2**62, 2**62, 2**62, 5])
        assert run(lambda g, i: g.reduce("sum", i, None), x)[0] == x.sum()
        assert run(lambda g, i: g.reduce("prod", i, None), x)[0] == x.prod()
        y = np.array([2**31 - 1, 2**31 - 1], np.int32)
        assert run(lambda g, i: g.reduce("sum", i, None), y)[0] == 2**32 - 2


def test_long_sums_are_accurate(rng):
    """A running float32 sum of these is off in the third digit."""
    x = rng.uniform(0.5, 1.5, 2_000_003)
    want = math.fsum(x)
    assert abs(run(lambda g, i: g.reduce("sum", i, None), x)[0] - want) <= 2 * np.spacing(want)
    y = x.astype(np.float32)
    assert run(lambda g, i: g.reduce("sum", i, None), y)[0] == np.float32(math.fsum(y.astype(float)))
    assert run(lambda g, i: g.reduce("mean", i, None), np.ones(4096, np_dtype("bfloat16")))[0] == 1


@pytest.mark.usefixtures("executor")
class TestCasts:
    VALUES = (0, -0.0, 1, -1, 0.5, 1.5, -2.5, 255, 65504, 65519, 65520, 1e6, 2.0**31 - 1, -(2.0**31), 2.0**53 + 2)

    def test_all_pairs(self):
        def check(from_, to):
            values = np.array(self.VALUES)
            for name in (from_, to):  # what both hold
                if name.startswith("int"):
                    values = values[(values >= np.iinfo(name).min) & (values < np.iinfo(name).max)]
            with np.errstate(over="ignore"):
                x = values.astype(np_dtype(from_))
                x = x[np.isfinite(wide(x))] if to.startswith("int") else x
                want = x.astype(np_dtype(to))
            got = run(lambda g, i: g.cast(i, to), x)[0]
            assert got.dtype == np_dtype(to)
            np.testing.assert_array_equal(wide(got), wide(want))

        sweep(check, itertools.product(ALL_DTYPES, ALL_DTYPES))

    @pytest.mark.parametrize("from_", DTYPES)
    def test_what_no_integer_holds_becomes_the_smallest(self, from_):
        x = np.array([np.nan, np.inf, -np.inf]).astype(np_dtype(from_))
        for to in ("int32", "int64"):
            got = run(lambda g, i, t=to: g.cast(i, t), x)[0]
            np.testing.assert_array_equal(got, np.iinfo(to).min)
        np.testing.assert_array_equal(run(lambda g, i: g.cast(i, "bool"), x)[0], True)
        far = np.array([3e9, -3e9, 2.0**31, 1e19, -1e19, -(2.0**31) - 0.5])
        low = np.iinfo(np.int32).min
        np.testing.assert_array_equal(run(lambda g, i: g.cast(i, "int32"), far)[0], low)

    @pytest.mark.parametrize(("to", "bits"), [("float16", 11), ("bfloat16", 8)])
    def test_doubles_are_rounded_once(self, to, bits):
        """Through float32, what is just above the middle of two neighbours would be rounded to the middle first."""
        half = 2.0**-bits
        x = np.array([1 + half + 2.0**-40, 1 + half - 2.0**-40, 1 + half, -1 - half - 2.0**-40, 1 + 3 * half])
        want = [1 + 2 * half, 1, 1, -1 - 2 * half, 1 + 4 * half]
        np.testing.assert_array_equal(wide(run(lambda g, i: g.cast(i, to), x)[0]), want)

    def test_any_double_to_float16(self, rng):
        x = np.concatenate([rng.integers(0, 256, 8 * 4096, np.uint8).view(float), rng.normal(0, 1, 4096)])
        x = np.concatenate([x, np.ldexp(rng.uniform(-2, 2, 4096), rng.integers(-27, 17, 4096))])
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            np.testing.assert_array_equal(run(lambda g, i: g.cast(i, "float16"), x)[0], x.astype(np.float16))

    def test_every_half_value_survives(self):
        bits = np.arange(2**16, dtype=np.uint16)
        for dtype in HALF:
            x = bits.view(np_dtype(dtype))
            for y in (run_map("positive", x), run(lambda g, i, d=dtype: g.cast(g.cast(i, "float64"), d), x)[0]):
                np.testing.assert_array_equal(wide(y), wide(x))
                np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


class TestContractions:
    SHAPES = (
        *(((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5))),
        *(((7, 1, 3, 4), (2, 4, 5)), ((0, 4), (4, 5)), ((3, 0), (0, 5)), ((0, 3, 4), (4, 5)), ((1, 1), (1, 1))),
    )

    @staticmethod
    def assert_product(x, y):
        got = run(lambda g, i, j: g.matmul(i, j), x, y)[0]
        assert_close(got, np.matmul(wide(x), wide(y)), scale=np.matmul(abs(wide(x)), abs(wide(y))))

    def test_matmul(self, rng):
        sweep(
            lambda shapes, dtype: self.assert_product(*(draw(rng, dtype, s) for s in shapes)),
            itertools.product(self.SHAPES, ALL_DTYPES),
        )

    def test_matmul_reads_any_layout(self, rng):
        for dtype in ("bfloat16", "float32", "int64"):
            x, y = draw(rng, dtype, (5, 3, 4)).transpose(2, 0, 1), draw(rng, dtype, (7, 6))[::-2, ::2].T
            self.assert_product(x, np.broadcast_to(y[:, :2], (4, 3, 2)))

    def test_integer_products_wrap(self):
        x = np.full((1, 3), 2**31 - 1, np.int32)
        np.testing.assert_array_equal(run(lambda g, i, j: g.matmul(i, j), x, x.T.copy())[0], x @ x.T)

    WINDOWS = (
        {},
        {"stride": (2, 3)},
        {"padding": (2, 1)},
        {"dilation": (2, 1), "padding": (1, 4)},
        {"groups": 2},
        {"groups": 4, "stride": (3, 1), "padding": (3, 3), "dilation": (1, 2)},
    )

    def test_conv2d(self, rng):
        def check(options, dtype):
            x, w = draw(rng, dtype, (3, 4, 7, 6)), draw(rng, dtype, (8, 4 // options.get("groups", 1), 3, 2))
            x = x.transpose(0, 1, 3, 2)[:, ::-1]
            got = run(lambda g, i, j: g.conv2d(i, j, **options), x, w)[0]
            scale = reference_ops.conv2d(abs(wide(x)), abs(wide(w)), **options)
            assert_close(got, reference_ops.conv2d(wide(x), wide(w), **options), scale)

        sweep(check, itertools.product(self.WINDOWS, DTYPES))

    def test_the_oracle_of_conv2d_is_torchs(self, rng):
        torch = pytest.importorskip("torch")
        for options in self.WINDOWS:
            x, w = rng.standard_normal((3, 4, 7, 6)), rng.standard_normal((8, 4 // options.get("groups", 1), 3, 2))
            theirs = torch.nn.functional.conv2d(torch.tensor(x), torch.tensor(w), **options)
            np.testing.assert_allclose(reference_ops.conv2d(x, w, **options), theirs.numpy(), rtol=1e-12, atol=1e-12)

    def test_conv2d_of_nothing(self):
        for s, t in (((0, 2, 4, 4), (3, 2, 3, 3)), ((2, 0, 4, 4), (3, 0, 3, 3)), ((1, 2, 3, 3), (0, 2, 1, 1))):
            x, w = np.ones(s, np.float32), np.ones(t, np.float32)
            assert_close(run(lambda g, i, j: g.conv2d(i, j), x, w)[0], reference_ops.conv2d(x, w))


class TestTake:
    @pytest.mark.parametrize("bad", [4, -5, 2**40, -(2**63)])
    def test_out_of_range(self, bad):
        x, i = np.zeros((3, 4)), np.array([0, bad])
        message = f"kfusion.pick: take: index {bad} is out of bounds for axis 1 with size 4"
        with pytest.raises(IndexError, match=message):
            run(lambda g, a, b: g.take(a, b, 1), x, i, name="pick")

    def test_negative_indices_can_be_out_of_range(self):
        x, i = np.zeros((3, 4)), np.array([[-1]])
        message = (
            "take_along_axis: index -1 is out of bounds for axis 1 with size 4, where indices must not be negative"
        )
        with pytest.raises(IndexError, match=message):
            run(lambda g, a, b: g.take_along_axis(a, b, 1, nonnegative=True), x, i)
