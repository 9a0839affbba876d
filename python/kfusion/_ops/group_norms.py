"""Normalisation of each sample's groups of channels."""

from __future__ import annotations

import math

from .._graph.values import stage
from . import primitives as p
from .norms import affine, checked, moments, parameter
from .operation import Array, composite
from .views import astype, reshape

__all__ = ["groupnorm"]


@composite
def groupnorm(
    x: Array, groups: int, weight: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5
) -> Array:
    """Group normalisation. Stages: groupnorm.mean, .var, .centre, .scale.

        y = (x - mean) / sqrt(var + eps) [* weight] [+ bias], mean and var over a sample's channels of one group

    Args:
        x: floats, (samples, channels, ...).
        groups: how many, which divides the number of channels; as many as channels is instance normalisation.
        weight: (channels,), x's dtype or float32; or None.
        bias: likewise.
        eps: added to the variance.

    Returns:
        Array of x's shape and dtype.

    Raises:
        ValueError: weight or bias has another shape, or eps < 0.
        TypeError: x is no float, or weight or bias has another dtype.

    Source: Wu and He, "Group Normalization", 2018.
    """
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ValueError(f"kfusion.groupnorm: x must have channels that {groups} groups divide, got shape {x.shape}")
    checked("groupnorm", x, None, eps)
    given = {"weight": weight, "bias": bias}
    grouped = (groups, x.shape[1] // groups, math.prod(x.shape[2:]))
    parameters = [parameter("groupnorm", name, v, x, (1,)) for name, v in given.items()]
    scale, shift = (v if v is None else reshape(v, (*grouped[:2], 1)) for v in parameters)
    y = reshape(x, (x.shape[0], *grouped))
    mean, variance = moments("groupnorm", y, (2, 3))
    with stage(x, "groupnorm.centre"):
        centred = astype(y - mean, x._dtype)
    with stage(x, "groupnorm.scale"):
        return reshape(affine(centred * p.rsqrt(variance + eps), scale, shift, x), x.shape)
