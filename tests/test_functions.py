"""kfusion's functions on arrays, also those by names of the array API standard: each beside torch's in float64, of all
dtypes and kinds of array; what is wrong; and pages that say which functions there are."""

from __future__ import annotations

import inspect
import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kfusion as kf
from kfusion import _core
from kinds import DTYPES, SPACING, np_dtype
from reference_ops import MAPS, REDUCTIONS
from sweeps import refusals, sweep, texts

torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
F = torch.nn.functional
ROWS = _core.op_table()
SHAPES = {
    **{"x": (5, 7), "y": (5, 7), "t": (2, 3, 7), "i": (2, 3, 5, 7), "g": (3, 4, 5)},  # values and images
    **{"w": (7,), "b": (7,), "c": (5,), "m": (3,), "p": (3,), "n": (4,)},  # weights, p of them positive
    **{"q": (2, 5, 4), "k": (2, 6, 4), "v": (2, 6, 3)},
}
CLASSES = [0, 3, 6, 2, 2]
PAIRS = """
kf.silu(x) | F.silu(x) ; kf.gelu(x) | F.gelu(x) ; kf.gelu(t, approximate="tanh") | F.gelu(t, approximate="tanh")
kf.softplus(x) | F.softplus(x) ; kf.softplus(c, beta=3) | F.softplus(c, beta=3)
kf.leaky_relu(x, 0.2) | F.leaky_relu(x, 0.2) ; kf.elu(x, 0.5) | F.elu(x, 0.5) ; kf.softmax(x) | x.softmax(-1)
kf.softmax(t, 0) | t.softmax(0) ; kf.softmax(x, None) | x.ravel().softmax(0).reshape(x.shape)
kf.log_softmax(x) | x.log_softmax(-1) ; kf.logsumexp(x) | x.logsumexp((0, 1))
kf.logsumexp(x, 1, True) | x.logsumexp(1, True) ; kf.var(x) | x.var(correction=0)
kf.var(t, (0, 2), correction=1.5) | t.var((0, 2), correction=0) * 14 / 12.5
kf.std(x, 0, keepdims=True) | x.std(0, correction=0, keepdim=True) ; kf.norm(x) | x.norm()
kf.norm(x, 1, 1) | x.norm(1, 1) ; kf.norm(x, -math.inf, 0) | x.norm(-math.inf, 0)
kf.norm(x, 3, 0, keepdims=True) | x.norm(3, 0, True) ; kf.norm(x, 0, 1) | x.norm(0, 1)
kf.layernorm(x) | F.layer_norm(x, (7,)) ; kf.layernorm(t, w, b) | F.layer_norm(t, (7,), w, b)
kf.layernorm(t, t[0], axis=(-2, -1), eps=0.1) | F.layer_norm(t, (3, 7), t[0], None, 0.1)
kf.layernorm(x, bias=c, axis=0) | F.layer_norm(x.T, (5,), None, c).T
kf.layernorm(t, t[:, 0], axis=(2, 0)) | F.layer_norm(t.transpose(0, 1), (2, 7), t[:, 0]).transpose(0, 1)
kf.relu_layernorm(x, w, b) | F.layer_norm(x.relu(), (7,), w, b) ; kf.rmsnorm(x, w) | F.rms_norm(x, (7,), w, 1e-5)
kf.batchnorm(i, m, p, m, m) | F.batch_norm(i, m, p, m, m)
kf.batchnorm(i, weight=m) | F.batch_norm(i, None, None, m, None, True)
kf.groupnorm(g, 2, n, n) | F.group_norm(g, 2, n, n) ; kf.linear(t, x, c) | F.linear(t, x, c)
kf.mse(x, w) | ((x - w) ** 2).mean() ; kf.mse(x, y, reduction="sum") | F.mse_loss(x, y, reduction="sum")
kf.attention(q, k, v) | of_torch(q, k, v)
kf.attention(q[0], k[0], v[0], scale=0.7, causal=True) | of_torch(q[0], k[0], v[0], None, 0, True, scale=0.7)
kf.attention(q, k, v, mask=sees) | of_torch(q, k, v, sees)
kf.splade_head(t, x, c) | (t @ x.T + c).relu().log1p().amax(1)
kf.splade_head(t, x, c, sees[:2, :3]) | torch.where(sees[:2, :3, None], (t @ x.T + c).relu().log1p(), 0).amax(1)
kf.cross_entropy(x, of) | F.cross_entropy(x, of)
kf.cross_entropy(x, of, reduction="none") | F.cross_entropy(x, of, reduction="none")
kf.cross_entropy(x, of, reduction="sum") | F.cross_entropy(x, of, reduction="sum")
kf.cross_entropy(x, of, ignore_index=2) | F.cross_entropy(x, of, ignore_index=2)
kf.cross_entropy(x, of, weight=w * w, ignore_index=2) | F.cross_entropy(x, of, w * w, ignore_index=2)
kf.cross_entropy(x, of, label_smoothing=0.25) | F.cross_entropy(x, of, label_smoothing=0.25)
kf.transpose(t, (2, 0, 1)) | t.permute(2, 0, 1) ; kf.matrix_transpose(t) | t.mT
kf.moveaxis(t, 0, -1) | t.movedim(0, -1) ; kf.expand_dims(t, (0, 2)) | t[None, :, None] ; kf.squeeze(t[:, :1]) | t[:, 0]
kf.broadcast_to(t[0], (4, 3, 7)) | t[0].expand(4, 3, 7) ; kf.flip(t, (0, 2)) | t.flip(0, 2)
kf.take(t, of[:2] - 1, 2) | t[:, :, of[:2] - 1]
kf.conv2d(i, i[..., :2, :3], stride=2) | F.conv2d(i, i[..., :2, :3], stride=2)
kf.concat([t, t * 2], axis=1) | torch.cat([t, t * 2], 1)
kf.concat((t, t[0]), axis=None) | torch.cat([t.ravel(), t[0].ravel()])
kf.permute_dims(t, (2, 0, 1)) | t.permute(2, 0, 1) ; kf.unstack(t, axis=-1)[2] | t[..., 2]
kf.signbit(x * -0.0 + (x - 3)) | x < 3
kf.count_nonzero(kf.relu(t), axis=(0, 2), keepdims=True) | (t > 0).sum((0, 2), keepdim=True)
kf.diff(t * t, n=2, axis=1) | torch.diff(t * t, 2, 1)
kf.diff(t, prepend=t[..., :1], append=t[..., :2]) | torch.diff(t, prepend=t[..., :1], append=t[..., :2])
kf.ones_like(t) + kf.zeros_like(t) | torch.ones_like(t) ; kf.vecdot(t, t[:, :1], axis=-1) | (t * t[:, :1]).sum(-1)
kf.tensordot(t, kf.tile(t, 3)[:1], axes=((1,), (1,))) | torch.tensordot(t, t.repeat(1, 1, 3)[:1], ([1], [1]))
kf.broadcast_arrays(t[0], t)[0] | t[0].expand(2, 3, 7) ; kf.meshgrid(w, c)[1] | torch.meshgrid(w, c, indexing="xy")[1]
kf.meshgrid(w, c, indexing="ij")[0] | torch.meshgrid(w, c, indexing="ij")[0]
"""


