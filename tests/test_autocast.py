"""torch.autocast around and inside fused functions: dtypes are those that torch would choose, in known calls too."""

from __future__ import annotations

import pytest

import kfusion as kf
from kfusion._tracing import autocast
from kfusion._tracing.trace import trace
from sweeps import sweep, texts

torch = pytest.importorskip("torch")
F = torch.nn.functional

W = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
LINEAR = torch.nn.Linear(4, 4).requires_grad_(False)
CHANGED = """
x @ x ; W @ x ; torch.matmul(x, W) ; F.linear(x, x, x[0]) ; LINEAR(x) ; F.mse_loss(x, x + 1) ; F.huber_loss(x, x + 1)
F.prelu(x, x[0]) ; F.cross_entropy(x, torch.tensor([0, 1, 2, 3])) ; F.scaled_dot_product_attention(x, x, x) ; x.prod()
(torch.relu(x @ W) @ W + x).softmax(-1).prod(1, keepdim=True) + x ; F.conv2d(x[None, None], W[None, None, :2, :2])
torch.addmm(x, x, W) ; torch.cov(x) ; torch.corrcoef(x) ; torch.linalg.pinv(x.float())
F.ctc_loss(x[:, None].log_softmax(2), torch.tensor([[1, 2]]), [4], [2])
F.affine_grid(x[None, :2, :3], (1, 1, 2, 3), align_corners=False) ; F.pad(x[None], (1, 1), "reflect")
F.pad(x[None], (1, 1), "replicate") ; F.pad(x[None, None], (1, 1, 1, 1), "replicate")
"""
# Lists of names are torch's own: a function may be made of others, and the parts that autocast knows are known.
UNCHANGED = """
torch.relu(x * 2 + 1) - x.exp() ** 2 ; x.softmax(-1) ; x.T.reshape(-1)[1:] + 1 ; x.mean(0) + x.var(0)
F.gelu(x) + F.silu(x) ; F.normalize(x) ; torch.linalg.norm(x) ; torch.logsumexp(x, 0)
torch.combinations(x[0])
"""
BFLOAT16 = {"device_type": "cpu", "dtype": torch.bfloat16}
NEAR = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2}}


def test_dtypes_are_those_that_torch_chooses():
    def changed(text, dtype):
        x, function = torch.randn(4, 4, generator=torch.Generator().manual_seed(1)), eval(f"lambda x: {text}")
        f = kf.fuse(function)
        plain = f(x)  # calls of different dtypes must not be taken for each other
        y, x = x, x.to(dtype)
        for chosen in (torch.bfloat16, torch.float16, torch.bfloat16):
            with torch.autocast("cpu", dtype=chosen):
                torch.testing.assert_close(f(x), function(x), rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(f(y), plain, rtol=0, atol=0)

    def unchanged(text, dtype):
        x, f = torch.randn(4, 4).to(dtype), eval(f"lambda x: {text}")
        with torch.autocast(**BFLOAT16):
            got = kf.fuse(f)(x)
            torch.testing.assert_close(got, f(x), **NEAR[dtype])
        if dtype == torch.float32:
            torch.testing.assert_close(kf.fuse(f)(x), got, rtol=0, atol=0)

    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    sweep(changed, [(text, dtype) for text in texts(CHANGED) for dtype in dtypes])
    sweep(unchanged, [(text, dtype) for text in texts(UNCHANGED) for dtype in dtypes[:2]])
    for text in (
        "torch.vstack([x, x.bfloat16()])",
        "torch.stack([x, x])",
        "torch.cat([x, x.float()])",
        "torch.concat([x, x.float()])",
    ):
        for f in (eval(f"lambda x: {text}"), kf.fuse(eval(f"lambda x: {text}"))):
            with torch.autocast(**BFLOAT16), pytest.raises(RuntimeError):
                f(torch.ones(2, 2).half())
    with torch.autocast(**BFLOAT16), pytest.raises(kf.TraceError, match="depends on data"):
        kf.fuse(lambda x: torch.linalg.lstsq(x, x).solution)(torch.eye(2))
    x = torch.randn(4, 4).double()
    with torch.autocast(**BFLOAT16):
        torch.testing.assert_close(kf.fuse(lambda x: x @ x)(x), x @ x)  # float64 stays


def test_functions_of_kfusion_have_the_dtypes_that_they_say():
    x, image, w = torch.randn(4, 4), torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    calls = (
        lambda: kf.matmul(x, x), lambda: kf.fused_softmax(x), lambda: kf.attention(x, x, x),
        lambda: kf.conv2d(image, w), lambda: kf.fuse(lambda x: kf.matmul(x, x) + kf.prod(x))(x),
    )  # fmt: skip
    for call in calls:
        plain = call()
        with torch.autocast(**BFLOAT16):
            torch.testing.assert_close(call(), plain, rtol=0, atol=0)


def test_dtypes_of_cuda():
    def check(f, dtype):
        before = torch.is_autocast_enabled("cuda")
        torch.set_autocast_enabled("cuda", True)  # the context asks for a GPU
        try:
            graph = trace(f, kf.spec((4, 4), "float16", like="torch", device="cuda")).graph
        finally:
            torch.set_autocast_enabled("cuda", before)
        assert graph.dtype(graph.to_dict()["outputs"][0]["node"]) == dtype

    rows = [
        (lambda x: x.softmax(-1), "float32"), (lambda x: x.sum(), "float32"), (lambda x: x.square() + x**2, "float32"),
        (lambda x: F.layer_norm(x, (4,)), "float32"), (lambda x: F.normalize(x), "float32"),
        (lambda x: torch.atan2(x, x.float()), "float32"), (lambda x: torch.relu(x) + x.mean(), "float16"),
        (lambda x: x.float() @ x.float(), "float16"), (lambda x: x.softmax(-1, dtype=torch.float64), "float64"),
    ]  # fmt: skip
    sweep(check, rows)


def test_a_rule_that_is_not_known_is_torchs(monkeypatch):
    monkeypatch.setattr(autocast, "_LOWER", frozenset())
    f, x = kf.fuse(lambda x: x @ x), torch.ones(4, 4)
    with torch.autocast("cpu"):
        torch.testing.assert_close(f(x), x @ x, rtol=0, atol=0)
        assert "library_call" in {r.reason for r in kf.fuse(lambda x: torch.relu(x @ x)).plan(x).refusals}


def test_autocast_inside_a_function():
    """Calls of the library are made as they were traced."""

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = F.conv1d(x, x[:, :, :2]), x[0, :, :3] @ x[1, :, :3]
        with torch.autocast("cpu", enabled=False):
            z = F.conv1d(x, x[:, :, :2]), x[0, :, :3] @ x[1, :, :3]
        return *y, *z, F.conv1d(x, x[:, :, :2]), torch.cat([x, x.bfloat16()])

    x = torch.randn(3, 3, 5)
    for dtype in (None, torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            for got, want in zip(kf.fuse(f)(x), f(x), strict=True):
                assert got.dtype == want.dtype
                torch.testing.assert_close(got, want)
