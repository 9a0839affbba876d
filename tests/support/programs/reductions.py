"""Reductions, and composites that reduce: how each is written, and what it makes of values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import reference_ops
from kinds import SPACING

from .operations import Operation
from .values import Unfit, Value, computed, is_exact_sum, numeric, same, sum_error, terms_of

REDUCTIONS: dict[str, Operation] = {}


def _unsigned(v: Value) -> Value:
    """Nobody says which zero a reduction gives."""
    return replace(v, signed=v.signed and bool(v.array.all()))


def _summed(name: str) -> Callable[..., Value]:
    def value(x: Value, axis: Any, keepdims: bool) -> Value:
        if x.array.size == 0:
            raise Unfit
        terms = terms_of(x, axis)
        array = reference_ops.REDUCTIONS[name](numeric(x), axis=axis, keepdims=keepdims)
        dtype = x.dtype if x.is_float else "int64" if name == "sum" else "float64"
        exact = is_exact_sum(x, terms) and (name == "sum" or terms & (terms - 1) == 0)
        error = 0.0 if exact else terms * x.error + sum_error(terms, x.top, x.dtype)
        v = computed(array, dtype, [x], error / (terms if name == "mean" else 1), exact=exact)
        return _unsigned(v) if exact else replace(v, same_bits=False)

    return value


def _chosen(name: str) -> Callable[..., Value]:
    def value(x: Value, axis: Any, keepdims: bool) -> Value:
        if x.array.size == 0 or (name in ("any", "all") and x.dtype != "bool"):
            raise Unfit
        return _unsigned(same(reference_ops.REDUCTIONS[name](x.array, axis=axis, keepdims=keepdims), [x]))

    return value


def _product(x: Value, axis: Any, keepdims: bool) -> Value:
    terms = terms_of(x, axis)
    if not x.is_float or x.array.size == 0 or terms > 16:
        raise Unfit
    largest = max(x.top + x.error, 1.0) ** terms
    error = terms * largest * (x.error + 4 * SPACING[x.dtype])
    array = np.prod(x.array, axis=axis, keepdims=keepdims)
    return replace(_unsigned(computed(array, x.dtype, [x], error, exact=False)), same_bits=False)


def _running(x: Value, axis: int) -> Value:
    """Sums of all elements so far."""
    if x.array.size == 0 or x.array.ndim == 0 or not x.is_float:
        raise Unfit
    terms = x.shape[axis]
    exact = is_exact_sum(x, terms)
    error = 0.0 if exact else terms * x.error + sum_error(terms, x.top, x.dtype)
    v = computed(np.cumsum(x.array, axis), x.dtype, [x], error, exact=exact)
    return _unsigned(v) if exact else replace(v, same_bits=False)


def _found(name: str) -> Callable[..., Value]:
    """The first position, of numbers that are known exactly."""

    def value(x: Value, axis: Any, keepdims: bool) -> Value:
        if x.array.size == 0 or x.error or isinstance(axis, tuple):
            raise Unfit
        return same(getattr(np, name)(x.array, axis=axis, keepdims=keepdims), [x], dtype="int64")

    return value


def _method(name: str) -> Callable[..., str]:
    return lambda x, axis, keepdims: f"{x}.{name}(axis={axis}, keepdims={keepdims})"


REDUCTIONS |= {name: Operation(_method(name), _summed(name)) for name in ("sum", "mean")}
REDUCTIONS |= {name: Operation(_method(name), _chosen(name)) for name in ("max", "min", "any", "all")}

REDUCTIONS["prod"] = Operation(_method("prod"), _product)
REDUCTIONS["cumsum"] = Operation(lambda x, axis: f"np.cumsum({x}, {axis})", _running)
REDUCTIONS |= {name: Operation(_method(name), _found(name)) for name in ("argmax", "argmin")}


def _moments(x: Value, axis: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """Centred, variance, and the error of the centred."""
    if not x.is_float or x.array.size == 0:
        raise Unfit
    terms = terms_of(x, axis)
    d = x.array - x.array.mean(axis, keepdims=True)
    error = 2 * x.error + 2 * sum_error(terms, x.top, x.dtype) / terms + 8 * SPACING[x.dtype] * x.top
    return d, (d * d).mean(axis, keepdims=True), error


def _var(root: bool) -> Callable[..., Value]:
    def value(x: Value, axis: Any, keepdims: bool) -> Value:
        d, variance, error = _moments(x, axis)
        top = float(np.abs(d).max())
        terms = terms_of(x, axis)
        error = (2 * top + error) * error + sum_error(terms, top**2, x.dtype) / terms + 4 * SPACING[x.dtype] * top**2
        if root:
            low = float(variance.min()) - error
            if low < 0.01:
                raise Unfit
            variance, error = np.sqrt(variance), error / (2 * math.sqrt(low))
        if not keepdims:
            variance = variance.reshape(np.sum(x.array, axis=axis).shape)
        return replace(computed(variance, x.dtype, [x], error, exact=False), same_bits=False)

    return value


def _with_axis(name: str) -> Callable[..., str]:
    return lambda x, axis, keepdims: f"kf.{name}({x}, axis={axis}, keepdims={keepdims})"


REDUCTIONS["var"] = Operation(_with_axis("var"), _var(False))
REDUCTIONS["std"] = Operation(_with_axis("std"), _var(True))


def _layernorm(x: Value, axis: Any) -> Value:
    d, variance, error = _moments(x, axis)
    deviation = np.sqrt(variance + 0.25)
    top = float(np.abs(d).max())
    # The quotient's slope: the variance moves by 2 top error.
    error = 2 * error + top * (2 * top + error) * error / 0.25 + 16 * SPACING[x.dtype] * (1 + top)
    error += top * sum_error(terms_of(x, axis), top**2, x.dtype) / terms_of(x, axis)
    return replace(computed(d / deviation, x.dtype, [x], error, exact=False), same_bits=False)


REDUCTIONS["layernorm"] = Operation(lambda x, axis: f"kf.layernorm({x}, axis={axis}, eps=0.25)", _layernorm)


def _exponentials(x: Value, axis: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    if not x.is_float or x.array.size == 0:
        raise Unfit
    largest = x.array.max(axis, keepdims=True)
    e = np.exp(x.array - largest)
    terms = terms_of(x, axis)
    # Relative, of an exponential and of their sum; halves are rounded after each operation at most.
    relative = 2 * x.error + 4 * SPACING[x.dtype] * (4 + 2 * x.top) + sum_error(terms, 1.0, x.dtype)
    return largest, e, e.sum(axis, keepdims=True), relative


def _softmax(x: Value, axis: Any) -> Value:
    _, e, total, relative = _exponentials(x, axis)
    return replace(computed(e / total, x.dtype, [x], 3 * relative, exact=False), same_bits=False)


def _log_softmax(x: Value, axis: Any) -> Value:
    largest, _, total, relative = _exponentials(x, axis)
    array = x.array - largest - np.log(total)
    return replace(computed(array, x.dtype, [x], 3 * relative + 2 * x.error, exact=False), same_bits=False)


def _logsumexp(x: Value, axis: Any, keepdims: bool) -> Value:
    largest, _, total, relative = _exponentials(x, axis)
    array = largest + np.log(total)
    if not keepdims:
        array = array.reshape(np.sum(x.array, axis=axis).shape)
    return replace(computed(array, x.dtype, [x], 3 * relative + x.error, exact=False), same_bits=False)


REDUCTIONS["softmax"] = Operation(lambda x, axis: f"kf.softmax({x}, axis={axis})", _softmax)
REDUCTIONS["log_softmax"] = Operation(lambda x, axis: f"kf.log_softmax({x}, axis={axis})", _log_softmax)
REDUCTIONS["logsumexp"] = Operation(_with_axis("logsumexp"), _logsumexp)


def _rmsnorm(x: Value, w: Value) -> Value:
    if not (x.is_float and w.dtype == x.dtype and x.array.ndim and w.shape == x.shape[-1:] and x.array.size):
        raise Unfit
    terms, spacing = x.shape[-1], SPACING[x.dtype]
    squares = np.mean(np.square(x.array), -1, keepdims=True) + 0.25
    # The quotient's slope: the mean of the squares moves by 2 top error.
    error = 2 * x.error + x.top * ((2 * x.top + x.error) * x.error + sum_error(terms, x.top**2, x.dtype) / terms) / 0.25
    error = (error + 8 * spacing * (1 + x.top)) * (w.top + w.error) + w.error * 2 * x.top
    return replace(computed(x.array / np.sqrt(squares) * w.array, x.dtype, [x, w], error, exact=False), same_bits=False)


def _attention(q: Value, k: Value, v: Value, causal: bool) -> Value:
    if not q.is_float or q.array.ndim < 2 or q.array.size == 0 or {k.dtype, v.dtype} != {q.dtype}:
        raise Unfit
    if k.shape != q.shape or v.shape != q.shape:
        raise Unfit
    n, d = q.shape[-2:]
    scores = q.array @ np.swapaxes(k.array, -1, -2) / math.sqrt(d)
    if causal:
        scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    error = math.sqrt(d) * (q.top * k.error + k.top * q.error + q.error * k.error)
    error += sum_error(d, q.top * k.top, q.dtype)
    top = math.sqrt(d) * q.top * k.top
    relative = 2 * error + 4 * SPACING[q.dtype] * (4 + 2 * top) + sum_error(n, 1.0, q.dtype)
    error = 3 * relative * v.top + v.error + sum_error(n, v.top, q.dtype)
    array = e / e.sum(-1, keepdims=True) @ v.array
    return replace(computed(array, q.dtype, [q, k, v], error, exact=False), same_bits=False)


def _cross_entropy(x: Value, targets: Value) -> Value:
    if x.array.ndim != 2 or targets.dtype not in ("int32", "int64") or targets.shape != x.shape[:1]:
        raise Unfit
    largest, _, total, relative = _exponentials(x, -1)
    if targets.array.min() < 0 or targets.array.max() >= x.shape[1]:
        raise Unfit
    losses = largest + np.log(total) - np.take_along_axis(x.array, targets.array[:, None], -1)
    error = 3 * relative + 2 * x.error + sum_error(x.shape[0], float(losses.max()), x.dtype) / x.shape[0]
    return replace(computed(losses.mean(), x.dtype, [x, targets], error, exact=False), same_bits=False)


REDUCTIONS["rmsnorm"] = Operation("kf.rmsnorm({0}, {1}, eps=0.25)", _rmsnorm)
REDUCTIONS["attention"] = Operation(lambda q, k, v, causal: f"kf.attention({q}, {k}, {v}, causal={causal})", _attention)
REDUCTIONS["cross_entropy"] = Operation("kf.cross_entropy({0}, {1})", _cross_entropy)
