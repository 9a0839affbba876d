"""Gradients at single points: zeros, ties and infinities, where torch and JAX say what they are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import kfusion as kf

INF, NAN = np.inf, np.nan
EDGES = [-INF, -2.5, -1.0, -0.5, -0.0, 0.0, 0.3, 1.0, 2.0, INF, NAN]
ROWS = np.array([[1, INF], [INF, INF], [-INF, -INF], [-INF, 1], [1, 2], [NAN, 1], [INF, -INF], [INF, NAN]])
LOSSES = ("smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits")
OF_TWO = ("logaddexp2", "xlogy", "special.xlog1py", *(f"nn.functional.{name}" for name in LOSSES))
OF_ONE = ("special.entr", "special.logit")
LAYERS = tuple(f"nn.functional.{name}" for name in ("logsigmoid", "softshrink", "hardshrink", "rrelu", "softplus"))
SAME_OF_NAN = (*OF_TWO, *LAYERS)


def torchs(name):
    """A function of torch by its dotted name, of each element."""
    f = pytest.importorskip("torch")
    for part in name.split("."):
        f = getattr(f, part)
    return (lambda x, y: f(x, y, reduction="none")) if name.rpartition(".")[2] in LOSSES else f


def gradients(f, arrays):
    import torch

    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = f(*tensors)
    y.sum().backward()
    return [y.detach(), *(t.grad for t in tensors)]


@pytest.mark.parametrize("name", OF_ONE + OF_TWO + LAYERS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_formulas_of_torch(name):
    """Values and gradients, where the value is NaN too but for those whose gradient of NaN is their own."""
    f = torchs(name)
    points = itertools.product(EDGES, repeat=1 + (name in OF_TWO))
    arrays = [np.ascontiguousarray(c) for c in np.array(list(points)).T]
    got, want = gradients(kf.fuse(lambda *a: f(*a)), arrays), gradients(f, arrays)
    counts = slice(None) if name in SAME_OF_NAN else ~np.isnan(want[0].numpy())
    np.testing.assert_allclose(got[0], want[0], rtol=1e-9, atol=1e-12)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a[counts], b[counts], rtol=1e-9, atol=1e-12)


def test_a_clipped_logit_of_nan_has_the_gradient_nan():
    torch = pytest.importorskip("torch")
    f = lambda x: torch.logit(x, 0.2)  # noqa: E731
    for got, want in zip(gradients(kf.fuse(f), [np.array(EDGES)]), gradients(f, [np.array(EDGES)]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["logaddexp2", "xlogy", "special.xlog1py", "special.entr", "special.logit"])
def test_values_are_the_same_with_and_without_gradients(name, rng):
    f = torchs(name)
    arrays = [rng.uniform(0.01, 0.99, 101) for _ in range(1 + (name in OF_TWO))]
    import torch

    plain = kf.fuse(lambda *a: f(*a))(*map(torch.tensor, arrays))
    np.testing.assert_allclose(gradients(kf.fuse(lambda *a: f(*a)), arrays)[0], plain, rtol=1e-14, atol=1e-14)


def test_ties_of_logaddexp2_share_the_gradient():
    x = np.array([-3.0, 0.0, 0.7, 5.0])
    for gradient in kf.grad(lambda x, y: np.logaddexp2(x, y).sum(), argnums=(0, 1))(x, x.copy()):
        np.testing.assert_allclose(gradient, 0.5)


@pytest.mark.parametrize("keepdims", [False, True])
def test_logsumexp_of_rows_with_infinities(keepdims):
    """The finite elements of a row with inf have the gradient 0; infinite ones have none."""
    want = np.full(ROWS.shape, NAN)
    want[[0, 6], [0, 1]], want[3], want[4] = 0, (0, 1), 1 / (1 + np.exp([1, -1]))
    got = kf.grad(lambda x: kf.sum(kf.logsumexp(x, -1, keepdims=keepdims)))(ROWS)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    values = kf.logsumexp(ROWS, -1, keepdims=keepdims).reshape(-1)
    np.testing.assert_allclose(values, [INF, INF, -INF, 1, 2 + np.log1p(np.exp(-1)), NAN, INF, NAN], rtol=1e-12)


def test_logsumexp_of_torch_and_jax():
    f = torchs("logsumexp")
    for a, b in zip(gradients(kf.fuse(lambda x: f(x, -1)), [ROWS]), gradients(lambda x: f(x, -1), [ROWS]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(ROWS, "float32")
    fused = kf.fuse(lambda x: jax.nn.logsumexp(x, -1))
    got = jax.grad(lambda x: fused(x).sum())(x)
    np.testing.assert_allclose(got, jax.grad(lambda x: jax.nn.logsumexp(x, -1).sum())(x), rtol=1e-6)


@pytest.mark.parametrize("name", ["entr", "xlogy", "xlog1py"])
def test_formulas_of_jax(name):
    """Theirs are infinite where the derivative is, and torch's 0."""
    jax = pytest.importorskip("jax")
    f = getattr(jax.scipy.special, name)
    x = np.array([0, -0.0, 0, 0, 0.5, 2, INF], "float32")
    arrays = [x] if name == "entr" else [x, np.array([0.5, 2, 0, INF, 3, INF, 0.5], "float32")]
    numbers = tuple(range(len(arrays)))
    fused = kf.fuse(lambda *a: f(*a))
    got = jax.grad(lambda *a: fused(*a).sum(), argnums=numbers)(*map(jax.numpy.asarray, arrays))
    want = jax.grad(lambda *a: f(*a).sum(), argnums=numbers)(*map(jax.numpy.asarray, arrays))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


