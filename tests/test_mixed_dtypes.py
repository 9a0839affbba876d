"""Every pair of dtypes, with axes and without, and numbers beside arrays: fused functions give the library's dtypes and
values. Beside half types arithmetic has Python's numbers in float32, as torch does; comparisons, and NumPy's operators,
in the array's dtype; what no dtype holds is an error where torch raises one."""

from __future__ import annotations

import functools
import itertools
import re

import numpy as np
import pytest

import dtype_sweep
import kfusion as kf
from dtype_sweep import difference, layout_difference, layouts, variations
from dtype_sweep_functions import FUNCTIONS
from sweeps import sweep, texts

torch = pytest.importorskip("torch")
F = torch.nn.functional
ml_dtypes = pytest.importorskip("ml_dtypes")
DRAWN = 25  # variations of a function
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


@pytest.fixture(autouse=True)
def one_thread():
    """For arrays as small as these, threads only wait for each other."""
    before = kf.get_num_threads()
    kf.set_num_threads(1)
    yield
    kf.set_num_threads(before)


# ---- pairs of dtypes ------------------------------------------------------------------------------------------------


def wrong(library, text, seed, some=list):
    """What differs, of all variations or of those that `some` chooses."""
    found = [(v, difference(v, seed)) for v in some(list(variations(library, text)))]
    return [f"{v}: {text}" for v, text in found if text not in (None, "refused", "taken")]


def test_some_pairs_of_dtypes(seed, rng):
    """A few functions, drawn; by hand: python tests/support/dtype_sweep.py."""
    for library, functions in FUNCTIONS.items():
        drawn = [functions[i] for i in rng.permutation(len(functions))[:12]]
        some = lambda rows: [rows[i] for i in rng.permutation(len(rows))[:DRAWN]]  # noqa: E731
        assert [found for text in drawn for found in wrong(library, text, seed, some)] == []


@pytest.mark.slow
@pytest.mark.parametrize("library", FUNCTIONS)
def test_all_pairs_of_dtypes(library, seed):
    assert [found for text in FUNCTIONS[library] for found in wrong(library, text, seed)] == []


def test_how_results_lie(seed, some):
    """They share no memory with operands, and lie as NumPy's."""
    pairs = some(itertools.product(layouts(np.random.default_rng(0)), FUNCTIONS["numpy"]), 250)
    found = ((text, layout, layout_difference(text, layout, seed)) for layout, text in pairs)
    assert [row for row in found if row[2]] == []


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


# ---- functions of NumPy ---------------------------------------------------------------------------------------------


def test_weighted_averages_and_isclose():
    """Integers and bools have float64, also beside weights of a narrower float. A number that is close has the array's
    type before it is compared: 2.7 and 3 are 0.3008 apart as halves.
    """

    def averages(dtype, weights):
        x, w = np.array([1, 0, 1], dtype), np.array([1, 3, 2]).astype(weights)
        got, want = kf.fuse(lambda x, w: np.average(x, weights=w))(x, w), np.average(x, weights=w)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-3 if got.dtype == "float16" else 1e-7)

    def close(dtype, number):
        x = np.array([3.0, 2.7, 2.5, 2.45, 0.0, np.nan if dtype.startswith("f") else 1]).astype(dtype)
        for f in (lambda x: np.isclose(number, x, rtol=0.1, equal_nan=True), lambda x: np.isclose(x, number, rtol=0.1)):
            np.testing.assert_array_equal(kf.fuse(f)(x), f(x))

    dtypes = ("bool", "int32", "float16", "float64")
    sweep(averages, itertools.product(dtypes, ("float16", "float32", "int64", "bool")))
    sweep(close, itertools.product((*dtypes, "float32"), (2.7, 3, True, np.nan)))


