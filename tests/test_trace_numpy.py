"""Functions in NumPy's spelling: traced and executed, they give what NumPy gives: values, dtypes and shapes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from kfusion._tracing.trace import trace
from sweeps import refusals, sweep, texts
from tracing import assert_same, run

A, B = (np.random.default_rng(i).standard_normal((5, 7)).astype(np.float32) for i in (1, 2))
V = np.random.default_rng(3).standard_normal(7)
N = np.arange(35, dtype=np.int64).reshape(5, 7) % 11 - 5
J = (np.arange(35, dtype=np.int32).reshape(5, 7) % 3) + 1
H = A.astype(np.float16)
P = np.array([4, 0, -1, 4])
# Since NumPy 2.1 floor, ceil and trunc leave integers, and clip has min= and max=.
CURRENT = tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1)


def augmented(x, y):
    y = y * 1
    y += x
    y -= 1
    y *= x
    return y


OPERATORS = """
x + y ; x - 2 ; 2 - x ; x * y ; x / y ; 1 / y ; x // y ; x % y ; 7 % y ; x**2 ; abs(x) ** 0.5 ; abs(x) ** 1.5 ; -x ; +x
x < y ; x >= 1 ; x == y ; x != y ; 1 < x ; ((x > 0) & (y > 0)) | ~(x < y) ^ (x > 1) ; x @ np.atleast_2d(y).T
augmented(x, y)
"""
PAIRS = [(A, B), (N, J), (A, V[None] + 0 * B), (A.astype(np.float64), V), (H, H)]
UNARY = """sqrt cbrt exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh
arctanh floor ceil rint trunc square absolute sign negative positive isnan isinf isfinite logical_not"""
BINARY = """add subtract multiply divide floor_divide remainder power maximum minimum fmax fmin hypot arctan2 logaddexp
copysign equal less greater_equal logical_and logical_or logical_xor"""


@np.errstate(all="ignore")
def check(text, *given):
    """What NumPy refuses is refused, and so is int8, which it makes of bools."""
    f = eval(f"lambda x, y=None: {text}")
    try:
        expected = f(*given)
    except (TypeError, ValueError):
        expected = None
    if expected is None or str(getattr(expected, "dtype", "")) == "int8":
        with pytest.raises((TypeError, ValueError)):
            run(f, *given)
    else:
        assert_same(run(f, *given), expected, 5e-3 if given[0].dtype == np.float16 else 1e-5)


def test_operators_and_ufuncs(some):
    sweep(check, [(text, *pair) for text in texts(OPERATORS) for pair in PAIRS])
    unary = [n for n in UNARY.split() if CURRENT or n not in ("floor", "ceil", "trunc")]
    sweep(check, some([(f"np.{name}(x)", x) for name in unary for x in (A, N, J, A > 0)], 40))
    sweep(check, [(f"np.{name}(abs(x), y)", A, B) for name in BINARY.split()])
    for f in (lambda x: np.matmul(x, B.T), lambda x: np.hypot(x, B), lambda x: np.arctan2(B, x)):  # beside real arrays
        assert_same(run(f, A), f(A))


FUNCTIONS = """
np.sum(x) ; np.sum(x, 0) ; x.sum((0, 1), keepdims=True) ; x.sum(axis=()) ; np.sum(x, axis=1, dtype=None, out=None)
np.mean(x, axis=-1, keepdims=True) ; x.mean(1) ; x.prod(0) ; x.max(1) ; np.amax(x, axis=0) ; np.min(x) ; (x > 0).any(1)
np.all(x > -9, axis=0) ; x.var(-1) ; np.var(x, axis=0, ddof=1) ; np.var(x, 1, correction=2)
np.std(x, axis=1, keepdims=True) ; np.linalg.norm(x) ; np.linalg.norm(x, axis=1)
np.linalg.norm(x, 1, axis=1, keepdims=True) ; np.linalg.norm(x, np.inf, 0) ; np.linalg.vector_norm(x, axis=0)
np.where(x > 0, x, 0.0) ; np.clip(x, -1, 1) ; np.clip(x, None, 0.5) ; x.clip(0, 2) ; np.round(x) ; (x * 3).round()
np.reshape(x, (7, -1)) ; x.reshape(7, 5) ; x.reshape((-1,)) ; np.ravel(x.T) ; x.T.flatten() ; np.transpose(x)
x[None].transpose(2, 0, 1) ; x[None].transpose((1, 2, 0)) ; x.T ; x[None].mT ; x[:, None].swapaxes(0, 2)
np.moveaxis(x[:, None], 0, -1) ; np.moveaxis(x[:, None], (0, 2), (2, 0)) ; np.expand_dims(x, (0, -1))
np.squeeze(x[None, :, None]) ; x[None].squeeze(0) ; np.broadcast_to(x, (3, 5, 7)) * 1 ; np.flip(x, 1) ; np.flip(x)
np.fliplr(x) + np.flipud(x) ; np.split(x, [2, 3]) ; tuple(np.split(x, 7, axis=1)) ; np.full_like(x, 3)
np.zeros_like(x) + np.ones_like(x, dtype="float64") ; x.astype(np.int32) ; x.astype(bool)
x.astype(x.dtype, copy=False) ; np.dot(x, x.T) ; x.dot(np.ones(7, np.float32)) ; np.take(x, P) ; x.take(P, axis=1)
x[:, P] ; x[::-1, P, None] ; x[1:4, ::2] ; x[::-2, 5:1:-1] ; x[2] + x[-1] ; x[..., None, 3] ; x[3:3].sum(0)
sum(row * i for i, row in enumerate(x)) ; x.reshape(np.shape(x)[::-1]) * np.ndim(x) * np.size(x)
x * np.float64(2) + np.float32(1) ; np.copy(x) + x.copy()
(x * x.shape[0] * x.ndim * x.size * len(x) * x.itemsize, x.dtype == np.float32)
"""


def test_functions_and_methods():
    sweep(check, [(text, x) for text in texts(FUNCTIONS) for x in (A, N)])
    if CURRENT:
        check("np.clip(x, min=0)", A)
    assert_same(run(lambda x: x.relu() + x.sigmoid() - x.exp().log1p(), A * 0), A * 0 + np.float32(0.5 - np.log(2)))
    for row in _core.op_table():  # every function of one array is a method
        if row["kind"] == "map" and row["arity"] == 1:
            assert callable(getattr(kf._functions._numpy_values.NumpyValue, row["name"]))


def test_half_types_keep_their_dtype():
    for x in (H, A.astype(ml_dtypes.bfloat16)):
        got = run(lambda v: (v * 2.0 + 1).mean(1), x)
        assert got.dtype == x.dtype
        np.testing.assert_allclose(got.astype(float), (x.astype(float) * 2 + 1).mean(1), rtol=1e-2)


def test_scipy_ufuncs():
    special = pytest.importorskip("scipy.special")
    for name in ("erf", "expit", "log1p", "cbrt"):
        f = getattr(special, name)
        assert_same(run(lambda v, f=f: f(v), A), f(A))
    with pytest.raises(ValueError, match="library_call: a function of the array library"):
        run(lambda v: special.gamma(v), A)


def test_numpys_functions_keep_their_meaning_on_torchs_values():
    biased = trace(lambda v: np.var(v, axis=1), kf.spec((5, 7), like="torch")).graph
    assert biased == trace(lambda v: kf.var(v, axis=1), kf.spec((5, 7), like="torch")).graph
    assert trace(lambda v: np.max(v, axis=1), kf.spec((5, 7), like="torch")).results.index == 0


class Kernel:
    """Calls an argument that has the method, as CuPy's ufuncs do."""

    def __init__(self, name):
        self.name = f"cupy_{name}"

    def __call__(self, *args, **kwargs):
        for arg in args:
            if hasattr(arg, "__cupy_override_elementwise_kernel__"):
                return arg.__cupy_override_elementwise_kernel__(self, *args, **kwargs)
        raise AssertionError("no argument takes over")


