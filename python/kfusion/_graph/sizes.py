"""Extents of arrays that a trace computes with, so that calls with other sizes need no trace of their own.

The first call of a kind is traced as it is. In the second one, whose arrays differ from the first one's in extents
only, each extent in which the two differ is a `Size`: it has the values of both calls. The graph is built for both,
side by side, and all steps are kept as a `Tape`. Further calls play the tape with their own extents, which builds their
graph.

A comparison of sizes must have the same answer in both calls, and in every call that plays the tape. So must any other
result that is the same in both. Whatever needs the very value of a size (`range(n)`, a format, a hash) ends the
attempt: such functions are traced for each size.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from .number import ALONE, ARITHMETIC, COMPARISONS, OF_INTS, READ, is_number, read
from .structure import Constant, Fresh, may_hold_results, walk
from .tape import Built, Computed, Extents, NotTheSame, Register, Shape, Tape, differing

_READING = ("dtype", "hash", "library", "node", "stages")  # methods of a graph that add nothing


class _Pair(NamedTuple):
    """A tensor in both calls, and the register of it."""

    here: Any
    there: Any
    register: int


class RecordedGraph:
    """A graph that is built for two calls at once, and on a tape. What it says of its nodes is said of the present
    call, but for extents in which the two differ: these are `Size`s. Args: as for a `Tape`.
    """

    def __init__(self, shapes: Sequence[Shape], other: Sequence[Shape]) -> None:
        self.tape = Tape(shapes, other)
        self.present, self._other = _core.Graph(), _core.Graph()
        self.is_open = True
        self._has_failed = False
        self.shapes, self._other_shapes = shapes, other
        self._known: dict[int, tuple[Any, ...]] = {}  # extents of nodes
        self._results: dict[Any, Any] = {}
        self.types: dict[Any, list[Any]] = {}  # of results of the library's calls
        self.tensors: dict[int, _Pair] = {}  # by id: those that are made of sizes
        self.is_constant: Callable[[Any], bool] = lambda array: True  # of one that is none of these

    def close(self) -> None:
        """From now on sizes are ints.

        Raises:
            NotTheSame: it was raised before, and did not come through.
        """
        self.is_open = False
        if self._has_failed:
            raise NotTheSame

    def failed(self) -> NotTheSame:
        """The error that ends the attempt."""
        self._has_failed = True
        return NotTheSame()

    def shape_of_argument(self, array: int, shape: Shape) -> tuple[Any, ...]:
        """The extents of an array of the call."""
        if tuple(shape) != tuple(self.shapes[array]):  # it is seen as something else
            raise self.failed()
        registers = [self.tape.register_of(array, axis) for axis in range(len(shape))]
        pairs = zip(shape, self._other_shapes[array], registers, strict=True)
        return tuple(here if r is None else self._size(here, there, r) for here, there, r in pairs)

    def captured(self, array: Any, shape: Shape, strides: Sequence[int]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The extents and strides (none: C order) of an array that is no argument.

        Raises:
            NotTheSame: it may be another one in other calls, or lies in C order in one of the two only.
        """
        pair = self.tensors.get(id(array))
        if pair is None:
            if not self.is_constant(array):
                raise self.failed()
            return shape, strides
        if bool(strides) != (_core.element_strides(pair.there, "trace", "captured") is not None):
            raise self.failed()
        extents, steps = self.extents(array)
        return extents, steps if strides else ()

    def extents(self, tensor: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The extents and strides of a tensor."""
        pair = self.tensors.get(id(tensor))
        if pair is None:
            return tuple(tensor.shape), tuple(tensor.stride())
        made = []
        for of in (_shape, _strides):
            pairs = enumerate(zip(of(pair.here), of(pair.there), strict=True))
            operands = (Register(pair.register),)
            made.append(tuple(self.add_value(_item(of, axis), operands, *values) for axis, values in pairs))
        return made[0], made[1]

    def of_call(self, operand: Any, call: int) -> Any:
        """A size or a tensor made of sizes in the present call (0) or the other one (1)."""
        pair = self.tensors.get(id(operand))
        return value(operand, call) if pair is None else pair[call]

    def register_of(self, operand: Any) -> Register:
        """The register of a size or a tensor made of sizes."""
        return Register(operand._register if is_size(operand) else self.tensors[id(operand)].register)

    def add(self, function: Callable[..., Any], operands: tuple[Any, ...], kind: type) -> Register:
        """A step that computes what may vary."""
        return Register(self.tape.add(Computed(function, operands, kind, False, None)))

    def add_tensor(self, function: Callable[..., Any], operands: tuple[Any, ...], here: Any, there: Any) -> Any:
        """A step that computes a tensor, which is the present call's."""
        if (here.dtype, here.ndim, here.device) != (there.dtype, there.ndim, there.device):
            raise self.failed()
        register = self.add(function, operands, type(here)).index
        self.tensors[id(here)] = _Pair(here, there, register)
        return here

    def add_value(self, function: Callable[..., Any], operands: tuple[Any, ...], here: Any, there: Any) -> Any:
        """A step that computes anything else: what it must be in all calls, or a size."""
        is_fixed = type(here) is type(there) and bool(here == there)
        if not is_fixed and (type(here) is not type(there) or type(here) not in (int, float, list)):
            raise self.failed()
        step = Computed(function, operands, type(here), is_fixed, here if is_fixed else None)
        register = self.tape.add(step)
        return here if is_fixed else self._size(here, there, register)

    def is_made_of_sizes(self, value: Any) -> bool:
        """Whether value is a size, or a tensor that is made of sizes."""
        return is_size(value) or id(value) in self.tensors

    def shape(self, node: int) -> tuple[Any, ...]:
        """The extents of a node."""
        if node not in self._known:
            here, there = self.present.shape(node), self._other.shape(node)
            if len(here) != len(there):
                raise self.failed()
            axes = differing(here, there)
            fixed = tuple((axis, n) for axis, n in enumerate(here) if axis not in axes)
            first = self.tape.add(Extents(node, axes, fixed))
            sizes = {axis: self._size(here[axis], there[axis], first + i) for i, axis in enumerate(axes)}
            self._known[node] = tuple(sizes.get(axis, n) for axis, n in enumerate(here))
        return self._known[node]

    def compute(self, function: Callable[..., Any], *operands: Any) -> Any:
        """function(*operands), with sizes among the operands; the function has no effects.

        Raises:
            NotTheSame: its result is of no type that can vary, and differs.
        """
        operands = tuple(map(read, operands))
        key = function, tuple(Register(o._register) if is_size(o) else (type(o), o) for o in operands)
        if key not in self._results:
            try:
                here, there = (function(*[value(o, call) for o in operands]) for call in range(2))
            except Exception:
                raise self.failed() from None
            registers = tuple(Register(o._register) if is_size(o) else o for o in operands)
            self._results[key] = self.add_value(function, registers, here, there)
        return self._results[key]

    def compute_of(self, function: Callable[[list[Shape]], Any], shapes: Sequence[Sequence[Any]]) -> Any:
        """What `compute` gives for function(shapes), of a list of shapes."""
        lengths = list(map(len, shapes))

        def of_extents(*extents: int) -> Any:
            rest = iter(extents)
            return function([tuple(next(rest) for _ in range(n)) for n in lengths])

        return self.compute(of_extents, *(n for shape in shapes for n in shape))

    def compute_each(self, function: Callable[[list[Shape]], Any], shapes: Sequence[Sequence[Any]]) -> Any:
        """What `compute_of` gives; where function(shapes) is a tuple, each of its items may vary."""
        if not has_sizes(tuple(shapes)):
            return function([tuple(shape) for shape in shapes])
        here = function([of_call(tuple(shape), 0) for shape in shapes])
        if not isinstance(here, tuple):
            return self.compute_of(function, shapes)
        return tuple(self.compute_of(lambda s, i=i: function(s)[i], shapes) for i in range(len(here)))  # type: ignore[misc]

    def steps(self, node: int) -> list[int]:
        """Those of a slice, one for each axis."""
        here, there = self.present.node(node)["step"], self._other.node(node)["step"]
        if here != there:
            raise self.failed()
        return list(here)

    def __len__(self) -> int:
        return len(self.present)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.present, name) if name in _READING else functools.partial(self._build, name)

    def _build(self, method: str, *arguments: Any) -> Any:
        varies = has_sizes(arguments)
        here, there = (of_call(arguments, call) for call in range(2)) if varies else (arguments, arguments)
        result = getattr(self.present, method)(*here)
        if result != getattr(self._other, method)(*there):  # one has a node more
            raise self.failed()
        self.tape.add(Built(method, template(arguments) if varies else arguments, varies, result))
        return result

    def _size(self, here: Any, there: Any, register: int) -> Any:
        torch = sys.modules.get("torch")
        is_torchs = type(here) is int and hasattr(torch, "SymInt")
        return (_size_of_torch(torch) if is_torchs else Size)(self, here, there, register)


