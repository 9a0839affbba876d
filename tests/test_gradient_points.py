"""Gradients, and values, at single points: zeros, ties, bounds and infinities, where torch and JAX say what they are;
and of infinite parameters: of two formulas the one that is not chosen adds no NaN."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import kfusion as kf
from kfusion._tracing import torch_maps
from sweeps import sweep

torch = pytest.importorskip("torch")
F = torch.nn.functional
INF, NAN = np.inf, np.nan
EDGES = [-INF, -2.5, -1.0, -0.5, -0.0, 0.0, 0.3, 1.0, 2.0, INF, NAN]
ROWS = np.array([[1, INF], [INF, INF], [-INF, -INF], [-INF, 1], [1, 2], [NAN, 1], [INF, -INF], [INF, NAN]])
GRADIENTS = [1.0, 0.0, INF, -INF, NAN]  # of results
LOSSES = ("smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "l1_loss", "kl_div")
OF_TWO = ("logaddexp2", "xlogy", "special.xlog1py", "pow", "copysign", *(f"nn.functional.{name}" for name in LOSSES))
OF_ONE = ("special.entr", "special.logit")
_LAYERS = (
    *("logsigmoid", "softshrink", "hardshrink", "rrelu", "softplus", "gelu", "silu", "mish", "softsign"),
    *("hardtanh", "relu6", "hardsigmoid", "tanhshrink", "leaky_relu"),
)
LAYERS = tuple(f"nn.functional.{name}" for name in _LAYERS)
ITSELF = ("nan_to_num", "sinc", "special.erfc", "special.ndtr")  # functions whose gradient of NaN is their own


def torchs(name):
    """A function of torch by its dotted name, of each element."""
    f = torch
    for part in name.split("."):
        f = getattr(f, part)
    return (lambda x, y: f(x, y, reduction="none")) if name.rpartition(".")[2] in LOSSES else f


def gradients(f, arrays, g=1.0):
    """The values, and gradients for those of the values."""
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = f(*tensors)
    y.backward(torch.as_tensor(g, dtype=y.dtype).expand_as(y))
    return [y.detach(), *(t.grad for t in tensors)]


def points(*values):
    return [np.ascontiguousarray(c) for c in np.array(list(itertools.product(*values)), float).T]


def check(f, arrays, rtol=1e-9, atol=1e-12, g=1.0):
    """Values and gradients are torch's; an argument has none where torch gives it none."""
    for got, want in zip(gradients(kf.fuse(lambda *a: f(*a)), arrays, g), gradients(f, arrays, g), strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_formulas_of_torch(rng):
    """Where the value is NaN, too, but for those whose gradient of NaN is their own."""

    def formula(name):
        f, (*arrays, g) = torchs(name), points(*[EDGES] * (1 + (name in OF_TWO)), GRADIENTS)
        if name in (*OF_TWO, *LAYERS, *ITSELF):
            return check(f, arrays, 1e-6 if name.endswith("hardsigmoid") else 1e-9, g=g)
        value = f(*map(torch.tensor, arrays)).numpy()
        np.testing.assert_allclose(kf.fuse(lambda *a: f(*a))(*map(torch.tensor, arrays)), value, rtol=1e-9)
        return check(f, [a[~np.isnan(value)] for a in arrays], g=g[~np.isnan(value)])

    def without_gradients(name):
        f = torchs(name)
        arrays = [rng.uniform(0.01, 0.99, 101) for _ in range(1 + (name in OF_TWO))]
        plain = kf.fuse(lambda *a: f(*a))(*map(torch.tensor, arrays))
        np.testing.assert_allclose(gradients(kf.fuse(lambda *a: f(*a)), arrays)[0], plain, rtol=1e-14, atol=1e-14)

    sweep(formula, [(name,) for name in OF_ONE + OF_TWO + LAYERS + ITSELF])
    sweep(without_gradients, [(name,) for name in (*OF_ONE, *OF_TWO[:3])])
    check(lambda x: torch.logit(x, 0.2), [np.array(EDGES)])
    wide = [5e-324, 1e-200, 1e200, *EDGES]  # whose squares overflow and underflow
    others = [torch.logit, *(lambda x, e=e: x**e for e in (-0.5, 1.5, -1))]
    rows = [(f, points(wide, GRADIENTS)) for f in (torch.abs, torch.reciprocal, torch.rsqrt, abs, *others)]
    rows += [(f, points(wide, wide, GRADIENTS)) for f in (torch.div, lambda x, y: torch.addcdiv(x, x, y, value=2.0))]
    sweep(lambda f, given: check(f, given[:-1], g=given[-1]), rows)


def test_logaddexp2_and_logsumexp():
    x = np.array([-3.0, 0.0, 0.7, 5.0])
    for gradient in kf.grad(lambda x, y: np.logaddexp2(x, y).sum(), argnums=(0, 1))(x, x.copy()):  # of a tie
        np.testing.assert_allclose(gradient, 0.5)
    # The finite elements of a row with inf have the gradient 0; infinite ones have none.
    want = np.full(ROWS.shape, NAN)
    want[[0, 6], [0, 1]], want[3], want[4] = 0, (0, 1), 1 / (1 + np.exp([1, -1]))
    for keepdims in (False, True):
        got = kf.grad(lambda x, k=keepdims: kf.sum(kf.logsumexp(x, -1, keepdims=k)))(ROWS)
        np.testing.assert_allclose(got, want, rtol=1e-12)
        values = kf.logsumexp(ROWS, -1, keepdims=keepdims).reshape(-1)
        np.testing.assert_allclose(values, [INF, INF, -INF, 1, 2 + np.log1p(np.exp(-1)), NAN, INF, NAN], rtol=1e-12)
    check(lambda x: torch.logsumexp(x, -1), [ROWS], 1e-12)
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(ROWS, "float32")
    fused = kf.fuse(lambda x: jax.nn.logsumexp(x, -1))
    got = jax.grad(lambda x: fused(x).sum())(x)
    np.testing.assert_allclose(got, jax.grad(lambda x: jax.nn.logsumexp(x, -1).sum())(x), rtol=1e-6)


def test_formulas_of_jax():
    """Theirs are infinite where the derivative is, and torch's 0."""
    jax = pytest.importorskip("jax")

    def formula(name):
        f = getattr(jax.scipy.special, name)
        x = np.array([0, -0.0, 0, 0, 0.5, 2, INF], "float32")
        arrays = [x] if name == "entr" else [x, np.array([0.5, 2, 0, INF, 3, INF, 0.5], "float32")]
        fused = kf.fuse(lambda *a: f(*a))
        got, want = (
            jax.grad(lambda *a, g=g: g(*a).sum(), argnums=tuple(range(len(arrays))))(*map(jax.numpy.asarray, arrays))
            for g in (fused, f)
        )
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)

    def point(name, at, of_kfusion, of_jax):
        numbers, f = tuple(range(len(at))), kf.fuse(lambda *a: getattr(jax.numpy, name)(*a))
        got = kf.grad(lambda *a: kf.sum(getattr(kf, name)(*a)), argnums=numbers)(*(np.array([x]) for x in at))
        np.testing.assert_array_equal(np.concatenate(got), of_kfusion)
        got = jax.grad(lambda *a: f(*a).sum(), argnums=numbers)(*(jax.numpy.array([x]) for x in at))
        np.testing.assert_array_equal(np.concatenate(got), of_jax)

    sweep(formula, [("entr",), ("xlogy",), ("xlog1py",)])
    # docs/using.md lists them: kfusion's functions, and JAX's within fused functions.
    of_table = [
        ("abs", [0.0], [0.0], [1.0]),
        ("hypot", [0.0, 0.0], [NAN, NAN], [0.5, 0.5]),
        ("logaddexp", [2.0, INF], [0.0, 1.0], [0.0, 1.0]),
        ("power", [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]),
        ("arctan2", [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]),
    ]
    sweep(point, of_table)


