"""Code that writes to values, and calls that the array library computes, as steps of random programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .values import Unfit, Value, same


# The functions that programs call; their text is part of a reproducer.
def added_to(x: Any, y: Any) -> Any:
    view = x[:1]
    x = x * 1
    x += y
    return x + 0 * view


def part_set(x: Any, y: Any) -> Any:
    x = x * 1
    x[1:] = y
    return x


def masked_set(x: Any, mask: Any) -> Any:
    x = x * 1
    x[mask] = 0
    return x


def set_before_read(x: Any) -> Any:
    x = x * 1
    last = x[-1:]
    x[:1] = 2
    return last * 1


def set_in_copies(x: Any) -> Any:
    """Writes into copies that move and add nothing: x is what it was."""
    x = x * 1
    for copy in (np.roll(x, 0, 0), np.pad(x, 0), np.tile(x, 1), x.astype(x.dtype)):
        copy[:1] = 2
    return x * 1


FUNCTIONS = (added_to, part_set, masked_set, set_before_read, set_in_copies)


def _numbers(x: Value) -> None:
    if x.array.ndim == 0 or x.array.shape[0] == 0 or x.dtype == "bool":
        raise Unfit


def added_value(x: Value, y: Value, add: Any) -> Value:
    """The addition of both, where the result is x's."""
    _numbers(x)
    try:
        total = add(x, y)
    except ValueError:
        raise Unfit from None
    if total.dtype != x.dtype or total.shape != x.shape or not x.is_float:
        raise Unfit
    return replace(total, signed=False)


def part_value(x: Value, y: Value) -> Value:
    _numbers(x)
    if y.dtype != x.dtype:
        raise Unfit
    array = x.array.copy()
    try:
        array[1:] = y.array
    except ValueError:
        raise Unfit from None
    return same(array, [x, y])


def masked_value(x: Value, mask: Value) -> Value:
    _numbers(x)
    if mask.dtype != "bool" or mask.shape != x.shape:
        raise Unfit
    return same(np.where(mask.array, np.zeros_like(x.array), x.array), [x, mask], x.dtype)


def read_value(x: Value) -> Value:
    _numbers(x)
    if x.shape[0] == 1:  # a constant, which requires grad in torch
        raise Unfit
    array = x.array.copy()
    array[:1] = 2
    return same(array[-1:], [x])


def kept_value(x: Value) -> Value:
    _numbers(x)
    return same(x.array, [x])


def sorted_value(x: Value) -> Value:
    _numbers(x)
    return replace(same(np.sort(x.array, -1), [x]), signed=False)
