"""Every pair of dtypes, with axes and without: fused functions give the dtypes and values that the library gives."""

from __future__ import annotations

import re

import numpy as np
import pytest

import dtype_sweep
import kfusion as kf
from dtype_sweep import difference, layout_difference, layouts, variations
from dtype_sweep_functions import FUNCTIONS

CASES = [(library, text) for library, texts in FUNCTIONS.items() for text in texts]
DRAWN = 25  # variations of a function


@pytest.fixture(autouse=True)
def one_thread():
    """For arrays as small as these, threads only wait for each other."""
    before = kf.get_num_threads()
    kf.set_num_threads(1)
    yield
    kf.set_num_threads(before)


def wrong(library, text, seed, some=None):
    """What differs, of all variations or of those that `some` chooses."""
    if library == "torch":
        pytest.importorskip("torch")
    found = [(v, difference(v, seed)) for v in (some or list)(variations(library, text))]
    return [f"{v}: {text}" for v, text in found if text not in (None, "refused", "taken")]


@pytest.mark.parametrize("library", FUNCTIONS)
def test_some_pairs_of_dtypes(library, seed, rng):
    """A few functions, drawn; by hand: python tests/support/dtype_sweep.py."""

    def some(all_of_them):
        of_one = list(all_of_them)
        return [of_one[i] for i in rng.permutation(len(of_one))[:DRAWN]]

    drawn = rng.permutation(len(FUNCTIONS[library]))[:12]
    assert [t for i in drawn for t in wrong(library, FUNCTIONS[library][i], seed, some)] == []


@pytest.mark.slow
@pytest.mark.parametrize(("library", "text"), CASES, ids=[f"{library}: {text}" for library, text in CASES])
def test_all_pairs_of_dtypes(library, text, seed):
    assert wrong(library, text, seed) == []


@pytest.mark.parametrize("layout", layouts(np.random.default_rng(0)))
def test_how_results_lie(layout, seed):
    """They share no memory with operands, and lie as NumPy's."""
    found = ((text, layout_difference(text, layout, seed)) for text in FUNCTIONS["numpy"])
    assert [pair for pair in found if pair[1]] == []


@pytest.mark.parametrize("weights", ["float16", "float32", "int64", "bool"])
@pytest.mark.parametrize("dtype", ["bool", "int32", "float16", "float64"])
def test_weighted_averages(dtype, weights):
    """Integers and bools have float64, also beside weights of a narrower float."""
    x, w = np.array([1, 0, 1], dtype), np.array([1, 3, 2]).astype(weights)
    got, want = kf.fuse(lambda x, w: np.average(x, weights=w))(x, w), np.average(x, weights=w)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-3 if got.dtype == "float16" else 1e-7)


def test_what_differs_is_said(monkeypatch):
    """A dtype, a value, and what is written to an operand."""
    (of_halves,) = [v for v in variations("numpy", "x + y") if str(v) == "x + y, x: float16 array, y: float32 0-dim"]
    assert difference(of_halves, 1) is None
    for spoiled, message in (
        (lambda x, y: (x + y).astype("f8"), "is of float32, fused of float64"),
        (lambda x, y: (x + y) * 1.001, "is .*, fused .*"),
        (lambda x, y: (x + y)[None], "has shape .*, fused"),
        (lambda x, y: [x + y, x.fill(1)][0], "is .*, fused .1. 1. 1"),
        (lambda x, y: 1 / 0, "ZeroDivisionError"),
    ):
        monkeypatch.setattr(dtype_sweep, "functions", lambda *_, f=spoiled: (lambda x, y: x + y, f))
        assert re.match(message, difference(of_halves, 1))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "bool"])
@pytest.mark.parametrize("number", [2.7, 3, True, np.nan])
def test_isclose_of_a_number(number, dtype):
    """The number has the array's type before it is compared: 2.7 and 3 are 0.3008 apart as halves."""
    x = np.array([3.0, 2.7, 2.5, 2.45, 0.0, np.nan if dtype.startswith("f") else 1]).astype(dtype)
    for f in (lambda x: np.isclose(number, x, rtol=0.1, equal_nan=True), lambda x: np.isclose(x, number, rtol=0.1)):
        np.testing.assert_array_equal(kf.fuse(f)(x), f(x))


BEYOND = (1e6, -1e6, 70000, 65519.9, 65520.0, 65504, 2**40, 1e300, np.inf, np.nan, 1e-9)
OF_NUMBERS = """np.isclose(x, c) ; np.isclose(c, x) ; np.isclose(x, 1.0, atol=c) ; np.isclose(x, 1.0, rtol=c)
np.isclose(x, c, equal_nan=True) ; np.isclose(x, x[::-1], atol=c) ; np.isclose(x, x[::-1], rtol=c)
x < c ; c <= x ; x == c ; x != c ; np.clip(x, -c, c) ; np.clip(x, None, c) ; np.clip(x, c, None) ; np.where(x > 0, x, c)
np.where(x > 0, c, 0.5) ; np.maximum(x, c) ; np.fmin(c, x) ; np.nan_to_num(x, nan=c) ; np.select([x > 0], [x], c)"""


@pytest.mark.parametrize("is_argument", [False, True])
@pytest.mark.parametrize("text", [text.strip() for line in OF_NUMBERS.splitlines() for text in line.split(";")])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of overflows and of tolerances that are not finite
def test_halves_and_numbers_beyond_their_range(text, is_argument):
    x = np.array([0, 1, -1, 65504, -65504, np.inf, -np.inf, np.nan, 3.5, 6e-8], np.float16)
    f = eval(f"lambda x, c: {text}")
    fused = kf.fuse(f)
    for c in BEYOND:
        got, want = fused(x, c) if is_argument else kf.fuse(lambda x, c=c: f(x, c))(x), f(x, c)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want, str(c))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_bound_of_hardshrink_is_of_the_array_s_type(dtype):
    torch = pytest.importorskip("torch")
    f = torch.nn.functional.hardshrink
    for c in (0.1, 0.3, 3.3, 60.7):
        x = torch.tensor([c, -c, c * 1.01, c * 0.99], dtype=getattr(torch, dtype))
        assert kf.fuse(f)(x, c).equal(f(x, c))
