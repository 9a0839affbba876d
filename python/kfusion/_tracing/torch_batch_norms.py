"""torch's normalisations with running statistics: in training they write to these, once in each call."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from .._graph.tracer import constant
from .._graph.values import stage
from .._ops import norms, views
from .._ops import primitives as p
from .._ops.group_norms import groupnorm
from . import writing
from .torch_functions import named
from .torch_reductions import require_several

_FIRST_MARK = 2.0**200  # powers and their small multiples that no number of batches reaches


def batches_so_far(value: Any) -> float | None:
    """What float() gives of the number of batches that a module of torch has seen, whose reciprocal it takes for the
    momentum of an average of them all: a mark by which batch_norm knows it. None of any other value.
    """
    norms_of_torch = sys.modules.get("torch.nn.modules.batchnorm")
    if norms_of_torch is None or _caller().f_code is not norms_of_torch._BatchNorm.forward.__code__:
        return None
    counts = value._tracer.counts
    mark = _FIRST_MARK * (1 + len(counts))
    counts[1.0 / mark] = value
    return mark


def _caller() -> FrameType:
    """The frame that called a method of a traced value, perhaps by way of torch's function mode."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("kfusion."):
        frame = frame.f_back
    return frame


@named("batch_norm", method=False)
def _batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if not training:
        return norms.batchnorm(input, running_mean, running_var, weight, bias, eps=eps)
    axes = [a for a in range(input.ndim) if a != 1]
    count = math.prod(input.shape[a] for a in axes)
    if count == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.shape}")
    if eps <= 0:
        raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
    if running_mean is None and running_var is None:
        return norms.batchnorm(input, None, None, weight, bias, eps=eps)
    y, mean, var = _normalised("batchnorm", input, axes, (weight, bias), eps)
    _update("batchnorm", input, running_mean, mean, momentum)
    _update("batchnorm", input, running_var, var * _unbiased(count), momentum)
    return y


@named("instance_norm", method=False)
def _instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if not use_input_stats:
        return norms.batchnorm(input, running_mean, running_var, weight, bias, eps=eps)
    require_several("instance_norm", input, *input.shape[2:])
    if running_mean is None and running_var is None:
        return groupnorm(input, input.shape[1], weight, bias, eps=eps)
    axes = range(2, input.ndim)
    y, mean, var = _normalised("instancenorm", input, axes, (weight, bias), eps)
    count = math.prod(input.shape[a] for a in axes)
    _update("instancenorm", input, running_mean, mean, momentum)
    _update("instancenorm", input, running_var, var * _unbiased(count), momentum)
    return y


def _normalised(
    name: str, x: Any, axes: Sequence[int], parameters: tuple[Any, Any], eps: float
) -> tuple[Any, Any, Any]:
    weight, bias = (v if v is None else x._tracer.lift(v, "torch") for v in parameters)
    return norms.of_own_moments(name, x, axes, weight, bias, 1, eps)


def _unbiased(count: Any) -> Any:
    return count / (count - 1)


def _update(name: str, x: Any, running: Any, present: Any, momentum: Any) -> None:
    """running = (1 - momentum) * running + momentum * present, whose mean over samples counts where there are several.
    No gradient passes through it.
    """
    if running is None:
        return
    count = x._tracer.counts.get(momentum) if type(momentum) is float else None
    running = x._tracer.to_write(running)
    with stage(x, f"{name}.update"):
        present = views.reshape(constant(present), (-1, present.shape[1]))
        present = p.mean(present, 0) if present.shape[0] != 1 else views.reshape(present, (present.shape[1],))
        if count is not None:
            momentum = 1.0 / views.astype(count, present._dtype)
        new = views.wide(running) * (1 - momentum) + present * momentum
        writing.write(running, views.astype(new, running._dtype))
