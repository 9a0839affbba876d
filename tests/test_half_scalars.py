"""Python scalars beside half types: arithmetic has them in float32, as torch does; comparisons, and NumPy's own
operators, in the array's dtype."""

from __future__ import annotations

import numpy as np
import pytest

import kfusion as kf

torch = pytest.importorskip("torch")

ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
SCALAR = 0.1  # of which both half types hold no more than 0.0999755859375 and 0.10009765625

ARITHMETIC = {
    "product": lambda x: x * SCALAR,
    "quotient": lambda x: x / 3.3,
    "sum": lambda x: x * 0 + SCALAR,
    "of a number": lambda x: SCALAR - x * 0,
    "lerp": lambda x: torch.lerp(x * 0, x, SCALAR),
    "addcmul": lambda x: torch.addcmul(x * 0, x, x, value=SCALAR),
    "gelu by tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "hardswish": torch.nn.functional.hardswish,
    "softplus": lambda x: torch.nn.functional.softplus(x, beta=SCALAR),
}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_has_them_in_float32(name, dtype):
    f = ARITHMETIC[name]
    x = torch.linspace(-4, 4, 1001).to(getattr(torch, dtype))
    got, want = kf.fuse(f)(x).double(), f(x.double())
    assert ((got - want).abs() <= 1.05 * ROUNDING[dtype] * want.abs() + 1e-6).all()


def test_beyond_the_range_of_float16():
    x = torch.tensor([float("inf"), 6e4, 1.0, -1.0, 0.0], dtype=torch.float16)
    for f in (lambda x: x / 1e6, lambda x: x - 1e6, lambda x: x + 1e6, lambda x: x * 1e6):
        assert torch.equal(kf.fuse(f)(x).nan_to_num(7.0), f(x).nan_to_num(7.0))


@pytest.mark.parametrize("dtype", ROUNDING)
def test_numbers_among_the_arguments(dtype):
    x = torch.ones(100, dtype=getattr(torch, dtype))
    f = kf.fuse(lambda x, s: x * 2 * s)
    for s in (SCALAR, 1e-3, 7.7):
        assert torch.equal(f(x, s), (torch.ones(100, dtype=torch.float64) * 2 * s).to(x.dtype))


@pytest.mark.parametrize("dtype", ROUNDING)
def test_comparisons_are_in_the_array_s_dtype(dtype):
    x = torch.tensor([SCALAR, 0.2, -SCALAR], dtype=getattr(torch, dtype))
    for f in (lambda x: x == SCALAR, lambda x: x >= SCALAR, lambda x: x < SCALAR, lambda x: x != SCALAR):
        assert torch.equal(kf.fuse(f)(x), f(x))
        assert torch.equal(kf.fuse(lambda x, s, f=f: f(x))(x, SCALAR), f(x))


@pytest.mark.parametrize("dtype", ROUNDING)
def test_choices_give_what_torch_stores(dtype):
    x = torch.linspace(-1, 1, 101).to(getattr(torch, dtype))
    for f in (
        lambda x: torch.where(x > 0, x, SCALAR),
        lambda x: torch.clamp(x, max=SCALAR),
        lambda x: x.masked_fill(x > 0, SCALAR),
        lambda x: torch.full_like(x, SCALAR) + x * 0,
    ):
        assert torch.equal(kf.fuse(f)(x), f(x))


def test_numpy_rounds_what_its_operators_meet():
    x = np.linspace(-4, 4, 1001).astype(np.float16)
    assert np.array_equal(kf.fuse(lambda x: x * SCALAR)(x), x * SCALAR)
    assert np.array_equal(kf.fuse(lambda x: x == SCALAR)(x), x == SCALAR)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("f", [np.fmod, np.remainder, lambda x, y: np.divmod(x, y)[1]])
def test_numpys_formulas_round_numbers_of_each_call(f, dtype):
    """A number that becomes one of a half type has been rounded where it is computed in float32."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x, fused = np.array([60000.0, 2048, 100, -7.5], dtype), kf.fuse(lambda x, y: f(x, y))
    for y in (2.7, 3.3, 0.1):
        want = f(x.astype("float32"), np.float32(dtype.type(y))).astype(dtype)
        np.testing.assert_array_equal(fused(x, y), want)
        np.testing.assert_array_equal(kf.fuse(lambda x, y=y: f(x, y))(x), want)


def test_formulas_of_kfusion_are_exact_for_all_libraries():
    x = np.linspace(-4, 4, 1001).astype(np.float16)
    want = torch.nn.functional.gelu(torch.from_numpy(x).double(), approximate="tanh").numpy()
    got = kf.gelu(x, approximate="tanh").astype(np.float64)
    assert (np.abs(got - want) <= 1.05 * 2.0**-11 * np.abs(want) + 1e-6).all()


def test_graphs_keep_it():
    g = kf.trace(lambda x: x * SCALAR, kf.spec((4,), "bfloat16", like="torch"))
    (constant,) = [n for n in g.to_dict()["nodes"] if n["op"] == "constant" and not n["weak"]]
    assert constant["wide"]
    assert constant["value"] == np.float32(SCALAR)
