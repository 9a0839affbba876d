"""Numbers among the arguments while their function is traced: kernels take their values when they run, unless the trace
looks at them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .structure import leaves

if TYPE_CHECKING:
    from .inputs import Inputs
    from .tracer import Tracer

MOST_FLOATS = 64  # of a call, and the most parameters of a graph
MOST_INTS = 16
FIRST_INT = MOST_FLOATS  # the registers: floats, ints, and the results of instructions
_FIRST_RESULT = 128
_MOST_INSTRUCTIONS = 256
_EXACT = 2**53  # up to here a double holds every integer
_FLOATS = (float, np.float16, np.float32, np.float64)  # the types of parameters' values
_OPERANDS = (*_FLOATS, int, bool)
_ANSWERS = (bool, np.bool_)  # of comparisons


class Instruction(NamedTuple):
    """One operation on numbers: `function` of registers, or of constants where the register is -1. The result is of
    exactly the type `expected`, or that answer of a comparison, else what follows would be traced otherwise.
    """

    function: Callable[..., Any]
    registers: tuple[int, ...]
    constants: tuple[Any, ...]
    expected: Any


@dataclass(frozen=True)
class Computed:
    """What arithmetic makes of numbers among the arguments, for what is set in each call."""

    register: int
    instructions: tuple[tuple[int, Instruction], ...]

    def value(self, arguments: Mapping[int, Any]) -> Any:
        """The result for these arguments, numbers by register."""
        known = {-1: None, **arguments}
        for register, i in self.instructions:
            pairs = zip(i.registers, i.constants, strict=True)
            known[register] = i.function(*[constant if r < 0 else known[r] for r, constant in pairs])
        return known[self.register]


class Program:
    """What a function computes of numbers alone, in Python's order. Every call runs it, with Python's own operations,
    and its outputs are parameters of the kernels, after the floats among the arguments.
    """

    def __init__(self) -> None:
        self.floats = 0  # among the arguments
        self._instructions: list[Instruction] = []
        self._arguments: dict[int, frozenset[int]] = {-1: frozenset()}  # of which a register's value is made
        self._outputs: list[int] = []
        self._read: frozenset[int] = frozenset()

    def read(self, register: int) -> None:
        """The trace holds for this value of the number only."""
        self._read |= self._made_of(register)

    def add(self, instruction: Instruction) -> int:
        """The register of its result; -1 where there is no room."""
        if len(self._instructions) == _MOST_INSTRUCTIONS:
            return -1
        register = _FIRST_RESULT + len(self._instructions)
        self._instructions.append(instruction)
        self._arguments[register] = frozenset().union(*map(self._made_of, instruction.registers))
        return register

    def parameter(self, register: int) -> int:
        """The number by which kernels know it; -1 where there is no room."""
        if register < FIRST_INT:
            return register
        if register not in self._outputs:
            if self.floats + len(self._outputs) >= MOST_FLOATS:
                return -1
            self._outputs.append(register)
        return self.floats + self._outputs.index(register)

    def formula(self, register: int) -> Computed:
        """How a register's value is computed."""
        needed, found = {register}, []
        for number, instruction in reversed(list(enumerate(self._instructions, _FIRST_RESULT))):
            if number in needed:
                needed |= set(instruction.registers)
                found.append((number, instruction))
        return Computed(register, tuple(reversed(found)))

    @property
    def read_arguments(self) -> list[int]:
        """The registers of the arguments whose values the trace holds for."""
        return sorted(self._read)

    def needed(self) -> tuple[list[Instruction], list[int]]:
        """The instructions that may give something else, or raise, another time, or that outputs need; the outputs."""
        numbered = list(enumerate(self._instructions, _FIRST_RESULT))
        needed = set(self._outputs)
        for register, instruction in reversed(numbered):
            if register in needed or not self._made_of(register) <= self._read:
                needed |= {register, *instruction.registers}
        kept = [(register, instruction) for register, instruction in numbered if register in needed]
        moved = {register: _FIRST_RESULT + i for i, (register, _) in enumerate(kept)}
        instructions = [i._replace(registers=tuple(moved.get(r, r) for r in i.registers)) for _, i in kept]
        return instructions, [moved.get(r, r) for r in self._outputs]

    def _made_of(self, register: int) -> frozenset[int]:
        return self._arguments.get(register, frozenset({register}))


