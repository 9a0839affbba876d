"""torch's operators, `torch.ops.aten.*`, on traced values: what torch.compile and torch.export make of programs.

One rule serves most: an operator is torch's function of that name, whose parameters have the schema's names and order.
aten_rows.py has those that differ. What neither knows is a call of the library.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._environment.objects import is_traced
from .._graph.source import NotTraced, TraceError, trace_error
from .._graph.structure import leaves, walk
from .._graph.tracer import Tracer, current
from .._graph.values import tracer_of
from . import dtype_names, library_calls
from .torch_functions import FUNCTIONS, torch_function

ROWS: dict[str, Callable[..., Any]] = {}  # by name, or by name and overload: "add", "max.dim"
SOURCES: dict[str, Callable[..., Any]] = {}  # the same of operators without tensors among their arguments
FIRSTS: dict[str, Callable[..., Any]] = {}  # the first result of operators whose others nobody reads
OTHERS: dict[str, Callable[[str], Callable[..., Any] | None]] = {}  # by namespace: functions of traced values by name

# Results that no other call gives again. They are calls of the library, which draws when the kernels run.
_RANDOM_NAMES = """
    rand randn randint randperm rand_like randn_like randint_like bernoulli multinomial normal normal_functional
    poisson uniform exponential geometric log_normal cauchy random native_dropout rrelu_with_noise
    rrelu_with_noise_functional fractional_max_pool2d fractional_max_pool3d
"""
RANDOM = frozenset(_RANDOM_NAMES.split())
_RENAMED = {"self": "input"}


def row(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function as what operators of these names do: of the operator's arguments, in the schema's order."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        ROWS.update(dict.fromkeys(names, function))
        return function

    return enter


def source(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function as operators that make tensors of none: it takes the tracer and the operator's arguments."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        SOURCES.update(dict.fromkeys(names, function))
        return function

    return enter


def first(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function as the first result of operators of several, where nothing else reads the others."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        FIRSTS.update(dict.fromkeys(names, function))
        return function

    return enter


def is_operator(function: Any) -> bool:
    """Whether a function is one of torch.ops, with its overload."""
    return isinstance(function, sys.modules["torch"]._ops.OpOverload)


def draws(function: Any) -> bool:
    """Whether another call of a function may give other results of the same arguments. What is no operator may."""
    if not is_operator(function):
        return True
    return function._schema.name.partition("::")[2] in RANDOM or function._schema.is_mutable


def called(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, only_first: bool = False) -> Any:
    """What an operator gives of traced values, or of none while a function is traced.

    Args:
        op: an operator of torch.
        args: its arguments, traced values among them.
        kwargs: likewise.
        only_first: whether nobody reads other results than the first, where it has several.

    Raises:
        TraceError: its results, or their shapes, depend on what is in its arguments.
    """
    space, _, name = op._schema.name.partition("::")
    kwargs = dict(kwargs)
    tracer = current.get()
    if tracer is not None and not any(map(is_traced, leaves((args, kwargs)))):
        return _made(tracer, op, name, args, kwargs)
    if any(map(dtype_names.is_complex, leaves((args, kwargs)))):
        return _by_library(op, name, args, kwargs)
    if space in OTHERS:
        found = OTHERS[space](name)
        return _by_library(op, name, args, kwargs) if found is None else found(*args, **kwargs)
    function = ROWS.get(f"{name}.{op._overloadname}") or ROWS.get(name)
    if space not in ("aten", "prims") or (function is None and name in RANDOM):
        return _by_library(op, name, args, kwargs)
    if op._schema.is_mutable:
        return _mutating(op, name, args, kwargs)
    if only_first and name in FIRSTS:
        with contextlib.suppress(NotTraced):
            lifted = _lifted(args, kwargs)
            return (FIRSTS[name](*lifted[0], **lifted[1]),)
    if function is None:
        return _as_function(op, name, args, kwargs)
    try:
        lifted = (args, kwargs) if name in _WRITING else _lifted(args, kwargs)
        build = functools.partial(function, *lifted[0], **lifted[1])
        return library_calls.with_alternative(op, f"torch.{name}", args, kwargs, build)
    except (NotTraced, TypeError, ValueError, IndexError) as error:
        if isinstance(error, TraceError) and not isinstance(error, NotTraced):
            raise
        return _by_library(op, name, args, kwargs)


_WRITING = ("batch_norm",)  # rows that want tensors of outside as they are, to write to them


def _lifted(args: Any, kwargs: Any) -> Any:
    """The arguments with traced values in place of all tensors."""
    tracer: Any = tracer_of(*leaves((args, kwargs)))
    tensor = sys.modules["torch"].Tensor
    return walk(
        (args, kwargs),
        lambda _, v: tracer.lift(v, "torch") if isinstance(v, tensor) and not is_traced(v) else v,
    )


def _by_library(op: Any, name: str, args: Any, kwargs: Any) -> Any:
    if name in _BY_STRIDES and args and is_traced(args[0]) and not _is_whole_input(args[0]):
        what = f"torch.{name} of what is no argument reads memory by strides, and values may lie in any order"
        raise trace_error(what, "index instead")
    if name in _HEADS_BEHIND:
        return _attention(op, name, args, kwargs)
    given = sys.modules["torch"].reshape if name in _VIEWS and op._overloadname != "dtype" else op
    return library_calls.torch_call(given, f"torch.{_known_as(name, args)}", args, kwargs)


# Attention's operators, and how many of their results have their heads behind the positions in memory.
_HEADS_BEHIND = {
    "_scaled_dot_product_flash_attention": 1,
    "_scaled_dot_product_flash_attention_backward": 3,
    "_scaled_dot_product_flash_attention_for_cpu": 1,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 3,
    "_scaled_dot_product_efficient_attention": 1,
    "_scaled_dot_product_efficient_attention_backward": 3,
    "_scaled_dot_product_cudnn_attention": 1,
    "_scaled_dot_product_cudnn_attention_backward": 3,
}


def _attention(op: Any, name: str, args: Any, kwargs: Any) -> Any:
    """The results of an operator of attention, which lie in the plan as torch's do: none is copied."""
    count = _HEADS_BEHIND[name]
    made = library_calls.torch_call(_with_positions_first(op, count), f"torch.{name}", args, kwargs)
    return (*_with_heads_swapped(made[:count]), *made[count:])