OF_NUMBERS = """
np.isclose(x, c) ; np.isclose(c, x) ; np.isclose(x, 1.0, atol=c) ; np.isclose(x, 1.0, rtol=c)
np.isclose(x, c, equal_nan=True) ; np.isclose(x, x[::-1], atol=c) ; np.isclose(x, x[::-1], rtol=c)
x < c ; c <= x ; x == c ; x != c ; np.clip(x, -c, c) ; np.clip(x, None, c) ; np.clip(x, c, None)
np.where(x > 0, x, c) ; np.where(x > 0, c, 0.5) ; np.maximum(x, c) ; np.fmin(c, x) ; np.nan_to_num(x, nan=c)
np.select([x > 0], [x], c)
"""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of overflows and of tolerances that are not finite
def test_halves_and_numbers_beyond_their_range(some):
    x = np.array([0, 1, -1, 65504, -65504, np.inf, -np.inf, np.nan, 3.5, 6e-8], np.float16)
    beyond = (1e6, -1e6, 70000, 65519.9, 65520.0, 65504, 2**40, 1e300, np.inf, np.nan, 1e-9)

    def check(text, is_argument):
        f = eval(f"lambda x, c: {text}")
        fused = kf.fuse(f)
        for c in some(beyond, 4):
            got, want = fused(x, c) if is_argument else kf.fuse(lambda x, c=c: f(x, c))(x), f(x, c)
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want, str(c))

    sweep(check, itertools.product(texts(OF_NUMBERS), (False, True)))


def test_numpys_formulas_round_numbers():
    """A number that becomes one of a half type has been rounded where it is computed in float32."""

    def check(f, dtype):
        x, fused = np.array([60000.0, 2048, 100, -7.5], dtype), kf.fuse(lambda x, y: f(x, y))
        for y in (2.7, 3.3, 0.1):
            want = f(x.astype("float32"), np.float32(x.dtype.type(y))).astype(dtype)
            np.testing.assert_array_equal(fused(x, y), want)
            np.testing.assert_array_equal(kf.fuse(lambda x, y=y: f(x, y))(x), want)

    functions = (np.fmod, np.remainder, lambda x, y: np.divmod(x, y)[1])
    sweep(check, itertools.product(functions, (np.float16, ml_dtypes.bfloat16)))
    x = np.linspace(-4, 4, 1001).astype(np.float16)
    assert np.array_equal(kf.fuse(lambda x: x * SCALAR)(x), x * SCALAR)
    assert np.array_equal(kf.fuse(lambda x: x == SCALAR)(x), x == SCALAR)
    want = F.gelu(torch.from_numpy(x).double(), approximate="tanh").numpy()  # formulas of kfusion are exact for all
    assert (np.abs(kf.gelu(x, approximate="tanh") - want) <= 1.05 * 2.0**-11 * np.abs(want) + 1e-6).all()


# ---- Python's numbers beside half types of torch --------------------------------------------------------------------

SCALAR = 0.1  # of which both half types hold no more than 0.0999755859375 and 0.10009765625
ARITHMETIC = """
x * SCALAR ; x / 3.3 ; x * 0 + SCALAR ; SCALAR - x * 0 ; torch.lerp(x * 0, x, SCALAR) ; F.hardswish(x)
torch.addcmul(x * 0, x, x, value=SCALAR) ; F.gelu(x, approximate="tanh") ; F.softplus(x, beta=SCALAR)
"""
AS_STORED = """
x == SCALAR ; x >= SCALAR ; x < SCALAR ; x != SCALAR ; torch.where(x > 0, x, SCALAR) ; torch.clamp(x, max=SCALAR)
x.masked_fill(x > 0, SCALAR) ; torch.full_like(x, SCALAR) + x * 0
x - SCALAR ; SCALAR + x ; torch.sub(x, 1, alpha=SCALAR) ; torch.add(x * 0, x, alpha=SCALAR)
torch.inner(torch.tensor(SCALAR), x)
"""


