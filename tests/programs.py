"""Random programs of arrays: the text of a Python function, its inputs, and what its results must be.

A program is a list of steps, each a line of Python such as `v3 = v1 / v2.sum(axis=0, keepdims=True)`. `Program.values`
computes it in float64. Each value carries a bound on the error of a correct executor: 0 where every operation on the
way is exact or correctly rounded in an order that nobody may change, so that the result must be NumPy's bit for bit. A
value also knows whether its bits are the same fused and unfused.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import ml_dtypes  # noqa: F401  # numpy.dtype("bfloat16")
import numpy as np

import kfusion as kf
import reference_ops
from conftest import SPACING, TINY, np_dtype
from running import rounded

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


@dataclass(frozen=True)
class Step:
    """A line: an operation, the numbers of the values that it reads, and constants."""

    op: str
    arguments: tuple[int, ...]
    constants: tuple[Any, ...] = ()


def numeric(v: Value) -> np.ndarray:
    return v.array if v.dtype != "bool" else v.array.astype(np.int64)


def _checked(v: Value) -> Value:
    if v.array.size > MAX_ELEMENTS or v.array.ndim > 4:
        raise Unfit
    if v.dtype != "bool" and not v.top <= LIMIT[v.dtype]:
        raise Unfit  # also NaN
    if v.error > 0.02 * max(v.top, 0.01):
        raise Unfit
    return v


def same(array: np.ndarray, of: Sequence[Value], dtype: str | None = None, error: float | None = None) -> Value:
    """Of an operation that does not round: views, choices, signs."""
    error = max((v.error for v in of), default=0.0) if error is None else error
    return _checked(Value(np.asarray(array), dtype or of[0].dtype, error, all(v.same_bits for v in of)))


def computed(array: np.ndarray, dtype: str, of: Sequence[Value], error: float, *, exact: bool) -> Value:
    """Of an operation that rounds; `exact`: correctly, and each element by itself."""
    array, same_bits = np.asarray(array), all(v.same_bits for v in of)
    if dtype not in SPACING:
        if error:
            raise Unfit
        return _checked(Value(array, dtype, 0.0, same_bits))
    array = array.astype(np.float64)
    stored = rounded(array, dtype).astype(np.float64)
    if exact and error == 0 and (dtype not in HALF or np.array_equal(stored, array)):
        return _checked(Value(stored, dtype, 0.0, same_bits))
    top = float(np.abs(array).max(initial=0))
    error += 4 * (SPACING[dtype] * (top + error) + TINY[dtype])
    return _checked(Value(array, dtype, error, same_bits and dtype not in HALF))


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


def _is_exact_sum(x: Value, terms: int) -> bool:
    """Whether every partial sum is exact in float32 (float64), in any order."""
    bits = 2.0 ** (53 if x.dtype in ("float64", *INTEGERS, "bool") else 24)
    if x.error:
        return False
    for quantum in (1.0, 2.0**6, 2.0**12, 2.0**18):
        scaled = x.array * quantum
        if terms * x.top * quantum <= bits and np.array_equal(scaled, np.rint(scaled)):
            return True
    return False


def _sum_error(terms: int, top: float, dtype: str) -> float:
    """Of a sum of that many terms in any order, in float32 at least."""
    return terms * (4 + terms) * top * SPACING["float64" if dtype == "float64" else "float32"]


# Operations: how each is written, and what it makes of values. An argument's text stands for {0}, {1}, {2}.


@dataclass(frozen=True)
class Operation:
    text: str | Callable[..., str]
    value: Callable[..., Value]


OPERATIONS: dict[str, Operation] = {}
_LIPSCHITZ: dict[str, Callable[[Value], float]] = {
    "negative": lambda x: 1, "absolute": lambda x: 1, "tanh": lambda x: 1, "sin": lambda x: 1, "arctan": lambda x: 1,
    "square": lambda x: 2 * x.top + x.error, "exp": lambda x: math.exp(x.top + x.error),
    "cos": lambda x: 1, "floor": lambda x: 0, "rint": lambda x: 0, "sign": lambda x: 0,
}  # fmt: skip
_EXACT_UNARY = ("negative", "absolute", "floor", "rint", "sign")
_NEEDS_EXACT = ("floor", "rint", "sign")


def _unary(name: str) -> Callable[[Value], Value]:
    def value(x: Value) -> Value:
        if (not x.is_float and name not in ("negative", "absolute", "square", "sign")) or x.dtype == "bool":
            raise Unfit
        if (name in _NEEDS_EXACT and x.error) or (name in ("square", "exp") and x.top > 6):
            raise Unfit
        error = _LIPSCHITZ[name](x) * x.error
        array = reference_ops.MAPS[name](x.array)
        if name in _EXACT_UNARY:
            return same(array, [x], error=error)
        return computed(array, x.dtype, [x], error, exact=name == "square")

    return value


for _name in _LIPSCHITZ:
    OPERATIONS[_name] = Operation(f"np.{_name}({{0}})", _unary(_name))


def _root(x: Value) -> Value:
    low = float(x.array.min(initial=1.0)) - x.error
    if not x.is_float or low < (0.01 if x.error else 0):
        raise Unfit
    error = x.error / (2 * math.sqrt(low)) if x.error else 0.0
    return computed(np.sqrt(x.array), x.dtype, [x], error, exact=True)


OPERATIONS["sqrt"] = Operation("np.sqrt({0})", _root)


def _pointwise_function(array: Callable[[np.ndarray], np.ndarray], slope: float) -> Callable[[Value], Value]:
    def value(x: Value) -> Value:
        if not x.is_float:
            raise Unfit
        wide = 3 * SPACING["float32" if x.dtype in HALF else x.dtype] * (1 + x.top)
        return computed(array(x.array), x.dtype, [x], slope * x.error + 4 * wide, exact=False)

    return value


def _erf(x: np.ndarray) -> np.ndarray:
    return np.asarray(reference_ops.MAPS["erf"](x)) if x.size else x


_FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "silu": (lambda x: x / (1 + np.exp(-x)), 1.2),
    "gelu": (lambda x: x / 2 * (1 + _erf(x / math.sqrt(2))), 1.2),
    "softplus": (lambda x: np.logaddexp(x, 0), 1),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 1),
}
for _name, (_array, _slope) in _FUNCTIONS.items():
    OPERATIONS[_name] = Operation(f"kf.{_name}({{0}})", _pointwise_function(_array, _slope))
OPERATIONS["relu"] = Operation("kf.relu({0})", lambda x: same(np.maximum(x.array, 0), [_floats(x)]))


def _floats(x: Value) -> Value:
    if not x.is_float:
        raise Unfit
    return x


def _numbers(*values: Value) -> None:
    if all(v.dtype == "bool" for v in values):
        raise Unfit


def _add(x: Value, y: Value, sign: int = 1) -> Value:
    _numbers(x, y)
    array = numeric(x) + sign * numeric(y)
    return computed(array, promoted([x.dtype, y.dtype]), [x, y], x.error + y.error, exact=True)


def _multiply(x: Value, y: Value) -> Value:
    _numbers(x, y)
    error = x.top * y.error + y.top * x.error + x.error * y.error
    return computed(numeric(x) * numeric(y), promoted([x.dtype, y.dtype]), [x, y], error, exact=True)


def _divide(x: Value, y: Value) -> Value:
    dtype = promoted([x.dtype, y.dtype, *(["float64"] if not (x.is_float or y.is_float) else [])])
    low = float(np.abs(y.array).min(initial=1.0)) - y.error
    if dtype not in FLOATS or y.dtype == "bool" or low < 1e-3:
        raise Unfit
    error = (x.error + x.top / low * y.error) / low
    return computed(numeric(x) / y.array, dtype, [x, y], error, exact=True)


def _choice(function: Callable[..., np.ndarray]) -> Callable[[Value, Value], Value]:
    def value(x: Value, y: Value) -> Value:
        _numbers(x, y)
        dtype = promoted([x.dtype, y.dtype])
        if dtype in HALF and dtype not in (x.dtype, y.dtype):
            raise Unfit
        # An integer becomes a float first.
        return computed(function(numeric(x), numeric(y)), dtype, [x, y], max(x.error, y.error), exact=True)

    return value


OPERATIONS["add"] = Operation("{0} + {1}", _add)
OPERATIONS["subtract"] = Operation("{0} - {1}", lambda x, y: _add(x, y, -1))
OPERATIONS["multiply"] = Operation("{0} * {1}", _multiply)
OPERATIONS["divide"] = Operation("{0} / {1}", _divide)
OPERATIONS["maximum"] = Operation("np.maximum({0}, {1})", _choice(np.maximum))
OPERATIONS["minimum"] = Operation("np.minimum({0}, {1})", _choice(np.minimum))


def _scaled(x: Value, c: float, operator: str) -> Value:
    if x.dtype == "bool" or (not x.is_float and not isinstance(c, int)):
        raise Unfit
    scalar = Value(rounded(np.array(float(c)), x.dtype).astype(float) if x.is_float else np.array(c), x.dtype)
    return {"+": _add, "*": _multiply, "-": lambda a, b: _add(b, a, -1)}[operator](x, scalar)


OPERATIONS["scale"] = Operation(
    lambda x, c, operator: f"{c} - {x}" if operator == "-" else f"{x} {operator} {c}", _scaled
)


def _compare(x: Value, y: Value, operator: str) -> Value:
    if x.error or y.error:
        raise Unfit
    return same(_COMPARISONS[operator](numeric(x), numeric(y)), [x, y], "bool")


_COMPARISONS = {"<": np.less, ">=": np.greater_equal, "!=": np.not_equal, "==": np.equal}
OPERATIONS["compare"] = Operation(lambda x, y, operator: f"{x} {operator} {y}", _compare)
OPERATIONS["threshold"] = Operation(
    lambda x, c, operator: f"{x} {operator} {c}",
    lambda x, c, operator: _compare(x, Value(np.array(c), x.dtype), operator),
)


def _bools(*values: Value) -> None:
    if any(v.dtype != "bool" for v in values):
        raise Unfit


def _logical(x: Value, y: Value, operator: str) -> Value:
    _bools(x, y)
    return same({"&": np.logical_and, "|": np.logical_or, "^": np.logical_xor}[operator](x.array, y.array), [x, y])


def _not(x: Value) -> Value:
    _bools(x)
    return same(~x.array, [x])


OPERATIONS["logical"] = Operation(lambda x, y, operator: f"{x} {operator} {y}", _logical)
OPERATIONS["not"] = Operation("~{0}", _not)


def _where(m: Value, x: Value, y: Value) -> Value:
    _bools(m)
    dtype = promoted([x.dtype, y.dtype])
    array = np.where(m.array, numeric(x), numeric(y)) if dtype != "bool" else np.where(m.array, x.array, y.array)
    return computed(array, dtype, [m, x, y], max(x.error, y.error), exact=True)


OPERATIONS["where"] = Operation("np.where({0}, {1}, {2})", _where)


def _terms(x: Value, axis: Any) -> int:
    axes = range(len(x.shape)) if axis is None else (axis,) if isinstance(axis, int) else axis
    return math.prod(x.shape[a] for a in axes)


def _reduced(name: str) -> Callable[..., Value]:
    def value(x: Value, axis: Any, keepdims: bool) -> Value:
        terms = _terms(x, axis)
        if x.array.size == 0 or (name in ("any", "all") and x.dtype != "bool"):
            raise Unfit
        if x.dtype == "bool" and name in ("max", "min"):
            return same(reference_ops.REDUCTIONS[name](x.array, axis=axis, keepdims=keepdims), [x])
        array = reference_ops.REDUCTIONS[name](
            numeric(x) if name in ("sum", "mean") else x.array, axis=axis, keepdims=keepdims
        )
        if name not in ("sum", "mean"):
            return same(array, [x])
        dtype = x.dtype if x.is_float else "int64" if name == "sum" else "float64"
        exact = _is_exact_sum(x, terms) and (name == "sum" or terms & (terms - 1) == 0)
        error = 0.0 if exact else terms * x.error + _sum_error(terms, x.top, x.dtype)
        v = computed(array, dtype, [x], error / (terms if name == "mean" else 1), exact=exact)
        zeros = x.is_float and bool((np.signbit(x.array) & (x.array == 0)).any())  # nobody says which zero their sum is
        return v if exact and not zeros else replace(v, same_bits=False)

    return value


for _name in ("sum", "mean", "max", "min", "any", "all"):
    OPERATIONS[_name] = Operation(
        lambda x, axis, keepdims, name=_name: f"{x}.{name}(axis={axis}, keepdims={keepdims})", _reduced(_name)
    )


def _moments(x: Value, axis: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """Centred, variance, and the error of the centred."""
    if not x.is_float or x.array.size == 0:
        raise Unfit
    terms = _terms(x, axis)
    d = x.array - x.array.mean(axis, keepdims=True)
    error = 2 * x.error + 2 * _sum_error(terms, x.top, x.dtype) / terms + 8 * SPACING[x.dtype] * x.top
    return d, (d * d).mean(axis, keepdims=True), error


def _var(root: bool) -> Callable[..., Value]:
    def value(x: Value, axis: Any, keepdims: bool) -> Value:
        d, variance, error = _moments(x, axis)
        top = float(np.abs(d).max())
        terms = _terms(x, axis)
        error = (2 * top + error) * error + _sum_error(terms, top**2, x.dtype) / terms + 4 * SPACING[x.dtype] * top**2
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


OPERATIONS["var"] = Operation(_with_axis("var"), _var(False))
OPERATIONS["std"] = Operation(_with_axis("std"), _var(True))


def _layernorm(x: Value, axis: Any) -> Value:
    d, variance, error = _moments(x, axis)
    deviation = np.sqrt(variance + 0.25)
    top = float(np.abs(d).max())
    # The quotient's slope: the variance moves by 2 top error.
    error = 2 * error + top * (2 * top + error) * error / 0.25 + 16 * SPACING[x.dtype] * (1 + top)
    error += top * _sum_error(_terms(x, axis), top**2, x.dtype) / _terms(x, axis)
    return replace(computed(d / deviation, x.dtype, [x], error, exact=False), same_bits=False)


OPERATIONS["layernorm"] = Operation(lambda x, axis: f"kf.layernorm({x}, axis={axis}, eps=0.25)", _layernorm)


def _exponentials(x: Value, axis: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    if not x.is_float or x.array.size == 0:
        raise Unfit
    largest = x.array.max(axis, keepdims=True)
    e = np.exp(x.array - largest)
    terms = _terms(x, axis)
    # Relative, of an exponential and of their sum; halves are rounded after each operation at most.
    relative = 2 * x.error + 4 * SPACING[x.dtype] * (4 + 2 * x.top) + _sum_error(terms, 1.0, x.dtype)
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


OPERATIONS["softmax"] = Operation(lambda x, axis: f"kf.softmax({x}, axis={axis})", _softmax)
OPERATIONS["log_softmax"] = Operation(lambda x, axis: f"kf.log_softmax({x}, axis={axis})", _log_softmax)
OPERATIONS["logsumexp"] = Operation(_with_axis("logsumexp"), _logsumexp)


def _cast(x: Value, dtype: str) -> Value:
    if dtype in SPACING:
        v = computed(numeric(x), dtype, [x], x.error, exact=True)
        if x.error == 0:  # a cast rounds, to half types as well
            stored = rounded(numeric(x).astype(np.float64), dtype).astype(np.float64)
            return _checked(Value(stored, dtype, 0.0, x.same_bits))
        return replace(v, same_bits=x.same_bits)
    if x.error:
        raise Unfit
    array = x.array != 0 if dtype == "bool" else np.trunc(numeric(x)).astype(np.int64)
    return same(array, [x], dtype)


OPERATIONS["cast"] = Operation(lambda x, dtype: f"{x}.astype({dtype!r})", _cast)


def _view(function: Callable[..., np.ndarray]) -> Callable[..., Value]:
    return lambda x, *constants: same(function(x.array, *constants), [x])


def _index_text(index: tuple[Any, ...]) -> str:
    def one(s: Any) -> str:
        if s is None:
            return "None"
        ends = ["" if e is None else str(e) for e in (s.start, s.stop)]
        return ":".join(ends + ([] if s.step in (None, 1) else [str(s.step)]))

    return ", ".join(map(one, index)) or "()"


OPERATIONS["slice"] = Operation(lambda x, index: f"{x}[{_index_text(index)}]", _view(lambda x, index: x[index]))
OPERATIONS["transpose"] = Operation(lambda x, axes: f"{x}.transpose({axes})", _view(np.transpose))
OPERATIONS["reshape"] = Operation(lambda x, shape: f"{x}.reshape({shape})", _view(np.reshape))
OPERATIONS["broadcast"] = Operation(lambda x, shape: f"np.broadcast_to({x}, {shape})", _view(np.broadcast_to))


def _matmul(x: Value, y: Value) -> Value:
    _floats(x), _floats(y)
    if min(x.array.ndim, y.array.ndim) < 2 or x.dtype != y.dtype:
        raise Unfit
    n = x.shape[-1]
    try:
        array = x.array @ y.array
    except ValueError:
        raise Unfit from None
    error = n * (x.top * y.error + y.top * x.error + x.error * y.error) + _sum_error(n, x.top * y.top, x.dtype)
    return replace(computed(array, x.dtype, [x, y], error, exact=False), same_bits=False)


def _take(x: Value, indices: Value) -> Value:
    if x.array.ndim == 0 or indices.dtype != "int64" or not -x.shape[0] <= indices.array.min(initial=0) <= 0:
        raise Unfit
    if indices.array.max(initial=0) >= x.shape[0]:
        raise Unfit
    return same(x.array[indices.array], [x])


OPERATIONS["take"] = Operation("kf.take({0}, {1}, 0)", _take)
OPERATIONS["matmul"] = Operation("{0} @ {1}", _matmul)


@dataclass
class Program:
    """`inputs` are arrays of their dtypes, laid out anyhow; values are numbered: the inputs, then a step each."""

    inputs: list[np.ndarray]
    steps: list[Step] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def input_values(self) -> list[Value]:
        wide = {"b": np.bool_, "i": np.int64}
        return [Value(x.astype(wide.get(x.dtype.kind, np.float64)), str(x.dtype)) for x in self.inputs]

    def values(self) -> list[Value]:
        """Raises Unfit where a step says nothing."""
        values = self.input_values()
        for step in self.steps:
            values.append(value_of(step, values))
        return values

    @property
    def names(self) -> list[str]:
        letters = "abcdefgh"[: len(self.inputs)]
        return [*letters, *(f"v{i}" for i in range(len(self.inputs), len(self.inputs) + len(self.steps)))]

    def source(self) -> str:
        """The function's text."""
        names, lines = self.names, []
        for name, step in zip(names[len(self.inputs) :], self.steps, strict=True):
            lines.append(f"    {name} = {_text(step, names)}")
        results = ", ".join(names[i] for i in self.outputs)
        comma = "," if len(self.outputs) == 1 else ""
        return "\n".join(
            [f"def f({', '.join(names[: len(self.inputs)])}):", *lines, f"    return {results}{comma}", ""]
        )

    def function(self) -> Callable[..., Any]:
        scope: dict[str, Any] = {"np": np, "kf": kf}
        exec(self.source(), scope)
        return scope["f"]

    def needed(self) -> Program:
        """Without the steps and inputs that no result needs."""
        n = len(self.inputs)
        used = set(self.outputs)
        for i in reversed(range(len(self.steps))):
            if n + i in used:
                used.update(self.steps[i].arguments)
        kept = sorted(used)
        moved = {old: new for new, old in enumerate(kept)}
        steps = [self.steps[i - n] for i in kept if i >= n]
        steps = [replace(s, arguments=tuple(moved[a] for a in s.arguments)) for s in steps]
        return Program([self.inputs[i] for i in kept if i < n], steps, [moved[o] for o in self.outputs])

    def reproducer(self) -> str:
        """A script of its own."""
        lines = ["import ml_dtypes", "import numpy as np", "import kfusion as kf", "", self.source()]
        for name, x in zip(self.names, self.inputs, strict=False):
            text = np.array2string(x.astype(float), threshold=10**6, separator=",", max_line_width=10**6)
            text = re.sub(r"\s+", "", text) if x.size <= 64 else f"np.resize({list(_period(x))}, {x.shape})"
            lines.append(f"{name} = np.array({text}).reshape({x.shape}).astype('{x.dtype}')  # strides {x.strides}")
        arguments = ", ".join(self.names[: len(self.inputs)])
        lines += ["fused = kf.fuse(f)", f"for got, apart in zip(fused({arguments}), fused.unfused({arguments})):"]
        lines += ["    print(got, apart, sep='\\n')", f"print(fused.plan({arguments}))"]
        return "\n".join(lines)


