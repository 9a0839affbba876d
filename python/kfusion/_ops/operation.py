"""One function, two lives: on traced values it adds nodes, on arrays it computes.

A builder is written once, for traced values. `operation` makes a public function of it, which runs the builder at once
where an argument is traced, and else traces that one call and executes its graph.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar, get_args

import numpy as np

from .. import _arrays, _core
from .._environment import calls
from .._graph.number import read
from .._graph.source import TraceError, trace_error
from .._graph.structure import leaves, walk
from .._graph.tracer import Tracer
from .._graph.values import Argument, Traced
from .._spec import DTYPES, require_plain, spec_of

Array: TypeAlias = Annotated[Any, "array"]
"""Annotates the parameters that are arrays, and the results: a builder sees `Traced` values there, callers arrays."""

Arrays: TypeAlias = Annotated[Any, "arrays"]
"""Annotates a parameter that is a tuple or list of arrays: a builder sees a tuple of `Traced` values."""

Axes: TypeAlias = int | tuple[int, ...] | None

_Function = TypeVar("_Function", bound=Callable[..., Any])

_TORCHS_NAMES = {"dim": "axis", "keepdim": "keepdims"}


def operation(builder: _Function) -> _Function:
    """A public function of one stage, named after the builder."""
    return _public(builder, lambda tracer: tracer.stage(builder.__name__))


def composite(builder: _Function) -> _Function:
    """A public function whose builder opens its own stages, or makes a single node, which is a stage of its own."""
    return _public(builder, lambda tracer: contextlib.nullcontext())


def _public(builder: _Function, stage: Callable[[Tracer], contextlib.AbstractContextManager[None]]) -> _Function:
    signature = inspect.signature(builder)
    hints = {p.name: _hint(p.annotation, builder.__module__) for p in signature.parameters.values()}
    arrays = [name for name, hint in hints.items() if Array in (hint, *get_args(hint))]
    several = [name for name in hints if hints[name] == Arrays]
    required = [name for name in arrays if hints[name] == Array]
    arrays += several
    who = f"kfusion.{builder.__name__}"

    def traced(*args: Any, **kwargs: Any) -> Any:
        bound = bind(who, signature, args, kwargs)
        for name in required:
            if bound.arguments[name] is None:
                raise TypeError(f"{who}: {name} must be an array, got None")
        for name in several:
            _require_several(who, name, bound.arguments[name])
        given = {n: bound.arguments[n] for n in arrays if bound.arguments.get(n) is not None}
        every = [v for name, value in given.items() for v in (value if name in several else (value,))]
        placed = next((v._placed for v in every if hasattr(type(v), "__kfusion_by_place__")), None)
        if placed is not None:
            return placed(traced, args, kwargs)
        first = next((v for v in every if isinstance(v, Traced)), None)
        for name, value in given.items():
            if hasattr(type(value), "__kfusion_complex__"):
                raise TypeError(f"{who}: {name} must be {', '.join(DTYPES)}, got {_arrays.dtype_name(value)}")
        if first is None:
            raise _no_array(who, bound.arguments)
        tracer = first._tracer
        for name, value in given.items():
            lift = functools.partial(tracer.lift, library=first._library, what=f"{name} of {who}")
            bound.arguments[name] = tuple(map(lift, value)) if name in several else lift(value)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        with stage(tracer):
            result = builder(*bound.args, **bound.kwargs)
        tracer.record(builder.__name__, arguments, result)
        return result

    traced.__name__ = traced.__qualname__ = builder.__name__
    compute = Eager(builder.__name__, signature, arrays, several, traced)

    others = {theirs: ours for theirs, ours in _TORCHS_NAMES.items() if ours in signature.parameters}

    @functools.wraps(builder)
    def function(*args: Any, **kwargs: Any) -> Any:
        return compute(*args, **(_renamed(who, others, kwargs) if others and kwargs else kwargs))

    function.__module__ = "kfusion"
    return function  # type: ignore[return-value]


def _renamed(who: str, names: Mapping[str, str], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keywords by our names for them."""
    for theirs, ours in names.items():
        if theirs in kwargs and ours in kwargs:
            raise TypeError(f"{who}: {theirs} is another name for {ours}: pass one of them")
    return {names.get(name, name): value for name, value in kwargs.items()}


def _require_several(who: str, name: str, value: Any) -> None:
    """Raises where there is no tuple or list of arrays, or none in it."""
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"{who}: {name} must be a tuple or list of arrays, got {_type_of(value).__name__}")
    if not value:
        raise ValueError(f"{who}: {name} must have at least one array")


def _type_of(value: Any) -> type:
    return type(value.array if isinstance(value, Argument) else value)


@functools.cache
def _hint(annotation: str, module: str) -> Any:
    """The type that an annotation of that module names; inspect's way takes 5 ms of the import."""
    return eval(annotation, vars(sys.modules[module]))


def _no_array(who: str, arguments: Mapping[str, Any]) -> TraceError:
    """The error for traced values that are somewhere within the arguments, and none of them an array of the call."""

    def holds_traced(value: Any) -> bool:
        return any(hasattr(type(leaf), "__kfusion_traced__") for leaf in leaves(value))

    name = next(name for name, value in arguments.items() if holds_traced(value))
    what = f"{name} of {who} must not be a traced value"
    if isinstance(arguments[name], (tuple, list, dict)):
        what = f"{name} of {who} must be an array, got {type(arguments[name]).__name__}"
    return trace_error(what, f"call {who} on an array, or on each array of a list")


