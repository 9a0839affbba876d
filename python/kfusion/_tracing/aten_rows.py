"""The operators of aten whose schema is not that of torch's function of the same name, or that have none."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from .._graph.memory import c_strides
from .._graph.source import not_traced
from .._graph.tracer import Tracer
from .._graph.values import stage
from .._ops import activations, contractions, dropout, joins, norms, views
from .._ops import primitives as p
from .._ops.group_norms import groupnorm
from .._spec import DTYPES, FLOATS, HALF
from . import dtype_names, library_trials
from .aten import first, row, source
from .aten_losses import sums_of_gradient
from .torch_functions import FUNCTIONS, torch_function
from .torch_nn import embedded
from .torch_reductions import plain_axes

# ---- what makes tensors of numbers ----


@source("full")
def _full(tracer: Tracer, size: Any, value: Any, *, dtype: Any = None, device: Any = None, **said: Any) -> Any:
    like: Any = tracer.value_of_input(0)
    name = dtype_names.name_of(dtype) if dtype is not None else ""
    if name not in DTYPES or isinstance(value, complex) or not library_trials.lies_on(like, device or like.device):
        raise not_traced("torch.full of that dtype or device is made by torch")
    scalar = tracer.add("cast", tracer.lift(value, "torch"), name)
    made = tracer.of_library(tracer.view("broadcast", scalar, list(size)), "torch")
    made._memory.strides = c_strides(made.shape)
    return made


@source("zeros")
def _zeros(tracer: Tracer, size: Any, **said: Any) -> Any:
    return _full(tracer, size, 0, **said)


@source("ones")
def _ones(tracer: Tracer, size: Any, **said: Any) -> Any:
    return _full(tracer, size, 1, **said)


@source("scalar_tensor")
def _scalar_tensor(tracer: Tracer, value: Any, **said: Any) -> Any:
    return _full(tracer, (), value, **said)


def _filled_like(x: Any, value: Any, dtype: Any, device: Any) -> Any:
    if device is not None and not library_trials.lies_on(x, device):
        raise not_traced("torch.full_like on another device")
    return views.full_like(x, value, dtype)


row("full_like")(lambda x, value, *, dtype=None, device=None, **said: _filled_like(x, value, dtype, device))
row("zeros_like", "empty_like")(lambda x, *, dtype=None, device=None, **said: _filled_like(x, 0, dtype, device))
row("ones_like")(lambda x, *, dtype=None, device=None, **said: _filled_like(x, 1, dtype, device))


@row("new_full")
def _new_full(x: Any, size: Any, value: Any, *, dtype: Any = None, device: Any = None, **said: Any) -> Any:
    return _full(x._tracer, size, value, dtype=x.dtype if dtype is None else dtype, device=device)


row("new_zeros", "new_empty")(lambda x, size, **said: _new_full(x, size, 0, **said))
row("new_ones")(lambda x, size, **said: _new_full(x, size, 1, **said))

# ---- sizes ----


@row("sym_size", "size")
def _size(x: Any, dim: int | None = None) -> Any:
    return x.shape if dim is None else x.shape[dim]


@row("sym_numel", "numel")
def _numel(x: Any) -> Any:
    return math.prod(x.shape)


# ---- views and copies ----


@row("slice")
def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    keys = [slice(None)] * views.axis_of(x, dim, "slice")
    key = slice(start, None if type(end) is int and end == sys.maxsize else end, step)
    return x.__getitem__((*keys, key))


@row("select")
def _select(x: Any, dim: int, index: int) -> Any:
    return FUNCTIONS["select"](x, dim, index)


@row("index", "_unsafe_index")
def _index(x: Any, indices: Sequence[Any]) -> Any:
    return x[tuple(slice(None) if i is None else i for i in indices)]


@row("view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy")
def _view(x: Any, size: Any, *strides: Any) -> Any:
    if not isinstance(size, (tuple, list)):
        raise not_traced("reading bytes as another type is not traced")
    return views.reshape(x, tuple(size))


@row("alias", "detach", "lift_fresh", "lift", "_conj_physical", "_to_cpu")
def _alias(x: Any) -> Any:
    return x


@row("clone", "contiguous", "lift_fresh_copy", "alias_copy", "detach_copy")
def _clone(x: Any, *, memory_format: Any = None) -> Any:
    return x._tracer.copy(x)


@row("_to_copy", "to.dtype", "to.dtype_layout", "to.device", "to.other")
def _to_copy(x: Any, *targets: Any, dtype: Any = None, device: Any = None, layout: Any = None, **said: Any) -> Any:
    torch = sys.modules["torch"]
    for target in targets:
        if isinstance(target, torch.dtype):
            dtype = target
        elif isinstance(target, torch.device):
            device = target
        elif isinstance(target, torch.Tensor):
            dtype, device = getattr(target, "dtype", None), getattr(target, "device", None)
    if device is not None and not library_trials.lies_on(x, device):
        raise not_traced("moving a value to another device is a call of the library")
    return FUNCTIONS["to"](x, dtype=dtype) if dtype is not None else x


@row("convert_element_type")
def _convert(x: Any, dtype: Any) -> Any:
    return FUNCTIONS["to"](x, dtype=dtype)


@row("copy")
def _copy(x: Any, src: Any, non_blocking: bool = False) -> Any:
    return FUNCTIONS["copy"](x, src)


@row("squeeze")
def _squeeze(x: Any, dim: Any = None) -> Any:
    return FUNCTIONS["squeeze"](x, dim)


@row("expand", "expand_copy")
def _expand(x: Any, size: Any, *, implicit: bool = False) -> Any:
    return FUNCTIONS["expand"](x, tuple(size))


@row("permute", "permute_copy")
def _permute(x: Any, dims: Any) -> Any:
    return views.transpose(x, tuple(dims))


@row("split", "split_with_sizes", "split_copy", "split_with_sizes_copy", "unsafe_split", "unsafe_split_with_sizes")
def _split(x: Any, sizes: Any, dim: int = 0) -> Any:
    return FUNCTIONS["split"](x, list(sizes) if isinstance(sizes, (tuple, list)) else sizes, dim)


@row("constant_pad_nd")
def _constant_pad(x: Any, pad: Any, value: Any = 0) -> Any:
    return FUNCTIONS["pad"](x, list(pad), "constant", value)


@row("repeat", "tile")
def _repeat(x: Any, repeats: Any) -> Any:
    return FUNCTIONS["tile"](x, tuple(repeats))


@row("flip")
def _flip(x: Any, dims: Any) -> Any:
    return views.flip(x, tuple(dims))


@row("slice_scatter")
def _slice_scatter(x: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    axis = views.axis_of(x, dim, "slice_scatter")
    first, last, _ = slice(start, end).indices(x.shape[axis])
    if step != 1:
        raise not_traced("steps are written by the library")
    parts = joins.parts(x, [0, first, max(first, last), x.shape[axis]], axis)
    if tuple(src.shape) != tuple(parts[1].shape):
        raise not_traced("torch refuses other extents than the slice's")
    return joins.concatenate([parts[0], views.astype(src, x._dtype), parts[2]], axis)


@row("select_scatter")
def _select_scatter(x: Any, src: Any, dim: int, index: int) -> Any:
    axis = views.axis_of(x, dim, "select_scatter")
    index = index + x.shape[axis] if index < 0 else index
    if not 0 <= index < x.shape[axis]:
        raise not_traced("torch refuses the index")
    return _slice_scatter(x, views.expand_dims(src, axis), axis, index, index + 1)


@row("slice_backward")
def _slice_backward(gradient: Any, sizes: Any, dim: int, start: Any, end: Any, step: int) -> Any:
    return _slice_scatter(_new_full(gradient, sizes, 0), gradient, dim, start, end, step)


@row("select_backward")
def _select_backward(gradient: Any, sizes: Any, dim: int, index: int) -> Any:
    return _select_scatter(_new_full(gradient, sizes, 0), gradient, dim, index)


# ---- arithmetic ----


@row("clamp")
def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    return FUNCTIONS["clamp"](x, low, high)


@row("hardtanh")
def _hardtanh(x: Any, low: Any = -1, high: Any = 1) -> Any:
    return p.clip(x, low, high)


@row("elu")
def _elu(x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    if scale == 1 and input_scale == 1:
        return FUNCTIONS["elu"](x, alpha)
    wide = views.wide(x)
    return views.astype(p.where(wide > 0, wide * scale, p.expm1(wide * input_scale) * (alpha * scale)), x._dtype)


@row("threshold_backward")
def _threshold_backward(gradient: Any, x: Any, threshold: float) -> Any:
    return p.where(x <= threshold, 0.0, gradient)


@row("tanh_backward")
def _tanh_backward(gradient: Any, y: Any) -> Any:
    return gradient * (1.0 - y * y)


@row("sigmoid_backward")
def _sigmoid_backward(gradient: Any, y: Any) -> Any:
    return gradient * (y * (1.0 - y))


# ---- reductions ----


def _reduced(name: str) -> Any:
    def reduction(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        if x.ndim == 0:
            dim = None
        return FUNCTIONS[name](x, dim, keepdim, dtype=dtype)

    return reduction


for _name in ("sum", "mean", "prod"):
    row(_name)(_reduced(_name))


def _spread_and_mean(name: str) -> Any:
    def spread(x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
        if x.ndim == 0:
            raise not_traced("of no axes")
        if unbiased is None:
            correction = 1 if correction is None else correction
        return FUNCTIONS[name](x, dim, unbiased, keepdim, correction=correction)

    return spread


for _name in ("var_mean", "std_mean", "var", "std"):
    row(_name)(_spread_and_mean(_name))


@row("_softmax")
def _softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    if half_to_float:
        x = views.astype(x, "float32")
    if x.ndim == 0:
        raise not_traced("of no axes")
    return activations.softmax(x, dim)


@row("_log_softmax")
def _log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    if x.ndim == 0:
        raise not_traced("of no axes")
    return activations.log_softmax(views.astype(x, "float32") if half_to_float else x, dim)


@row("_softmax_backward_data")
def _softmax_backward(gradient: Any, y: Any, dim: int, dtype: Any) -> Any:
    g, y = views.wide(gradient), views.wide(y)
    made = y * g
    return views.astype(made - y * p.sum(made, dim, True), dtype_names.name_of(dtype))


@row("_log_softmax_backward_data")
def _log_softmax_backward(gradient: Any, y: Any, dim: int, dtype: Any) -> Any:
    g, y = views.wide(gradient), views.wide(y)
    sums = sums_of_gradient(gradient, dim)
    sums = p.sum(g, dim, True) if sums is None else views.wide(sums)
    return views.astype(g - p.exp(y) * sums, dtype_names.name_of(dtype))


# ---- normalisations ----


@row("native_layer_norm")
def _native_layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    axes = tuple(range(-len(shape), 0))
    if not axes or 0 in x.shape:
        raise not_traced("of no elements")
    y = FUNCTIONS["layer_norm"](x, list(shape), weight, bias, eps)
    wide = views.wide(x)
    mean = p.mean(wide, axes, True)
    variance = norms.var(wide, axes, keepdims=True)
    return y, mean, p.rsqrt(variance + eps)


@row("native_group_norm")
def _native_group_norm(x: Any, weight: Any, bias: Any, n: Any, channels: Any, hw: Any, groups: int, eps: float) -> Any:
    if x.ndim < 3 or 0 in x.shape or x._dtype in HALF:
        raise not_traced("of no elements")
    y = groupnorm(x, groups, weight, bias, eps=eps)
    rows = views.reshape(x, (n, groups, -1))
    mean, variance = p.mean(rows, -1), norms.var(rows, -1)
    return y, mean, p.rsqrt(variance + eps)


@first("native_group_norm")
def _only_group_norm(x: Any, weight: Any, bias: Any, n: Any, channels: Any, hw: Any, groups: int, eps: float) -> Any:
    if x.ndim < 3 or 0 in x.shape:
        raise not_traced("of no elements")
    return groupnorm(x, groups, weight, bias, eps=eps)


def _trained_batch_norm(x: Any, weight: Any, bias: Any, momentum: float, eps: float, running: Any = None) -> Any:
    """y, the mean and the reciprocal deviation of each channel, and the running statistics as they are afterwards."""
    axes = tuple(a for a in range(x.ndim) if a != 1)
    count = math.prod(x.shape[a] for a in axes)
    y, mean, var = norms.of_own_moments("batchnorm", x, list(axes), weight, bias, 1, eps)
    mean, var = (views.reshape(v, (x.shape[1],)) for v in (mean, var))
    made = [y, mean, p.rsqrt(var + eps)]
    for old, new in zip(running or (), (mean, var * (count / max(count - 1, 1))), strict=False):
        made.append(views.astype(views.wide(old) * (1 - momentum) + new * momentum, old._dtype))
    return tuple(made)


@row("batch_norm")
def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float, cudnn: bool
) -> Any:
    return FUNCTIONS["batch_norm"](x, mean, var, weight, bias, training, momentum, eps)


@row("_native_batch_norm_legit_functional")
def _batch_norm_functional(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    if 0 in x.shape:
        raise not_traced("of no elements")
    if training:
        return _trained_batch_norm(x, weight, bias, momentum, eps, (mean, var))
    y, *saved = _known_batch_norm(x, weight, bias, mean, var, momentum, eps)
    return (y, *saved, mean, var)


@row("_native_batch_norm_legit.no_stats")
def _batch_norm_without_statistics(x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    if 0 in x.shape:
        raise not_traced("of no elements")
    return _trained_batch_norm(x, weight, bias, momentum, eps)


@row("_native_batch_norm_legit_no_training")
def _known_batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    y = norms.batchnorm(x, mean, var, weight, bias, eps=eps)
    nothing = views.full_like(views.wide(mean), 0)[:0]
    return y, nothing, nothing


# ---- products ----


@row("addmm")
def _addmm(x: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    if x.ndim == 1 and beta == 1 and alpha == 1 and x._dtype == a._dtype:
        return contractions.matmul(a, b) + x
    return FUNCTIONS["addmm"](x, a, b, beta=beta, alpha=alpha)


@row("convolution")
def _convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    if transposed or x.ndim != 4 or len(stride) != 2:
        raise not_traced("torch.convolution of such axes is a call of the library")
    return FUNCTIONS["conv2d"](x, weight, bias, tuple(stride), tuple(padding), tuple(dilation), groups)


@row("embedding")
def _embedding(
    weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    return embedded(weight, indices, None if padding_idx < 0 else padding_idx, scale_grad_by_freq)


@first("_scaled_dot_product_flash_attention_for_cpu")
def _attention_on_cpu(q: Any, k: Any, v: Any, p: float = 0.0, causal: bool = False, **more: Any) -> Any:
    return _attention(q, k, v, more.get("attn_mask"), p, causal, more.get("scale"))


@first("_scaled_dot_product_flash_attention")
def _flash_attention(q: Any, k: Any, v: Any, p: float = 0.0, causal: bool = False, *shown: bool, **more: Any) -> Any:
    return _attention(q, k, v, None, p, causal, more.get("scale"))


@first("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention")
def _other_attention(
    q: Any, k: Any, v: Any, bias: Any, sums: bool, p: float = 0.0, causal: bool = False, *shown: bool, **more: Any
) -> Any:
    return _attention(q, k, v, bias, p, causal, more.get("scale"))


def _attention(q: Any, k: Any, v: Any, mask: Any, p: float, causal: bool, scale: Any) -> Any:
    """What users called, without the logarithms of the sums that torch's kernels give for a backward pass."""
    if p > 0 or 0 in q.shape or 0 in k.shape:
        raise not_traced("of dropout")
    function = sys.modules["torch"].nn.functional.scaled_dot_product_attention
    options = {"scale": scale, "enable_gqa": q.ndim == 4 and q.shape[1] != k.shape[1]}
    return torch_function("scaled_dot_product_attention", (q, k, v, mask, 0.0, causal), options, function)


@row("native_dropout")
def _native_dropout(x: Any, probability: float, train: bool | None) -> Any:
    """The result, and which elements were kept."""
    if x._dtype not in FLOATS or not (train is None or train) or not 0 < probability < 1:
        raise not_traced("of no dropout")
    with stage(x, "dropout"):
        keeps = dropout.kept(x, probability)
        made = views.wide(x) * dropout.one_of(x, keeps, 1 / (1 - probability), 0.0)
        return views.astype(made, x._dtype), keeps


@row("native_dropout_backward")
def _native_dropout_backward(gradient: Any, mask: Any, scale: float) -> Any:
    mask = mask
    return gradient * views.astype(mask, gradient._dtype) * scale


for _name in ("all", "any"):
    row(_name)(
        lambda x, dim=None, keepdim=False, _name=_name: FUNCTIONS[_name](
            x, None if x.ndim == 0 else plain_axes(dim), keepdim
        )
    )
