"""torch.autocast: torch chooses dtypes there, call by call; a graph holds those that the function asks for."""

from __future__ import annotations

import functools
import sys
from typing import Any

from .._graph.source import trace_error
from .._ops import primitives as p

# Functions that torch has under another name, or makes of others.
_PARTS = {
    "cross_entropy": ("cross_entropy_loss", "log_softmax", "nll_loss"),
    "linalg_norm": ("linalg_vector_norm",),
    "normalize": ("norm", "linalg_vector_norm"),
    "softmin": ("softmax",),
    "multilabel_soft_margin_loss": ("sum",),
    "gaussian_nll_loss": ("log", "pow"),
    "pairwise_distance": ("norm", "linalg_vector_norm"),
    "nanmean": ("sum",),
    "trapezoid": ("sum",),
    "float_power": ("pow",),
    "ldexp": ("pow",),
    "norm": ("norm", "linalg_vector_norm"),
    "vector_norm": ("linalg_vector_norm",),
    "logsumexp": ("logsumexp", "exp", "log", "sum"),
    "rms_norm": ("rms_norm", "pow", "rsqrt"),
    "power": ("pow",),
}


def require_unchanged(name: str, x: Any) -> None:
    """Raises a TraceError where torch.autocast is on and would compute the function in other dtypes than x's."""
    torch = sys.modules.get("torch")
    if torch is None or not torch._C._is_any_autocast_enabled():
        return
    device = str(getattr(x, "device", "cpu")).partition(":")[0]
    if torch.is_autocast_enabled(device) and not _listed(device.upper()).isdisjoint(_parts(name)):
        dtype = str(torch.get_autocast_dtype(device))
        what = f"torch.{name} under torch.autocast is not traced: torch would choose other dtypes"
        hint = f'write x.to({dtype}) where it is wanted, and call under torch.autocast("{device}", enabled=False)'
        raise trace_error(what, hint)


def _parts(name: str) -> tuple[str, ...]:
    plain = name.strip("_").removeprefix("r") if name.startswith("__") else name
    row = p.MAPS.get(plain)
    spellings = tuple(n for n, made in p.MAPS.items() if made is row) if row else (plain,)
    return _PARTS.get(plain, ()) + spellings


@functools.cache
def _listed(device: str) -> frozenset[str]:
    """The functions of which torch has a version for autocast on such devices."""
    c = sys.modules["torch"]._C
    names = [n for n in c._dispatch_get_all_op_names() if n.startswith("aten::")]
    listed = [n for n in names if c._dispatch_has_kernel_for_dispatch_key(n, f"Autocast{device}")]
    return frozenset(n.removeprefix("aten::").partition(".")[0] for n in listed)
