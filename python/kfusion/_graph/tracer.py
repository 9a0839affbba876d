"""A graph while it grows, and the values that stand for its nodes."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .. import _core
from .._devices import running
from .._spec import FLOATS, ITEM_BYTES, Spec, described, is_array, spec_of
from . import library_adjoints, memory
from . import number as numbers
from .memory import Memory, Path
from .number import Instruction, Number, Program, is_integer, is_number, parameter_of, read
from .seeds import Draw, drawn
from .sizes import RecordedGraph, is_size
from .source import no_form, trace_error, user_frame, user_line

# The tracer of the function that this thread is tracing, for calls without a traced argument (`kfusion.iota`).
current: contextvars.ContextVar[Tracer | None] = contextvars.ContextVar("kfusion_tracer", default=None)


class Input(NamedTuple):
    """One input node: an argument, or an array that the function named (`captured`)."""

    name: str
    spec: Spec
    array: Any
    captured: bool
    argument: int = -1  # its number among the call's arrays


@dataclass(frozen=True)
class Argument:
    """An array among a call's arguments: its number, and its strides in elements (none: C order)."""

    array: Any
    number: int
    strides: Sequence[int] = ()


class ReadAsConstant(BaseException):
    """A tensor that the function writes to was read as a constant before: it is to be traced again, where that tensor
    is a traced value from the beginning. No code of the user's is to handle it.
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


class Node(NamedTuple):
    """A node of the graph, by number, among other arguments of a call."""

    id: int


class Call(NamedTuple):
    """One call of a function of kfusion: all its arguments, defaults too, by name, and the node of its result."""

    name: str
    arguments: dict[str, Any]
    result: int


class Form(NamedTuple):
    """A function of the array library for what several nodes compute: `run` takes the arguments, returns a list of one
    array, which has the axes in that order, if any."""

    result: int
    arguments: tuple[int, ...]
    run: Callable[..., Any]
    order: tuple[int, ...] = ()


class Written(NamedTuple):
    """An input that is written to: its number, its value, the new one, and the part that this fills (None: all).
    `in_place`: a call of the library writes to it, and `result` says only that it has run.
    """

    input: int
    value: Traced
    result: Traced
    part: list[memory.Range] | None
    in_place: bool = False


class WritingCall(NamedTuple):
    """A call of the library that writes to one of its arguments: the nodes of that argument before and after it, and a
    result of no use that comes when it has run. `run` writes to a copy unless its `in_place` is set.
    """

    run: Any
    before: int
    after: int
    done: int


_ARITHMETIC = ("add", "subtract", "multiply", "divide")  # which give for an int what they give for the float
STATE = ("_memory", "_node", "_path", "_tracer", "_version")  # what a traced value holds: the slots of its class


class Traced:
    """A value while its function is traced: a node of the graph. Subclasses give it a library's methods."""

    __slots__ = ()
    __kfusion_traced__ = True  # what C++ knows it by
    _tracer: Tracer
    _node: int | str  # a reason, for a value that cannot be had
    _memory: Memory
    _version: int
    _path: Path | None  # None: nobody knows whether it is a view of its memory
    _library: ClassVar[str]
    _classes: ClassVar[dict[str, type[Traced]]] = {}

    def __init_subclass__(cls, library: str = "", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if library:
            cls._library = library
            Traced._classes[library] = cls

    @classmethod
    def _made_as(cls) -> type[Traced]:
        """The class of which values of this library are."""
        return cls

    @property
    def _dtype(self) -> str:
        """The dtype's name, whatever the library."""
        return str(self._tracer.graph.dtype(self._tracer.node(self)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(self._tracer.graph.shape(self._tracer.node(self)))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)


class Attempt(NamedTuple):
    """How a function is traced this time. `mark` is called before each operation. `changed` are tensors of outside that
    the function is known to write to. `compiles`: torch.compiler.is_compiling() is true in it.
    """

    mark: Callable[[], None] | None = None
    changed: Sequence[Any] = ()
    compiles: bool = False


class Tracer:
    """Builds one graph. `name` is the function's, for messages; an eager call names no lines; of a graph that `runs`
    the layouts of captured arrays count. `recorded`: the graph, where it is recorded for calls with other sizes.
    """

    def __init__(
        self,
        name: str,
        *,
        eager: bool = False,
        runs: bool = False,
        attempt: Attempt | None = None,
        recorded: RecordedGraph | None = None,
    ) -> None:
        self.name = name
        self.attempt = attempt or Attempt()
        self.program = Program()
        self._runs = runs
        self.graph: Any = _core.Graph() if recorded is None else recorded
        self.recorded = recorded
        self.inputs: list[Input] = []
        self._taken: set[str] = set()  # the inputs' names
        self._numbers: dict[str, int] = {}  # by name: the last one given to an array of that name
        self._values: list[Traced] = []  # the inputs', as they were given
        self._input_nodes: list[int] = []
        self._writable: set[int] = set()  # captured arrays by id
        self.stand_in: Callable[[Any], Traced | None] = lambda array: None  # the value of an array that was written to
        self.to_write: Callable[[Any], Any] = lambda array: array  # the value of one that is to be written to
        self.calls: list[Call] = []
        self.library_calls: list[Callable[..., Any]] = []  # as the graph's nodes number them
        self.forms: list[Form] = []
        self.writing_calls: dict[int, WritingCall] = {}  # by the node after it
        self.is_open = True
        self._eager = eager
        self._differentiates = self.takes_gradients = False
        self._captured: dict[int, Traced] = {}
        self.moved: dict[int, Any] = {}  # captured arrays, by the ids of their copies on the arguments' device
        self.named_tensors: Callable[[], dict[int, tuple[str, Any]]] = dict  # those of modules, by id
        self._names: dict[int, tuple[str, Any]] | None = None  # the same, once they were asked for
        self._stages = 0
        self._line = ""
        self.line_of: Callable[[], str] = user_line  # where an operation stands, for messages and plans
        self.draw: Draw = drawn  # a seed, when the function is called
        self._seed: Number | None = None
        self._streams = 0
        self.writes = 0
        self.counts: dict[float, Traced] = {}  # of batches, by the numbers that stand for their reciprocals

    # ---- values ----

    def value(self, node: int, owner: Memory | None = None, path: Path | None = None) -> Traced:
        """The value of a node; a view shares the memory of what it looks at."""
        kind = Traced._classes[self.graph.library(node)]._made_as()
        return self._made(kind, node, Memory(node), ()) if owner is None else self._made(kind, node, owner, path)

    def copy(self, x: Traced) -> Traced:
        """The same node as a value with memory of its own."""
        node = self.node(x)
        return self._made(type(x), node, Memory(node))

    def alias(self, x: Traced, *, is_view: bool = True) -> Traced:
        """The same node as another value of x's memory; not `is_view`: it may be a copy."""
        return self._made(type(x), self.node(x), x._memory, x._path if is_view else None)

    def like(self, value: Traced, x: Traced) -> Traced:
        """A value of no library, which is made of constants only, with the methods that x has."""
        return self._made(type(x), self.node(value), Memory(self.node(value)))

    def of_library(self, value: Traced, library: str) -> Traced:
        """Likewise, with the methods of that library's arrays."""
        return self._made(Traced._classes[library]._made_as(), self.node(value), Memory(self.node(value)))

    def _made(self, kind: type[Traced], node: int | str, owner: Memory, path: Path | None = ()) -> Traced:
        value = kind.__new__(kind)
        made = object.__setattr__
        made(value, "_tracer", self)
        made(value, "_node", node)
        made(value, "_memory", owner)
        made(value, "_version", owner.version)
        made(value, "_path", path)
        return value

    def node(self, value: Traced, line: str | None = None) -> int:
        """The node of a value that may be used here and now; `line` is for messages, the user's present one by default.

        Raises:
            TraceError: it belongs to another trace, or its memory was written to through another value.
        """
        if value._tracer is not self or not self.is_open:
            what = f"a value of {value._tracer.name} is used outside its trace"
            raise trace_error(what, "return it, or pass it as an argument", line)
        if isinstance(value._node, str):
            raise trace_error(value._node, "", line)
        if value._version != value._memory.version:
            self._look_again(value, line)
        return value._node

    def _look_again(self, value: Traced, line: str | None) -> None:
        """A value whose memory was written to through another one: what is there now."""
        owner = value._memory
        if owner.node is None or value._path is None:
            what = f"this value shares memory with one that was changed in place ({owner.line})"
            raise trace_error(what, "write x = x + y there instead of x += y", line)
        node = owner.node
        for kind, argument in value._path:
            node = self._build(kind, node, argument)
        object.__setattr__(value, "_node", node)
        object.__setattr__(value, "_version", owner.version)

    def input(
        self,
        name: str,
        spec: Spec,
        array: Any = None,
        *,
        captured: bool = False,
        argument: int = -1,
        strides: Sequence[int] = (),
    ) -> Traced:
        """A new input; `array` is what it stands for, where there is one."""
        shape: Any = spec.shape
        if self.recorded is not None and argument >= 0:
            shape = self.recorded.shape_of_argument(argument, spec.shape)
        elif self.recorded is not None:
            shape, strides = self.recorded.captured(self.moved.get(id(array), array), spec.shape, strides)
        node = self.graph.input(name, shape, spec.dtype, spec.like, spec.device, captured, strides)
        self.inputs.append(Input(name, spec, array, captured, argument))
        self._input_nodes.append(node)
        self._taken.add(name)
        self._values.append(self.value(node))
        self._values[-1]._memory.strides = strides or memory.c_strides(shape)
        return self._values[-1]

    def is_input(self, value: Traced) -> bool:
        """Whether a value shares the memory of an input."""
        return any(known._memory is value._memory for known in self._values)

    def is_given(self, value: Traced) -> bool:
        """Whether a value is an input itself, no view of one."""
        return any(known is value for known in self._values)

    def writable(self, array: Any, library: str) -> Traced:
        """The value of a captured array that the function may write to."""
        self._writable.add(id(array))
        return self.lift(array, library)

    def release_captured(self, is_meant: Callable[[Any], bool]) -> None:
        """Before arrays that the function made are changed: what it has read of them is what is in them now."""
        for i, known in enumerate(self.inputs):
            if not known.captured or not is_meant(known.array):
                continue
            copied = known.array.clone()
            if copied.stride() != known.array.stride():
                raise trace_error(f"{known.name} was read before it is changed in place", "write to a copy of it")
            self.inputs[i] = known._replace(array=copied)
            self._captured.pop(id(known.array))
        for array in filter(is_meant, self.moved.values()):
            self._captured.pop(id(array), None)

    def written(self) -> list[Written]:
        """The inputs that were written to.

        Raises:
            TraceError: nobody knows what is in one now.
        """
        return [self._written(i, v) for i, v in enumerate(self._values) if v._memory.version]

    def _written(self, number: int, value: Traced) -> Written:
        known, owner = self.inputs[number], value._memory
        if known.captured and id(known.array) not in self._writable:
            what = f"{self.name} changes {known.name} in place, which is no argument"
            raise trace_error(what, f"pass {known.name} as an argument", owner.line)
        if owner.node is None:
            what = f"{self.name} changes its argument {known.name} through a view of it that may be a copy"
            raise trace_error(what, f"write to {known.name} itself, or to a slice of it", owner.line)
        part, node = owner.part or (None, self.node(value))
        return Written(number, value, self.value(node), part)

    def in_place(self, written: Sequence[Written], results: Sequence[Traced]) -> list[Written]:
        """The same, where a call of the library that writes to an argument may do so itself: it is the only write, and
        nothing else reads what was in the argument before, neither a kernel nor one of the function's results.
        """
        if not self._runs or not self.writing_calls:
            return list(written)
        reads = Counter(self.node(r) for r in results)
        reads.update(n for form in self.forms for n in form.arguments)
        for node in map(self.graph.node, range(len(self.graph))):
            reads.update(node["arguments"])
        return [self._in_place(w, reads) for w in written]

    def _in_place(self, w: Written, reads: Mapping[int, int]) -> Written:
        call = self.writing_calls.get(self.node(w.result))
        if call is None or call.before != self._input_nodes[w.input] or reads[call.before] != 1:
            return w
        call.run.in_place = True
        return w._replace(result=self.value(call.done), in_place=True)

    def lift(self, value: Any, library: str, what: str = "an operand", *, of_floats: bool = False) -> Traced:
        """A traced value for whatever meets one.

        Args:
            value: a traced value, a Python or NumPy scalar, or an array, which becomes a captured input.
            library: of the value that it meets. Scalars are weak, NumPy's among NumPy's arrays are not.
            what: names the value in messages.
            of_floats: whether it is used as a float, also where it is an int.

        Raises:
            TraceError: it is none of these.
        """
        if isinstance(value, Traced):
            return value
        if is_size(value):
            return self.value(self._call("scalar", value))
        if is_integer(value) and not of_floats:
            value = read(value)
        if is_number(value):
            return self._parameter(value, library, what)
        if isinstance(value, np.generic):
            return self._strong(self.lift(value.item(), library, what), value, library)
        for number in (bool, int, float):
            if isinstance(value, number):
                return self.value(self._call("scalar", number(value)))
        if hasattr(type(value), "__kfusion_complex__") or (library == "torch" and type(value) is complex):
            raise no_form(f"{what} is of complex numbers", "write torch's function of them")
        if library == "numpy" and isinstance(value, np.ndarray) and value.dtype.kind in "iuc":
            _require_form(value, what)
        if is_array(value):
            known = self.stand_in(value)
            return self._capture(value, library) if known is None else known
        got, _, instead = described(value, "x").partition("; ")
        hint = instead.replace("convert it with", "write") + " outside" * instead.startswith("convert")
        raise trace_error(f"{what} must be an array or a number, got {got}", hint)

    def _parameter(self, number: Number, library: str, what: str) -> Traced:
        value, index = parameter_of(number, self)
        if index < 0:
            return self.lift(value, library, what)
        return self._strong(self.value(self._call("scalar", float(value), index)), value, library)

    def _strong(self, scalar: Traced, value: Any, library: str) -> Traced:
        """A scalar as NumPy's among NumPy's arrays: of its own dtype, where it has one."""
        is_weak = library == "torch" or not isinstance(value, np.generic)
        return scalar if is_weak else self.add("cast", scalar, value.dtype.name)

    def _capture(self, array: Any, library: str) -> Traced:
        if id(array) not in self._captured:
            is_recorded = self.recorded is not None and id(array) in self.recorded.tensors
            if self._differentiates or is_recorded:
                with sys.modules["torch"]._C.DisableTorchFunction():  # we look at it as it is
                    return self._captured_now(array, library)
            return self._captured_now(array, library)
        return self._captured[id(array)]

    def _captured_now(self, array: Any, library: str) -> Traced:
        known = self._name_in_module(array) or _variable_of(array)
        name = self._free_name(known or "captured")
        if getattr(array, "is_meta", False):
            what = f"{name} is a tensor without data (torch.tensor and torch.Tensor make one of a traced value)"
            raise trace_error(what, "write the value itself")
        spec = spec_of(array, f"kfusion.trace: {name}")
        if spec.like != library:
            raise trace_error(f"{name} is an array of {spec.like} and meets one of {library}", "convert it outside")
        known_as = id(array)
        if library == "torch" and spec.device == "cpu" and not spec.shape and known_as not in self._writable:
            array, spec = self._beside_the_arguments(array, spec)
        strides = self._strides_of(array, name) if self._runs else None
        self._captured[known_as] = self.input(name, spec, array, captured=True, strides=strides or ())
        return self._captured[known_as]

    def _strides_of(self, array: Any, name: str) -> Sequence[int] | None:
        """Whether it requires grad is for those to say who run the graph."""
        requires_grad = getattr(array, "requires_grad", False) is True
        with sys.modules["torch"].no_grad() if requires_grad else contextlib.nullcontext():
            return _core.element_strides(array, self.name, name)

    def _beside_the_arguments(self, array: Any, spec: Spec) -> tuple[Any, Spec]:
        """A tensor of the CPU without axes, which torch takes as a number among those of any device."""
        place = place_of(self.inputs)
        if place == "cpu":
            return array, spec
        if self.recorded is not None and id(array) in self.recorded.tensors:
            raise self.recorded.failed()
        moved = array.to(place)
        self.moved[id(moved)] = array
        return moved, dataclasses.replace(spec, device=place)

    def _name_in_module(self, array: Any) -> str | None:
        """A parameter's or buffer's name, also for a view of it."""
        if self._names is None:
            self._names = self.named_tensors()
        name, _ = self._names.get(id(array)) or self._names.get(id(getattr(array, "_base", None))) or (None, None)
        return name

    def _free_name(self, name: str) -> str:
        """`name`, or with the first number behind it that no input has; names that are taken stay so."""
        free = name
        while free in self._taken:
            self._numbers[name] = self._numbers.get(name, 0) + 1
            free = f"{name}_{self._numbers[name]}"
        return free

    # ---- random numbers ----

    @property
    def is_random(self) -> bool:
        """Whether calls draw a seed."""
        return self._seed is not None

    @property
    def effects(self) -> tuple[int, int]:
        """How often random numbers were drawn, and memory was written to, so far."""
        return self._streams, self.writes

    def seed(self) -> Number:
        """A number that every call draws: a float that is an integer of seeds.BITS bits.

        Raises:
            TraceError: the function has too many numbers.
        """
        if self._seed is None:
            register = self.program.add(Instruction(self.draw, (), (), float))
            if register < 0 or self.program.parameter(register) < 0:
                raise trace_error("there are too many numbers to draw random ones beside", "pass arrays in their place")
            self._seed = numbers.number(0.0, self, register)
        return self._seed

    def integer(self, number: Any) -> Traced:
        """An int64 for a float that is an integer."""
        value, index = parameter_of(number, self) if is_number(number) else (number, -1)
        return self.add("scalar", int(value)) if index < 0 else self.add("integer_parameter", index)

    def next_stream(self) -> int:
        """The number of a stream of random numbers that nobody else in this graph has."""
        self._streams += 1
        return self._streams - 1

    # ---- nodes ----

    def add(self, kind: str, *arguments: Any) -> Traced:
        """Calls a method of the graph, with nodes in place of values."""
        return self._result(self._call(kind, *arguments), arguments)

    def _result(self, node: int, arguments: Sequence[Any]) -> Traced:
        """The value of a node that is made of arguments: constants of torch's are torch's, too."""
        listed = (v for a in arguments for v in (a if isinstance(a, (list, tuple)) else (a,)))
        kind = next((type(v) for v in listed if isinstance(v, Traced) and v._library == "torch"), None)
        return self.value(node) if kind is None else self._made(kind, node, Memory(node))

    def view(self, kind: str, x: Traced, argument: Any) -> Traced:
        """As `add`, for a view of x."""
        node = self._call(kind, x, argument)
        if kind == "reshape":  # without -1
            argument = list(self.graph.shape(node))
        path = (*x._path, (kind, argument)) if x._path is not None and self._is_view(kind, x, argument) else None
        return self._made(type(x), node, x._memory, path)

    def _is_view(self, kind: str, x: Traced, argument: Any) -> bool:
        """Whether a view shares x's memory however that lies: where it does not fit, libraries copy elements."""
        if kind == "slice":
            return all(step == 1 for _, _, step in argument)
        if kind == "reshape":
            return memory.without_ones(x.shape) == memory.without_ones(argument) or bool(self.is_c_order(x))
        return kind == "transpose"

    def is_c_order(self, x: Traced) -> bool | None:
        """Whether x lies in C order, as an input or a view of one; None where nobody knows."""
        strides = self.strides(x)
        return None if strides is None else memory.is_c_order(x.shape, strides)

    def strides(self, x: Traced) -> Sequence[int] | None:
        """Those of x in elements, as an input or a view of one; None where nobody knows."""
        whole = x._memory.node
        if x._memory.strides is None or x._path is None or not isinstance(whole, int):
            return None
        return memory.strides_of(x._path, self.graph.shape(whole), x._memory.strides)

    def map(self, op: str, *arguments: Any) -> Traced:
        """A row of KF_MAP of values and whatever `lift` takes."""
        library = next((a._library for a in arguments if isinstance(a, Traced)), "numpy")
        of_floats = op in _ARITHMETIC and all(a._dtype in FLOATS for a in arguments if isinstance(a, Traced))
        lifted = [self.lift(a, library, of_floats=of_floats) for a in arguments]
        return self._result(self._call("map", op, [self.node(a) for a in lifted]), arguments)

    def library_call(
        self,
        name: str,
        run: Callable[..., Any],
        values: Sequence[Traced],
        types: Sequence[tuple[str, tuple[int, ...]]],
        flops: int = 0,
    ) -> list[Traced]:
        """What a function of the array library computes.

        Args:
            name: of the function, for people: "torch.sort".
            run: called with an array for each of values when the kernels run; returns a sequence of results. Where it
                has a method `into`, that is called: with a dict of those results that are read, by number, as arrays
                to write to, None for one that it makes itself; it returns the dict with those, too.
            values: what it reads, at least one.
            types: (dtype, shape) of each result.
            flops: of its products; 0 where they are not known.
        """
        nodes = [self._stored(self.node(v)) for v in values]
        with self.stage(name.rpartition(".")[2]):
            made = self._build("library_call", nodes, types, name, len(self.library_calls), flops)
        self.library_calls.append(run)
        return [self.value(n) for n in made]

    def with_gradients(self, result: Traced, values: Sequence[Traced], gradients: Sequence[Traced]) -> Traced:
        """The same, an array without axes, whose gradients by values are `gradients`, whatever computes it."""
        made = self.itself(result)
        self._build("set_gradients", made, list(values), list(gradients))
        return made

    def with_adjoint(self, result: Traced, values: Sequence[Traced], name: str, run: Any, flops: int = 0) -> Traced:
        """The same, whose gradients by values are those of a function of the array library: `run.adjoint(numbers)` is
        called with those of values by number, and gives a function of values and the gradient of result.
        """
        made = self.itself(result)
        self._build("set_gradients", made, list(values), [], name, len(self.library_calls), flops)
        self.library_calls.append(run)
        return made

    def library_form(
        self,
        name: str,
        run: Callable[..., Any],
        values: Sequence[Traced],
        made: Traced,
        first: int,
        order: Sequence[int] = (),
    ) -> None:
        """Says that a function of the array library computes `made`, too, whose stages are those from `first` on; its
        axes lie in memory in that `order`, if not in C's."""
        nodes = [self._stored(self.node(v)) for v in values]
        if max(nodes) < self.node(made):
            self.graph.library_form(nodes, self.node(made), name, len(self.library_calls), first, order)
            self.library_calls.append(run)
            self.forms.append(Form(self.node(made), tuple(nodes), run, tuple(order)))

    def vjp(self, results: Sequence[Traced], cotangents: Sequence[Traced], values: Sequence[Traced]) -> list[Traced]:
        """The gradients of values, for gradients of results (cotangents); nodes of the same graph.

        Raises:
            TypeError: the results depend on a value through something that has no adjoint.
        """
        nodes = [list(map(self.node, listed)) for listed in (results, cotangents, values)]
        made, adjoints = self._build("vjp", *nodes, len(self.library_calls))
        self.library_calls += [library_adjoints.function_for(a, self.library_calls) for a in adjoints]
        return [self._result(n, [x]) for n, x in zip(made, values, strict=True)]

    def kept_for_backward(
        self,
        results: Sequence[Traced],
        values: Sequence[Traced],
        memory: int | None = None,
        device: dict[str, Any] | None = None,
    ) -> list[tuple[int, int]]:
        """What a forward pass keeps for the gradients of values: nodes, and which of the results they are, or -1. By
        the prices of a device, as Device.to_dict() gives it; None: of that on which the function runs.
        """
        nodes = [list(map(self.node, listed)) for listed in (results, values)]
        device = device or running.device(place_of(self.inputs)).to_dict()
        return list(self._build("kept_for_backward", *nodes, device, memory))

    def explain_kept(
        self, results: Sequence[Traced], values: Sequence[Traced], device: dict[str, Any], memory: int | None
    ) -> list[tuple[int, int, int, float]]:
        """The same for a report: nodes, which of the results they are, bytes of their own, seconds that each saves."""
        nodes = [list(map(self.node, listed)) for listed in (results, values)]
        return list(self._build("explain_kept", *nodes, device, memory))

    def computed(self) -> tuple[int, list[int]]:
        """What the function does so far, as a hash, and the nodes of all that it computes: the same in every trace."""
        made: tuple[int, list[int]] = self._build("computed")
        return made

    def needed_backward(self, results: Sequence[Traced], values: Sequence[Traced], candidates: list[int]) -> list[int]:
        """Those of the candidates that the gradients of values need."""
        nodes = [list(map(self.node, listed)) for listed in (results, values)]
        return list(self._build("needed_backward", *nodes, candidates))

    def are_apart(self, written: Sequence[Written], results: Sequence[Traced], values: Sequence[Traced]) -> bool:
        """Whether gradients of results by values neither read what is written to, nor are to pass through what is
        written there.
        """
        targets = [self._input_nodes[w.input] for w in written]
        new = [self.node(w.result) for w in written]
        wanted = [self.node(v) for v in values]
        if set(targets) & set(wanted) or self._build("reaching", new, wanted):
            return False
        return not results or not self.needed_backward(results, values, targets)

    def forget_writes(self) -> None:
        """The inputs are as they were given."""
        for value, node in zip(self._values, self._input_nodes, strict=True):
            if value._memory.version:
                value._memory.node, value._memory.part, value._memory.version = node, None, 0
                object.__setattr__(value, "_node", node)
                object.__setattr__(value, "_version", 0)

    def replace(self, nodes: Sequence[int], values: Sequence[Traced]) -> None:
        """Readers of the nodes, and of all nodes of the same values, read the values instead, which came first."""
        self._build("replace", list(nodes), list(map(self.node, values)))

    @contextlib.contextmanager
    def differentiated(self) -> Iterator[None]:
        """What is built inside is differentiated: it is constant where the function turns torch's grad mode off."""
        before, torch = (self._differentiates, self.takes_gradients), sys.modules.get("torch")
        self._differentiates, self.takes_gradients = torch is not None, True
        try:
            with contextlib.nullcontext() if torch is None else torch.enable_grad():
                yield
        finally:
            self._differentiates, self.takes_gradients = before

    @property
    def differentiates(self) -> bool:
        """Whether what is built now is differentiated."""
        return self._differentiates and bool(sys.modules["torch"].is_grad_enabled())

    @property
    def wants_gradients(self) -> bool:
        """The same, without torch too."""
        torch = sys.modules.get("torch")
        return self.takes_gradients and (torch is None or bool(torch.is_grad_enabled()))

    def value_of_input(self, number: int) -> Traced:
        """The value of an input, as it was given."""
        return self.value(self._input_nodes[number])

    def orders(self) -> dict[int, tuple[int, ...]]:
        """By node, the order in which its axes lie in memory where a function of the array library makes it."""
        return {form.result: form.order for form in self.forms if form.order}

    def input_of(self, node: int) -> Input | None:
        """What an input node stands for."""
        return self.inputs[self._input_nodes.index(node)] if node in self._input_nodes else None

    def itself(self, x: Traced) -> Traced:
        """A view of all of x: another node, of which gradients can be told apart."""
        return self.view("reshape", x, x.shape)

    def constant(self, x: Traced) -> Traced:
        """The same, which gradients take for a constant."""
        made = self.itself(x)
        self._build("stop_gradient", made)
        return made

    def _stored(self, node: int) -> int:
        """The node, or what a kernel makes of a float argument: libraries take no scalars of the graph."""
        base = self.graph.node(node)
        while base["op"] in ("reshape", "broadcast", "slice", "transpose"):
            base = self.graph.node(base["arguments"][0])
        return node if base.get("parameter", -1) < 0 else self._call("map", "positive", [node])

    def _call(self, kind: str, *arguments: Any) -> int:
        return int(self._build(kind, *arguments))

    def _build(self, kind: str, *arguments: Any) -> Any:
        """What a method of the graph gives."""
        if self.attempt.mark:
            self.attempt.mark()
        nodes = [self._nodes(a) for a in arguments]
        if self._stages == 0 and not self._eager:
            self._line = self.line_of()
            self.graph.set_source(self._line)
        try:
            made = getattr(self.graph, kind)(*nodes)
            if self._differentiates and not sys.modules["torch"].is_grad_enabled():
                for node in made if isinstance(made, list) else [made] if isinstance(made, int) else ():
                    self.graph.stop_gradient(node)
            return made
        except (ValueError, TypeError, OverflowError) as error:
            text = str(error).removeprefix("kfusion.")
            raise type(error)(f"kfusion.{text}" + (f"\n  {self._line}" if self._line else "")) from None

    def _nodes(self, argument: Any) -> Any:
        """Nodes in place of values, of lists of them too."""
        if type(argument) is list and argument and isinstance(argument[0], Traced):
            return [self.node(a) for a in argument]
        return self.node(argument) if isinstance(argument, Traced) else argument

    def record(self, name: str, arguments: Mapping[str, Any], result: Any) -> None:
        """Remembers that a call made `result`; of calls within calls the outermost comes last."""
        if isinstance(result, Traced):
            given = {k: Node(self.node(v)) if isinstance(v, Traced) else v for k, v in arguments.items()}
            self.calls.append(Call(name, given, self.node(result)))

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """What is built inside is one stage. Stages do not nest: the outermost name holds."""
        if self._stages == 0 and not self._eager:
            self._line = self.line_of()
        self.graph.begin_stage(name, self._line)
        self._stages += 1
        try:
            yield
        finally:
            self._stages -= 1
            self.graph.end_stage()

    def close(self, outputs: Sequence[tuple[str, Traced]]) -> None:
        """Sets the results; values are of no use afterwards."""
        self.graph.set_outputs([(name, self.node(value, "")) for name, value in outputs])
        self.is_open = False
        if self.recorded is not None:
            self.recorded.close()


def place_of(inputs: Iterable[Input]) -> str:
    """ "cpu" or "cuda:0": where a traced function's arrays lie."""
    return next((i.spec.device for i in inputs if i.spec.device != "cpu"), "cpu")


def tracer_of(*values: Any) -> Tracer | None:
    """The tracer of the first traced value."""
    return next((v._tracer for v in values if isinstance(v, Traced)), None)


def is_weak(x: Traced) -> bool:
    """Whether x is a Python number, which takes the dtype of what it meets."""
    return bool(x._tracer.graph.node(x._tracer.node(x)).get("weak"))


def constant(x: Any) -> Any:
    """x, which gradients take for a constant."""
    return x._tracer.constant(x)


def stage(x: Traced, name: str) -> contextlib.AbstractContextManager[None]:
    """A stage of the graph that x is in."""
    return x._tracer.stage(name)


def _require_form(array: np.ndarray, what: str) -> None:
    """Raises where NumPy's own functions may compute with an array and kernels cannot: of small or complex numbers."""
    if array.dtype.name not in ITEM_BYTES and array.dtype.isnative:
        raise no_form(f"{what} is of {array.dtype}, which graphs have no dtype for", "write x.astype(...) of it")


def _variable_of(array: Any) -> str | None:
    """The name by which the user's frame knows the array."""
    frame = user_frame()
    scopes = (frame.f_locals, frame.f_globals) if frame else ()
    return next((name for scope in scopes for name, value in scope.items() if value is array), None)
