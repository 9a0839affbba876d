"""A library's own result beside the fused function's: values, dtypes, shapes, signs of zero, and what is an error."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import kfusion as kf

INF, NAN = float("inf"), float("nan")
_FLOATS = [NAN, INF, -INF, 0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, -3.7, 2, -4, 100, 1e-3]
_WHOLE = [0, 1, -1, 2, -2, 7, -7, 30]
RELATIVE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-6, "float64": 1e-12}
DTYPES = ("float32", "float64", "int32", "int64", "bool", "float16")


def specials(dtype: str) -> np.ndarray:
    """NaN, infinities, zeros, denormals and ends of a dtype, beside a few plain numbers."""
    if dtype == "bool":
        return np.array([False, True])
    if dtype.startswith("int"):
        ends = np.iinfo(dtype)
        return np.array([*_WHOLE, ends.min, ends.min + 1, ends.max], dtype)
    f = np.finfo(dtype)
    limits = [f.smallest_subnormal, -f.smallest_subnormal, f.smallest_normal, f.max, -f.max]
    return np.array([*_FLOATS, *limits], dtype)


def shapes_of(x: np.ndarray) -> Iterator[np.ndarray]:
    """All of x, as a matrix of whole columns, two elements without axes, and nothing."""
    yield x
    yield x[: len(x) // 2 * 2].reshape(2, -1)
    yield x[:1].reshape(())
    yield x[-1:].reshape(())
    yield x[:0]
    yield np.empty((2, 0), x.dtype)


def outcome(f: Callable[..., Any], *arrays: Any) -> Any:
    """The result, or the exception."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return f(*arrays)
    except Exception as error:
        return error


# What a kernel cannot raise, or computes where the library does not: the results are documented.
_COMPUTED = ("ZeroDivisionError", "negative integer powers", "cannot be converted to type c10::Half")


def differences(f: Callable[..., Any], arrays: tuple[Any, ...], *, exact: bool = False, signed: bool = True) -> str:
    """What fusing f changes on these arrays, "" for nothing. To refuse what the library does is no difference.

    `exact`: results are the library's to the bit. `signed`: zeros have its signs.
    """
    expected, got = outcome(f, *arrays), outcome(kf.fuse(f), *arrays)
    if isinstance(got, Exception):
        plain = isinstance(got, (TypeError, ValueError, IndexError, ArithmeticError, NotImplementedError))
        return "" if plain or isinstance(expected, Exception) else f"raised {got!r}, not {expected!r}"
    if isinstance(expected, Exception):
        allowed = any(text in repr(expected) for text in _COMPUTED)
        return "" if allowed else f"gave {got!r} where the library raises {expected!r}"
    return compared(got, expected, exact, signed)


def compared(got: Any, expected: Any, exact: bool = False, signed: bool = True, slack: float = 0) -> str:
    """How two results differ, "" for not at all; an exception differs from any result. `slack` is added to what errors
    are relative to, for sums that cancel.
    """
    if isinstance(got, Exception):
        return f"raised {got!r}, not {expected!r}"
    if isinstance(expected, (tuple, list)):
        if len(got) != len(expected):
            return f"{len(got)} results, not {len(expected)}"
        parts = zip(got, expected, strict=True)
        return "; ".join(filter(None, (compared(g, e, exact, signed, slack) for g, e in parts)))
    if type(expected) in (bool, int, float):
        return "" if got == expected else f"{got!r}, not {expected!r}"
    if str(got.dtype) != str(expected.dtype) or tuple(got.shape) != tuple(expected.shape):
        return f"{got.dtype}{tuple(got.shape)}, not {expected.dtype}{tuple(expected.shape)}"
    dtype = str(got.dtype).removeprefix("torch.")
    x, y = (np.asarray(v.double() if dtype == "bfloat16" else v) for v in (got, expected))
    if dtype not in RELATIVE:
        same = x == y
    else:
        with np.errstate(all="ignore"):
            close = (x == y) | (np.isnan(x) & np.isnan(y))
            if not exact:
                wide = [v.astype(np.float64) for v in (x, y)]
                scale = np.abs(wide[1]) + slack + np.finfo(np.float32 if dtype == "bfloat16" else dtype).smallest_normal
                close |= np.isfinite(x) & np.isfinite(y) & (np.abs(wide[0] - wide[1]) <= RELATIVE[dtype] * scale)
            same = close & ((x != 0) | (y != 0) | (np.signbit(x) == np.signbit(y)) | (not signed))
    if np.all(same):
        return ""
    i = np.unravel_index(int(np.argmin(same)), np.shape(same)) if np.ndim(same) else ()
    return f"{x[i]!r}, not {y[i]!r} at {tuple(map(int, i))}"
