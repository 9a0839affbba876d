"""Forward and backward passes on the CPU, beside torch's own, as a fraction of a copy's rate."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import kfusion as kf
from kfusion import _timing

from .inputs import Inputs
from .options import Options
from .results import Measured, row_of

SUITE = "gradients"
PEERS = ("torch", "torch.compile")
HOT, CORE = "hot", "one core"  # wall time of all threads; CPU time of one, which other work on the machine leaves alone
_BUDGET_S = 2.0
_COPIED = 1 << 28  # bytes: by their copy's time others are computed
_SHAPES = ((2048, 2048), (512, 8192), (8192, 256))
_IMAGES = (32, 64, 32, 32)
_TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 4e-3, "float64": 1e-10}


# ---- functions -------------------------------------------------------------------------------------------------------


def _layernorm(x: Any, w: Any, b: Any) -> Any:
    from torch.nn import functional as F

    return F.layer_norm(x, x.shape[-1:], w, b)


def _rmsnorm(x: Any, w: Any) -> Any:
    from torch.nn import functional as F

    return F.rms_norm(x, x.shape[-1:], w, 1e-6)


def _softmax(x: Any) -> Any:
    import torch

    return torch.softmax(x, -1)


def _log_softmax(x: Any) -> Any:
    import torch

    return torch.log_softmax(x, -1)


def _cross_entropy(x: Any, target: Any) -> Any:
    from torch.nn import functional as F

    return F.cross_entropy(x, target)


def _gelu(x: Any) -> Any:
    from torch.nn import functional as F

    return F.gelu(x)


def _gate(x: Any, y: Any) -> Any:
    from torch.nn import functional as F

    return F.silu(x) * y


def _relu_layernorm(x: Any, w: Any, b: Any) -> Any:
    return _layernorm(x.relu(), w, b)


def _gelu_layernorm(x: Any, w: Any, b: Any) -> Any:
    return _gelu(_layernorm(x, w, b))


def _bias_gelu(x: Any, b: Any) -> Any:
    return _gelu(x + b)


def _batch_norm(x: Any, w: Any, b: Any) -> Any:
    from torch.nn import functional as F

    return F.batch_norm(x, None, None, w, b, training=True)


def _column_sums(g: Any) -> Any:
    return g.sum(0)


# ---- cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GradientCase:
    """A function's results and the gradients of all its arrays.

    arguments: what it takes behind x: "x" for an array of x's shape, "row" for one of its last axis, "channel" for one
    of its axis 1, "class" for a column's number of each row. arrays: of x's size that both passes read and write at
    least.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    arrays: int
    shape: tuple[int, ...]
    dtype: str
    layout: str = "torch cpu"
    suite: str = SUITE

    @property
    def title(self) -> str:
        """The case in one line."""
        last = ", channels last" if self._is_last else ""
        return f"{self.name}, {' x '.join(map(str, self.shape))} {self.dtype}{last}"

    @property
    def _is_last(self) -> bool:
        return self.layout == "channels last"

    def measure(self, inputs: Inputs, options: Options, report: _timing.Progress) -> Measured:
        """Checks the gradients against float64's, and times both passes of all versions in turn.

        Raises:
            AssertionError: kfusion's gradients are wrong.
        """
        import torch

        report(0.0, f"{self.title}: drawing")
        given, gradient = self._drawn()
        versions: dict[str, Callable[..., Any]] = {"fused": kf.fuse(self.function)}
        versions |= {peer: self._peer(peer) for peer in options.asked(PEERS)}
        exact = self._gradients(self.function, *_in_float64(given, gradient))
        errors, notes = {}, []
        for version, function in list(versions.items()):
            report(0.0, f"{self.title}: {version}, first call")
            try:
                errors[version] = _error(self._gradients(function, given, gradient), exact)
            except Exception as failure:
                if version == "fused":
                    raise
                notes.append(f"{version} is left out: {str(failure).splitlines()[0]}")
                del versions[version]
        if not errors["fused"] <= _TOLERANCE[self.dtype]:
            raise AssertionError(f"{self.title}: gradients are wrong by {errors['fused']:.1e}")
        moved = self.arrays * given[0].numel() * given[0].element_size()
        copied = min(_COPIED, 4 * options.nbytes) if options.nbytes else _COPIED
        x = torch.zeros(copied // 2, dtype=torch.uint8)
        y = torch.zeros_like(x)
        rows = []
        for state in (HOT, CORE):
            with _threads(1 if state == CORE else None):
                variants = [
                    _timing.Variant(v, self._call(f, given, gradient), v != "fused") for v, f in versions.items()
                ]
                for variant in variants:
                    variant.run()  # torch compiles for a number of threads
                samples = _timing.measure(
                    variants,
                    _timing.Variant("copy", lambda: y.copy_(x)),
                    _CoreClock() if state == CORE else _timing.CpuClock(flush=False),
                    repeats=options.repeats,
                    budget_s=_BUDGET_S / (4 if options.quick else 1),
                    seed=0,
                    progress=lambda done, what: report(done, f"{self.title}: {what}"),
                )
            rows += [
                row_of(name, state, taken, moved=moved, copied=copied, error=errors.get(name))
                for name, taken in samples.items()
            ]
        return Measured(SUITE, self.name, self.shape, self.dtype, self.layout, moved, tuple(rows), tuple(notes))

    def _peer(self, name: str) -> Callable[..., Any]:
        import torch

        if name == "torch":
            return self.function
        torch._dynamo.reset()
        compiled: Callable[..., Any] = torch.compile(self.function, dynamic=False)
        return compiled

    def _drawn(self) -> tuple[list[Any], Any]:
        """The arguments, and a gradient of the result."""
        import torch

        torch.manual_seed(0)
        dtype = getattr(torch, self.dtype)
        shapes = {"x": self.shape, "row": self.shape[-1:], "channel": self.shape[1:2]}
        given = []
        for kind in ("x", *self.arguments):
            if kind == "class":
                given.append(torch.randint(0, self.shape[-1], self.shape[:1]))
                continue
            x = torch.randn(shapes[kind]).to(dtype)
            x = x.to(memory_format=torch.channels_last) if self._is_last and kind == "x" else x
            given.append(x.requires_grad_(self.function is not _column_sums))
        with torch.no_grad():
            result = self.function(*given)
        return given, torch.randn_like(result) if result.dim() else torch.ones_like(result)

    def _gradients(self, function: Callable[..., Any], given: list[Any], gradient: Any) -> list[Any]:
        import torch

        result = function(*given)
        if not result.requires_grad:
            return [result]
        return list(torch.autograd.grad(result, [x for x in given if x.requires_grad], gradient))

    def _call(self, function: Callable[..., Any], given: list[Any], gradient: Any) -> Callable[[], Any]:
        return lambda: self._gradients(function, given, gradient)


def _in_float64(given: list[Any], gradient: Any) -> tuple[list[Any], Any]:
    exact = [x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in given]
    return exact, gradient.double()


def _error(got: list[Any], exact: list[Any]) -> float:
    """The largest over the results of |got - exact| / |exact|, in the 2-norm."""
    return max(float((g.double() - e).norm() / e.norm()) for g, e in zip(got, exact, strict=True))


class _CoreClock:
    """CPU time of the calling thread, of a call that has run before."""

    def sample(self, run: Callable[[], Any]) -> list[float]:
        run()
        start = time.thread_time_ns()
        run()
        return [(time.thread_time_ns() - start) / 1e3]


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """So many in kfusion and in torch; None leaves them."""
    import torch

    before = kf.get_num_threads(), torch.get_num_threads()
    if count is not None:
        kf.set_num_threads(count)
        torch.set_num_threads(count)
    try:
        yield
    finally:
        kf.set_num_threads(before[0])
        torch.set_num_threads(before[1])


_ROW_CASES: tuple[tuple[str, Callable[..., Any], tuple[str, ...], int], ...] = (
    ("layernorm", _layernorm, ("row", "row"), 5),
    ("rmsnorm", _rmsnorm, ("row",), 5),
    ("softmax", _softmax, (), 5),
    ("log_softmax", _log_softmax, (), 5),
    ("cross_entropy", _cross_entropy, ("class",), 3),
    ("gelu", _gelu, (), 5),
    ("silu(x) y", _gate, ("x",), 8),
    ("layernorm(relu(x))", _relu_layernorm, ("row", "row"), 5),
    ("gelu(layernorm(x))", _gelu_layernorm, ("row", "row"), 5),
    ("gelu(x + b)", _bias_gelu, ("row",), 5),
    ("column sums alone", _column_sums, (), 1),
)


def cases(dtype: str, options: Options) -> Iterator[GradientCase]:
    """All in one dtype; nothing where torch, whose gradients they are, is not installed."""
    if importlib.util.find_spec("torch") is None:
        return
    for rows, cols in _SHAPES[:1] if options.quick else _SHAPES:
        shape = (min(rows, max(1, options.nbytes // (4 * cols))) if options.nbytes else rows), cols
        for name, function, arguments, arrays in _ROW_CASES:
            yield GradientCase(name, function, arguments, arrays, shape, dtype)
    images = (2, *_IMAGES[1:2], 4, 4) if options.nbytes else _IMAGES
    for layout in ("torch cpu", "channels last"):
        yield GradientCase("batch norm", _batch_norm, ("channel", "channel"), 5, images, dtype, layout)