def _period(x: np.ndarray) -> list[float]:
    flat = x.astype(float).reshape(-1)
    for p in range(1, 65):
        if np.array_equal(flat, np.resize(flat[:p], flat.shape)):
            return [float(v) for v in flat[:p]]
    return [float(v) for v in flat]


def _text(step: Step, names: Sequence[str]) -> str:
    text = OPERATIONS[step.op].text
    arguments = [names[a] for a in step.arguments]
    return text.format(*arguments) if isinstance(text, str) else text(*arguments, *step.constants)


def value_of(step: Step, values: Sequence[Value]) -> Value:
    with np.errstate(all="ignore"):
        return OPERATIONS[step.op].value(*(values[a] for a in step.arguments), *step.constants)


# Drawing.


class Choices(Protocol):
    """Where choices come from: a seed, or hypothesis."""

    def integer(self, low: int, high: int) -> int: ...  # both included
    def one_of(self, things: Sequence[Any]) -> Any: ...


class Seeded:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def one_of(self, things: Sequence[Any]) -> Any:
        return things[int(self._random.random() * len(things))]


@dataclass(frozen=True)
class Profile:
    """What programs are made of: each kind of step, as often as it stands here; dtypes of inputs and casts."""

    name: str
    kinds: tuple[str, ...]
    dtypes: tuple[str, ...]
    casts: tuple[str, ...]
    steps: tuple[int, int] = (2, 14)
    whole: bool = False  # inputs are small integers
    layers: int = 0  # each made of the one or two before it, and all of them needed


