"""The CPU suite's functions as loops in Numba, as users write them, into a warm result.

The loops are strict (no fastmath): sums are taken in the order that stands here, hence by lanes, which LLVM makes
vectors of. Functions such as tanh are those of libm, or Intel's SVML where it is installed beside Numba.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import prange

from kfusion import _arrays, _core
from kfusion._compare.problem import Problem

from . import warm

_EPS = 1e-5
_LANES = 64  # partial sums of a row
_STRIP = 512  # columns that one thread sums at a time
_parallel = numba.njit(parallel=True, fastmath=False, error_model="numpy")
_inner = numba.njit(fastmath=False, error_model="numpy")


def prepare(problem: Problem) -> Callable[[], list[Any]]:
    """The loop for the problem's function, on its arrays.

    Raises:
        TypeError: there is none, or the arrays are not what it takes.
    """
    name = problem.traced.name
    if name not in _LOOPS:
        raise TypeError(f"no Numba loop of {name} is written here")
    (out,) = warm.results(problem)  # all these functions have one
    arrays = [*(_arrays.convert(x, "numpy") for x in problem.arrays), out]
    if any(not a.flags.c_contiguous or a.dtype.kind != "f" for a in arrays):
        raise TypeError("these Numba loops take contiguous arrays of NumPy's own float types only")
    if name in _MAPS:
        if len({a.shape for a in arrays}) != 1:
            raise TypeError("these Numba loops take arrays of one shape")
        arrays = [a.reshape(-1) for a in arrays]
    elif arrays[0].ndim != 2:
        raise TypeError("these Numba loops take rows of a matrix")
    config: Any = numba.config
    numba.set_num_threads(min(_core.get_num_threads(), config.NUMBA_NUM_THREADS))
    loop = _LOOPS[name]

    def run() -> list[Any]:
        loop(*arrays)
        return [out]

    return run


# ---- elementwise ----------------------------------------------------------------------------------------------------
# Numbers are made the arrays' dtype: Numba's float32 times int is float64.


@_parallel
def light(x, y, out):
    number = out.dtype.type
    for i in prange(out.size):
        out[i] = number(2) * x[i] + number(3) * y[i]


@_parallel
def exp_chain(x, y, out):
    number = out.dtype.type
    for i in prange(out.size):
        out[i] = math.exp(x[i]) * y[i] + number(1)


@_parallel
def tanh_chain(x, y, out):
    for i in prange(out.size):
        out[i] = math.tanh(x[i]) * y[i]


@_parallel
def gelu_chain(x, y, b, out):
    number = out.dtype.type
    for i in prange(out.size):
        v = x[i] * y[i] + b[i]
        out[i] = number(0.5) * v * (number(1) + math.erf(v * number(math.sqrt(0.5))))


@_parallel
def log_chain(x, y, out):
    number = out.dtype.type
    for i in prange(out.size):
        out[i] = math.log(max(x[i] + y[i], number(0)) + number(1))


@_parallel
def five_ops(x, out):
    number = out.dtype.type
    for i in prange(out.size):
        v = max((x[i] + number(1)) * number(2), number(0)) - number(0.5)
        out[i] = number(1) / (number(1) + math.exp(-v))


@_parallel
def twenty_ops(x, y, out):
    number = out.dtype.type
    for i in prange(out.size):
        v = x[i]
        for k in range(10):
            v = v * y[i] + number(0.1 * k)
        out[i] = v


# ---- rows -----------------------------------------------------------------------------------------------------------


def _by_lanes(first: float, term: Callable[..., Any], joined: Callable[..., Any]) -> Callable[..., Any]:
    """A loop over a row `v` that joins the terms of its elements and of a number `c`, a lane each, then the lanes."""
    term, joined = _inner(term), _inner(joined)

    @_inner
    def over(v, c):
        lanes = np.full(_LANES, v.dtype.type(first))
        whole = v.size // _LANES * _LANES
        for i in range(0, whole, _LANES):
            for k in range(_LANES):
                lanes[k] = joined(lanes[k], term(v[i + k], c))
        for i in range(whole, v.size):
            lanes[0] = joined(lanes[0], term(v[i], c))
        result = lanes[0]
        for k in range(1, _LANES):
            result = joined(result, lanes[k])
        return result

    return over


_largest = _by_lanes(-math.inf, lambda v, c: v, lambda a, b: max(a, b))
_sum = _by_lanes(0.0, lambda v, c: v, lambda a, b: a + b)
_squares = _by_lanes(0.0, lambda v, c: (v - c) * (v - c), lambda a, b: a + b)


@_inner
def _centre_and_scale(v):
    """The mean, and what a centred row is multiplied by."""
    number = v.dtype.type
    mean = _sum(v, number(0)) / number(v.size)
    return mean, number(1) / math.sqrt(_squares(v, mean) / number(v.size) + number(_EPS))


@_parallel
def softmax(x, out):
    number = x.dtype.type
    for r in prange(x.shape[0]):
        row, y = x[r], out[r]
        largest = _largest(row, number(0))
        for i in range(row.size):
            y[i] = math.exp(row[i] - largest)
        scale = number(1) / _sum(y, number(0))
        for i in range(row.size):
            y[i] *= scale


@_parallel
def layernorm(x, weight, bias, out):
    for r in prange(x.shape[0]):
        row, y = x[r], out[r]
        mean, scale = _centre_and_scale(row)
        for i in range(row.size):
            y[i] = (row[i] - mean) * scale * weight[i] + bias[i]


@_parallel
def relu_layernorm(x, out):
    number = x.dtype.type
    for r in prange(x.shape[0]):
        row, y = x[r], out[r]
        for i in range(row.size):
            y[i] = max(row[i], number(0))
        mean, scale = _centre_and_scale(y)
        for i in range(row.size):
            y[i] = (y[i] - mean) * scale


@_parallel
def sum_rows(x, out):
    for r in prange(x.shape[0]):
        out[r] = _sum(x[r], x.dtype.type(0))


@_parallel
def sum_columns(x, out):
    cols = x.shape[1]
    for strip in prange((cols + _STRIP - 1) // _STRIP):
        first, last = strip * _STRIP, min((strip + 1) * _STRIP, cols)
        sums = out[first:last]
        sums[:] = 0
        for r in range(x.shape[0]):
            row = x[r, first:last]
            for i in range(row.size):
                sums[i] += row[i]


def _by_name(*loops: Any) -> dict[str, Any]:
    return {loop.__name__: loop for loop in loops}


_MAPS = _by_name(light, exp_chain, tanh_chain, gelu_chain, log_chain, five_ops, twenty_ops)
_LOOPS = _MAPS | _by_name(softmax, layernorm, relu_layernorm, sum_rows, sum_columns)
