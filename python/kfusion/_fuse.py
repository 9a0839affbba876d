"""`kfusion.fuse`: a plain function of arrays that runs as the kernels that its plan shows."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import json
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np

from . import _core, _times
from ._autograd import Differentiable
from ._devices import running
from ._devices.devices import device as find_device
from ._environment import calls, guards, modules
from ._environment.alone import alone
from ._environment.calls import Alike
from ._environment.equality import do_one_thing
from ._environment.functional import Functional
from ._environment.state import SetTargets, Snapshot, cannot_set, taken_apart_once, watched
from ._foreign import calls as foreign_calls
from ._foreign import labelled
from ._fused_method import FusedMethod
from ._fused_module import fused_module
from ._graph import heads
from ._graph.appended import ReadsItems
from ._graph.sizes import RecordedGraph
from ._graph.source import NamesObjects, RandomDraw, SetsState
from ._graph.structure import has_plain, holds_arrays, leaves, walk
from ._graph.tape import NotTheSame, Shape
from ._graph.tracer import Tracer
from ._graph.values import Argument, Attempt, place_of
from ._ops.operation import Eager
from ._plans.frontends import frontend_of
from ._plans.plan import Plan, pairs, plan_graph
from ._spec import bytes_or_none, is_array
from ._tracing import through_jax
from ._tracing.trace import Trace, name_of, repeated, signature_of, trace, trace_with, without_partial

if TYPE_CHECKING:
    from ._devices.device import Device
    from ._files import StrPath
    from ._onnx.function import FusedModel

_WHO = "kfusion.fuse"
Pairs = Iterable[tuple[str, str]]


class _Module(Protocol):
    """A torch module, for type checkers, which need not know torch."""

    def named_parameters(self) -> Any: ...


class FusedFunction(_core.FusedCallable):
    """What `kfusion.fuse` makes of a function: call it as the function itself.

    f(x, b)             runs the kernels of the function's plan; `out=` and `stream=` as for fused_softmax
    f.unfused(x, b)     the same with one kernel per call inside
    f.plan(x, b)        the Plan that f(x, b) runs; nothing is computed
    f.source(x, b)      the CUDA C++ of its kernels; needs no GPU
    f.clear()           forgets the traces, so that the next call traces again
    f.__wrapped__       the plain function

    It pickles by name (of an object without one, such as a partial or a module: with it), and works as a method.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], *, each: bool = False) -> None:
        signature = signature_of(function)
        super().__init__(name_of(function), list(signature.parameters), options, True, True, each)
        written = without_partial(function)
        has_name = hasattr(written, "__qualname__")  # a module, an object with __call__ have none
        functools.update_wrapper(self, written, updated=functools.WRAPPER_UPDATES if has_name else ())
        if not has_name:
            self.__name__ = self.__qualname__ = name_of(function)
        self.__wrapped__ = function
        self._is_named = has_name and written is function
        if not options.get("fuse", True):
            self.__qualname__ += ".unfused"
        self.__signature__ = signature
        self._options = options
        self._is_each = each
        self._is_inner = isinstance(function, Functional) or "in_passes" in options  # of another fused function
        self._targets = SetTargets(self.__wrapped__)
        self._functionals: dict[bool, FusedFunction] = {}

    __wrapped__: Callable[..., Any]
    __name__: str
    __qualname__: str

    @functools.cached_property
    def unfused(self) -> FusedFunction:
        """The function with one kernel per call inside, for comparison."""
        return FusedFunction(self.__wrapped__, self._options | {"fuse": False})

    def plan(self, *args: Any, device: str | Device | None = None, **kwargs: Any) -> Plan:
        """The kernels that a call with these arguments runs, counted and priced. Nothing is computed.

        Args:
            args: as for the function itself, or specs for arrays.
            device: what to price on, as for `kfusion.plan`; None is where the arrays are, not measured.
            kwargs: likewise.

        Returns:
            A `kfusion.Plan`.
        """
        traced = self._planned(args, kwargs)
        priced_on = running.device(place_of(traced.inputs)) if device is None else find_device(device)
        return plan_graph(traced.name, traced.graph, priced_on, self._options, traced.modules)

    def source(self, *args: Any, **kwargs: Any) -> str:
        """The CUDA C++ of the kernels that a call with these arguments runs on a GPU, one after the other.

        It is that of the arrays' GPU; of arrays elsewhere, and of specs, that of an H200. No GPU is needed.

        Args:
            args: as for the function itself, or specs for arrays.
            kwargs: likewise.

        Returns:
            The text; what the array library computes stands in it as a comment.
        """
        traced = self._planned(args, kwargs)
        place = place_of(traced.inputs)
        device = find_device("H200") if place == "cpu" or _core.cuda_device_count() == 0 else running.device(place)
        kernels = _core.cuda_kernels(traced.graph, device.to_dict(), self._options.get("fuse", True))
        return "\n".join(k.source if k else "// The array library computes what comes here.\n" for k in kernels)

    def clear(self) -> None:
        """Forgets all traces, so that the next call traces again: after a change of what calls do not look at, such as
        an attribute whose name is put together.
        """
        self._clear()
        self._targets = SetTargets(self.__wrapped__)
        self._functionals.clear()
        for name in ("unfused", "_passes", "_labelled"):
            if name in self.__dict__:
                self.__dict__[name].clear()

    def _differentiable(self, args: Any, kwargs: Any, out: Any, stream: Any) -> Any:
        """A call with tensors that require grad, or of a function that names some, for C++."""
        if not self._is_inner and has_plain((args, kwargs)):
            self._targets.take_self()
            return self._taken_apart(args, kwargs, out, stream)
        if self._targets.are_known:
            return self._taken_apart(args, kwargs, out, stream)
        if "torch.distributed.tensor" in sys.modules and foreign_calls.libraries_of(args, kwargs):
            return foreign_calls.run(self, args, kwargs, out, stream)
        return self._passes.call(args, kwargs, out, stream)

    def _staged_by_jax(self, args: Any, kwargs: Any, out: Any) -> Any:
        """A call that borrowed no array, for C++: NotImplemented where no argument is a tracer of JAX."""
        tracer = sys.modules["jax"].core.Tracer
        if not any(isinstance(leaf, tracer) for leaf in leaves((args, kwargs))):
            return NotImplemented
        from ._jax import staged  # nobody else needs it

        if out is not None:
            raise TypeError(f"kfusion.{self.__name__}: out= cannot be given inside of jax.jit: arrays are immutable")
        return staged.call(self.__wrapped__, self._options, args, kwargs)

    @functools.cached_property
    def _passes(self) -> Any:
        return Differentiable(self)

    def placed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A call of a function of kfusion's with labelled arrays that hold traced values; NotImplemented without."""
        return labelled.placed(self.__wrapped__, args, kwargs)

    @functools.cached_property
    def _labelled(self) -> Any:
        return labelled.Known()

    def _planned(self, args: Any, kwargs: Any) -> Trace:
        """The trace of arrays as they lie, or of specs."""
        if self._targets.are_known:
            with alone():
                apart, functional = (
                    self._targets.apart(self.__signature__, args, kwargs, whole=True),
                    self._functional(),
                )
            planned: Trace = functional._planned(apart.args, apart.kwargs)
            return planned

        def seen(path: str, leaf: Any) -> Any:
            if isinstance(leaf, np.generic) or not is_array(leaf):
                return leaf
            strides = None
            with contextlib.suppress(
                TypeError, RuntimeError
            ):  # tracing says what is wrong, where that matters to a plan
                strides = _core.element_strides(leaf, self.__name__, path)
            return Argument(leaf, -1, strides or ())

        function = self.__wrapped__
        if foreign_calls.is_meant(args, kwargs):
            function, args, kwargs = foreign_calls.planned(self, args, kwargs)
        apart = taken_apart_once(function, self.__signature__, args, kwargs)
        args = [walk(a, seen, enters=holds_arrays) for a in apart.args]
        kwargs = {n: walk(a, seen, n, enters=holds_arrays) for n, a in apart.kwargs.items()}
        with heads.of_options(self._options):
            return through_jax.attempted(function, (args, kwargs), lambda f: trace(f, *args, **kwargs))

    def _foreign(self, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, stream: Any, message: str) -> Any:
        """A call with an array of a kind that kernels do not take, for C++; `message` says so."""
        if not foreign_calls.libraries_of(args, kwargs):
            raise TypeError(message)
        return foreign_calls.run(self, args, kwargs, out, stream)

    @property
    def _taken_apart(self) -> Callable[..., Any]:
        """What C++ asks about calls with objects; of a call that is taken apart, objects are themselves."""
        if isinstance(self.__wrapped__, Functional):
            raise AttributeError("_taken_apart")
        return self._call_taken_apart

    def _call_taken_apart(self, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, stream: Any) -> Any:
        """A call with objects among its arguments or arrays that are no memory, or of a function that sets something
        beside its results, for C++.
        """
        if foreign_calls.is_meant(args, kwargs):
            return foreign_calls.run(self, args, kwargs, out, stream)
        own = {name: value for name, value in (("out", out), ("stream", stream)) if value is not None}
        while True:
            with alone():
                version, functional = self._targets.version, self._functional(has_out=out is not None)
                apart = self._targets.apart(self.__signature__, args, kwargs)
            if apart.is_traced:
                return self.__wrapped__(*args, **kwargs)
            try:
                returned = functional(*apart.args, **apart.kwargs, **own)
            except SetsState as found:
                self._learn(found, args, version)
            except NamesObjects:  # which are known now
                continue
            except ReadsItems as found:
                self._targets.read(found.number)
            except Exception:
                if not apart.hides_items:
                    raise
                self._targets.read()  # C code may have looked for them, as torch.stack does
            else:
                with alone():
                    return apart.put_back(returned)

    def _with_effects(self, found: SetsState, args: Sequence[Any], kwargs: Mapping[str, Any], *own: Any) -> Any:
        """A call whose trace has said that the function sets something beside its results, for C++."""
        if self._is_inner:
            raise found
        self._learn(found, args, 0)
        return self._taken_apart(args, kwargs, *own)

    def _learn(self, found: SetsState, args: Sequence[Any], version: int) -> None:
        """From now on calls set what the function sets, beside what was known to a call of that version.

        Raises:
            TraceError: that is known already, and does not help.
        """
        if self._is_each:
            raise cannot_set(name_of(self.__wrapped__), found.what)
        with alone():
            self._targets.learn(found, name_of(self.__wrapped__), args, version)
            self._functionals.clear()
            self._take_apart()

    def _functional(self, *, has_out: bool = False) -> FusedFunction:
        """The function of what its arguments and places hold that returns what it sets in them."""
        if has_out not in self._functionals:
            made = self._targets.functional(self.__wrapped__, name_of(self.__wrapped__), self.__signature__, has_out)
            self._functionals[has_out] = FusedFunction(made, self._options)
        return self._functionals[has_out]

    def _cached(self) -> int:
        """The number of signatures that it keeps."""
        return super()._cached() + sum(f._cached() for f in self._functionals.values())

    def _guards(self, *argument: Any) -> list[guards.Guard]:
        """What decides what is traced beside the arguments, or what of an object that is one does."""
        return guards.guards(self.__wrapped__, *argument)

    def _prepare(
        self,
        args: Any,
        kwargs: Any,
        strides: Sequence[Any],
        numbers: bool,
        shapes: Sequence[Shape],
        alike: Alike | None,
    ) -> calls.Prepared:
        """Traces this call, or plays a trace of calls that are alike but for sizes."""
        _times.refresh()
        if alike is not None and (known := alike.prepared(shapes)) is not None:
            return known
        asks = alike is not None and guards.may_ask_for_types(self._guards(), installed=False)
        if alike is not None and not asks and (other := alike.other(shapes)) is not None:
            try:
                made = self._numbered(args, kwargs, strides, numbers, lambda: RecordedGraph(shapes, other))
                return alike.recorded(shapes, made)
            except (Exception, NotTheSame):  # of a function that asks more than it may
                pass
        made = self._numbered(args, kwargs, strides, numbers)
        return made._replace(alike=alike or Alike(shapes, made.numbers))

    def _numbered(
        self,
        args: Any,
        kwargs: Any,
        strides: Sequence[Any],
        numbers: bool,
        record: Callable[[], RecordedGraph | None] = lambda: None,
    ) -> calls.Prepared:
        """Traces a call. Where that fails on what stands for ints or floats, they are taken as they are, and where the
        function may ask for their types, too; and where not `numbers`.
        """
        floats, ints = calls.kinds_of_numbers(args, kwargs) if numbers else (False, False)
        if (floats or ints) and guards.may_ask_for_types(self._guards()):
            floats = ints = False
        for attempt in dict.fromkeys([(floats, ints), (floats, False)]):
            if not any(attempt):
                continue
            try:
                return self._traced(args, kwargs, strides, *attempt, record)
            except (RecursionError, RandomDraw):  # numbers as they are would change nothing
                raise
            except Exception:
                pass
        return self._traced(args, kwargs, strides, False, False, record)

    def _traced(
        self,
        args: Any,
        kwargs: Any,
        strides: Sequence[Any],
        floats: bool,
        ints: bool,
        record: Callable[[], RecordedGraph | None] = lambda: None,
    ) -> calls.Prepared:
        """Where JAX's arrays meet functions of JAX, through JAX's trace."""

        def traced(snapshot: Snapshot) -> calls.Prepared:
            def attempt(function: Callable[..., Any]) -> calls.Prepared:
                return self._traced_as(function, args, kwargs, strides, floats, ints, record, snapshot)

            return through_jax.attempted(self.__wrapped__, (args, kwargs), attempt)

        roots = [self.__wrapped__, *guards.guarded(args, kwargs)]
        return watched(name_of(self.__wrapped__), roots, (args, kwargs), traced, do_one_thing)

    def _traced_as(
        self,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        strides: Sequence[Any],
        floats: bool,
        ints: bool,
        record: Callable[[], RecordedGraph | None],
        snapshot: Snapshot,
    ) -> calls.Prepared:
        name = name_of(self.__wrapped__)
        who = f"kfusion.{name}"

        def prepare(attempt: Attempt) -> calls.Prepared:
            snapshot.restore()  # what another attempt has set
            tracer = Tracer(name, runs=True, attempt=attempt, recorded=record())
            known = calls.Leaves(tracer, strides, who, floats=floats, ints=ints)
            given = [known.argument(a) for a in args], {n: known.argument(a) for n, a in kwargs.items()}
            with heads.of_options(self._options):
                traced = trace_with(tracer, function, *given)
            snapshot.require_no_values(name)
            made = calls.prepared(who, tracer, self._guards(), traced.filler(), traced.written, traced.filler)
            return made._replace(results=traced.results)

        return repeated(name, prepare, (self.__wrapped__, args, kwargs))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else FusedMethod(self, instance)

    def __reduce__(self) -> Any:
        if not self._is_named:
            return FusedFunction, (self.__wrapped__, self._options)
        # Another process does not find what a notebook or a function defines. cloudpickle takes the code of that along.
        if sys.modules.get("cloudpickle") and (self.__module__ == "__main__" or "<" in self.__qualname__):
            return _from_code, (_code_of(self.__wrapped__), self._options)
        if "<" in self.__qualname__:
            what = f"kfusion.{self.__name__}: a lambda, or a function within a function, has no name in another process"
            raise pickle.PicklingError(f"{what}: define it at the top of a module, or import cloudpickle and use that")
        named: Any = sys.modules.get(self.__module__)
        for name in self.__wrapped__.__qualname__.split("."):
            named = getattr(named, name, None)
        if named is self.__wrapped__:  # the plain function has the name
            return FusedFunction, (named, self._options)
        return self.__qualname__

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedFunction:
        """The function itself, as copies of plain functions are. What it has no name for is copied."""
        return self if self._is_named else FusedFunction(copy.deepcopy(self.__wrapped__, memo), self._options)

    def __copy__(self) -> FusedFunction:
        return self if self._is_named else FusedFunction(self.__wrapped__, self._options)

    def __repr__(self) -> str:
        return f"<kfusion.fuse: {self.__qualname__}{self.__signature__}>"


