"""Steps that read a value's extents, as NumPy and torch write them, for programs that are called with several sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .operations import MAPS, Operation
from .reductions import REDUCTIONS
from .values import Unfit, Value, same


def _constant(array: Any, like: Value) -> Value:
    return Value(np.asarray(array, np.float64), like.dtype)


def _of_floats(axes: int, value: Callable[[Value], Value]) -> Callable[[Value], Value]:
    def checked(x: Value) -> Value:
        if x.dtype != "float64" or x.array.ndim < axes or x.array.size == 0:
            raise Unfit
        return value(x)

    return checked


# A function that programs call; its text is part of a reproducer.
def into_zeros(x: Any) -> Any:
    y = np.zeros(x.shape, like=x)
    y[1:] = x[1:]
    return y


def _into_zeros(x: Value) -> Value:
    if x.shape[0] == 1:  # a constant, which requires grad in torch
        raise Unfit
    array = np.zeros(x.shape)
    array[1:] = x.array[1:]
    return same(array, [x])


def _ramp(x: Value) -> Value:
    return MAPS["multiply"].value(x, _constant(np.arange(x.shape[-1]), x))


def _average(x: Value) -> Value:
    return MAPS["divide"].value(REDUCTIONS["sum"].value(x, 0, False), _constant(x.shape[0], x))


SIZED = {
    "ramp": Operation("{0} * np.arange({0}.shape[-1])", _of_floats(1, _ramp)),
    "average": Operation("{0}.sum(0) / {0}.shape[0]", _of_floats(1, _average)),
    "triangle": Operation(
        "np.where(np.tri({0}.shape[-2], {0}.shape[-1]) > 0, {0}, 0)",
        _of_floats(2, lambda x: replace(same(np.tril(x.array), [x]), signed=False)),
    ),
    "first_half": Operation(
        "{0}[: {0}.shape[0] // 2 + 1]", _of_floats(1, lambda x: same(x.array[: x.shape[0] // 2 + 1], [x]))
    ),
    "in_rows": Operation(
        "{0}.reshape({0}.shape[0], -1)", _of_floats(1, lambda x: same(x.array.reshape(x.shape[0], -1), [x]))
    ),
    "into_zeros": Operation("into_zeros({0})", _of_floats(1, _into_zeros)),
    "repeated": Operation(
        "np.broadcast_to({0}, (2, *{0}.shape))",
        _of_floats(1, lambda x: same(np.broadcast_to(x.array, (2, *x.shape)), [x])),
    ),
}
IN_TORCH = {
    "into_zeros": "filled_zeros({0})",
    "triangle": "torch.where(torch.ones({0}.shape[-2], {0}.shape[-1]).tril() > 0, {0}, 0)",
    "repeated": "{0}.expand(2, *{0}.shape)",
}