def many(**counts: int) -> tuple[str, ...]:
    return tuple(name for name, count in counts.items() for _ in range(count))


_ALL = ("float32", "float32", "float64", "float16", "bfloat16")
PROFILES = (
    Profile("anything", many(unary=2, function=1, binary=4, scale=1, compare=1, select=1, reduce=3, normalise=2,
                              centre=2, view=3, cast=1, composite=1, logical=1), _ALL, (*_ALL, "int32"), (2, 16)),
    Profile("axes", many(binary=5, reduce=4, normalise=3, centre=4, view=2, scale=1), ("float32", "float64"), _ALL,
            (3, 14)),
    Profile("exact", many(binary=4, reduce=4, centre=2, view=4, scale=1, select=1, compare=1, logical=1, cast=1,
                           exact=2), ("float32", "float32", "float64", "int32", "int64"),
            ("float32", "float64", "int32", "int64"), (3, 16), whole=True),
    Profile("elementwise", many(unary=2, function=1, binary=5, scale=2, compare=1, select=1, view=2, cast=1),
            ("float32", "float64"), ("float32", "float64"), (3, 20)),
    Profile("casts", many(unary=1, binary=3, scale=3, round=5, view=2, reduce=1), ("float32", "float64"), _ALL,
            (3, 20)),
    Profile("views", many(binary=5, view=6, unary=1, reduce=1), ("float32",), ("float32",), (3, 14), whole=True),
    Profile("layers", ("layer",), ("float32", "float64"), _ALL, (3, 3), layers=3),
    Profile("chain", many(normalise=4, centre=3, binary=1), ("float32", "float64"), _ALL, (3, 12)),
    Profile("products", many(matmul=3, take=2, unary=2, binary=3, view=3, reduce=2, cast=1), ("float32", "float64"),
            ("float32", "float64"), (2, 10)),
    Profile("composites", many(composite=4, view=4, binary=2, reduce=1, cast=1, compare=1), _ALL, _ALL, (2, 8)),
)  # fmt: skip
# Mostly small ones; vectors and tiles with their remainders, rows that are cut, work for several threads.
BASES = [(4, 8), (3, 5), (7, 11), (1, 6), (8, 8), (2, 3)] * 4 + [(33, 67), (2, 1030), (1030, 2), (16, 64)] * 2
BASES += [(0, 5), (130, 520)]


