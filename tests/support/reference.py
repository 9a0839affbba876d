"""Reference formulas: float64 NumPy, the formulas as written in the literature, nothing shared with the package.

Half types are upcast before anything else: their own arithmetic (ml_dtypes) rounds after every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def float64(x: Any) -> np.ndarray:
    """x as float64; torch tensors (bfloat16 too) are upcast by torch, which NumPy cannot read."""
    if type(x).__module__.partition(".")[0] == "torch":
        x = x.detach().double().cpu().numpy()
    elif hasattr(x, "numpy"):
        x = x.numpy()
    return np.asarray(x).astype(np.float64)


def relu(x: Any) -> np.ndarray:
    """max(x, 0); NaN stays NaN."""
    return np.maximum(float64(x), 0.0)


def layernorm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> np.ndarray:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis, biased two-pass variance."""
    x = float64(x)
    with np.errstate(invalid="ignore", divide="ignore"):  # infinities, and eps = 0 on a constant row
        centred = x - x.mean(-1, keepdims=True)
        y = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + eps)
    if weight is not None:
        y = y * float64(weight)
    if bias is not None:
        y = y + float64(bias)
    return y


def relu_layernorm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> np.ndarray:
    """layernorm(relu(x)); any leading axes. Empty arrays give empty arrays."""
    if 0 in np.shape(x):
        return np.empty(np.shape(x))
    return layernorm(relu(x), weight, bias, eps)


def savings(ops: Iterable[Mapping[str, Any]], dtype_bytes: int = 2) -> dict[str, Any]:
    """The calculator's contract in plain Python: exact integers, one float division, round half as Python does.

    Unfused, every operation reads its input and writes its output; fused, only the first input is read and only
    the last output is written.
    """
    sizes = [(int(op["input_size"]), int(op["output_size"])) for op in ops]
    result: dict[str, Any] = {"unfused_bytes": 0, "fused_bytes": 0, "savings_bytes": 0, "savings_pct": 0.0}
    if not sizes:
        return result
    unfused = sum(i + o for i, o in sizes) * int(dtype_bytes)
    fused = (sizes[0][0] + sizes[-1][1]) * int(dtype_bytes)
    result.update(unfused_bytes=unfused, fused_bytes=fused, savings_bytes=unfused - fused)
    result["savings_pct"] = round((unfused - fused) / unfused * 100, 2) if unfused else 0.0
    result["speedup_estimate"] = round(unfused / fused, 2) if fused else 0
    return result
