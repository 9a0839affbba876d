"""Writing into traced values: x += y, x[...] = y, x.add_(y). What is in a memory is a node, before and after.

A write through a view becomes the value of the whole by way of how the view was made; who reads another view of that
memory sees it (`Tracer.node`). A write under no_grad, or through what is detached, changes the data alone: gradients
pass to what was there before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._graph.memory import DETACHED, Path, Range
from .._graph.number import is_number, read
from .._graph.source import not_traced, trace_error, user_line
from .._graph.values import Traced
from .._ops.joins import joined, parts
from .._ops.views import broadcast_to, full_like, reshape, transpose
from .._spec import INTEGERS
from . import indexing


def write(x: Traced, value: Traced) -> None:
    """x, and what shares its memory, becomes `value`, which is of x's shape and dtype."""
    if x._path is not None:
        _store(x, x._path, value)
        if isinstance(x._memory.node, int) and (_is_off(x) or (DETACHED, None) in x._path):
            x._tracer.node(x)  # looks at what is there now, which has other gradients than `value`
            return
    else:  # nobody knows where else this is
        value = _with_data(x, value) if _is_off(x) else value
        _changed(x, None, None)
    object.__setattr__(x, "_node", x._tracer.node(value))
    object.__setattr__(x, "_version", x._memory.version)


def assign(x: Traced, key: Any, value: Any) -> None:
    """x[key] = value, for slices and for a mask with one value.

    Raises:
        NotTraced: the key is another, or the library converts the value in another way than a cast.
    """
    if indexing.dtype_of(key) == "bool" and hasattr(key, "shape"):
        return write(x, _chosen(x, key, _cast(x, value)))
    slices, shape = indexing.part(x, key)
    new = _broadcast(_cast(x, value), shape)
    ranges = [(start, max(start, stop), step) for start, stop, step in slices]
    new = reshape(new, tuple(stop - start for start, stop, _ in ranges))
    if x._path is None:
        write(x, _placed(x, ranges, new))
    elif math.prod(new.shape):
        is_all = new.shape == x.shape
        _store(x, x._path if is_all else (*x._path, ("slice", ranges)), new)


def copy(x: Traced, value: Any, mask: Any = None) -> None:
    """x[...] = value, where a mask that broadcasts to x is true."""
    new = _broadcast(_cast(x, value), x.shape)
    if mask is not None:
        with x._tracer.stage("copyto"):
            new = x._tracer.map("where", mask, new, x)
    write(x, _broadcast(new, x.shape))


def become(x: Traced, view: Traced, name: str) -> Traced:
    """x.unsqueeze_(0): x becomes a view of itself, the elements stay.

    Raises:
        TraceError: x is an argument, whose shape is the caller's.
    """
    if x._tracer.is_given(x):
        raise trace_error(f"{name} changes the shape of an argument", f"write y = x.{name[:-1]}(...) instead")
    for slot in ("_node", "_memory", "_path", "_version"):
        object.__setattr__(x, slot, getattr(view, slot))
    return x


def is_written_part(x: Traced, key: Any, value: Any) -> bool:
    """Whether `value` is x[key] itself: in x[key] += y it was written to just now."""
    if not isinstance(value, Traced) or value._memory is not x._memory or value._path is None or x._path is None:
        return False
    try:
        slices, shape = indexing.part(x, key)
    except TypeError:
        return False
    path = x._path if slices == [(0, n, 1) for n in x.shape] else (*x._path, ("slice", slices))
    same = value._path[: len(path)] == path and all(kind == "reshape" for kind, _ in value._path[len(path) :])
    return same and value.shape == tuple(shape)


def _store(x: Traced, path: Path, value: Traced) -> None:
    """Writes a value to where `path` leads in x's memory."""
    tracer, owner = x._tracer, x._memory
    if not isinstance(owner.node, int):
        return _changed(x, owner.node, None)
    parents = [tracer.value(owner.node)]
    for kind, argument in path[:-1]:
        is_detached = kind == DETACHED
        parents.append(tracer.constant(parents[-1]) if is_detached else tracer.view(kind, parents[-1], argument))
    new, part = value, None
    for (kind, argument), parent in zip(path[::-1], parents[::-1], strict=bool(path)):
        if parent is parents[0] and kind == "slice":
            part = argument, tracer.node(new)
        new = _whole(kind, argument, parent, new)
    new = _with_data(parents[0], new) if _is_off(x) else new
    is_only = part is not None and (owner.version == 0 or (owner.part is not None and owner.part[0] == part[0]))
    _changed(x, tracer.node(new), part if is_only else None)


