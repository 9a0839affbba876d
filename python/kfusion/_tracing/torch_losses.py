"""torch's losses on traced values: one stage each, but for those that are kfusion's own."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from .._ops import formulas, losses, norms, views
from .._ops import primitives as p
from .._ops.gradients import passed, taken, unless, with_derivatives
from .torch_functions import FUNCTIONS, named
from .torch_stages import Tensor, computed

_BY_NUMBER = {0: "none", 1: "mean", 2: "sum"}  # as torch's C++ names reductions
_KEYWORDS = {"size_average": None, "reduce": None, "reduction": "mean"}


def loss(name: str, takes: str = "floats") -> Callable[..., Any]:
    """Enters a function of the losses of the elements under torch's name; it gets torch's keywords for reducing them.

    A function may also give a second value: what each element counts in the mean.
    """

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def reduced(*args: Any, **kwargs: Any) -> Any:
            given = [kwargs.pop(keyword, default) for keyword, default in _KEYWORDS.items()]
            return reduced_by(function(*args, **kwargs), reduction_of(name, *given))

        own = inspect.signature(function)
        kind = inspect.Parameter.KEYWORD_ONLY
        added = [inspect.Parameter(k, kind, default=default) for k, default in _KEYWORDS.items()]
        reduced.__signature__ = own.replace(parameters=[*own.parameters.values(), *added])  # type: ignore[attr-defined]
        return computed(name, takes=takes)(reduced)  # type: ignore[no-any-return]

    return enter


def reduction_of(name: str, size_average: Any, reduce: Any, reduction: Any) -> str:
    """The reduction's name; the two old keywords decide where they are given."""
    if size_average is not None or reduce is not None:
        if not {type(size_average), type(reduce)} <= {bool, type(None)}:
            raise TypeError(f"kfusion.{name}: size_average and reduce must be bools, got {size_average} and {reduce}")
        return "none" if reduce is False else "sum" if size_average is False else "mean"
    reduction = _BY_NUMBER.get(reduction, reduction)
    if reduction not in _BY_NUMBER.values():
        raise ValueError(f'kfusion.{name}: reduction must be "mean", "sum" or "none", got {reduction!r}')
    return str(reduction)


def reduced_by(result: Any, reduction: str) -> Any:
    """The losses themselves, their sum or their mean; of losses and what each counts, the weighted mean."""
    values, counts = result if isinstance(result, tuple) else (result, None)
    if reduction == "none":
        return values
    if counts is None or reduction == "sum":
        return p.REDUCTIONS[reduction](values)
    return p.sum(values) / p.sum(counts)


# ---- of two tensors ----


def _weighted(name: str, values: Any, weight: Any, shape: tuple[int, ...]) -> Any:
    """The losses, and what they count where there is a weight."""
    if weight is None:
        return values
    if weight.shape != shape:
        raise ValueError(f"kfusion.{name}: weight must have shape {shape}, got {weight.shape}")
    return values * weight, weight


@loss("weighted_l1_loss")
def _weighted_l1_loss(input: Tensor, target: Tensor, weight: Tensor) -> Any:
    return _weighted("l1_loss", p.absolute(input - target), weight, input.shape)


@loss("l1_loss")
def _plain_l1_loss(input: Tensor, target: Tensor) -> Any:
    return p.absolute(input - target)


@named("l1_loss", method=False)
def _l1_loss(
    input: Any,
    target: Any,
    *,
    size_average: Any = None,
    reduce: Any = None,
    reduction: Any = "mean",
    weight: Any = None,
) -> Any:
    how = reduction_of("l1_loss", size_average, reduce, reduction)
    weight = _dropped_weight() if weight is None else weight
    if weight is None:
        return _plain_l1_loss(input, target, reduction=how)
    return _weighted_l1_loss(input, target, weight, reduction=how)


