"""Products with what follows them, beside the library's bare products: what a fused epilogue or reduction costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import kfusion as kf
from kfusion import _timing

from .inputs import Inputs
from .models import error, tensors
from .options import Options
from .results import Measured, Row, row_of

PEERS = ("torch", "torch.compile", "torch.compile.max")
BARE = "product"  # the yardstick: the library's products alone, into memory that is there
STATE = "cold"
VERSIONS = ("fused", "unfused", *PEERS, "torch, one call", BARE)
_BUDGET_S = {"cuda": 1.0, "cpu": 8.0}
_LOOSER = 2.0  # how much less exact than eager the fused version may be, against float64


@dataclass(frozen=True)
class ProductCase:
    """A function of torch tensors around products of m x k by k x n.

    shape: (m, k, n), of batches (b, m, k, n). draw: the arguments, from a function that draws a tensor of a shape
    and scale. bare: from the arguments a call of the products alone. flops: of the products. by_row: the arguments
    that have a row, or a batch, for each of the result's; some of these are compared with float64.
    """

    suite: str
    name: str
    function: Callable[..., Any]
    shape: tuple[int, ...]
    dtype: str
    draw: Callable[..., tuple[Any, ...]]
    bare: Callable[..., Callable[[], Any]]
    flops: float
    by_row: tuple[int, ...] = (0,)
    one_call: Callable[..., Any] | None = None  # one call of the library for all of it
    formula: Callable[..., Any] | None = None  # the function as torch alone has it, for the others

    @property
    def title(self) -> str:
        """The case in one line."""
        return f"{self.name}, {'x'.join(map(str, self.shape))} {self.dtype}"

    def measure(self, inputs: Inputs, options: Options, report: _timing.Progress) -> Measured:
        """Checks every version against float64 on some rows, and times them in turn, with cold caches.

        Raises:
            AssertionError: kfusion's result is wrong.
        """
        import torch

        report(0.0, f"{self.title}: drawing")
        dtype, device = getattr(torch, self.dtype), options.device
        generator = torch.Generator(device).manual_seed(0)

        def random(*shape: int, scale: float = 1.0) -> Any:
            return (torch.randn(*shape, device=device, generator=generator) * scale).to(dtype)

        arguments = self.draw(random, *self.shape)
        fused = kf.fuse(self.function)
        runs: dict[str, Callable[[], Any]] = {"fused": _into(fused, arguments)}
        runs["unfused"] = _into(fused.unfused, arguments)
        runs |= {peer: _call(_peer(self.formula or self.function, peer), arguments) for peer in options.asked(PEERS)}
        if self.one_call is not None:
            runs["torch, one call"] = _call(self.one_call, arguments)
        errors, notes = self._checked(runs, arguments, report)
        clock: _timing.Clock = (
            _timing.CudaClock(flush=True, device=0) if device == "cuda" else _timing.CpuClock(flush=True)
        )
        bare = self.bare(*arguments)
        bare()
        with torch.no_grad():
            samples = _timing.measure(
                [_timing.Variant(name, runs[name], name not in ("fused", "unfused")) for name in errors],
                _timing.Variant(BARE, bare),
                clock,
                repeats=options.repeats,
                budget_s=_BUDGET_S[device] / (4 if options.quick else 1),
                seed=0,
                progress=lambda done, what: report(done, f"{self.title}: {what}"),
            )
        launches = fused.plan(*arguments).fused.launches
        rows = [self._row(name, taken, errors.get(name), launches) for name, taken in samples.items()]
        library = "torch" if device == "cuda" else "torch cpu"
        return Measured(self.suite, self.name, self.shape, self.dtype, library, 0, tuple(rows), tuple(notes))

    def _checked(
        self, runs: dict[str, Callable[[], Any]], arguments: tuple[Any, ...], report: _timing.Progress
    ) -> tuple[dict[str, float], list[str]]:
        """Errors against float64 by version; notes on who was left out."""
        import torch

        report(0.0, f"{self.title}: checking")
        rows = 128 if arguments[0].dim() == 2 else 1
        few = [a[:rows] if i in self.by_row else a for i, a in enumerate(arguments)]
        with torch.no_grad():
            exact = [t.double() for t in tensors((self.formula or self.function)(*[_wide(a) for a in few]))]
            errors: dict[str, float] = {}
            notes = []
            for version, run in runs.items():
                try:
                    got = [g[: len(e)] if e.dim() else g for g, e in zip(tensors(run()), exact, strict=True)]
                except Exception as failure:
                    if version == "fused":
                        raise
                    notes.append(f"{version} is left out: {str(failure).splitlines()[0]}")
                    continue
                errors[version] = error(got, exact)
        if errors["fused"] > _LOOSER * errors.get("torch", errors["unfused"]) + 1e-6:
            raise AssertionError(f"{self.title}: fused is wrong by {errors['fused']:.1e}")
        return errors, notes

    def _row(self, version: str, taken: _timing.Samples, error: float | None, launches: int) -> Row:
        counted = launches if version == "fused" else None
        return row_of(version, STATE, taken, error=error, launches=counted, flops=self.flops)


def _wide(a: Any) -> Any:
    return a.double() if a.is_floating_point() else a


def _into(f: Any, arguments: tuple[Any, ...]) -> Callable[[], Any]:
    out = f(*arguments)
    return (lambda: f(*arguments, out=out)) if hasattr(out, "untyped_storage") else lambda: f(*arguments)


def _call(f: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: f(*arguments)


def _peer(f: Callable[..., Any], peer: str) -> Callable[..., Any]:
    import torch

    if peer == "torch":
        return f
    compiled: Callable[..., Any] = torch.compile(
        f, dynamic=False, mode="max-autotune-no-cudagraphs" if peer.endswith("max") else None
    )
    return compiled


# ---- the functions --------------------------------------------------------------------------------------------------


def linear_gelu(x: Any, w: Any, b: Any) -> Any:
    """gelu(x w^T + b), by tanh."""
    from torch.nn import functional as F

    return F.gelu(F.linear(x, w, b), approximate="tanh")


def linear_residual(x: Any, w: Any, b: Any, residual: Any) -> Any:
    """x w^T + b + residual."""
    from torch.nn import functional as F

    return F.linear(x, w, b) + residual


def swiglu(x: Any, gate: Any, up: Any) -> Any:
    """silu(x gate^T) (x up^T)."""
    from torch.nn import functional as F

    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def queries_keys_values(x: Any, q: Any, k: Any, v: Any) -> Any:
    """x q^T, x k^T and x v^T, with a quarter as many keys and values as queries."""
    from torch.nn import functional as F

    return F.linear(x, q), F.linear(x, k), F.linear(x, v)


def splade(h: Any, w: Any, b: Any) -> Any:
    """max over the sequence of log1p(relu(h w^T + b))."""
    import torch
    from torch.nn import functional as F

    return torch.log1p(torch.relu(F.linear(h, w, b))).amax(1)


def linear_cross_entropy(x: Any, w: Any, labels: Any) -> Any:
    """cross entropy of x w^T, a loss for each row."""
    from torch.nn import functional as F

    return F.cross_entropy(F.linear(x, w), labels, reduction="none")


def linear_max(x: Any, w: Any) -> Any:
    """max of each row of x w^T."""
    from torch.nn import functional as F

    return F.linear(x, w).amax(-1)


def _addmm_activation(x: Any, w: Any, b: Any) -> Any:
    import torch

    return torch._addmm_activation(b, x, w.t(), use_gelu=True)


def _bare(*which: int) -> Callable[..., Callable[[], Any]]:
    """Products of the first argument with those."""

    def make(*arguments: Any) -> Callable[[], Any]:
        import torch

        x = arguments[0].reshape(-1, arguments[0].shape[-1])
        # The library's kernels of half types are several times slower where rows are no multiple of 16 bytes.
        weights = [arguments[i][: len(arguments[i]) // 8 * 8].t() for i in which]
        out = [torch.empty(len(x), w.shape[1], dtype=x.dtype, device=x.device) for w in weights]

        def run() -> None:
            for w, y in zip(weights, out, strict=True):
                torch.mm(x, w, out=y)

        return run

    return make


def _linear(random: Any, m: int, k: int, n: int) -> tuple[Any, ...]:
    return random(m, k), random(n, k, scale=k**-0.5), random(n)


def _with_residual(random: Any, m: int, k: int, n: int) -> tuple[Any, ...]:
    return (*_linear(random, m, k, n), random(m, n))


def _gates(random: Any, m: int, k: int, n: int) -> tuple[Any, ...]:
    return random(m, k), random(n, k, scale=k**-0.5), random(n, k, scale=k**-0.5)


def _grouped(random: Any, m: int, k: int, n: int) -> tuple[Any, ...]:
    return random(m, k), *(random(columns, k, scale=k**-0.5) for columns in (n, n // 4, n // 4))


def _sequences(random: Any, b: int, s: int, k: int, v: int) -> tuple[Any, ...]:
    return random(b, s, k), random(v, k, scale=k**-0.5), random(v)


def _labelled(random: Any, m: int, k: int, v: int) -> tuple[Any, ...]:
    import torch

    x = random(m, k)
    return x, random(v, k, scale=k**-0.5), torch.randint(v, (m,), device=x.device)


_WIDE = ((8192, 4096, 16384), (4096, 4096, 4096), (8192, 1024, 1024), (512, 4096, 4096), (16, 4096, 4096))
_SPLADE = ((32, 256, 768, 30522), (128, 512, 768, 30522), (16, 512, 768, 250002))
_ENTROPY = ((8192, 4096, 32768), (8192, 4096, 128256))
_CPU = {
    "linear": ((4096, 1024, 4096), (4096, 256, 1024)),
    "splade": ((4, 128, 768, 30522),),
    "entropy": ((1024, 768, 32768),),
}


def cases(suite: str, dtype: str, device: str) -> Iterator[ProductCase]:
    """All cases in one dtype."""
    gpu = device == "cuda"

    def case(
        function: Any, shape: tuple[int, ...], draw: Any, bare: Any, products: float = 1, **more: Any
    ) -> ProductCase:
        flops = 2.0 * products
        for extent in shape:
            flops *= extent
        name = (function.__doc__ or "").rstrip(".")
        return ProductCase(suite, name, function, shape, dtype, draw, bare, flops, **more)

    for shape in _WIDE if gpu else _CPU["linear"]:
        yield case(linear_gelu, shape, _linear, _bare(1), one_call=_addmm_activation if gpu else None)
    for shape in _WIDE[:3] if gpu else _CPU["linear"][:1]:
        yield case(linear_residual, shape, _with_residual, _bare(1), by_row=(0, 3))
    for shape in (_WIDE[0], *_WIDE[2:]) if gpu else _CPU["linear"][:1]:
        yield case(swiglu, shape, _gates, _bare(1, 2), 2)
    for shape in ((16, 4096, 4096), (512, 4096, 4096), (2048, 4096, 4096)) if gpu else ():
        yield case(queries_keys_values, shape, _grouped, _bare(1, 2, 3), 1.5)
    for shape in _SPLADE if gpu else _CPU["splade"]:
        yield case(splade, shape, _sequences, _bare(1))
    for shape in _ENTROPY if gpu else _CPU["entropy"]:
        yield case(linear_cross_entropy, shape, _labelled, _bare(1), by_row=(0, 2))
    for shape in _ENTROPY[:1] if gpu else _CPU["entropy"]:
        yield case(linear_max, shape, lambda random, m, k, v: _labelled(random, m, k, v)[:2], _bare(1))