# docs/using.md lists them: kfusion's functions, and JAX's within fused functions.
POINTS = {
    "abs": ([0.0], [0.0], [1.0]),
    "hypot": ([0.0, 0.0], [NAN, NAN], [0.5, 0.5]),
    "logaddexp": ([2.0, INF], [0.0, 1.0], [0.0, 1.0]),
    "power": ([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]),
    "arctan2": ([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]),
}


@pytest.mark.parametrize("name", POINTS)
def test_points_of_the_table(name):
    point, of_kfusion, of_jax = POINTS[name]
    numbers = tuple(range(len(point)))
    got = kf.grad(lambda *a: kf.sum(getattr(kf, name)(*a)), argnums=numbers)(*(np.array([x]) for x in point))
    np.testing.assert_array_equal(np.concatenate(got), of_kfusion)
    jax = pytest.importorskip("jax")
    f = kf.fuse(lambda *a: getattr(jax.numpy, name)(*a))
    got = jax.grad(lambda *a: f(*a).sum(), argnums=numbers)(*(jax.numpy.array([x]) for x in point))
    np.testing.assert_array_equal(np.concatenate(got), of_jax)


def _bce(z, t):
    import torch

    return torch.nn.functional.binary_cross_entropy(torch.sigmoid(z), t, reduction="none")


def _functional(name, **keywords):
    return lambda *a: torchs(f"nn.functional.{name}")(*a, **keywords)


# Functions of torch with clamps, margins and masks, and points at and beyond them: for each argument.
AT_BOUNDS = {
    "binary cross entropy of a sigmoid of 0 or 1": (_bce, [-800, -40, 0, 40, 800], [0, 0.3, 1]),
    "binary cross entropy of tiny probabilities": (
        _functional("binary_cross_entropy", reduction="none"),
        [0, 1e-300, 1e-20, 1e-12, 0.5, 1 - 1e-15, 1],
        [0, 0.3, 1],
    ),
    "gaussian_nll_loss below eps": (
        _functional("gaussian_nll_loss", eps=1e-2),
        [0, 1],
        [0.5, -2],
        [0, 1e-9, 1e-2, 0.5],
    ),
    "hinge_embedding_loss at the margin": (_functional("hinge_embedding_loss"), [-1, 0, 1, 2], [-1, 1]),
    "margin_ranking_loss at the margin": (_functional("margin_ranking_loss", margin=1), [0, 1], [0, 1, 2], [-1, 1]),
    "cosine_similarity of nothing": (_functional("cosine_similarity", dim=0), [0, 0], [0, 1]),
}


@pytest.mark.parametrize("case", AT_BOUNDS)
def test_at_bounds(case):
    f, *values = AT_BOUNDS[case]
    points = np.array(list(itertools.product(*values)), float)
    arrays = [np.ascontiguousarray(c) for c in points.T]
    for got, want in zip(gradients(kf.fuse(f), arrays), gradients(f, arrays), strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-12)


REDUCTIONS = {
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "amax": lambda x: x.amax(-1),
    "prod": lambda x: x.prod(),
    "prod of rows": lambda x: x.prod(-1),
    "norm": lambda x: x.norm(p=INF),
    "norm of rows": lambda x: x.norm(p=-INF, dim=-1),
}


@pytest.mark.parametrize("f", REDUCTIONS.values(), ids=REDUCTIONS)
def test_reductions_of_nan_and_zeros(f):
    for rows in ([[NAN, 1, NAN]], [[1, 1, -1]], [[NAN, 0, 2]], [[0, 0, 2]], [[INF, 0, 2]], [[INF, 1, -INF]]):
        x = np.array(rows, float)
        for got, want in zip(gradients(kf.fuse(f), [x]), gradients(f, [x]), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9)