def _dropped_weight() -> Any:
    """torch 2.13's l1_loss does not hand over its weight: it is in that function's frame, the outer one of two."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        is_torchs = frame.f_code.co_name == "l1_loss" and frame.f_globals.get("__name__") == "torch.nn.functional"
        if is_torchs and (weight := frame.f_locals.get("weight")) is not None:
            return weight
        frame = frame.f_back
    return None


@loss("weighted_mse_loss")
def _weighted_mse_loss(input: Tensor, target: Tensor, *, weight: Tensor = None) -> Any:
    return _weighted("mse_loss", p.square(input - target), weight, input.shape)


@named("mse_loss", method=False)
def _mse_loss(
    input: Any,
    target: Any,
    *,
    size_average: Any = None,
    reduce: Any = None,
    reduction: Any = "mean",
    weight: Any = None,
) -> Any:
    how = reduction_of("mse_loss", size_average, reduce, reduction)
    if weight is not None:
        return _weighted_mse_loss(input, target, weight=weight, reduction=how)
    return losses.mse(input, target, reduction=how)


@loss("smooth_l1_loss")
def _smooth_l1_loss(input: Tensor, target: Tensor, *, beta: float = 1.0) -> Any:
    d = input - target
    if not beta >= 0:
        raise ValueError(f"kfusion.smooth_l1_loss: beta must be at least 0, got {beta}")
    if beta == 0:
        return p.absolute(d)
    near = unless(p.isinf(d), d)  # NaN is near: its gradient is NaN
    return p.where(p.absolute(d) >= beta, p.absolute(d) - 0.5 * beta, near * near * (0.5 / beta))


@loss("huber_loss")
def _huber_loss(input: Tensor, target: Tensor, *, delta: float = 1.0, weight: Tensor = None) -> Any:
    if not delta > 0:
        raise ValueError(f"kfusion.huber_loss: delta must be above 0, got {delta}")
    d = input - target
    values = p.where(p.absolute(d) < delta, d * d * 0.5, (p.absolute(d) - 0.5 * delta) * delta)
    values = with_derivatives(values, (d, p.clip(d, -delta, delta))) if taken(d) else values
    weighted = _weighted("huber_loss", values, weight, input.shape)
    return weighted[0] if isinstance(weighted, tuple) else weighted  # whose mean is a plain one


@loss("binary_cross_entropy")
def _binary_cross_entropy(input: Tensor, target: Tensor, *, weight: Tensor = None) -> Any:
    require_same_shape("binary_cross_entropy", input, target)
    log, log_of_rest = (p.maximum(v, -100.0) for v in (p.log(input), p.log1p(-input)))
    values = (target - 1.0) * log_of_rest - target * log
    if taken(input):  # neither logarithm has a gradient where it is infinite
        slope = (input - target) / p.maximum((1.0 - input) * input, 1e-12)
        values = with_derivatives(values, (input, slope), (target, p.log(1.0 - input) - p.log(input)))
    return values if weight is None else values * weight


@loss("binary_cross_entropy_with_logits")
def _binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, *, weight: Tensor = None, pos_weight: Tensor = None
) -> Any:
    require_same_shape("binary_cross_entropy_with_logits", input, target)
    log = formulas.log_sigmoid(input)
    scaled = log if pos_weight is None else log * ((pos_weight - 1.0) * target + 1.0)
    values = (1.0 - target) * input - scaled
    if taken(values) and pos_weight is None:
        values = with_derivatives(values, (input, p.sigmoid(input) - target), (target, -input))
    elif taken(values):
        share = target * pos_weight
        slope, of_target = (
            p.sigmoid(input) * (share + 1.0 - target) - share,
            formulas.log_sigmoid(-input) - pos_weight * log,
        )
        values = with_derivatives(values, (input, slope), (target, of_target), (pos_weight, -target * log))
    return values if weight is None else values * weight


def require_same_shape(name: str, input: Any, target: Any) -> None:
    """Raises a ValueError where they differ."""
    if target.shape != input.shape:
        raise ValueError(f"kfusion.{name}: target must have shape {input.shape}, got {target.shape}")


@computed("kl_div")
def _kl_div(
    input: Tensor,
    target: Tensor,
    *,
    size_average: Any = None,
    reduce: Any = None,
    reduction: Any = "mean",
    log_target: bool = False,
) -> Any:
    values = p.exp(target) * (target - input) if log_target else formulas.xlogy(target, target) - target * input
    if reduction == "batchmean" and input.ndim:
        return p.sum(values) / input.shape[0]
    how = "sum" if reduction == "batchmean" else reduction
    return reduced_by(values, reduction_of("kl_div", size_average, reduce, how))


@loss("hinge_embedding_loss")
def _hinge_embedding_loss(input: Tensor, target: Tensor, *, margin: float = 1.0) -> Any:
    beyond = p.where(target != 1, FUNCTIONS["clamp_min"](margin - input, 0), 0.0)
    return beyond + p.where(target != -1, input, 0.0)


@loss("soft_margin_loss")
def _soft_margin_loss(input: Tensor, target: Tensor) -> Any:
    return -formulas.log_sigmoid(input * target)


@loss("multilabel_soft_margin_loss")
def _multilabel_soft_margin_loss(input: Tensor, target: Tensor, *, weight: Tensor = None) -> Any:
    values = -(target * formulas.log_sigmoid(input) + (1.0 - target) * formulas.log_sigmoid(-input))
    return p.sum(values if weight is None else values * weight, -1) / input.shape[-1]


@loss("poisson_nll_loss", takes="numbers made floats")
def _poisson_nll_loss(
    input: Tensor, target: Tensor, *, log_input: bool = True, full: bool = False, eps: float = 1e-8
) -> Any:
    values = p.exp(input) - target * input if log_input else input - target * p.log(input + eps)
    if not full:
        return values
    stirling = target * p.log(target) - target + p.log(target * (2 * math.pi)) * 0.5
    return values + p.where(target > 1, stirling, 0.0)


@loss("gaussian_nll_loss")
def _gaussian_nll_loss(input: Tensor, target: Tensor, var: Tensor, *, full: bool = False, eps: float = 1e-6) -> Any:
    if var.ndim and var.shape != input.shape:
        var = views.expand_dims(var, -1) if var.shape == input.shape[:-1] else var
        unlike = [n for n, m in zip(var.shape, input.shape, strict=False) if n != m]
        if var.ndim != input.ndim or unlike not in ([], [1]):
            raise ValueError(f"kfusion.gaussian_nll_loss: var must fit input {input.shape}, got shape {var.shape}")
    var = passed(p.maximum(var, eps), var)
    values = (p.log(var) + p.square(input - target) / var) * 0.5
    return values + 0.5 * math.log(2 * math.pi) if full else values


# ---- of three tensors, and of vectors ----


@loss("margin_ranking_loss", takes="numbers made floats")
def _margin_ranking_loss(input1: Tensor, input2: Tensor, target: Tensor, *, margin: float = 0) -> Any:
    if not input1.ndim == input2.ndim == target.ndim:
        raise ValueError("kfusion.margin_ranking_loss: all tensors must have as many axes")
    return FUNCTIONS["clamp_min"](target * (input2 - input1) + margin, 0)


@loss("triplet_margin_loss", takes="numbers made floats")
def _triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
) -> Any:
    if margin <= 0:
        raise ValueError(f"kfusion.triplet_margin_loss: margin must be above 0, got {margin}")
    near, far = (norms.norm(anchor - other + eps, p, -1) for other in (positive, negative))
    others = norms.norm(positive - negative + eps, p, -1) if swap else far
    return FUNCTIONS["clamp_min"](near - FUNCTIONS["minimum"](far, others) + margin, 0)


@named("triplet_margin_with_distance_loss", method=False)
def _triplet_margin_with_distance_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    distance_function: Callable[..., Any] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: Any = "mean",
) -> Any:
    distance = FUNCTIONS["pairwise_distance"] if distance_function is None else distance_function
    if margin <= 0:
        raise ValueError(f"kfusion.triplet_margin_with_distance_loss: margin must be above 0, got {margin}")
    near, far = distance(anchor, positive), distance(anchor, negative)
    far = FUNCTIONS["minimum"](far, distance(positive, negative)) if swap else far
    how = reduction_of("triplet_margin_with_distance_loss", None, None, reduction)
    return reduced_by(FUNCTIONS["clamp_min"](near - far + margin, 0), how)


@loss("cosine_embedding_loss", takes="made floats")
def _cosine_embedding_loss(input1: Tensor, input2: Tensor, target: Tensor, *, margin: float = 0) -> Any:
    lengths = [p.sum(v * v, -1) + 1e-12 for v in (input1, input2)]
    cosine = p.sum(input1 * input2, -1) / p.sqrt(lengths[0] * lengths[1])
    return p.where(target == 1, 1.0 - cosine, 0.0) + p.where(
        target == -1, FUNCTIONS["clamp_min"](cosine - margin, 0), 0.0
    )