class Number:
    """Stands for a float argument, Python's or NumPy's, or for what arithmetic makes of such arguments.

    Where it meets a traced value it becomes a scalar of the graph. Arithmetic with numbers is done in every call,
    before the kernels run, and so are comparisons, whose answer is a fixed part of what is traced: the other one is
    traced anew. Anything else that asks for its value (float(), a format) gets it, and makes that such a part.
    """

    __slots__ = ("_register", "_tracer", "_value")

    def __init__(self, value: Any, tracer: Tracer, register: int) -> None:
        self._value = value
        self._tracer = tracer
        self._register = register

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance(x, float) answers as for the float itself
        return type(self._value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self._value, name)
        return value if name == "dtype" else (read(self), value)[1]  # a dtype follows from the type

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(read(self), dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if any(hasattr(type(x), "__kfusion_traced__") for x in inputs):
            return NotImplemented  # its own method takes us as we are
        if method == "__call__" and ufunc.nout == 1 and not kwargs:
            return _computed(ufunc, *inputs)
        return getattr(ufunc, method)(*map(read, inputs), **kwargs)

    def __format__(self, spec: str) -> str:
        return format(read(self), spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self._value), (read(self),)


class Integer(Number):
    """Stands for an int, in the same way. Only among floats it is a parameter: else it decides on dtypes."""

    __slots__ = ()


class IntArgument(int):
    """An int within a call's arguments that is a parameter like those which are arguments themselves; for C++, too."""

    __slots__ = ()
    __kfusion_int__ = True


def number(value: Any, tracer: Tracer, register: int) -> Number:
    """What stands for an argument, or a result."""
    return (Integer if type(value) is int else Number)(value, tracer, register)


def is_int(argument: Any) -> bool:
    """Whether an argument itself is an integer of 64 bits."""
    return type(argument) is int and -(2**63) <= argument < 2**63


def is_float(leaf: Any) -> bool:
    """Whether a leaf of an argument is a float of Python's or NumPy's."""
    return type(leaf) is float or isinstance(leaf, _FLOATS[1:])


def registers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int, Any]:
    """The floats and `IntArgument`s among a call's arguments by register, as C++ counts them."""
    numbers = list(leaves((args, kwargs)))
    floats = list(filter(is_float, numbers))[:MOST_FLOATS]
    ints = [int(n) for n in numbers if type(n) is IntArgument][:MOST_INTS]
    return dict(enumerate(floats)) | dict(enumerate(ints, FIRST_INT))


def computed(value: Any) -> Computed:
    """How the value of a `Number` is computed in each call."""
    return value._tracer.program.formula(value._register)  # type: ignore[no-any-return]


def is_number(value: Any) -> bool:
    """Whether value is a `Number`; isinstance would ask it to lie."""
    return issubclass(type(value), Number)


def is_integer(value: Any) -> bool:
    """Whether value is an `Integer`."""
    return type(value) is Integer


def value_of(value: Number) -> Any:
    """The number's value in the present call; what is traced does not hold for it only."""
    return value._value


def read(value: Any) -> Any:
    """The value itself; from now on its trace holds for this value only."""
    if not is_number(value):
        return value
    value._tracer.program.read(value._register)
    return value._value


def asked(question: Callable[[Any], bool], value: Number) -> bool:
    """The answer to a question about a number. It is a fixed part of what is traced, as that of a comparison is."""
    return bool(_computed(question, value))


