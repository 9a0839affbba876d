"""torch.autocast around and inside fused functions: what it would change is refused, also where a call is known."""

from __future__ import annotations

import pytest

import kfusion as kf
from kfusion._tracing.trace import trace

torch = pytest.importorskip("torch")
F = torch.nn.functional

CHANGED = {
    "x @ w": lambda x: x @ x,
    "captured @ x": lambda x: torch.ones(4, 4) @ x,
    "torch.matmul": lambda x: torch.matmul(x, x),
    "F.linear": lambda x: F.linear(x, x),
    "nn.Linear": torch.nn.Linear(4, 4).requires_grad_(False),
    "F.mse_loss": lambda x: F.mse_loss(x, x + 1),
    "F.huber_loss": lambda x: F.huber_loss(x, x + 1),
    "F.prelu": lambda x: F.prelu(x, x[0]),
    "F.cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 3])),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "prod": lambda x: x.prod(),
}
UNCHANGED = {
    "chain": lambda x: torch.relu(x * 2 + 1) - x.exp() ** 2,
    "softmax": lambda x: x.softmax(-1),
    "views": lambda x: x.T.reshape(-1)[1:] + 1,
    "mean": lambda x: x.mean(0) + x.var(0),
    "gelu": lambda x: F.gelu(x) + F.silu(x),
    "kf": lambda x: kf.matmul(x, x) + kf.prod(x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CHANGED)
def test_what_autocast_changes_is_refused(name, dtype):
    x = torch.randn(4, 4)
    f = kf.fuse(CHANGED[name])
    plain = f(x)  # a call that must not be taken for one under autocast
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(kf.TraceError, match=r"torch\.autocast"):
        f(x)
    torch.testing.assert_close(f(x), plain, rtol=0, atol=0)


def test_autocast_inside_a_function():
    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
        return y

    with pytest.raises(kf.TraceError, match=r"torch\.matmul under torch\.autocast.*\n.*y = x @ x\n.*bfloat16"):
        kf.fuse(f)(torch.ones(4, 4))

    def off(x):
        with torch.autocast("cpu", enabled=False):
            return x @ x

    with torch.autocast("cpu"):
        assert kf.fuse(off)(torch.ones(4, 4)).dtype == torch.float32


@pytest.mark.parametrize("name", UNCHANGED)
def test_what_autocast_leaves_alone_runs(name):
    x = torch.randn(4, 4)
    f = UNCHANGED[name]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = kf.fuse(f)(x)
        if name != "kf":  # whose functions are not torch's
            torch.testing.assert_close(got, f(x))
    assert got.dtype == torch.float32
    torch.testing.assert_close(kf.fuse(f)(x), got, rtol=0, atol=0)


@pytest.mark.parametrize("named", [kf.matmul, kf.fused_softmax, kf.attention])
def test_functions_of_kfusion_have_the_dtypes_that_they_say(named):
    x = torch.randn(4, 4)
    arrays = {kf.matmul: (x, x), kf.attention: (x, x, x)}.get(named, (x,))
    plain = named(*arrays)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(named(*arrays), plain, rtol=0, atol=0)


def test_a_convolution_of_kfusion_is_not_rounded_by_autocast():
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    plain = kf.conv2d(x, w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(kf.conv2d(x, w), plain, rtol=0, atol=0)


def test_names_of_lists_are_torchs_own():
    """Of a function that is made of others, the parts that autocast knows are known here."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for f in (lambda x: F.normalize(x), lambda x: torch.linalg.norm(x), lambda x: torch.logsumexp(x, 0)):
            x = torch.randn(4, 4).bfloat16()
            try:
                trace(f, x)
            except kf.TraceError:
                continue
            assert f(x).dtype == kf.fuse(f)(x).dtype
