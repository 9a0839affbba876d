"""A whole model: milliseconds of a call, kernels and memory, beside eager torch and torch.compile."""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import kfusion as kf
from kfusion import _core, _timing

from .inputs import Inputs
from .options import Options
from .results import Measured, Row, rounded

# By the package that has them; the others are written in model_zoo.py.
TRANSFORMERS = ("BERT", "GPT-2", "Llama", "Mistral", "Qwen2", "T5", "ViT", "CLIP", "Whisper encoder", "ResNet",
                   "ConvNeXt")  # fmt: skip
OWN = ("UNet", "LSTM", "graph layer", "diffusion block")
PEERS = ("torch", "torch.compile", "torch.compile.max")
CALL = "model"  # the state of these rows
_BUDGET_S = {"cuda": 1.0, "cpu": 4.0}  # of each version
_MOST = 50  # samples
_LOOSER = 2.0  # how much less exact than eager a version may be, against float64


def available() -> tuple[str, ...]:
    """The models whose packages are installed."""
    if importlib.util.find_spec("torch") is None:
        return ()
    return TRANSFORMERS + OWN if importlib.util.find_spec("transformers") else OWN


@dataclass(frozen=True)
class ModelCase:
    """A model of the zoo, in its real size or in its tiny one.

    batch, length: as in `model_zoo.Size`. shape: what is told of a case that cannot be measured.
    """

    suite: str
    name: str
    dtype: str
    real: bool
    batch: int = 0
    length: int = 0
    shape: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """The case in one line."""
        return f"{self.name}, {self.dtype}"

    def measure(self, inputs: Inputs, options: Options, report: _timing.Progress) -> Measured:
        """Checks every version against float64, and times their calls in turn.

        Raises:
            AssertionError: kfusion's result is wrong.
        """
        import torch

        report(0.0, f"{self.title}: building")
        model, given = self._built(options.device, getattr(torch, self.dtype))
        fused = kf.fuse(model)
        runs: dict[str, Callable[..., Any]] = {"fused": fused, "torch": model}
        runs |= {p: _compiled(model, p) for p in options.asked(PEERS) if p != "torch"}
        errors, held, notes = self._checked(runs, given, options, report)
        taken: dict[str, list[float]] = {version: [] for version in errors}
        with torch.no_grad():
            for sample in range(options.repeats or _MOST):
                for version in taken:
                    report(sample / _MOST, f"{self.title}: {version}")
                    taken[version].append(call_us(functools.partial(runs[version], **given)))
                if options.repeats is None and sum(map(sum, taken.values())) > 1e6 * _BUDGET_S[options.device] * len(
                    taken
                ):
                    break
        plan = fused.plan(**given)
        launches = {"fused": plan.fused.launches, "torch": plan.library.launches}
        rows = [_row(v, times, errors[v], launches.get(v), held.get(v)) for v, times in taken.items()]
        shape = max((tuple(x.shape) for x in given.values()), key=len)
        library = "torch" if options.device == "cuda" else "torch cpu"
        return Measured(self.suite, self.name, shape, self.dtype, library, 0, tuple(rows), tuple(notes))

    def _built(self, device: str, dtype: Any) -> Any:
        from . import model_zoo  # torch is imported where models are measured only

        return model_zoo.built(self.name, model_zoo.Size(self.real, self.batch, self.length), device, dtype)

    def _checked(
        self, runs: dict[str, Callable[..., Any]], given: dict[str, Any], options: Options, report: _timing.Progress
    ) -> tuple[dict[str, float], dict[str, int | None], list[str]]:
        """Errors against float64 and bytes held after a call, by version; notes on who was left out."""
        import torch

        exact_model, exact_given = self._built(options.device, torch.float64)
        with torch.no_grad():
            exact = [t.to(torch.float64) for t in tensors(exact_model(**exact_given))]
            del exact_model, exact_given
            errors: dict[str, float] = {}
            held: dict[str, int | None] = {}
            notes = []
            for version, run in runs.items():
                report(0.0, f"{self.title}: {version}, first call")
                try:
                    errors[version] = error(tensors(run(**given)), exact)
                    held[version] = _held_bytes(functools.partial(run, **given))
                except Exception as failure:
                    if version == "fused":
                        raise
                    notes.append(f"{version} is left out: {str(failure).splitlines()[0]}")
        if errors["fused"] > _LOOSER * errors.get("torch", 0.0) + 1e-6:
            raise AssertionError(
                f"{self.name}: fused is wrong by {errors['fused']:.1e}, eager by {errors['torch']:.1e}"
            )
        return errors, held, notes


def tensors(value: Any) -> list[Any]:
    """Those of a result, in order."""
    if hasattr(value, "untyped_storage"):
        return [value]
    value = list(value.values()) if isinstance(value, dict) else value
    return [t for v in value for t in tensors(v)] if isinstance(value, (tuple, list)) else []


def error(got: list[Any], exact: list[Any]) -> float:
    """The largest over the results of |got - exact| / |exact|, in the 2-norm."""
    return max(float((g.double() - e).norm() / e.norm()) for g, e in zip(got, exact, strict=True))


def _compiled(model: Any, peer: str) -> Callable[..., Any]:
    import torch

    mode = "max-autotune" if peer == "torch.compile.max" else None
    compiled: Callable[..., Any] = torch.compile(model, dynamic=False, mode=mode)
    return compiled


def call_us(call: Callable[[], Any]) -> float:
    """Time of one call and of the work that it left to the device."""
    start = time.perf_counter_ns()
    result = call()
    synchronize()
    taken_us = (time.perf_counter_ns() - start) / 1e3
    del result
    return taken_us


def _held_bytes(call: Callable[[], Any]) -> int | None:
    """Device memory that the process holds for a call and keeps for the next one; None on the CPU."""
    import torch

    if not _core.cuda_device_count():
        return None
    before = free_bytes()
    call()
    synchronize()
    after, _ = torch.cuda.mem_get_info()
    return max(int(before - after), 0)


def free_bytes() -> int:
    """Free bytes of the GPU, after torch and kfusion gave back what they keep for later."""
    import torch

    synchronize()
    torch.cuda.empty_cache()
    _core.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


def synchronize() -> None:
    """Waits for the GPU, if there is one."""
    if _core.cuda_device_count():
        _core.cuda_synchronize()


def _row(version: str, times_us: list[float], error: float, launches: int | None, held: int | None) -> Row:
    low, middle, high = (rounded(float(np.percentile(times_us, q))) for q in (20, 50, 80))
    return Row(
        version, CALL, middle, low, high, len(times_us), error=rounded(error), launches=launches, held_bytes=held
    )