def parameter_of(value: Number, tracer: Inputs) -> tuple[Any, int]:
    """The present value and the number by which a graph of `tracer` names it (-1 where it cannot)."""
    is_exact = not is_integer(value) or abs(value._value) <= _EXACT
    index = tracer.program.parameter(value._register) if value._tracer is tracer and is_exact else -1
    return (value._value, index) if index >= 0 else (read(value), -1)


def _computed(function: Callable[..., Any], *operands: Any) -> Any:
    """function(*operands), some of which are numbers."""
    tracer = next(x for x in operands if is_number(x))._tracer
    values = [x._value if is_number(x) else x for x in operands]
    is_ours = all(not is_number(x) or x._tracer is tracer for x in operands)
    if not is_ours or not tracer.is_open or any(type(v) not in _OPERANDS for v in values):
        return function(*map(read, operands))
    try:
        result = function(*values)
    except Exception:
        _read_all(operands)  # the function may catch it
        raise
    is_answer, register = isinstance(result, _ANSWERS), -1
    if is_answer or type(result) is int or type(result) in _FLOATS:
        register = tracer.program.add(_instruction(function, operands, result if is_answer else type(result)))
    if register < 0:
        _read_all(operands)
    return result if is_answer or register < 0 else number(result, tracer, register)


def _instruction(function: Callable[..., Any], operands: Iterable[Any], expected: Any) -> Instruction:
    registers = tuple(x._register if is_number(x) else -1 for x in operands)
    return Instruction(function, registers, tuple(None if is_number(x) else x for x in operands), expected)


def _read_all(operands: Iterable[Any]) -> None:
    for x in operands:
        read(x)


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: function(read(self), *map(read, args))


def _binary(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Number, other: Any) -> Any:
        if hasattr(type(other), "__kfusion_traced__"):
            return NotImplemented  # its own operator takes us as we are
        return function(read(self), read(other))

    return method


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: _computed(function, self)


def _arithmetic(function: Callable[..., Any], *, reflected: bool) -> Callable[..., Any]:
    def method(self: Number, other: Any, *modulus: Any) -> Any:
        if hasattr(type(other), "__kfusion_traced__"):
            return NotImplemented
        if modulus:
            return pow(read(self), read(other), *map(read, modulus))
        return _computed(function, other, self) if reflected else _computed(function, self, other)

    return method


# Python's methods of numbers, without underscores, and what they do. sizes.py has them too.
READ: dict[str, Callable[..., Any]] = {
    "float": float,
    "int": int,
    "bool": bool,
    "complex": complex,
    "hash": hash,
    "repr": repr,
    "str": str,
    "round": round,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
}
ALONE: dict[str, Callable[..., Any]] = {"neg": operator.neg, "pos": operator.pos, "abs": operator.abs}
COMPARISONS = ("lt", "le", "eq", "ne", "gt", "ge")
ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
OF_INTS = {"and": "and_", "or": "or_", "xor": "xor", "lshift": "lshift", "rshift": "rshift"}


def _define(kind: type, name: str, method: Callable[..., Any]) -> None:
    setattr(kind, f"__{name}__", method)


def _define_both(kind: type, name: str, function: Callable[..., Any]) -> None:
    _define(kind, name, _binary(function))
    _define(kind, f"r{name}", _binary(lambda x, y: function(y, x)))


for _name, _function in READ.items():
    _define(Number, _name, _unary(_function))
for _name, _function in (ALONE | {"bool": operator.truth}).items():
    _define(Number, _name, _alone(_function))
for _name in COMPARISONS:
    _define(Number, _name, _arithmetic(getattr(operator, _name), reflected=False))
for _name in ARITHMETIC:
    _define(Number, _name, _arithmetic(getattr(operator, _name), reflected=False))
    _define(Number, f"r{_name}", _arithmetic(getattr(operator, _name), reflected=True))
_define_both(Number, "divmod", divmod)
for _name, _row in OF_INTS.items():
    _define_both(Integer, _name, getattr(operator, _row))
_define(Integer, "index", _unary(operator.index))
_define(Integer, "invert", _unary(operator.invert))
