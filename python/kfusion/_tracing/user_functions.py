"""The user's own functions of torch's autograd (`torch.autograd.Function`) on traced values.

`forward` is traced like anything else. Where what it gives is differentiated, `backward` is traced behind it, of values
that stand for the gradients of the results, and the graph is told that these are the results' gradients. What cannot be
traced is a call of the library: torch runs both when the kernels run.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .._environment.state import Snapshot
from .._graph.source import trace_error
from .._graph.structure import leaves
from .._graph.tracer import Tracer, current
from .._graph.values import Traced
from .._ops import primitives as p
from .._ops import views
from .._spec import FLOATS, is_array
from . import backward_hooks, library_calls

_CHECKPOINT = "torch.utils.checkpoint"
_HOOKS = "torch.nn.modules._functions"


def intercept() -> Callable[[], None]:
    """From now on torch calls `_applied` for each function; returns what ends that."""
    torch = sys.modules["torch"]
    if not hasattr(getattr(torch, "autograd", None), "Function"):  # another thread is importing torch
        return lambda: None
    base = _base(torch)
    base.apply = classmethod(_applied)
    return lambda: delattr(base, "apply")


def _base(torch: Any) -> Any:
    """The class behind torch's own Function.apply, which that calls with all arguments by position."""
    return torch.autograd.Function.__mro__[1]


def _applied(function: Any, *args: Any, **kwargs: Any) -> Any:
    torch, tracer = sys.modules["torch"], current.get()
    is_own = function.__module__.partition(".")[0] == __name__.partition(".")[0]
    if tracer is None or tracer.is_trying or is_own or kwargs or not _is_meant(tracer, args):
        return super(_base(torch), function).apply(*args, **kwargs)
    if function.__module__ == _CHECKPOINT:
        return _checkpointed(torch, tracer, *args)
    if function.__module__ == _HOOKS:
        return backward_hooks.hooked(tracer, args)
    return _called(torch, tracer, function, args)


def _is_meant(tracer: Tracer, args: Sequence[Any]) -> bool:
    """Whether traced values are among the arguments, or tensors that gradients pass through."""
    if any(hasattr(type(v), "__kfusion_traced__") for v in leaves(args)):
        return True
    return tracer.differentiates and any(is_array(a) and getattr(a, "requires_grad", False) is True for a in args)


def _checkpointed(torch: Any, tracer: Tracer, run: Any, preserve: Any, *args: Any) -> Any:
    """What is computed again is the plan's choice. Without an argument that requires grad there are no gradients."""
    has_gradients = any(getattr(a, "requires_grad", False) is True for a in args)
    with torch.set_grad_enabled(has_gradients and torch.is_grad_enabled()):
        return run(*args)


def _called(torch: Any, tracer: Tracer, function: Any, args: Sequence[Any]) -> Any:
    """Calls it by traces of both passes; by the library where these fail, and where gradients have gradients."""
    before = tracer.effects
    given = [_as_value(tracer, a) for a in args]
    failed: Exception | None = None
    if tracer.is_differentiated_once or not tracer.differentiates:
        try:
            return _traced(torch, tracer, function, given)
        except Exception as error:
            if tracer.effects != before or hasattr(error, "__kfusion_refused__"):
                raise
            failed = error
    elif _is_once_differentiable(torch, function):
        what = f"{function.__name__}.backward is once_differentiable: its gradients have no gradients"
        raise trace_error(what, "leave the decorator out")
    try:
        return library_calls.torch_call(function.apply, f"torch.{function.__name__}", tuple(given), {}, on_data=True)
    except Exception:
        if failed is None:
            raise
        raise failed from None


def _is_once_differentiable(torch: Any, function: Any) -> bool:
    decorated = torch.autograd.function.once_differentiable(_backward_of(torch, function))
    return getattr(_backward_of(torch, function), "__code__", None) is decorated.__code__


def _backward_of(torch: Any, function: Any) -> Any:
    return function.backward if function.vjp is _base(torch).vjp else function.vjp


def _refused(text: str) -> RuntimeError:
    """The error of what torch would refuse, or calls cannot do as torch does; no call of the library is tried then."""
    error = RuntimeError(text)
    error.__kfusion_refused__ = True  # type: ignore[attr-defined]
    return error


def _as_value(tracer: Tracer, argument: Any) -> Any:
    """A tensor through which gradients pass as a value, and a value of its own for each argument."""
    if not tracer.differentiates:
        return argument
    if is_array(argument) and getattr(argument, "requires_grad", False) is True:
        argument = tracer.lift(argument, "torch")
    return tracer.itself(argument) if _is_float(argument) else argument


def _is_float(value: Any) -> bool:
    return isinstance(value, Traced) and value._dtype in FLOATS


