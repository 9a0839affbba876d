"""What of the array API standard kfusion has: its functions beside array-api-strict's own, on that library's arrays.

python tests/support/array_api.py docs/array-api.md      # writes the tables of the page again
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import array_api_strict as xp
import numpy as np

import kfusion as kf

DTYPES = ("bool", "int32", "int64", "float32", "float64")
YES, ABSENT = "yes", "."
KINDS = ("bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric")
Case = tuple[tuple[Any, ...], dict[str, Any]]


def _each(names: str, *cases: Case) -> dict[str, Sequence[Case]]:
    return dict.fromkeys(names.split(), cases)


# Names of the standard by section. In cases "x", "y" and others are the arrays of `inputs`.
SECTIONS: Mapping[str, Mapping[str, Sequence[Case]]] = {
    "Elementwise": {
        **_each(
            """abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag isfinite
            isinf isnan log log1p log2 log10 logical_not negative positive real reciprocal round sign signbit sin sinh
            square sqrt tan tanh trunc""",
            (("x",), {}),
        ),
        **_each(
            """add atan2 bitwise_and bitwise_or bitwise_xor copysign divide equal floor_divide greater greater_equal
            hypot less less_equal logaddexp logical_and logical_or logical_xor maximum minimum multiply nextafter
            not_equal remainder subtract""",
            (("x", "y"), {}),
            (("x", "row"), {}),
        ),
        **_each("bitwise_left_shift bitwise_right_shift pow", (("x", "small"), {})),
        **_each("clip", (("x",), {"min": 0, "max": 2}), (("x", 0), {})),
    },
    "Statistical": {
        **_each(
            "max mean min prod sum",
            (("x",), {}),
            (("x",), {"axis": 0}),
            (("x",), {"axis": (0, 1), "keepdims": True}),
        ),
        **_each("std var", (("x",), {}), (("x",), {"axis": 1, "correction": 1.0})),
        **_each("cumulative_prod cumulative_sum", (("x",), {"axis": 0})),
    },
    "Searching, sorting, truth": {
        **_each("all any", (("x",), {}), (("x",), {"axis": 0, "keepdims": True})),
        **_each("argmax argmin", (("x",), {}), (("x",), {"axis": 1, "keepdims": True})),
        **_each("where", (("b", "x", "y"), {})),
        **_each("count_nonzero", (("x",), {}), (("x",), {"axis": 0, "keepdims": True})),
        **_each("diff", (("x",), {}), (("x",), {"axis": 0, "n": 2}), (("x",), {"prepend": "column"})),
        **_each("argsort isin nonzero searchsorted sort"),
        **_each("unique_all unique_counts unique_inverse unique_values"),
    },
    "Manipulation and indexing": {
        **_each("broadcast_to", (("row", (3, 4)), {})),
        **_each("expand_dims", (("x",), {"axis": 1})),
        **_each("flip", (("x",), {}), (("x",), {"axis": 0})),
        **_each("moveaxis", (("x", 0, 1), {})),
        **_each("permute_dims", (("x", (1, 0)), {})),
        **_each("repeat", (("x", 2), {"axis": 0})),
        **_each("reshape", (("x", (2, 6)), {})),
        **_each("roll", (("x", 1), {"axis": 1})),
        **_each("squeeze", (("column", 1), {})),
        **_each("stack", ((("x", "y"),), {"axis": 1})),
        **_each("take", (("x", "i"), {"axis": 1})),
        **_each("take_along_axis", (("x", "along"), {"axis": 1})),
        **_each("tile", (("x", (2, 1)), {})),
        **_each("tril", (("x",), {"k": 1})),
        **_each("triu", (("x",), {})),
        **_each("broadcast_arrays", (("x", "row"), {})),
        **_each("concat", ((("x", "y"),), {"axis": 1}), ((("x", "y"),), {"axis": None})),
        **_each("unstack", (("x",), {"axis": 1})),
    },
    "Linear algebra": {
        **_each("matmul", (("x", "turned"), {})),
        **_each("matrix_transpose", (("x",), {})),
        **_each("tensordot", (("x", "turned"), {"axes": 1}), (("x", "y"), {"axes": ((1, 0), (1, 0))})),
        **_each("vecdot", (("x", "y"), {}), (("x", "row"), {}), (("x", "y"), {"axis": -2})),
    },
    "Creation and dtypes": {
        **_each("astype", (("x", "float32"), {}), (("x", "int64"), {})),
        **_each("full_like", (("x", 1), {})),
        **_each("ones_like zeros_like", (("x",), {}), (("x",), {"dtype": "float32"})),
        **_each("meshgrid", (("flat", "first"), {}), (("flat", "first"), {"indexing": "ij"})),
        **_each("arange asarray empty empty_like eye from_dlpack full linspace ones zeros"),
        **_each("broadcast_shapes", (((3, 1), (1, 4), (4,)), {})),
        **_each("isdtype", *((("dtype", kind), {}) for kind in KINDS), (("dtype", ("bool", "integral")), {})),
        **_each("result_type", (("x", "y"), {}), (("x", "dtype"), {})),
        **_each("can_cast finfo iinfo"),
    },
}


def inputs(dtype: str) -> dict[str, Any]:
    """Arrays by the names that cases use."""
    rng = np.random.default_rng(5)
    floats = dtype.startswith("float")
    x, y = (rng.uniform(-0.9, 0.9, (3, 4)) if floats else rng.integers(-4, 5, (3, 4)) for _ in range(2))
    y = np.where(y == 0, 1, y)
    positive = np.abs(y) + (0 if floats else 1)
    of = {
        "x": x,
        "y": y,
        "row": positive[0],
        "small": positive % 4,
        "flat": x.ravel(),
        "first": x[:, 0],
        "turned": x.T,
        "column": x[:, :1],
    }
    made = {name: xp.asarray(value.astype(dtype)) for name, value in of.items()}
    made["i"], made["b"] = xp.asarray([3, 0, 1]), xp.asarray(y > 0)
    made["dtype"] = getattr(xp, dtype)
    made["along"] = xp.asarray(rng.integers(0, 4, (3, 2)))
    return made


def _given(arguments: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(arguments, tuple):
        return tuple(_given(a, arrays) for a in arguments)
    if isinstance(arguments, str):
        return arrays[arguments] if arguments in arrays else getattr(xp, arguments, arguments)
    return arguments


def compared(name: str, dtype: str, cases: Sequence[Case]) -> str:
    """ "yes", "." where the standard has no such dtype, else what is different."""
    arrays = inputs(dtype)
    found = ABSENT
    for args, kwargs in cases:
        given, kwargs = _given(args, arrays), {k: _given(v, arrays) for k, v in kwargs.items()}
        try:
            with np.errstate(all="ignore"):
                wanted = getattr(xp, name)(*given, **kwargs)
        except TypeError:
            continue
        try:
            got = getattr(kf, name)(*given, **kwargs)
        except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
            return "refused" if isinstance(error, TypeError) else type(error).__name__
        if (what := _difference(got, wanted)) is not None:
            return what
        found = YES
    return found


def _difference(got: Any, wanted: Any) -> str | None:
    if isinstance(wanted, (tuple, list)):
        return next(filter(None, map(_difference, got, wanted)), None)
    if not hasattr(wanted, "shape"):
        return None if got == wanted else "differs"
    if not isinstance(got, type(wanted)):
        return type(got).__name__
    if got.shape != wanted.shape:
        return f"shape {got.shape}"
    a, b = (np.asarray(v, copy=True) if not hasattr(v, "_array") else v._array for v in (got, wanted))
    tolerance = 1e-5 if "float32" in (str(a.dtype), str(b.dtype)) else 1e-12
    if not np.allclose(np.float64(a), np.float64(b), rtol=tolerance, atol=tolerance, equal_nan=True):
        return "differs"
    return None if got.dtype == wanted.dtype else str(got.dtype).rpartition(".")[2]


def missing_parameters(name: str) -> list[str]:
    """Parameters of the standard that ours has not."""
    theirs: Mapping[str, inspect.Parameter] = inspect.signature(getattr(xp, name)).parameters
    ours = inspect.signature(getattr(kf, name)).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in ours):
        return []
    known = {p.name for p in ours if p.kind is not p.POSITIONAL_ONLY}
    by_name = [n for n, p in theirs.items() if p.kind is p.KEYWORD_ONLY or p.default is not p.empty]
    return [n for n in by_name if n not in known]


def rows(section: Mapping[str, Sequence[Case]]) -> Iterator[tuple[str, list[str], list[str]]]:
    """The rows of the functions that kfusion has: the name, what comes of each dtype, and the parameters that are
    missing.
    """
    for name in sorted(section):
        if hasattr(kf, name):
            yield name, [compared(name, dtype, section[name]) for dtype in DTYPES], missing_parameters(name)


def tables() -> str:
    """The page's tables."""
    parts, counts = [], [0, 0]
    for title, section in SECTIONS.items():
        lines = [f"## {title}", "", f"| | {' | '.join(DTYPES)} | without |", "|" + "---|" * (len(DTYPES) + 2)]
        for name, cells, missing in rows(section):
            counts[0] += 1
            counts[1] += all(cell in (YES, ABSENT) for cell in cells) and not missing
            lines.append(f"| `{name}` | {' | '.join(cells)} | {', '.join(f'`{m}`' for m in missing)} |")
        absent = [name for name in sorted(section) if not hasattr(kf, name)]
        parts.append("\n".join(lines) + (f"\n\nNot here: {', '.join(f'`{n}`' for n in absent)}." if absent else ""))
    total = sum(len(section) for section in SECTIONS.values())
    head = (
        f"Of {total} functions {counts[0]} are here, {counts[1]} of them as in the standard and with every parameter."
    )
    return "\n\n".join([f"Compared with array-api-strict {xp.__version__}. {head}", *parts]) + "\n"


MARK = "<!-- tables -->\n"


def main(page: str) -> None:
    """Writes the tables behind the mark."""
    path = Path(page)
    path.write_text(path.read_text().partition(MARK)[0] + MARK + "\n" + tables())


if __name__ == "__main__":
    main(sys.argv[1])
