"""Functions of two operands of every pair of dtypes, with and without axes, against what the library gives.

Run by hand: python tests/support/dtype_sweep.py torch|numpy [--every N] [--seed N] [function...], which prints what
differs and counts it. tests/test_mixed_dtypes.py draws from the same variations.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

import kfusion as kf
from dtype_sweep_functions import FUNCTIONS, IN_C_ORDER

_FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = {
    "torch": ("bool", "int32", "int64", *_FLOATS),
    "numpy": ("bool", "uint8", "int8", "int16", "int32", "int64", *_FLOATS),
}
FORMS = {"torch": ("array", "0-dim"), "numpy": ("array", "0-dim", "scalar")}
SCALARS = (True, 3, 2.7)  # Python's
_EDGES = (0.1, 1 / 3, 2049.0, 65520.0, -1.5, 0.0, 3.0, 1e-7, 16777217.0, 7.0)
_INTEGER_EDGES = (0, 1, -1, 3, 2049, 16777217, -7, 100000, 5, 2)
_RTOL = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 3e-6, "float64": 1e-14}
_SMALLEST = {"float16": 6e-8, "bfloat16": 1e-40, "float32": 1e-45, "float64": 5e-324}

_OF_OTHER_RULES = ("dtype", "np.float", "nextafter")  # whose result's dtype is named, or ml_dtypes's


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array of some dtype, one without axes, NumPy's scalar, or a Python number (of no dtype)."""

    form: str
    dtype: str = ""
    number: float = 0

    def __str__(self) -> str:
        return f"{self.dtype} {self.form}" if self.dtype else repr(self.number)


@dataclasses.dataclass(frozen=True)
class Variation:
    """A function of x and y as text, and what x and y are."""

    library: str
    text: str
    x: Operand
    y: Operand

    def __str__(self) -> str:
        return f"{self.text}, x: {self.x}, y: {self.y}"

    @property
    def has_kernels_bfloat16(self) -> bool:
        """Whether bfloat16 is among NumPy's arrays, where kernels have other rules than ml_dtypes."""
        is_numpys = any(name in self.text for name in _OF_OTHER_RULES)
        return self.library == "numpy" and "bfloat16" in (self.x.dtype, self.y.dtype) and not is_numpys


def variations(library: str, text: str) -> Iterator[Variation]:
    """All of one function: what has no y has fewer."""
    arrays = [Operand(form, dtype) for form, dtype in itertools.product(FORMS[library], DTYPES[library])]
    numbers = [Operand("number", number=n) for n in SCALARS]
    pairs = [(x, y) for x, y in itertools.product((*arrays, *numbers), repeat=2) if x.dtype or y.dtype]
    has_y = "y" in compile(text, "", "eval").co_names
    for x, y in pairs if has_y else [(x, numbers[0]) for x in arrays]:
        yield Variation(library, text, x, y)


# ---- operands ----


