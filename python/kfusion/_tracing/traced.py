"""What every traced value can do whatever its library: operators, indices, and saying no to what has no graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .._graph.number import read
from .._graph.sizes import is_int
from .._graph.source import NotTraced, TraceAttributeError, message, not_traced, trace_error
from .._graph.structure import foreign_library
from .._graph.values import Traced, tracer_of
from .._ops.views import astype, matrix_transpose, transpose
from .._spec import FLOATS, ITEM_BYTES
from . import refusals, writing
from .indexing import getitem
from .library_checks import compared

# Python's name of the operator: its symbol and the row of the op table.
BINARY = {
    "add": ("+", "add"),
    "sub": ("-", "subtract"),
    "mul": ("*", "multiply"),
    "truediv": ("/", "divide"),
    "floordiv": ("//", "floor_divide"),
    "mod": ("%", "remainder"),
    "pow": ("**", "power"),
    "and": ("&", "bitwise_and"),
    "or": ("|", "bitwise_or"),
    "xor": ("^", "bitwise_xor"),
    "lshift": ("<<", "left_shift"),
    "rshift": (">>", "right_shift"),
}
COMPARISONS = {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}
UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}

# What Python, and NumPy through Python, asks of a number or a container.
_REFUSED = {
    "bool": (
        "branching on a traced value (if, while, and, or, not, a < b < c)",
        "write kf.where(condition, x, y), & and | instead",
    ),
    "float": ("float() of a traced value", "write the value itself: functions of kfusion and NumPy take it"),
    "int": ("int() of a traced value", "write x.astype('int64') instead"),
    "complex": ("complex() of a traced value", "write real numbers"),
    "index": ("a traced value as a Python integer (range, shape, slice)", "pass the integer as a Python integer"),
    "contains": ("`in` with a traced value", "write (x == value).any() instead"),
    "array": (
        "making a NumPy array of traced values (np.asarray, np.array, np.full, or out[...] = x of NumPy's own out)",
        "write the value itself, kf.full_like, or kf.stack((x, y)) for several values; "
        "make an array to write to with np.zeros(shape, like=x)",
    ),
    "reduce_ex": ("pickling a traced value", "return it, and pickle the result outside"),
    "delitem": ("deleting a part of a traced value", "write a slice instead"),
}


class Value(Traced):
    """A traced value with Python's operators."""

    __slots__ = ()

    # ---- set below: __add__, __radd__, __iadd__, ..., __lt__, ..., __neg__, ..., and the refusals ----

    def __matmul__(self, other: Any) -> Any:
        return self._operation("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return self._operation("matmul", other, self)

    def __imatmul__(self, other: Any) -> Any:
        return self._write("@", self @ other)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def _operation(self, op: str, *operands: Any) -> Any:
        """What an operator of Python means in the value's library, by the name of the op table's row."""
        raise NotImplementedError

    @property
    def T(self) -> Any:
        """The axes in reverse order."""
        return transpose(self)

    @property
    def mT(self) -> Any:
        """The last two axes exchanged."""
        return matrix_transpose(self)

    def __getitem__(self, key: Any) -> Any:
        return getitem(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        compared("setitem", operator.setitem, (self, key, value), {}, lambda: self._set(key, value))

    def _set(self, key: Any, value: Any) -> None:
        if writing.is_written_part(self, key, value):
            return
        if isinstance(value, Traced) and value._memory is self._memory and self._version == self._memory.version - 1:
            self._keep()  # x[key] += y: the part was written just now
        try:
            writing.assign(self, key, value)
        except NotTraced:
            self._assign(key, value)

    def _keep(self) -> None:
        """The value is what it was, although its memory was written to."""
        object.__setattr__(self, "_version", self._memory.version)
        if self._path == ():
            self._memory.node = self._node

    def _assign(self, key: Any, value: Any) -> None:
        """self[key] = value by a call of the library."""
        raise NotImplementedError

    def __len__(self) -> int:
        if self.ndim == 0:
            raise trace_error("len() of a value without axes (torch.tensor asks for it)", "write the value itself")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if self.ndim == 0:
            raise TypeError("iteration over an array without axes")
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        if not self._tracer.is_open or isinstance(self._node, str):
            return f"<traced value of {self._tracer.name}>"
        return f"<traced {self._dtype}{list(self.shape)}>"

    def __format__(self, spec: str) -> str:
        if spec:
            raise trace_error(f"formatting a traced value with {spec!r}", "return the value and print it outside")
        return repr(self)

    def __copy__(self) -> Any:
        return self._tracer.copy(self)

    def __deepcopy__(self, memo: Any) -> Any:
        return self._tracer.copy(self)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self._dtype]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "data" and value is self:  # x.data += y
            return
        raise trace_error(f"setting .{name} of a traced value", "write y = ... for a new value")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._refused_attribute(name)

    def _refused_attribute(self, name: str) -> TraceAttributeError:
        for library, kind in Traced._classes.items():
            if library != self._library and hasattr(kind, name):
                hint = f'plan with kf.spec(..., like="{library}")'
                what = f"{self._library} arrays have no .{name}, {library}'s have"
                return TraceAttributeError(message(what, hint))
        return refusals.refused_attribute(name)

    def _write(self, operator: str, result: Any) -> Any:
        """x += y: the value itself changes, so that its other names see it, and views of it."""
        if result.shape != self.shape or _rank(result) > _rank(self):
            was, now = (f"{v._dtype}{list(v.shape)}" for v in (self, result))
            if operator[:1].isalpha():  # a function's name
                raise trace_error(f"{operator} makes {now} of {was}", "write y = ... for a new value")
            raise trace_error(f"x {operator}= y makes {now} of {was}", f"write x = x {operator} y instead")
        writing.write(self, astype(result, self._dtype))
        return self


def _define(name: str, method: Callable[..., Any]) -> None:
    method.__name__ = f"__{name}__"
    setattr(Value, method.__name__, method)


def has_labels(value: Any) -> bool:
    """Whether a value is one of a library of labelled arrays, whose own operators and functions it is to run."""
    return hasattr(type(value), "__kfusion_by_place__") or foreign_library(type(value)) == "xarray"


def _binary(op: str) -> Callable[..., Any]:
    return lambda x, y: NotImplemented if has_labels(y) else x._operation(op, x, y)


def _operator(name: str, symbol: str, op: str) -> None:
    _define(name, _binary(op))
    _define(f"r{name}", lambda x, y: x._operation(op, y, x))
    _define(f"i{name}", lambda x, y: x._write(symbol, getattr(x, f"__{name}__")(y)))


def power(x: Any, y: Any, shortcuts: Mapping[float, str]) -> Any:
    """x ** y. NumPy and torch compute some powers of floats as other functions, which differ at -inf and -0."""
    y = read(y)  # the exponent decides which function it is
    if isinstance(x, Value) and x._library == "numpy" and x._dtype == "bool":
        # Some of which are int8.
        raise not_traced("numpy.power of bools is not traced", "write x.astype('int64') first")
    exponent = y.item() if isinstance(y, (np.floating, np.integer)) else y
    if not (is_int(exponent) or type(exponent) is float) or exponent not in shortcuts or not isinstance(x, Value):
        return tracer_of(x, y).map("power", x, y)  # type: ignore[union-attr]
    if x._library == "numpy" and isinstance(y, np.generic) and x._dtype != "bfloat16":
        x = astype(x, np.result_type(x._dtype, y).name)
    return x._tracer.map(shortcuts[exponent], x) if x._dtype in FLOATS else x._tracer.map("power", x, y)


def _rank(x: Any) -> int:
    """NumPy and torch write values of a dtype into arrays of the same or a higher rank."""
    return {"bool": 0, "int32": 1, "int64": 1}.get(x._dtype, 2)


def _refusal(what: str, hint: str) -> Callable[..., Any]:
    def method(*args: Any, **kwargs: Any) -> Any:
        raise trace_error(what, hint)

    return method


def refuse(kind: type[Any]) -> None:
    """Makes what Python asks of a number or a container an error of that class."""
    for name, reason in _REFUSED.items():
        method = _refusal(*reason)
        method.__name__ = f"__{name}__"
        setattr(kind, method.__name__, method)


for _name, (_symbol, _op) in BINARY.items():
    _operator(_name, _symbol, _op)
for _name, _op in COMPARISONS.items():
    _define(_name, _binary(_op))
for _name, _op in UNARY.items():
    _define(_name, lambda x, op=_op: x._operation(op, x))
refuse(Value)
