"""Which numbers have a place in a dtype: torch raises an error for others where it converts them."""

from __future__ import annotations

import functools
import math
from typing import Any

from .._graph import number
from .._spec import FLOATS

_LARGEST = {
    "int32": 2**31 - 1,
    "int64": 2**63 - 1,
    "float16": 65504.0,
    "bfloat16": float.fromhex("0x1.fep127"),
    "float32": float.fromhex("0x1.fffffep127"),
    "float64": math.inf,
}


def fits(value: Any, dtype: str) -> bool:
    """Whether `dtype` has a place for a number; the answer for a number among the arguments is asked in each call."""
    return (
        bool(number.asked(functools.partial(_fits, dtype), value)) if number.is_number(value) else _fits(dtype, value)
    )


def _fits(dtype: str, value: Any) -> bool:
    largest = _LARGEST.get(dtype)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:  # for which torch has no number
        return False
    if largest is None or (dtype in FLOATS and not math.isfinite(value)):
        return True
    return bool(-largest - (dtype not in FLOATS) <= value <= largest)


def holds(dtype: str, other: str) -> bool:
    """Whether `dtype` has a place for all numbers of another one."""
    is_wide = _LARGEST.get(other, 1) <= _LARGEST.get(dtype, math.inf)
    return is_wide and (other not in FLOATS or dtype in (*FLOATS, "bool"))


def beyond(dtype: str) -> Any:
    """A number for which a dtype has no place; None where it has one for all."""
    largest = _LARGEST.get(dtype, math.inf)
    return None if largest == math.inf else largest * 2.0


def by_range(dtypes: set[str]) -> list[str]:
    """Those of the dtypes that have no place for some numbers, the narrowest first."""
    return sorted(filter(beyond, dtypes), key=_LARGEST.__getitem__)
