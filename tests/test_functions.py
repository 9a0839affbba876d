"""kfusion's functions on arrays: each composite against its formula in float64, on every dtype and kind of array."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kfusion as kf
from kinds import DTYPES, SPACING, np_dtype
from reference_ops import MAPS, REDUCTIONS

erf = np.vectorize(math.erf, otypes=[float])


def norm_reference(x, weight, bias, axes, eps, centre=True):
    d = x - x.mean(axes, keepdims=True) if centre else x
    y = d / np.sqrt((d * d).mean(axes, keepdims=True) + eps)
    return y * weight + bias


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def attention(q, k, v, scale=None, sees=None):
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return softmax(scores if sees is None else np.where(sees, scores, -np.inf)) @ v


def splade(h, w, b, mask=None):
    y = np.log1p(np.maximum(h @ w.T + b, 0))
    return (y if mask is None else np.where(mask[..., None], y, 0)).max(1)


def cross_entropy(x, targets):
    return -np.log(softmax(x))[np.arange(len(x)), targets].mean()


def batchnorm(x, mean, var, weight, bias):
    shape = (-1,) + (1,) * (x.ndim - 2)
    mean, var, weight, bias = (p.reshape(shape) for p in (mean, var, weight, bias))
    return (x - mean) / np.sqrt(var + 1e-5) * weight + bias


# name: (kfusion's function, the formula, shapes of the arguments). "+" marks an argument that is not negative.
CASES = {
    "silu": (kf.silu, lambda x: x / (1 + np.exp(-x)), [(5, 7)]),
    "gelu": (kf.gelu, lambda x: x / 2 * (1 + erf(x / math.sqrt(2))), [(5, 7)]),
    "gelu tanh": (
        lambda x: kf.gelu(x, approximate="tanh"),
        lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        [(3, 1, 11)],
    ),
    "softplus": (kf.softplus, lambda x: np.log1p(np.exp(x)), [(13,)]),
    "softplus beta": (lambda x: kf.softplus(x, beta=3), lambda x: np.log1p(np.exp(3 * x)) / 3, [(13,)]),
    "leaky_relu": (lambda x: kf.leaky_relu(x, 0.2), lambda x: np.where(x > 0, x, 0.2 * x), [(5, 7)]),
    "elu": (lambda x: kf.elu(x, 0.5), lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)), [(5, 7)]),
    "softmax": (kf.softmax, softmax, [(5, 7)]),
    "softmax axis": (lambda x: kf.softmax(x, 0), lambda x: softmax(x, 0), [(5, 7, 3)]),
    "softmax whole": (lambda x: kf.softmax(x, None), lambda x: softmax(x, (0, 1)), [(5, 7)]),
    "log_softmax": (kf.log_softmax, lambda x: np.log(softmax(x)), [(5, 7)]),
    "logsumexp": (kf.logsumexp, lambda x: np.log(np.exp(x).sum()), [(5, 7)]),
    "logsumexp axis": (lambda x: kf.logsumexp(x, 1, True), lambda x: np.log(np.exp(x).sum(1, keepdims=True)), [(5, 7)]),
    "var": (kf.var, np.var, [(5, 7)]),
    "var axis": (lambda x: kf.var(x, (0, 2), correction=1.5), lambda x: np.var(x, (0, 2), ddof=1.5), [(5, 7, 3)]),
    "std": (lambda x: kf.std(x, 0, keepdims=True), lambda x: np.std(x, 0, keepdims=True), [(5, 7)]),
    "norm": (kf.norm, lambda x: np.sqrt((x * x).sum()), [(5, 7)]),
    "norm 1": (lambda x: kf.norm(x, 1, 1), lambda x: np.abs(x).sum(1), [(5, 7)]),
    "norm -inf": (lambda x: kf.norm(x, -math.inf, 0), lambda x: np.abs(x).min(0), [(5, 7)]),
    "norm 3": (lambda x: kf.norm(x, 3, 0, keepdims=True), lambda x: np.cbrt((abs(x) ** 3).sum(0))[None], [(5, 7)]),
    "norm 0": (lambda x: kf.norm(x, 0, 1), lambda x: np.count_nonzero(x, 1), [(5, 7)]),
    "layernorm": (kf.layernorm, lambda x: norm_reference(x, 1, 0, -1, 1e-5), [(5, 7)]),
    "layernorm affine": (kf.layernorm, lambda x, w, b: norm_reference(x, w, b, -1, 1e-5), [(2, 3, 7), (7,), (7,)]),
    "layernorm axes": (
        lambda x, w: kf.layernorm(x, w, axis=(-2, -1), eps=0.1),
        lambda x, w: norm_reference(x, w, 0, (-2, -1), 0.1),
        [(2, 3, 7), (3, 7)],
    ),
    "layernorm first axis": (
        lambda x, b: kf.layernorm(x, bias=b, axis=0),
        lambda x, b: norm_reference(x, 1, b[:, None], 0, 1e-5),
        [(5, 7), (5,)],
    ),
    "layernorm outer axes": (
        lambda x, w: kf.layernorm(x, w, axis=(2, 0)),
        lambda x, w: norm_reference(x, w[:, None], 0, (0, 2), 1e-5),
        [(2, 3, 5), (2, 5)],
    ),
    "relu_layernorm": (
        kf.relu_layernorm,
        lambda x, w, b: norm_reference(np.maximum(x, 0), w, b, -1, 1e-5),
        [(5, 7), (7,), (7,)],
    ),
    "rmsnorm": (kf.rmsnorm, lambda x, w: norm_reference(x, w, 0, -1, 1e-5, centre=False), [(5, 7), (7,)]),
    "batchnorm": (kf.batchnorm, batchnorm, [(2, 3, 5, 7), (3,), "+(3,)", (3,), (3,)]),
    "batchnorm training": (
        lambda x, w: kf.batchnorm(x, weight=w),
        lambda x, w: batchnorm(x, x.mean((0, 2)), x.var((0, 2)), w, 0 * w),
        [(4, 3, 5), (3,)],
    ),
    "groupnorm": (
        lambda x, w, b: kf.groupnorm(x, 2, w, b),
        lambda x, w, b: norm_reference(x.reshape(3, 2, -1), 1, 0, -1, 1e-5).reshape(x.shape) * w[:, None] + b[:, None],
        [(3, 4, 5), (4,), (4,)],
    ),
    "linear": (kf.linear, lambda x, w, b: x @ w.T + b, [(2, 5, 7), (3, 7), (3,)]),
    "mse": (kf.mse, lambda x, y: ((x - y) ** 2).mean(), [(5, 7), (7,)]),
    "mse sum": (lambda x, y: kf.mse(x, y, reduction="sum"), lambda x, y: ((x - y) ** 2).sum(), [(5, 7), (5, 7)]),
    "attention": (kf.attention, attention, [(2, 5, 4), (2, 6, 4), (2, 6, 3)]),
    "attention causal": (
        lambda q, k, v: kf.attention(q, k, v, scale=0.7, causal=True),
        lambda q, k, v: attention(q, k, v, 0.7, np.tril(np.ones((5, 6), bool))),
        [(5, 4), (6, 4), (6, 3)],
    ),
    "splade_head": (kf.splade_head, splade, [(2, 5, 7), (11, 7), (11,)]),
}  # fmt: skip


def made(rng, shape, dtype):
    positive = isinstance(shape, str)
    x = rng.uniform(-3, 3, eval(shape[1:]) if positive else shape)
    return (abs(x) + 0.1 if positive else x).astype(np_dtype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_composites(name, dtype, rng):
    f, formula, shapes = CASES[name]
    arguments = [made(rng, s, dtype) for s in shapes]
    got = f(*arguments)
    expected = formula(*(a.astype(np.float64) for a in arguments))
    assert got.dtype == arguments[0].dtype
    assert got.shape == np.shape(expected)
    allowed = 32 * SPACING[dtype] * (1 + np.abs(expected))
    assert (np.abs(got.astype(np.float64) - expected) <= allowed).all(), np.abs(got - expected).max()


@pytest.mark.parametrize("name", CASES)
def test_composites_on_other_kinds_of_array(name, rng):
    f, _, shapes = CASES[name]
    arguments = [made(rng, s, "float32") for s in shapes]
    expected = f(*arguments)
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        kinds = ((torch.Tensor, torch.from_numpy), (jax.Array, jax.numpy.asarray))
        results = [(kind, f(*map(make, arguments))) for kind, make in kinds]
    for kind, got in results:
        assert isinstance(got, kind)
        # Products are the libraries' own.
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*MAPS, *REDUCTIONS])
def test_primitives_are_functions(name, rng):
    f = getattr(kf, name)
    x = rng.uniform(0.1, 0.9, (5, 7))
    if name in REDUCTIONS:
        assert f(x, (1,), True).shape == (5, 1)
        assert f(x).shape == ()
    elif name in ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "invert"):
        assert f(*[np.arange(6)] * (1 if name == "invert" else 2)).shape == (6,)
    elif name == "philox":
        assert f(np.arange(6), 1, 2).shape == (6,)
    elif name == "where":
        np.testing.assert_array_equal(kf.where(x > 0.5, x, 0.0), np.where(x > 0.5, x, 0))
    elif name == "clip":
        np.testing.assert_array_equal(kf.clip(x, 0.2, 0.7), np.clip(x, 0.2, 0.7))
    else:
        parameters = [x + 1] * 2 if name == "arccosh" else [x, x + 1]
        arity = len(inspect.signature(f).parameters)
        got = f(*parameters[:arity])
        np.testing.assert_allclose(got, MAPS[name](*parameters[:arity]), rtol=1e-12)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.data())
@settings(max_examples=60, deadline=None)
@np.errstate(all="ignore")
@pytest.mark.filterwarnings("ignore:.*empty slice", "ignore:Degrees of freedom", "ignore:invalid value")
def test_reductions_of_any_shape(shape, data):
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    correction = data.draw(st.integers(0, 2))
    x = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    np.testing.assert_allclose(kf.var(x, axis, correction=correction), np.var(x, axis, ddof=correction), rtol=1e-12)
    np.testing.assert_allclose(kf.mean(x, axis), np.mean(x, axis), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_rows_that_see_no_key(causal, added):
    """0, with gradients of 0, fused and not."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((2, 5, 4)), rng.standard_normal((2, 5, 4)), rng.standard_normal((2, 5, 3))
    sees = rng.random((5, 5)) > 0.3
    sees[0], sees[2] = [False, *[True] * 4], False
    mask = np.where(sees, 0.0, -np.inf) if added else sees
    f = kf.fuse(lambda q, k, v: kf.attention(q, k, v, mask=mask, causal=causal))
    seen = sees & np.tri(5, dtype=bool) if causal else sees
    rows = seen.any(-1)
    want = np.zeros((2, 5, 3))
    want[:, rows] = attention(q[:, rows], k, v, sees=seen[rows])
    for run in (f, f.unfused):
        np.testing.assert_allclose(run(q, k, v), want, rtol=1e-12, atol=1e-12)
    gradients = kf.grad(lambda q, k, v: (kf.attention(q, k, v, mask=mask, causal=causal) ** 2).sum(), (0, 1, 2))(
        q, k, v
    )
    assert all(np.isfinite(g).all() for g in gradients)
    assert (gradients[0][:, ~rows] == 0).all()


