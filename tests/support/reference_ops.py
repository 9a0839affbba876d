"""Reference ops: what each row of cpp/kfusion/ops/ops.def means, in NumPy, one line per op.

Floats come as float64 arrays (whatever the op's dtype), integers and bools as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def _philox(x: int, y: int, z: int) -> int:
    """Philox 4x32-10 as Salmon et al. define it: a word of the block of counter (x / 4, y) under the key z."""
    low = 2**32 - 1
    counter = [(x >> 2) & low, (x >> 34) & low, y & low, (y >> 32) & low]
    key = [z & low, (z >> 32) & low]
    for _ in range(10):
        products = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (products[1] >> 32) ^ counter[1] ^ key[0],
            products[1] & low,
            (products[0] >> 32) ^ counter[3] ^ key[1],
            products[0] & low,
        ]
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    return counter[x & 3]


MAPS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "floor_divide": np.floor_divide,
    "remainder": np.remainder,
    "power": np.power,
    "negative": np.negative,
    "positive": np.positive,
    "absolute": np.absolute,
    "sign": np.sign,
    "square": np.square,
    "reciprocal": np.reciprocal,
    "sqrt": np.sqrt,
    "cbrt": np.cbrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "hypot": np.hypot,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "logaddexp": np.logaddexp,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "arcsin": np.arcsin,
    "arccos": np.arccos,
    "arctan": np.arctan,
    "arctan2": np.arctan2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "arcsinh": np.arcsinh,
    "arccosh": np.arccosh,
    "arctanh": np.arctanh,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "floor": np.floor,
    "ceil": np.ceil,
    "rint": np.rint,
    "trunc": np.trunc,
    "relu": lambda x: np.where(x < 0, x.dtype.type(0), x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x.astype(float))),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "where": np.where,
    "copysign": np.copysign,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_not": np.logical_not,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
    "philox": np.vectorize(lambda x, y, z: _philox(int(x), int(y), int(z)), otypes=[np.int64]),
    "invert": np.invert,
}

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "mean": np.mean,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
    "any": np.any,
    "all": np.all,
}


def conv2d(
    x: np.ndarray,
    w: np.ndarray,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> np.ndarray:
    """One product per offset within the window."""
    images, outputs, channels = len(x), len(w), w.shape[1]
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    x = x.reshape(images, groups, channels, *x.shape[2:])
    w = w.reshape(groups, outputs // groups, *w.shape[1:])
    size = [(x.shape[3 + a] - dilation[a] * (w.shape[3 + a] - 1) - 1) // stride[a] + 1 for a in (0, 1)]
    y = np.zeros((images, groups, outputs // groups, *size))
    for r, c in np.ndindex(*w.shape[3:]):
        rows = np.arange(size[0]) * stride[0] + r * dilation[0]
        cols = np.arange(size[1]) * stride[1] + c * dilation[1]
        y += np.einsum("ngchw,goc->ngohw", x[..., rows[:, None], cols], w[..., r, c])
    return y.reshape(images, outputs, *size)


NODES: dict[str, Callable[..., Any]] = {
    "input": lambda x: x,
    "constant": np.asarray,
    "iota": lambda shape, axis: np.indices(shape)[axis],
    "cast": lambda x, dtype: x.astype(dtype),
    "transpose": np.transpose,
    "reshape": np.reshape,
    "slice": lambda x, slices: x[slices],
    "broadcast": np.broadcast_to,
    "matmul": np.matmul,
    "conv2d": conv2d,
    "take": np.take,
    "take_along_axis": np.take_along_axis,
    "library_call": lambda function, *arrays: function(*arrays),
    "library_result": lambda results, index: results[index],
    "concatenate": np.concatenate,
}