def _shape(tensor: Any) -> Sequence[int]:
    return tensor.shape  # type: ignore[no-any-return]


def _strides(tensor: Any) -> Sequence[int]:
    return tensor.stride()  # type: ignore[no-any-return]


def _item(of: Callable[[Any], Sequence[int]], axis: int) -> Callable[[Any], int]:
    return lambda tensor: of(tensor)[axis]


class Size:
    """An extent, or what arithmetic makes of extents, while its graph is recorded. `isinstance` takes it for an int."""

    __slots__ = ("_graph", "_register", "_values")

    def __init__(self, graph: RecordedGraph, here: Any, there: Any, register: int) -> None:
        self._graph = graph
        self._values = here, there
        self._register = register

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._values[0])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(type(self._values[0]), name):
            raise AttributeError(name)
        return getattr(_very_value(self), name)

    def __bool__(self) -> bool:
        return bool(_computed(operator.truth, self))

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(_very_value(self), dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if any(hasattr(type(x), "__kfusion_traced__") for x in inputs):
            return NotImplemented  # its own method takes us as we are
        return getattr(ufunc, method)(*[_very_value(x) if is_size(x) else x for x in inputs], **kwargs)

    def __format__(self, spec: str) -> str:
        return format(_very_value(self), spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self._values[0]), (_very_value(self),)


def is_size(value: Any) -> bool:
    """Whether value is a `Size`; isinstance would ask it to lie."""
    return issubclass(type(value), Size)


def has_sizes(value: Any) -> bool:
    """Whether sizes are within tuples and lists."""
    return any(map(has_sizes, value)) if issubclass(type(value), (tuple, list)) else is_size(value)


def value(operand: Any, call: int) -> Any:
    """What an operand is in the present call (0) or the other one (1)."""
    return operand._values[call] if is_size(operand) else operand


def of_call(arguments: Any, call: int) -> Any:
    """What sizes within tuples and lists are in the call."""
    return _within(lambda leaf: value(leaf, call), arguments)


def template(arguments: Any) -> Any:
    """Registers in place of sizes within tuples and lists, for `filled`."""
    return _within(lambda leaf: Register(leaf._register) if is_size(leaf) else leaf, arguments)


def sized(structure: Any, values: Sequence[Any]) -> Any:
    """A function's result with the values of sizes in it, and the tensors made of them."""

    def visit(_: str, leaf: Any) -> Any:
        if is_size(leaf):
            return values[leaf._register]
        is_tensor = isinstance(leaf, (Constant, Fresh)) and type(leaf.value) is Register
        return type(leaf)(values[leaf.value.index]) if is_tensor else leaf

    return walk(structure, visit, enters=may_hold_results)


def _within(function: Callable[[Any], Any], value: Any) -> Any:
    kind = type(value)
    if issubclass(kind, (tuple, list)) and not callable(value):  # functions may be tuples, too
        return (list if issubclass(kind, list) else tuple)([_within(function, item) for item in value])
    return function(value)


# ---- integers that may be sizes ----


def is_int(n: Any) -> bool:
    """Whether n is one, and no bool."""
    return type(n) is int or (is_size(n) and isinstance(n, int))


def integer(n: Any) -> Any:
    """Means what operator.index means."""
    return n if is_size(n) else operator.index(n)


def indices(key: slice, n: Any) -> tuple[Any, Any, Any]:
    """Means what key.indices(n) means."""
    if not any(map(is_size, (key.start, key.stop, key.step, n))):
        return key.indices(n)
    step = 1 if key.step is None else integer(key.step)
    if step == 0:
        raise ValueError("slice step cannot be zero")
    first, last = (0, n) if step > 0 else (-1, n - 1)  # where it may start, and where it may stop

    def bounded(given: Any, default: Any) -> Any:
        if given is None:
            return default
        i = integer(given)
        i = i + n if i < 0 else i
        return first if i < first else last if i > last else i

    return bounded(key.start, first if step > 0 else last), bounded(key.stop, last if step > 0 else first), step


def length(start: Any, stop: Any, step: Any) -> Any:
    """Means what len(range(start, stop, step)) means."""
    if not any(map(is_size, (start, stop, step))):
        return len(range(start, stop, step))
    steps = (stop - start + step - 1) // step if step > 0 else (start - stop - step - 1) // -step
    return steps if steps > 0 else 0


def broadcast_shapes(*shapes: Iterable[Any]) -> tuple[Any, ...]:
    """Means what NumPy's broadcast_shapes means."""
    listed = [tuple(shape) for shape in shapes]
    if not any(map(has_sizes, listed)):
        return np.broadcast_shapes(*listed)
    made: list[Any] = []
    for axis in range(1, max(map(len, listed)) + 1):
        extents = [shape[-axis] for shape in listed if len(shape) >= axis]
        wide = next((n for n in extents if n != 1), 1)
        if any(n != 1 and n != wide for n in extents):
            raise ValueError(f"shape mismatch: objects cannot be broadcast to a single shape, axis {-axis}")
        made.insert(0, wide)
    return tuple(made)


# ---- Python's operators ----


def _very_value(size: Size) -> Any:
    """The value in the present call, once the trace is over.

    Raises:
        NotTheSame: it is not.
    """
    if size._graph.is_open:
        raise size._graph.failed()
    return size._values[0]


def _computed(function: Callable[..., Any], *operands: Any) -> Any:
    graph = next(o._graph for o in operands if is_size(o))
    if not graph.is_open:
        return function(*[value(o, 0) for o in operands])
    if not all(is_size(o) or is_number(o) or type(o) in (int, float, bool) for o in operands):
        return NotImplemented  # an array, which takes sizes itself; what is no number at all
    return graph.compute(function, *operands)


@functools.cache
def _size_of_torch(torch: Any) -> Any:
    class TorchSize(Size, torch.SymInt):  # type: ignore[misc]
        """One that torch's functions take for an int while they are only asked whether traced values are given."""

        __slots__ = ()

        @property
        def node(self) -> Any:
            """What torch wants of sizes of its own to compute with them."""
            return _very_value(self)

    return TorchSize


def _of_very_value(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: function(_very_value(self), *args)


def _define(name: str, method: Callable[..., Any]) -> None:
    setattr(Size, f"__{name}__", method)


def _define_both(name: str, function: Callable[..., Any]) -> None:
    _define(name, lambda x, y, *modulus: _computed(function, x, y, *modulus))
    _define(f"r{name}", lambda x, y: _computed(function, y, x))


_OF_VALUES: dict[str, Callable[..., Any]] = READ | {"index": operator.index, "invert": operator.invert}
for _name, _function in _OF_VALUES.items():
    if _name != "bool":
        _define(_name, _of_very_value(_function))
for _name, _function in ALONE.items():
    _define(_name, lambda x, f=_function: _computed(f, x))
for _name in COMPARISONS:
    _function = getattr(operator, _name)
    _define(_name, lambda x, y, f=_function: _computed(f, x, y))
for _name in ARITHMETIC:
    _define_both(_name, getattr(operator, _name))
_define_both("divmod", divmod)
for _name, _row in OF_INTS.items():
    _define_both(_name, getattr(operator, _row))
