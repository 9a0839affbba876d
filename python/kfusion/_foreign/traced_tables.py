"""Traced Series and DataFrames: a value, its labels, and methods that mean what their library says.

What a method gives, its kind, its labels and its dtype, is asked of the library: the same call runs on a stand-in of at
most three rows and columns. What is left to say here is how kernels compute the values (`_methods`), and which methods
run as calls of the library, because the labels of their results do not depend on data (`_calls`).
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .._graph.number import is_number, read
from .._graph.source import TraceAttributeError, message, trace_error, user_line
from .._graph.structure import leaves, walk
from .._graph.values import Traced
from .._spec import DTYPES, dtype_name
from .._tracing.traced import BINARY, COMPARISONS, UNARY, refuse

MOST = 3  # rows and columns of a stand-in


class Method(NamedTuple):
    """How kernels compute a method: of the table and the arguments that it knows by name. It gives a traced value, a
    Table, or NotImplemented.
    """

    function: Callable[..., Any]
    names: frozenset[str]


class Shown(NamedTuple):
    """What the library made of stand-ins: the dtype of its elements, an axis for each of its axes, and its name."""

    dtype: str
    axes: tuple[Any, ...]
    name: Any


class Table:
    """A traced Series or DataFrame.

    Args:
        value: the traced value of its elements.
        axes: what is known of the labels along each axis.
        name: of a Series.
    """

    __slots__ = ("_axes", "_name", "_value")
    __kfusion_traced__ = True
    __kfusion_by_place__ = True  # functions of kfusion give their results labels by place
    __array_priority__ = 1000.0
    _library: ClassVar[str]
    _methods: ClassVar[dict[str, Method]]
    _calls: ClassVar[frozenset[str]]
    _value: Any
    _axes: tuple[Any, ...]
    _name: Any

    def __init__(self, value: Any, axes: Sequence[Any], name: Any = None) -> None:
        for attribute, given in (("_value", value), ("_axes", tuple(axes)), ("_name", name)):
            object.__setattr__(self, attribute, given)

    # ---- what a library's class says of itself ----

    @property
    def _kind(self) -> Any:
        """The library's class."""
        raise NotImplementedError

    def _stand_in(self) -> Any:
        """A small one of the library's, with stand-ins of these labels."""
        raise NotImplementedError

    def _whole(self) -> Callable[[Any], Any]:
        """What makes one of the library's of an array of all elements."""
        raise NotImplementedError

    def _shown(self, like: Any, who: str) -> Shown:
        """What the library made of stand-ins."""
        raise NotImplementedError

    def _met(self, other: Any, op: str, axis: Any = None, *, is_right: bool = False) -> Any:
        """What an operator meets, as a value whose axes meet by place; raises where labels differ. NotImplemented where
        the other one knows.
        """
        raise NotImplementedError

    def _placed(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A function of kfusion's, whose arguments' axes meet by place."""
        from .labelled import by_place  # above this

        return by_place(function, args, kwargs)

    # ---- methods ----

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance(x, pandas.DataFrame) answers as for the table itself
        return self._kind

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(self._value.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def _who(self, name: str) -> str:
        return f"{self._library}'s {self._kind.__name__}.{name}"

    def _like(self, value: Any) -> Any:
        """Another value with these labels."""
        return type(self)(value, self._axes, self._name)

    def _made(self, value: Any, like: Any, who: str) -> Any:
        """A traced value with the dtype and the labels of what the library made of stand-ins."""
        shown = self._shown(like, who)
        value = value if value._dtype == shown.dtype else value.astype(shown.dtype)
        return type(self)(value, shown.axes, shown.name) if shown.axes else value

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """A method: by kernels where these have it for the arguments, else by the library."""
        args, kwargs = walk((args, kwargs), lambda _, v: read(v), is_leaf=is_table)
        method = self._methods.get(name)
        if method is not None and (given := self._known_to(method, name, args, kwargs)) is not None:
            made = method.function(self, **given)
            if isinstance(made, Traced):
                return self._made(made, self._asked(name, args, kwargs), name)
            if made is not NotImplemented:
                return made
        is_array = any(getattr(v, "shape", ()) != () for v in leaves((args, kwargs)) if not is_table(v))
        writes = bool(kwargs.get("inplace"))
        if name not in self._calls or is_array or writes:
            raise self._refused(name, has_arguments=method is not None or name in self._calls, writes=writes)
        return self._by_library(name, args, kwargs)

    def _known_to(self, method: Method, name: str, args: Any, kwargs: Any) -> dict[str, Any] | None:
        """The arguments by name, and defaults; None where one that the method does not know is no default."""
        signature = _signature(self._kind, name)
        bound = signature.bind(self, *args, **kwargs)
        given = dict(list(bound.arguments.items())[1:])
        given |= {k: v for k, v in given.pop("kwargs", {}).items() if v is not None}  # NumPy's dtype=None and out=None
        if all(v is None for v in given.get("args", ())):
            given.pop("args", None)
        defaults = {n: p.default for n, p in signature.parameters.items() if p.default is not p.empty}
        if any(n not in method.names and not _is_same(v, defaults.get(n, _ABSENT)) for n, v in given.items()):
            return None
        return {n: v for n, v in (defaults | given).items() if n in method.names}

    def _asked(self, name: str, args: Any, kwargs: Any) -> Any:
        """What the library makes of stand-ins."""
        args, kwargs = walk((args, kwargs), lambda _, v: v._stand_in() if is_table(v) else v, is_leaf=is_table)
        with np.errstate(all="ignore"):
            return getattr(self._stand_in(), name)(*args, **kwargs)

    def _by_library(self, name: str, args: Any, kwargs: Any) -> Any:
        """The library's own method, of the whole table, when the kernels run."""
        like = self._asked(name, args, kwargs)
        shown = self._shown(like, name)
        run = _Run(self, name, args, kwargs, shown.dtype)
        types = [(shown.dtype, tuple(map(len, shown.axes)))]
        (value,) = self._value._tracer.library_call(
            f"{self._library}.{name}", run, [t._value for t in run.tables], types
        )
        return self._made(value, like, name)

    def _refused(self, name: str, *, has_arguments: bool = False, writes: bool = False) -> Exception:
        """The error for a method, or for arguments of one that is known."""
        what = f"{self._who(name)}{' with these arguments' * has_arguments} is not traced"
        hint = "call it outside, or write it with operators and functions of NumPy or kfusion"
        if writes:
            hint = f"write y = x.{name}(...) without inplace=True"
        elif hasattr(np.ndarray, name):
            hint = f"call it outside, or write x.to_numpy().{name}(...) where NumPy's is meant"
        return TraceAttributeError(message(what, hint, user_line()))

    def __getattr__(self, name: str) -> Any:
        if name in self._methods or name in self._calls:
            return functools.partial(self._call, name)
        if name.startswith("_") or not hasattr(self._kind, name):
            raise AttributeError(f"{self._kind.__name__!r} object has no attribute {name!r}")
        raise self._refused(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._refuse_to_write(f"x.{name} = y")

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, str) and len(self._axes) == 2:
            self._refuse_to_write(f"x[{key!r}] = y", "return the column as a result of its own")
        self._refuse_to_write("x[...] = y")

    def _refuse_to_write(self, what: str, hint: str = "write y = ... for a new one") -> Any:
        what = f"{what} writes to a {self._kind.__name__} of {self._library}, which is not traced"
        raise trace_error(what, hint)

    # ---- operators and NumPy ----

    def _operation(self, op: str, other: Any, *, is_right: bool = False, axis: Any = None) -> Any:
        """An operator of Python's, by its name, between this and a table, a number or an array."""
        value = self._met(other, op, axis, is_right=is_right)
        if value is NotImplemented:
            return value
        function = getattr(operator, {"and": "and_", "or": "or_"}.get(op, op))
        small = self._small(other, value)
        if axis is None:
            like = _applied(function, self._stand_in(), small, is_right)
        else:
            like = self._asked_along(op, small, axis)
        return self._made(self._computed(op, function, value, is_right), like, op)

    def _alone(self, function: Callable[[Any], Any], op: str) -> Any:
        return self._made(function(self._value), function(self._stand_in()), op)

    def _no_product(self) -> Any:
        raise self._refused("dot")

    def _computed(self, op: str, function: Callable[..., Any], value: Any, is_right: bool) -> Any:
        """The elements of an operator's result."""
        return _applied(function, self._value, value, is_right)

    def _asked_along(self, op: str, small: Any, axis: Any) -> Any:
        """What the library makes of stand-ins, for x.add(y, axis=axis)."""
        raise NotImplementedError

    def _small(self, other: Any, value: Any) -> Any:
        """A stand-in of an operand, whose value is known."""
        if is_table(other):
            return other._stand_in()
        if is_number(other):
            return type(other._value)(2)
        shape = getattr(value, "shape", None)
        if shape is None:
            return value
        extents = [next((len(a.stand_in) for a in self._axes if len(a) == n), min(n, MOST)) for n in shape]
        made = np.ones(extents, dtype_name(value.dtype, f"the operand of {self._kind.__name__}"))
        return made if extents else made[()]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        name = f"numpy.{ufunc.__name__}"
        if method != "__call__" or kwargs or ufunc.nout != 1:
            what = f"{name}{'' if method == '__call__' else '.' + method} of a {self._kind.__name__} is not traced"
            raise trace_error(what, "write a method, or x.to_numpy() where NumPy's meaning is wanted")
        owner = max(filter(is_table, inputs), key=lambda x: x._value.ndim)
        is_right = inputs[0] is not owner
        met = functools.partial(owner._met, op=_OPERATORS.get(ufunc.__name__, name), is_right=is_right)
        values = [x._value if x is owner else met(x) for x in inputs]
        pairs = zip(inputs, values, strict=True)
        small = [owner._stand_in() if x is owner else owner._small(x, v) for x, v in pairs]
        with np.errstate(all="ignore"):
            like = ufunc(*small)
        return owner._made(ufunc(*values), like, name)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """The library has no such protocol: NumPy's functions call the method of their name, or make an array of it."""
        name, written = function.__name__, getattr(function, "_implementation", None)
        if hasattr(self._kind, name) and isinstance(written, FunctionType):  # those in C make arrays
            return written(*args, **kwargs)
        if name in _BY_REDUCE:  # a method of ufuncs, which the library knows
            raise self._refused(name)
        plain = walk((list(args), kwargs), lambda _, v: v._value if is_table(v) else v, is_leaf=is_table)
        return function(*plain[0], **plain[1])

    def __repr__(self) -> str:
        return f"<traced {self._kind.__name__} {self._value._dtype}{list(self.shape)}>"

    def __copy__(self) -> Any:
        return self._like(self._value._tracer.copy(self._value))

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__copy__()


class _Run:
    """A method of the library's, of tables of the arrays that kernels give."""

    def __init__(self, table: Table, name: str, args: Any, kwargs: Any, dtype: str) -> None:
        self.tables = [table]
        self._name, self._dtype = name, dtype
        self._args, self._kwargs = walk((args, kwargs), self._placed, is_leaf=is_table)
        self._wholes = [t._whole() for t in self.tables]

    def _placed(self, _: str, leaf: Any) -> Any:
        if not is_table(leaf):
            return leaf
        self.tables.append(leaf)
        return _Place(len(self.tables) - 1)

    def __call__(self, *arrays: Any) -> list[Any]:
        made = [whole(array) for whole, array in zip(self._wholes, arrays, strict=True)]
        args, kwargs = walk((self._args, self._kwargs), lambda _, v: made[v] if type(v) is _Place else v)
        return [np.array(getattr(made[0], self._name)(*args, **kwargs), self._dtype)]


class _Place(int):
    """Which of the tables of a call stands there."""


_ABSENT = object()
_OPERATORS = {ufunc: name for name, (_, ufunc) in BINARY.items()}
_BY_REDUCE = ("all", "amax", "amin", "any", "max", "min", "prod", "ptp", "sum")


class PlacedTable:
    """A table among the arguments of a function of kfusion, whose axes meet by place."""

    def __init__(self, table: Table) -> None:
        self.value, self.axes, self._name = table._value, table._axes, table._name


def is_table(value: Any) -> bool:
    """Whether a value is a `Table`, whatever its `__class__` says."""
    return issubclass(type(value), Table)


def require_dtype(dtype: Any, who: str) -> str:
    """The name of a result's dtype; raises where kernels have no such."""
    name = str(dtype)
    if name not in DTYPES:
        raise trace_error(f"{who} gives {name}, which kernels do not have", "call it outside")
    return name


def method_of(*names: str) -> Callable[[Callable[..., Any]], Method]:
    """The method that a function is, which takes arguments of these names."""
    return lambda function: Method(function, frozenset(names))


@functools.cache
def _signature(kind: Any, name: str) -> inspect.Signature:
    return inspect.signature(inspect.unwrap(getattr(kind, name)))  # pandas still takes more by position than it shows


def _is_same(value: Any, default: Any) -> bool:
    is_plain = value is None or isinstance(value, (bool, int, float, str))
    return value is default or (is_plain and type(value) is type(default) and bool(value == default))


def _applied(function: Callable[..., Any], x: Any, y: Any, is_right: bool) -> Any:
    with np.errstate(all="ignore"):
        return function(y, x) if is_right else function(x, y)


def _define(name: str, method: Callable[..., Any]) -> None:
    method.__name__ = f"__{name}__"
    setattr(Table, method.__name__, method)


for _name, (_symbol, _) in BINARY.items():
    _define(_name, lambda x, y, op=_name: x._operation(op, y))
    _define(f"r{_name}", lambda x, y, op=_name: x._operation(op, y, is_right=True))
    _define(f"i{_name}", lambda x, y, symbol=_symbol: x._refuse_to_write(f"x {symbol}= y"))
for _name in COMPARISONS:
    _define(_name, lambda x, y, op=_name: x._operation(op, y))
for _name in ("matmul", "rmatmul"):
    _define(_name, lambda x, y: x._no_product())
for _name in UNARY:
    _define(_name, lambda x, op=_name: x._alone(getattr(operator, op), op))
refuse(Table)
