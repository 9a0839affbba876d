"""Runs a plain function once on traced values and keeps the graph of what it did."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import inspect
import linecache
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from .._environment import modules
from .._environment.contents import changed, kinds, remembered, require_items_only
from .._environment.functional import Functional, PutTogether
from .._environment.guards import guarded, guards, named_modules, values
from .._environment.guards import reached as reached_by_code
from .._environment.objects import Parts, holds
from .._environment.reach import reached
from .._environment.state import Snapshot, cannot_set, containers_among, taken_apart_once
from .._graph.heads import WholeProduct
from .._graph.sizes import RecordedGraph, sized
from .._graph.source import NothingReturned, SetsState, TraceError, message, raised_line, trace_error
from .._graph.structure import Slot, containers, fill, filler, holds_arrays, walk
from .._graph.tracer import Tracer, current
from .._graph.values import Alternative, Argument, Attempt, Call, Input, ReadAsConstant, Traced, Watch, Written
from .._ops.operation import bind, require_one_kind
from .._spec import Spec, SymbolicSpec, conversion_of, described, is_array, spec_of
from . import dtype_names, randomness, stored_numbers, torch_tensors
from .results import Results

_Traced = TypeVar("_Traced")
_NO_ARRAYS = (bool, int, float, complex, str, list, tuple, dict, np.generic)
_RESERVED = ("out", "stream")  # keywords of the functions that kfusion makes


@dataclass(frozen=True)
class Trace:
    """What a function does to arrays of certain shapes, dtypes and libraries.

    `graph` is as written: one stage per call, nothing merged (`graph.simplify()` does that). `inputs` are its input
    nodes in order: arguments first, then captured arrays as they were met. `results` is what the function returned,
    with a `Slot` for each output of the graph, and a `Fresh` for what each call copies. `calls` are the calls of
    kfusion's functions, in order of completion. `library_calls` are functions of the array library, as the graph's
    nodes number them; `alternatives` are those among them that stand for what nodes compute. The last outputs of the
    graph are what the function writes into its inputs, in the order of `written`: slots with negative numbers mean
    these.
    `is_random`: each call draws numbers. `modules`: of the graph's stages by number, the torch module that made each;
    of graphs that are only planned.
    """

    name: str
    graph: Any
    inputs: tuple[Input, ...]
    results: Any
    calls: tuple[Call, ...] = ()
    library_calls: tuple[Callable[..., Any], ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    written: tuple[Written, ...] = ()
    is_random: bool = False
    modules: tuple[str, ...] = ()

    def returned(self, outputs: list[Any]) -> Any:
        """The function's result, made of the graph's outputs."""
        return fill(self.results, outputs)

    def filler(self, registers: Sequence[Any] = ()) -> Callable[[list[Any]], Any] | None:
        """From the list of outputs to what the function returns; None for a single output. `registers` are the values
        of sizes in the results.
        """
        results = sized(self.results, registers) if registers else self.results
        if results is None:
            return _nothing
        listed = results if type(results) in (tuple, list) else [results]
        if any(isinstance(r, Slot) and r.convert is not None for r in listed):
            return filler(results)
        if isinstance(results, Slot):
            return operator.itemgetter(results.index) if self.written else None
        is_flat = type(results) in (tuple, list) and all(isinstance(r, Slot) for r in results)
        return type(results) if is_flat and not self.written else filler(results)


def _nothing(outputs: list[Any]) -> None:
    """What a function returns that only writes into its arguments."""


def trace(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Trace:
    """Traces `function(*args, **kwargs)`.

    Args:
        function: any callable of arrays: kf.*, NumPy's, torch's and CuPy's functions, operators and methods inside.
        args: specs and arrays (also within tuples, lists and dicts) become inputs, named after the parameters;
            everything else is passed as it is and is a fixed part of the graph.
        kwargs: likewise.

    Returns:
        The graph, its inputs and what the results are made of.

    Raises:
        TraceError: the function does something that a graph cannot hold; the message names the line.
        TypeError: arrays of different libraries, or a dtype that kfusion does not have.
        ValueError: shapes that do not fit, with the line.
    """
    name = name_of(function)
    signature = signature_of(function)
    apart = taken_apart_once(function, signature, args, kwargs)
    own = Functional(function, name, signature)
    is_own = apart.has_objects or holds([args, kwargs], lambda v: isinstance(v, Parts))

    def traced(attempt: Attempt, is_own: bool) -> Trace:
        snapshot.restore()
        tracer = Tracer(name, attempt=attempt)
        return trace_with(tracer, *(own, apart.args, apart.kwargs) if is_own else (function, args, kwargs))

    def attempts() -> Trace:
        what = ""
        for taken_apart in dict.fromkeys((is_own, True)):
            try:
                return repeated(name, functools.partial(traced, is_own=taken_apart), (function, args, kwargs))
            except SetsState as found:
                what = found.what
        raise cannot_set(name, what)

    given = containers_among((apart.args, apart.kwargs))
    with Snapshot([function, *guarded(args, kwargs)], given, always=True) as snapshot:
        return contextvars.copy_context().run(attempts)


def repeated(name: str, trace: Callable[[Attempt], _Traced], roots: Sequence[Any]) -> _Traced:
    """What `trace` gives, traced as often as it takes to find out what the function of that name does: whether it draws
    random numbers, to which tensors of outside it writes after it has read them, which products are read beside their
    losses, and whether it can be traced only where torch compiles it.

    Models that look at values do not where torch compiles; others build masks there that are all true.
    """
    changed: list[Any] = []
    whole: list[int] = []
    failed: list[Exception] = []  # the first is of what the function usually does

    def traced(watch: Watch | None) -> _Traced:
        while True:
            try:
                return trace(Attempt(watch, changed, bool(failed), whole))
            except ReadAsConstant as error:
                changed.append(error.tensor)
            except WholeProduct as error:
                whole.append(error.number)
            except RecursionError:  # which took long
                raise
            except Exception as error:
                failed.append(error)
                if len(failed) > 1 or "torch.compiler" not in sys.modules:
                    raise failed[0] from None

    return randomness.refused(name, traced, reached_by_code(roots).values)


def _roots(function: Any, bound: inspect.BoundArguments) -> Iterator[tuple[str, Any]]:
    defaults = {name: p.default for name, p in bound.signature.parameters.items()}
    return modules.roots_of(function, defaults | bound.arguments | named_modules(function))


def _running_module(function: Any, bound: inspect.BoundArguments) -> Callable[[], str]:
    """What says which of the function's modules is running."""
    names = modules.module_names(_roots(function, bound))
    return functools.partial(modules.running, names) if names else str


