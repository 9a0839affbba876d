"""Fused functions of torch's DTensors: each rank its shards, against eager torch of the whole tensors, with gradients.
By Gloo on the CPU, by NCCL where there are two GPUs.
"""

from __future__ import annotations

import copy
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kfusion as kf
from tracing import Traces

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor")
from torch import nn  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="needs a torch with torch.distributed"),
]
WORLD = 2
S0, S1, R, SUM = "S(0)", "S(1)", "R", "P(sum)"


def attention_free_block(x: Any, w: Any, b: Any) -> Any:
    return nn.functional.gelu(nn.functional.layer_norm(x, (6,)) @ w + b)


# name, function, arguments and how each is sharded, how the results lie
CASES: list[tuple[str, Callable[..., Any], list[tuple[str, str]], list[str]]] = [
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
    (
        lambda x: torch.softmax(x, -1),
        [("x", S1)],
        r"axis 1 of x is sharded, but softmax .*x.redistribute\(placements=\[R",
    ),
    (lambda x: x - x.mean(0), [("x", S0)], "axis 0 of x is sharded, but mean .* needs all of it to go on with each"),
    (lambda x: x[1:], [("x", S0)], "axis 0 of x is sharded, but slice .* needs all of it"),
    (lambda x, y: x + y, [("x", S0), ("x", S1)], r"axis 1 meets shards of others: pass x.redistribute\(placements=\[S"),
    (
        lambda x: x.sum(0),
        [("one", S0)],
        r"axis 0 of x cannot be sharded along dimension 0 of the mesh: pass x.redistribute",
    ),
    (lambda x: x * 2, [("x", SUM)], "x lies as P"),
    (
        lambda a, c: a[:, None] * c,
        [("b", S0), ("c", S0)],
        r"axis 0 of c is sharded, but mul.*axis 0 of a, .* of the mesh: pass c.redistribute\(placements=\[R",
    ),
    (lambda a, c: (a[:, None] * c).sum(), [("b", S0), ("c", S0)], "joins it with axis 0 of a"),
    (lambda x, w: x @ w, [("x", S0), ("w", S1)], "axis 1 of w is sharded, but .* joins it with axis 0 of x"),
]


def tensors(device: Any) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(2)
    made = {"x": (7, 6), "w": (6, 4), "b": (6,), "c": (4,), "one": (1, 6)}
    found = {name: torch.randn(shape, generator=g) for name, shape in made.items()}
    found["nan"] = found["x"].clone()
    found["nan"][0, 1] = found["nan"][6, 2] = torch.nan  # of the first rank, and of the last
    return {name: x.to(device) for name, x in found.items()}


def compare(mesh: Any, given: dict[str, Any], case: Any, *, differentiates: bool) -> None:
    from torch.distributed.tensor import DTensor, distribute_tensor

    _, f, arguments, lie = case
    plain = [given[name].clone().requires_grad_(differentiates) for name, _ in arguments]
    shards = [distribute_tensor(given[n], mesh, placement(p)).requires_grad_(differentiates) for n, p in arguments]
    wanted, got = f(*plain), kf.fuse(f)(*shards)
    wanted, got = ((r if isinstance(r, tuple) else (r,)) for r in (wanted, got))
    for want, shard, where in zip(wanted, got, lie, strict=True):
        assert isinstance(shard, DTensor)
        assert list(shard.placements) == placement(where), (shard.placements, where)
        torch.testing.assert_close(shard.full_tensor(), want, rtol=1e-4, atol=1e-5, equal_nan=True)
    if not differentiates:
        return
    weights = [torch.ones_like(w) * (k + 1) + w.detach() for k, w in enumerate(wanted)]
    torch.autograd.backward(wanted, weights)
    sum((g.full_tensor() * w).sum() for g, w in zip(got, weights, strict=True)).backward()
    for p, s in zip(plain, shards, strict=True):
        torch.testing.assert_close(s.grad.full_tensor(), p.grad, rtol=1e-4, atol=1e-5)


def placement(text: str) -> list[Any]:
    from torch.distributed.tensor import Partial, Replicate, Shard

    return {S0: [Shard(0)], S1: [Shard(1)], R: [Replicate()], SUM: [Partial()]}[text]


def refuses(mesh: Any, given: dict[str, Any], f: Any, arguments: Any, message: str) -> None:
    from torch.distributed.tensor import DTensor, distribute_tensor

    shards = [
        DTensor.from_local(given[n], mesh, placement(p))
        if p == SUM
        else distribute_tensor(given[n], mesh, placement(p))
        for n, p in arguments
    ]
    with pytest.raises(ValueError, match=message):
        kf.fuse(f)(*shards)


