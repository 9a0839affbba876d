"""torch's views, copies, casts and fills on traced values."""

from __future__ import annotations

import math
import operator
import sys
from typing import Any

from .._graph.memory import c_strides
from .._graph.source import not_traced, trace_error
from .._ops import contractions, joins, views
from .._ops.primitives import integers
from .._spec import dtype_name
from . import dtype_names, library_trials, stored_numbers, torch_complex
from .numpy_functions import filled
from .torch_functions import FUNCTIONS, named, require_no_axes


def several(values: tuple[Any, ...]) -> Any:
    """Extents or axes, given one by one or as one tuple."""
    return tuple(values[0]) if len(values) == 1 and isinstance(values[0], (tuple, list)) else values


@named("reshape", "view")
def _reshape(input: Any, *shape: Any) -> Any:
    if len(shape) == 1 and not isinstance(shape[0], (int, tuple, list)):
        raise not_traced("reading bytes as another type, x.view(dtype), is not traced", "write x.to(dtype) instead")
    return views.reshape(input, several(shape))


@named("permute")
def _permute(input: Any, *dims: Any) -> Any:
    return views.transpose(input, several(dims))


@named("transpose", "swapaxes", "swapdims")
def _transpose(input: Any, dim0: int, dim1: int) -> Any:
    return views.swapaxes(input, dim0, dim1)


@named("t")
def _t(input: Any) -> Any:
    if input.ndim > 2:
        raise ValueError(f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D")
    return views.transpose(input)


@named("movedim", "moveaxis")
def _movedim(input: Any, source: Any, destination: Any) -> Any:
    return views.moveaxis(input, source, destination)


@named("flatten")
def _flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    if input.ndim == 0:
        return views.reshape(input, 1)
    first, last = (views.axis_of(input, d, "flatten") for d in (start_dim, end_dim))
    shape = input.shape
    return views.reshape(input, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))


@named("ravel")
def _ravel(input: Any) -> Any:
    return views.ravel(input)


@named("squeeze")
def _squeeze(input: Any, dim: Any = None) -> Any:
    if dim is None:
        return views.squeeze(input)
    return views.squeeze(input, tuple(a for a in views.axes_tuple(input, dim, "squeeze") if input.shape[a] == 1))


@named("unsqueeze")
def _unsqueeze(input: Any, dim: int) -> Any:
    return views.expand_dims(input, dim)


@named("expand", "broadcast_to")
def _expand(input: Any, *size: Any) -> Any:
    sizes = several(size)
    if -1 in sizes[: len(sizes) - input.ndim]:
        raise ValueError(f"kfusion.expand: -1 must stand for an axis of {input.shape}, got {tuple(sizes)}")
    own = (1,) * (len(sizes) - input.ndim) + input.shape
    return views.broadcast_to(input, tuple(n if s == -1 else s for s, n in zip(sizes, own, strict=True)))


@named("expand_as")
def _expand_as(input: Any, other: Any) -> Any:
    return views.broadcast_to(input, tuple(other.shape))


@named("flip")
def _flip(input: Any, *dims: Any) -> Any:
    return views.flip(input, several(dims))


@named("unflatten")
def _unflatten(input: Any, dim: int, sizes: Any) -> Any:
    dim, shape = views.axis_of(input, dim, "unflatten"), input.shape
    sizes = list(sizes)
    if -1 in sizes:
        sizes[sizes.index(-1)] = shape[dim] // max(-math.prod(sizes), 1)
    if math.prod(sizes) != shape[dim]:
        raise ValueError(f"unflatten: sizes must be {shape[dim]} elements, got {tuple(sizes)}")
    return views.reshape(input, (*shape[:dim], *sizes, *shape[dim + 1 :]))


@named("narrow")
def _narrow(input: Any, dim: int, start: int, length: int) -> Any:
    n = input.shape[views.axis_of(input, dim, "narrow")]
    start = start + n if start < 0 else start
    if not 0 <= start <= start + length <= n:
        raise ValueError(f"kfusion.narrow: start and length must lie within {n}, got {start} and {length}")
    return joins.parts(input, [start, start + length], dim)[0]


@named("select")
def _select(input: Any, dim: int, index: int) -> Any:
    return views.moveaxis(input, dim, 0)[index]


@named("index_select")
def _index_select(input: Any, dim: int, index: Any) -> Any:
    index = input._tracer.lift(index, "torch")
    index = index if index.ndim > 0 else views.reshape(index, (1,))  # the axis stays
    return contractions.taken(input, index, dim, "index_select")


