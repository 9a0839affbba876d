"""Random programs as functions of torch's tensors: in torch's own functions, which torch differentiates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

import kfusion as kf

from . import autograd_steps, sized, user_functions, writing
from .program import NUMPY, Language


# The functions that programs call; their text is part of a reproducer.
def dims(x: Any, axis: Any) -> Any:
    return tuple(range(x.ndim)) if axis is None else axis


def softmax(x: Any, axis: Any) -> Any:
    return F.softmax(x, axis) if isinstance(axis, int) else torch.exp(log_softmax(x, axis))


def log_softmax(x: Any, axis: Any) -> Any:
    return F.log_softmax(x, axis) if isinstance(axis, int) else x - torch.logsumexp(x, dims(x, axis), True)


def layer_norm(x: Any, axis: Any) -> Any:
    if axis == x.ndim - 1:
        return F.layer_norm(x, x.shape[-1:], eps=0.25)
    variance, mean = torch.var_mean(x, dims(x, axis), correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 0.25)


def product(x: Any, axis: Any, keepdim: bool) -> Any:
    axes = dims(x, axis)
    for a in sorted((axes,) if isinstance(axes, int) else axes, reverse=True):
        x = torch.prod(x, a, keepdim)
    return x


def kept(x: Any, axis: int, seed: int) -> Any:
    bits = kf.philox(torch.arange(x.shape[axis]), 5, seed)
    return torch.where((bits < 2**31).reshape([-1 if a == axis else 1 for a in range(x.ndim)]), x, 0)


def set_in_copies(x: Any) -> Any:
    x = x * 1
    for copy in (torch.roll(x, 0, 0), F.pad(x, (0, 0)), x.tile(1), x.to(x.dtype, copy=True)):
        copy[:1] = 2
    return x * 1


def padded(x: Any, widths: Any, mode: str) -> Any:
    if mode == "constant":
        return F.pad(x, [n for pair in reversed(widths) for n in pair])
    for axis, (before, after) in enumerate(widths):
        places = torch.arange(-before, x.shape[axis] + after).clamp(0, x.shape[axis] - 1)
        x = x.index_select(axis, places)
    return x


def filled_zeros(x: Any) -> Any:
    y = torch.zeros(x.shape, dtype=x.dtype)
    y[1:] = x[1:]
    return y


def taken_along(x: Any, i: Any, axis: int) -> Any:
    places = torch.remainder(i, x.shape[axis]).long()
    return torch.take_along_dim(x, places.reshape([-1 if a == axis else 1 for a in range(x.ndim)]), axis)


def _part(x: str, index: Sequence[Any]) -> str:
    """torch has no slices in steps below 0."""
    reversed_axes = [a for a, s in enumerate(index) if s is not None and s.step == -1]
    if reversed_axes:
        return f"{x}.flip({reversed_axes})"
    return str(NUMPY.texts["slice"](x, index))  # type: ignore[operator]


def _reduction(name: str, more: str = "") -> Any:
    return lambda x, axis, keepdim: f"torch.{name}({x}, dims({x}, {axis}), {keepdim}{more})"


_OTHERS: dict[str, Any] = {
    **sized.IN_TORCH,
    **autograd_steps.IN_TORCH,
    **{f: f"F.{f}({{0}})" for f in ("silu", "gelu", "softplus")},
    **{f: f"torch.{f}({{0}})" for f in ("sigmoid", "relu")},
    "divide": "{0}.double() / {1}",
    "rint": "torch.round({0})",
    "clip": "torch.clamp({0}, -1, 1)",
    "kept": lambda x, axis, seed: f"kept({x}, {axis}, {seed})",
    "cast": lambda x, dtype: f"{x}.to(torch.{dtype})",
    "slice": _part,
    "transpose": lambda x, axes: f"{x}.permute({axes})",
    "broadcast": lambda x, shape: f"torch.broadcast_to({x}, {shape})",
    "concatenate": lambda x, y, axis: f"torch.cat(({x}, {y}), {axis})",
    "stack": lambda x, y, axis: f"torch.stack(({x}, {y}), {axis})",
    "pad": lambda x, widths, mode: f"padded({x}, {widths}, {mode!r})",
    "take": "{0}[{1}.long()]",
    "along": lambda x, i, axis: f"taken_along({x}, {i}, {axis})",
    "convolve": "F.conv2d({0}[None, None], {1}[None, None])[0, 0]",
    "sort": "torch.sort({0}, -1).values",
    "cumsum": lambda x, axis: f"torch.cumsum({x}, {axis})",
    **{f: _reduction(f) for f in ("sum", "any", "all", "logsumexp")},
    "mean": _reduction("mean", ", dtype=torch.float64"),
    "max": _reduction("amax"),
    "min": _reduction("amin"),
    "prod": lambda x, axis, keepdim: f"product({x}, {axis}, {keepdim})",
    **{
        f: lambda x, axis, keepdim, f=f: f"torch.{f}({x}, dims({x}, {axis}), correction=0, keepdim={keepdim})"
        for f in ("var", "std")
    },
    **{f: lambda x, axis, keepdim, f=f: f"torch.{f}({x}, {axis}, {keepdim})" for f in ("argmax", "argmin")},
    **{f: lambda x, axis, f=f: f"{f}({x}, {axis})" for f in ("softmax", "log_softmax")},
    "rmsnorm": "F.rms_norm({0}, {1}.shape, {1}, 0.25)",
    "attention": lambda q, k, v, causal: f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal={causal})",
    "cross_entropy": "F.cross_entropy({0}, {1})",
    "layernorm": lambda x, axis: f"layer_norm({x}, {axis})",
}
_FUNCTIONS = (dims, softmax, log_softmax, layer_norm, product, kept, padded, taken_along, filled_zeros, set_in_copies)
TORCH = Language(
    ("import torch", "from torch.nn import functional as F", "import kfusion as kf"),
    {op: text.replace("np.", "torch.") if isinstance(text, str) else text for op, text in NUMPY.texts.items()}
    | _OTHERS,
    (*writing.FUNCTIONS, *_FUNCTIONS, *user_functions.FUNCTIONS),
)