@pytest.mark.parametrize("scale", [None, 0.5])
@pytest.mark.parametrize("extents", [(5, 6, 0, 3), (5, 6, 4, 0), (5, 0, 4, 3), (0, 6, 4, 3)])
def test_attention_without_elements(extents, scale):
    """Equal weights without features, 0 without keys."""
    m, n, d, e = extents
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((2, m, d)), rng.standard_normal((2, n, d)), rng.standard_normal((2, n, e))
    f = kf.fuse(lambda q, k, v: kf.attention(q, k, v, scale=scale))
    want = attention(q, k, v) if d and n else np.broadcast_to(v.mean(-2, keepdims=True) if n else 0.0, (2, m, e))
    for run in (f, f.unfused):
        if scale is None or d == 0:
            np.testing.assert_allclose(run(q, k, v), want, rtol=1e-12, atol=1e-12)
        assert run(q, k, v).shape == (2, m, e)
    torch = pytest.importorskip("torch")
    call = torch.nn.functional.scaled_dot_product_attention
    tensors = [torch.from_numpy(x) for x in (q, k, v)]
    torch.testing.assert_close(kf.fuse(lambda *a: call(*a, scale=scale))(*tensors), call(*tensors, scale=scale))


def test_masks():
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((2, 5, 4)), rng.standard_normal((2, 6, 4)), rng.standard_normal((2, 6, 3))
    sees = rng.random((5, 6)) > 0.3
    sees[:, 0] = True
    np.testing.assert_allclose(kf.attention(q, k, v, mask=sees), attention(q, k, v, sees=sees), rtol=1e-12, atol=1e-12)
    added = np.where(sees, 0.0, -np.inf)
    np.testing.assert_allclose(kf.attention(q, k, v, mask=added), attention(q, k, v, sees=sees), rtol=1e-12, atol=1e-12)

    h, w, b = rng.standard_normal((2, 5, 7)), rng.standard_normal((11, 7)), rng.standard_normal(11)
    mask = np.array([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0]])
    np.testing.assert_allclose(kf.splade_head(h, w, b, mask), splade(h, w, b, mask != 0), rtol=1e-12, atol=1e-12)
    assert (kf.splade_head(h, w, b, mask)[1] == 0).all()