def test_at_bounds_and_of_rows():
    """Functions of torch with clamps, margins and masks at and beyond them, and reductions of NaN and zeros."""
    bounds = [
        (lambda z, t: F.binary_cross_entropy(torch.sigmoid(z), t, reduction="none"), [-800, -40, 0, 40, 800],
         [0, 0.3, 1]),
        (lambda p, t: F.binary_cross_entropy(p, t, reduction="none"), [0, 1e-300, 1e-20, 1e-12, 0.5, 1 - 1e-15, 1],
         [0, 0.3, 1]),
        (lambda *a: F.gaussian_nll_loss(*a, eps=1e-2), [0, 1], [0.5, -2], [0, 1e-9, 1e-2, 0.5]),
        (lambda x, t: F.huber_loss(x, t, delta=0.5), [-3, -0.5, 0, 0.2, 0.7, 2], [0, 1]),
        (F.hinge_embedding_loss, [-1, 0, 1, 2], [-1, 1]),
        (lambda *a: F.margin_ranking_loss(*a, margin=1), [0, 1], [0, 1, 2], [-1, 1]),
        (lambda *a: F.cosine_similarity(*a, dim=0), [0, 0], [0, 1]),
    ]  # fmt: skip
    sweep(lambda f, *values: check(f, points(*values), 1e-8), bounds)
    reductions = (
        lambda x: x.max(), lambda x: x.min(), lambda x: x.amax(-1), lambda x: x.norm(p=INF),
        lambda x: x.norm(p=-INF, dim=-1), lambda x: x.norm(p=3),
        lambda x: x.norm(p=0.5, dim=-1), lambda x: x.norm(p=-1, dim=-1),
    )  # fmt: skip
    rows = ([NAN, 1, NAN], [1, 1, -1], [NAN, 0, 2], [0, 0, 2], [INF, 0, 2], [INF, 1, -INF], [0, 0, 0])
    sweep(check, [(f, [np.array([row], float)]) for f in reductions for row in rows])


