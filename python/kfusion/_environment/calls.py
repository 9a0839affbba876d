"""What C++ asks of Python where a call's signature is new: the graph, and where its inputs come from."""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._devices import running
from .._graph.number import FIRST_INT, MOST_FLOATS, MOST_INTS, Instruction, IntArgument, is_float, is_int, number
from .._graph.sizes import RecordedGraph, template
from .._graph.structure import holds_arrays, leaves, walk
from .._graph.tape import NotTheSame, Shape, differing, filled
from .._graph.tracer import Tracer
from .._graph.values import Argument, Input, Written, place_of
from .._spec import Spec, is_array
from . import elements, modules, parts
from .contents import require_items_only
from .guards import Guard, values
from .operands import may_be_looked_at

_MOST_ATTEMPTS = 6  # to record a trace for other sizes


class Prepared(NamedTuple):
    """A traced call. `sources` has for each input of the graph the number of an array among the call's, or the array
    that the function named (a weak reference to it, where a guard holds it). `numbers` are those whose values the trace
    looked at, by register; `instructions` compute of the others what `parameters`, registers too, give the kernels
    beside the floats. `fill` makes the result of the list of outputs; None: it is the only output itself. `calls` are
    the functions of the array library that the graph's nodes number. `alike` is what is known of calls that differ from
    this one in the extents of arrays only. `results` is what the function returned, with slots. `made_of` are weak
    references to tensors that constants of the trace may be made of. `watched` are arrays on whose memory (or, where
    that is so, elements) the trace depends beside its inputs. `inputs` keep alive what `sources` only refer to,
    until C++ has read it.
    """

    graph: Any
    device: dict[str, Any]
    sources: list[Any]
    numbers: list[int]
    instructions: list[Instruction]
    parameters: list[int]
    fill: Callable[[list[Any]], Any] | None
    calls: Sequence[Callable[..., Any]]
    watched: list[tuple[Any, bool, Any]]
    inputs: Sequence[Input]
    written: list[tuple[int, str, list[tuple[int, int]] | None, bool]]
    made_of: Sequence[Any] = ()
    alike: Any = None
    results: Any = None


FillOf = Callable[[Sequence[Any]], Any]
Again = Callable[[Sequence[Shape]], "Prepared | None"]


