"""Rows of products, convolutions, pooling and attention."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from .._spec import FLOATS
from .functions import kf
from .rows_elementwise import dtype, floats, wide
from .table import row
from .values import NoRow, dtype_of, shape_of

_MOST_TAPS = 64  # elements of a pooling window that is joined from slices


@row("MatMul")
def _matmul(at: Any, node: Any, x: Any, y: Any) -> Any:
    if dtype(x) not in FLOATS or dtype(y) != dtype(x):
        raise NoRow
    return kf.matmul(at.lift(x), at.lift(y))


@row("Gemm", since=7)
def _gemm(at: Any, node: Any, x: Any, y: Any, bias: Any = None) -> Any:
    if dtype(x) not in FLOATS:
        raise NoRow
    x, y = at.lift(x), at.lift(y)
    x = kf.transpose(x) if node.attr("transA", 0) else x
    y = kf.transpose(y) if node.attr("transB", 0) else y
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    product = kf.matmul(x, y)
    product = product if alpha == 1 else product * alpha
    if bias is None or beta == 0:
        return product
    bias = at.lift(bias)
    return product + (bias if beta == 1 else bias * beta)


class Windows:
    """Windows along the spatial axes of x: their extents, steps, dilations and the padding around x."""

    def __init__(self, node: Any, x: Any, extents: Any) -> None:
        n = len(extents)
        self.extents = list(extents)
        self.steps = node.attr("strides", [1] * n)
        self.dilations = node.attr("dilations", [1] * n)
        pads = node.attr("pads", [0] * 2 * n)
        self.pads = list(zip(pads[:n], pads[n:], strict=True))
        auto = node.attr("auto_pad", "NOTSET")
        sizes = shape_of(x)[2:]
        if len({len(sizes), n, len(self.steps), len(self.dilations), len(self.pads)}) > 1:
            raise ValueError(f"windows of {n} axes do not fit {shape_of(x)}")
        if min([*self.steps, *self.dilations, *self.extents], default=1) < 1 or min(pads, default=0) < 0:
            raise ValueError("extents, strides and dilations of windows must be positive, pads not negative")
        self.reach = [(k - 1) * d + 1 for k, d in zip(self.extents, self.dilations, strict=True)]
        if auto == "VALID":
            self.pads = [(0, 0)] * n
        elif auto in ("SAME_UPPER", "SAME_LOWER"):
            self.pads = [self._same(*a, auto) for a in zip(sizes, self.steps, self.reach, strict=True)]
        self.counts, self.extra = [], []  # of windows along each axis, and elements behind the padding that they reach
        for size, (before, behind), step, reach in zip(sizes, self.pads, self.steps, self.reach, strict=True):
            room = size + before + behind - reach
            up = node.attr("ceil_mode", 0) and auto not in ("SAME_UPPER", "SAME_LOWER")
            count = (-(-room // step) if up else room // step) + 1
            if up and (count - 1) * step >= size + before:
                count -= 1  # a window that begins in the padding behind
            if room < 0 or count < 1:
                raise ValueError(f"a window of {reach} does not fit {size} elements with their padding")
            self.counts.append(count)
            self.extra.append(max(0, (count - 1) * step + reach - (size + before + behind)))

    @staticmethod
    def _same(size: int, step: int, reach: int, auto: str) -> tuple[int, int]:
        total = max(0, (-(-size // step) - 1) * step + reach - size)
        small, large = total // 2, total - total // 2
        return (small, large) if auto == "SAME_UPPER" else (large, small)

    def padded(self, x: Any, value: float) -> Any:
        """x with padding, and with what windows reach behind it."""
        widths = [(a, b + e) for (a, b), e in zip(self.pads, self.extra, strict=True)]
        return kf.pad(x, [(0, 0), (0, 0), *widths], "constant", value) if any(map(any, widths)) else x

    def positions(self, sizes: Any) -> Iterator[list[Any]]:
        """For each element of a window, where along each axis it stands in all windows."""
        axes = []
        for axis, (extent, step) in enumerate(zip(self.extents, self.steps, strict=True)):
            shape = [1] * (2 + len(sizes))
            shape[2 + axis] = self.counts[axis]
            first = kf.iota(tuple(shape), 2 + axis) * step - self.pads[axis][0]
            axes.append([first + i * self.dilations[axis] for i in range(extent)])
        return (list(position) for position in itertools.product(*axes))

    def taps(self, x: Any) -> Any:
        """For each element of a window, a slice of the padded x with that element of all windows."""
        indices: list[tuple[Any, ...]] = [(slice(None), slice(None))]
        for extent, step, dilation, count in zip(self.extents, self.steps, self.dilations, self.counts, strict=True):
            ranges = [slice(i * dilation, i * dilation + (count - 1) * step + 1, step) for i in range(extent)]
            indices = [(*p, r) for p in indices for r in ranges]
        return [x[index] for index in indices]


@row("Conv")
def _conv(at: Any, node: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    ndim = len(shape_of(x))
    if dtype(x) not in FLOATS or ndim not in (3, 4):
        raise NoRow
    x, weight = at.lift(x), at.lift(weight)
    w = Windows(node, x, shape_of(weight)[2:])
    pads, steps, dilations = w.pads, w.steps, w.dilations
    if ndim == 3:
        x, weight = kf.expand_dims(x, 2), kf.expand_dims(weight, 2)
        pads, steps, dilations = [(0, 0), *pads], [1, *steps], [1, *dilations]
    if any(a != b for a, b in pads):
        x = kf.pad(x, [(0, 0), (0, 0), *pads])
        pads = [(0, 0)] * 2
    y = kf.conv2d(
        x,
        weight,
        None if bias is None else at.lift(bias),
        stride=tuple(steps),
        padding=tuple(a for a, _ in pads),
        dilation=tuple(dilations),
        groups=node.attr("group", 1),
    )
    return kf.squeeze(y, 2) if ndim == 3 else y


@row("MaxPool", one=True)
def _max_pool(at: Any, node: Any, x: Any) -> Any:
    extents = node.attr("kernel_shape")
    if dtype(x) not in FLOATS or math.prod(extents) > _MOST_TAPS:
        raise NoRow
    x = at.lift(x)
    w = Windows(node, x, extents)
    taps = w.taps(w.padded(x, -math.inf))
    if len([n for n in node.proto.output if n]) == 1:
        return _joined(kf.maximum, taps)
    return _largest(taps, list(w.positions(x.shape[2:])), x, bool(node.attr("storage_order", 0)))


def _largest(taps: list[Any], positions: list[list[Any]], x: Any, by_columns: bool) -> list[Any]:
    """The largest of values and where in x it stands, the first of equal ones; what is beyond x is none."""
    best: Any = None
    for value, position in zip(taps, positions, strict=True):
        index = _index_in(x.shape, position, by_columns)
        inside = None
        for at, n in zip(position, x.shape[2:], strict=True):
            is_in = kf.logical_and(kf.greater_equal(at, 0), kf.less(at, n))
            inside = is_in if inside is None else kf.logical_and(inside, is_in)
        if best is None:
            best, found, known = value, index, inside
            continue
        larger = kf.logical_or(kf.greater(value, best), kf.logical_not(known))
        takes = kf.logical_and(inside, larger)
        best, found = kf.where(takes, value, best), kf.where(takes, index, found)
        known = kf.logical_or(known, inside)
    return [best, kf.broadcast_to(found, best.shape)]


def _index_in(shape: Any, position: list[Any], by_columns: bool) -> Any:
    """The number of an element of all of x, whose spatial axes may be counted in the other order."""
    spatial = math.prod(shape[2:])
    image = kf.iota((shape[0] * shape[1],), 0)
    index = kf.reshape(image, (shape[0], shape[1], *[1] * len(position))) * spatial
    pairs = list(zip(position, shape[2:], strict=True))
    step = 1
    for at, n in pairs if by_columns else reversed(pairs):
        index = index + at * step
        step *= n
    return index


@row("AveragePool", since=7, one=True)
def _average_pool(at: Any, node: Any, x: Any) -> Any:
    extents = node.attr("kernel_shape")
    if dtype(x) not in FLOATS or math.prod(extents) > _MOST_TAPS:
        raise NoRow
    x = at.lift(x)
    w = Windows(node, x, extents)
    total = _joined(kf.add, w.taps(w.padded(wide(x), 0.0)))
    if not any(map(any, w.pads)) and not any(w.extra):
        return kf.astype(total / float(math.prod(extents)), x._dtype)
    ones = kf.full_like(x[:1, :1], 1.0, total._dtype)
    if node.attr("count_include_pad", 0):
        ones = kf.pad(ones, [(0, 0), (0, 0), *w.pads], "constant", 1.0)
        ones = kf.pad(ones, [(0, 0), (0, 0), *[(0, e) for e in w.extra]])
    else:
        ones = w.padded(ones, 0.0)
    return kf.astype(total / _joined(kf.add, w.taps(ones)), x._dtype)


def _joined(function: Any, values: list[Any]) -> Any:
    """All values by a function of two, as a tree."""
    while len(values) > 1:
        values = [function(*values[i : i + 2]) if i + 1 < len(values) else values[i] for i in range(0, len(values), 2)]
    return values[0]


def _global(function: Any) -> Any:
    def build(at: Any, node: Any, x: Any) -> Any:
        x = at.lift(floats(x))
        return function(x, tuple(range(2, x.ndim)), True)

    return build


row("GlobalAveragePool")(_global(kf.mean))
row("GlobalMaxPool")(_global(kf.max))


@row("Attention", since=23)
def _attention(
    at: Any, node: Any, q: Any, k: Any, v: Any, mask: Any = None, key: Any = None, value: Any = None, *more: Any
) -> Any:
    """Attention whose plan is that of `kf.attention`; other cases are the operator's own body."""
    is_plain = (
        len([n for n in node.proto.output if n]) == 1
        and key is None
        and value is None
        and not any(m is not None for m in more)
    )
    if not is_plain or node.attr("softcap", 0.0) or dtype(q) not in FLOATS or {dtype(k), dtype(v)} != {dtype(q)}:
        raise NoRow
    if mask is not None and dtype_of(mask).name not in ("bool", dtype(q)):
        raise NoRow
    if max(node.attr(f"{side}_window_size", -1) for side in ("left", "right")) >= 0 or 0 in shape_of(k):
        raise NoRow
    q, k, v = (at.lift(x) for x in (q, k, v))
    is_flat = q.ndim == 3
    if is_flat:
        heads = node.attr("q_num_heads"), node.attr("kv_num_heads"), node.attr("kv_num_heads")
        q, k, v = (_by_heads(x, n) for x, n in zip((q, k, v), heads, strict=True))
    if mask is not None and shape_of(mask)[-1:] != (k.shape[2],):
        raise NoRow
    mask = None if mask is None else at.lift(mask)
    options = {"scale": node.attr("scale", None), "causal": bool(node.attr("is_causal", 0))}
    return _attended(q, k, v, mask, options, is_flat)