def test_products_of_zeros_infinities_and_nan(rng):
    """The gradient is the product of the other factors; torch's, where it is a number."""
    for dim in (-1, 0, None):
        product = (lambda x: x.prod()) if dim is None else (lambda x, dim=dim: x.prod(dim))
        fused = kf.fuse(product)
        for _ in range(40):
            drawn = [rng.choice([0, -0.0, INF, -INF, NAN, 2, -3, 0.5], (3, 4), p=[0.1] * 5 + [0.2, 0.2, 0.1])]
            got, want = gradients(fused, drawn)[-1], gradients(product, drawn)[-1]
            torch.testing.assert_close(torch.where(want.isnan(), want, got), want, rtol=1e-9, atol=0, equal_nan=True)


# ---- infinite parameters --------------------------------------------------------------------------------------------

POINTS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 20.0, 20.5, -20.0, 100.0, -100.0, 1e30, -1e30, INF, -INF, NAN]
PARAMETERS = (0.0, -0.0, 1.0, -1.0, 20.0, INF, -INF)
OF_NUMBER = {
    **{n: getattr(F, n) for n in ("elu", "celu", "leaky_relu", "hardshrink", "softshrink")},
    "prelu": lambda x, a: F.prelu(x, torch.full((1,), a, dtype=x.dtype)), "clamp_min": torch.clamp_min,
    "clamp_max": torch.clamp_max, "logit": torch.logit, "lerp": lambda x, a: torch.lerp(x, x.flip(0), a),
    "huber_loss": lambda x, a: F.huber_loss(x, x.flip(0), reduction="none", delta=a),
    "smooth_l1_loss": lambda x, a: F.smooth_l1_loss(x, x.flip(0), reduction="none", beta=a),
    "hinge_embedding_loss": lambda x, a: F.hinge_embedding_loss(x, x.flip(0).sign(), reduction="none", margin=a),
    "masked_fill": lambda x, a: x.masked_fill(x > 0, a), "where": lambda x, a: torch.where(x > 0, x, a),
    "fmod": torch.fmod, "xlogy": torch.xlogy, "copysign": torch.copysign,
}  # fmt: skip
OF_NUMBERS = {
    **{n: getattr(F, n) for n in ("softplus", "threshold", "hardtanh", "rrelu")},
    "clamp": torch.clamp,
    "nan_to_num": torch.nan_to_num,
}
_PLAIN = (
    *("elu", "celu", "selu", "relu", "relu6", "silu", "mish", "hardswish", "hardsigmoid", "logsigmoid"),
    *("softsign", "tanhshrink", "softplus", "leaky_relu", "hardshrink", "softshrink"),
)