def test_numbers_beside_halves():
    def arithmetic(text, dtype):
        f, x = eval(f"lambda x: {text}"), torch.linspace(-4, 4, 1001).to(getattr(torch, dtype))
        got, want = kf.fuse(f)(x).double(), f(x.double())
        assert ((got - want).abs() <= 1.05 * ROUNDING[dtype] * want.abs() + 1e-6).all()

    def as_stored(text, dtype):
        f = eval(f"lambda x, s=SCALAR: {text}")
        x = torch.cat([torch.tensor([SCALAR, -SCALAR]), torch.linspace(-1, 1, 101)]).to(getattr(torch, dtype))
        assert torch.equal(kf.fuse(lambda x: f(x))(x), f(x))
        assert torch.equal(kf.fuse(lambda x, s: f(x))(x, SCALAR), f(x))

    def among_arguments(dtype):
        x, f = torch.ones(100, dtype=getattr(torch, dtype)), kf.fuse(lambda x, s: x * 2 * s)
        for s in (SCALAR, 1e-3, 7.7):
            assert torch.equal(f(x, s), (torch.ones(100, dtype=torch.float64) * 2 * s).to(x.dtype))
        for c in (0.1, 0.3, 3.3, 60.7):  # the bound of hardshrink is of the array's type
            x = torch.tensor([c, -c, c * 1.01, c * 0.99], dtype=getattr(torch, dtype))
            assert kf.fuse(F.hardshrink)(x, c).equal(F.hardshrink(x, c))

    sweep(arithmetic, itertools.product(texts(ARITHMETIC), ROUNDING))
    sweep(as_stored, itertools.product(texts(AS_STORED), ROUNDING))
    sweep(among_arguments, [(dtype,) for dtype in ROUNDING])
    x = torch.tensor([float("inf"), 6e4, 1.0, -1.0, 0.0], dtype=torch.float16)
    for f in (lambda x: x / 1e6, lambda x: x - 1e6, lambda x: x + 1e6, lambda x: x * 1e6):
        assert torch.equal(kf.fuse(f)(x).nan_to_num(7.0), f(x).nan_to_num(7.0))
    g = kf.trace(lambda x: x * SCALAR, kf.spec((4,), "bfloat16", like="torch"))
    (constant,) = [n for n in g.to_dict()["nodes"] if n["op"] == "constant" and not n["weak"]]
    assert (constant["wide"], constant["value"]) == (True, np.float32(SCALAR))


CONVERTING = {
    "fill_": lambda x, s: x.clone().fill_(s), "clamp": lambda x, s: x.clamp(max=s),
    "masked_fill": lambda x, s: x.masked_fill(x > 0, s), "full_like": lambda x, s: torch.full_like(x, s) + x * 0,
    "new_full": lambda x, s: x.new_full((3,), s) + x[:3] * 0,
    "pad": lambda x, s: torch.nn.functional.pad(x, (1, 1), value=s),
    "hardtanh": lambda x, s: torch.nn.functional.hardtanh(x, -1.0, s),
    "threshold": lambda x, s: torch.nn.functional.threshold(x, 0.5, s),
    "hardshrink": lambda x, s: torch.nn.functional.hardshrink(x, s),
    "softshrink": lambda x, s: torch.nn.functional.softshrink(x, s), "add": lambda x, s: torch.add(x, x, alpha=s),
    "pow": lambda x, s: torch.pow(x.abs(), s),
}  # fmt: skip
WIDE = {
    "product": lambda x, s: x * s, "sum": lambda x, s: x + s, "comparison": lambda x, s: x < s,
    "where": lambda x, s: torch.where(x > 0, x, s), "leaky_relu": lambda x, s: torch.nn.functional.leaky_relu(x, s),
    "lerp": lambda x, s: torch.lerp(x, x * 0, s), "base": lambda x, s: s ** x.sign(),
    "base of pow": lambda x, s: torch.pow(s, x.sign()),
}  # fmt: skip


WHOLE = """
x + s ; s - x ; x * s ; x / s ; x // s ; x < s ; s == x ; torch.fmod(x, s) ; torch.div(x, s, rounding_mode="trunc")
x.masked_fill(x > 0, s) ; torch.where(x > 0, x, s) ; x.clamp(max=s) ; x.clone().fill_(s) ; s ** x ; torch.xlogy(x, s)
"""
REFUSED = {
    "a number beyond float32": lambda x: stored(x, 1e39), "alpha": lambda x: torch.add(x, x, alpha=True),
    "a bool": lambda x: torch.sub(x, True, alpha=2),
    "float_power_": lambda x: x.clone().float_power_(2),
    "a named dtype": lambda x: torch.full_like(x, 1e6, dtype=torch.float16),
    "an infinite integer": lambda x: x.int().masked_fill(x > 0, x[0] / 0),
    "a constant": lambda x: x.int().masked_fill(x > 0, torch.tensor(float("inf"))),
    "no bool is a divisor of integers": lambda x: x.int() // False,
}  # fmt: skip


def _calls(f, x, numbers, is_argument):
    """Each number, and the call of the fused function with it: one of its arguments, or a constant of the function."""
    fused = kf.fuse(f)
    for s in numbers:
        constant = functools.partial(kf.fuse(lambda x, s=s: f(x, s)), x)
        yield s, functools.partial(fused, x, s) if is_argument else constant