def test_cupys_ufuncs():
    spec = kf.spec((5, 7), device="cuda:0")
    f = trace(lambda x: Kernel("add")(Kernel("exp")(x), 1), spec).graph
    assert f == trace(lambda x: np.add(np.exp(x), 1), spec).graph
    with pytest.raises(kf.TraceError, match=r"cupy\.add does not honour out="):
        trace(lambda x: Kernel("add")(x, 1, out=x), spec)
    with pytest.raises(kf.TraceError, match=r"cupy\.gamma is not traced"):
        trace(lambda x: Kernel("gamma")(x), spec)


def test_cupys_functions_call_methods():
    def by_position(x):
        y = x.sum(0, None, None, True) + x.mean(1, None, None, True) + x.var(0, None, None, 1, False)
        return y + x.max(axis=1, out=None, keepdims=True) + x.clip(0, 1, None) + x.reshape((5, 7), order="C")

    def by_name(x):
        y = kf.sum(x, 0, True) + kf.mean(x, 1, True) + kf.var(x, 0, correction=1)
        return y + kf.max(x, 1, True) + kf.clip(x, 0, 1) + kf.reshape(x, (5, 7))

    assert trace(by_position, A).graph == trace(by_name, A).graph


def test_bools_are_clipped_by_a_bound():
    x = np.array([True, False])
    for f in (lambda x: np.clip(x, None, None), lambda x: x.clip()):
        refusals([(lambda f=f: f(x), TypeError, "."), (lambda f=f: kf.fuse(f)(x), TypeError, ".")])
