"""Rows of what arranges, joins, gathers and fills."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._spec import INTEGERS
from .folding import sliced
from .functions import kf
from .rows_elementwise import dtype
from .table import row
from .values import NoRow, integers, is_unknown, shape_of, size_of


@row("Identity", kind="view")
def _identity(at: Any, node: Any, x: Any) -> Any:
    return x


@row("Shape", kind="view")
def _shape(at: Any, node: Any, x: Any) -> Any:
    n = len(shape_of(x))
    start, stop, _ = slice(node.attr("start", 0), node.attr("end", n)).indices(n)
    return np.array(shape_of(x)[start:stop], np.int64)


@row("Size", kind="view")
def _size(at: Any, node: Any, x: Any) -> Any:
    return np.array(size_of(x), np.int64)


@row("Reshape", since=5, kind="view")
def _reshape(at: Any, node: Any, x: Any, shape: Any) -> Any:
    wanted, had = integers(node.known(shape)), shape_of(x)
    if not node.attr("allowzero", 0):
        wanted = [had[i] if n == 0 and i < len(had) else n for i, n in enumerate(wanted)]
    if wanted.count(-1) == 1:
        rest = math.prod(n for n in wanted if n != -1)
        wanted[wanted.index(-1)] = size_of(x) // rest if rest else 0
    if min(wanted, default=0) < 0 or math.prod(wanted) != size_of(x):
        raise ValueError(f"{had} cannot be reshaped to {tuple(wanted)}")
    return kf.reshape(at.lift(x), tuple(wanted))


@row("Flatten", kind="view")
def _flatten(at: Any, node: Any, x: Any) -> Any:
    shape = shape_of(x)
    axis = node.attr("axis", 1)
    axis += len(shape) if axis < 0 else 0
    return kf.reshape(at.lift(x), (math.prod(shape[:axis]), math.prod(shape[axis:])))


@row("Transpose", kind="view")
def _transpose(at: Any, node: Any, x: Any) -> Any:
    order = node.attr("perm", None)
    return kf.transpose(at.lift(x), None if order is None else tuple(order))


@row("Unsqueeze", kind="view")
def _unsqueeze(at: Any, node: Any, x: Any, axes: Any = None) -> Any:
    places = node.attr("axes") if axes is None else integers(node.known(axes))
    return kf.expand_dims(at.lift(x), tuple(places))


@row("Squeeze", kind="view")
def _squeeze(at: Any, node: Any, x: Any, axes: Any = None) -> Any:
    places = node.attr("axes", None) if axes is None else integers(node.known(axes))
    return kf.squeeze(at.lift(x), None if places is None else tuple(places))


@row("Expand", since=8, kind="view")
def _expand(at: Any, node: Any, x: Any, shape: Any) -> Any:
    return kf.broadcast_to(at.lift(x), np.broadcast_shapes(shape_of(x), tuple(integers(node.known(shape)))))


@row("Tile", since=6, kind="join")
def _tile(at: Any, node: Any, x: Any, repeats: Any) -> Any:
    return kf.tile(at.lift(x), tuple(integers(node.known(repeats))))


@row("Slice", since=10, kind="view")
def _slice(at: Any, node: Any, x: Any, starts: Any, stops: Any, axes: Any = None, steps: Any = None) -> Any:
    first, last = (integers(node.known(v)) for v in (starts, stops))
    along = list(range(len(first))) if axes is None else integers(node.known(axes))
    by = [1] * len(first) if steps is None else integers(node.known(steps))
    x = at.lift(x)
    index = sliced(x.shape, first, last, along, by)
    if min(by, default=1) > 0:
        return x[index]
    ranges = [i.indices(n) for i, n in zip(index, x.shape, strict=True)]  # torch's arrays take no steps below 0
    with at.tracer.stage("slice"):
        return at.tracer.view("slice", x, [r if len(range(*r)) else (0, 0, 1) for r in ranges])


@row("Concat", since=4, kind="join")
def _concat(at: Any, node: Any, *parts: Any) -> Any:
    if len({dtype(p) for p in parts}) > 1:
        raise ValueError("its inputs have different types")
    return kf.concatenate([at.lift(p) for p in parts], node.attr("axis"))


@row("Split", since=2, kind="view")
def _split(at: Any, node: Any, x: Any, sizes: Any = None) -> Any:
    axis = node.attr("axis", 0)
    n = shape_of(x)[axis]
    extents = node.attr("split", None) if sizes is None else integers(node.known(sizes))
    if extents is None:
        parts = node.attr("num_outputs", len(node.proto.output))
        each = -(-n // parts)
        extents = [max(0, min(each, n - i * each)) for i in range(parts)]
    if sum(extents) != n or min(extents, default=0) < 0:
        raise ValueError(f"{n} elements cannot be split into {extents}")
    bounds = np.cumsum([0, *extents]).tolist()
    return kf.split(at.lift(x), tuple(bounds[1:-1]), axis)


@row("Pad", since=11, kind="join")
def _pad(at: Any, node: Any, x: Any, pads: Any, value: Any = None, axes: Any = None) -> Any:
    widths = integers(node.known(pads))
    ndim = len(shape_of(x))
    along = [a % ndim for a in (range(ndim) if axes is None else integers(node.known(axes)))]
    pairs = [(0, 0)] * ndim
    for i, axis in enumerate(along):
        pairs[axis] = (widths[i], widths[i + len(along)])
    fill = 0 if value is None else node.known(value).ravel()[0].item()
    x = at.lift(x)
    cut = tuple(slice(max(0, -a), n - max(0, -b)) for (a, b), n in zip(pairs, x.shape, strict=True))
    if any(p < 0 for pair in pairs for p in pair):
        x = x[cut]
    mode = node.attr("mode", "constant")
    grown = [(max(0, a), max(0, b)) for a, b in pairs]
    reach = {"wrap": 0, "reflect": 1}.get(mode)
    if reach is not None and any(max(pair) > n - reach for pair, n in zip(grown, x.shape, strict=True)):
        raise NoRow  # the library goes round more than once
    return kf.pad(x, grown, "constant", fill) if mode == "constant" else kf.pad(x, grown, mode)


@row("Trilu", since=14, kind="join")
def _trilu(at: Any, node: Any, x: Any, k: Any = None) -> Any:
    diagonal = 0 if k is None else int(node.known(k).ravel()[0])
    return (kf.triu if node.attr("upper", 1) else kf.tril)(at.lift(x), diagonal)


@row("DepthToSpace", kind="view")
def _depth_to_space(at: Any, node: Any, x: Any) -> Any:
    x, b = at.lift(x), node.attr("blocksize")
    n, c, h, w = x.shape
    if node.attr("mode", "DCR") == "DCR":
        y = kf.transpose(kf.reshape(x, (n, b, b, c // b**2, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = kf.transpose(kf.reshape(x, (n, c // b**2, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return kf.reshape(y, (n, c // b**2, h * b, w * b))


@row("SpaceToDepth", kind="view")
def _space_to_depth(at: Any, node: Any, x: Any) -> Any:
    x, b = at.lift(x), node.attr("blocksize")
    if node.attr("mode", "DCR") != "DCR":
        raise NoRow
    n, c, h, w = x.shape
    y = kf.transpose(kf.reshape(x, (n, c, h // b, b, w // b, b)), (0, 3, 5, 1, 2, 4))
    return kf.reshape(y, (n, c * b**2, h // b, w // b))


# ---- gathers ----


def _indices(at: Any, indices: Any) -> Any:
    if dtype(indices) not in INTEGERS:
        raise NoRow
    return at.lift(indices)


@row("Gather")
def _gather(at: Any, node: Any, x: Any, indices: Any) -> Any:
    axis = node.attr("axis", 0)
    if not is_unknown(indices) and indices.ndim == 0:
        n, i = shape_of(x)[axis], int(indices)
        if not -n <= i < n:
            raise ValueError(f"index {i} is out of bounds for {n} elements")
        place = (*[slice(None)] * (axis % x.ndim), i)
        return at.lift(x)[place]
    return kf.take(at.lift(x), _indices(at, indices), axis)


@row("GatherElements", since=11)
def _gather_elements(at: Any, node: Any, x: Any, indices: Any) -> Any:
    axis, wanted = node.attr("axis", 0) % len(shape_of(x)), shape_of(indices)
    x = at.lift(x)
    cut = tuple(slice(None) if i == axis else slice(0, n) for i, n in enumerate(wanted))
    return kf.take_along_axis(x[cut] if shape_of(x) != wanted else x, _indices(at, indices), axis)


@row("TopK", since=10, kind="library")
def _top_k(at: Any, node: Any, x: Any, k: Any) -> Any:
    count, n = int(node.known(k).ravel()[0]), shape_of(x)[node.attr("axis", -1)]
    if not 0 <= count <= n:
        raise ValueError(f"there are no {count} largest of {n} elements")
    raise NoRow  # the reference would first make all positions of so many


# ---- fills ----


@row("ConstantOfShape", since=9)
def _constant_of_shape(at: Any, node: Any, shape: Any) -> Any:
    value = node.attr("value", np.zeros(1, np.float32))
    if dtype(value) == "bfloat16":
        raise NoRow
    kind = dtype(value)
    filled = kf.full_like(kf.iota(tuple(integers(node.known(shape)))), value.ravel()[0].item(), kind)
    return filled


@row("Range", since=11)
def _range(at: Any, node: Any, start: Any, stop: Any, step: Any) -> Any:
    first, last, by = (node.known(v) for v in (start, stop, step))
    if dtype(first) not in INTEGERS or by == 0:
        raise NoRow
    n = max(0, math.ceil((int(last) - int(first)) / int(by)))
    made = kf.iota(n, 0, dtype(first))
    return made if int(first) == 0 and int(by) == 1 else made * int(by) + int(first)


@row("OneHot", since=11, one=True)
def _one_hot(at: Any, node: Any, indices: Any, depth: Any, values: Any) -> Any:
    if dtype(indices) not in INTEGERS or is_unknown(values):
        raise NoRow
    n = int(node.known(depth).ravel()[0])
    axis = node.attr("axis", -1) % (indices.ndim + 1)
    at_ = kf.expand_dims(at.lift(indices), axis)
    at_ = kf.where(kf.less(at_, 0), at_ + n, at_)
    shape = [1] * (indices.ndim + 1)
    shape[axis] = n
    off, on = values.ravel()
    return kf.astype(kf.where(kf.equal(at_, kf.iota(tuple(shape), axis)), on.item(), off.item()), dtype(values))