def test_losses_of_classes():
    rng = np.random.default_rng(0)
    x, targets = rng.standard_normal((5, 7)), np.array([0, 3, 6, 2, 2])
    rows = [cross_entropy(x[i : i + 1], targets[i : i + 1]) for i in range(5)]
    np.testing.assert_allclose(kf.cross_entropy(x, targets), np.mean(rows), rtol=1e-12)
    np.testing.assert_allclose(kf.cross_entropy(x, targets, reduction="none"), rows, rtol=1e-12)
    np.testing.assert_allclose(kf.cross_entropy(x, targets, ignore_index=2), np.mean(rows[:3]), rtol=1e-12)
    np.testing.assert_allclose(kf.cross_entropy(x, targets, reduction="sum"), np.sum(rows), rtol=1e-12)
    weight = rng.uniform(0.5, 2, 7)
    counts = weight[targets]
    got = kf.cross_entropy(x, targets, weight=weight, ignore_index=2)
    np.testing.assert_allclose(got, (rows * counts)[:3].sum() / counts[:3].sum(), rtol=1e-12)
    smooth = 0.75 * np.array(rows) - 0.25 * np.log(softmax(x)).mean(1)
    np.testing.assert_allclose(kf.cross_entropy(x, targets, label_smoothing=0.25), smooth.mean(), rtol=1e-12)


