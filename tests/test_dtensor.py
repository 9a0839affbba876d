"""Several processes: fused functions of torch's DTensors, each rank its shards, against eager torch of whole tensors,
with gradients; and DistributedDataParallel. By Gloo on the CPU, by NCCL where there are two GPUs."""

from __future__ import annotations

import copy
import functools
import os
import traceback
from pathlib import Path
from typing import Any

import pytest

import kfusion as kf
from tracing import Traces

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor")
from torch import nn  # noqa: E402
from torch.distributed.tensor import (  # noqa: E402  # noqa: E402
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    init_device_mesh,
)
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="needs a torch with torch.distributed"),
]
WORLD = 2
S0, S1, R, SUM = "S(0)", "S(1)", "R", "P(sum)"
PLACEMENTS = {S0: [Shard(0)], S1: [Shard(1)], R: [Replicate()], SUM: [Partial()]}


def attention_free_block(x: Any, w: Any, b: Any) -> Any:
    return nn.functional.gelu(nn.functional.layer_norm(x, (6,)) @ w + b)


# name, function, arguments and how each is sharded, how the results lie
CASES = [
    ("map", lambda x, b: torch.relu(x + b) * 2, [("x", S0), ("b", R)], [S0]),
    ("rows", lambda x, b: torch.softmax(x, -1) * b, [("x", S0), ("b", R)], [S0]),
    ("rows, and what all ranks have", lambda x, b: (x * b, b.exp()), [("x", S0), ("b", R)], [S0, R]),
    ("columns of a shard", lambda x: x.sum(0), [("x", S1)], [S0]),
    ("sums", lambda x: (x.sum(0), x.mean(), (x * x).sum(0)), [("x", S0)], [SUM, SUM, SUM]),
    ("after a sum", lambda x: (x * x).sum().sqrt(), [("x", S0)], [R]),
    ("deviation", lambda x: x.std(0), [("x", S0)], [R]),
    ("block", attention_free_block, [("x", S0), ("w", R), ("c", R)], [S0]),
    ("columns of weights", lambda x, w: torch.relu(x @ w), [("x", R), ("w", S1)], [S1]),
    ("rows of weights", lambda x, w: x @ w, [("x", S1), ("w", S0)], [SUM]),
    ("a replicated operand is cut", lambda x, w: torch.relu(x @ w), [("x", S1), ("w", R)], [R]),
    ("transposed", lambda x: x.T * 2, [("x", S0)], [S1]),
    ("nothing sharded", lambda x, b: x + b, [("x", R), ("b", R)], [R]),
]
WITHOUT_GRADIENTS = [
    ("extremes", lambda x: (x.amax(0), x.amin(0), x.prod(0)), [("x", S0)], [R, R, R]),
    ("NaN of other ranks", lambda x: (x.amax(0), x.amin(0), x.half().amax(0)), [("nan", S0)], [R, R, R]),
    ("truths", lambda x: ((x > 1).any(0), (x > -9).all(0)), [("x", S0)], [R, R]),
    ("half", lambda x: (x.bfloat16().sum(0), x.bfloat16() * 2), [("x", S0)], [R, S0]),
]
REFUSED = [
    (lambda x: torch.softmax(x, -1), [("x", S1)],
     r"axis 1 of x is sharded, but softmax .*x.redistribute\(placements=\[R"),
    (lambda x: x - x.mean(0), [("x", S0)], "axis 0 of x is sharded, but mean .* needs all of it to go on with each"),
    (lambda x: x[1:], [("x", S0)], "axis 0 of x is sharded, but slice .* needs all of it"),
    (lambda x, y: x + y, [("x", S0), ("x", S1)],
     r"axis 1 meets shards of others: pass x.redistribute\(placements=\[S"),
    (lambda x: x.sum(0), [("one", S0)],
     r"axis 0 of x cannot be sharded along dimension 0 of the mesh: pass x.redistribute"),
    (lambda x: x * 2, [("x", SUM)], "x lies as P"),
    (lambda a, c: a[:, None] * c, [("b", S0), ("c", S0)],
     r"axis 0 of c is sharded, but mul.*axis 0 of a, .* of the mesh: pass c.redistribute\(placements=\[R"),
    (lambda a, c: (a[:, None] * c).sum(), [("b", S0), ("c", S0)], "joins it with axis 0 of a"),
    (lambda x, w: x @ w, [("x", S0), ("w", S1)], "axis 1 of w is sharded, but .* joins it with axis 0 of x"),
]  # fmt: skip


