"""torch's dropouts on traced values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from .._graph.values import stage
from .._ops import views
from .._ops.dropout import dropped, kept, one_of, probability
from .torch_functions import named

# At -infinity, of the activation that alpha dropout is for (Klambauer et al., "Self-Normalizing Networks", 2017).
_LEAST = -1.7580993408473766


def _dropout(
    name: str, trains: bool, whole: Callable[[Any], tuple[int, ...]], of: Callable[..., Any]
) -> Callable[..., Any]:
    def dropout(input: Any, p: float = 0.5, training: bool = trains, *, train: bool | None = None) -> Any:
        with stage(input, name):
            probable = probability(name, input, p)
            if not (training if train is None else train) or probable == 0:
                return input
            return of(input, probable, whole(input))

    return dropout


def _zeroed(x: Any, p: float, shape: tuple[int, ...]) -> Any:
    return dropped(x, p, shape=shape)


def _saturated(x: Any, p: float, shape: tuple[int, ...]) -> Any:
    """Elements become the least of the activation instead of 0; what is then done to all keeps mean and variance."""
    if p == 1:
        return x * 0.0
    scale = 1 / math.sqrt((_LEAST**2 * p + 1) * (1 - p))
    keeps = kept(x, p, shape=shape)
    shift = -scale * _LEAST * p
    y = views.wide(x) * one_of(x, keeps, scale, 0.0) + one_of(x, keeps, shift, scale * _LEAST + shift)
    return views.astype(y, x._dtype)


def _every_element(x: Any) -> tuple[int, ...]:
    return tuple(x.shape)


def _channels(x: Any) -> tuple[int, ...]:
    """The first two axes, of samples and channels."""
    if x.ndim < 2:
        raise ValueError(f"kfusion.feature_dropout: input must have samples and channels, got shape {x.shape}")
    return tuple(n if i < 2 else 1 for i, n in enumerate(x.shape))


def _channels_of(name: str, axes: int) -> Callable[[Any], tuple[int, ...]]:
    """Those of arrays of so many axes behind the channels, where there may be one sample without an axis."""

    def channels(x: Any) -> tuple[int, ...]:
        if x.ndim not in (axes + 1, axes + 2):
            expected = f"{axes + 1} or {axes + 2} axes"
            raise RuntimeError(f"kfusion.{name}: input must have {expected}, got shape {x.shape}")
        first = 1 if x.ndim == axes + 1 else 2
        return tuple(n if i < first else 1 for i, n in enumerate(x.shape))

    return channels


def _channels_of_2d(x: Any) -> tuple[int, ...]:
    """torch takes three axes for samples, channels and one more here, and more than four for what they are."""
    if x.ndim not in (3, 4):
        warnings.warn(f"dropout2d of {x.ndim} axes: all but the first two are those of one channel", stacklevel=2)
    return _channels(x)


for _name, _trains, _whole, _of in (
    ("dropout", True, _every_element, _zeroed),
    ("feature_dropout", True, _channels, _zeroed),
    ("alpha_dropout", False, _every_element, _saturated),
    ("feature_alpha_dropout", False, _channels, _saturated),
    ("dropout1d", True, _channels_of("dropout1d", 1), _zeroed),
    ("dropout2d", True, _channels_of_2d, _zeroed),
    ("dropout3d", True, _channels_of("dropout3d", 3), _zeroed),
):
    named(_name, method=False)(_dropout(_name, _trains, _whole, _of))
