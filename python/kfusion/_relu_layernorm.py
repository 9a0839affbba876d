"""The facts of ReLU followed by LayerNorm, each in one place: definition, stages, traffic, graph.

    r = max(x, 0);  y = (r - mean(r)) / sqrt(var(r) + eps) [* weight] [+ bias]

over the last axis, with the biased variance (Ba, Kiros and Hinton, "Layer Normalization", 2016).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ._arrays import SPACING
from ._devices import running
from ._graph.tracer import Argument, Tracer
from ._ops.norms import relu_layernorm
from ._spec import Spec
from ._tracing.trace import trace_with


class Stage(NamedTuple):
    """One kernel of the unfused version and how often it goes over the whole matrix."""

    name: str
    reads: int
    writes: int


class Cost(NamedTuple):
    """What a version does to memory: kernel launches and passes over the matrix (reads plus writes)."""

    launches: int
    passes: int


# Row statistics (one number per row) and the per-column weight and bias are 1/cols or 1/rows of a pass: not counted.
STAGES = (
    Stage("relu", 1, 1),
    Stage("mean", 1, 0),
    Stage("var", 1, 0),
    Stage("centre", 1, 1),
    Stage("scale", 1, 1),
)
UNFUSED = Cost(launches=len(STAGES), passes=sum(s.reads + s.writes for s in STAGES))
FUSED = Cost(launches=1, passes=STAGES[0].reads + STAGES[-1].writes)
COPY = Cost(launches=1, passes=2)


def savings_ops(elements: int) -> list[dict[str, Any]]:
    """The chain as `kfusion.savings` takes it.

    Args:
        elements: size of the matrix, in elements.

    Returns:
        One mapping per stage with "name", "input_size" and "output_size" (elements).
    """
    return [{"name": s.name, "input_size": s.reads * elements, "output_size": s.writes * elements} for s in STAGES]


Described = tuple[tuple[int, ...], str, tuple[int, ...]]  # shape, dtype, strides in elements (none: C order)


def prepare(
    x: Described, weight: Described | None, bias: Described | None, eps: float, place: str
) -> tuple[Any, dict[str, Any]]:
    """What C++ asks for where a call on CUDA is the first of its kind.

    Args:
        x: its layout.
        weight: likewise, or None.
        bias: likewise, or None.
        eps: added to the variance.
        place: "cuda:0".

    Returns:
        The graph, whose inputs are the arrays that there are, in this order, and the fields of the device.
    """
    return graph_of(x, weight, bias, eps, place), running.device(place).to_dict()


def graph_of(x: Described, weight: Described | None, bias: Described | None, eps: float, place: str) -> Any:
    """The graph of `prepare`."""
    arrays = [a and Argument(Spec(a[0], a[1], device=place), i, a[2]) for i, a in enumerate((x, weight, bias))]
    return trace_with(Tracer("relu_layernorm"), relu_layernorm, arrays, {"eps": eps}).graph


def reference(x: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None, eps: float) -> np.ndarray:
    """The definition above, in float64, whatever the dtype of the arguments; x is (rows, cols)."""
    r = np.maximum(x.astype(np.float64), 0.0)
    d = r - r.mean(-1, keepdims=True)
    y: np.ndarray = d / np.sqrt((d * d).mean(-1, keepdims=True) + eps)
    if weight is not None:
        y *= weight.astype(np.float64)
    if bias is not None:
        y += bias.astype(np.float64)
    return y


def tolerance(
    x: np.ndarray, y: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None, eps: float, dtype: str
) -> np.ndarray:
    """How far a correct kernel may be from `reference`, element by element.

    Three sources: the roundings to the stored type (unfused stores two intermediates, so half a dozen of them);
    the sums in the compute type, whose error in the mean is divided by the standard deviation; and subnormals.

    Args:
        x: (rows, cols), any dtype.
        y: the reference result for x.
        weight: (cols,) or None, as given to `reference`.
        bias: (cols,) or None.
        eps: as given to `reference`.
        dtype: the stored type's name, e.g. "bfloat16"; sums are in float32, or float64 for float64.

    Returns:
        Array of y's shape.
    """
    stored_eps, tiny = SPACING[dtype], _TINY[dtype]
    compute_eps = SPACING["float64" if dtype == "float64" else "float32"]
    r = np.maximum(x.astype(np.float64), 0.0)
    std = np.sqrt(r.var(-1, keepdims=True) + eps)
    sums = 4 * (1 + np.log2(r.shape[-1])) * compute_eps * r.max(-1, keepdims=True, initial=0.0) / std
    scale = 1.0 if weight is None else np.abs(weight.astype(np.float64))
    unbiased = np.abs(y if bias is None else y - bias.astype(np.float64))
    allowed: np.ndarray = 6 * stored_eps * (unbiased + np.abs(y)) + scale * (sums + 8 * compute_eps + tiny / std)
    return allowed + tiny


# The smallest subnormal; np.finfo knows bfloat16 only when ml_dtypes is installed.
_TINY = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}
