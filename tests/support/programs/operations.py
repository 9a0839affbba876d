"""Operations that map, choose, move and convert elements: how each is written, and what it makes of values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import reference_ops
from graph_runs import rounded
from kinds import SPACING

from . import writing
from .values import FLOATS, HALF, Unfit, Value, checked, computed, numeric, promoted, same, sum_error


@dataclass(frozen=True)
class Operation:
    text: str | Callable[..., str]
    value: Callable[..., Value]


MAPS: dict[str, Operation] = {}
_LIPSCHITZ: dict[str, Callable[[Value], float]] = {
    "negative": lambda x: 1, "absolute": lambda x: 1, "tanh": lambda x: 1, "sin": lambda x: 1, "arctan": lambda x: 1,
    "square": lambda x: 2 * x.top + x.error, "exp": lambda x: math.exp(x.top + x.error),
    "cos": lambda x: 1, "floor": lambda x: 0, "rint": lambda x: 0, "sign": lambda x: 0,
    "arcsinh": lambda x: 1, "expm1": lambda x: math.exp(x.top + x.error),
}  # fmt: skip
_EXACT_UNARY = ("negative", "absolute", "floor", "rint", "sign")
_NEEDS_EXACT = ("floor", "rint", "sign")


def _unary(name: str) -> Callable[[Value], Value]:
    def value(x: Value) -> Value:
        if (not x.is_float and name not in ("negative", "absolute", "square", "sign")) or x.dtype == "bool":
            raise Unfit
        if (name in _NEEDS_EXACT and x.error) or (name in ("square", "exp", "expm1") and x.top > 6):
            raise Unfit
        error = _LIPSCHITZ[name](x) * x.error
        array = reference_ops.MAPS[name](x.array)
        if name in _EXACT_UNARY:
            return same(array, [x], error=error)
        return computed(array, x.dtype, [x], error, exact=name == "square")

    return value


for _name in _LIPSCHITZ:
    MAPS[_name] = Operation(f"np.{_name}({{0}})", _unary(_name))


def _root(x: Value) -> Value:
    low = float(x.array.min(initial=1.0)) - x.error
    if not x.is_float or low < (0.01 if x.error else 0):
        raise Unfit
    error = x.error / (2 * math.sqrt(low)) if x.error else 0.0
    return computed(np.sqrt(x.array), x.dtype, [x], error, exact=True)


MAPS["sqrt"] = Operation("np.sqrt({0})", _root)


def _logarithm(name: str, end: float) -> Callable[[Value], Value]:
    """The logarithm of what is well above the end of its domain."""

    def value(x: Value) -> Value:
        distance = float(x.array.min(initial=1.0)) - x.error - end
        if not x.is_float or distance < 0.1:
            raise Unfit
        return computed(reference_ops.MAPS[name](x.array), x.dtype, [x], x.error / distance, exact=False)

    return value


MAPS["log"] = Operation("np.log({0})", _logarithm("log", 0))
MAPS["log1p"] = Operation("np.log1p({0})", _logarithm("log1p", -1))


def _erf(x: np.ndarray) -> np.ndarray:
    return np.asarray(reference_ops.MAPS["erf"](x)) if x.size else x


# The function, its largest slope, and the largest argument for which kfusion says that it is this function.
FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, float]] = {
    "silu": (lambda x: x / (1 + np.exp(-x)), 1.2, math.inf),
    "gelu": (lambda x: x / 2 * (1 + _erf(x / math.sqrt(2))), 1.2, math.inf),
    "softplus": (lambda x: np.logaddexp(x, 0), 1, 15),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 1, math.inf),
}


def _function(name: str) -> Callable[[Value], Value]:
    array, slope, limit = FUNCTIONS[name]

    def value(x: Value) -> Value:
        if not x.is_float or x.top > limit:
            raise Unfit
        within = 12 * SPACING["float32" if x.dtype in HALF else x.dtype] * (1 + x.top)
        return computed(array(x.array), x.dtype, [x], slope * x.error + within, exact=False)

    return value


for _name in FUNCTIONS:
    MAPS[_name] = Operation(f"kf.{_name}({{0}})", _function(_name))
MAPS["relu"] = Operation("kf.relu({0})", lambda x: same(np.maximum(x.array, 0), [_floats(x)]))
MAPS["clip"] = Operation("np.clip({0}, -1, 1)", lambda x: same(np.clip(x.array, -1, 1), [_floats(x)]))


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


def _cube(x: Value) -> Value:
    """Two products where loops are generated, the power function in the interpreter."""
    error = ((_floats(x).top + x.error) ** 2 * 3) * x.error
    return computed(x.array**3, x.dtype, [x], error, exact=False)


def _divide(x: Value, y: Value) -> Value:
    dtype = promoted([x.dtype, y.dtype, *(["float64"] if not (x.is_float or y.is_float) else [])])
    low = float(np.abs(y.array).min(initial=1.0)) - y.error
    if dtype not in FLOATS or y.dtype == "bool" or low < 1e-3:
        raise Unfit
    error = (x.error + x.top / low * y.error) / low
    return computed(numeric(x) / y.array, dtype, [x, y], error, exact=True)


def _polar(name: str, x: Value, y: Value) -> Value:
    """A radius or an angle, of points that are away from the negative half of an axis, where angles jump."""
    _floats(x), _floats(y)
    least = float(y.array.min(initial=1.0)) - y.error
    if least < 0.1:
        raise Unfit
    array, error = reference_ops.MAPS[name](x.array, y.array), (x.error + y.error) / min(least, 1)
    return computed(array, promoted([x.dtype, y.dtype]), [x, y], error, exact=False)


def _choice(function: Callable[..., np.ndarray]) -> Callable[[Value, Value], Value]:
    def value(x: Value, y: Value) -> Value:
        _numbers(x, y)
        dtype = promoted([x.dtype, y.dtype])
        if dtype in HALF and dtype not in (x.dtype, y.dtype):
            raise Unfit
        # Integers become floats first.
        return computed(function(numeric(x), numeric(y)), dtype, [x, y], max(x.error, y.error), exact=True)

    return value


def _kept(x: Value, axis: int, seed: int) -> Value:
    if not x.is_float or x.array.ndim == 0:
        raise Unfit
    bits = reference_ops.MAPS["philox"](np.arange(x.shape[axis]), 5, seed) if x.shape[axis] else np.zeros(0)
    shape = [-1 if a == axis else 1 for a in range(x.array.ndim)]
    return same(np.where(bits.reshape(shape) < 2**31, x.array, 0), [x])


MAPS["kept"] = Operation(
    lambda x, axis, seed: f"kf.where(kf.philox(kf.iota({x}.shape, {axis}), 5, {seed}) < 2**31, {x}, 0)", _kept
)
MAPS["add"] = Operation("{0} + {1}", _add)
MAPS["subtract"] = Operation("{0} - {1}", lambda x, y: _add(x, y, -1))
MAPS["multiply"] = Operation("{0} * {1}", _multiply)
MAPS["divide"] = Operation("{0} / {1}", _divide)
MAPS["power"] = Operation("{0} ** 3", _cube)
MAPS["hypot"] = Operation("np.hypot({0}, {1})", lambda x, y: _polar("hypot", x, y))
MAPS["arctan2"] = Operation("np.arctan2({0}, {1})", lambda x, y: _polar("arctan2", x, y))
MAPS["maximum"] = Operation("np.maximum({0}, {1})", _choice(np.maximum))
MAPS["minimum"] = Operation("np.minimum({0}, {1})", _choice(np.minimum))


def _scaled(x: Value, c: float, operator: str) -> Value:
    if x.dtype == "bool" or (not x.is_float and not isinstance(c, int)):
        raise Unfit
    scalar = Value(rounded(np.array(float(c)), x.dtype).astype(float) if x.is_float else np.array(c), x.dtype)
    return {"+": _add, "*": _multiply, "-": lambda a, b: _add(b, a, -1)}[operator](x, scalar)


MAPS["scale"] = Operation(lambda x, c, operator: f"{c} - {x}" if operator == "-" else f"{x} {operator} {c}", _scaled)


def _compare(x: Value, y: Value, operator: str) -> Value:
    if x.error or y.error:
        raise Unfit
    return same(COMPARISONS[operator](numeric(x), numeric(y)), [x, y], "bool")


COMPARISONS = {"<": np.less, ">=": np.greater_equal, "!=": np.not_equal, "==": np.equal}
MAPS["compare"] = Operation(lambda x, y, operator: f"{x} {operator} {y}", _compare)
MAPS["threshold"] = Operation(
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


MAPS["logical"] = Operation(lambda x, y, operator: f"{x} {operator} {y}", _logical)
MAPS["not"] = Operation("~{0}", _not)


def _where(m: Value, x: Value, y: Value) -> Value:
    _bools(m)
    dtype = promoted([x.dtype, y.dtype])
    array = np.where(m.array, numeric(x), numeric(y)) if dtype != "bool" else np.where(m.array, x.array, y.array)
    return computed(array, dtype, [m, x, y], max(x.error, y.error), exact=True)


MAPS["where"] = Operation("np.where({0}, {1}, {2})", _where)


def _cast(x: Value, dtype: str) -> Value:
    if dtype in SPACING:
        v = computed(numeric(x), dtype, [x], x.error, exact=True)
        if x.error == 0:  # a cast rounds, to half types as well
            stored = rounded(numeric(x).astype(np.float64), dtype).astype(np.float64)
            return checked(Value(stored, dtype, 0.0, x.same_bits, x.signed))
        return replace(v, same_bits=x.same_bits)
    if x.error:
        raise Unfit
    array = x.array != 0 if dtype == "bool" else np.trunc(numeric(x)).astype(np.int64)
    return same(array, [x], dtype)


MAPS["cast"] = Operation(lambda x, dtype: f"{x}.astype({dtype!r})", _cast)


def _view(function: Callable[..., np.ndarray]) -> Callable[..., Value]:
    return lambda x, *constants: same(function(x.array, *constants), [x])


def _index_text(index: tuple[Any, ...]) -> str:
    def one(s: Any) -> str:
        if s is None:
            return "None"
        ends = ["" if e is None else str(e) for e in (s.start, s.stop)]
        return ":".join(ends + ([] if s.step in (None, 1) else [str(s.step)]))

    return ", ".join(map(one, index)) or "()"


MAPS["slice"] = Operation(lambda x, index: f"{x}[{_index_text(index)}]", _view(lambda x, index: x[index]))
MAPS["transpose"] = Operation(lambda x, axes: f"{x}.transpose({axes})", _view(np.transpose))
MAPS["reshape"] = Operation(lambda x, shape: f"{x}.reshape({shape})", _view(np.reshape))
MAPS["broadcast"] = Operation(lambda x, shape: f"np.broadcast_to({x}, {shape})", _view(np.broadcast_to))


def _concatenate(x: Value, y: Value, axis: int) -> Value:
    if x.array.ndim != y.array.ndim or np.delete(x.shape, axis).tolist() != np.delete(y.shape, axis).tolist():
        raise Unfit
    if x.dtype == y.dtype:
        return same(np.concatenate((x.array, y.array), axis), [x, y])
    array = np.concatenate((numeric(x), numeric(y)), axis)
    return computed(array, promoted([x.dtype, y.dtype]), [x, y], max(x.error, y.error), exact=True)


MAPS["concatenate"] = Operation(lambda x, y, axis: f"np.concatenate(({x}, {y}), {axis})", _concatenate)
MAPS["stack"] = Operation(
    lambda x, y, axis: f"kf.stack(({x}, {y}), {axis})",
    lambda x, y, axis: _concatenate(
        *(Value(np.expand_dims(v.array, axis), v.dtype, v.error, v.same_bits, v.signed) for v in (x, y)), axis
    ),
)
MAPS["pad"] = Operation(
    lambda x, widths, mode: f"np.pad({x}, {widths}, {mode!r})",
    lambda x, widths, mode: same(np.pad(x.array, widths, mode), [x]),
)


def _matmul(x: Value, y: Value) -> Value:
    _floats(x), _floats(y)
    if min(x.array.ndim, y.array.ndim) < 2 or x.dtype != y.dtype:
        raise Unfit
    n = x.shape[-1]
    try:
        array = x.array @ y.array
    except ValueError:
        raise Unfit from None
    error = n * (x.top * y.error + y.top * x.error + x.error * y.error) + sum_error(n, x.top * y.top, x.dtype)
    return replace(computed(array, x.dtype, [x, y], error, exact=False), same_bits=False)


def _convolve(x: Value, y: Value) -> Value:
    """One image of one channel."""
    _floats(x), _floats(y)
    if x.array.ndim != 2 or y.array.ndim != 2 or x.dtype != y.dtype or y.array.size == 0:
        raise Unfit
    if any(m < n for m, n in zip(x.shape, y.shape, strict=True)):
        raise Unfit
    windows = np.lib.stride_tricks.sliding_window_view(x.array, y.shape)
    n = y.array.size
    error = n * (x.top * y.error + y.top * x.error + x.error * y.error) + sum_error(n, x.top * y.top, x.dtype)
    array = np.einsum("ijkl,kl->ij", windows, y.array)
    return replace(computed(array, x.dtype, [x, y], error, exact=False), same_bits=False)


def _take(x: Value, indices: Value) -> Value:
    _positions(x, indices, 0)
    return same(x.array[indices.array], [x])


def _positions(x: Value, indices: Value, axis: int) -> None:
    n = x.shape[axis] if x.array.ndim else 0
    if (
        indices.dtype not in ("int32", "int64")
        or indices.array.min(initial=0) < -n
        or indices.array.max(initial=0) >= n
    ):
        raise Unfit


def _along(x: Value, indices: Value, axis: int) -> Value:
    _positions(x, indices, axis)
    rows = [1] * x.array.ndim
    rows[axis] = -1
    return same(np.take_along_axis(x.array, indices.array.reshape(rows), axis), [x])


def _along_text(x: str, indices: str, axis: int) -> str:
    return f"kf.take_along_axis({x}, {indices}.reshape([-1 if d == {axis} else 1 for d in range({x}.ndim)]), {axis})"


MAPS["sort"] = Operation("np.sort({0}, -1)", writing.sorted_value)
MAPS["add_to"] = Operation("added_to({0}, {1})", lambda x, y: writing.added_value(x, y, _add))
MAPS["set_part"] = Operation("part_set({0}, {1})", writing.part_value)
MAPS["set_masked"] = Operation("masked_set({0}, {1})", writing.masked_value)
MAPS["set_in_copies"] = Operation("set_in_copies({0})", writing.kept_value)
MAPS["set_before"] = Operation("set_before_read({0})", writing.read_value)
MAPS["take"] = Operation("kf.take({0}, {1}, 0)", _take)
MAPS["along"] = Operation(_along_text, _along)
MAPS["matmul"] = Operation("{0} @ {1}", _matmul)
MAPS["convolve"] = Operation("kf.conv2d({0}[None, None], {1}[None, None])[0, 0]", _convolve)
