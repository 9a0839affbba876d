"""torch's operators, `torch.ops.aten.*`, on traced values: what torch.compile and torch.export make of programs.

One rule serves most: an operator is torch's function of that name, whose parameters have the schema's names and order.
aten_rows.py has those that differ. What neither knows is a call of the library.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .._graph.source import NoForm, TraceError
from .._graph.structure import leaves
from .._graph.tracer import Traced, Tracer, current
from . import library_calls
from .torch_functions import FUNCTIONS, torch_function

ROWS: dict[str, Callable[..., Any]] = {}  # by name, or by name and overload: "add", "max.dim"
SOURCES: dict[str, Callable[..., Any]] = {}  # the same of operators without tensors among their arguments
OTHERS: dict[str, Callable[[str], Callable[..., Any] | None]] = {}  # by namespace: functions of traced values by name

# Results that no other call gives again. They are calls of the library, which draws when the kernels run.
RANDOM = frozenset(
    "rand randn randint randperm rand_like randn_like randint_like bernoulli multinomial normal normal_functional "
    "poisson uniform exponential geometric log_normal cauchy random native_dropout rrelu_with_noise "
    "rrelu_with_noise_functional fractional_max_pool2d fractional_max_pool3d".split()
)
_RENAMED = {"self": "input"}


def row(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function as what operators of these names do: of the operator's arguments, in the schema's order."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        ROWS.update(dict.fromkeys(names, function))
        return function

    return enter


def source(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The same for operators that make tensors of no tensors: of the tracer and the operator's arguments."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        SOURCES.update(dict.fromkeys(names, function))
        return function

    return enter


def is_operator(function: Any) -> bool:
    """Whether a function is one of torch.ops, with its overload."""
    return isinstance(function, sys.modules["torch"]._ops.OpOverload)


def called(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What an operator gives of traced values, or of none while a function is traced.

    Raises:
        TraceError: its results, or their shapes, depend on what is in its arguments.
    """
    space, _, name = op._schema.name.partition("::")
    kwargs = dict(kwargs)
    tracer = current.get()
    if tracer is not None and not any(map(_is_traced, leaves((args, kwargs)))):
        return _made(tracer, op, name, args, kwargs)
    if space in OTHERS:
        found = OTHERS[space](name)
        return _by_library(op, name, args, kwargs) if found is None else found(*args, **kwargs)
    if space not in ("aten", "prims") or name in RANDOM or op._schema.is_mutable:
        return _mutating(op, name, args, kwargs) if op._schema.is_mutable else _by_library(op, name, args, kwargs)
    function = ROWS.get(f"{name}.{op._overloadname}") or ROWS.get(name)
    if function is None:
        return _as_function(op, name, args, kwargs)
    try:
        return library_calls.with_form(op, f"torch.{name}", args, kwargs, lambda: function(*args, **kwargs))
    except (NoForm, TypeError, ValueError, IndexError) as error:
        if isinstance(error, TraceError) and not isinstance(error, NoForm):
            raise
        return _by_library(op, name, args, kwargs)


def _is_traced(value: Any) -> bool:
    return hasattr(type(value), "__kfusion_traced__")


def _by_library(op: Any, name: str, args: Any, kwargs: Any) -> Any:
    return library_calls.torch_call(op, f"torch.{name}", args, kwargs)


def _mutating(op: Any, name: str, args: Any, kwargs: Any) -> Any:
    """x.add_(y), and what else writes to its arguments."""
    if name.endswith("_") and name[:-1] in FUNCTIONS and (given := _arguments(op, name[:-1], args, kwargs)):
        return torch_function(f"Tensor.{name}", *given, op)
    return _by_library(op, name, args, kwargs)


def _as_function(op: Any, name: str, args: Any, kwargs: Any) -> Any:
    """By the rule: torch's function of that name."""
    plain = name if name in FUNCTIONS else name.removesuffix("_copy").removeprefix("special_").removeprefix("linalg_")
    given = _arguments(op, plain, args, kwargs) if plain in FUNCTIONS else None
    if given is None:
        return _by_library(op, name, args, kwargs)
    return torch_function(plain, *given, op)


def _arguments(op: Any, name: str, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of torch's function for those of an operator; None where it has no such parameters."""
    names = _places(op, FUNCTIONS[name])
    if names is None:
        return None
    given = dict(zip(names, args, strict=False)) | {_RENAMED.get(k, k): v for k, v in kwargs.items()}
    for keyword in ("layout", "pin_memory", "device", "out"):
        if keyword in given and given[keyword] is None:
            del given[keyword]
    taken = _parameters(FUNCTIONS[name])
    if any(k not in taken for k, v in given.items() if k not in _SAID and v is not None):
        return None
    first = [k for k in names[: len(args)] if taken.get(k) == "positional"]
    lists = [k for k in names[: len(args)] if taken.get(k) == "several"]
    positional = tuple(given.pop(k) for k in first) + tuple(given.pop(k) for k in lists)
    return positional, given


_SAID = ("memory_format", "layout", "pin_memory", "device", "non_blocking", "implicit", "dtype")


@functools.cache
def _places(op: Any, function: Callable[..., Any]) -> tuple[str, ...] | None:
    """The names of an operator's arguments that can be given by place, as torch's function has them. None where one of
    them has another place there, or no name.
    """
    taken = list(_parameters(function))
    wanted = [_RENAMED.get(a.name, a.name) for a in op._schema.arguments if not a.kwarg_only]
    if any(taken.index(k) != i for i, k in enumerate(wanted) if k in taken):
        return None
    if wanted and taken and wanted[0] != taken[0]:
        return None
    return tuple(wanted)


@functools.cache
def _parameters(function: Callable[..., Any]) -> dict[str, str]:
    kinds = {inspect.Parameter.VAR_POSITIONAL: "several", inspect.Parameter.KEYWORD_ONLY: "keyword"}
    return {p.name: kinds.get(p.kind, "positional") for p in inspect.signature(function).parameters.values()}


def _made(tracer: Tracer, op: Any, name: str, args: Any, kwargs: Any) -> Any:
    """A tensor made of no traced value: a node of the graph, or a constant that torch makes."""
    if name in RANDOM:
        return _drawn(tracer, op, name, args, kwargs)
    function = SOURCES.get(f"{name}.{op._overloadname}") or SOURCES.get(name)
    if function is not None and tracer.inputs:
        try:
            return function(tracer, *args, **kwargs)
        except NoForm:
            pass
    made = getattr(sys.modules["torch"], name, op)
    try:
        return made(*args, **kwargs)
    except (TypeError, RuntimeError):
        return op(*args, **kwargs)


def _drawn(tracer: Tracer, op: Any, name: str, args: Any, kwargs: Any) -> Any:
    """A call of the library needs a value to be made of: the first input, at which it does not look."""
    like = tracer.value_of_input(0)

    def draw(_: Any, *args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    return library_calls.torch_call(draw, f"torch.{name}", (like, *args), kwargs)


def item(values: Any, index: int) -> Any:
    """One of the results of an operator that gives several."""
    return operator.getitem(values, index)


def lifted(x: Traced, value: Any) -> Any:
    """A value of the graph of an array; None as it is."""
    return value if value is None else x._tracer.lift(value, "torch")
