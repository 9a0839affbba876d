"""Dropout and normalisations with running statistics on a GPU; without one, that their kernels compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from kinds import HAVE_GPU
from test_codegen_compiles import nvcc

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

needs_gpu = pytest.mark.skipif(not (HAVE_GPU and torch.cuda.is_available()), reason="needs a GPU")


def dropped_rows(x: Any) -> Any:
    return kf.softmax(kf.dropout(kf.exp(x), 0.1, seed=5), -1)


FUNCTIONS = {
    "map": lambda x: kf.dropout(x, 0.1, seed=3),
    "of a view": lambda x: kf.dropout(x.T, 0.1, seed=3),
    "rows": lambda x: kf.softmax(kf.dropout(kf.exp(x), 0.1, seed=5), -1),
    "columns": lambda x: kf.dropout(x, 0.1, seed=3).sum(0),
    "gradient": kf.grad(lambda x: kf.square(kf.dropout(x, 0.1, seed=3)).sum()),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_compile(name: str, dtype: str, tmp_path: Path) -> None:
    """The numbers of their texts are those of random programs ("random bits")."""
    traced = kf.fuse(FUNCTIONS[name])._planned((kf.spec((512, 1024), dtype, like="torch"),), {})
    texts = [k.source for k in _core.cuda_kernels(traced.graph, kf.device("H100").to_dict(), True)]
    assert "RandomWords words_" in texts[0]
    for i, text in enumerate(texts):
        (tmp_path / str(i)).mkdir()
        resources = nvcc(text, tmp_path / str(i))
        assert name in ("of a view", "rows") or " 0 bytes spill loads" in resources


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
def test_layouts_and_words() -> None:
    x = torch.randn(40, 30, 20)
    for view in (lambda x: x.permute(2, 1, 0), lambda x: x[::2, 3:], lambda x: x.permute(1, 0, 2), lambda x: x[:, 3]):
        assert torch.equal(kf.dropout(view(x.cuda()), 0.4, seed=9).cpu(), kf.dropout(view(x), 0.4, seed=9))
    words = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (3, 100_003))
    got = kf.philox(*(torch.from_numpy(v).cuda() for v in words))
    np.testing.assert_array_equal(got.cpu().numpy(), kf.philox(*words))


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
def test_manual_seed_checkpoints_and_graphs() -> None:
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

    def record() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()), torch.no_grad():
            fused(x * 2)

    with pytest.raises(RuntimeError, match="the replays of a CUDA graph"):
        record()
    torch.cuda.synchronize()
    assert len(set(fused(x).tolist())) == 2


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