def kinds_of_numbers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether floats and ints are among the numbers that may be parameters."""
    numbers = list(leaves((args, kwargs)))
    ints = any(map(is_int, (*args, *kwargs.values()))) or any(type(n) is IntArgument for n in numbers)
    return any(map(is_float, numbers)), ints


class Leaves:
    """Numbers a call's arrays, floats and ints, in the order in which C++ does. Ints within containers are none: those
    are shapes and axes.

    Args:
        tracer: of the call.
        strides: of its arrays, None for C order.
        who: for messages.
        floats: whether floats may be the kernels' parameters.
        ints: whether ints among the arguments may be, or are read only where that matters.
    """

    def __init__(self, tracer: Tracer, strides: Iterable[Any], who: str, *, floats: bool, ints: bool) -> None:
        self._arrays = 0
        self._floats = 0
        self._ints = 0
        self._tracer = tracer
        self._strides = list(strides)
        self._who = who
        self._takes_floats = floats
        self._takes_ints = ints

    def argument(self, value: Any) -> Any:
        """What stands for an argument while the call is traced."""
        require_items_only(value)
        return self._int(value) if is_int(value) else walk(value, self.visit, enters=holds_arrays)

    def visit(self, path: str, leaf: Any) -> Any:
        """What stands for a leaf while the call is traced."""
        if isinstance(leaf, Spec):
            raise TypeError(f"{self._who}: a spec is for planning: call it with arrays, or its .plan with specs")
        if is_float(leaf):
            if self._floats == MOST_FLOATS:
                return leaf
            self._floats += 1
            self._tracer.program.floats = self._floats
            return self._number(leaf, self._floats - 1, self._takes_floats)
        if type(leaf) is IntArgument:
            return self._int(int(leaf))
        if isinstance(leaf, np.generic) or not is_array(leaf):
            return leaf
        if self._arrays == len(self._strides):
            raise TypeError(f"{self._who}: {path}: a container gave more arrays when it was read again")
        self._arrays += 1
        return Argument(leaf, self._arrays - 1, self._strides[self._arrays - 1] or ())

    def _int(self, value: int) -> Any:
        if self._ints == MOST_INTS:
            return value
        self._ints += 1
        return self._number(value, FIRST_INT + self._ints - 1, self._takes_ints)

    def _number(self, value: Any, register: int, is_parameter: bool) -> Any:
        if is_parameter:
            return number(value, self._tracer, register)
        self._tracer.program.read(register)
        return value


def prepared(
    who: str,
    tracer: Tracer,
    guards: Sequence[Guard] = (),
    fill: Callable[[list[Any]], Any] | None = None,
    written: Sequence[Written] = (),
    fill_of: FillOf | None = None,
) -> Prepared:
    """What C++ gets of a closed tracer. `fill_of` gives the fill for other sizes, by their registers.

    Raises:
        TypeError: the inputs are not all on one device.
    """
    _require_one_device(who, tracer.inputs)
    instructions, parameters = tracer.program.needed()
    named = _by_identity(guards)
    sources, watched = _sources(tracer.inputs, named), _watched(tracer, guards)
    # Traced values and their tracer hold one another until Python looks for such cycles: no argument lives as long.
    tracer.inputs[:] = [i if i.argument < 0 else i._replace(array=None) for i in tracer.inputs]
    made = Prepared(
        tracer.recorded.present if tracer.recorded is not None else tracer.graph,
        running.device(place_of(tracer.inputs)).to_dict(),
        sources,
        tracer.program.read_arguments,
        instructions,
        parameters,
        fill,
        tracer.library_calls,
        watched,
        tracer.inputs,
        [_written(tracer, w) for w in written],
        _made_of(tracer, named),
    )
    return made if tracer.recorded is None else made._replace(alike=_for_other_sizes(made, tracer.recorded, fill_of))


class Alike:
    """What is known of calls that differ in the extents of arrays only.

    Args:
        shapes: of the arrays of the first one.
        numbers: those that its trace looked at.
    """

    def __init__(self, shapes: Sequence[Shape], numbers: list[int]) -> None:
        self._seen = [shapes]
        self._numbers = numbers
        self._attempts = 0
        self._again: Again | None = None

    def prepared(self, shapes: Sequence[Shape]) -> Prepared | None:
        """A call by the trace that was recorded; None where there is none for arrays of these shapes."""
        made = None if self._again is None else self._again(shapes)
        return made and made._replace(alike=self)

    def other(self, shapes: Sequence[Shape]) -> Sequence[Shape] | None:
        """The call to record a trace with, whose arrays differ in most extents; None after several attempts."""
        self._attempts += 1
        if self._attempts > _MOST_ATTEMPTS:
            return None
        other = max(self._seen, key=lambda seen: sum(len(axes) for axes in map(differing, shapes, seen)))
        self._seen.append(shapes)
        return other

    def recorded(self, shapes: Sequence[Shape], made: Prepared) -> Prepared:
        """The call of a recorded trace, which is kept for others.

        Raises:
            NotTheSame: it does not hold for these.
        """
        found = made.alike(shapes)
        if found is None or made.numbers != self._numbers:  # numbers by which calls are told apart
            raise NotTheSame
        alike = copy.copy(self)  # another object, so that C++ keeps the inputs of this trace with it
        alike._again = made.alike
        return found._replace(alike=alike)  # type: ignore[no-any-return]


def _for_other_sizes(made: Prepared, recorded: RecordedGraph, fill_of: FillOf | None) -> Again:
    """What prepares calls of other sizes, None where that takes another trace; in the fields of `made` may be sizes."""
    sources = [_register_or(source, recorded) for source in made.sources]
    fields = template([made.written, made.calls, sources])

    def again(shapes: Sequence[Shape]) -> Prepared | None:
        try:
            played = recorded.tape.play(shapes)
        except Exception:  # which the function itself would raise, or handle
            return None
        if played is None:
            return None
        graph, registers = played
        written, functions, sources = filled(fields, registers)
        fill = made.fill if fill_of is None else fill_of(registers)
        return made._replace(graph=graph, fill=fill, written=written, calls=functions, sources=sources)

    return again


def _register_or(source: Any, recorded: RecordedGraph) -> Any:
    """The register of a tensor that is made of sizes, for one."""
    return recorded.register_of(source) if id(source) in recorded.tensors else source


def _written(tracer: Tracer, w: Written) -> tuple[int, str, list[tuple[int, int]] | None, bool]:
    part = None if w.part is None else [(start, stop) for start, stop, _ in w.part]
    return w.input, tracer.inputs[w.input].name, part, w.in_place


def _by_identity(guards: Iterable[Guard]) -> dict[int, Any]:
    return {id(value): value for value in values(*guards) if value is not None}


def _captured(tracer: Tracer) -> list[Any]:
    return [tracer.moved.get(id(i.array), i.array) for i in tracer.inputs if i.captured]


def _sources(inputs: Iterable[Input], named: Mapping[int, Any]) -> list[Any]:
    return [i.argument if i.argument >= 0 else _weak(i.array) if id(i.array) in named else i.array for i in inputs]


def _made_of(tracer: Tracer, named: Mapping[int, Any]) -> list[Any]:
    """Weak references to the tensors that the function names, where its trace computed something of tensors."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", ())
    tensors = {i: v for i, v in named.items() if isinstance(v, tensor)}
    captured = [a for a in _captured(tracer) if isinstance(a, tensor)]
    is_computed = any(id(a) not in tensors and id(a._base) not in tensors for a in captured)
    return list(map(weakref.ref, tensors.values())) if is_computed else []


