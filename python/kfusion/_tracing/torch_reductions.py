"""torch's reductions, distances and normalisations beyond those of kfusion's own."""

from __future__ import annotations

import math
import operator
from typing import Any

from .._graph.sizes import broadcast_shapes
from .._graph.values import stage
from .._ops import norms, statistics, views
from .._ops import primitives as p
from .._ops.group_norms import groupnorm
from .._spec import FLOATS
from . import refusals
from .torch_functions import FUNCTIONS, Pair, named, plain_axes
from .torch_stages import Tensor, computed

# ---- reductions ----


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
    if y._dtype == "bool":
        raise TypeError("kfusion.trapezoid: torch wants numbers, got bool")
    with stage(y, "trapezoid"):
        return statistics.trapezoid(y, None if x is None else y._tracer.lift(x, "torch"), dx, dim)


# ---- distances ----


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
    axis = axis % ndim - ndim  # of the broadcast shape, from its end
    shape = broadcast_shapes(x.shape, y.shape)
    if any(v.ndim < -axis or v.shape[axis] != shape[axis] for v in (x, y)):  # one element that stands for several
        x, y = (views.broadcast_to(v, shape) for v in (x, y))
    x, y = (v / p.maximum(norms.norm(v, 2, axis, True), eps) for v in (x, y))
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
