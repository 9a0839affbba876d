"""Functions in NumPy's spelling: traced and executed, they give what NumPy gives: values, dtypes and shapes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from kfusion._tracing.trace import trace
from tracing import assert_same, run

A = np.random.default_rng(1).standard_normal((5, 7)).astype(np.float32)
B = np.random.default_rng(2).standard_normal((5, 7)).astype(np.float32)
V = np.random.default_rng(3).standard_normal(7)
N = np.arange(35, dtype=np.int64).reshape(5, 7) % 11 - 5
J = (np.arange(35, dtype=np.int32).reshape(5, 7) % 3) + 1
M = A > 0
H = A.astype(np.float16)
P = np.array([4, 0, -1, 4])

# Since NumPy 2.1 floor, ceil and trunc leave integers, and clip has min= and max=.
CURRENT = tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1)

OPERATORS = {
    "x + y": lambda x, y: x + y,
    "x - 2": lambda x, y: x - 2,
    "2 - x": lambda x, y: 2 - x,
    "x * y": lambda x, y: x * y,
    "x / y": lambda x, y: x / y,
    "1 / y": lambda x, y: 1 / y,
    "x // y": lambda x, y: x // y,
    "x % y": lambda x, y: x % y,
    "7 % y": lambda x, y: 7 % y,
    "x ** 2": lambda x, y: x**2,
    "abs(x) ** 0.5": lambda x, y: abs(x) ** 0.5,
    "abs(x) ** 1.5": lambda x, y: abs(x) ** 1.5,
    "-x": lambda x, y: -x,
    "+x": lambda x, y: +x,
    "x < y": lambda x, y: x < y,
    "x >= 1": lambda x, y: x >= 1,
    "x == y": lambda x, y: x == y,
    "x != y": lambda x, y: x != y,
    "1 < x": lambda x, y: x > 1,
    "logic": lambda x, y: ((x > 0) & (y > 0)) | ~(x < y) ^ (x > 1),
    "x @ y.T": lambda x, y: x @ y.T,
    "y += x": lambda x, y: _augmented(x, y),
}


def _augmented(x, y):
    y = y * 1
    y += x
    y -= 1
    y *= x
    return y


PAIRS = {
    "float32": (A, B),
    "integers": (N, J),
    "float32 and float64": (A, V[None] + 0 * B),
    "float64": (A.astype(np.float64), V),
    "float16": (H, H),
}


@pytest.mark.parametrize("f", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("pair", PAIRS)
def test_operators(f, pair):
    x, y = PAIRS[pair]
    y = np.atleast_2d(y) if f is OPERATORS["x @ y.T"] else y
    try:
        expected = f(x, y)
    except (
        TypeError,
        ValueError,
    ):  # bits of floats; y += x of another shape, or of a dtype that y cannot hold
        with pytest.raises((TypeError, ValueError)):
            run(f, x, y)
        return
    assert_same(run(f, x, y), expected, 5e-3 if x is H else 1e-5)


UFUNCS = (
    "sqrt cbrt exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh "
    "arctanh floor ceil rint trunc square absolute sign negative positive isnan isinf isfinite logical_not"
)


@pytest.mark.parametrize("name", UFUNCS.split())
@pytest.mark.parametrize("x", [A, N, J, M], ids=["f4", "i8", "i4", "bool"])
@np.errstate(all="ignore")
def test_unary_ufuncs(name, x):
    f = getattr(np, name)
    if name in ("floor", "ceil", "trunc") and x is not A and not CURRENT:
        pytest.skip("needs NumPy 2.1")
    try:
        expected = f(x)
    except TypeError:
        with pytest.raises(TypeError):
            run(f, x)
        return
    if str(expected.dtype) == "int8":  # of bools; kfusion has no int8
        with pytest.raises(TypeError):
            run(lambda v: f(v), x)
        return
    assert_same(run(lambda v: f(v), x), expected, 5e-3 if expected.dtype == np.float16 else 1e-5)


BINARY_UFUNCS = (
    "add subtract multiply divide floor_divide remainder power maximum minimum fmax fmin hypot arctan2 logaddexp "
    "copysign equal less greater_equal logical_and logical_or logical_xor matmul"
)


@pytest.mark.parametrize("name", BINARY_UFUNCS.split())
def test_binary_ufuncs(name):
    f = getattr(np, name)
    x, y = (np.abs(A), B) if name == "power" else (A, B.T if name == "matmul" else B)
    assert_same(run(lambda u, v: f(u, v), x, y), f(x, y))
    assert_same(run(lambda u: f(u, y), x), f(x, y))  # a real array beside a traced one
    assert_same(run(lambda u: f(x, u), y), f(x, y))


FUNCTIONS = {
    "sum": lambda x: np.sum(x),
    "sum axis": lambda x: np.sum(x, 0),
    "sum axes": lambda x: x.sum((0, 1), keepdims=True),
    "sum over none": lambda x: x.sum(axis=()),
    "defaults given": lambda x: np.sum(x, axis=1, dtype=None, out=None),
    "mean": lambda x: np.mean(x, axis=-1, keepdims=True),
    "x.mean": lambda x: x.mean(1),
    "prod": lambda x: x.prod(0),
    "max": lambda x: x.max(1),
    "amax": lambda x: np.amax(x, axis=0),
    "min": lambda x: np.min(x),
    "any": lambda x: (x > 0).any(1),
    "all": lambda x: np.all(x > -9, axis=0),
    "var": lambda x: x.var(-1),
    "var ddof": lambda x: np.var(x, axis=0, ddof=1),
    "var correction": lambda x: np.var(x, 1, correction=2),
    "std": lambda x: np.std(x, axis=1, keepdims=True),
    "norm": lambda x: np.linalg.norm(x),
    "norm axis": lambda x: np.linalg.norm(x, axis=1),
    "norm 1": lambda x: np.linalg.norm(x, 1, axis=1, keepdims=True),
    "norm inf": lambda x: np.linalg.norm(x, np.inf, 0),
    "vector_norm": lambda x: np.linalg.vector_norm(x, axis=0),
    "where": lambda x: np.where(x > 0, x, 0.0),
    "clip": lambda x: np.clip(x, -1, 1),
    "clip one side": lambda x: np.clip(x, None, 0.5),
    "clip keywords": lambda x: np.clip(x, min=0),
    "x.clip": lambda x: x.clip(0, 2),
    "round": lambda x: np.round(x),
    "x.round": lambda x: (x * 3).round(),
    "reshape": lambda x: np.reshape(x, (7, -1)),
    "x.reshape": lambda x: x.reshape(7, 5),
    "x.reshape tuple": lambda x: x.reshape((-1,)),
    "ravel": lambda x: np.ravel(x.T),
    "flatten": lambda x: x.T.flatten(),
    "transpose": lambda x: np.transpose(x),
    "x.transpose": lambda x: x[None].transpose(2, 0, 1),
    "x.transpose tuple": lambda x: x[None].transpose((1, 2, 0)),
    "T": lambda x: x.T,
    "mT": lambda x: x[None].mT,
    "swapaxes": lambda x: x[:, None].swapaxes(0, 2),
    "moveaxis": lambda x: np.moveaxis(x[:, None], 0, -1),
    "moveaxis several": lambda x: np.moveaxis(x[:, None], (0, 2), (2, 0)),
    "expand_dims": lambda x: np.expand_dims(x, (0, -1)),
    "squeeze": lambda x: np.squeeze(x[None, :, None]),
    "squeeze axis": lambda x: x[None].squeeze(0),
    "broadcast_to": lambda x: np.broadcast_to(x, (3, 5, 7)) * 1,
    "flip": lambda x: np.flip(x, 1),
    "flip all": lambda x: np.flip(x),
    "fliplr": lambda x: np.fliplr(x) + np.flipud(x),
    "split": lambda x: np.split(x, [2, 3]),
    "split equal": lambda x: tuple(np.split(x, 7, axis=1)),
    "full_like": lambda x: np.full_like(x, 3),
    "zeros_like": lambda x: np.zeros_like(x) + np.ones_like(x, dtype="float64"),
    "astype": lambda x: x.astype(np.int32),
    "astype bool": lambda x: x.astype(bool),
    "astype same": lambda x: x.astype(x.dtype, copy=False),
    "dot": lambda x: np.dot(x, x.T),
    "x.dot": lambda x: x.dot(np.ones(7, np.float32)),
    "take": lambda x: np.take(x, P),
    "take axis": lambda x: x.take(P, axis=1),
    "index array": lambda x: x[:, P],
    "index array and slice": lambda x: x[::-1, P, None],
    "slices": lambda x: x[1:4, ::2],
    "negative step": lambda x: x[::-2, 5:1:-1],
    "integers": lambda x: x[2] + x[-1],
    "ellipsis": lambda x: x[..., None, 3],
    "empty slice": lambda x: x[3:3].sum(0),
    "iteration": lambda x: sum(row * i for i, row in enumerate(x)),
    "attributes": lambda x: (x * x.shape[0] * x.ndim * x.size * len(x) * x.itemsize, x.dtype == np.float32),
    "np.shape": lambda x: x.reshape(np.shape(x)[::-1]) * np.ndim(x) * np.size(x),
    "NumPy scalars": lambda x: x * np.float64(2) + np.float32(1),
    "copy": lambda x: np.copy(x) + x.copy(),
    "methods of ours": lambda x: (x.relu() + x.sigmoid() - x.exp().log1p()) * 0,
}


@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("x", [A, N], ids=["float32", "int64"])
def test_functions_and_methods(f, x):
    if f is FUNCTIONS["clip keywords"] and not CURRENT:
        pytest.skip("needs NumPy 2.1")
    if f is FUNCTIONS["methods of ours"]:
        assert_same(run(f, x), x * 0.0 if x is N else x * 0)
        return
    if f is FUNCTIONS["attributes"] and x is N:
        return
    assert_same(run(f, x), f(x))


@pytest.mark.parametrize("x", [H, A.astype(ml_dtypes.bfloat16)], ids=["float16", "bfloat16"])
def test_half_types_keep_their_dtype(x):
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


def test_a_ufunc_of_the_users_own_is_not_taken_for_numpys():
    log = np.frompyfunc(lambda v: v, 1, 1)
    with pytest.raises(kf.TraceError, match="gives object"):
        trace(lambda v: log(v), A)


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


def test_every_unary_row_is_a_method():
    value = kf._functions._numpy_values.NumpyValue
    for row in _core.op_table():
        if row["kind"] == "map" and row["arity"] == 1:
            assert callable(getattr(value, row["name"]))


@pytest.mark.parametrize("f", [lambda x: np.clip(x, None, None), lambda x: x.clip()])
def test_bools_are_clipped_by_a_bound(f):
    x = np.array([True, False])
    for g in (f, kf.fuse(f)):
        with pytest.raises(TypeError):
            g(x)