@pytest.mark.parametrize("wrong", [-1, 7, -100])
def test_a_target_that_is_no_class(wrong):
    x, targets = np.zeros((3, 7)), np.array([0, wrong, 2], np.int32)
    losses = kf.cross_entropy(x, targets, reduction="none")
    np.testing.assert_array_equal(np.isnan(losses), [False, True, False])
    for f in (kf.cross_entropy, kf.fused_cross_entropy, kf.unfused_cross_entropy):
        assert np.isnan(f(x, targets))
        np.testing.assert_allclose(f(x, targets, ignore_index=wrong), np.log(7))


def test_extremes():
    big = np.array([[1e4, -1e4, 0.0], [-np.inf, 0.0, -np.inf]])
    np.testing.assert_array_equal(kf.softmax(big), [[1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(kf.logsumexp(big, 1), [1e4, 0])
    np.testing.assert_array_equal(kf.logsumexp(np.array([-np.inf, -np.inf]), 0), -np.inf)
    np.testing.assert_array_equal(kf.softplus(np.array([-1e4, 1e4])), [0, 1e4])
    np.testing.assert_array_equal(kf.gelu(np.array([3e38], np.float32)), np.array([3e38], np.float32))
    x = np.full((2, 4096), 300, np.float16)
    assert (kf.layernorm(x) == 0).all()
    np.testing.assert_array_equal(kf.rmsnorm(x), np.ones((2, 4096), np.float16))
    assert kf.var(x + (np.arange(4096) % 2).astype(np.float16)) == np.float16(0.25)
    offset = 1e4 + np.arange(16, dtype=np.float32) / 16
    np.testing.assert_allclose(kf.var(offset), np.var(offset.astype(np.float64)), rtol=1e-6)


def test_statistics_of_half_types_are_float32():
    x = (np.arange(64) % 3 + 100.25).astype(np.float16)[None]
    expected = norm_reference(x.astype(np.float64), 1, 0, -1, 1e-5)
    np.testing.assert_allclose(kf.layernorm(x).astype(float), expected, atol=4e-3)


def test_views_and_fills(rng):
    x = rng.standard_normal((2, 3, 5))
    pairs = [
        (kf.transpose(x, (2, 0, 1)), x.transpose(2, 0, 1)),
        (kf.matrix_transpose(x), x.mT),
        (kf.moveaxis(x, 0, -1), np.moveaxis(x, 0, -1)),
        (kf.expand_dims(x, (0, 2)), np.expand_dims(x, (0, 2))),
        (kf.squeeze(x[:, :1]), x[:, 0]),
        (kf.broadcast_to(x[0], (4, 3, 5)), np.broadcast_to(x[0], (4, 3, 5))),
        (kf.flip(x, (0, 2)), np.flip(x, (0, 2))),
        (kf.full_like(x, 7, "int32"), np.full_like(x, 7, "int32")),
        (kf.take(x, np.array([2, -1]), 2), x[:, :, [2, -1]]),
        (kf.astype(x, "bool"), x != 0),
        (kf.conv2d(x[None], x[None, :, :1, :1]), np.einsum("chw,c->hw", x, x[:, 0, 0])[None, None]),
        (kf.iota((2, 3), dtype="float16"), np.broadcast_to(np.arange(3, dtype=np.float16), (2, 3))),
    ]
    for got, expected in pairs:
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


A = np.ones((5, 7), np.float32)
AN_ARRAY = "must be a NumPy array or a DLPack tensor (torch, CuPy, JAX, ...)"
WRONG = {
    "kfusion.relu: x must be an array, got list": lambda: kf.relu([1.0]),
    "kfusion.relu: x must be an array, got str": lambda: kf.relu("a"),
    f"kfusion.relu: x {AN_ARRAY}, got numpy.ma.MaskedArray": lambda: kf.relu(np.ma.masked_array(A)),
    f"kfusion.add: y {AN_ARRAY}, got numpy.matrix": lambda: kf.add(A, A.view(np.matrix)),
    "kfusion.relu: at least one argument must be an array": lambda: kf.relu(2.0),
    "kfusion.relu: missing a required argument": lambda: kf.relu(),
    "kfusion.sum: got an unexpected keyword argument 'out'": lambda: kf.sum(A, out=A),
    "kfusion.exp: x must be float16, bfloat16, float32, float64, bool, int32 or int64, got": lambda: kf.exp(
        A.astype(complex)
    ),
    "kfusion.add: operands could not be broadcast": lambda: kf.add(A, np.ones(3)),
    "kfusion.sum: axis 2 is out of bounds": lambda: kf.sum(A, 2),
    "kfusion.layernorm: weight must have shape (7,), got (5,)": lambda: kf.layernorm(A, A[:, 0]),
    "kfusion.layernorm: eps must be a number, got str": lambda: kf.layernorm(A, eps="a"),
    "kfusion.reshape: shape must be integers, got 'a'": lambda: kf.reshape(A, "a"),
    "kfusion.broadcast_to: shape must be integers, got (7, 1.5)": lambda: kf.broadcast_to(A, (7, 1.5)),
    "kfusion.transpose: axes must be integers, got 'a'": lambda: kf.transpose(A, "a"),
    "kfusion.iota: shape must be integers, got 'a'": lambda: kf.iota("a"),
    "kfusion.iota: axis must be integers, got 1.5": lambda: kf.iota(3, 1.5),
    "kfusion.layernorm: bias must be float32, got float64": lambda: kf.layernorm(A, None, np.ones(7)),
    "kfusion.layernorm: x must be floats, got int64": lambda: kf.layernorm(A.astype(int)),
    "kfusion.layernorm: eps must be finite and >= 0, got -1": lambda: kf.layernorm(A, eps=-1),
    "kfusion.softmax: axis 5 is out of bounds": lambda: kf.fused_softmax(A, axis=5),
    "kfusion.logsumexp: axis must be integers, got 1.0": lambda: kf.logsumexp(A, axis=1.0),
    "kfusion.layernorm: axis 2 is out of bounds for array of dimension 2": lambda: kf.layernorm(A, axis=2),
    "kfusion.layernorm: axis must not name an axis twice": lambda: kf.layernorm(A, axis=(0, -2)),
    "kfusion.relu_layernorm: weight must have shape (7,), got ()": lambda: kf.relu_layernorm(A, 2.0),
    "kfusion.batchnorm: mean and var must be given both": lambda: kf.batchnorm(A, A[0]),
    "kfusion.batchnorm: var must have shape (7,), got (5,)": lambda: kf.batchnorm(A, A[0], A[:, 0]),
    "kfusion.groupnorm: x must have channels that 2 groups divide, got shape (5, 7)": lambda: kf.groupnorm(A, 2),
    "kfusion.groupnorm: weight must have shape (7,), got (5,)": lambda: kf.groupnorm(A, 7, A[:, 0]),
    "kfusion.linear: weight must have shape (n, k) for x (..., k), got (7, 5)": lambda: kf.linear(A, A.T),
    "kfusion.linear: bias must have shape (5,), got (7,)": lambda: kf.linear(A, A, A[0]),
    "kfusion.matmul: ": lambda: kf.matmul(A, A),
    "kfusion.conv2d: stride must be one number or two": lambda: kf.conv2d(
        A[None, None], A[None, None], stride=(1, 2, 3)
    ),
    "kfusion.gelu: approximate must be": lambda: kf.gelu(A, approximate="erf"),
    "kfusion.norm: ord must be a number, got 'fro'": lambda: kf.norm(A, "fro"),
    "kfusion.mse: reduction must be": lambda: kf.mse(A, A, reduction="all"),
    "kfusion.cross_entropy: targets must have shape (5,), got (7,)": lambda: kf.cross_entropy(A, np.zeros(7, int)),
    "kfusion.cross_entropy: targets must be int32 or int64, got float32": lambda: kf.cross_entropy(A, A[:, 0]),
    "kfusion.cross_entropy: weight must be float32 of shape (7,), got float32 of shape (5,)": lambda: kf.cross_entropy(
        A, np.zeros(5, int), weight=A[:, 0]
    ),
    "kfusion.cross_entropy: weight must be float32 of shape (7,), got float64 of shape (7,)": lambda: kf.cross_entropy(
        A, np.zeros(5, int), weight=np.ones(7)
    ),
    "kfusion.cross_entropy: label_smoothing must be from 0 to 1, got 2": lambda: kf.cross_entropy(
        A, np.zeros(5, int), label_smoothing=2
    ),
    "kfusion.cross_entropy: logits must be floats, got int64": lambda: kf.cross_entropy(
        A.astype(int), np.zeros(5, int)
    ),
    "kfusion.attention: q, k and v must have at least 2 axes": lambda: kf.attention(A, A, A[0]),
    "kfusion.splade_head: h must have shape": lambda: kf.splade_head(A, A, A[0]),
    "kfusion.splade_head: mask must have shape (5, 7), got (7,)": lambda: kf.splade_head(A[..., None], A, A[0], A[0]),
    "kfusion.squeeze: axis 0 must have extent 1": lambda: kf.squeeze(A, 0),
    "kfusion.moveaxis: destination must name 1 axes": lambda: kf.moveaxis(A, 0, (0, 1)),
    "kfusion.expand_dims: axis must not name a place twice": lambda: kf.expand_dims(A, (0, 0)),
    "kfusion.astype: dtype must be one of": lambda: kf.astype(A, "int8"),
    "kfusion.iota: dtype must be": lambda: kf.iota(3, dtype="complex64"),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError)) as caught:
        WRONG[message]()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_arrays_of_two_libraries():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"kfusion\.add: y must be an array of numpy as x is, got one of torch"):
        kf.add(A, torch.ones(7))


def test_numpy_scalars_are_arrays_without_axes():
    total = kf.sum(A)
    assert isinstance(total, np.float32)
    assert kf.sqrt(total) == np.float32(35) ** np.float32(0.5)
    assert kf.add(A, np.float64(1)).dtype == np.float64
    assert kf.add(A, 1.0).dtype == np.float32


def test_docstrings_speak_of_the_parameters():
    assert kf.where.__doc__.startswith("x where condition is true, else y.")
    assert "clip(x, min, max) = min(max(x, min), max)" in kf.clip.__doc__
    assert "broadcast" not in kf.exp.__doc__
