"""Quick versions in kernels (cpp/cpu/codegen/math/quick.hpp): where rounding hides their errors, nowhere else."""

import numpy as np
import pytest

import kfusion as kf
from graph_runs import wide
from kfusion import _core
from kinds import np_dtype
from loops_by import GENERATED, generated, generated_all
from sweeps import sweep

pytestmark = GENERATED

FORM = "mask.reduce.ps"  # of the argument of a quick exponential


def test_which_kernels_have_them():
    def check(name, function, dtype, has):
        graph = kf.trace(lambda x: function(x), kf.spec((20, 300), dtype))
        for target in ("avx512", "avx2", "baseline", "aarch64"):
            [kernel] = _core.testing.cpu_kernel_texts(graph, kf.device("cpu").to_dict(), target)
            assert (FORM in kernel["text"]) == (has and target == "avx512")

    rows = [(f.__name__, f, "bfloat16", True) for f in (kf.exp, kf.exp2, kf.silu, kf.softmax)]
    rows += [(f.__name__, f, "float16", False) for f in (kf.exp, kf.softmax)]
    rows += [("exp", kf.exp, "float32", False), ("compared", lambda x: kf.exp(x) > 1, "bfloat16", True)]
    rows += [("weights are shown", lambda x: kf.softmax(x.astype("float32")), "bfloat16", False)]
    sweep(check, rows)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_softmax(dtype, isa, rng):
    """All of masked rows' ends, and a row of nothing else."""
    x = (5 * rng.standard_normal((30, 333))).astype(np_dtype(dtype))
    x[:, 300:], x[7], x[8, 3] = -np.inf, -np.inf, np.inf
    with np.errstate(invalid="ignore"):
        e = np.exp(wide(x) - wide(x).max(1, keepdims=True))
        want = e / e.sum(1, keepdims=True)
    got = wide(generated(kf.softmax, x))
    unit = 2.0 ** {"float16": -10, "bfloat16": -7}[dtype]
    np.testing.assert_allclose(got, want, rtol=0.51 * unit, atol=2.0**-25 if dtype == "float16" else 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_quotients_that_show_are_exact(dtype, isa, rng):
    """A product with the reciprocal of 49 makes 0.99999994 of 49."""
    divisors = rng.permutation(np.arange(3, 128)).astype(np_dtype(dtype))
    x = np.zeros((125, 70), np_dtype(dtype))
    x[:, 5] = divisors
    whole = generated(lambda x: kf.floor(x / x.max(-1, keepdims=True)), x)
    np.testing.assert_array_equal(wide(whole), (wide(x) > 0).astype(float))
    rounded = generated(lambda x: x / x.max(-1, keepdims=True), x)
    np.testing.assert_array_equal(wide(rounded), (wide(x) > 0).astype(float))


def test_quotients_by_numbers_far_from_one(isa, rng):
    """They are divisions: 1 / 2^-130 is too large for float32."""
    divisors = np.array([0.0, -0.0, 2.0**-120, 2.0**120, np.inf, np.nan, 2.0**-130, -3.0]).reshape(-1, 1)
    d, x = divisors.astype(np_dtype("bfloat16")), rng.standard_normal((8, 200)).astype(np_dtype("bfloat16"))
    x[:, :4] = np.array([0, np.inf, np.nan, 2.0**-130])
    with np.errstate(all="ignore"):
        want = (x.astype(np.float32) / d.astype(np.float32)).astype(x.dtype)
    got = generated(lambda x, d: (x / d, x.sum(-1)), x, d)
    np.testing.assert_array_equal(wide(got), wide(want))


def weights(x):
    """Weights in float32: no better than the last bits of x's half type where nothing else shows them."""
    wide_x = x.astype("float32")
    return kf.exp(wide_x - wide_x.max(-1, keepdims=True))


LEAST = float(np.exp(np.float32(-1)))
SHOWN = {
    "compared": lambda w: kf.where(w >= LEAST, w, 0.0).astype("bfloat16"),
    "minus 1": lambda w: (w - 1).astype("bfloat16"),
    "logarithm": lambda w: kf.log(w).astype("bfloat16"),
    "floor": lambda w: kf.floor(w * 2.5).astype("bfloat16"),
    "two results": lambda w: (w.astype("bfloat16"), w >= LEAST),
    "two results, turned": lambda w: (w >= LEAST, w.astype("bfloat16")),
    "sum with signs in turn": lambda w: (w * (kf.iota(w.shape, 1) % 2 * 2 - 1)).sum(-1).astype("bfloat16"),
}


def test_weights_that_more_than_a_half_type_shows_are_exact(isa):
    x = np.zeros((4, 64), np_dtype("bfloat16"))
    x[0], x[1, 1:], x[2, 1:] = -np.arange(64) * 2.0**-12, -1, -np.arange(1, 64) * 2.0**-16

    def check(name):
        results = [generated_all(lambda x: SHOWN[name](weights(x)), v) for v in (x, x.astype(np.float32))]
        for got, want in zip(*results, strict=True):  # float32 has no quick version
            np.testing.assert_array_equal(wide(got), wide(want))

    sweep(check, [(name,) for name in SHOWN])