def _named_ids(tracer: Tracer, function: Any, given: Sequence[Any]) -> set[int]:
    """The arrays of outside that the function names, those of modules, and those that what is given holds or names."""
    found = [*guards(function), *guards(function, *given)] if given else guards(function)
    return {id(value) for value in values(*found) if is_array(value)} | tracer.named_tensors().keys()


def _outside(function: Any, given: Iterable[Any]) -> tuple[list[Any], bool]:
    """All that the function had before it was called with what is given, and whether that is all."""
    return reached([function, *given, *values(*guards(function))])


def _require_no_sizes_outside(recorded: RecordedGraph, function: Any, bound: inspect.BoundArguments) -> None:
    """Raises NotTheSame where the function has put a size, or what is made of sizes, where later calls would put their
    own: only what it sets in arguments is written back."""
    found, _ = _outside(function, [bound.arguments.get("self")])
    scopes = (getattr(guard.owner, "__globals__", {}) for guard in guards(function))
    if any(map(recorded.is_made_of_sizes, [*found, *(value for scope in scopes for value in scope.values())])):
        raise recorded.failed()


def name_of(function: Any) -> str:
    """What messages call a function."""
    function = without_partial(function)
    return str(getattr(function, "__name__", type(function).__name__))


def without_partial(function: Any) -> Any:
    """The function behind functools.partial."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def trace_with(tracer: Tracer, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Trace:
    """Does what `trace` does; an `Argument` stands for its array. `Parts` are for a `Functional`.

    Raises:
        SetsState: it changes lists, dicts or objects among its arguments.
    """
    bound = bind(f"kfusion.trace: {tracer.name}", signature_of(function), args, kwargs)
    for name, value in bound.arguments.items():
        require_items_only(value)
        path = "" if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD else name
        bound.arguments[name] = walk(value, lambda p, leaf: _argument(tracer, p, leaf), path, enters=holds_arrays)
    _require_one_library(tracer)
    own = remembered(value for given in bound.arguments.values() for value in containers(given))
    tracer.named_tensors = lambda: modules.tensor_names(_roots(function, bound))
    if tracer.plans:
        tracer.module = _running_module(function, bound)
    token = current.set(tracer)
    try:
        given = guarded(list(bound.arguments.values()))
        named = functools.cache(lambda: _named_ids(tracer, function, given))
        with _own_code(tracer.attempt.watch):
            with torch_tensors.watched(tracer, lambda tensor: id(tensor) in named()):
                result = _call(tracer, function, bound)
                if tracer.recorded is not None:
                    _require_no_sizes_outside(tracer.recorded, function, bound)
            if others := changed(own):
                raise SetsState(tracer.name, what=kinds(others))
            written = tracer.written()
            found = Results(tracer, written, lambda: _outside(function, bound.arguments.values()))
            results = found.places(result)  # which may run code of its containers
        outputs = found.outputs
        tracer.require_no_product([value for _, value in outputs])
        written = tracer.in_place(written, [value for _, value in outputs])
        outputs += [(f"{tracer.inputs[w.input].name} (written)", w.result) for w in written]
        if not outputs:
            _require_an_array(tracer, bound)
            what = f"{tracer.name} returns nothing made of its arrays, but {_described(result)}"
            hint = "return what it computes, as arrays or tuples, lists and dicts of arrays"
            raise NothingReturned(message(what, hint, ""))
        _require_one_library(tracer)  # captured arrays too
        tracer.close(outputs)
    finally:
        current.reset(token)
        tracer.is_open = False
        if tracer.recorded is not None:
            tracer.recorded.is_open = False
    return Trace(
        tracer.name,
        tracer.graph,
        tuple(tracer.inputs),
        results,
        tuple(tracer.calls),
        tuple(tracer.library_calls),
        tuple(tracer.alternatives),
        tuple(written),
        tracer.is_random,
        tuple(tracer.modules),
    )


def signature_of(function: Any) -> inspect.Signature:
    """The signature of the function, of a module's forward, or for any arguments where Python knows none.

    Raises:
        TraceError: a parameter has the name of a keyword that kfusion adds to the functions it makes.
    """
    written = getattr(function, "forward", function)
    code = getattr(written, "__code__", None)
    if isinstance(function, type) and (hasattr(function, "forward") or "__call__" in vars(function)):
        what = f"kfusion.trace: function must be a function or an object, got the class {function.__name__}"
        raise TypeError(f"{what}; pass an instance of it")
    if not callable(written):
        raise TypeError(f"kfusion.trace: function must be callable, got {type(function).__name__}")
    try:
        signature = inspect.signature(written)
    except ValueError:
        return inspect.signature(lambda *args, **kwargs: None)
    if code is not None:
        linecache.checkcache(code.co_filename)
        for name in _RESERVED:
            if name in signature.parameters:
                what = f"{function.__name__} has a parameter named {name}, which kfusion adds itself"
                raise trace_error(what, "give it another name", "")
    return signature


def _argument(tracer: Tracer, name: str, value: Any) -> Any:
    if isinstance(value, Spec):
        return tracer.input(name, value)
    if isinstance(value, SymbolicSpec):
        value.filled({})  # raises
    if isinstance(value, Argument):
        array = value.array
        if (shown := stored_numbers.numpy_spec(array)) is not None:
            given = tracer.input(name, shown, array, argument=value.number, strides=value.strides)
            return stored_numbers.numbers("numpy", given, array.dtype.name)
        if (stored := stored_numbers.torch_spec(array)) is not None:
            given = tracer.input(name, stored, array, argument=value.number, strides=value.strides)
            return stored_numbers.numbers("torch", given, dtype_names.name_of_dtype(array))
        spec = array if isinstance(array, Spec) else spec_of(array, f"{tracer.name}: {name}")
        known = None if array is spec else array
        return tracer.input(name, spec, known, argument=value.number, strides=value.strides)
    return tracer.input(name, spec_of(value, f"{tracer.name}: {name}"), value) if is_array(value) else value


def _require_an_array(tracer: Tracer, bound: inspect.BoundArguments) -> None:
    """Where there is no array at all, the first argument that can only be meant as one is what is wrong."""
    for name, value in [] if tracer.inputs else bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        given = {name: value}
        if kind is inspect.Parameter.VAR_POSITIONAL:
            given = {f"{name}.{i}": v for i, v in enumerate(value)}
        if kind is inspect.Parameter.VAR_KEYWORD:
            given = value
        for path, part in given.items():
            v = PutTogether().made_of(part)
            if v is None or isinstance(v, (*_NO_ARRAYS, type)) or conversion_of(v, path) is not None:
                raise TypeError(f"kfusion.{tracer.name}: {path} must be an array, got {described(v, path)}")
            if dataclasses.is_dataclass(v):
                raise TypeError(
                    f"kfusion.{tracer.name}: {path} must be an array, got {type(v).__name__}; the attributes of an "
                    f"object without arrays are fixed when it is traced: pass the arrays themselves"
                )


def _require_one_library(tracer: Tracer) -> None:
    require_one_kind(f"kfusion.trace: {tracer.name}", {i.name: i.array for i in tracer.inputs if i.array is not None})
    for i in tracer.inputs:
        if i.spec.like != tracer.inputs[0].spec.like:
            raise TypeError(
                f"kfusion.trace: {tracer.name}: {i.name} must be like {tracer.inputs[0].spec.like} as "
                f"{tracer.inputs[0].name} is, got {i.spec.like}"
            )


@contextlib.contextmanager
def _own_code(watch: Watch | None) -> Iterator[None]:
    """Where the function's own code runs, but for where operations are added."""
    if watch is None:
        yield
        return
    watch.resume()
    try:
        yield
    finally:
        watch.pause("the end")


