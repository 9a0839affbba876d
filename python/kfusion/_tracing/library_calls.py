"""Calls that a graph has no ops for: nodes of their own, which the array library computes when the kernels run.

A torch function is called once on tensors without data (device="meta"), which gives the shapes and dtypes of its
results, says which arguments it writes to, and raises the errors that it would raise (`library_trials.py`). What the
steps of a plan call is in `library_runs.py`; NumPy's functions are in `numpy_calls.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._graph.number import is_number
from .._graph.sizes import has_sizes, of_call
from .._graph.source import not_traced, trace_error
from .._graph.structure import leaves
from .._graph.tracer import Tracer
from .._graph.values import Traced, WritingCall, tracer_of
from .._spec import FLOATS
from . import library_arguments, library_attention, library_runs, library_trials, refusals, stored_numbers
from .dtype_names import is_complex, name_of_dtype


def torch_call(
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    is_tried: bool = False,
    on_data: bool = False,
) -> Any:
    """What `function(*args, **kwargs)` is on traced values: torch's own results, of the shapes that it gives.

    Values that it writes to (x.add_(y), out=x) are those values afterwards.

    Args:
        function: a function or a method of tensors.
        name: for people, "torch.sort".
        args: traced values, tensors and what else the function takes, within tuples, lists and dicts too.
        kwargs: likewise.
        is_tried: whether it is called on zeros at once, since some functions check dtypes only where there is data.
        on_data: whether it is called on ones, where the arguments are, to find out what it gives: it may be more than
            torch's own functions.

    Raises:
        TraceError: its results, or their shapes, depend on what is in its arguments.
    """
    tracer = tracer_of(*(getattr(leaf, "pairs", leaf) if is_complex(leaf) else leaf for leaf in leaves((args, kwargs))))
    if tracer is None:
        raise refusals.refused(name)
    if tracer.takes_apart:
        raise not_traced(f"{name} is a call of the library")
    with tracer.trying():
        return _called(tracer, function, name, args, kwargs, is_tried, on_data)


def _called(
    tracer: Tracer, function: Callable[..., Any], name: str, args: Any, kwargs: Any, is_tried: bool, on_data: bool
) -> Any:
    call = library_arguments.Arguments(tracer, (args, kwargs), "torch")
    tried = library_trials.Tried(function, name, call, on_data)
    shapes = [v.shape for v in call.values]
    found, shown, written = tried([of_call(shape, 0) for shape in shapes])
    results = library_trials.Results(name, found, shown)
    if not results.tensors and not written:
        if any(found is s for s in shown):  # x.contiguous() of what lies so
            return results.filled([], call.given)
        if name.removeprefix("torch.") in _OF_ANY_DATA:
            library_arguments.require_no_sizes(tracer, shapes)
            return found
        raise refusals.refused_result(name, found)
    _require_writable(name, [call.given[i] for i in written])
    types: Any = [
        *library_trials.types_of_results(name, results, shown, written),
        *[library_trials.DONE] * (len(written) + tried.draws),
    ]
    if has_sizes(shapes):
        types = tracer.recorded.compute_of(tried.types_of(tracer.recorded.types), shapes)  # type: ignore[union-attr]
    copied = tuple(k for k, t in enumerate(results.tensors) if any(library_trials.shares_memory(t, s) for s in shown))
    draws = tracer.library_draws(library_arguments.generators(call), tried.device) if tried.draws else None
    step = library_attention.runnable(name, function)
    run = library_runs.Run(step, call, results.new(), tuple(written), copied, draws, is_random=tried.draws)
    if is_tried:
        library_arguments.require_no_sizes(tracer, shapes)
        run(*(library_trials.without_data(v, library_trials.device_of([v])).zero_() for v in call.values))
    before = [tracer.node(call.values[i]) for i in written if _is_whole(call, i)]
    before_it = tracer.last_draw if tried.draws else []
    constants, fixed = _without_gradients(tracer, tried, shapes, written)
    read = [tracer.constant(v) if i in constants else v for i, v in enumerate(call.values)]
    made = tracer.library_call(name, run, [*read, *before_it], types)
    tracer.last_draw = made[-1:] if tried.draws else tracer.last_draw
    after = made[len(results.tensors) : len(results.tensors) + len(written)]
    for i, value in zip(written, after, strict=True):
        call.values[i]._write(name.removeprefix("torch."), value)  # type: ignore[attr-defined]
    if len(before) == len(written) == 1:
        tracer.writing_calls[tracer.node(after[0])] = WritingCall(run, *before, *map(tracer.node, (after[0], made[-1])))
    for k in copied:  # as with any view, what is written to it later would have to show in the others
        made[k] = tracer.value(
            tracer.node(made[k]), library_trials.owner(results.tensors[k], shown, call.values)._memory
        )
    made = [tracer.constant(m) if k in fixed and m._dtype in FLOATS else m for k, m in enumerate(made)]
    numbers = [
        stored_numbers.numbers("torch", m, dtype) if (dtype := name_of_dtype(t)) in stored_numbers.STORED else m
        for m, t in zip(made, results.tensors, strict=False)
    ]
    return results.filled(numbers, call.given)


def _without_gradients(
    tracer: Tracer, tried: library_trials.Tried, shapes: Any, written: Any
) -> tuple[list[int], list[int]]:
    """The numbers of what a call reads, and of results, that gradients take for constants since torch has none."""
    if not tracer.differentiates or written:
        return [], []
    return tried.without_gradients([of_call(shape, 0) for shape in shapes])


def with_alternative(
    function: Callable[..., Any] | None, name: str, args: Any, kwargs: Any, build: Callable[[], Any]
) -> Any:
    """What `build` makes of a call. Where that is of several stages, the graph learns that torch has a function for it,
    unless the call draws random numbers, writes to what it is given, or does without that.

    Args:
        function: torch's, None where it is not imported.
        name: for people, "torch.scaled_dot_product_attention".
        args: of the call, traced values among them.
        kwargs: likewise.
        build: adds the nodes.
    """
    tracer = tracer_of(*leaves((args, kwargs)))
    first, before = (tracer.graph.stages(), _effects(tracer)) if tracer is not None else (0, None)
    made = build()
    if tracer is None or function is None or not isinstance(made, Traced) or tracer.graph.stages() < first + 2:
        return made
    if _effects(tracer) != before:
        return made
    if any(map(is_number, leaves((args, kwargs)))):
        return made  # torch would take a float argument's value as it is now
    call = library_arguments.Arguments(tracer, (args, kwargs), "torch")
    order = None
    if (name, made.ndim) == (library_attention.NAME, _ATTENTION_AXES):
        order = library_attention.order_of_result(library_runs.Run(function, call), call.values)
    run = library_runs.Run(library_attention.runnable(name, function, order), call)
    tracer.library_alternative(name, run, call.values, made, first, order or ())
    return made


def _effects(tracer: Tracer) -> tuple[Any, int]:
    return tracer.effects, tracer.heads.claims


# Functions that say of any tensors of those shapes and dtypes what they say of those without data.
_OF_ANY_DATA = ("is_signed", "is_conj", "is_neg", "is_inference", "is_same_size", "result_type", "dense_dim")
_ATTENTION_AXES = 4  # batch, heads, positions, elements


def _is_whole(call: library_arguments.Arguments, i: int) -> bool:
    """Whether a tensor of a call is all of an array, and not seen as numbers of another dtype."""
    return call.values[i]._path == () and call.given[i] is call.values[i]


def _require_writable(name: str, given: Sequence[Any]) -> None:
    """What is written to an argument is copied there, and a kernel would not copy the bits of small integers."""
    for value in given:
        if is_complex(value) and not value.dtype.is_complex and value.pairs._tracer.is_input(value.pairs):
            what = f"{name} writes to {name_of_dtype(value)}, which graphs have no dtype for"
            raise trace_error(what, "write to a copy of another dtype: x.to(torch.int32)")


def assign(x: Any, key: Any, value: Any) -> Any:
    """x[key] = value; returns x."""
    x[key] = value
    return x
