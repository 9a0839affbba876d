"""torch's DistributedDataParallel around fused modules: each process has its part of a batch, all have the gradients of
the whole one. By Gloo on the CPU, by NCCL where there are two GPUs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kfusion as kf

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="needs a torch with torch.distributed"),
]
WORLD = 2


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.LayerNorm(48), nn.Dropout(0.0), nn.Linear(48, 5))


def batch() -> torch.Tensor:
    return torch.randn(8, 24, generator=torch.Generator().manual_seed(5))


def work(rank: int, backend: str, meeting: str, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=WORLD)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    fused = DistributedDataParallel(
        kf.fuse(model().to(device)), device_ids=[rank] if backend == "nccl" else None, gradient_as_bucket_view=True
    )
    optimizer = kf.optim.SGD(fused.parameters(), lr=0.1, momentum=0.9)
    own = batch().to(device).chunk(WORLD)[rank]
    for _ in range(3):
        optimizer.zero_grad()
        fused(own).square().mean().backward()
        optimizer.step()
    with fused.no_sync():  # gradients of this part alone are added up
        fused(own).square().mean().backward()
    state = [p.detach().cpu() for p in fused.parameters()], [p.grad.cpu() for p in fused.parameters()]
    torch.save(state, Path(folder) / f"{rank}.pt")
    torch.distributed.barrier()  # Gloo's threads must not be asked by others while they end
    torch.distributed.destroy_process_group()


def alone() -> list[torch.Tensor]:
    """Eager torch with the whole batch."""
    plain, x = model(), batch()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        plain(x).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in plain.parameters()]


GPUS = pytest.param("nccl", marks=pytest.mark.skipif(torch.cuda.device_count() < WORLD, reason="needs two GPUs"))


@pytest.mark.parametrize("backend", ["gloo", GPUS])
def test_training_as_with_the_whole_batch(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    torch.multiprocessing.spawn(work, (backend, str(tmp_path / "meeting"), str(tmp_path)), nprocs=WORLD)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(WORLD))
    for a, b, want in zip(first[0], second[0], alone(), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, want, rtol=1e-4, atol=1e-5)
    assert any(not torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))
