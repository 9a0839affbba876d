"""torch.autocast: torch chooses dtypes there, call by call, and so do traced functions of torch."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

from .._graph.source import not_traced
from .._graph.structure import leaves
from .._graph.values import Traced
from .._ops import primitives as p
from .._ops.views import astype
from .._spec import is_array

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
    "norm": ("norm", "linalg_vector_norm"),
    "vector_norm": ("linalg_vector_norm",),
    "logsumexp": ("logsumexp", "exp", "log", "sum"),
    "power": ("pow",),
    "square": ("pow",),
    **dict.fromkeys(("hstack", "vstack", "dstack", "column_stack", "row_stack", "concat", "concatenate"), ("cat",)),
}
# What torch's documentation says of the functions that have a version for autocast, by their own names there.
_LOWER = frozenset(
    (
        *("addmm", "bmm", "conv2d", "linear", "matmul", "mm", "mv", "prelu", "scaled_dot_product_attention"),
        *("addbmm", "addmv", "addr", "baddbmm"),
    )
)
_FLOAT32 = frozenset(
    (
        *("exp", "expm1", "log", "log1p", "log2", "log10", "pow", "reciprocal", "rsqrt", "softplus"),
        *("acos", "asin", "cosh", "sinh", "tan"),
        *("sum", "prod", "softmax", "log_softmax", "logsumexp", "norm", "linalg_vector_norm", "layer_norm", "rms_norm"),
        *("cross_entropy_loss", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"),
        *("binary_cross_entropy_with_logits", "poisson_nll_loss", "soft_margin_loss", "margin_ranking_loss"),
        *("multi_margin_loss", "multilabel_margin_loss", "hinge_embedding_loss", "cosine_embedding_loss"),
        *("triplet_margin_loss", "cosine_similarity", "group_norm", "dist", "erfinv"),
        *("reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d", "replication_pad3d"),
    )
)
_WIDEST = frozenset(("atan2", "dot", "addcmul", "addcdiv", "cat", "stack"))
_CAST = ("float16", "bfloat16", "float32")  # what is cast: float64 stays as it is


def cast(name: str, values: dict[Any, Any]) -> dict[Any, Any]:
    """The arguments of torch's function of that name, in the dtypes in which it computes under autocast.

    Raises:
        NotTraced: torch chooses dtypes by a rule that is not known here.
    """
    torch = sys.modules.get("torch")
    x: Any = next((v for v in leaves(values) if isinstance(v, Traced)), None)
    if torch is None or x is None or not torch._C._is_any_autocast_enabled() or values.get("dtype") is not None:
        return values
    device = str(getattr(x, "device", "cpu")).partition(":")[0]
    if not torch.is_autocast_enabled(device):
        return values
    dtype = _dtype(torch, name, device, values)
    return values if dtype is None else {key: _cast(x, value, dtype) for key, value in values.items()}


def active(device: str) -> Any:
    """torch's dtype of torch.autocast where the values on a device are computed in it, else None."""
    torch = sys.modules["torch"]
    kind = device.partition(":")[0]
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


@contextlib.contextmanager
def as_traced(device: str, dtype: Any) -> Iterator[None]:
    """torch.autocast as `active` found it."""
    with sys.modules["torch"].autocast(device.partition(":")[0], dtype=dtype, enabled=dtype is not None):
        yield


def _dtype(torch: Any, name: str, device: str, values: dict[Any, Any]) -> str | None:
    """The dtype that the function casts to; None where it casts nothing."""
    known = _listed(device.upper()) & set(_parts(name))
    if not known:
        return None
    lower = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    if known <= _LOWER:
        return lower
    if known <= _FLOAT32:
        return "float32"
    given = [dtype for dtype in map(_name, leaves(values)) if dtype]
    first, widest = next((dtype for dtype in given if dtype in _CAST and dtype != lower), "float32"), set(given)
    if known <= _WIDEST and first != "float32":
        raise RuntimeError(f"kfusion.{name}: torch.autocast with {lower} has no rule for {first}")
    if known <= _WIDEST and (len(widest) == 1 or (widest <= set(_CAST) and "float32" in widest)):
        return "float32" if len(widest) > 1 else None
    hint = f'write the casts, and call under torch.autocast("{device}", enabled=False)'
    raise not_traced(f"torch.{name} under torch.autocast is not traced: torch would choose other dtypes", hint)


def _cast(x: Any, value: Any, dtype: str) -> Any:
    """A tensor of a float type, but of float64, as dtype, in a list or tuple too; anything else as it is."""
    if isinstance(value, (tuple, list)):
        return type(value)(_cast(x, v, dtype) for v in value)
    if _name(value) not in _CAST or _name(value) == dtype:
        return value
    return astype(x._tracer.lift(value, "torch"), dtype)


def _name(value: Any) -> str:
    if isinstance(value, Traced):
        return value._dtype
    return str(value.dtype).removeprefix("torch.") if is_array(value) else ""


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