def _code_of(function: Any) -> bytes:
    """cloudpickle's pickle of a plain function, which holds its code."""
    return bytes(sys.modules["cloudpickle"].dumps(function))


@functools.lru_cache(maxsize=128)
def _known(code: bytes, options: str) -> FusedFunction:
    return FusedFunction(pickle.loads(code), dict(json.loads(options)))


def _from_code(code: bytes, options: dict[str, Any]) -> FusedFunction:
    """Gives one object for one code, so that many tasks trace once."""
    return _known(code, json.dumps(options))


@overload
def fuse(function: _Module, *, allow: Pairs = (), forbid: Pairs = (), memory: int | None = None) -> Any: ...
@overload
def fuse(function: StrPath, *, allow: Pairs = (), forbid: Pairs = (), memory: int | None = None) -> FusedModel: ...
@overload
def fuse(
    function: Callable[..., Any], *, allow: Pairs = (), forbid: Pairs = (), memory: int | None = None
) -> FusedFunction: ...
@overload
def fuse(
    function: None = None, *, allow: Pairs = (), forbid: Pairs = (), memory: int | None = None
) -> Callable[[Callable[..., Any]], FusedFunction]: ...
def fuse(function: Any = None, *, allow: Pairs = (), forbid: Pairs = (), memory: int | None = None) -> Any:
    """Makes a plain function of arrays run as few kernels.

    The function is traced at the first call with arguments of new kinds, dtypes or strides, and planned into kernels
    for each new shape; from then on those run, and nothing of its Python is executed again. Two calls that differ in
    extents are traced; their trace serves other extents as well, unless the function needs the very values of extents
    (`range(x.shape[0])`, `len(x)`). Results are of the arguments' kind of array.

    Traced anew is also where a bool, str, None or another object among the arguments differs, and where what the
    function can read has changed: globals and closure variables that it names, its code and defaults, attributes of
    objects, entries of lists and dicts; those of the user's functions that it calls, too. Floats and ints among the
    arguments, and what arithmetic makes of them, are read when the kernels run, unless the function looks at their
    values (a comparison, a shape, an axis). Captured arrays are read when the kernels run, so changes in place count.

    What the function writes into its arguments, into parameters and buffers, or into torch's tensors that it names, is
    written by each call, after all reads: in place where an elementwise kernel can, else by a copy when the kernels are
    done.

    A torch module becomes a module of the same class that shares all its state: parameters, buffers, submodules and
    the mode, by the same names. Whatever is set in the module, in modules within it, or in modules that a plain
    function names, is seen by the next call: a parameter that is replaced, another dtype or mode, an attribute.

    Args:
        function: of arrays (NumPy's, torch's, CuPy's, JAX's; on the CPU or a CUDA device), or a torch module, or a
            program of `torch.export.export`, which becomes a module; kf.*, NumPy's, torch's and CuPy's functions,
            operators and methods inside. Or the path of an ONNX model, which is traced for each shape of its inputs.
        allow: pairs of names of calls or ops, as `kfusion.plan` takes them: only these may share a kernel.
        forbid: pairs that may not.
        memory: of calls with tensors that require grad: the bytes, at most, that a call keeps for its backward pass
            beside its arguments and results. Backward computes the more again. None: what takes the least time.
            `kfusion.kept_for_backward` shows what is kept.

    Returns:
        A `FusedFunction`; of a module, a module with its `plan`, `source`, `unfused` and `clear`; of an ONNX model a
        function of its inputs, by position or by name, that returns its output, or a tuple of several; without a
        function (`@kf.fuse(forbid=...)`) a decorator that makes one.

    Raises:
        TypeError: function is not callable, pairs are none, or memory is no integer.
        ValueError: memory is negative; from a call, it is less than what cannot be computed again; a model is damaged,
            or has what is refused.
        ImportError: of a model, the onnx package is missing.
        TraceError: a parameter is named `out` or `stream`, which the fused function adds itself.
    """
    options = {
        "allow": pairs("allow", allow, _WHO),
        "forbid": pairs("forbid", forbid, _WHO),
        "executors": "available",
        "memory": bytes_or_none(_WHO, memory),
    }
    made = functools.partial(_fused, options=options)
    return (lambda f: frontend_of(f).fused(made)) if function is None else frontend_of(function).fused(made)


Eager.fuse = staticmethod(fuse)


def _fused(function: Any, options: dict[str, Any]) -> Any:
    is_plain = inspect.isfunction(getattr(type(function), "forward", None))  # TorchScript's is not
    if is_plain and modules.is_module(function):
        return fused_module(function, lambda module: FusedFunction(module, options))
    return FusedFunction(function, options)
