"""What a correct executor makes of a program's steps: values in float64, with a bound on the error.

An error of 0 says that every operation on the way is exact or correctly rounded, in an order that nobody may change:
the result must be NumPy's bit for bit. A value also knows whether its bits are the same fused and unfused: not after
sums that are taken in any order, nor after arithmetic of half types, which are rounded where a kernel ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from graph_runs import rounded
from kinds import SPACING, TINY, np_dtype

LIMIT = {
    "float16": 1e3,
    "bfloat16": 1e3,
    "float32": 1e6,
    "float64": 1e6,
    "int32": 2**20,
    "int64": 2**20,
}  # of all values
MAX_ELEMENTS = 150_000
HALF = ("float16", "bfloat16")
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int32", "int64")


class Unfit(Exception):
    """A step that says nothing here: its shapes do not fit, or its value is too large or too imprecise."""


@dataclass(frozen=True)
class Value:
    array: np.ndarray  # float64, int64 or bool
    dtype: str
    error: float = 0.0  # 0: exactly this
    same_bits: bool = True  # fused as unfused
    signed: bool = True  # zeros have the same signs too

    @cached_property
    def top(self) -> float:
        return float(np.abs(self.array).max(initial=0)) if self.dtype != "bool" else 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def is_float(self) -> bool:
        return self.dtype in SPACING

    def check(self, got: Any) -> None:
        """Asserts that `got` is this value, within the error that a correct executor may make."""
        got = np.asarray(got)
        assert got.shape == self.shape, f"shape {got.shape}, not {self.shape}"
        assert str(got.dtype) == self.dtype, f"dtype {got.dtype}, not {self.dtype}"
        stored = got.view(np.uint8) if self.dtype == "bool" else got  # 0 or 1, and nothing else
        with np.errstate(invalid="ignore", over="ignore"):
            wrong = ~(np.abs(stored.astype(np.float64) - self.array) <= self.error)
        if wrong.any():
            where = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise AssertionError(
                f"{wrong.sum()} of {wrong.size} elements are wrong; at {where} {got[where]!r}, not "
                f"{self.array[where]!r} (within {self.error:.3g})"
            )


def numeric(v: Value) -> np.ndarray:
    return v.array if v.dtype != "bool" else v.array.astype(np.int64)


def checked(v: Value) -> Value:
    if v.array.size > MAX_ELEMENTS or v.array.ndim > 4:
        raise Unfit
    if v.dtype != "bool" and not v.top <= LIMIT[v.dtype]:
        raise Unfit  # also NaN
    if v.error > 0.02 * max(v.top, 0.01):
        raise Unfit
    return v


def promises(of: Sequence[Value]) -> tuple[bool, bool]:
    """What is left of `same_bits` and `signed`."""
    return all(v.same_bits for v in of), all(v.signed for v in of)


def same(array: np.ndarray, of: Sequence[Value], dtype: str | None = None, error: float | None = None) -> Value:
    """The value of an operation that does not round: views, choices, signs."""
    error = max((v.error for v in of), default=0.0) if error is None else error
    return checked(Value(np.asarray(array), dtype or of[0].dtype, error, *promises(of)))


def computed(array: np.ndarray, dtype: str, of: Sequence[Value], error: float, *, exact: bool) -> Value:
    """The value of an operation that rounds; `exact`: correctly, and each element by itself."""
    array, (same_bits, signed) = np.asarray(array), promises(of)
    if dtype not in SPACING:
        if error:
            raise Unfit
        return checked(Value(array, dtype, 0.0, same_bits, signed))
    array = array.astype(np.float64)
    stored = rounded(array, dtype).astype(np.float64)
    if exact and error == 0 and (dtype not in HALF or np.array_equal(stored, array)):
        return checked(Value(stored, dtype, 0.0, same_bits, signed))
    top = float(np.abs(array).max(initial=0))
    error += 4 * (SPACING[dtype] * (top + error) + TINY[dtype])
    return checked(Value(array, dtype, error, same_bits and dtype not in HALF, signed))


def promoted(dtypes: Sequence[str]) -> str:
    """NumPy's rules; bfloat16 is torch's: floats win, whatever the width."""
    floats = [d for d in dtypes if d in FLOATS]
    integers = [d for d in dtypes if d in INTEGERS]
    if not floats:
        return "int64" if "int64" in integers else "int32" if integers else "bool"
    if integers and "bfloat16" not in dtypes:
        return "float64"
    if len(set(floats)) > 1 and set(floats) <= set(HALF):
        return "float32"
    return max(floats, key=lambda d: np_dtype(d).itemsize)


def is_exact_sum(x: Value, terms: int) -> bool:
    """Whether every partial sum is exact in float32 (float64), in any order."""
    bits = 2.0 ** (53 if x.dtype in ("float64", *INTEGERS, "bool") else 24)
    if x.error:
        return False
    for quantum in (1.0, 2.0**6, 2.0**12, 2.0**18):
        scaled = x.array * quantum
        if terms * x.top * quantum <= bits and np.array_equal(scaled, np.rint(scaled)):
            return True
    return False


def sum_error(terms: int, top: float, dtype: str) -> float:
    """The error of a sum of that many terms in any order, in float32 at least."""
    return terms * (4 + terms) * top * SPACING["float64" if dtype == "float64" else "float32"]


def terms_of(x: Value, axis: Any) -> int:
    axes = range(len(x.shape)) if axis is None else (axis,) if isinstance(axis, int) else axis
    return math.prod(x.shape[a] for a in axes)