@functools.cache
def _with_positions_first(op: Any, count: int) -> Callable[..., Any]:
    """The operator, whose first results have their axes in the order of memory."""

    def run(*args: Any, **kwargs: Any) -> Any:
        made = op(*args, **kwargs)
        # Detached: autograd copies a result that is a view.
        plain = (t if t is None else t.detach() for t in _with_heads_swapped(made[:count]))
        return (*plain, *made[count:])

    run.gives_own = True  # type: ignore[attr-defined]
    return run


def _with_heads_swapped(values: Sequence[Any]) -> list[Any]:
    """Heads and positions; of a gradient that nobody wants None."""
    return [v.transpose(1, 2) if getattr(v, "ndim", 0) == 4 else v for v in values]


def _known_as(name: str, args: Any) -> str:
    """The name of torch's function that an operator serves, where the planner knows how the results of that lie."""
    if name == "convolution" and len(args) > 6 and args[6] is True:
        return f"conv_transpose{args[0].ndim - 2}d"
    if name.startswith(("upsample_", "_upsample_")) and not name.endswith("backward"):
        return "interpolate"
    return {"max_pool2d_with_indices": "max_pool2d", "_adaptive_avg_pool2d": "adaptive_avg_pool2d"}.get(name, name)


def _is_whole_input(x: Any) -> bool:
    return x._path == () and x._tracer.node(x) in x._tracer._input_nodes


_BY_STRIDES = ("as_strided", "as_strided_copy", "as_strided_scatter")
_VIEWS = ("view", "_unsafe_view")  # whose arguments may lie otherwise here than where torch made the graph