class Drawing:
    """A program that grows by random steps."""

    def __init__(self, c: Choices, profile: Profile, bases: Sequence[tuple[int, int]]) -> None:
        self.c, self.profile = c, profile
        self.values: list[Value] = []
        self.program = Program([])
        self._inputs(*c.one_of(bases))

    def flag(self, one_in: int = 2) -> bool:
        return self.c.integer(1, one_in) == 1

    def _inputs(self, m: int, n: int) -> None:
        shapes = [(m, n)] * 6 + [(n,), (m, 1), (1, n), (n, m), (2, m, n), ()]
        for i in range(self.c.integer(1, 1 if self.profile.layers else 4)):
            shape = self.c.one_of(shapes if i else shapes[: 1 if self.profile.layers else 11])
            dtype = self.c.one_of(self.profile.dtypes)
            self.program.inputs.append(self._laid_out(self._array(shape, dtype)))
        if "take" in self.profile.kinds:
            self.program.inputs.append(np.array([self.c.integer(-1, 0) for _ in range(3)]))
        self.values = self.program.input_values()

    def _array(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        period = [self.c.integer(-16, 16) for _ in range(self.c.one_of([5, 7, 11, 13]))]
        divisor = 1 if self.profile.whole or not dtype.startswith(("f", "b")) else 8
        array = np.resize(np.array(period) / divisor / (4 if divisor == 1 and self.profile.whole else 1), shape)
        return np.asarray(np.rint(array) if divisor == 1 else array, np_dtype(dtype))

    def _laid_out(self, x: np.ndarray) -> np.ndarray:
        if x.ndim == 0 or not self.flag(6):
            return x
        if x.ndim > 1 and self.flag():
            return np.ascontiguousarray(x.T).T
        owner = np.full([e * 2 for e in x.shape], 77, x.dtype)
        view = owner[tuple(slice(None, None, self.c.one_of([2, -2])) for _ in x.shape)]
        view[...] = x
        return view

    def push(self, op: str, arguments: Sequence[int], *constants: Any) -> int:
        step = Step(op, tuple(arguments), constants)
        value = value_of(step, self.values)
        self.program.steps.append(step)
        self.values.append(value)
        return len(self.values) - 1

    # What a step reads: recent values more often than others.

    def pick(self, fits: Callable[[Value], bool] = lambda v: True) -> int:
        numbers = [i for i, v in enumerate(self.values) if fits(v)]
        if not numbers:
            raise Unfit
        return int(self.c.one_of(numbers[-3:] if self.flag() else numbers))

    def number(self) -> int:
        return self.pick(lambda v: v.dtype != "bool")

    def partner(self, i: int) -> int:
        shape = self.values[i].shape

        def fits(y: Value) -> bool:
            pairs = zip(shape[::-1], y.shape[::-1], strict=False)
            return y.dtype != "bool" and all(m == n or 1 in (m, n) for m, n in pairs)

        return self.pick(fits)

    def axes(self, i: int) -> Any:
        ndim = len(self.values[i].shape)
        if ndim == 0 or self.flag(4):
            return None
        chosen = sorted({self.c.integer(0, ndim - 1) for _ in range(self.c.one_of([1, 1, 1, 2]))})
        return chosen[0] if len(chosen) == 1 else tuple(chosen)

    def step(self) -> None:
        """A step or two, or none where what was drawn does not fit."""
        getattr(self, "_" + self.c.one_of(self.profile.kinds))()

    def _unary(self) -> None:
        functions = ["negative", "absolute", "tanh", "sin", "square", "exp", "cos", "arctan", "relu", "sqrt"]
        self.push(self.c.one_of(functions), [self.number()])

    def _exact(self) -> None:
        self.push(self.c.one_of(["negative", "absolute", "relu", "square", "sign", "floor", "rint"]), [self.number()])

    def _function(self) -> None:
        self.push(self.c.one_of(list(_FUNCTIONS)), [self.number()])

    def _binary(self) -> None:
        x = self.number()
        y = self.partner(x)
        if x == y and self.flag():
            y = self.partner(x)
        pair = [x, y] if self.flag() else [y, x]
        ops = ["add", "subtract", "multiply", "maximum", "minimum", *([] if self.profile.whole else ["divide"])]
        self.push(self.c.one_of(ops), pair)

    def _scale(self) -> None:
        c = self.c.one_of([2, -1, 3, 1] if self.profile.whole else [2, -1, 0.5, 1.1, 1.5, 0.3])
        self.push("scale", [self.number()], c, self.c.one_of("+*-"))

    def _compare(self) -> None:
        x = self.pick(lambda v: v.error == 0)
        operator = self.c.one_of(list(_COMPARISONS))
        if self.flag() and self.values[x].dtype != "bool":
            self.push("threshold", [x], self.c.one_of([0, 1, -1]), operator)
        else:
            shape = self.values[x].shape
            self.push("compare", [x, self.pick(lambda v: v.error == 0 and v.shape == shape)], operator)

    def _logical(self) -> None:
        x = self.pick(lambda v: v.dtype == "bool")
        if self.flag(3):
            self.push("not", [x])
        else:
            shape = self.values[x].shape
            y = self.pick(lambda v: v.dtype == "bool" and v.shape == shape)
            self.push("logical", [x, y], self.c.one_of("&|^"))

    def _select(self) -> None:
        m = self.pick(lambda v: v.dtype == "bool")
        shape = self.values[m].shape
        x = self.pick(lambda v: v.shape == shape)
        y = self.pick(lambda v: v.shape in (shape, ()))
        self.push("where", [m, x, y] if self.flag() else [m, y, x])

    def _reduce(self) -> None:
        x = self.pick()
        names = ["any", "all", "sum", "sum"] if self.values[x].dtype == "bool" else ["sum", "sum", "mean", "max", "min"]
        self.push(self.c.one_of(names), [x], self.axes(x), self.flag())

    def _normalise(self) -> None:
        """What the value's own rows, columns or all of it read again: x / x.sum(axis)."""
        x = self.number()
        source = x
        if self.flag():  # something positive
            source = self.push(self.c.one_of(["square", "absolute", "exp"]), [x])
        r = self.push(self.c.one_of(["sum", "mean", "max"]), [source], self.axes(source), True)
        if self.flag(3):
            r = self.push("scale", [r], 1, "+")
        if self.flag(4):
            r = self.push("sqrt", [r])
        self.push("divide", [x, r])

    def _centre(self) -> None:
        x = self.number()
        r = self.push(self.c.one_of(["mean", "max", "sum", "min"]), [x], self.axes(x), True)
        self.push(self.c.one_of(["subtract", "subtract", "multiply", "add"]), [x, r])

    def _reduced(self, i: int) -> int:
        """A reduction of a value or of its square, and perhaps a small kernel after it."""
        if self.c.integer(1, 10) <= 6:
            i = self.push("multiply", [i, i])
        axis = self.c.one_of([0, 1, None, None])
        i = self.push(self.c.one_of(["sum", "mean", "mean"]), [i], axis, axis is not None)
        return self.push("sqrt", [i]) if self.c.integer(1, 10) <= 7 and self.values[i].array.min() > 0.1 else i

    def _mixed(self, x: int, y: int) -> int:
        if x == y or self.c.integer(1, 10) <= 6:
            y = self._reduced(y)
        return self.push(self.c.one_of(["add", "subtract", "multiply", "divide"]), [x, y])

    def layers(self) -> None:
        """Several normalisations of a value, their products, and reductions of these that all read again: kernels that
        may neither be merged nor ordered carelessly."""
        before, last = [], [0]
        for _ in range(self.profile.layers):
            layer: list[int] = []
            for _ in range(self.c.integer(3, 4)):
                pool = last + before if self.flag(3) else last
                for _ in range(4):  # until one fits
                    try:
                        layer.append(self._mixed(self.c.one_of(pool), self.c.one_of(pool)))
                        break
                    except Unfit:
                        pass
            before, last = last, layer or last
        for i in last[1:]:
            with contextlib.suppress(Unfit):
                last[0] = self.push(self.c.one_of(["add", "subtract"]), [last[0], i])

    def _round(self) -> None:
        """To a half type and back."""
        x = self.number()
        wide = self.values[x].dtype
        h = self.push("cast", [x], self.c.one_of(HALF))
        if not self.flag(4):
            self.push("cast", [h], wide if wide in ("float32", "float64") else "float32")

    def _cast(self) -> None:
        self.push("cast", [self.pick()], self.c.one_of(self.profile.casts))

    def _composite(self) -> None:
        x = self.number()
        name = self.c.one_of(
            ["softmax", "log_softmax", "logsumexp", "layernorm", "var", "std", "gelu", "silu", "softplus"]
        )
        if name in _FUNCTIONS:
            self.push(name, [x])
        elif name in ("softmax", "log_softmax", "layernorm"):
            self.push(name, [x], self.axes(x))
        else:
            self.push(name, [x], self.axes(x), self.flag())

    def _matmul(self) -> None:
        """With its own transpose, of which the product is one of rows, or with anything that fits."""
        x = self.pick(lambda v: v.is_float and v.array.ndim == 2 and v.array.size <= 4096)
        t = self.push("transpose", [x], (1, 0))
        self.push("matmul", [x, t] if self.flag() else [t, x])

    def _take(self) -> None:
        self.push("take", [self.pick(), len(self.program.inputs) - 1])

    def _view(self) -> None:
        x = self.pick()
        shape = self.values[x].shape
        kind = self.c.one_of(["transpose", "transpose", "reshape", "slice", "slice", "reverse", "broadcast", "newaxis"])
        if kind == "transpose" and len(shape) > 1:
            axes = list(range(len(shape)))[::-1]
            if len(shape) > 2 and self.flag():
                axes = axes[1:] + axes[:1]
            self.push("transpose", [x], tuple(axes))
        elif kind == "reshape":
            m, n = shape[-2:] if len(shape) > 1 else (1, math.prod(shape))
            options = [(-1,), shape[::-1], (1, *shape), (*shape, 1), (n, -1), (m, n)]
            to = self.c.one_of([t for t in options if math.prod(shape) % max(1, abs(math.prod(t))) == 0])
            if math.prod(shape) and (-1 in to or math.prod(to) == math.prod(shape)):
                self.push("reshape", [x], to)
        elif kind in ("slice", "reverse", "newaxis"):
            index = [self._range(e) if kind == "slice" else slice(None) for e in shape]
            if kind == "reverse" and index:
                index[self.c.integer(0, len(index) - 1)] = slice(None, None, -1)
            if kind == "newaxis":
                index.insert(self.c.integer(0, len(index)), None)
            self.push("slice", [x], tuple(index))
        elif kind == "broadcast":
            self.push("broadcast", [x], (self.c.integer(2, 3), *shape))

    def _range(self, extent: int) -> slice:
        kind = self.c.integer(0, 7)
        half = extent // 2
        options = [slice(None)] * 4 + [slice(0, half), slice(half, None), slice(None, None, 2), slice(1, None)]
        return options[kind]

    def outputs(self) -> list[int]:
        """What nothing else reads, and some of all."""
        first = len(self.program.inputs)
        read = {a for s in self.program.steps for a in s.arguments}
        sinks = [i for i in range(first, len(self.values)) if i not in read]
        some = [self.c.integer(first, len(self.values) - 1) for _ in range(self.c.integer(0, 3))]
        chosen = sinks if self.flag() else [self.c.one_of(sinks)]
        return list(dict.fromkeys((chosen + some)[:8]))


def draw_program(c: Choices, profile: Profile, bases: Sequence[tuple[int, int]] = BASES) -> Program:
    drawing = Drawing(c, profile, bases)
    if drawing.profile.layers:
        drawing.layers()
        drawing.program.outputs = [len(drawing.values) - 1]
        return drawing.program
    low, high = drawing.profile.steps
    wanted = c.integer(low, high) * (3 if drawing.flag(12) else 1)
    for _ in range(wanted):
        with contextlib.suppress(Unfit):
            drawing.step()
    while not drawing.program.steps:
        drawing.push("slice", [0], ())
    drawing.program.outputs = drawing.outputs()
    return drawing.program
