"""Losses over large vocabularies with their gradients: time, rate and the memory that a step takes at most."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import kfusion as kf
from kfusion import _timing

from . import memory
from .inputs import Inputs
from .models import error
from .options import Options
from .results import Measured, Row, row_of

SUITE = "losses"
PEERS = ("torch", "torch.compile")
LIGER = "Liger"
COMPILED = "fused, torch.compile"  # kfusion's backend
_STATE = "cold"
_BUDGET_S = {"cuda": 3.0, "cpu": 20.0}
_LOOSER = 2.0  # how much less exact than eager a version may be, against float64
_CHECKED = (64, 1000)  # rows and classes of what is compared with float64
_ROWS = {"cuda": (8192, 128256), "cpu": (1024, 32768)}
_HEADS = {"cuda": ((8192, 4096, 128256), (8192, 4096, 32768)), "cpu": ((1024, 768, 32768), (1024, 768, 50257))}
_CHUNKS = {"cuda": (512, 2048, 4096), "cpu": ()}  # rows, beside the default

Run = Callable[[], Any]


class Draw(NamedTuple):
    """Draws arrays."""

    device: str
    dtype: Any

    def normal(self, *shape: int) -> Any:
        import torch

        return torch.randn(shape, device=self.device, dtype=self.dtype)

    def classes(self, rows: int, count: int) -> Any:
        import torch

        return torch.randint(count, (rows,), device=self.device)


# ---- the functions: results, and gradients by all that has some, of arrays that `draw` gives ----


def _logits(draw: Draw, rows: int, classes: int) -> list[Any]:
    return [draw.normal(rows, classes), draw.normal(rows, classes)]


def _softmax(z: Any, g: Any) -> dict[str, Run]:
    """y = softmax(z), and z's gradient for one of y."""
    import torch

    leaf = z.clone().requires_grad_()

    def fused_one(z: Any, g: Any) -> Any:
        y, pull = kf.vjp(kf.softmax, z)
        return y, pull(g)[0]

    def of(function: Any) -> Run:
        def run() -> Any:
            y = function(leaf)
            return y.detach(), *torch.autograd.grad(y, leaf, g)

        return run

    def plain(z: Any) -> Any:
        return torch.softmax(z, -1)

    one = kf.fuse(fused_one)
    runs = {"fused": lambda: one(z, g), "fused, autograd": of(kf.fused_softmax), "torch": of(plain)}
    runs["torch.compile"] = of(compiled(plain))
    if (liger := _liger("softmax", "LigerSoftmaxFunction")) is not None:
        runs[LIGER] = of(liger.apply)
    return runs


def _labelled(draw: Draw, rows: int, classes: int) -> list[Any]:
    return [draw.normal(rows, classes), draw.classes(rows, classes)]


def _cross_entropy(z: Any, t: Any) -> dict[str, Run]:
    """The loss, and the gradient of the logits."""
    import torch
    from torch.nn import functional as F

    leaf = z.clone().requires_grad_()

    def of(function: Any) -> Run:
        def run() -> Any:
            loss = function(leaf, t)
            return loss.detach(), *torch.autograd.grad(loss, leaf)

        return run

    one = kf.value_and_grad(lambda z, t: kf.cross_entropy(z, t))
    runs = {"fused": lambda: one(z, t), "fused, autograd": of(kf.fused_cross_entropy)}
    runs |= {"torch": of(F.cross_entropy), "torch.compile": of(compiled(F.cross_entropy))}
    runs[COMPILED] = of(compiled(F.cross_entropy, by="kfusion"))
    own = z.clone()  # in whose memory the others put the gradient

    def in_place(function: Any) -> Run:
        def run() -> Any:
            logits = own.detach().requires_grad_().view_as(own)
            loss = function(logits, t)
            return loss.detach(), *torch.autograd.grad(loss, logits)

        return run

    runs["fused, in place"] = in_place(kf.cross_entropy_)
    if (liger := _liger("cross_entropy", "LigerCrossEntropyFunction")) is not None:
        runs[LIGER] = in_place(lambda z, t: _first(liger.apply(z, t, None)))
    return runs


def _rows_and_weight(draw: Draw, rows: int, width: int, classes: int) -> list[Any]:
    return [draw.normal(rows, width), draw.normal(classes, width) * width**-0.5, draw.classes(rows, classes)]


def _head(x: Any, w: Any, t: Any) -> dict[str, Run]:
    """The loss of a linear layer, and the gradients of its input and weight."""
    import torch
    from torch.nn import functional as F

    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()

    def of(function: Any) -> Run:
        def run() -> Any:
            loss = function(x, w, t)
            return loss.detach(), *torch.autograd.grad(loss, (x, w))

        return run

    def plain(x: Any, w: Any, t: Any) -> Any:
        return F.cross_entropy(F.linear(x, w), t)

    def in_chunks(rows: int) -> Any:
        return lambda x, w, t: kf.fused_linear_cross_entropy(x, w, t, chunk_rows=rows)

    runs = {"fused": of(kf.fused_linear_cross_entropy)}
    runs |= {f"fused, {rows} rows": of(in_chunks(rows)) for rows in _CHUNKS[x.device.type] if rows < len(x)}
    runs |= {"torch": of(plain), "torch.compile": of(compiled(plain))}
    options = getattr(torch.nn, "LinearCrossEntropyOptions", None)  # from torch 2.13 on
    if options is not None:
        runs["torch, chunks"] = of(lambda x, w, t: F.linear_cross_entropy(x, w, t, options=options()))
    if (liger := _liger("fused_linear_cross_entropy", "LigerFusedLinearCrossEntropyFunction")) is not None:
        runs[LIGER] = of(lambda x, w, t: _first(liger.apply(x, w, t)))
    return runs


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def compiled(function: Any, *, by: str = "inductor") -> Any:
    """Compiled when it is called: torch's compiler is imported only where it is asked for. by: kfusion, inductor."""

    @functools.cache
    def made() -> Any:
        import torch

        from kfusion._torch_compile.backend import backend

        return torch.compile(function, dynamic=False, backend=backend if by == "kfusion" else by)

    return lambda *arguments: made()(*arguments)