def tensors(device: Any) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(2)
    made = {"x": (7, 6), "w": (6, 4), "b": (6,), "c": (4,), "one": (1, 6)}
    found = {name: torch.randn(shape, generator=g) for name, shape in made.items()}
    found["nan"] = found["x"].clone()
    found["nan"][0, 1] = found["nan"][6, 2] = torch.nan  # of the first rank, and of the last
    return {name: x.to(device) for name, x in found.items()}


def compare(mesh: Any, given: dict[str, Any], f: Any, arguments: Any, lie: Any, *, differentiates: bool = True) -> None:
    plain = [given[name].clone().requires_grad_(differentiates) for name, _ in arguments]
    shards = [distribute_tensor(given[n], mesh, PLACEMENTS[p]).requires_grad_(differentiates) for n, p in arguments]
    wanted, got = ((r if isinstance(r, tuple) else (r,)) for r in (f(*plain), kf.fuse(f)(*shards)))
    for want, shard, where in zip(wanted, got, lie, strict=True):
        assert isinstance(shard, DTensor)
        assert list(shard.placements) == PLACEMENTS[where], (shard.placements, where)
        torch.testing.assert_close(shard.full_tensor(), want, rtol=1e-4, atol=1e-5, equal_nan=True)
    if not differentiates:
        return
    weights = [torch.ones_like(w) * (k + 1) + w.detach() for k, w in enumerate(wanted)]
    torch.autograd.backward(wanted, weights)
    sum((g.full_tensor() * w).sum() for g, w in zip(got, weights, strict=True)).backward()
    for p, s in zip(plain, shards, strict=True):
        torch.testing.assert_close(s.grad.full_tensor(), p.grad, rtol=1e-4, atol=1e-5)


def refuses(mesh: Any, given: dict[str, Any], f: Any, arguments: Any, message: str) -> None:
    make = {SUM: DTensor.from_local}
    shards = [make.get(p, distribute_tensor)(given[n], mesh, PLACEMENTS[p]) for n, p in arguments]
    with pytest.raises(ValueError, match=message):
        kf.fuse(f)(*shards)


def others_and_weights(x: Any, given: dict[str, Any]) -> None:
    """Plain tensors: arguments beside x, and such that a function names; x is sharded, given["x"] is it whole."""
    b = given["b"].clone().requires_grad_()
    for other in (given["b"], b):
        with pytest.raises(TypeError, match=r"must be a DTensor as the others are, got Tensor: pass distribute_ten"):
            kf.fuse(lambda x, b: x + b)(x, other)
    with pytest.raises(RuntimeError, match="max along a sharded axis has no gradient"):
        kf.fuse(lambda x: x.amax(0))(x.clone().requires_grad_())
    fused = kf.fuse(lambda x: x * b)
    fused(given["x"]).sum().backward()  # called with plain tensors before
    fused(x).full_tensor().sum().backward()
    torch.testing.assert_close(b.grad, 2 * given["x"].sum(0))
    own = given["b"]
    torch.testing.assert_close(kf.fuse(lambda x: x * own)(x).full_tensor(), given["x"] * own)


def module(x: Any, given: dict[str, Any]) -> None:
    """Its parameters are DTensors that the function names."""
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8)).to(given["x"].device)
    shared = distribute_module(copy.deepcopy(plain), x.device_mesh)
    got, want = kf.fuse(shared)(x), plain(given["x"])
    torch.testing.assert_close(got.full_tensor(), want, rtol=1e-4, atol=1e-5)
    got.full_tensor().square().sum().backward()
    want.square().sum().backward()
    for p, q in zip(shared.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad.full_tensor(), q.grad, rtol=1e-4, atol=1e-4)


def same_bits(x: Any, given: dict[str, Any]) -> None:
    own = kf.fuse(lambda x: x.std(0))(x).to_local()
    everyone = [torch.empty_like(own) for _ in range(WORLD)]
    torch.distributed.all_gather(everyone, own)
    assert all(torch.equal(everyone[0], other) for other in everyone)