@named("gather")
def _gather(input: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    index = input._tracer.lift(index, "torch")
    if input.ndim == 0 or index.ndim == 0:  # torch takes one element for an axis of it
        made = _gather(views.reshape(input, 1) if input.ndim == 0 else input, dim, views.reshape(index, -1))
        return views.reshape(made, index.shape)
    dim = views.axis_of(input, dim, "gather")
    fits = [d == dim or wanted <= n for d, (n, wanted) in enumerate(zip(input.shape, index.shape, strict=False))]
    if input.ndim != index.ndim or not all(fits):
        raise ValueError(f"kfusion.gather: index must fit {input.shape} but for axis {dim}, got {index.shape}")
    for d, wanted in enumerate(index.shape):
        if d != dim and wanted < input.shape[d]:
            input = joins.parts(input, [0, wanted], d)[0]
    return contractions.taken(input, index, dim, "gather", along=True)


@named("take_along_dim")
def _take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Any:
    return contractions.take_along_axis(input, indices, dim)


@named("take")
def _take(input: Any, index: Any) -> Any:
    return contractions.take(input, index)


# ---- copies, dtypes, fills ----


@named("view_as_complex", method=False)
def _view_as_complex(input: Any) -> Any:
    return torch_complex.view_as_complex(input)


@named("clone")
def _clone(input: Any, *, memory_format: Any = None) -> Any:
    return input._tracer.copy(input)


@named("detach")
def _detach(input: Any) -> Any:
    return input._tracer.constant(input)


@named("contiguous")
def _contiguous(input: Any, *, memory_format: Any = None) -> Any:
    """A tensor in C order is itself; of values nobody knows their order, nor so whether this is a copy."""
    tracer = input._tracer
    is_c_order = tracer.is_c_order(input) if str(memory_format) in ("None", "torch.contiguous_format") else None
    if is_c_order is None:
        return tracer.alias(input, is_view=False)
    return input if is_c_order else tracer.copy(input)


@named("copy", method=False)
def _copy(input: Any, src: Any, non_blocking: bool = False) -> Any:
    return views.broadcast_to(views.astype(input._tracer.lift(src, "torch"), input._dtype), input.shape)


@named("fill", method=False)
def _fill(input: Any, value: Any) -> Any:
    require_no_axes("fill", value)
    return views.full_like(input, value)


@named("zero", method=False)
def _zero(input: Any) -> Any:
    return views.full_like(input, 0)


@named("new_full")
def _new_full(input: Any, size: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    tracer = input._tracer
    scalar = tracer.add("cast", tracer.lift(fill_value, "torch"), dtype_name(dtype or input._dtype))
    made = tracer.of_library(tracer.view("broadcast", scalar, integers("new_full", "size", size)), "torch")
    made._memory.strides = c_strides(made.shape)
    return made


for _name, _value in {"zeros": 0, "ones": 1, "empty": 0}.items():  # what is in an empty tensor is anybody's guess
    FUNCTIONS[f"new_{_name}"] = lambda input, *size, dtype=None, _value=_value: _new_full(
        input, several(size), _value, dtype=dtype
    )


_KEEPING = ("None", "torch.preserve_format")  # as names of layouts


@named("to")
def _to(
    input: Any,
    *targets: Any,
    dtype: Any = None,
    device: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = None,
) -> Any:
    for target in targets:
        if isinstance(target, bool):
            continue  # non_blocking, copy
        if hasattr(target, "shape"):
            dtype, device = target.dtype, target.device
        elif _is_device(target):
            device = target
        else:
            dtype = target
    if device is not None and not library_trials.lies_on(input, device):
        raise trace_error(f"moving a value to {device} is not traced", "pass arguments that lie there")
    if dtype_names.name_of(dtype) in stored_numbers.STORED or str(memory_format) not in _KEEPING:
        raise not_traced("torch.to gives what graphs have no dtype or layout for", "write a dtype that kernels have")
    return views.astype(input, dtype) if dtype is not None and dtype_name(dtype) != input._dtype else input


@named("cpu")
def _cpu(input: Any, memory_format: Any = None) -> Any:
    return _to(input, device="cpu", memory_format=memory_format)


@named("cuda")
def _cuda(input: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
    return _to(input, device="cuda" if device is None else device, memory_format=memory_format)


@named("type")
def _type(input: Any, dtype: Any = None, non_blocking: bool = False) -> Any:
    """torch's older name of a dtype and a device, "torch.FloatTensor", where none is given."""
    torch = sys.modules["torch"]
    if dtype is None:
        return library_trials.without_data(input, input.device)[:0].type()
    kind = operator.attrgetter(dtype.removeprefix("torch."))(torch) if isinstance(dtype, str) else dtype
    if not isinstance(kind, torch.dtype) and kind.is_cuda != input.is_cuda:
        raise trace_error(f"moving a value to {dtype} is not traced", "pass arguments that lie there")
    return _to(input, dtype=kind if isinstance(kind, torch.dtype) else kind.dtype)


def _is_device(target: Any) -> bool:
    return str(target).partition(":")[0] in ("cpu", "cuda", "meta", "mps")


@named("type_as")
def _type_as(input: Any, other: Any) -> Any:
    return _to(input, other.dtype)


_CASTS = {"float": "float32", "double": "float64", "half": "float16", "int": "int32", "long": "int64"}
for _name, _target in (_CASTS | {"bfloat16": "bfloat16", "bool": "bool"}).items():
    FUNCTIONS[_name] = lambda input, _target=_target: _to(input, _target)


@named("full_like")
def _full_like(input: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    return views.full_like(input, fill_value, dtype)


@named("zeros_like")
def _zeros_like(input: Any, *, dtype: Any = None) -> Any:
    return filled(0)(input, dtype)


@named("ones_like")
def _ones_like(input: Any, *, dtype: Any = None) -> Any:
    return filled(1)(input, dtype)