def drawn(rng):
    arrays = {name: rng.uniform(-3, 3, shape) for name, shape in SHAPES.items()}
    return arrays | {"p": np.abs(arrays["p"]) + 0.1}


def test_functions_of_every_dtype_and_kind_of_array(rng, some):
    arrays, sees, of = drawn(rng), rng.random((5, 6)) > 0.3, np.array(CLASSES)
    sees[:, 0] = True
    fixed = {"kf": kf, "np": np, "math": math, "torch": torch, "F": F, "of_torch": F.scaled_dot_product_attention}

    def check(text, expected, dtype):
        xs = {name: x.astype(np_dtype(dtype)) for name, x in arrays.items()}
        wide = {name: torch.from_numpy(x.astype(np.float64)) for name, x in xs.items()}
        want = eval(expected, fixed | wide | {"sees": torch.from_numpy(sees), "of": torch.from_numpy(of)}).numpy()
        f = eval(f"lambda {', '.join(xs)}, sees, of: {text}", fixed)
        for run in (f, kf.fuse(f)):
            got = run(*xs.values(), sees, of)
            assert (str(got.dtype), got.shape) == (dtype if want.dtype == np.float64 else str(want.dtype), want.shape)
            assert (np.abs(got.astype(np.float64) - want) <= 32 * SPACING[dtype] * (1 + np.abs(want))).all()
        if dtype == "float32":
            for kind, make in ((torch.Tensor, torch.from_numpy), (jax.Array, jax.numpy.asarray)):
                made = f(*map(make, (*xs.values(), sees, of)))
                assert isinstance(made, kind)  # products are the libraries' own
                np.testing.assert_allclose(np.asarray(made), got, rtol=1e-4, atol=1e-5)

    rows = [text.split(" | ") for text in texts(PAIRS)]
    sweep(check, [(*row, dtype) for row in rows for dtype in some(DTYPES, 1)])