def _traced(torch: Any, tracer: Tracer, function: Any, args: Sequence[Any]) -> Any:
    needs = tuple(_is_float(a) and a.requires_grad for a in args)
    context = _context_class(torch)(needs, tracer.differentiates)
    with torch.no_grad():
        found = _forward(torch, function, context, args)
    listed = list(found) if isinstance(found, tuple) else [found]
    if not any(needs):
        return found
    fixed = {id(t) for t in context.non_differentiable}
    places = [i for i, y in enumerate(listed) if _is_result(tracer, y) and id(y) not in fixed]
    results = [tracer.lift(listed[i], "torch") for i in places]
    if len(places) > 1 and not context.materialize_grads:
        what = f"{function.__name__} calls set_materialize_grads(False) and has {len(places)} results"
        raise _refused(f"kfusion.{tracer.name}: {what}: its gradients are not None, but zeros: leave that call out")

    def backward(cotangents: Sequence[Traced]) -> list[tuple[Traced, Traced]]:
        return _gradients(torch, tracer, function, context, args, listed, dict(zip(places, cotangents, strict=True)))

    for i, made in zip(places, tracer.with_backward(results, backward), strict=True):
        listed[i] = made
    return tuple(listed) if isinstance(found, tuple) else listed[0]


def _is_result(tracer: Tracer, y: Any) -> bool:
    return _is_float(y) or (is_array(y) and y.is_floating_point())


def _forward(torch: Any, function: Any, context: Any, args: Sequence[Any]) -> Any:
    """Where forward takes no context, another function sets it up."""
    if function.setup_context == _base(torch).setup_context:
        return function.forward(context, *args)
    found = function.forward(*args)
    function.setup_context(context, tuple(args), found)
    return found


def _gradients(
    torch: Any,
    tracer: Tracer,
    function: Any,
    context: Any,
    args: Sequence[Any],
    results: Sequence[Any],
    cotangents: dict[int, Any],
) -> list[tuple[Traced, Traced]]:
    """What backward gives for arguments, with these; without gradients and autocast, as torch calls it."""
    given = [cotangents.get(i, _zeros(torch, context, y)) for i, y in enumerate(results)]
    if getattr(function, "boxed_grads_call", False):
        given = [given]
    kind = str(args[next(i for i, a in enumerate(args) if _is_float(a))].device).partition(":")[0]
    backward = _backward_of(torch, function)
    with torch.no_grad(), torch.autocast(kind, enabled=False), Snapshot([backward]) as before:
        found = backward(context, *given)
        if before.changed(function.__name__):
            what = f"{function.__name__}.backward sets something beside its gradients, which only its trace would"
            raise _refused(f"kfusion.{tracer.name}: {what}: set it in forward, or in a hook of a tensor")
    found = list(found) if isinstance(found, tuple) else [found]
    if len(found) < len(args) or any(g is not None for g in found[len(args) :]):
        what = f"{function.__name__}.backward must give {len(args)} gradients, got {len(found)}"
        raise _refused(f"kfusion.{tracer.name}: {what}")
    pairs = [(a, g) for a, g, needs in zip(args, found, context.needs_input_grad, strict=False) if needs]
    return [(a, _fitted(tracer, function.__name__, g, a)) for a, g in pairs if g is not None]


def _zeros(torch: Any, context: Any, y: Any) -> Any:
    """The gradient of a result that has none."""
    if not (isinstance(y, Traced) or is_array(y)) or not context.materialize_grads:
        return None
    return torch.zeros_like(y)


def _fitted(tracer: Tracer, name: str, g: Any, x: Any) -> Any:
    """A gradient in the shape and dtype of what it is of: sums over axes that were broadcast, as torch takes them."""
    g = tracer.lift(g, "torch")
    extra = g.ndim - x.ndim
    behind = list(zip(g.shape[max(extra, 0) :], x.shape, strict=False))
    if extra < 0 or any(n != m != 1 for n, m in behind):
        what = f"{name}.backward must give a gradient of shape {tuple(x.shape)}, got {tuple(g.shape)}"
        raise _refused(f"kfusion.{tracer.name}: {what}")
    axes = [*range(extra), *(extra + i for i, (n, m) in enumerate(behind) if n != m)]
    if axes:
        g = views.reshape(p.sum(g, tuple(axes)), x.shape)
    return views.astype(g, x._dtype)


@functools.cache
def _context_class(torch: Any) -> Any:
    class Context(torch.autograd.function.FunctionCtx):  # type: ignore[misc]
        """What forward leaves for backward."""

        to_save: Sequence[Any] = ()
        non_differentiable: Sequence[Any] = ()
        materialize_grads = True

        def __init__(self, needs_input_grad: tuple[bool, ...], differentiates: bool) -> None:
            self.needs_input_grad = needs_input_grad
            self._differentiates = differentiates

        def mark_dirty(self, *args: Any) -> None:
            if self._differentiates:
                what = "mark_dirty of a torch.autograd.Function that has written to its argument, and has gradients"
                raise trace_error(what, "call mark_dirty first, or write to a copy")

        @property
        def saved_tensors(self) -> tuple[Any, ...]:
            return tuple(self.to_save)

    return Context
