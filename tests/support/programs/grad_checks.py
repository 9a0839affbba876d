"""Gradients of random programs in float64: fused, unfused and by torch's autograd, and the plans of their graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import kfusion as kf
from gradients import require_close, seeds_of, torch_vjp_of_graph, vjp_in_two_passes

from .checks import EXECUTABLE, H200, Runner, check_plan
from .program import Program, Step
from .values import FLOATS, Unfit


def in_float64(p: Program) -> Program:
    """The program with float64 in place of all floats."""

    def step(s: Step) -> Step:
        return replace(s, constants=("float64",)) if s.op == "cast" and s.constants[0] in FLOATS else s

    inputs = [x if x.dtype.kind in "bi" else x.astype(np.float64) for x in p.inputs]
    return Program(inputs, [step(s) for s in p.steps], p.outputs)


def moved(p: Program) -> Program:
    """With other values nearby, of which hardly two are equal."""
    random = np.random.default_rng(0)
    inputs = [x if x.dtype.kind in "bi" else np.asarray(x + 1e-3 * random.standard_normal(x.shape)) for x in p.inputs]
    return replace(p, inputs=inputs)


def pulled(function: Callable[..., Any], is_float: Sequence[bool]) -> Callable[..., Any]:
    """From all inputs and the gradients of float results to the gradients of float inputs."""

    def of_floats(*arrays: Any) -> list[Any]:
        return [y for y in function(*arrays) if y.dtype == np.float64]

    def gradients(inputs: Sequence[Any], seeds: Sequence[Any]) -> Any:
        def own(*floats: Any) -> list[Any]:
            given = iter(floats)
            return of_floats(*[next(given) if f else x for x, f in zip(inputs, is_float, strict=True)])

        _, pull = kf.vjp(own, *[x for x, f in zip(inputs, is_float, strict=True) if f])
        return pull(list(seeds))

    return gradients


class GradRunner(Runner):
    """Gradients on the CPU."""

    def check(self, program: Program, *, thorough: bool = False) -> None:
        program = in_float64(program)
        exact = all(v.error == 0 for v in program.values())
        try:
            self._check(program)
        except AssertionError:
            if exact:  # what is equal is equal in torch too
                raise
            program = moved(program)
            program.values()
            self._check(program)

    def _check(self, program: Program) -> None:
        function, inputs = program.function(), program.inputs
        graph = kf.trace(function, *inputs)
        ops = {n["op"] for n in graph.to_dict()["nodes"]}
        seeds = seeds_of(graph)
        is_float = [x.dtype.kind == "f" for x in inputs]
        if "library_call" in ops or not seeds or not any(is_float):
            raise Unfit
        with np.errstate(all="ignore"):
            want = torch_vjp_of_graph(graph, inputs, seeds)
            fused = kf.fuse(pulled(function, is_float))
            require_close(fused(list(inputs), seeds), want, 1e-6, finite_only=True)
            require_close(fused.unfused(list(inputs), seeds), want, 1e-6, finite_only=True)
            for memory in (None, 1 << 10, 0):
                if got := vjp_in_two_passes(graph, inputs, seeds, memory):
                    require_close(got, want, 1e-6, finite_only=True)
        backward = kf.trace(fused.__wrapped__, list(inputs), seeds)
        check_plan(backward, H200, {})
        check_plan(backward, self.device, EXECUTABLE)
