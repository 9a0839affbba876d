"""Dropout and normalisations with running statistics on a GPU; without one, that their kernels compile."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from host_cuda import HAVE_COMPILER, HostKernels
from kfusion import _core
from kfusion._tracing.trace import trace
from kinds import HAVE_GPU
from test_codegen_compiles import nvcc

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

needs_gpu = pytest.mark.skipif(not (HAVE_GPU and torch.cuda.is_available()), reason="needs a GPU")


def dropped_rows(x: Any) -> Any:
    return kf.softmax(kf.dropout(kf.exp(x), 0.1, seed=5), -1)


FUNCTIONS = {
    "map": lambda x: kf.dropout(x, 0.1, seed=3),
    "of a view": lambda x: kf.dropout(x.T, 0.1, seed=3),
    "rows": dropped_rows,
    "columns": lambda x: kf.dropout(x, 0.1, seed=3).sum(0),
    "gradient": kf.grad(lambda x: kf.square(kf.dropout(x, 0.1, seed=3)).sum()),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_compile(name: str, dtype: str, tmp_path: Path) -> None:
    traced = kf.fuse(FUNCTIONS[name])._planned((kf.spec((512, 1024), dtype, like="torch"),), {})
    texts = [k.source for k in _core.cuda_kernels(traced.graph, kf.device("H100").to_dict(), True)]
    assert "RandomWords words_" in texts[0]
    for i, text in enumerate(texts):
        (tmp_path / str(i)).mkdir()
        resources = nvcc(text, tmp_path / str(i))
        assert name in ("of a view", "rows") or " 0 bytes spill loads" in resources


@pytest.mark.slow
@pytest.mark.skipif(not HAVE_COMPILER, reason="needs g++")
def test_the_text_gives_the_same_bits(tmp_path: Path, rng: np.random.Generator) -> None:
    """What the generated CUDA computes, on a host that plays the GPU."""
    shapes = [(1,), (77,), (64, 128), (33, 65), (5, 3, 70), (4, 4099)]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    views = [lambda x: x.T, lambda x: x[::2, 3:], lambda x: x[:, ::-1]]
    of_rows = [*(lambda x, v=v: kf.dropout(v(x), 0.3, seed=9) for v in views), FUNCTIONS["columns"], dropped_rows]
    cases = [(f, x) for f in of_rows for x in arrays if x.ndim == 2]
    cases += [(f, x) for f in (FUNCTIONS["map"], FUNCTIONS["gradient"]) for x in arrays]
    kernels = HostKernels([trace(f, x).graph for f, x in cases], tmp_path)
    for i, (f, x) in enumerate(cases):
        (got,) = kernels.run(i, [x])
        np.testing.assert_allclose(got, kf.fuse(f)(x), rtol=1e-5, atol=1e-6)
        assert ((got == 0) == (kf.fuse(f)(x) == 0)).all()


# ---- on a GPU ----


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (7,), (33, 65), (3, 1, 129), (1024, 1024), (5, 70001)])
def test_the_same_bits_as_on_the_cpu(shape: tuple[int, ...], dtype: Any) -> None:
    x = torch.randn(shape).to(dtype)
    for p, seed in ((0.5, 7), (0.1, 2**52 + 11)):
        got = kf.dropout(x.cuda(), p, seed=seed)
        assert torch.equal(got.cpu(), kf.dropout(x, p, seed=seed))


@needs_gpu
def test_layouts() -> None:
    x = torch.randn(40, 30, 20)
    for view in (lambda x: x.permute(2, 1, 0), lambda x: x[::2, 3:], lambda x: x.permute(1, 0, 2), lambda x: x[:, 3]):
        want = kf.dropout(view(x), 0.4, seed=9)
        assert torch.equal(kf.dropout(view(x.cuda()), 0.4, seed=9).cpu(), want)


@needs_gpu
def test_words() -> None:
    x = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (3, 100_003))
    got = kf.philox(*(torch.from_numpy(v).cuda() for v in x))
    np.testing.assert_array_equal(got.cpu().numpy(), kf.philox(*x))


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_both_passes_have_one_mask(dtype: Any) -> None:
    fused = kf.fuse(lambda x: F.dropout(x, 0.3))
    x = torch.ones(513, 1001, device="cuda", dtype=dtype, requires_grad=True)
    made = [fused(x) for _ in range(3)]
    for y in reversed(made):
        (g,) = torch.autograd.grad(y, x, torch.ones_like(y))
        assert torch.equal(g, y.detach())
        assert abs((g != 0).double().mean().item() - 0.7) < 0.01
    assert not torch.equal(made[0], made[1])


@needs_gpu
def test_manual_seed_and_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    fused = kf.fuse(lambda x: F.dropout(torch.sin(x), 0.5))
    x = torch.ones(1000, device="cuda", requires_grad=True)
    torch.manual_seed(3)
    first = fused(x)
    torch.manual_seed(3)
    assert torch.equal(fused(x), first)
    y = checkpoint(fused, x, use_reentrant=False)
    (g,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(g, y.detach() / torch.sin(x.detach()) * torch.cos(x.detach()))


@needs_gpu
def test_a_cuda_graph_is_refused() -> None:
    fused = kf.fuse(lambda x: F.dropout(x, 0.5))
    x = torch.ones(1000, device="cuda")
    fused(x)
    torch.cuda.synchronize()

    def record() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            fused(x * 2)

    with pytest.raises(RuntimeError, match="the replays of a CUDA graph"):
        record()
    torch.cuda.synchronize()
    assert set(fused(x).tolist()) == {0.0, 2.0}


@needs_gpu
def test_attention() -> None:
    q, k, v = (torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    fused = kf.fuse(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.2))
    mean = sum(fused(q, k, v).float() for _ in range(200)) / 200
    torch.testing.assert_close(mean, F.scaled_dot_product_attention(q, k, v).float(), rtol=0.1, atol=0.1)


@needs_gpu
def test_within_products() -> None:
    """Epilogues of products, scores of attention: the same mask as alone."""
    x, w = (torch.randn(s, device="cuda", dtype=torch.bfloat16) * 0.1 for s in ((512, 1024), (1024, 768)))
    kept = kf.dropout(torch.ones(512, 768), 0.3, seed=4) != 0
    f = lambda x, w: kf.dropout(kf.exp(x @ w), 0.3, seed=4)  # noqa: E731
    y = kf.fuse(f)(x, w)
    assert torch.equal(y.cpu() != 0, kept)
    torch.testing.assert_close(
        kf.fuse(lambda x, w: f(x, w).amax(-1))(x, w).float(), y.amax(-1).float(), rtol=2e-2, atol=0
    )
    q, k, v = (torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))

    def attended(q, k, v):
        return kf.softmax(kf.dropout(q @ k.swapaxes(-1, -2) * 0.1, 0.3, seed=4), -1) @ v

    got, want = (h(q, k, v).float() for h in (kf.fuse(attended), kf.fuse(attended).unfused))
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(64, 33), (8, 3, 100), (4, 16, 32, 30), (2, 3, 4, 5, 6)])
def test_batch_norm(shape: tuple[int, ...], dtype: Any) -> None:
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    for momentum in (0.1, None):
        module = kind(shape[1], momentum=momentum).to("cuda", dtype)
        fused = kf.fuse(copy.deepcopy(module))
        for _ in range(3):
            x = (torch.randn(shape, device="cuda", dtype=dtype) * 3 + 1).requires_grad_()
            y, want = fused(x), module(x)
            torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)
            g = torch.randn_like(y)
            for a, b in zip(
                torch.autograd.grad(y, (x, *fused.parameters()), g),
                torch.autograd.grad(want, (x, *module.parameters()), g),
                strict=True,
            ):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
            for name, value in module.state_dict().items():
                torch.testing.assert_close(fused.state_dict()[name], value, rtol=1e-4, atol=1e-5)
