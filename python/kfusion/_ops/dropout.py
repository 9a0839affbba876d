"""Dropout: random numbers by position and seed. No mask is ever stored: a pass backward makes it once more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._graph.number import is_number, read
from .._graph.seeds import BITS
from .._spec import FLOATS, HALF
from . import primitives as p
from .operation import Array, operation
from .views import astype, reshape, wide

__all__ = ["dropout"]

_WORD = 2**32  # as many values a random word has


def dropout(x: Array, p: float = 0.5, *, seed: int | None = None) -> Array:
    """Zeroes elements at random, each with the same probability, and scales the others, so that sums stay.

        y = x / (1 - p) with probability 1 - p, else x * 0

    The random numbers are those of Philox 4x32-10 by seed and position (Salmon et al., 2011). They depend on nothing
    else: neither on the device nor on what shares the kernel. Several calls in a traced function draw different ones.

    Args:
        x: floats of any shape.
        p: the probability, from 0 to 1. Another one is traced anew.
        seed: an int, of which the lower 53 bits count: the same seed gives the same result. None draws one of torch's
            default generator in each call, for torch's tensors.

    Returns:
        Array of x's shape and dtype.

    Raises:
        ValueError: p is not from 0 to 1, or there is no seed for an array that is not torch's.
        TypeError: x is no float, or seed no int.

    Source: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", 2014.
    """
    return _dropout(x, p, None if seed is None else _as_float(seed))


def _as_float(seed: Any) -> Any:
    """The seed as kernels take one; a number among the arguments stays one."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"kfusion.dropout: seed must be an int, got {type(seed).__name__}")
    return (seed if is_number(seed) else int(seed)) % 2**BITS + 0.0


def _builder(x: Array, p: float = 0.5, seed: float | None = None) -> Array:
    return x if (p := probability("dropout", x, p)) == 0 else dropped(x, p, seed)


_builder.__name__ = _builder.__qualname__ = "dropout"
_dropout = operation(_builder)


def probability(who: str, x: Any, p: Any) -> float:
    """p as a plain number.

    Raises:
        ValueError: it is none from 0 to 1.
        TypeError: x is no float.
    """
    if x._dtype not in FLOATS:
        raise TypeError(f"kfusion.{who}: x must be floats, got {x._dtype}")
    given = float(read(p))
    if not 0 <= given <= 1:
        raise ValueError(f"kfusion.{who}: p must be from 0 to 1, got {given}")
    return given


def dropped(x: Any, p: float, seed: Any = None, shape: Sequence[Any] | None = None) -> Any:
    """x with elements zeroed, and the others scaled; what they are times is of a shape that broadcasts with x's."""
    if p == 1:
        return x * 0.0
    return astype(wide(x) * one_of(x, kept(x, p, seed, shape), 1 / (1 - p), 0.0), x._dtype)


def kept(x: Any, p: float, seed: Any = None, shape: Sequence[Any] | None = None) -> Any:
    """True with probability 1 - p, for each element of x, or of another shape."""
    return _bits(x, x.shape if shape is None else shape, seed) < round((1 - p) * _WORD)


def one_of(x: Any, condition: Any, y: float, z: float) -> Any:
    """y where the condition is true, else z: numbers in the dtype that x is computed in."""
    dtype = "float32" if x._dtype in HALF else x._dtype
    return p.where(condition, *(x._tracer.add("cast", x._tracer.lift(v, x._library), dtype) for v in (y, z)))


def _bits(x: Any, shape: Sequence[Any], seed: Any) -> Any:
    """32 random bits for each position of a shape, in C order."""
    tracer = x._tracer
    stream = tracer.next_stream()
    if seed is None:
        if x._library != "torch":
            raise ValueError("kfusion.dropout: seed must be an int for arrays that are not torch's, got None")
        seed = tracer.seed()
    key = tracer.integer(seed)
    positions = tracer.add("iota", [math.prod(shape)], 0, "int64", x._library)
    return p.philox(reshape(positions, tuple(shape)), stream, key)