def test_primitives_are_functions(rng):
    x = rng.uniform(0.1, 0.9, (5, 7))

    def check(name):
        f = getattr(kf, name)
        if name in REDUCTIONS:
            assert (f(x, (1,), True).shape, f(x).shape) == ((5, 1), ())
        elif name in ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "invert"):
            assert f(*[np.arange(6)] * (1 if name == "invert" else 2)).shape == (6,)
        elif name == "philox":
            assert f(np.arange(6), 1, 2).shape == (6,)
        else:
            low = x + 1 if name == "arccosh" else x > 0.5 if name == "where" else x
            arguments = [low, *((0.2, 0.7) if name == "clip" else (x + 1, x))][: len(inspect.signature(f).parameters)]
            np.testing.assert_allclose(f(*arguments), MAPS[name](*arguments), rtol=1e-12)

    sweep(check, [(name,) for name in (*MAPS, *REDUCTIONS)])


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


def test_rows_that_see_no_key():
    """0, with gradients of 0, fused and not."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((2, 5, 4)), rng.standard_normal((2, 5, 4)), rng.standard_normal((2, 5, 3))
    sees = rng.random((5, 5)) > 0.3
    sees[0], sees[2] = [False, *[True] * 4], False

    def check(causal, added):
        mask = np.where(sees, 0.0, -np.inf) if added else sees
        f = kf.fuse(lambda q, k, v: kf.attention(q, k, v, mask=mask, causal=causal))
        seen = torch.from_numpy(sees & np.tri(5, dtype=bool) if causal else sees)
        want = F.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v)), seen).nan_to_num(0)
        for run in (f, f.unfused):
            np.testing.assert_allclose(run(q, k, v), want, rtol=1e-12, atol=1e-12)
        gradients = kf.grad(lambda *a: (f(*a) ** 2).sum(), (0, 1, 2))(q, k, v)
        assert all(np.isfinite(g).all() for g in gradients)
        assert (gradients[0][:, ~seen.any(-1).numpy()] == 0).all()

    sweep(check, itertools.product((False, True), (False, True)))


def test_attention_without_elements():
    """Equal weights without features, 0 without keys."""

    def check(scale, m, n, d, e):
        rng = np.random.default_rng(0)
        q, k, v = rng.standard_normal((2, m, d)), rng.standard_normal((2, n, d)), rng.standard_normal((2, n, e))
        f = kf.fuse(lambda q, k, v: kf.attention(q, k, v, scale=scale))
        tensors = [torch.from_numpy(x) for x in (q, k, v)]
        want = F.scaled_dot_product_attention(*tensors, scale=scale or 1.0) if n and d else None
        if want is None:
            want = np.broadcast_to(v.mean(-2, keepdims=True) if n else 0.0, (2, m, e))
        for run in (f, f.unfused):
            if d == 0 or scale or not (n and d):
                np.testing.assert_allclose(run(q, k, v), want, rtol=1e-12, atol=1e-12)
            assert run(q, k, v).shape == (2, m, e)
        call = F.scaled_dot_product_attention
        torch.testing.assert_close(kf.fuse(lambda *a: call(*a, scale=scale))(*tensors), call(*tensors, scale=scale))

    extents = [(5, 6, 0, 3), (5, 6, 4, 0), (5, 0, 4, 3), (0, 6, 4, 3)]
    sweep(check, [(scale, *e) for scale in (None, 0.5) for e in extents])


def test_a_target_that_is_no_class():
    x = np.zeros((3, 7))
    for wrong in (-1, 7, -100):
        targets = np.array([0, wrong, 2], np.int32)
        losses = kf.cross_entropy(x, targets, reduction="none")
        np.testing.assert_array_equal(np.isnan(losses), [False, True, False])
        for f in (kf.cross_entropy, kf.fused_cross_entropy, kf.unfused_cross_entropy):
            assert np.isnan(f(x, targets))
            np.testing.assert_allclose(f(x, targets, ignore_index=wrong), np.log(7))


def test_extremes_and_statistics_of_half_types():
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
    x = (np.arange(64) % 3 + 100.25).astype(np.float16)[None]  # they are float32
    expected = F.layer_norm(torch.from_numpy(x).double(), (64,))
    np.testing.assert_allclose(kf.layernorm(x).astype(float), expected, atol=4e-3)


def test_dtypes():
    x, i = torch.ones(2, dtype=torch.float16), np.arange(12, dtype=np.int32).reshape(3, 4) - 5
    assert kf.isdtype(x.dtype, "real floating")
    assert kf.isdtype(torch.bfloat16, ("bool", "numeric"))
    assert kf.isdtype(np.dtype("int8"), np.int8)
    assert not kf.isdtype(np.float32, ("integral", np.float64))
    assert kf.result_type(x, torch.bfloat16) == torch.float32
    assert kf.result_type(x, 2.5) == torch.float16
    assert kf.result_type(np.ones(2, np.float32), np.int32) == np.float64

    def f(x, y):
        assert kf.isdtype(x.dtype, "integral")
        return kf.astype(x, kf.result_type(x, y)) + y

    assert kf.fuse(f)(np.ones(3, np.int32), np.ones(3, np.float32)).dtype == np.float64
    assert kf.fuse(f)(torch.ones(3, dtype=torch.int64), torch.ones(3)).dtype == torch.float32
    assert kf.ones_like(i, dtype="float32").dtype == np.float32
    pairs = [
        (kf.vecdot(i, i), (i * i).sum(-1, dtype=np.int32)), (kf.tensordot(i, i, axes=2), np.tensordot(i, i)),
        (kf.diff(i > 0), np.diff(i > 0)), (kf.full_like(i, 7, "float64"), np.full_like(i, 7, "float64")),
        (kf.astype(i, "bool"), i != 0), (kf.iota((2, 3), dtype="float16"), np.array([[0, 1, 2]] * 2, np.float16)),
    ]  # fmt: skip
    for got, expected in pairs:
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    total = kf.sum(A)  # NumPy's scalars are arrays without axes
    assert isinstance(total, np.float32)
    assert kf.sqrt(total) == np.float32(35) ** np.float32(0.5)
    assert (kf.add(A, np.float64(1)).dtype, kf.add(A, 1.0).dtype) == (np.float64, np.float32)


# ---- what is wrong --------------------------------------------------------------------------------------------------

A, TARGETS = np.ones((5, 7), np.float32), np.zeros(5, int)
WRONG = """
kf.relu([1.0]) | relu: x must be an array, got list ; kf.relu("a") | relu: x must be an array, got str
kf.relu(np.ma.array(A)) | relu: x must be a NumPy array or a DLPack tensor (torch, CuPy, JAX, ...), got numpy.ma.M
kf.add(A, A.view(np.matrix)) | add: y must be a NumPy array or a DLPack tensor (torch, CuPy, JAX, ...), got numpy.matrix
kf.relu(2.0) | relu: at least one argument must be an array ; kf.relu() | relu: missing a required argument
kf.sum(A, out=A) | sum: got an unexpected keyword argument 'out'
kf.exp(A.astype(complex)) | exp: x must be float16, bfloat16, float32, float64, bool, int32 or int64, got
kf.add(A, np.ones(3)) | add: operands could not be broadcast ; kf.sum(A, 2) | sum: axis 2 is out of bounds
kf.layernorm(A, A[:, 0]) | layernorm: weight must have shape (7,), got (5,)
kf.layernorm(A, eps="a") | layernorm: eps must be a number, got str
kf.reshape(A, "a") | reshape: shape must be integers, got 'a'
kf.broadcast_to(A, (7, 1.5)) | broadcast_to: shape must be integers, got (7, 1.5)
kf.transpose(A, "a") | transpose: axes must be integers, got 'a' ; kf.iota("a") | iota: shape must be integers, got 'a'
kf.iota(3, 1.5) | iota: axis must be integers, got 1.5
kf.layernorm(A, None, np.ones(7)) | layernorm: bias must be float32, got float64
kf.layernorm(A.astype(int)) | layernorm: x must be floats, got int64
kf.layernorm(A, eps=-1) | layernorm: eps must be finite and >= 0, got -1
kf.fused_softmax(A, axis=5) | softmax: axis 5 is out of bounds
kf.logsumexp(A, axis=1.0) | logsumexp: axis must be integers, got 1.0
kf.layernorm(A, axis=2) | layernorm: axis 2 is out of bounds for array of dimension 2
kf.layernorm(A, axis=(0, -2)) | layernorm: axis must not name an axis twice
kf.relu_layernorm(A, 2.0) | relu_layernorm: weight must have shape (7,), got ()
kf.batchnorm(A, A[0]) | batchnorm: mean and var must be given both
kf.batchnorm(A, A[0], A[:, 0]) | batchnorm: var must have shape (7,), got (5,)
kf.groupnorm(A, 2) | groupnorm: x must have channels that 2 groups divide, got shape (5, 7)
kf.groupnorm(A, 7, A[:, 0]) | groupnorm: weight must have shape (7,), got (5,)
kf.linear(A, A.T) | linear: weight must have shape (n, k) for x (..., k), got (7, 5)
kf.linear(A, A, A[0]) | linear: bias must have shape (5,), got (7,) ; kf.matmul(A, A) | matmul:
kf.conv2d(A[None, None], A[None, None], stride=(1, 2, 3)) | conv2d: stride must be one number or two
kf.gelu(A, approximate="erf") | gelu: approximate must be ; kf.norm(A, "fro") | norm: ord must be a number, got 'fro'
kf.mse(A, A, reduction="all") | mse: reduction must be
kf.cross_entropy(A, np.zeros(7, int)) | cross_entropy: targets must have shape (5,), got (7,)
kf.cross_entropy(A, A[:, 0]) | cross_entropy: targets must be int32 or int64, got float32
kf.cross_entropy(A, TARGETS, weight=A[:, 0]) | cross_entropy: weight must be float32 of shape (7,), got float32
kf.cross_entropy(A, TARGETS, weight=np.ones(7)) | cross_entropy: weight must be float32 of shape (7,), got float64 of
kf.cross_entropy(A, TARGETS, label_smoothing=2) | cross_entropy: label_smoothing must be from 0 to 1, got 2
kf.cross_entropy(A.astype(int), TARGETS) | cross_entropy: logits must be floats, got int64
kf.attention(A, A, A[0]) | attention: q, k and v must have at least 2 axes
kf.splade_head(A, A, A[0]) | splade_head: h must have shape
kf.splade_head(A[..., None], A, A[0], A[0]) | splade_head: mask must have shape (5, 7), got (7,)
kf.squeeze(A, 0) | squeeze: axis 0 must have extent 1
kf.moveaxis(A, 0, (0, 1)) | moveaxis: destination must name 1 axes
kf.expand_dims(A, (0, 0)) | expand_dims: axis must not name an axis twice
kf.astype(A, "int8") | astype: dtype must be one of ; kf.iota(3, dtype="complex64") | iota: dtype must be
"""


def test_wrong_arguments():
    def check(text, message):
        with pytest.raises((TypeError, ValueError)) as caught:
            eval(text)
        assert str(caught.value).startswith(f"kfusion.{message}")
        assert "\n" not in str(caught.value)

    sweep(check, [text.split(" | ") for text in texts(WRONG)])
    x, y = np.ones((2, 3, 4)), np.ones((4, 3, 5))
    refusals([
        (lambda: kf.tensordot(x, x, axes=1), ValueError, "do not match"),
        (lambda: kf.tensordot(x, x, axes=4), ValueError, "axes must be between 0 and 3, got 4"),
        (lambda: kf.tensordot(x, x, axes=((0, 0), (0, 0))), ValueError, "name one twice"),
        (lambda: kf.tensordot(x, x, axes=((0, 1), (0,))), ValueError, "do not match"),
        (lambda: kf.broadcast_arrays(x, y), ValueError, r"shapes \(2, 3, 4\), \(4, 3, 5\) do not broadcast"),
        (lambda: kf.broadcast_arrays(x, [1]), TypeError, "arrays must be arrays, got list"),
        (lambda: kf.meshgrid(x), ValueError, "arrays must have one axis"),
        (lambda: kf.meshgrid(x[0, 0], indexing="yx"), ValueError, 'indexing must be "xy" or "ij"'),
        (lambda: kf.permute_dims(x, (0, 1)), ValueError, "permute|transpose"),
        (lambda: kf.concat([]), ValueError, "at least one array"),
        (lambda: kf.diff(x, n=-1), ValueError, "n must be at least 0, got -1"),
        (lambda: kf.isdtype(np.float32, "float"), ValueError, "kind must be a dtype or one of bool, signed integer"),
        (lambda: kf.add(A, torch.ones(7)), TypeError,
         r"kfusion\.add: y must be an array of numpy as x is, got one of torch"),
    ])  # fmt: skip


# ---- what pages and the op table say --------------------------------------------------------------------------------


def test_docstrings_speak_of_the_parameters():
    assert kf.where.__doc__.startswith("x where condition is true, else y.")
    assert "clip(x, min, max) = min(max(x, min), max)" in kf.clip.__doc__
    assert "broadcast" not in kf.exp.__doc__


def test_names_of_rows():
    """Those in JAX and ONNX are primitives and operators that exist, each of one row."""
    for library in ("lax", "onnx"):
        assert Counter(name for row in ROWS for name in row[library]).most_common(1)[0][1] == 1
    assert not [name for row in ROWS for name in row["other_names"] if "." in name]
    known = pytest.importorskip("jax.extend.core.primitives")
    primitives = {p.name for p in vars(known).values() if hasattr(p, "name")}
    assert not {name for row in ROWS for name in row["lax"]} - primitives
    onnx = pytest.importorskip("onnx")
    inputs = {s.name: s.max_input for s in onnx.defs.get_all_schemas()}
    arity = {name: row["arity"] for row in ROWS for name in row["onnx"]}
    assert {name: inputs.get(name) for name in arity} == arity


def test_the_page_of_functions():
    """docs/functions.md is what tools/functions.py writes; kinds share no name."""
    functions = pytest.importorskip("tools.functions")
    written, made = functions.PAGE.read_text(), functions.text()
    rows = [line for line in made.replace("\n", " ").split("**") if line.startswith(" (")]
    for of_library in (rows[:4], rows[7:11]):
        names = [set(row.split(": ", 1)[1].split(";")[0].split("`")[1::2]) for row in of_library]
        assert all(names)
        assert sum(map(len, names)) == len(set.union(*names))
    versions = f"with NumPy {functions._release(np.__version__)} and torch {functions._release(torch.__version__)}"
    if versions not in written:
        pytest.skip("the page is of other versions")
    assert written == made


def test_the_page_of_the_array_api():
    """Functions that have a name of the standard, beside array-api-strict's."""
    pytest.importorskip("array_api_strict")
    import array_api

    for section in array_api.SECTIONS.values():
        for name, cells, *_ in array_api.rows(section):
            assert set(cells) - {array_api.YES, array_api.ABSENT} == ({"float64"} if name == "round" else set()), name
            assert array_api.YES in cells, name
    page = (Path(__file__).parents[1] / "docs" / "array-api.md").read_text()
    if f"array-api-strict {array_api.xp.__version__}." not in page:
        pytest.skip("the page was written with another version of array-api-strict")
    assert page.partition(array_api.MARK)[2] == "\n" + array_api.tables(), (
        "run `python tests/support/array_api.py docs/array-api.md`"
    )