def value_and_gradient(f, dtype, parameters):
    """Values with and without gradients, and gradients, at all points; None where an error is raised."""
    x = torch.tensor(POINTS, dtype=dtype)
    try:
        plain = f(x.clone(), *parameters)
        x.requires_grad_()
        y = f(x + 0, *parameters)
        y.sum().backward()
    except (RuntimeError, ValueError, ZeroDivisionError):
        return None
    return plain, y.detach(), x.grad


def test_infinite_parameters(some, monkeypatch):
    def as_torch_has_it(f, dtype, parameters):
        bounds = {"rtol": 2e-3, "atol": 1e-4} if dtype == torch.float16 else {"rtol": 1e-5, "atol": 1e-6}
        want = value_and_gradient(f, dtype, parameters)
        got = value_and_gradient(kf.fuse(lambda x: f(x, *parameters)), dtype, ())
        assert (got is None) == (want is None)
        for a, b in zip(got or (), want or (), strict=True):
            counts = ~b.isnan()  # where torch has NaN, a formula may have more
            torch.testing.assert_close(a[counts], b[counts], **bounds)

    rows = [(getattr(F, name), ()) for name in _PLAIN] + [(f, (a,)) for f in OF_NUMBER.values() for a in PARAMETERS]
    rows += [(f, both) for f in OF_NUMBERS.values() for both in itertools.product(PARAMETERS, repeat=2)]
    sweep(as_torch_has_it, some([(f, d, p) for f, p in rows for d in (torch.float32, torch.float16)], 150))
    x = torch.tensor(POINTS, dtype=torch.float32)
    finite = lambda x: torch.where(x.isfinite(), x, 1.0)  # noqa: E731
    values = (
        lambda x: F.hardtanh(x, NAN, 1.0), lambda x: F.hardtanh(x, -1.0, NAN), lambda x: F.softplus(x, 1.0, NAN),
        lambda x: torch.isclose(x, x.flip(0), atol=INF) + x, lambda x: torch.trapezoid(finite(x).clamp(0, 1), dx=INF),
        lambda x: torch.trapezoid(torch.stack([x, x.clamp(0, 1)]), dim=0),
        lambda x: x[:0].sum() + torch.trapezoid(x[:0], dx=INF),
        lambda x: torch.var(finite(x), 0, correction=NAN),
        lambda x: F.cross_entropy(finite(x), x.detach().isnan() * 1.0, label_smoothing=-1.0),
    )  # fmt: skip
    for f in values:
        got, want = (value_and_gradient(g, x.dtype, ()) for g in (kf.fuse(f), f))
        assert all(a.allclose(b, equal_nan=True) for a, b in zip(got[:2], want[:2], strict=True))  # the values
    monkeypatch.setattr(torch_maps, "_ignores_nan", lambda: True)  # as torch 2.11 does
    for f in (lambda x: x.clamp(max=NAN), lambda x: torch.clamp_min(x, NAN)):
        torch.testing.assert_close(kf.fuse(f)(x), x, equal_nan=True)
    for name in ("elu", "leaky_relu", "huber_loss", "hardshrink"):
        f, fused = OF_NUMBER[name], kf.fuse(OF_NUMBER[name])
        for a in (1.0, INF, 2.0):
            torch.testing.assert_close(fused(x, a), f(x, a), equal_nan=True)


def test_flat_parts_stop_infinite_gradients():
    x = torch.tensor([-5.0, -3.0, -1.0, 0.0, 0.5, 2.0, 3.0, 4.0], requires_grad=True)
    rows = (
        lambda x: F.hardsigmoid(x).log(), lambda x: (1 - F.hardsigmoid(x)).log(), lambda x: F.hardswish(x).log(),
        lambda x: F.softshrink(x).sqrt(),
    )  # fmt: skip
    for f in rows:
        got, want = (torch.autograd.grad(g(x).sum(), x)[0] for g in (kf.fuse(f), f))
        torch.testing.assert_close(got, want, equal_nan=True)