def _call(tracer: Tracer, function: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
    """The function's result. Where another library's error hides that it met a traced value, ours says so."""
    try:
        return function(*bound.args, **bound.kwargs)
    except RecursionError as error:
        if isinstance(error.__cause__, RecursionError):
            raise
        name = name_of(function)
        raise RecursionError(
            f"kfusion.{name}: it calls itself, or functions each other, without end while it is traced: values of "
            "arrays are not known then, so end the recursion by a Python value (an int among the arguments)"
        ) from error
    except (TypeError, ValueError, RuntimeError) as error:
        line = raised_line(error.__traceback__)
        if not isinstance(error, TraceError) and _replaced(error.__cause__):  # by NumPy, for w[0] = traced
            hint = "write kf.where(mask, x, y), or make that array with np.zeros(shape, like=x)"
            raise trace_error("assigning to a part of an array", hint, line) from error
        if not str(error).startswith("kfusion."):
            _require_an_array(tracer, bound)
        if not isinstance(error, TraceError) and _names_traced(str(error)):
            what = f"a function that takes no traced values was called ({error})"
            hint = "write the same function of kfusion or NumPy instead"
            raise trace_error(what, hint, line) from error
        raise


def _replaced(cause: BaseException | None) -> bool:
    """Whether C code met a refusal of ours and raised its own error instead, before the user's code could see ours."""
    return isinstance(cause, TraceError) and not raised_line(cause.__traceback__)


def _names_traced(text: str, kind: type[Any] = Traced) -> bool:
    """Whether a message names a class of traced values: functions in C say no more of what they got."""
    return f"{kind.__module__}." in text or any(_names_traced(text, k) for k in kind.__subclasses__())


def _described(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
