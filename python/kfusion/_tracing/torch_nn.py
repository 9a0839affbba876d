"""torch.nn.functional on traced values, which is what modules call too: their parameters become captured arrays."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

from .._graph.source import not_traced
from .._graph.values import Traced, stage, tracer_of
from .._ops import activations, attention, contractions, norms, views
from .._ops import dropout as dropouts
from .._ops import primitives as p
from .._ops.gradients import clipped
from .._spec import HALF
from . import autocast, library_calls, refusals, trained_attention
from .torch_functions import FUNCTIONS, dtype_of, named

_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}

_function = functools.partial(named, method=False)


@_function("gelu")
def _gelu(input: Any, *, approximate: str = "none") -> Any:
    return activations.gelu(input, approximate=approximate)


@_function("silu")
def _silu(input: Any) -> Any:
    return activations.silu(input)


@_function("softplus")
def _softplus(input: Any, beta: float = 1, threshold: float = 20) -> Any:
    return activations.softplus(input, beta=beta, threshold=threshold)


@_function("leaky_relu")
def _leaky_relu(input: Any, negative_slope: float = 0.01) -> Any:
    return activations.leaky_relu(input, negative_slope)


@_function("elu")
def _elu(input: Any, alpha: float = 1.0) -> Any:
    return activations.elu(input, alpha)


@_function("relu6")
def _relu6(input: Any) -> Any:
    return clipped(input, 0, 6)


@named("softmax")
def _softmax(input: Any, dim: int | None = None, dtype: Any = None, *, _stacklevel: int = 3) -> Any:
    return activations.softmax(*along("softmax", input, dim, dtype))


@named("log_softmax")
def _log_softmax(input: Any, dim: int | None = None, dtype: Any = None, *, _stacklevel: int = 3) -> Any:
    return activations.log_softmax(*along("log_softmax", input, dim, dtype))


def along(name: str, x: Traced, dim: int | None, dtype: Any) -> tuple[Any, int]:
    """The arguments of a softmax, x in the dtype that it is to be computed in; without a dim along torch's choice."""
    if dim is None:
        dim = 0 if x.ndim in (0, 1, 3) else 1
        warnings.warn(f"torch.nn.functional.{name} without a dim is deprecated: axis {dim} is taken", stacklevel=2)
    return (x if dtype is None else views.astype(x, dtype)), dim