def _liger(module: str, name: str) -> Any:
    """A class of Liger's kernels, where they are installed."""
    try:
        return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name)
    except (ImportError, AttributeError):
        return None


# ---- cases ----


@dataclass(frozen=True)
class LossCase:
    """A step of one of the functions above. arrays: of the logits' size that it reads and writes; 0: products."""

    name: str
    draw: Callable[..., list[Any]]
    make: Callable[..., dict[str, Run]]
    arrays: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    suite: str = SUITE
    checked: tuple[int, ...] = ()  # the shape that is compared with float64, if not fewer rows of fewer classes

    @property
    def title(self) -> str:
        """The case in one line."""
        return f"{self.name}, {' x '.join(map(str, self.shape))} {self.dtype}"

    def measure(self, inputs: Inputs, options: Options, report: _timing.Progress) -> Measured:
        """Checks every version on fewer rows against float64, and times them in turn.

        Raises:
            AssertionError: kfusion's gradients are wrong.
        """
        import torch

        report(0.0, f"{self.title}: checking")
        errors, notes = self._errors(), []
        runs = {v: run for v, run in self.make(*self._drawn(self.shape)).items() if self._asked(v, options)}
        peaks: dict[str, int | None] = {}
        for version, run in list(runs.items()):
            report(0.0, f"{self.title}: {version}, memory")
            try:
                peaks[version] = memory.peak(run, self.device)
            except Exception as failure:  # of a peer that has no room, or does not compile
                if version.startswith("fused"):
                    raise
                del runs[version]
                notes.append(f"{self.title}: {version} is left out: {str(failure).splitlines()[0]}")
        x = torch.zeros(self._elements(), device=self.device, dtype=getattr(torch, self.dtype))
        y = torch.zeros_like(x)
        clock: _timing.Clock = (
            _timing.CudaClock(flush=True, device=0) if self.device == "cuda" else _timing.CpuClock(flush=True)
        )
        samples = _timing.measure(
            [_timing.Variant(name, run, not name.startswith("fused")) for name, run in runs.items()],
            _timing.Variant("copy", lambda: y.copy_(x)),
            clock,
            repeats=options.repeats,
            budget_s=_BUDGET_S[self.device] / (4 if options.quick else 1),
            seed=0,
            progress=lambda done, what: report(done, f"{self.title}: {what}"),
        )
        moved, copied = self.arrays * x.nbytes, 2 * x.nbytes
        rows = [self._row(v, s, moved, copied, errors.get(v), peaks.get(v)) for v, s in samples.items()]
        if any(peaks.values()):
            said = ", ".join(f"{v} {p / 1e9:.2f}" for v, p in peaks.items() if p is not None)
            notes.append(f"{self.title}: GB at most beside its arguments: {said}")
        library = "torch" if self.device == "cuda" else "torch cpu"
        return Measured(self.suite, self.name, self.shape, self.dtype, library, moved, tuple(rows), tuple(notes))

    def _elements(self) -> int:
        return self.shape[0] * self.shape[-1]

    def _asked(self, version: str, options: Options) -> bool:
        """Liger's kernels are measured where torch is."""
        family = version.partition(",")[0]
        return family == "fused" or ("torch" if family == LIGER else family) in options.asked(PEERS)

    def _drawn(self, shape: tuple[int, ...]) -> list[Any]:
        import torch

        torch.manual_seed(0)
        return self.draw(Draw(self.device, getattr(torch, self.dtype)), *shape)

    def _errors(self) -> dict[str, float]:
        """Errors of results and gradients of a smaller case, against eager torch in float64."""
        small = self._drawn(self.checked or (_CHECKED[0], *self.shape[1:-1], _CHECKED[1]))
        exact = self.make(*(a.double() if a.is_floating_point() else a for a in small))["torch"]()
        runs = {v: run for v, run in self.make(*small).items() if v == "torch" or v.startswith("fused")}
        errors = {v: error(list(run()), list(exact)) for v, run in runs.items()}
        for version, found in errors.items():
            if not found <= _LOOSER * errors["torch"] + 1e-6:
                raise AssertionError(f"{self.title}: {version} is wrong by {found:.1e}, torch by {errors['torch']:.1e}")
        return errors

    def _row(
        self, version: str, taken: _timing.Samples, moved: int, copied: int, error: float | None, peak: int | None
    ) -> Row:
        is_head = self.arrays == 0 and self.suite == SUITE and version != "copy"
        flops = 6.0 * math.prod(self.shape) if is_head else None
        return row_of(version, _STATE, taken, moved=moved, copied=copied, error=error, held_bytes=peak, flops=flops)


def cases(dtype: str, device: str, smaller: int = 1) -> Iterator[LossCase]:
    """Nothing where torch is not installed. Rows are divided by `smaller`."""
    if importlib.util.find_spec("torch") is None:
        return
    rows, classes = _ROWS[device]
    shape = rows // smaller, classes
    yield LossCase("softmax and its gradient", _logits, _softmax, 4, shape, dtype, device)
    yield LossCase("cross entropy and its gradient", _labelled, _cross_entropy, 2, shape, dtype, device)
    name = "linear + cross entropy and gradients"
    for rows, width, classes in _HEADS[device]:
        yield LossCase(name, _rows_and_weight, _head, 0, (rows // smaller, width, classes), dtype, device)