def stored(x, s):
    y = x.clone()
    y[1:3] = s
    return y


def test_numbers_beyond_a_dtype():
    """A number among the arguments is looked at in each call."""
    x, says = torch.linspace(-1, 1, 6).half(), r"(cannot be converted to type|must be in range)"

    def converting(name, f, most, numbers, is_argument):
        for s, call in _calls(f, x, numbers, is_argument):
            if s > most:
                for of, message in ((functools.partial(f, x, s), says), (call, rf"kfusion\._?{name}: .*{says}")):
                    with pytest.raises(RuntimeError, match=message):
                        of()
            else:
                torch.testing.assert_close(call(), f(x, s))

    def wide(_, f):
        fused = kf.fuse(f)
        for s in (0.5, 1e6, -1e6, 65520.0, 65519.9):
            torch.testing.assert_close(fused(x, s), f(x, s))

    def extents(_, f):
        fused = kf.fuse(lambda x, y: f(x, y.shape[0] * -10.0))
        for n in (3, 4, 5, 70000):  # from the second call on they stand for those of later calls
            torch.testing.assert_close(fused(x, torch.zeros(n)), f(x, n * -10.0), equal_nan=True)

    of_float32 = [(name, getattr(F, name), 1e38, (0.5, 1e6, 1e39, 0.75)) for name in ("leaky_relu", "elu", "celu")]
    rows = [(*row, 65504, (0.5, 0.25, 1e6, 0.75)) for row in CONVERTING.items()] + of_float32
    sweep(converting, [(*row, is_argument) for row in rows for is_argument in (False, True)])
    sweep(extents, WIDE.items())

    def whole(text, dtype):
        f, x = eval(f"lambda x, s: {text}"), torch.tensor([1, -7, 0], dtype=dtype)
        for s, call in _calls(f, x, (3 * 10**9, 2**63 + 7, 9**20, 2**64, -(2**65)), is_argument=dtype == torch.int64):
            try:
                wanted = f(x, s)
            except (RuntimeError, OverflowError) as error:
                with pytest.raises(type(error)):
                    call()
            else:
                torch.testing.assert_close(call(), wanted, equal_nan=True)

    def refused(_, f):
        for of in (f, kf.fuse(f)):
            with pytest.raises((RuntimeError, TypeError, ZeroDivisionError)):
                of(torch.ones(2))

    def cut_off(s, dtype):
        x = torch.tensor([0.30078125, 2.0, 0.0, 257.25], dtype=dtype)
        for call, wanted in ((kf.fuse(lambda x, s: s // x)(x, s), s // x), (kf.fuse(lambda x: s // x)(x), s // x)):
            torch.testing.assert_close(call, wanted, equal_nan=True)

    sweep(cut_off, itertools.product((0.3, 0.7, 1e-8, 65504.0), (torch.bfloat16, torch.float16)))
    x32 = torch.tensor([1, -7, 2**31 - 1], dtype=torch.int32)
    assert torch.equal(kf.fuse(lambda x: torch.rsub(x, 0.5, alpha=3))(x32), torch.rsub(x32, 0.5, alpha=3))

    sweep(whole, itertools.product(texts(WHOLE), (torch.int32, torch.int64, torch.float32)))
    sweep(refused, REFUSED.items())
    sweep(wide, [*WIDE.items(), ("stored numbers become infinite", stored)])
    for f in (lambda x: np.where(x > 0, x, 2**63), lambda x: np.clip(x, 0, 10**30)):
        np.testing.assert_array_equal(kf.fuse(f)(np.arange(3.0)), f(np.arange(3.0)))
    fill = lambda x, s: x.masked_fill(x > 0, torch.tensor(-float("inf")))  # noqa: E731
    for f in (lambda x, s: x.masked_fill(x > 0, s), lambda x, s: x.clamp(max=s), fill):  # infinities are floats
        assert torch.equal(kf.fuse(f)(x, float("inf")), f(x, float("inf")))
        assert {g.kind for g in kf.fuse(f).plan(x, float("inf")).groups} == {"pointwise"}
    fused = kf.fuse(lambda x, s: torch.where(x > 0, s, 0.5))  # conditions alone give float32
    assert fused(x, 2.0).tolist() == [0.5, 0.5, 0.5, 2.0, 2.0, 2.0]
    with pytest.raises(RuntimeError, match="cannot be converted to type"):
        fused(x, 1e39)