@_function("layer_norm")
def _layer_norm(
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    return norms.layernorm(input, weight, bias, axis=_trailing("layer_norm", input, normalized_shape), eps=eps)


@_function("rms_norm")
def _rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    axes = _trailing("rms_norm", input, normalized_shape)
    return norms.rmsnorm(input, weight, axis=axes, eps=_own_eps(input._dtype) if eps is None else eps)


@functools.cache
def _own_eps(dtype: str) -> float:
    """What torch's RMS norm adds where it is given nothing: of half types float32's epsilon, once their own."""
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction(), torch.no_grad():
        x = torch.full((1,), 2.0**-12, dtype=getattr(torch, dtype), device="cpu")
        is_float32s = float(torch.nn.functional.rms_norm(x, (1,))[0]) > 0.1
    return _EPS["float32" if is_float32s and dtype in HALF else dtype]


def _trailing(name: str, x: Traced, extents: Any) -> tuple[int, ...]:
    """The trailing axes that have these extents."""
    wanted = (extents,) if isinstance(extents, int) else tuple(extents)
    if not wanted or x.shape[-len(wanted) :] != wanted:
        raise ValueError(f"kfusion.{name}: normalized_shape must be the last extents of {x.shape}, got {wanted}")
    return tuple(range(-len(wanted), 0))


@_function("linear")
def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    if bias is not None and dtype_of(bias) != dtype_of(input):
        raise TypeError(f"kfusion.linear: torch wants a bias of {dtype_of(input)} as input is, got {dtype_of(bias)}")
    return contractions.linear(input, weight, bias)


@_function("conv2d")
def _conv2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    if isinstance(padding, str):
        padding = 0 if padding == "valid" else _same_padding(weight, stride, dilation)
    return contractions.conv2d(input, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


def _same_padding(weight: Any, stride: Any, dilation: Any) -> tuple[int, int]:
    spans = [d * (n - 1) for d, n in zip(contractions.pair(dilation, "dilation"), weight.shape[2:], strict=True)]
    if contractions.pair(stride, "stride") != (1, 1) or any(span % 2 for span in spans):
        raise not_traced("padding='same' with strides or even windows is not traced", "write the padding as numbers")
    return spans[0] // 2, spans[1] // 2


def _of_library(name: str, input: Any, weight: Any, bias: Any, **options: Any) -> Any:
    """A convolution that the library computes. On a GPU torch adds the bias in a kernel of its own: there it is a map,
    which fuses with what comes next.
    """
    is_apart = bias is not None and input.is_cuda and dtype_of(bias) == dtype_of(input)
    if not is_apart or autocast.active(str(input.device)) is not None:
        raise not_traced(f"torch.{name} is a call of the library")
    function = getattr(sys.modules["torch"], name)
    y = library_calls.torch_call(function, f"torch.{name}", (input, weight), options)
    with stage(y, f"{name}.bias"):
        window = (1,) * (weight.ndim - 2)
        return y + views.reshape(y._tracer.lift(bias, "torch"), (-1, *window))


def _convolution(name: str) -> Callable[..., Any]:
    def convolution(
        input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> Any:
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return _of_library(name, input, weight, bias, **options)

    return convolution


def _transposed_convolution(name: str) -> Callable[..., Any]:
    def convolution(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Any:
        options = {"stride": stride, "padding": padding, "output_padding": output_padding}
        return _of_library(name, input, weight, bias, groups=groups, dilation=dilation, **options)

    return convolution


OF_LIBRARY = ("conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
for _name in OF_LIBRARY:
    _function(_name)((_transposed_convolution if "transpose" in _name else _convolution)(_name))


@_function("embedding")
def _embedding(
    input: Any,
    weight: Any,
    padding_idx: Any = None,
    max_norm: Any = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if max_norm is not None:
        raise refusals.refused_keyword("torch.embedding", "max_norm")
    return embedded(weight, input, padding_idx, scale_grad_by_freq)


def embedded(weight: Any, indices: Any, padding_idx: int | None, scale_grad_by_freq: bool) -> Any:
    """Rows of weight. None of their gradients goes to row `padding_idx`."""
    tracer: Any = tracer_of(weight, indices)
    rows = contractions.taken(weight, indices, 0, "embedding")
    if not tracer.differentiates:
        return rows
    if scale_grad_by_freq:
        raise refusals.refused_keyword("torch.embedding", "scale_grad_by_freq")
    if padding_idx is None:
        return rows
    padding = padding_idx + weight.shape[0] if padding_idx < 0 else padding_idx
    is_padding = views.expand_dims(p.equal(tracer.lift(indices, "torch"), padding), -1)
    return p.where(is_padding, FUNCTIONS["detach"](rows), rows)


@_function("normalize")
def _normalize(input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Any:
    return input / FUNCTIONS["clamp_min"](norms.norm(input, p, dim, keepdims=True), eps)


def _heads_of_one_key(query: Any, key: Any, value: Any) -> int | None:
    """How many heads of queries share one of keys; None where that is not the plain case."""
    if any(a.ndim != 4 for a in (query, key, value)):
        return None
    heads, keys, values = query.shape[1], key.shape[1], value.shape[1]
    return heads // keys if keys == values and keys > 0 and heads % keys == 0 else None


def _in_groups(x: Any, heads: int, groups: int) -> Any:
    """(..., heads, m, n) as (..., heads / groups, groups, m, n); one head, or none, is broadcast."""
    if x.ndim < 3 or x.shape[-3] != heads:
        return views.expand_dims(x, -3) if x.ndim >= 3 else x
    return views.reshape(x, (*x.shape[:-3], heads // groups, groups, *x.shape[-2:]))


def _attention(query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float | None, dropout: float) -> Any:
    tracer = query._tracer
    key, value, mask = (v if v is None else tracer.lift(v, "torch") for v in (key, value, mask))
    return attention.attended(query, key, value, scale, mask, causal, dropout)


@_function("scaled_dot_product_attention")
def _scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    groups = _heads_of_one_key(query, key, value) if enable_gqa else 1
    if groups is None:
        raise refusals.refused_keyword("torch.scaled_dot_product_attention", "enable_gqa")
    dropout = dropouts.probability("scaled_dot_product_attention", query, dropout_p)
    if groups > 1:
        heads, attend = query.shape[1], _scaled_dot_product_attention
        mask = attn_mask if attn_mask is None else _in_groups(attn_mask, heads, groups)
        split, key, value = _in_groups(query, heads, groups), views.expand_dims(key, 2), views.expand_dims(value, 2)
        y = attend(split, key, value, mask, dropout_p, is_causal, scale)
        return views.reshape(y, (*query.shape[:-1], value.shape[-1]))
    if attn_mask is None and not dropout and (made := trained_attention.trained(query, key, value, is_causal, scale)):
        return made[0]
    if attn_mask is not None and is_causal:
        raise ValueError("kfusion.scaled_dot_product_attention: attn_mask must be None where is_causal is true")
    return _attention(query, key, value, attn_mask, is_causal, scale, dropout)
