"""The inputs of a graph while it grows: arguments, arrays that the function names, and what is written to them."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _core
from .._spec import DTYPES, FLOATS, ITEM_BYTES, Spec, described, is_array, spec_of
from . import memory
from .nodes import Nodes
from .number import Number, Program, is_integer, is_number, parameter_of, read
from .sizes import RecordedGraph, is_size
from .source import Site, code_site, not_traced, trace_error, user_frame
from .values import Attempt, Input, Traced, Written, has_no_data, is_weak, place_of

# Dtypes of torch's that its own functions take and kernels have none of.
_ONLY_OF_TORCH = {
    f"torch.{d}" for d in ("uint8", "int8", "int16", "uint16", "uint32", "uint64", "complex64", "complex128")
}
_ARITHMETIC = ("add", "subtract", "multiply", "divide")  # which give for an int what they give for the float


class Inputs(Nodes):
    """A graph and its inputs. The layouts of captured arrays count in a graph that `runs`."""

    def __init__(
        self, name: str, *, eager: bool, runs: bool, attempt: Attempt | None, recorded: RecordedGraph | None
    ) -> None:
        super().__init__(name, eager=eager, runs=runs, attempt=attempt, recorded=recorded)
        self.program = Program()
        self.inputs: list[Input] = []
        self.stand_in: Callable[[Any], Traced | None] = lambda array: None  # the value of an array that was written to
        self.is_made: Callable[[Any], bool] = lambda array: False  # whether the traced function made an array itself
        self.to_write: Callable[[Any], Any] = lambda array: array  # the value of one that is to be written to
        self.moved: dict[int, Any] = {}  # captured arrays, by the ids of their copies on the arguments' device
        # Tensors of outside whose elements decide on the graph, and which part of them does, by the id of that.
        self.looked_at: dict[int, tuple[Any, Any]] = {}
        self.operands: dict[int, set[Site]] = {}  # by the ids of captured arrays of NumPy's: where they were operands
        self.meets_scalars = False  # whether NumPy's scalars are among the operands, which may be of an array
        self.named_tensors: Callable[[], dict[int, tuple[str, Any]]] = dict  # those of modules, by id
        self.without_data: Callable[[Any], bool] = lambda array: False  # whether a tensor of no data may be an input
        self._taken: set[str] = set()  # the inputs' names
        self._numbers: dict[str, int] = {}  # by name: the last one given to an array of that name
        self._values: list[Traced] = []  # the inputs', as they were given
        self._input_nodes: list[int] = []
        self._writable: set[int] = set()  # captured arrays by id
        self._captured: dict[int, Traced] = {}
        self._names: dict[int, tuple[str, Any]] | None = None  # the tensors of modules, once they were asked for

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

    def is_captured(self, array: Any) -> bool:
        """Whether an array that the function named is an input."""
        return id(array) in self._captured

    def value_of_input(self, number: int) -> Traced:
        """The value of an input, as it was given."""
        return self.value(self._input_nodes[number])

    def number_of(self, value: Traced) -> int:
        """The number among the call's arrays of that whose memory this is, or is a view of; -1 of none."""
        known = zip(self.inputs, self._values, strict=True)
        return next((i.argument for i, v in known if v._memory is value._memory), -1)

    def input_of(self, node: int) -> Input | None:
        """What an input node stands for."""
        return self.inputs[self._input_nodes.index(node)] if node in self._input_nodes else None

    # ---- what is written to them ----

    def writable(self, tensor: Any) -> Traced:
        """The value of a captured tensor that the function may write to."""
        self._writable.add(id(tensor))
        return self.lift(tensor, "torch")

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
        """The writes, where a call of the library that writes to an argument may do so itself: it is the only write,
        and nothing else reads what was in the argument before, neither a kernel nor one of the function's results.
        """
        if not self._runs or not self.writing_calls:
            return list(written)
        reads = Counter(self.node(r) for r in results)
        reads.update(n for alternative in self.alternatives for n in alternative.arguments)
        for node in map(self.graph.node, range(len(self.graph))):
            reads.update(node["arguments"])
        return [self._in_place(w, reads) for w in written]

    def _in_place(self, w: Written, reads: Mapping[int, int]) -> Written:
        call = self.writing_calls.get(self.node(w.result))
        if call is None or call.before != self._input_nodes[w.input] or reads[call.before] != 1:
            return w
        call.run.in_place = True
        return w._replace(result=self.value(call.done), in_place=True)

    def forget_writes(self) -> None:
        """The inputs are as they were given."""
        for value, node in zip(self._values, self._input_nodes, strict=True):
            if value._memory.version:
                value._memory.node, value._memory.part, value._memory.version = node, None, 0
                object.__setattr__(value, "_node", node)
                object.__setattr__(value, "_version", 0)

    # ---- whatever meets a value ----

    def map(self, op: str, *arguments: Any) -> Traced:
        """A row of KF_MAP of values and whatever `lift` takes."""
        library = next((a._library for a in arguments if isinstance(a, Traced)), "numpy")
        of_floats = op in _ARITHMETIC and all(a._dtype in FLOATS for a in arguments if isinstance(a, Traced))
        lifted = [self.lift(a, library, of_floats=of_floats) for a in arguments]
        node = self._call("map", op, [self.node(a) for a in lifted])
        if library == "torch" and (dtype := self._torchs_float(node, lifted)) != self.graph.dtype(node):
            lifted = [a if is_weak(a) else self.add("cast", a, dtype) for a in lifted]
            node = self._call("map", op, [self.node(a) for a in lifted])
        return self._result(node, arguments)

    def _torchs_float(self, node: int, operands: Sequence[Traced]) -> str:
        """The dtype of a result that graphs give NumPy's, since it is made of constants, which are of no library."""
        dtype: str = self.graph.dtype(node)
        if dtype not in FLOATS or self.graph.library(node) == "torch":
            return dtype
        floats = {a._dtype for a in operands if a._dtype in FLOATS and not is_weak(a)}
        return floats.pop() if len(floats) == 1 else "float32" if not floats else dtype

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
        if library == "numpy" and isinstance(value, (int, float)) and type(value) not in (bool, int, float):
            value = np.asarray(value)[()]  # which is what NumPy makes of members of an IntEnum, say
        if isinstance(value, np.generic):
            self.meets_scalars = True
            if library == "numpy" and value.dtype.name not in DTYPES:
                raise not_traced(f"{what} is of {value.dtype}, which graphs have no dtype for", "write int() of it")
            return self._strong(self.lift(value.item(), library, what), value, library)
        for number in (bool, int, float):
            if isinstance(value, number):
                if number is int and not -(2**63) <= value < 2**63:
                    raise not_traced(f"{what} is an integer beyond 64 bits", "write it as a float")
                return self.value(self._call("scalar", number(value)))
        if hasattr(type(value), "__kfusion_complex__") or (library == "torch" and type(value) is complex):
            raise not_traced(f"{what} is of complex numbers", "write torch's function of them")
        if library == "numpy" and isinstance(value, np.ndarray) and value.dtype.kind in "iuc":
            _require_form(value, what)
        if library == "torch" and str(getattr(value, "dtype", "")) in _ONLY_OF_TORCH:
            raise not_traced(f"{what} is of {value.dtype}, which graphs have no dtype for", "write x.to(...) of it")
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
        if library == "numpy" and (site := code_site()) is not None:
            self.operands.setdefault(id(array), set()).add(site)
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
        is_empty = has_no_data(array)
        if is_empty and not self.without_data(array):
            if known:
                raise trace_error(f"{name} is a tensor without data", "load its data; kfusion.plan takes it as it is")
            what = f"{name} is a tensor without data (torch.tensor and torch.Tensor make one of a traced value)"
            raise trace_error(what, "write the value itself")
        spec = spec_of(array, f"kfusion.trace: {name}")
        if is_empty:
            spec = dataclasses.replace(spec, device=place_of(self.inputs))
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


def _require_form(array: np.ndarray, what: str) -> None:
    """Raises where NumPy's own functions may compute with an array and kernels cannot: of small or complex numbers."""
    if array.dtype.name not in ITEM_BYTES and array.dtype.isnative:
        raise not_traced(f"{what} is of {array.dtype}, which graphs have no dtype for", "write x.astype(...) of it")


def _variable_of(array: Any) -> str | None:
    """The name by which the user's frame knows the array."""
    frame = user_frame()
    scopes = (frame.f_locals, frame.f_globals) if frame else ()
    return next((name for scope in scopes for name, value in scope.items() if value is array), None)
