"""One row of the op table at a time on the CPU executor's vectors, and errors in units in the last place (ULP)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import kfusion as kf
import reference_ops
from kfusion import _core
from kinds import np_dtype

DEVICE = kf.device("H200").to_dict()
# Bits of the fraction with the leading one, and the smallest positive number's exponent.
FORMATS = {np.dtype(np.float32): (24, -149), np.dtype(np.float64): (53, -1074)}


def sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


# Functions that have quick versions for bfloat16 with AVX-512.
QUICK = {"exp", "exp2", "sigmoid"}

# Functions of a wider type than what is tested, as exact as that is.
EXACT = reference_ops.MAPS | {"sigmoid": sigmoid}


def kernel(name: str, *dtypes: str, size: int) -> Callable[..., np.ndarray]:
    """The map `name` of arrays of `size` elements, for the instruction set in use."""
    return kernel_of(lambda g, ids: g.map(name, ids), *dtypes, size=size)


def cast_kernel(to: str, from_: str, size: int) -> Callable[..., np.ndarray]:
    return kernel_of(lambda g, ids: g.cast(ids[0], to), from_, size=size)


def kernel_of(build: Callable[[_core.Graph, list[int]], int], *dtypes: str, size: int) -> Callable[..., np.ndarray]:
    g = _core.Graph()
    result = build(g, [g.input(f"x{i}", (size,), t) for i, t in enumerate(dtypes)])
    g.set_outputs([("y", result)])
    [run] = _core.testing.fused_kernels(g, DEVICE)

    def call(*arrays: np.ndarray) -> np.ndarray:
        y = np.empty(size, np_dtype(g.node(result)["dtype"]))
        run([x.ctypes.data for x in arrays], [y.ctypes.data])
        return y

    return call


def ulp_errors(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distances from the exact values, which come in a wider type, in units of the last place that got's type has
    there (J.-M. Muller, "On the definition of ulp(x)", 2005). Infinity where one alone is NaN, where both are zeros of
    different signs, and where an infinity is not one; rounding to infinity in time is none."""
    digits, lowest = FORMATS[got.dtype]
    wide = exact.dtype.type
    with np.errstate(all="ignore"):
        end = np.ldexp(wide(1), np.finfo(got.dtype).maxexp)  # what follows the largest number
        _, exponents = np.frexp(np.abs(np.clip(exact, -end, end)))
        ulp = np.ldexp(wide(1), np.clip(exponents - digits, lowest, np.finfo(got.dtype).maxexp - digits))
        errors = np.abs(np.clip(got.astype(wide), -end, end) - np.clip(exact, -end, end)) / ulp
        rounded = exact.astype(got.dtype)
    wrong = np.isnan(got) != np.isnan(exact)
    wrong |= (got == 0) & (rounded == 0) & (np.signbit(got) != np.signbit(exact))
    wrong |= np.isinf(exact) & (got != exact)
    return np.where(wrong, np.inf, np.where(np.isnan(got), 0, errors)).astype(float)
