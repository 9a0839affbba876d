"""Functions of torch that choose between two formulas, at infinite parameters and inputs: the one that is not chosen
adds no NaN, neither to the result nor to its gradient."""

from __future__ import annotations

import itertools

import pytest

import kfusion as kf

torch = pytest.importorskip("torch")
F = torch.nn.functional

INF, NAN = float("inf"), float("nan")
POINTS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 20.0, 20.5, -20.0, 100.0, -100.0, 1e30, -1e30, INF, -INF, NAN]
PARAMETERS = (0.0, -0.0, 1.0, -1.0, 20.0, INF, -INF)

OF_ONE = {
    **{n: getattr(F, n) for n in ("elu", "celu", "leaky_relu", "hardshrink", "softshrink")},
    "prelu": lambda x, a: F.prelu(x, torch.full((1,), a, dtype=x.dtype)),
    "clamp_min": torch.clamp_min,
    "clamp_max": torch.clamp_max,
    "logit": torch.logit,
    "lerp": lambda x, a: torch.lerp(x, x.flip(0), a),
    "huber_loss": lambda x, a: F.huber_loss(x, x.flip(0), reduction="none", delta=a),
    "smooth_l1_loss": lambda x, a: F.smooth_l1_loss(x, x.flip(0), reduction="none", beta=a),
    "hinge_embedding_loss": lambda x, a: F.hinge_embedding_loss(x, x.flip(0).sign(), reduction="none", margin=a),
    "masked_fill": lambda x, a: x.masked_fill(x > 0, a),
    "where": lambda x, a: torch.where(x > 0, x, a),
    "fmod": torch.fmod,
    "xlogy": torch.xlogy,
    "copysign": torch.copysign,
}
OF_TWO = {
    **{n: getattr(F, n) for n in ("softplus", "threshold", "hardtanh", "rrelu")},
    "clamp": torch.clamp,
    "nan_to_num": torch.nan_to_num,
}
_PLAIN = (
    *("elu", "celu", "selu", "relu", "relu6", "silu", "mish", "hardswish", "hardsigmoid", "logsigmoid"),
    *("softsign", "tanhshrink", "softplus", "leaky_relu", "hardshrink", "softshrink"),
)
OF_NONE = {n: getattr(F, n) for n in _PLAIN}
CASES = [
    *((n, f, ()) for n, f in OF_NONE.items()),
    *((n, f, (a,)) for n, f in OF_ONE.items() for a in PARAMETERS),
    *((n, f, both) for n, f in OF_TWO.items() for both in itertools.product(PARAMETERS, repeat=2)),
]


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


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _, _ in CASES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_as_torch_has_it(name, dtype):
    bounds = {"rtol": 2e-3, "atol": 1e-4} if dtype == torch.float16 else {"rtol": 1e-5, "atol": 1e-6}
    for f, parameters in [(f, parameters) for n, f, parameters in CASES if n == name]:
        want = value_and_gradient(f, dtype, parameters)
        got = value_and_gradient(kf.fuse(lambda x, f=f, p=parameters: f(x, *p)), dtype, ())
        assert (got is None) == (want is None), parameters
        for a, b in zip(got or (), want or (), strict=True):
            counts = ~b.isnan()  # where torch has NaN, a formula may have more
            torch.testing.assert_close(a[counts], b[counts], **bounds, msg=lambda text, p=parameters: f"{p}: {text}")


@pytest.mark.parametrize("name", ["elu", "leaky_relu", "huber_loss", "hardshrink"])
def test_of_numbers_among_the_arguments(name):
    f = OF_ONE[name]
    fused, x = kf.fuse(f), torch.tensor(POINTS, dtype=torch.float32)
    for a in (1.0, INF, 2.0):
        torch.testing.assert_close(fused(x, a), f(x, a), equal_nan=True)


def test_flat_parts_stop_infinite_gradients():
    F = torch.nn.functional
    for f in (
        lambda x: F.hardsigmoid(x).log(),
        lambda x: (1 - F.hardsigmoid(x)).log(),
        lambda x: F.hardswish(x).log(),
        lambda x: F.softshrink(x).sqrt(),
    ):
        x = torch.tensor([-5.0, -3.0, -1.0, 0.0, 0.5, 2.0, 3.0, 4.0], requires_grad=True)
        got, want = (torch.autograd.grad(g(x).sum(), x)[0] for g in (kf.fuse(f), f))
        torch.testing.assert_close(got, want, equal_nan=True)