class Eager(_core.FusedCallable):
    """A function of one call: on arrays it traces that call once for each signature, and runs its kernels."""

    def __init__(
        self,
        name: str,
        signature: inspect.Signature,
        arrays: Sequence[str],
        several: Sequence[str],
        traced: Callable[..., Any],
    ) -> None:
        super().__init__(name, list(signature.parameters), {}, False, False)
        self._who = f"kfusion.{name}"
        self._name = name
        self._signature = signature
        self._arrays = arrays
        self._several = several
        self.__wrapped__ = traced

    fuse: ClassVar[Callable[..., Any]]  # kfusion.fuse, which is above this module and sets it

    @functools.cached_property
    def _fused(self) -> Any:
        return Eager.fuse(self.__wrapped__)

    def _differentiable(self, args: Any, kwargs: Any, *_: Any) -> Any:
        """A call with tensors that require grad, for C++."""
        return self._fused(*args, **kwargs)

    def _staged_by_jax(self, args: Any, kwargs: Any, out: Any) -> Any:
        """A call that borrowed no array, for C++."""
        return self._fused._staged_by_jax(args, kwargs, out)

    def _foreign(self, *call: Any) -> Any:
        """A call with an array of a kind that kernels do not take, for C++."""
        return self._fused._foreign(*call)

    def _taken_apart(self, args: Any, kwargs: Any, *_: Any) -> Any:
        """A call with an object among its arguments, for C++: an array of xarray's may hold a traced value."""
        if (made := self._fused.placed(args, kwargs)) is not NotImplemented:
            return made
        bound = bind(self._who, self._signature, args, kwargs)
        for name in self._arrays:
            self._input(Tracer(self._name, eager=True), name, bound.arguments.get(name, 0))
        raise TypeError(f"{self._who}: arguments must be arrays, numbers, strings, tuples or lists")

    def _guards(self, *_: Any) -> list[Any]:
        return []

    def _prepare(self, args: Any, kwargs: Any, strides: Sequence[Any], numbers: bool, *_: Any) -> calls.Prepared:
        tracer = Tracer(self._name, eager=True, runs=True)
        leaves = calls.Leaves(tracer, strides, self._who, floats=numbers, ints=False)
        args = tuple(walk(a, leaves.visit) for a in args)
        bound = bind(self._who, self._signature, args, {n: walk(a, leaves.visit) for n, a in kwargs.items()})
        given = {n: bound.arguments[n] for n in self._arrays if bound.arguments.get(n) is not None}
        for name in self._several:
            _require_several(self._who, name, bound.arguments[name])
        for name, value in given.items():
            if name in self._several:
                bound.arguments[name] = [self._input(tracer, f"{name}[{i}]", v) for i, v in enumerate(value)]
            else:
                bound.arguments[name] = self._input(tracer, name, value)
        if not tracer.inputs:
            bound.arguments |= self._scalar_inputs(tracer, given)
        require_one_kind(self._who, {i.name: i.array for i in tracer.inputs})
        result = self.__wrapped__(*bound.args, **bound.kwargs)
        several = isinstance(result, list)
        tracer.close([(str(i), r) for i, r in enumerate(result)] if several else [("", result)])
        return calls.prepared(self._who, tracer, fill=list if several else None)

    def _input(self, tracer: Tracer, name: str, value: Any) -> Any:
        if isinstance(value, Argument):
            spec = spec_of(value.array, f"{self._who}: {name}")
            return tracer.input(name, spec, value.array, argument=value.number, strides=value.strides)
        if not isinstance(value, (bool, int, float, np.generic)):
            require_plain(value, f"{self._who}: {name}")
        return value

    def _scalar_inputs(self, tracer: Tracer, given: Mapping[str, Any]) -> dict[str, Any]:
        """NumPy's scalars among themselves are arrays without axes."""
        scalars = {name: np.asarray(read(v)) for name, v in given.items() if isinstance(v, np.generic)}
        if not scalars:
            raise TypeError(f"{self._who}: at least one argument must be an array")
        return {name: tracer.input(name, spec_of(a, f"{self._who}: {name}"), a) for name, a in scalars.items()}


def bind(who: str, signature: inspect.Signature, args: Any, kwargs: Any) -> inspect.BoundArguments:
    """The arguments by name; a TypeError says whose they are."""
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{who}: {error}") from None


def run(tracer: Tracer) -> list[Any]:
    """Executes a closed tracer's graph on the arrays that its inputs stand for."""
    return _core.run_graph(tracer.graph, [i.array for i in tracer.inputs], tracer.name)


def require_one_kind(who: str, arrays: Mapping[str, Any]) -> None:
    """Refuses arrays of different libraries in one call.

    Raises:
        TypeError: naming the first that differs.
    """
    names = list(arrays)
    kinds = [_arrays.kind(a) for a in arrays.values()]
    for name, kind in zip(names, kinds, strict=True):
        if kind != kinds[0]:
            raise TypeError(f"{who}: {name} must be an array of {kinds[0]} as {names[0]} is, got one of {kind}")