def _numbers(dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Numbers that half types do not hold, beyond their range, zeros, and some of rng's."""
    is_float = dtype in _FLOATS
    drawn = rng.standard_normal(6) * 3 if is_float else rng.integers(-9, 9, 6)
    wide = np.array([*(_EDGES if is_float else _INTEGER_EDGES), *drawn.tolist()])
    with np.errstate(all="ignore"):
        return wide.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def _made(operand: Operand, library: str, rng: np.random.Generator, shift: int) -> Any:
    if not operand.dtype:
        return operand.number
    numbers = np.roll(_numbers(operand.dtype, rng), shift)
    one = numbers[rng.integers(numbers.size)]
    made = {"array": numbers, "0-dim": np.array(one), "scalar": one}[operand.form]
    if library == "numpy":
        return made
    import torch

    if operand.dtype == "bfloat16":
        return torch.from_numpy(np.array(made, "float32")).bfloat16()
    return torch.from_numpy(made)


# ---- both, and how they differ ----


@functools.cache
def functions(library: str, text: str) -> tuple[Callable[..., Any], Any]:
    """The function of x and y, and as kfusion has it."""
    names: dict[str, Any] = {"np": np}
    if library == "torch":
        import torch

        names = {"torch": torch, "F": torch.nn.functional}
    plain = eval(f"lambda x, y: {text}", names)
    return plain, kf.fuse(eval(f"lambda x, y: {text}", names))


def _outcome(function: Callable[..., Any], x: Any, y: Any) -> Any:
    """The result and the operands afterwards, or the error."""
    copies = (v.clone() if hasattr(v, "clone") else v.copy() if isinstance(v, np.ndarray) else v for v in (x, y))
    return _called(function, *copies)


def _called(function: Callable[..., Any], *given: Any) -> Any:
    try:
        result = function(*given)
    except Exception as error:
        return error
    return [*(result if isinstance(result, (tuple, list)) else [result]), *given]


def _with_bfloat16(plain: Callable[..., Any], x: Any, y: Any) -> Any:
    """What bfloat16 among NumPy's arrays is documented to give: computed in float32, and rounded where no other float
    is beside it; integers and Python's numbers are rounded before."""
    is_alone = not {"float16", "float32", "float64"} & {_name(x), _name(y)}

    def wide(v: Any) -> Any:
        v = v if hasattr(v, "dtype") or not is_alone else np.float32(v)
        v = v.astype(ml_dtypes.bfloat16) if is_alone else v
        return v.astype(np.float32) if _name(v) == "bfloat16" else v

    def narrow(v: Any) -> Any:
        return v.astype(ml_dtypes.bfloat16) if is_alone and _name(v) == "float32" else v

    given = [(v, wide(v)) for v in (x, y)]
    made = _outcome(plain, *(w for _, w in given))
    if isinstance(made, Exception):
        return made
    *results, x_after, y_after = made
    after = [
        v if np.array_equal(a, w, equal_nan=True) else a.astype(v.dtype)
        for a, (v, w) in zip((x_after, y_after), given, strict=True)
    ]
    return [*map(narrow, results), *after]


def difference(variation: Variation, seed: int) -> str | None:
    """What is other than the library has it; None where nothing is, "refused" and "taken" where one has no result."""
    plain, fused = functions(variation.library, variation.text)
    ways = [_outcome, *([_with_bfloat16] if variation.has_kernels_bfloat16 else [])]
    rng = np.random.default_rng(seed)
    x, y = _made(variation.x, variation.library, rng, 0), _made(variation.y, variation.library, rng, 3)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        got = _outcome(fused, x, y)
        wanted = [way(plain, x, y) for way in ways]
        found = [_compared(want, got) for want in wanted]
        is_torch = variation.library == "torch"
        return None if None in found or (is_torch and _is_nearer(plain, x, y, wanted[0], got)) else found[-1]


def _compared(want: Any, got: Any) -> str | None:
    if isinstance(want, Exception):
        return None if isinstance(got, Exception) else "taken"
    if isinstance(got, Exception):
        return "refused" if isinstance(got, (kf.TraceError, TypeError)) else f"{type(got).__name__}: {got}"
    if len(want) != len(got):
        return f"gives {len(want) - 2} results, fused {len(got) - 2}"
    return next((text for w, g in zip(want, got, strict=True) if (text := _difference(w, g))), None)


def _is_nearer(plain: Callable[..., Any], x: Any, y: Any, want: Any, got: Any) -> bool:
    """Whether floats are as near as the library's to what it gives of its rounded operands in float64: it rounds in
    between where a kernel does not."""
    import torch

    if isinstance(want, Exception) or isinstance(got, Exception) or len(want) != len(got):
        return False
    rounded = torch.result_type(x, y)
    if not rounded.is_floating_point or any(_named(w, g) for w, g in zip(want, got, strict=True)):
        return False
    exact = _outcome(plain, *(v.to(rounded).double() if hasattr(v, "to") else v for v in (x, y)))
    if isinstance(exact, Exception) or len(exact) != len(got):
        return False
    return all(bool((_error(e, g) <= _error(e, w)).all()) for e, g, w in zip(exact, got, want, strict=True))


def _error(exact: Any, found: Any) -> np.ndarray:
    e, f = (_wide(v).astype("float64") for v in (exact, found))
    return np.where((e == f) | ((e != e) & (f != f)), 0, np.nan_to_num(np.abs(e - f), nan=np.inf))


# ---- how results lie ----


def layouts(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Arrays of NumPy's in which axes lie in several ways."""
    wide = np.asfortranarray(rng.random((4, 8)) + 0.5)
    made = {"C": wide.copy("C")[:, :4], "F": wide[:, :4], "reversed": wide[::-1, ::-2], "steps": wide[:, ::2]}
    return made | {"broadcast": np.broadcast_to(wide[:1, :4], (4, 4)), "row": wide[:1, :4], "nothing": wide[:0, :4]}


def layout_difference(text: str, layout: str, seed: int) -> str | None:
    """Compares as `difference` does, NumPy's functions of two operands that lie alike: results share no memory with
    them, and lie as NumPy's where operands are dense.
    """
    plain, fused = functions("numpy", text)
    operands = [[layouts(np.random.default_rng(s))[layout] for s in (seed, seed + 1)] for _ in range(2)]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        want, got = _called(plain, *operands[0]), _called(fused, *operands[1])
    if isinstance(want, Exception) or isinstance(got, (kf.TraceError, TypeError)):
        return None
    if (found := _compared(want, got)) is not None:
        return found
    *results, x_after, y_after = got
    keeps_order = layout in ("C", "F") and text not in IN_C_ORDER
    if keeps_order and [_order(v) for v in want] != [_order(v) for v in got]:
        return f"has strides {want[0].strides}, fused {got[0].strides}"
    shares = any(np.shares_memory(r, v) for r in results for v in (x_after, y_after) if r is not v)
    return "shares memory with an operand" if shares else None


def _order(v: np.ndarray) -> list[int]:
    """The axes with several elements, outermost in memory first."""
    axes = [axis for axis in range(np.ndim(v)) if v.shape[axis] > 1]
    return sorted(axes, key=lambda axis: -abs(v.strides[axis]))


def _name(v: Any) -> str:
    return str(v.dtype).removeprefix("torch.") if hasattr(v, "dtype") else type(v).__name__


def _named(want: Any, got: Any) -> str:
    """How dtypes, extents or classes differ."""
    dtypes, shapes = (_name(want), _name(got)), (np.shape(want), np.shape(got))
    if dtypes[0] != dtypes[1]:
        return f"is of {dtypes[0]}, fused of {dtypes[1]}"
    if shapes[0] != shapes[1]:
        return f"has shape {shapes[0]}, fused {shapes[1]}"
    if type(want) is not type(got) and np.ndim(want) > 0:  # NumPy's results without axes are scalars here
        return f"is a {type(want).__name__}, fused a {type(got).__name__}"
    return ""


def _difference(want: Any, got: Any) -> str:
    if named := _named(want, got):
        return named
    w, g, dtype = _wide(want), _wide(got), _name(want)
    rtol = _RTOL.get(dtype, 0)
    is_near = np.abs(w - g) <= rtol * np.abs(w) + max(rtol * 1e-4, _SMALLEST.get(dtype, 0)) if rtol else w == g
    is_same = is_near | (w == g) | ((w != w) & (g != g))
    return "" if is_same.all() else f"is {w[~is_same][:3]}, fused {g[~is_same][:3]}"


def _wide(v: Any) -> np.ndarray:
    is_float = _name(v) in _FLOATS
    made = v.double().numpy() if is_float and hasattr(v, "double") else np.asarray(v)
    return np.atleast_1d(made.astype("float64") if is_float else made)


def main(library: str, texts: list[str], every: int, seed: int) -> None:
    kf.set_num_threads(1)
    counts: Counter[str] = Counter()
    for text in texts or FUNCTIONS[library]:
        for variation in list(variations(library, text))[seed % every :: every]:
            found = difference(variation, seed)
            counts[found if found in ("refused", "taken") else "wrong" if found else "right"] += 1
            if found:
                print(f"{variation}: {found}", flush=True)
    print(dict(counts), f"seed {seed}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=list(FUNCTIONS))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("functions", nargs="*")
    options = parser.parse_intermixed_args()
    sys.exit(main(options.library, options.functions, options.every, options.seed))
