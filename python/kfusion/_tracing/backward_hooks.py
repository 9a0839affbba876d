"""Hooks of torch's on gradients: of traced values, and of modules whose forward pass is traced.

A hook is user code that may look at the gradient: it runs each time that the gradient is computed, in its place among
the kernels, on tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._graph.source import trace_error
from .._graph.tracer import Tracer
from .._graph.values import Traced

_NAME = "BackwardHookFunctionBackward"  # of torch's own node, for which its modules look


class HookedNode:
    """Stands for torch's node of the gradient of values that are what was given: they have this one for `grad_fn`."""

    def __init__(self) -> None:
        self._hooks: list[Callable[..., Any]] = []

    def name(self) -> str:
        """The name that torch's has."""
        return _NAME

    def register_hook(self, hook: Callable[[Any, Any], Any]) -> Handle:
        """`hook(gradients of what was given, gradients of the values)` may give others in the place of the first."""
        self._hooks.append(hook)
        return Handle()

    def adjoint(self, arguments: tuple[int, ...]) -> Callable[..., list[Any]]:
        """What gives the gradients of those that were given."""

        def run(*arrays: Any) -> list[Any]:
            cotangents = arrays[len(arrays) // 2 :]
            gradients: Sequence[Any] = cotangents
            for hook in self._hooks:
                made = hook(tuple(gradients), tuple(cotangents))
                gradients = gradients if made is None else made
            found = [cotangents[i] if gradients[i] is None else gradients[i] for i in arguments]
            return [g.clone() if any(g is a for a in arrays) else g for g in found]

        return run


class Handle:
    """What registering a hook returns."""

    def remove(self) -> None:
        """Raises: the trace has the hook."""
        raise trace_error("removing a hook within the function", "register it where it is to run")


def hooked(tracer: Tracer, values: Sequence[Any]) -> tuple[Any, ...]:
    """The values, those through which gradients pass as others, with one `HookedNode`."""
    places = [i for i, x in enumerate(values) if isinstance(x, Traced) and tracer.requires_grad(x)]
    node = HookedNode()
    made = tracer.with_adjoint([values[i] for i in places], [values[i] for i in places], "torch.hook", node)
    tracer.grad_fns |= {tracer.node(x): node for x in made}
    known = dict(zip(places, made, strict=True))
    return tuple(known.get(i, x) for i, x in enumerate(values))


def register(x: Any, hook: Callable[[Any], Any]) -> Handle:
    """x.register_hook(hook): x is the value from then on whose gradient the hook has seen."""
    tracer = x._tracer
    if not tracer.requires_grad(x):
        raise RuntimeError("kfusion: cannot register a hook on a tensor that doesn't require gradient")
    node = tracer.node(x)
    if any(node in tracer.graph.node(n)["arguments"] for n in range(node + 1, len(tracer.graph))):
        raise trace_error("a hook on a value that was read before", "register it where the value is made")
    (made,) = hooked(tracer, [x])
    tracer.become(x, made)
    return made.grad_fn.register_hook(lambda gradients, _: _one(hook(gradients[0])))  # type: ignore[no-any-return]


def _one(made: Any) -> Any:
    return None if made is None else (made,)


def grad_fn(x: Any) -> Any:
    """x.grad_fn: a node where x has been given one to hook, None where x has no gradients."""
    node = x._tracer.grad_fns.get(x._tracer.node(x))
    if node is None and x._tracer.requires_grad(x):
        raise trace_error("x.grad_fn is not traced: a graph has no nodes of torch's autograd", "ask x.requires_grad")
    return node
