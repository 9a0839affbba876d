"""torch's functions that join, pad, repeat and split, on traced values. Parameters have torch's own names."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from .._graph.source import not_traced, trace_error
from .._graph.values import Traced
from .._ops import joins, views
from . import autocast, numpy_joins
from .torch_functions import named
from .torch_views import several


@named("cat", "concat", "concatenate", method=False)
def _cat(tensors: Any, dim: int = 0) -> Any:
    return joins.concatenate(_without_nothing(tensors), dim)


def _without_nothing(tensors: Sequence[Any]) -> Sequence[Any]:
    """torch joins a tensor of shape (0,) with any other."""
    kept = [t for t in tensors if tuple(getattr(t, "shape", ())) != (0,)]
    dropped = [t for t in tensors if not any(t is k for k in kept)]
    is_alike = bool(kept) and all(getattr(t, "dtype", None) == getattr(kept[0], "dtype", None) for t in dropped)
    return kept if is_alike and any(isinstance(t, Traced) for t in kept) else tensors


@named("stack", method=False)
def _stack(tensors: Any, dim: int = 0) -> Any:
    return joins.stack(tensors, dim)


@named("hstack", method=False)
def _hstack(tensors: Any) -> Any:
    return numpy_joins.hstack(tensors)


@named("vstack", "row_stack", method=False)
def _vstack(tensors: Any) -> Any:
    return numpy_joins.vstack(tensors)


@named("dstack", method=False)
def _dstack(tensors: Any) -> Any:
    return numpy_joins.dstack(tensors)


@named("column_stack", method=False)
def _column_stack(tensors: Any) -> Any:
    return numpy_joins.column_stack(tensors)


_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
_KINDS = {"reflect": "reflection_pad", "replicate": "replication_pad"}  # which autocast knows, by the number of axes


@named("pad", method=False)
def _pad(input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    """Pairs for the last axes, the last one first. Widths below 0 cut."""
    pairs = list(zip(pad[::2], pad[1::2], strict=False))[::-1]
    if len(pad) % 2 or len(pairs) > input.ndim:
        raise ValueError(f"pad must have pairs for at most {input.ndim} axes, got {tuple(pad)}")
    widths = [(0, 0)] * (input.ndim - len(pairs)) + pairs
    if mode != "constant":
        if mode not in _MODES or min(pad) < 0:
            what = f"torch.nn.functional.pad with mode={mode!r} and {tuple(pad)} is not traced"
            raise not_traced(what, f"modes are constant, {', '.join(_MODES)}, the last three for widths from 0")
        if mode == "replicate" and input._dtype == "bool":
            raise TypeError("pad with mode='replicate' is not for bools")
        if input.ndim - len(pairs) not in (1, 2) or len(pairs) > 3:
            raise ValueError(
                f"pad with mode={mode!r} is for the last 1 to 3 axes behind 1 or 2 others, got {input.shape}"
            )
        (input,) = autocast.cast(f"{_KINDS.get(mode, mode)}{len(pairs)}d", {"input": input}).values()
        return joins.pad(input, widths, _MODES[mode])
    ranges = [(max(-a, 0), n - max(-b, 0), 1) for n, (a, b) in zip(input.shape, widths, strict=True)]
    if any(a < 0 or a > b for a, b, _ in ranges):
        raise ValueError(f"pad must not cut more elements than there are, got {tuple(pad)} for shape {input.shape}")
    cut = input if min(pad, default=0) >= 0 else input._tracer.view("slice", input, ranges)
    return joins.pad(cut, [(max(a, 0), max(b, 0)) for a, b in widths], "constant", 0 if value is None else value)


@named("roll")
def _roll(input: Any, shifts: Any, dims: Any = None) -> Any:
    return joins.roll(input, shifts, dims if dims != () else None)


@named("tile")
def _tile(input: Any, *dims: Any) -> Any:
    return joins.tile(input, tuple(several(dims)))


@named("repeat")
def _repeat(input: Any, *repeats: Any) -> Any:
    times = tuple(several(repeats))
    if len(times) < input.ndim:
        raise ValueError(f"repeat must have a number for each of {input.ndim} axes, got {times}")
    return joins.tile(input, times)


@named("repeat_interleave")
def _repeat_interleave(input: Any, repeats: Any, dim: int | None = None) -> Any:
    if not isinstance(repeats, int):
        raise not_traced("torch.repeat_interleave is traced for one number of repeats", "pass an int")
    return joins.repeat(input, repeats, dim)


@named("fliplr")
def _fliplr(input: Any) -> Any:
    return views.flip(input, 1)


@named("flipud")
def _flipud(input: Any) -> Any:
    return views.flip(input, 0)


@named("tril")
def _tril(input: Any, diagonal: int = 0) -> Any:
    return joins.tril(input, diagonal)


@named("triu")
def _triu(input: Any, diagonal: int = 0) -> Any:
    return joins.triu(input, diagonal)


@named("split")
def _split(input: Any, split_size: Any, dim: int = 0) -> Any:
    n = input.shape[views.axis_of(input, dim, "split")]
    if isinstance(split_size, int):
        bounds = [*range(0, max(n, 1), split_size), n]
    else:
        bounds = [0, *itertools.accumulate(split_size)]
        if min(split_size, default=0) < 0:
            raise ValueError(f"split expects split_sizes of 0 and more, but got {list(split_size)}")
        if bounds[-1] != n:
            raise ValueError(f"split expects split_sizes to sum exactly to {n}, but got {list(split_size)}")
    return tuple(joins.parts(input, bounds, dim))


@named("chunk")
def _chunk(input: Any, chunks: int, dim: int = 0) -> Any:
    return tuple(joins.chunk(input, chunks, dim))


@named("unbind")
def _unbind(input: Any, dim: int = 0) -> Any:
    return tuple(joins.unbind(input, dim))


@named("tensor_split")
def _tensor_split(input: Any, indices_or_sections: Any, dim: int = 0) -> Any:
    if hasattr(indices_or_sections, "dtype"):
        what = "torch.tensor_split by a tensor is not traced: values are not known while a function is traced"
        raise trace_error(what, "pass a tuple of Python integers")
    return tuple(numpy_joins.array_split(input, indices_or_sections, dim))


@named("hsplit")
def _hsplit(input: Any, indices_or_sections: Any) -> Any:
    return tuple(numpy_joins.along(1)(input, indices_or_sections))


@named("vsplit")
def _vsplit(input: Any, indices_or_sections: Any) -> Any:
    return tuple(numpy_joins.along(0)(input, indices_or_sections))


@named("dsplit")
def _dsplit(input: Any, indices_or_sections: Any) -> Any:
    return tuple(numpy_joins.along(2)(input, indices_or_sections))
