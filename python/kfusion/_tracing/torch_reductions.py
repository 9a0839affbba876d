"""torch's reductions, norms, distances and group normalisation."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from .._graph.sizes import broadcast_shapes
from .._graph.source import not_traced, trace_error
from .._graph.values import stage
from .._ops import activations, contractions, extremes, norms, statistics, views
from .._ops import primitives as p
from .._ops.gradients import along_kept, passed, share_of_extremes, taken, with_derivatives
from .._ops.group_norms import groupnorm
from .._spec import FLOATS
from . import refusals
from .torch_functions import FUNCTIONS, Later, Pair, ValuesAndIndices, named
from .torch_stages import Tensor, computed

# ---- reductions ----


def plain_axes(dim: Any) -> Any:
    """None for no axes at all, of which torch's reductions take all."""
    return None if dim is None or (isinstance(dim, (tuple, list)) and not dim) else dim


def _reduction(op: str) -> Callable[..., Any]:
    def reduction(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        if dtype is None:
            return p.REDUCTIONS[op](input, plain_axes(dim), keepdim)
        made = p.REDUCTIONS[op](views.astype(input, dtype), plain_axes(dim), keepdim)
        return views.astype(made, dtype)  # of integers, which wrap, and bools

    return reduction


def _product(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    x = input if dtype is None else views.astype(input, dtype)
    if not taken(x) or x._dtype not in FLOATS:
        return _reduction("prod")(input, dim, keepdim, dtype=dtype)
    return along_kept(lambda axes: _with_slopes(p.prod(x, axes, True), x, axes), x, plain_axes(dim), keepdim)


def _with_slopes(y: Any, x: Any, axes: Any) -> Any:
    """A product, whose derivative by each factor is the product of the others: y / x but for these kinds of factors."""
    slopes = y / x
    kinds = x == 0, p.isinf(x), p.isnan(x)
    counts = [p.sum(views.astype(is_kind, x._dtype), axes, True) for is_kind in kinds]
    for is_kind, count in zip(kinds, counts, strict=True):
        beside = p.where(count == 1, p.prod(p.where(is_kind, 1.0, x), axes, True), y * p.sign(x))
        slopes = p.where(is_kind, beside, slopes)
    return with_derivatives(y, (x, p.where(counts[0] > 1, 0.0, slopes)))


def _largest(op: str) -> Callable[..., Any]:
    return lambda input, dim=None, keepdim=False: p.REDUCTIONS[op](input, plain_axes(dim), keepdim)


def _truth(op: str) -> Callable[..., Any]:
    def truth(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is not None and plain_axes(dim) is None:  # no axis, where sum and its likes take all
            return views.astype(input, "bool")
        return p.REDUCTIONS[op](input, dim, keepdim)

    return truth


for _name in ("sum", "mean"):
    FUNCTIONS[_name] = _reduction(_name)
FUNCTIONS["prod"] = _product
for _name in ("any", "all"):
    FUNCTIONS[_name] = _truth(_name)
for _name in ("amax", "amin"):
    FUNCTIONS[_name] = _largest(_name)


class _Max(ValuesAndIndices):
    __slots__ = ()
    name = "max"


class _Min(ValuesAndIndices):
    __slots__ = ()
    name = "min"


_ABSENT: Any = object()


def _extreme_along(op: str, x: Any, dim: int, kept: bool) -> Any:
    """Gradients go to the element that the indices name, not to all that are equal."""
    if not taken(x) or x._dtype not in FLOATS or x.ndim == 0:
        return p.REDUCTIONS[op](x, dim, kept)
    found = contractions.take_along_axis(x, FUNCTIONS[f"arg{op}"](x, dim, True), dim)
    return found if kept else views.squeeze(found, dim)


def _extreme_of_all(op: str, x: Any) -> Any:
    """Gradients go to all that are equal, in equal parts, and to all NaN where one is."""
    if not taken(x) or x._dtype not in FLOATS:
        return p.REDUCTIONS[op](x)
    y = p.REDUCTIONS[op](x, keepdims=True)
    return views.squeeze(with_derivatives(y, (x, share_of_extremes(x, y))))


def _extreme(op: str, elementwise: str, pair: type[ValuesAndIndices]) -> Callable[..., Any]:
    def extreme(input: Any, dim: Any = _ABSENT, keepdim: Any = _ABSENT, *, other: Any = _ABSENT) -> Any:
        if dim is _ABSENT and keepdim is _ABSENT:
            return _extreme_of_all(op, input) if other is _ABSENT else FUNCTIONS[elementwise](input, other)
        if isinstance(dim, int):
            kept = False if keepdim is _ABSENT else keepdim
            indices = Later(lambda: FUNCTIONS[f"arg{op}"](input, dim, kept))
            return pair((_extreme_along(op, input, dim, kept), indices))
        if dim is _ABSENT or dim is None or keepdim is not _ABSENT:
            raise trace_error(
                f"torch.{op} takes keepdim= beside a dim only", f"write torch.a{op}(x, keepdim=...) instead"
            )
        return FUNCTIONS[elementwise](input, dim)

    return extreme


FUNCTIONS["max"], FUNCTIONS["min"] = _extreme("max", "maximum", _Max), _extreme("min", "minimum", _Min)


def _position(op: str) -> Callable[..., Any]:
    function = getattr(extremes, f"arg{op}")
    return lambda input, dim=None, keepdim=False: function(input, dim, keepdim)


FUNCTIONS["argmax"], FUNCTIONS["argmin"] = _position("max"), _position("min")


def _spread(function: Callable[..., Any]) -> Callable[..., Any]:
    def spread(
        input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
    ) -> Any:
        if isinstance(dim, bool):  # x.var(False)
            dim, unbiased = None, dim
        given = correction if correction is not None else unbiased
        given = math.inf if given != given else given  # of NaN torch divides by 0, too
        return function(input, plain_axes(dim), correction=1 if given is None else given, keepdims=keepdim)

    return spread


FUNCTIONS["var"], FUNCTIONS["std"] = _spread(norms.var), _spread(norms.std)


@named("logsumexp")
def _logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Any:
    if plain_axes(dim) is None:
        raise ValueError("kfusion.logsumexp: dim must name an axis")
    x = views.astype(input, "float32") if input._dtype == "bool" else input
    return activations.logsumexp(x, dim, keepdim)


@named("nansum")
def _nansum(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    x = input if dtype is None else views.astype(input, dtype)
    with stage(x, "nansum"):
        made = statistics.nansum(x, plain_axes(dim), keepdim)
        return made if dtype is None else views.astype(made, dtype)


@named("nanmean")
def _nanmean(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    x = input if dtype is None else views.astype(input, dtype)
    if x._dtype not in FLOATS:
        raise TypeError(f"kfusion.nanmean: torch wants floats, got {x._dtype}")
    with stage(x, "nanmean"):
        return statistics.nanmean(x, plain_axes(dim), keepdim)


@named("count_nonzero")
def _count_nonzero(input: Any, dim: Any = None) -> Any:
    with stage(input, "count_nonzero"):
        return statistics.count_nonzero(input, plain_axes(dim))


def _with_mean(name: str) -> Any:
    def with_mean(
        input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
    ) -> Any:
        dims = None if isinstance(dim, bool) else dim
        spread = FUNCTIONS[name](input, dim, unbiased, keepdim, correction=correction)
        return spread, p.mean(input, plain_axes(dims), keepdim)

    return with_mean


for _name in ("var", "std"):
    named(f"{_name}_mean", method=False)(_with_mean(_name))


class MinAndMax(Pair):
    """What torch.aminmax returns."""

    __slots__ = ()
    name = "aminmax"
    min = property(operator.itemgetter(0))
    max = property(operator.itemgetter(1))


@named("aminmax")
def _aminmax(input: Any, *, dim: int | None = None, keepdim: bool = False) -> Any:
    axes = () if input.ndim == 0 and dim in (0, -1) else dim
    return MinAndMax((p.min(input, axes, keepdim), p.max(input, axes, keepdim)))


@named("diff")
def _diff(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    for keyword, given in (("prepend", prepend), ("append", append)):
        if given is not None:
            raise refusals.refused_keyword("torch.diff", keyword)
    if input.ndim == 0:
        raise ValueError("kfusion.diff: input must have an axis")
    with stage(input, "diff"):
        return statistics.diff(input, n, dim)


@named("trapezoid", "trapz", method=False)
def _trapezoid(y: Any, x: Any = None, *, dx: float = 1.0, dim: int = -1) -> Any:
    if y.shape[views.axis_of(y, dim, "trapezoid")] == 0:
        return views.astype(p.sum(y, dim), y._dtype)
    if y._dtype == "bool":
        raise TypeError("kfusion.trapezoid: torch wants numbers, got bool")
    with stage(y, "trapezoid"):
        if x is not None:
            return p.sum(statistics.twice_trapezoids(y, y._tracer.lift(x, "torch"), dx, dim), dim) / 2.0
        first, last = (FUNCTIONS["select"](y, dim, i) for i in (0, -1))
        return (p.sum(y, dim) - (first + last) * 0.5) * dx


# ---- norms and distances ----


@named("linalg_norm")
def _linalg_norm(input: Any, ord: Any = None, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is not None and plain_axes(dim) is None:
        raise ValueError("kfusion.linalg.norm: dim must name an axis")
    vectors = input.ndim == 1 if dim is None else isinstance(dim, int)
    if ord is not None and not vectors:
        raise not_traced("torch.linalg.norm of matrices with ord= is not traced", "write linalg.vector_norm instead")
    return _length(input, 2 if ord is None else ord, plain_axes(dim), keepdim)


@named("norm", "vector_norm")
def _norm(input: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, p: Any = None) -> Any:
    ord = p if ord is None else ord
    if isinstance(ord, str) and ord != "fro":
        raise not_traced(f"torch.norm with p={ord!r} is not traced", "write torch.linalg.svdvals(x).sum(-1) instead")
    return _length(input, 2 if ord in (None, "fro") else ord, plain_axes(dim), keepdim)


def _length(x: Any, ord: Any, axis: Any, keepdim: bool) -> Any:
    """torch takes the absolute value, whose powers do not overflow, of vectors with one element."""
    axes = range(x.ndim) if axis is None else views.axes_tuple(x, axis, "norm")
    is_one = math.prod(x.shape[a] for a in axes) == 1
    return norms.norm(x, math.inf if is_one and ord != 0 else ord, axis, keepdim)


@computed("dist", method=True)
def _dist(input: Tensor, other: Tensor, p: float = 2) -> Any:
    return norms.norm(input - other, p)


@computed("pairwise_distance", takes="numbers made floats")
def _pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    return norms.norm(x1 - x2 + eps, p, -1, keepdim)


@computed("cosine_similarity")
def _cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Any:
    return cosine(x1, x2, dim, eps)


def cosine(x: Any, y: Any, axis: int, eps: float) -> Any:
    """The cosine of the angle between vectors along an axis."""
    ndim = max(x.ndim, y.ndim)
    if not -ndim <= axis < ndim:
        raise IndexError(f"kfusion.cosine_similarity: dim {axis} is out of bounds for {ndim} axes")
    if not eps >= 0:
        raise ValueError(f"kfusion.cosine_similarity: eps must be at least 0, got {eps}")
    axis = axis % ndim - ndim  # of the broadcast shape, from its end
    shape = broadcast_shapes(x.shape, y.shape)
    if any(v.ndim < -axis or v.shape[axis] != shape[axis] for v in (x, y)):  # one element that stands for several
        x, y = (views.broadcast_to(v, shape) for v in (x, y))
    lengths = [norms.norm(v, 2, axis, True) for v in (x, y)]
    x, y = (v / passed(p.maximum(n, eps), n) for v, n in zip((x, y), lengths, strict=True))
    return p.sum(x * y, axis)


# ---- normalisations ----


@named("group_norm", method=False)
def _group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    if input.ndim < 2 or input.shape[1] % num_groups:
        raise ValueError(
            f"kfusion.group_norm: input must have channels that {num_groups} groups divide, got {input.shape}"
        )
    require_several("group_norm", input, input.shape[0] * input.shape[1] // num_groups, *input.shape[2:])
    return groupnorm(input, num_groups, weight, bias, eps=eps)


def require_several(name: str, x: Any, *extents: int) -> None:
    """Raises where each mean would be of one element."""
    if math.prod(extents) == 1:
        raise ValueError(f"kfusion.{name}: there must be more than 1 element for each mean, got input {x.shape}")
