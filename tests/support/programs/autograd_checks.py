"""Programs with the user's own functions of autograd, and with random numbers that torch draws: results, gradients and
the state of the generator are those of eager torch with the same seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import kfusion as kf

from .autograd_steps import OWN
from .grad_checks import MOVE, NEAR, NEXT, TOLERANCE, GradRunner, by_torch, difference, moved, one_thread, seed, tensor
from .in_torch import TORCH
from .program import Program
from .values import Unfit


def drawn(function: Callable[..., Any], inputs: Sequence[np.ndarray]) -> tuple[list[Any], list[Any], torch.Tensor]:
    """Results, gradients, and the generator's state behind them."""
    torch.manual_seed(1)
    results, gradients = by_torch(function, inputs)
    return results, gradients, torch.get_rng_state()


def pulled(function: Callable[..., Any], inputs: Sequence[np.ndarray]) -> list[Any]:
    """The gradients of float inputs by kf.vjp."""
    given = [tensor(x).detach() for x in inputs]
    floats = [i for i, x in enumerate(given) if x.is_floating_point()]

    def own(*some: Any) -> list[Any]:
        all_given = list(given)
        for i, x in zip(floats, some, strict=True):
            all_given[i] = x
        return list(function(*all_given))

    torch.manual_seed(1)
    results, pull = kf.vjp(own, *[given[i] for i in floats])
    return list(pull([torch.from_numpy(seed(i, y.shape)) for i, y in enumerate(results)]))


class OwnRunner(GradRunner):
    """Programs in torch's words, eager and fused."""

    def says_something(self, program: Program) -> bool:
        values = program.values()
        if not any(s.op in OWN for s in program.steps) or any(values[o].dtype != "float64" for o in program.outputs):
            return False  # what nothing reads draws nothing
        function, program = program.function(TORCH), moved(program, MOVE)
        try:
            with one_thread():
                results, gradients, _ = drawn(function, program.inputs)
                near = drawn(function, moved(program, NEAR).inputs)[1]
        except Unfit:
            return False
        is_finite = all(bool(x.isfinite().all()) for x in (*results, *gradients))
        return is_finite and difference(near, gradients) <= NEXT

    def check(self, program: Program, *, thorough: bool = False) -> None:
        function, inputs = program.function(TORCH), moved(program, MOVE).inputs
        fused = kf.fuse(function)
        with one_thread():
            *want, state = drawn(function, inputs)
            for number in range(3):
                *found, after = drawn(fused, inputs)
                for what, got, wanted in zip(("results", "gradients"), found, want, strict=True):
                    assert difference(got, wanted) <= TOLERANCE, f"{what}, call {number}: {difference(got, wanted):.2g}"
                assert torch.equal(after, state), f"call {number} has moved the generator otherwise"
                with torch.no_grad():
                    fused(*map(tensor, inputs))
            assert difference(pulled(function, inputs), want[1]) <= TOLERANCE, "vjp"
