"""Holds programs of torch's tensors to float64, beside the error that torch itself makes of them in their dtypes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
import torch

import kfusion as kf
from kfusion import _core
from kinds import SPACING

from .checks import H200, check_plan
from .torch_programs import WIDE, TorchProgram
from .values import Unfit

FACTOR = 12
# Every kernel of attention and of products that there is, whatever it is predicted to take.
FORCED = {"by_time": False, "executors": "available"}


def tensor(x: np.ndarray, device: str) -> torch.Tensor:
    """A tensor that lies as x, also along axes that repeat."""
    bits = x.view(np.int16) if x.dtype.name == "bfloat16" else x
    t = torch.from_numpy(bits)
    t = t.view(torch.bfloat16) if bits is not x else t
    if device == "cpu":
        return t
    once = t[tuple(slice(0, 1 if s == 0 else None) for s in t.stride())]
    made = torch.empty_strided(once.shape, t.stride(), dtype=t.dtype, device=device)
    return made.copy_(once).expand(t.shape)


Function = Callable[..., Sequence[torch.Tensor]]


def results(f: Function, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [y.detach() for y in f(*tensors)]


def gradients(f: Function, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Results, and the gradients of the float tensors for gradients of the results that are the same for everybody."""
    leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
    made = f(*leaves)
    generator = torch.Generator().manual_seed(7)
    seeds = [torch.randn(y.shape, generator=generator).to(y.device, y.dtype) for y in made]
    wanted = [t for t in leaves if t.requires_grad]
    found = torch.autograd.grad(made, wanted, seeds, allow_unused=True)
    return [y.detach() for y in made] + [
        torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True)
    ]


def _distance(some: torch.Tensor, others: torch.Tensor) -> float:
    return float((some.cpu().double() - others).abs().max()) if others.numel() else 0.0


def _rounded_once_more(t: torch.Tensor, spacing: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    if not t.is_floating_point():
        return t
    return t * (1 + spacing * (2 * torch.rand(t.shape, generator=generator, dtype=torch.double) - 1))


class Beside:
    """What results (and gradients) must be, and by how much they may miss it: some times the error of torch's own on
    `eager_device`, or what they move by where inputs are rounded once more."""

    def __init__(
        self, program: TorchProgram, device: str, eager_device: str, of: Callable[..., list[torch.Tensor]]
    ) -> None:
        self.tensors = [tensor(x, device) for x in program.inputs]
        given = self.tensors if device == eager_device else [tensor(x, eager_device) for x in program.inputs]
        wide = [t.cpu().double() if t.is_floating_point() else t.cpu() for t in given]
        spacing = max(SPACING[d] for d in program.dtypes)
        try:
            self.exact = of(program.function(WIDE), wide)
            self.eager = of(program.function(), given)
            near = of(program.function(WIDE), [_rounded_once_more(t, spacing) for t in wide])
        except Exception as e:  # a smaller program that makes no sense
            raise Unfit from e
        if not all(bool(y.isfinite().all()) for y in (*self.exact, *self.eager, *near)):
            raise Unfit
        top = max((float(y.abs().max()) for y in self.exact if y.numel()), default=0.0)
        rounding = (8 if spacing > SPACING["float32"] else 64) * spacing * max(top, 1.0)
        self.bounds = [
            FACTOR * max(_distance(e, y), _distance(n, y)) + rounding
            for y, e, n in zip(self.exact, self.eager, near, strict=True)
        ]

    def require(self, what: str, got: Sequence[torch.Tensor]) -> None:
        for i, (g, y, e, bound) in enumerate(zip(got, self.exact, self.eager, self.bounds, strict=True)):
            assert (g.shape, g.dtype) == (e.shape, e.dtype), f"{what}: {i} is {tuple(g.shape)} {g.dtype}, not {e.dtype}"
            error = _distance(g, y)
            assert error <= bound, f"{what}: {i} is wrong by {error:.3g}, where torch is within {bound:.3g}"


def says_something(program: TorchProgram) -> bool:
    """Whether results and gradients are finite."""
    try:
        Beside(program, "cpu", "cpu", gradients)
    except Unfit:
        return False
    return True


def run_eagerly(program: TorchProgram, device: str) -> None:
    """Only torch's own functions, whose errors are torch's."""
    for of in (results, gradients):  # where nothing wants gradients, other kernels may run
        with contextlib.suppress(Exception):
            of(program.function(), [tensor(x, device) for x in program.inputs])


def check(program: TorchProgram, device: str, eager_device: str, *, thorough: bool) -> None:
    """Results as users get them, by every kernel that there is, and apart; gradients; plans, and their text."""
    plain, own = Beside(program, device, eager_device, results), program.function()
    fused = kf.fuse(own)
    plain.require("fused", results(fused, plain.tensors))
    plain.require("by bytes", results(kf.FusedFunction(own, FORCED), plain.tensors))
    if not program.jumps:
        differentiated = Beside(program, device, eager_device, gradients)
        differentiated.require("gradients", gradients(fused, differentiated.tensors))
    graph = kf.trace(own, *plain.tensors)
    check_plan(graph, H200, {})
    if thorough:
        plain.require("unfused", results(fused.unfused, plain.tensors))
        _core.cuda_kernels(graph, H200, names=False)