def _watched(tracer: Tracer, guards: Sequence[Guard]) -> list[tuple[Any, bool, Any]]:
    """The tensors of modules that are no inputs: views of them may be, or what was computed of all of them. A captured
    array that nobody names was computed. And those of which a copy is the input, or whose elements were looked at, with
    the elements that are compared.
    """
    named, captured = _by_identity(guards), _captured(tracer)
    is_computed = any(id(a) not in named and id(getattr(a, "_base", None)) not in named for a in captured)
    tensors = [t for g in guards if modules.is_module(g.owner) for t in modules.tensors(g.owner, g.names)]
    known = set(map(id, captured))
    by_value = [(t, True, elements.of_tensor(t)) for t in tracer.moved.values() if id(t) in named]
    by_value += [(array, True, seen) for array, seen in looked_at(tracer, guards)]
    return by_value + [(t, is_computed, None) for t in tensors if is_computed or id(t) not in known]


def looked_at(tracer: Tracer, guards: Sequence[Guard]) -> list[tuple[Any, Any]]:
    """Captured tensors whose elements decide on the graph, with those (None: many), and arrays of NumPy's that may."""
    seen = [(tensor, elements.of_tensor(part)) for tensor, part in tracer.looked_at.values()]
    return seen + [(array, None) for array in _looked_at_by_numpy(tracer, guards)]


def _looked_at_by_numpy(tracer: Tracer, guards: Sequence[Guard]) -> list[Any]:
    """Arrays of NumPy's that the function may look at. All of them where operands are scalars, or arrays that nobody
    names, which may be computed of them.
    """
    most = elements.MOST_COMPARED_BY_CALLS
    named, captured = _by_identity(guards), _captured(tracer)
    found = {i: v for i, v in named.items() if isinstance(v, np.ndarray) and v.nbytes <= most}
    found = {i: v for i, v in found.items() if not v.dtype.hasobject}  # whose objects guards compare
    arrays = {i: v for i, v in found.items() if type(v) is np.ndarray}
    others = [a for v in found.values() if type(v) is not np.ndarray for a in (v, *parts.own(v).values())]
    others = [a for a in others if isinstance(a, np.ndarray)]  # masks, too, which NumPy's code reads
    known = [(id(a), id(a.base)) for a in captured if type(a) is np.ndarray]
    if tracer.meets_scalars or any(not {i, j} & named.keys() for i, j in known):
        return [*arrays.values(), *others]
    return [*(arrays[i] for i in may_be_looked_at(guards, arrays, tracer.operands)), *others]


def _weak(array: Any) -> Any:
    try:
        return weakref.ref(array)
    except TypeError:
        return array


def _require_one_device(who: str, inputs: Sequence[Input]) -> None:
    for i in inputs:
        if i.spec.device != inputs[0].spec.device:
            raise TypeError(
                f"{who}: {i.name} must be on {inputs[0].name}'s device ({inputs[0].spec.device}), got {i.spec.device}"
            )
