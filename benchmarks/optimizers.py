"""Optimizer steps over a model's parameters, beside torch's own, as a fraction of a copy's rate."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kfusion import _timing

from .inputs import Inputs
from .options import Options
from .results import Measured, Row, row_of

SUITE = "optimizers"
_STATE = "cold"
_BUDGET_S = {"cuda": 2.0, "cpu": 8.0}
_COPIED = 1 << 28  # bytes: by their copy's time others are computed
_LAYERS = {"cuda": (24, 2048, 50257, 2048), "cpu": (4, 512, 20000, 1024)}  # layers, width, vocabulary, positions
_LEAST_ERROR = 5e-2


def gpt_shapes(layers: int, width: int, vocabulary: int, positions: int) -> list[tuple[int, ...]]:
    """The parameters of a GPT: for 24, 2048, 50257 and 2048 there are 1.3 billion."""
    d = width
    block = [(d,), (d,), (3 * d, d), (3 * d,), (d, d), (d,), (d,), (d,), (4 * d, d), (4 * d,), (d, 4 * d), (d,)]
    return [(vocabulary, d), (positions, d), *block * layers, (d,), (d,)]


@dataclass(frozen=True)
class OptimizerCase:
    """One step. arrays: of the parameters' size that it reads and writes."""

    name: str
    options: dict[str, Any]
    arrays: int
    dtype: str
    device: str
    suite: str = SUITE

    @property
    def title(self) -> str:
        """The case in one line."""
        return f"{self.name}, a GPT's parameters, {self.dtype}"

    def measure(self, inputs: Inputs, options: Options, report: _timing.Progress) -> Measured:
        """Compares one step with torch's, and times steps in turn."""
        import torch

        report(0.0, f"{self.title}: drawing")
        params = self._parameters()
        steps = self._steps(params)
        size = sum(p.numel() for p in params)
        moved = self.arrays * size * params[0].element_size()
        difference = self._difference()
        x = torch.zeros(_COPIED // 2, dtype=torch.uint8, device=self.device)
        y = torch.zeros_like(x)
        clock: _timing.Clock = (
            _timing.CudaClock(flush=True, device=0) if self.device == "cuda" else _timing.CpuClock(flush=True)
        )
        for step in steps.values():
            step()
        samples = _timing.measure(
            [_timing.Variant(name, step, name != "fused") for name, step in steps.items()],
            _timing.Variant("copy", lambda: y.copy_(x)),
            clock,
            repeats=options.repeats,
            budget_s=_BUDGET_S[self.device] / (4 if options.quick else 1),
            seed=0,
            progress=lambda done, what: report(done, f"{self.title}: {what}"),
        )
        rows = [self._row(name, taken, moved, difference) for name, taken in samples.items()]
        library = "torch" if self.device == "cuda" else "torch cpu"
        return Measured(SUITE, self.name, (size,), self.dtype, library, moved, tuple(rows), ())

    def _parameters(self, shapes: list[tuple[int, ...]] | None = None) -> list[Any]:
        import torch

        params = []
        for shape in shapes or gpt_shapes(*_LAYERS[self.device]):
            p = torch.nn.Parameter(torch.randn(shape, device=self.device).to(getattr(torch, self.dtype)))
            p.grad = torch.randn_like(p)
            params.append(p)
        return params

    def _steps(self, params: list[Any]) -> dict[str, Callable[[], Any]]:
        """All step the same parameters, each with states of its own."""
        import torch

        from kfusion import optim

        theirs = getattr(torch.optim, self.name)
        return {
            "fused": getattr(optim, self.name)(params, **self.options).step,
            "torch fused": theirs(params, fused=True, **self.options).step,
            "torch foreach": theirs(params, foreach=True, **self.options).step,
        }

    def _difference(self) -> float:
        """The largest between ours and torch's fused step.

        Raises:
            AssertionError: it is no rounding.
        """
        import torch

        torch.manual_seed(0)
        mine = self._parameters([(1000, 37), (5,)])
        torch.manual_seed(0)
        want = self._parameters([(1000, 37), (5,)])
        for _ in range(2):
            self._steps(mine)["fused"]()
            self._steps(want)["torch fused"]()
        pairs = zip(mine, want, strict=True)
        difference: float = max((a.detach().double() - b.detach().double()).abs().max().item() for a, b in pairs)
        if not difference < _LEAST_ERROR:
            raise AssertionError(f"{self.title}: the step differs from torch's by {difference:.1e}")
        return difference

    def _row(self, version: str, taken: _timing.Samples, moved: int, difference: float) -> Row:
        error = difference if version == "fused" else None
        return row_of(version, _STATE, taken, moved=moved, copied=_COPIED, error=error)


def cases(dtype: str, device: str) -> Iterator[OptimizerCase]:
    """AdamW and SGD with momentum; nothing where torch, whose they are, is not installed."""
    if importlib.util.find_spec("torch") is None:
        return
    yield OptimizerCase("AdamW", {"lr": 1e-4}, 7, dtype, device)
    yield OptimizerCase("SGD", {"lr": 1e-4, "momentum": 0.9}, 5, dtype, device)
