"""Programs in torch's words: how each step is written, in its dtypes and in float64, and a script that repeats one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .program import Language, Program
from .values import HALF


def _arange(x: str, n: int) -> str:
    return f"torch.arange({n}, device={x}.device)"


def _sdpa(q: str, k: str, v: str, *mask_and_rest: Any) -> str:
    *mask, causal, scale, grouped = mask_and_rest
    given = f", attn_mask={mask[0]}" if mask else ""
    return (
        f"F.scaled_dot_product_attention({q}, {k}, {v}{given}, is_causal={causal}, scale={scale}, enable_gqa={grouped})"
    )


SEEN = {
    "causal": "{i} >= {j}",
    "last": "{i} + {n} >= {j}",
    "window": "({i} - {j}).abs() < {n}",
    "some": "{i} * {j} != {n}",
}
_TEXTS: dict[str, Any] = {
    "turned": "{0}.transpose(-1, -2)",
    "matmul": "{0} @ {1}",
    **{name: f"{{0}} {sign} {{1}}" for name, sign in (("add", "+"), ("subtract", "-"), ("multiply", "*"))},
    "scale": lambda x, c, sign: f"{x} {sign} {c}",
    "capped": lambda x, c: f"{c} * torch.tanh({x} / {c})",
    **{name: f"torch.{name}({{0}})" for name in ("tanh", "relu", "exp", "sigmoid")},
    "repeated": lambda x, n: f"{x}.repeat_interleave({n}, -3)",
    "expanded": lambda x, n: f"{x}.unsqueeze(-3).expand(*{x}.shape[:-2], {n}, *{x}.shape[-2:]).flatten(-4, -3)",
    "seen": lambda x, s, t, kind, n: SEEN[kind].format(i=_arange(x, s) + "[:, None]", j=_arange(x, t), n=n),
    "distance": lambda x, s, t: f"({_arange(x, s)}[:, None] - {_arange(x, t)}).abs()",
    "where": lambda m, x, low: f"torch.where({m}, {x}, {low})",
    "filled": lambda m, x, low: f"{x}.masked_fill(~{m}, {low})",
    "masked": lambda m, x, low: f"{x} + torch.where({m}, 0.0, {low})",
    "view": lambda x, shape: f"{x}.reshape({shape})",
    "cast": lambda x, dtype: f"{x}.to(torch.{dtype})",
    "softmax": "F.softmax({0}, -1)",
    "weights": lambda x, dtype: f"F.softmax({x}, -1, dtype=torch.{dtype})",
    "exponentials": "torch.exp({0} - {0}.amax(-1, True))",
    "quotient": "{0} / {0}.sum(-1, keepdim=True)",
    "sdpa": _sdpa,
    "joined": "{0}.transpose(-2, -3).flatten(-2)",
    **{name: lambda x, axis, keep, name=name: f"torch.{name}({x}, {axis}, {keep})"
       for name in ("sum", "mean", "amax", "amin", "logsumexp")},
}  # fmt: skip
IMPORTS = ("import torch", "from torch.nn import functional as F")
OWN = Language(IMPORTS, _TEXTS, ())
_WIDE = {
    "cast": lambda x, dtype: f"{x}.double()",
    "weights": lambda x, dtype: f"F.softmax({x}, -1, dtype=torch.double)",
}
WIDE = Language(IMPORTS, {**_TEXTS, **_WIDE}, ())  # in float64, and nothing is rounded


@dataclass
class TorchProgram(Program):
    """In torch's words. Its results and gradients are held to float64 beside the error of torch's own."""

    def source(self, language: Language = OWN) -> str:
        return super().source(language)

    def function(self, language: Language = OWN, scope: dict[str, Any] | None = None) -> Any:
        return super().function(language, scope)

    @property
    def dtypes(self) -> set[str]:
        """The dtypes of floats, on the way as well."""
        cast = (str(s.constants[0]) for s in self.steps if s.op in ("cast", "weights"))
        return {*(x.dtype.name for x in self.inputs if x.dtype != bool), *cast}

    @property
    def jumps(self) -> bool:
        """Whether gradients are others where half types round otherwise: at a bend, or among maxima."""
        return not self.dtypes.isdisjoint(HALF) and any(s.op in ("relu", "amax", "amin") for s in self.steps)

    def reproducer(self) -> str:
        lines = [*IMPORTS, "import kfusion as kf", "", self.source()]
        for name, x in zip(self.names, self.inputs, strict=False):
            strides = tuple(s // x.itemsize for s in x.strides)
            once = tuple(1 if s == 0 else n for n, s in zip(x.shape, strides, strict=True))
            given = f"torch.rand({once}) < 0.7" if x.dtype == bool else f"torch.randn({once})"
            made = f"torch.empty_strided({once}, {strides}, dtype=torch.{x.dtype}).copy_({given})"
            lines.append(f"{name} = {made}" + (f".expand({x.shape})" if once != x.shape else ""))
        arguments = ", ".join(self.names[: len(self.inputs)])
        lines += [f"for got, want in zip(kf.fuse(f)({arguments}), f({arguments})):"]
        lines += ["    print((got - want).abs().max())", f"print(kf.fuse(f).plan({arguments}))"]
        return "\n".join(lines)