def checks(mesh: Any, given: dict[str, Any]) -> list[tuple[str, Callable[[], None]]]:
    from torch.distributed.tensor import distribute_tensor

    found: list[tuple[str, Callable[[], None]]] = []
    for case in CASES:
        found.append((case[0], lambda case=case: compare(mesh, given, case, differentiates=True)))
    for case in WITHOUT_GRADIENTS:
        found.append((case[0], lambda case=case: compare(mesh, given, case, differentiates=False)))
    for f, arguments, message in REFUSED:
        found.append((message, lambda f=f, a=arguments, m=message: refuses(mesh, given, f, a, m)))

    def mixed() -> None:
        x = distribute_tensor(given["x"], mesh, placement(S0))
        for other in (given["b"], given["b"].clone().requires_grad_()):
            with pytest.raises(
                TypeError, match=r"must be a DTensor as the others are, got Tensor: pass distribute_ten"
            ):
                kf.fuse(lambda x, b: x + b)(x, other)

    def no_gradient() -> None:
        x = distribute_tensor(given["x"], mesh, placement(S0)).requires_grad_()
        with pytest.raises(RuntimeError, match="max along a sharded axis has no gradient"):
            kf.fuse(lambda x: x.amax(0))(x)

    def weights() -> None:
        """The function was called with plain tensors before."""
        b = given["b"].clone().requires_grad_()
        fused = kf.fuse(lambda x: x * b)
        fused(given["x"]).sum().backward()
        fused(distribute_tensor(given["x"], mesh, placement(S0))).full_tensor().sum().backward()
        torch.testing.assert_close(b.grad, 2 * given["x"].sum(0))

    def captured() -> None:
        b = given["b"]
        x = distribute_tensor(given["x"], mesh, placement(S0))
        torch.testing.assert_close(kf.fuse(lambda x: x * b)(x).full_tensor(), given["x"] * b)

    def module() -> None:
        """Its parameters are DTensors that the function names."""
        from torch.distributed.tensor import distribute_module

        torch.manual_seed(1)
        plain = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8)).to(given["x"].device)
        shared = distribute_module(copy.deepcopy(plain), mesh)
        got, want = kf.fuse(shared)(distribute_tensor(given["x"], mesh, placement(S0))), plain(given["x"])
        torch.testing.assert_close(got.full_tensor(), want, rtol=1e-4, atol=1e-5)
        got.full_tensor().square().sum().backward()
        want.square().sum().backward()
        for p, q in zip(shared.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p.grad.full_tensor(), q.grad, rtol=1e-4, atol=1e-4)

    def same_bits() -> None:
        x = distribute_tensor(given["x"], mesh, placement(S0))
        own = kf.fuse(lambda x: x.std(0))(x).to_local()
        everyone = [torch.empty_like(own) for _ in range(WORLD)]
        torch.distributed.all_gather(everyone, own)
        assert all(torch.equal(everyone[0], other) for other in everyone)

    def planned_once() -> None:
        """A function is planned again where a name is bound anew, or another number or sharding is given."""
        from torch.distributed.tensor import Replicate

        x, factor, traced = distribute_tensor(given["x"], mesh, placement(S0)), 2.0, Traces()

        def f(x: Any, power: float = 1.0) -> Any:
            traced()
            return torch.copysign(x * factor, torch.full_like(x, power))

        fused = kf.fuse(f)
        for _ in range(3):
            torch.testing.assert_close(fused(x).full_tensor(), f(given["x"]))
        assert len(traced) == 4  # three of them eager
        torch.testing.assert_close(fused(x, 0.0).full_tensor(), f(given["x"], 0.0))
        torch.testing.assert_close(fused(x, -0.0).full_tensor(), f(given["x"], -0.0))
        factor = 3.0
        torch.testing.assert_close(fused(x).full_tensor(), f(given["x"]))
        whole = fused(x.redistribute(placements=[Replicate()]))
        assert whole.placements[0].is_replicate()
        torch.testing.assert_close(whole.to_local(), f(given["x"]))

    others = {
        "planned once": planned_once,
        "mixed": mixed,
        "no gradient": no_gradient,
        "captured": captured,
        "weights": weights,
        "module": module,
        "bits": same_bits,
    }
    return [*found, *others.items()]


def work(rank: int, backend: str, meeting: str, folder: str) -> None:
    from torch.distributed.tensor import init_device_mesh

    torch.set_num_threads(1)
    torch.distributed.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=WORLD)
    kind = "cuda" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    failed = []
    for name, check in checks(init_device_mesh(kind, (WORLD,)), tensors(kind)):
        try:
            check()
        except Exception:
            failed.append(f"{name}, rank {rank}:\n{traceback.format_exc()}")
    (Path(folder) / f"{rank}.txt").write_text("\n".join(failed))
    torch.distributed.barrier()  # Gloo's threads must not be asked by others while they end
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("backend", ["gloo", pytest.param("nccl", marks=pytest.mark.cuda)])
def test_shards(backend, tmp_path):
    if backend == "nccl" and torch.cuda.device_count() < WORLD:
        pytest.skip("needs two GPUs")
    arguments = backend, str(tmp_path / "meeting"), str(tmp_path)
    torch.multiprocessing.start_processes(work, arguments, nprocs=WORLD, start_method="spawn")
    for rank in range(WORLD):
        assert not (tmp_path / f"{rank}.txt").read_text()


def test_other_subclasses_of_tensors_are_refused():
    class Named(torch.Tensor):
        pass

    with pytest.raises(TypeError, match=re.escape("torch.Tensor subclasses are not supported: pass a plain tensor")):
        kf.fuse(lambda x: x * 2)(torch.ones(3).as_subclass(Named))
