"""torch.autocast around and inside fused functions: dtypes are those that torch would choose, in known calls too."""

from __future__ import annotations

import pytest

import kfusion as kf
from kfusion._tracing import autocast
from kfusion._tracing.trace import trace

torch = pytest.importorskip("torch")
F = torch.nn.functional

W = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
CHANGED = {
    "x @ w": lambda x: x @ x,
    "captured @ x": lambda x: W @ x,
    "torch.matmul": lambda x: torch.matmul(x, W),
    "F.linear": lambda x: F.linear(x, x, x[0]),
    "nn.Linear": torch.nn.Linear(4, 4).requires_grad_(False),
    "F.mse_loss": lambda x: F.mse_loss(x, x + 1),
    "F.huber_loss": lambda x: F.huber_loss(x, x + 1),
    "F.prelu": lambda x: F.prelu(x, x[0]),
    "F.cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 3])),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "prod": lambda x: x.prod(),
    "a chain": lambda x: (torch.relu(x @ W) @ W + x).softmax(-1).prod(1, keepdim=True) + x,
    "conv2d": lambda x: F.conv2d(x[None, None], W[None, None, :2, :2]),
    "addmm": lambda x: torch.addmm(x, x, W),
}
UNCHANGED = {
    "chain": lambda x: torch.relu(x * 2 + 1) - x.exp() ** 2,
    "softmax": lambda x: x.softmax(-1),
    "views": lambda x: x.T.reshape(-1)[1:] + 1,
    "mean": lambda x: x.mean(0) + x.var(0),
    "gelu": lambda x: F.gelu(x) + F.silu(x),
    "kf": lambda x: kf.matmul(x, x) + kf.prod(x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CHANGED)
def test_dtypes_are_those_that_torch_chooses(name, dtype):
    x, function = torch.randn(4, 4, generator=torch.Generator().manual_seed(1)), CHANGED[name]
    f = kf.fuse(function)
    plain = f(x)  # calls of different dtypes must not be taken for each other
    y, x = x, x.to(dtype)
    for chosen in (torch.bfloat16, torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=chosen):
            torch.testing.assert_close(f(x), function(x), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(f(y), plain, rtol=0, atol=0)


def test_float64_stays():
    x = torch.randn(4, 4).double()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(kf.fuse(CHANGED["x @ w"])(x), x @ x)


ON_CUDA = {
    "softmax": (lambda x: x.softmax(-1), torch.float32),
    "sum": (lambda x: x.sum(), torch.float32),
    "square": (lambda x: x.square() + x**2, torch.float32),
    "layer_norm": (lambda x: F.layer_norm(x, (4,)), torch.float32),
    "normalize": (lambda x: F.normalize(x), torch.float32),
    "atan2": (lambda x: torch.atan2(x, x.float()), torch.float32),
    "relu": (lambda x: torch.relu(x) + x.mean(), torch.float16),
    "a product": (lambda x: x.float() @ x.float(), torch.float16),
    "a dtype": (lambda x: x.softmax(-1, dtype=torch.float64), torch.float64),
}


@pytest.mark.parametrize("name", ON_CUDA)
def test_dtypes_of_cuda(name):
    function, dtype = ON_CUDA[name]
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)  # the context asks for a GPU
    try:
        graph = trace(function, kf.spec((4, 4), "float16", like="torch", device="cuda")).graph
    finally:
        torch.set_autocast_enabled("cuda", before)
    assert f"torch.{graph.dtype(graph.to_dict()['outputs'][0]['node'])}" == str(dtype)


def test_a_rule_that_is_not_known_is_torchs(monkeypatch):
    monkeypatch.setattr(autocast, "_LOWER", frozenset())
    f, x = kf.fuse(CHANGED["x @ w"]), torch.ones(4, 4)
    with torch.autocast("cpu"):
        torch.testing.assert_close(f(x), CHANGED["x @ w"](x), rtol=0, atol=0)
        assert "library_call" in {r.reason for r in kf.fuse(lambda x: torch.relu(x @ x)).plan(x).refusals}


def test_library_calls_are_made_as_they_were_traced():
    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = F.conv1d(x, x[:, :, :2])
        with torch.autocast("cpu", enabled=False):
            z = F.conv1d(x, x[:, :, :2])
        return y, z, F.conv1d(x, x[:, :, :2]), torch.cat([x, x.bfloat16()])

    x = torch.randn(3, 3, 5)
    for dtype in (None, torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            for got, want in zip(kf.fuse(f)(x), f(x), strict=True):
                assert got.dtype == want.dtype
                torch.testing.assert_close(got, want)


def test_autocast_inside_a_function():
    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
        return y, x @ x

    x = torch.randn(4, 4)
    for got, want in zip(kf.fuse(f)(x), f(x), strict=True):
        torch.testing.assert_close(got, want)

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
    """A function may be made of others: the parts that autocast knows are known here."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for f in (lambda x: F.normalize(x), lambda x: torch.linalg.norm(x), lambda x: torch.logsumexp(x, 0)):
            x = torch.randn(4, 4).bfloat16()
            try:
                trace(f, x)
            except kf.TraceError:
                continue
            assert f(x).dtype == kf.fuse(f)(x).dtype