def _changed(x: Traced, node: int | str | None, part: tuple[list[Range], int] | None) -> None:
    owner = x._memory
    owner.node, owner.part = node, part
    owner.version += 1
    x._tracer.writes += 1
    owner.line = user_line()


def _whole(kind: str, argument: Any, parent: Traced, new: Traced) -> Traced:
    """`parent` with `new` in the place of its view."""
    if kind == "slice":
        return _placed(parent, argument, new)
    if kind == DETACHED:
        if parent._tracer.wants_gradients and parent._tracer.has_gradients(new):
            what = "values that gradients pass through are written to what .detach() or .data gives"
            raise trace_error(what, "write their .detach() there")
        return _with_data(parent, new)
    if kind == "reshape":
        return reshape(new, parent.shape)  # type: ignore[no-any-return]
    return transpose(new, tuple(sorted(range(len(argument)), key=argument.__getitem__)))  # type: ignore[no-any-return]


def _is_off(x: Traced) -> bool:
    """Whether the function has turned off what would give its results gradients."""
    return x._tracer.takes_gradients and not x._tracer.wants_gradients


def _with_data(x: Traced, data: Traced) -> Traced:
    """The value `data`, which is a constant, with x's gradients: those of a tensor whose data alone is written to."""
    tracer = x._tracer
    if not tracer.takes_gradients:
        return data
    if not tracer.has_gradients(x):
        return tracer.constant(data) if tracer.has_gradients(data) else data
    with tracer.with_gradients_on():
        return tracer.with_gradients(data, [x], [full_like(x, 1.0)])


def _placed(x: Traced, ranges: Sequence[Range], new: Traced) -> Traced:
    """x with `new` in a range of each axis, of steps of 1: a join of what is before, within and behind."""
    axis = next((i for i, (r, n) in enumerate(zip(ranges, x.shape, strict=True)) if r != (0, n, 1)), None)
    if axis is None:
        return new
    start, stop, _ = ranges[axis]
    n = x.shape[axis]
    with x._tracer.stage("setitem"):
        before, within, behind = parts(x, [0, start, stop, n], axis)
        rest = [(0, stop - start, 1) if i == axis else r for i, r in enumerate(ranges)]
        pieces = (before, _placed(within, rest, new), behind)
        return joined([p for p in pieces if p.shape[axis]], axis)


def _chosen(x: Traced, mask: Any, value: Traced) -> Traced:
    """x with one value where a mask of its first axes is true."""
    if math.prod(value.shape) != 1:
        raise not_traced("x[mask] = values is not traced", "write kf.where(mask, values, x) instead")
    mask = x._tracer.lift(mask, x._library)
    if mask.shape != x.shape[: mask.ndim]:
        raise IndexError(f"the mask of x[mask] must have x's first extents {x.shape[: mask.ndim]}, got {mask.shape}")
    with x._tracer.stage("setitem"):
        mask = reshape(mask, (*mask.shape, *(1,) * (x.ndim - mask.ndim)))
        chosen = x._tracer.map("where", mask, reshape(value, ()), x)
        return broadcast_to(chosen, x.shape)  # type: ignore[no-any-return]


def _cast(x: Traced, value: Any) -> Traced:
    """A value in x's dtype, where that is what the library makes of it."""
    value = value.item() if isinstance(value, np.generic) else value
    value = read(value) if x._dtype in INTEGERS else value
    is_scalar = isinstance(value, (bool, int, float)) or is_number(value)
    if not is_scalar and not hasattr(value, "shape"):
        raise not_traced("x[...] = a container is not traced", "write an array")
    if is_scalar and x._dtype in INTEGERS and not -(2**31) <= value < 2**31:  # NaN and infinities too
        raise not_traced("the library may refuse the value", "write one of its dtype")
    lifted = x._tracer.lift(value, x._library)
    return x._tracer.add("cast", lifted, x._dtype) if is_scalar or lifted._dtype != x._dtype else lifted


def _broadcast(value: Traced, shape: Sequence[int]) -> Traced:
    """Leading axes of extent 1 may be more than there are."""
    extra = value.ndim - len(shape)
    if extra > 0 and value.shape[:extra] == (1,) * extra:
        value = reshape(value, value.shape[extra:])
    return value if value.shape == tuple(shape) else broadcast_to(value, tuple(shape))
