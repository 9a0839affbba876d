"""Float arguments while their function is traced: kernels take their values when they run, unless the trace looks."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .tracer import Tracer


class Number:
    """Stands for a float argument, Python's or NumPy's.

    Where it meets a traced value it becomes a scalar of the graph. Anything else that asks for its value (a comparison,
    float(), arithmetic with plain numbers, a format) gets it, and makes it a fixed part of what is traced: another
    value is traced anew.
    """

    __slots__ = ("_number", "_tracer", "_value")

    def __init__(self, value: Any, tracer: Tracer, number: int) -> None:
        self._value = value
        self._tracer = tracer
        self._number = number

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance(x, float) answers as for the float itself
        return type(self._value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(read(self), name)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(read(self), dtype)

    def __format__(self, spec: str) -> str:
        return format(read(self), spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self._value), (read(self),)


def is_number(value: Any) -> bool:
    """Whether value is a `Number`; isinstance would ask it to lie."""
    return type(value) is Number


def read(value: Any) -> Any:
    """The value itself; from now on its trace holds for this value only."""
    if type(value) is not Number:
        return value
    value._tracer.read_numbers.add(value._number)
    return value._value


def parameter_of(value: Number, tracer: Tracer) -> tuple[Any, int]:
    """The present value and the number by which a graph of `tracer` names it (-1 where it is another tracer's)."""
    return (value._value, value._number) if value._tracer is tracer else (read(value), -1)


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: function(read(self), *args)


def _binary(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Number, other: Any) -> Any:
        if hasattr(type(other), "__kfusion_traced__"):
            return NotImplemented  # its own operator takes us as we are
        return function(read(self), read(other))

    return method


_UNARY: dict[str, Callable[..., Any]] = {
    "float": float,
    "int": int,
    "bool": bool,
    "complex": complex,
    "hash": hash,
    "repr": repr,
    "str": str,
    "abs": abs,
    "neg": operator.neg,
    "pos": operator.pos,
    "round": round,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
}
_COMPARISONS = ("lt", "le", "eq", "ne", "gt", "ge")
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")},
    "divmod": divmod,
}

for _name, _function in _UNARY.items():
    setattr(Number, f"__{_name}__", _unary(_function))
for _name in _COMPARISONS:
    setattr(Number, f"__{_name}__", _binary(getattr(operator, _name)))
for _name, _function in _ARITHMETIC.items():
    setattr(Number, f"__{_name}__", _binary(_function))
    setattr(Number, f"__r{_name}__", _binary(lambda x, y, f=_function: f(y, x)))
