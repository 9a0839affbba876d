"""Composites that other libraries have as one function: torch's softmax is one kernel, so it is measured as one.

A `Native` looks at a call's arguments (of arrays, their nodes) and returns what computes it from the arrays, by name,
or None where the library's function does not do that.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

Arguments = Mapping[str, Any]
Native = Callable[[Arguments], Callable[..., Any] | None]


def of_module(m: Any) -> dict[str, Native]:
    """The library's own calls in a module like NumPy."""

    def spread(function: Callable[..., Any]) -> Native:
        return lambda a: lambda x: function(x, axis=a["axis"], ddof=a["correction"], keepdims=a["keepdims"])

    return {"var": spread(m.var), "std": spread(m.std)}


def of_torch(torch: Any) -> dict[str, Native]:
    """The library's own calls in torch.nn.functional."""
    F = torch.nn.functional

    def activation(function: Callable[..., Any], *keywords: str) -> Native:
        return lambda a: lambda x: function(x, **{k: a[k] for k in keywords})

    def along_one_axis(function: Callable[..., Any]) -> Native:
        def native(a: Arguments) -> Callable[..., Any] | None:
            axes = _axes(a)
            return (lambda x: function(x, axes[0])) if len(axes) == 1 else None

        return native

    def layernorm(a: Arguments) -> Callable[..., Any] | None:
        extents = _trailing_extents(a)

        def run(x: Any, weight: Any = None, bias: Any = None) -> Any:
            return F.layer_norm(x, extents, as_x(weight, x), as_x(bias, x), a["eps"])

        return run if extents else None

    def relu_layernorm(a: Arguments) -> Callable[..., Any] | None:
        norm = layernorm(a)
        return norm and (lambda x, **parameters: norm(F.relu(x), **parameters))

    def rmsnorm(a: Arguments) -> Callable[..., Any] | None:
        extents = _trailing_extents(a)
        run = lambda x, weight=None: F.rms_norm(x, extents, as_x(weight, x), a["eps"])  # noqa: E731
        return run if extents else None

    def batchnorm(a: Arguments) -> Callable[..., Any] | None:
        def run(x: Any, mean: Any = None, var: Any = None, weight: Any = None, bias: Any = None) -> Any:
            training = mean is None
            mean, var, weight, bias = (as_x(p, x) for p in (mean, var, weight, bias))
            return F.batch_norm(x, mean, var, weight, bias, training, 0.0, a["eps"])

        return run if _axes(a) == (1,) else None

    def attention(a: Arguments) -> Callable[..., Any] | None:
        def run(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=a["causal"], scale=a["scale"])

        return None if a["causal"] and a["mask"] is not None else run  # torch takes one of them

    def cross_entropy(a: Arguments) -> Callable[..., Any]:
        ignored = -100 if a["ignore_index"] is None else a["ignore_index"]

        def run(logits: Any, targets: Any) -> Any:
            rows, picked = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1).long()
            losses = F.cross_entropy(rows, picked, ignore_index=ignored, reduction=a["reduction"])
            return losses.reshape(targets.shape) if a["reduction"] == "none" else losses

        return run

    return {
        "var": lambda a: lambda x: torch.var(x, a["axis"], correction=a["correction"], keepdim=a["keepdims"]),
        "std": lambda a: lambda x: torch.std(x, a["axis"], correction=a["correction"], keepdim=a["keepdims"]),
        "gelu": activation(F.gelu, "approximate"),
        "silu": activation(F.silu),
        "softplus": activation(F.softplus, "beta", "threshold"),
        "leaky_relu": activation(F.leaky_relu, "negative_slope"),
        "elu": activation(F.elu, "alpha"),
        "softmax": along_one_axis(F.softmax),
        "log_softmax": along_one_axis(F.log_softmax),
        "layernorm": layernorm,
        "relu_layernorm": relu_layernorm,
        "rmsnorm": rmsnorm,
        "batchnorm": batchnorm,
        "attention": attention,
        "linear": lambda a: lambda x, weight, bias=None: F.linear(x, weight, bias),
        "logsumexp": lambda a: lambda x: torch.logsumexp(x, _axes(a), a["keepdims"]),
        "norm": lambda a: lambda x: torch.linalg.vector_norm(x, a["ord"], _axes(a), a["keepdims"]),
        "mse": lambda a: lambda x, y: F.mse_loss(x, y, reduction=a["reduction"]),
        "cross_entropy": cross_entropy,
    }


def _axes(a: Arguments) -> tuple[int, ...]:
    """The axes of x that a call names, in order and counted from the front: -1, (-1,) and 1 may be the same."""
    ndim, axis = len(a["x"]["shape"]), a["axis"]
    given = range(ndim) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    return tuple(sorted(operator.index(i) % ndim for i in given))


def _trailing_extents(a: Arguments) -> tuple[int, ...]:
    """torch's normalized_shape: the extents of the axes, where they are x's last ones; else ()."""
    axes, shape = _axes(a), tuple(a["x"]["shape"])
    return shape[len(shape) - len(axes) :] if axes == tuple(range(len(shape)))[-len(axes) :] else ()


def as_x(parameter: Any, x: Any) -> Any:
    """A parameter in x's dtype: torch takes no float32 weight with half types."""
    return None if parameter is None else parameter.to(x.dtype)