def planned_once(x: Any, given: dict[str, Any]) -> None:
    """A function is planned again where a name is bound anew, or another number or sharding is given."""
    factor, traced = 2.0, Traces()

    def f(x: Any, power: float = 1.0) -> Any:
        traced()
        return torch.copysign(x * factor, torch.full_like(x, power))

    fused = kf.fuse(f)
    for _ in range(3):
        torch.testing.assert_close(fused(x).full_tensor(), f(given["x"]))
    assert len(traced) == 4  # three of them eager
    for power in (0.0, -0.0):
        torch.testing.assert_close(fused(x, power).full_tensor(), f(given["x"], power))
    factor = 3.0
    torch.testing.assert_close(fused(x).full_tensor(), f(given["x"]))
    whole = fused(x.redistribute(placements=[Replicate()]))
    assert whole.placements[0].is_replicate()
    torch.testing.assert_close(whole.to_local(), f(given["x"]))


def shards(rank: int, device: Any) -> str:
    """What fails."""
    mesh, given, failed = init_device_mesh(device.type, (WORLD,)), tensors(device.type), []
    x = distribute_tensor(given["x"], mesh, PLACEMENTS[S0])
    checks = [(name, functools.partial(compare, mesh, given, *case)) for name, *case in CASES]
    without = functools.partial(compare, mesh, given, differentiates=False)
    checks += [(name, functools.partial(without, *case)) for name, *case in WITHOUT_GRADIENTS]
    checks += [(case[-1], functools.partial(refuses, mesh, given, *case)) for case in REFUSED]
    others = (others_and_weights, module, same_bits, planned_once)
    for name, check in [*checks, *((f.__name__, functools.partial(f, x, given)) for f in others)]:
        try:
            check()
        except Exception:
            failed.append(f"{name}, rank {rank}:\n{traceback.format_exc()}")
    return "\n".join(failed)


# ---- DistributedDataParallel: each process has its part of a batch, all have the gradients of the whole one ---------


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.LayerNorm(48), nn.Dropout(0.0), nn.Linear(48, 5))


def batch() -> torch.Tensor:
    return torch.randn(8, 24, generator=torch.Generator().manual_seed(5))


def trained(f: Any, optimizer: Any, x: Any) -> list[torch.Tensor]:
    for _ in range(3):
        optimizer.zero_grad()
        f(x).square().mean().backward()
        optimizer.step()
    return [p.detach().cpu() for p in f.parameters()]


def parts(rank: int, device: Any) -> Any:
    """Parameters after training, and gradients of this part alone."""
    ids = [rank] if device.type == "cuda" else None
    fused = DistributedDataParallel(kf.fuse(model().to(device)), device_ids=ids, gradient_as_bucket_view=True)
    own = batch().to(device).chunk(WORLD)[rank]
    state = trained(fused, kf.optim.SGD(fused.parameters(), lr=0.1, momentum=0.9), own)
    with fused.no_sync():  # they are added up
        fused(own).square().mean().backward()
    return state, [p.grad.cpu() for p in fused.parameters()]


def work(rank: int, of_rank: Any, backend: str, meeting: str, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=WORLD)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    torch.save(of_rank(rank, device), Path(folder) / f"{rank}.pt")
    torch.distributed.barrier()  # Gloo's threads must not be asked by others while they end
    torch.distributed.destroy_process_group()


@pytest.fixture(params=["gloo", pytest.param("nccl", marks=pytest.mark.cuda)])
def of_ranks(request, tmp_path, monkeypatch):
    """What a function gives in each process."""
    if request.param == "nccl" and torch.cuda.device_count() < WORLD:
        pytest.skip("needs two GPUs")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))

    def run(of_rank):
        torch.multiprocessing.spawn(work, (of_rank, request.param, str(tmp_path / "meeting"), str(tmp_path)), WORLD)
        return [torch.load(tmp_path / f"{rank}.pt") for rank in range(WORLD)]

    return run


def test_shards(of_ranks):
    assert of_ranks(shards) == [""] * WORLD


def test_training_as_with_the_whole_batch(of_ranks):
    first, second = of_ranks(parts)
    plain = model()
    wanted = trained(plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), batch())
    for a, b, want in zip(first[0], second[0], wanted, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, want, rtol=1e-4, atol=1e-5)
    assert any(not torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


def test_other_subclasses_of_tensors_are_refused():
    class Named(torch.Tensor):
        pass

    with pytest.raises(TypeError, match=r"torch.Tensor subclasses are not supported: pass a plain tensor"):
        kf.fuse(lambda x: x * 2)(torch.ones(3).as_subclass(Named))
