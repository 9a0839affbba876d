"""The maps of the op table on the CPU's vectors, on every instruction set."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import reference_ops
import ulp
import vector_maps
from graph_runs import run, run_map, wide
from kfusion import _core
from kinds import ALL_DTYPES, DTYPES, np_dtype
from sweeps import sweep
from test_reference_ops import EXACT, HALF, TABLE, specials, takes

pytestmark = pytest.mark.native

# What IEEE 754 does not define to the bit.
APPROXIMATE = [name for name in reference_ops.MAPS if name not in EXACT | {"rsqrt"}]
LIMIT = {"exp": 1, "log": 1}  # ULP; others: 2, but 4 of float64, which is what libmvec promises
SIZE = 2**11
WIDER = {"float32": np.float64, "float64": np.longdouble}


def some_floats(rng, dtype):
    """Any bits, a few units, a few hundred, around 1, and small; no signalling NaN."""
    t = np_dtype(dtype)
    bits = rng.integers(0, 256, SIZE * t.itemsize, np.uint8).view(t)
    bits[np.isnan(wide(bits))] = np.nan
    centres, widths = [0, 0, 1, 0], [2, 200, 0.01, 1e-4]
    drawn = [rng.normal(c, w, SIZE).astype(t) for c, w in zip(centres, widths, strict=True)]
    return rng.permutation(np.concatenate([bits, *drawn]))


def some_values(rng, dtype):
    if dtype in DTYPES:
        return some_floats(rng, dtype)
    if dtype == "bool":
        return rng.random(SIZE) < 0.5
    return np.concatenate([rng.integers(-9, 10, SIZE), rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, SIZE)])


def arguments(name, dtype, rng):
    """Some values, and all combinations of special ones."""
    arity = TABLE[name]["arity"]
    grid = np.meshgrid(*[specials(dtype)[:: 2 if arity == 3 else 1]] * arity)
    arrays = [
        np.concatenate([rng.permutation(some_values(rng, dtype)), s.reshape(-1)]).astype(np_dtype(dtype)) for s in grid
    ]
    if name == "where":
        arrays[0] = rng.random(arrays[0].size) < 0.5
    return arrays


def evaluate(name, *arrays):
    return vector_maps.kernel(name, *(str(x.dtype) for x in arrays), size=arrays[0].size)(*arrays)


@pytest.mark.parametrize("dtype", WIDER)
def test_errors(dtype, isa, rng):
    def check(name):
        arrays = arguments(name, dtype, rng)
        with np.errstate(all="ignore"):
            exact = vector_maps.EXACT[name](*(x.astype(WIDER[dtype]) for x in arrays)).astype(WIDER[dtype])
            got = evaluate(name, *arrays)
        check_errors(name, arrays, got, exact)

    sweep(check, [(name,) for name in APPROXIMATE])


def check_errors(name, arrays, got, exact):
    errors = vector_maps.ulp_errors(got, exact)
    if name == "logaddexp" and got.dtype == np.float64:  # a result near 0 has the errors of its terms
        errors[np.abs(exact) < np.max(np.abs(arrays), axis=0)] = 0
    worst = errors.argmax()
    limit = LIMIT.get(name, 2 if got.dtype == np.float32 else 4)
    assert errors[worst] <= limit, [x[worst] for x in (*arrays, got, exact)]


@pytest.fixture
def libm():
    """Functions of float64 as where the system has no vector library."""
    _core.testing.use_vector_libm(False)
    yield
    _core.testing.use_vector_libm(True)


def test_errors_without_a_vector_library(libm, isa, rng):
    test_errors("float64", isa, rng)


HUGE = [1e300, -1e300, 2.0**1000, 1e22, -1e22, 1e16 * np.pi, 710.0, -745.2, 1 - 2.0**-53, 2.0**-1074, -(2.0**-1022)]


@pytest.mark.parametrize("vector_libm", [True, False])
def test_where_functions_of_doubles_end(vector_libm, isa):
    """Ends of their domains and of the range, poles, signs of zeros: NumPy's values, in each lane of a register."""
    ends = np.concatenate([specials("float64"), HUGE, np.nextafter([1.0, -1.0], 2), np.nextafter([1.0, -1.0], -2)])

    def check(name):
        arrays = [x.reshape(-1) for x in np.meshgrid(*[ends] * TABLE[name]["arity"])]
        with np.errstate(all="ignore"):
            want = np.asarray(vector_maps.EXACT[name](*(x.astype(np.longdouble) for x in arrays)), np.longdouble)
        for shift in range(8):
            rolled = [np.roll(x, shift) for x in arrays]
            check_errors(name, rolled, evaluate(name, *rolled), np.roll(want, shift))

    _core.testing.use_vector_libm(vector_libm)
    try:
        sweep(check, [(name,) for name in APPROXIMATE])
    finally:
        _core.testing.use_vector_libm(True)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_the_others_are_the_reference_to_the_bit(dtype, isa, rng):
    """Powers of integers, too."""

    def check(name):
        arrays = arguments(name, dtype, rng)
        got, want = evaluate(name, *arrays), run_map(name, *arrays)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(wide(got), wide(want))
        if got.dtype.kind not in "bi":
            numbers = ~np.isnan(wide(got))
            np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])

    approximate = set(APPROXIMATE) - ({"power"} if dtype.startswith("int") else set())
    sweep(check, [(name,) for name in sorted(reference_ops.MAPS.keys() - approximate) if dtype in takes(name)])


@pytest.mark.parametrize("dtype", HALF)
def test_halves_are_rounded_floats(dtype, isa):
    """Quick versions differ in few results, by what half of a unit in the last place is to its rounding."""
    x = np.arange(2**16, dtype=np.uint16).view(np_dtype(dtype))

    def check(name):
        with np.errstate(all="ignore"):
            want = evaluate(name, x.astype(np.float32)).astype(np_dtype(dtype))
            exact = vector_maps.EXACT[name](x.astype(float))
        got = evaluate(name, x)
        if isa == "avx512" and dtype == "bfloat16" and name in vector_maps.QUICK:
            [other] = np.nonzero((wide(got) != wide(want)) & ~np.isnan(wide(want)))
            unit = np.ldexp(1.0, np.frexp(exact[other])[1] - 8)
            assert len(other) < 9
            assert (np.abs(wide(got)[other] - exact[other]) <= 0.502 * unit).all()
            want[other] = got[other]
        np.testing.assert_array_equal(wide(got), wide(want))

    sweep(check, [(name,) for name in APPROXIMATE if TABLE[name]["arity"] == 1])


def test_conversions_are_the_reference_to_the_bit(isa, rng):
    def check(from_, to):
        x = np.concatenate([some_values(rng, from_), specials(from_)]).astype(np_dtype(from_))
        got = vector_maps.cast_kernel(to, from_, size=x.size)(x)
        [want] = run(lambda g, i: g.cast(i, to), x)
        np.testing.assert_array_equal(wide(got), wide(want))

    sweep(check, itertools.permutations(ALL_DTYPES, 2))


def test_the_table_of_errors_is_what_was_measured():
    """It has every function that IEEE 754 does not define to the bit, within the limits."""
    root = Path(__file__).parent.parent
    found = json.loads((root / "results/ulp.json").read_text())["float32"]
    assert ulp.table(found) in (root / "docs/cpu.md").read_text()
    assert set(found) == {name for name in ulp.MAPS if name not in EXACT}
    for name, of in found.items():
        assert all(of[level]["max_ulp"] <= LIMIT.get(name, 2) for level in ulp.LEVELS)