def _mutating(op: Any, name: str, args: Any, kwargs: Any) -> Any:
    """x.add_(y), and what else writes to its arguments."""
    if name.endswith("_") and name[:-1] in FUNCTIONS and (given := _arguments(op, name[:-1], args, kwargs)):
        return torch_function(f"Tensor.{name}", *given, op)
    return _by_library(op, name, args, kwargs)


def _as_function(op: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Applies the rule: torch's function of that name."""
    plain = name if name in FUNCTIONS else name.removesuffix("_copy").removeprefix("special_").removeprefix("linalg_")
    given = _arguments(op, plain, args, kwargs) if plain in FUNCTIONS else None
    if given is None:
        return _by_library(op, name, args, kwargs)
    return torch_function(plain, *given, op)


def knows(op: Any) -> bool:
    """Whether an operator of aten is known by a row or by the rule."""
    name = op._schema.name.partition("::")[2]
    if name in ROWS or f"{name}.{op._overloadname}" in ROWS:
        return True
    names = _names(op, FUNCTIONS[name]) if name in FUNCTIONS else None
    wanted = [a.name for a in op._schema.arguments if a.name not in _SAID]
    return names is not None and all(names.get(k, k) in _parameters(FUNCTIONS[name]) for k in wanted)


def _arguments(op: Any, name: str, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of torch's function for those of an operator; None where it has no such parameters."""
    function = FUNCTIONS[name]
    names = _names(op, function)
    if names is None:
        return None
    positional_names = [names[a.name] for a in op._schema.arguments if not a.kwarg_only]
    given = dict(zip(positional_names, args, strict=False)) | {names.get(k, k): v for k, v in kwargs.items()}
    given = {k: v for k, v in given.items() if v is not None or k not in _SAID}
    taken = _parameters(function)
    if any(k not in taken and k not in _SAID and v is not None for k, v in given.items()):
        return None
    ordered = [k for kind in ("positional", "several") for k in positional_names if taken.get(k) == kind and k in given]
    positional = [given.pop(k) for k in ordered]
    return tuple(positional), {k: v for k, v in given.items() if k in taken or v is not None}


# Keywords that change no values of results, or that torch_function looks at itself.
_SAID = ("memory_format", "layout", "pin_memory", "device", "non_blocking", "implicit", "dtype", "generator")


@functools.cache
def _names(op: Any, function: Callable[..., Any]) -> dict[str, str] | None:
    """By the name of an operator's argument, torch's function's name for it. What has another name at its position is
    the same. None where an argument has another position there.
    """
    taken = list(_parameters(function))
    arguments = op._schema.arguments
    wanted = [_RENAMED.get(a.name, a.name) for a in arguments]
    made = {}
    for i, (argument, name) in enumerate(zip(arguments, wanted, strict=True)):
        if name not in taken and not argument.kwarg_only and i < len(taken) and taken[i] not in wanted:
            name = taken[i]
        if not argument.kwarg_only and name in taken and taken.index(name) != i:
            return None
        made[argument.name] = name
    return None if wanted and taken and made[arguments[0].name] != taken[0] else made


@functools.cache
def _parameters(function: Callable[..., Any]) -> dict[str, str]:
    kinds: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "several", inspect.Parameter.KEYWORD_ONLY: "keyword"}
    return {p.name: kinds.get(p.kind, "positional") for p in inspect.signature(function).parameters.values()}


def _made(tracer: Tracer, op: Any, name: str, args: Any, kwargs: Any) -> Any:
    """A tensor made of no traced value: a node of the graph, or a constant that torch makes."""
    if name in RANDOM:
        return _drawn(tracer, op, name, args, kwargs)
    function = SOURCES.get(f"{name}.{op._overloadname}") or SOURCES.get(name)
    if function is not None and tracer.inputs:
        try:
            return function(tracer, *args, **kwargs)
        except NotTraced:
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