def _attended(q: Any, k: Any, v: Any, mask: Any, options: dict[str, Any], is_flat: bool) -> Any:
    """The attention of heads; several of the queries' share one of the keys' where there are more of them."""
    b, heads, n, _ = q.shape
    own = k.shape[1]
    if heads % own:
        raise ValueError(f"{heads} heads of queries cannot share {own} of keys")
    if heads != own:
        q, k, v = kf.reshape(q, (b, own, heads // own, n, -1)), kf.expand_dims(k, 2), kf.expand_dims(v, 2)
        mask = mask if mask is None or mask.ndim < 3 else _for_groups(mask, own, heads // own)
    y = kf.attention(q, k, v, mask=mask, **options)
    if not is_flat:
        return y if heads == own else kf.reshape(y, (b, heads, n, -1))
    order = (0, 2, 1, 3) if heads == own else (0, 3, 1, 2, 4)
    return kf.reshape(kf.transpose(y, order), (b, n, -1))


def _for_groups(mask: Any, groups: int, each: int) -> Any:
    """A mask of heads as one of groups of heads."""
    *before, heads, n, m = mask.shape
    return kf.reshape(mask, (*before, 1, 1, n, m) if heads == 1 else (*before, groups, each, n, m))


def _by_heads(x: Any, heads: int) -> Any:
    b, n, d = x.shape
    return kf.transpose(kf.reshape(x, (b, n, heads, d // heads)), (0, 2, 1, 3))
