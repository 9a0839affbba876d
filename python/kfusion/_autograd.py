"""Fused functions of tensors that require grad: nodes of torch's autograd.

Forward is the fused function itself, under no_grad. Backward is another one, which computes again what it needs of the
forward pass: arguments are all that is kept.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._grad import tracer_of_leaves
from ._graph.objects import Returned, holds
from ._graph.structure import Slot, holds_arrays, is_plain, may_hold_results, walk
from ._graph.tracer import Traced
from ._spec import is_array

if TYPE_CHECKING:
    from ._fuse import FusedFunction


_SIGNATURE = inspect.signature(lambda call, cotangents, wanted, captured: None)


class Backward:
    """What the backward pass of a function fuses: from its arguments and the gradients of its results to the gradients
    of those tensors that are wanted, by position, and of captured ones, by id.
    """

    def __init__(self, function: Any, name: str) -> None:
        self.__wrapped__ = function
        self.__signature__ = _SIGNATURE
        self.__name__ = f"{name} (backward)"

    def __call__(
        self, call: Any, cotangents: Sequence[Any], wanted: Sequence[bool], captured: Sequence[int]
    ) -> tuple[list[Any], dict[int, Any]]:
        tracer = tracer_of_leaves((call, cotangents))
        assert tracer is not None
        own: list[Traced] = []
        asked, itself = iter(wanted), tracer.itself

        def given(_: str, leaf: Any) -> Any:
            if not _is_value(leaf) or not next(asked):
                return leaf
            own.append(itself(leaf))
            return own[-1]

        args, kwargs = _walk_arguments(call, given)
        nodes = [tracer.copy(x) for x in own]
        with tracer.differentiated():
            results = _values_of(self.__wrapped__(*args, **kwargs))
        known = [(y, g) for y, g in zip(results, cotangents, strict=True) if g is not None]
        pairs = [(tracer.lift(y, g._library), g) for y, g in known]
        named = {id(i.array): tracer.value_of_input(k) for k, i in enumerate(tracer.inputs) if i.captured}
        params = [(k, named[k]) for k in captured if k in named]
        made = tracer.vjp([y for y, _ in pairs], [g for _, g in pairs], [*nodes, *(v for _, v in params)])
        return made[: len(nodes)], dict(zip((k for k, _ in params), made[len(nodes) :], strict=True))


# Whether what is traced now is the forward pass of a call with gradients.
is_differentiated: contextvars.ContextVar[bool] = contextvars.ContextVar("kfusion_is_differentiated", default=False)


def writes(name: str) -> RuntimeError:
    """The error for functions that write to arrays: backward, which computes again, would write once more."""
    what = "it writes to arrays that are not its own, and has no gradients therefore"
    return RuntimeError(f"kfusion.{name}: {what}: call it under torch.no_grad()")


def call(fused: FusedFunction, args: Any, kwargs: Any, out: Any, stream: Any) -> Any:
    """A call with tensors that require grad among its arguments, or among what the function names."""
    torch = sys.modules["torch"]
    who = f"kfusion.{fused.__name__}"
    if out is not None:
        raise RuntimeError(f"{who}: out= holds no gradients: leave it out, or call under torch.no_grad()")
    tensors: list[Any] = []
    kept = _walk_arguments((args, kwargs), lambda _, leaf: _slot(torch, tensors, leaf))
    if fused.has_written:
        raise writes(fused.__name__)
    token = is_differentiated.set(True)
    try:
        with torch.no_grad():
            result = fused(*args, **kwargs, **({} if stream is None else {"stream": stream}))
    finally:
        is_differentiated.reset(token)
    captured = fused.captured_tensors()
    if isinstance(result, Returned) and result.changed:
        raise writes(fused.__name__)
    made: list[Any] = []
    structure = walk(result, lambda _, leaf: _slot(torch, made, leaf), enters=may_hold_results)
    if any(t.is_complex() for t in (*made, *tensors)):
        raise RuntimeError(f"{who}: complex tensors have no gradients here: call it under torch.no_grad()")
    node = _Node(fused, kept, [id(t) for t in captured], made, len(tensors), _autocast(torch, tensors + captured))
    outs = _function(torch).apply(node, *tensors, *captured)
    filled = iter(outs)
    return walk(structure, lambda _, leaf: next(filled) if isinstance(leaf, Slot) else leaf, enters=may_hold_results)


class _Node:
    """What a node of the autograd graph keeps beside tensors."""

    def __init__(
        self, fused: FusedFunction, kept: Any, captured: list[int], made: list[Any], arguments: int, autocast: Any
    ) -> None:
        self.fused = fused
        self.kept = kept  # arguments, with slots for tensors
        self.captured = captured
        self.made = made
        self.arguments = arguments
        self.autocast = autocast

    def gradients(self, tensors: Sequence[Any], gradients: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
        """Of tensors, captured ones behind the arguments, None where none is wanted or there is none."""
        call = _walk_arguments(
            self.kept, lambda _, leaf: tensors[leaf.index].detach() if isinstance(leaf, Slot) else leaf
        )
        first = self.arguments
        asked = tuple(bool(w) and t.is_floating_point() for w, t in zip(wanted[:first], tensors, strict=False))
        captured = tuple(k for k, w in zip(self.captured, wanted[first:], strict=True) if w)
        with self.autocast():
            made = self.fused.backward(call, list(gradients), asked, captured)
        own, named = made.result if isinstance(made, Returned) else made
        given = iter(own)
        return [next(given) if a else None for a in asked] + [named.get(k) for k in self.captured]


@functools.cache
def _function(torch: Any) -> Any:
    class Fused(torch.autograd.Function):  # type: ignore[misc]
        """A fused function in the autograd graph."""

        @staticmethod
        def forward(ctx: Any, node: _Node, *tensors: Any) -> Any:
            made, node.made = node.made, []
            ctx.node = node
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(*[y for y in made if not y.is_floating_point()])
            ctx.save_for_backward(*tensors)
            return tuple(made)

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *gradients: Any) -> Any:
            return None, *ctx.node.gradients(ctx.saved_tensors, gradients, ctx.needs_input_grad[1:])

    return Fused


def _autocast(torch: Any, tensors: Sequence[Any]) -> Any:
    """A context with torch.autocast as it is now."""
    kind = next((t.device.type for t in tensors), "cpu")
    if not torch.is_autocast_enabled(kind):
        return contextlib.nullcontext
    return functools.partial(torch.autocast, kind, dtype=torch.get_autocast_dtype(kind))


def _slot(torch: Any, tensors: list[Any], leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    tensors.append(leaf)
    return Slot(len(tensors) - 1)


def _walk_arguments(arguments: Any, visit: Any) -> Any:
    return walk(arguments, visit, enters=lambda v: holds_arrays(v) or (is_plain(v) and holds(v, _is_value)))


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, Traced) or hasattr(type(leaf), "__kfusion_traced__") or is_array(leaf)


def _values_of(result: Any) -> list[Any]:
    found: list[Any] = []
    walk(result, lambda _, leaf: found.append(leaf) if _is_value(leaf) else None, enters=may_hold_results)
    return found
