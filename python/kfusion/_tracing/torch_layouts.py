"""What torch says of a traced tensor's layout, by a tensor without data that lies so: strides, contiguity, bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from .._graph.tape import Shape
from .._graph.values import Traced

_View = Callable[[Any, Shape], Any]


def said(value: Traced, ask: Callable[[Any], Any]) -> Any:
    """What `ask` says of a tensor of the value's extents and dtype. A view has the strides that torch gives it; what is
    computed lies in C order, as results do.
    """
    views, shapes = _views(value)
    torch, dtype = sys.modules["torch"], value._dtype
    count = len(shapes) - len(views)  # the extents of what the views look at, and its strides if they are known

    def asked(shapes: Sequence[Shape]) -> Any:
        with torch._C.DisableTorchFunction():
            make = torch.empty if count == 1 else torch.empty_strided
            shown = make(*shapes[:count], dtype=getattr(torch, dtype), device="meta")
            for view, shape in zip(views, shapes[count:], strict=True):
                shown = view(shown, shape)
            return ask(shown)

    recorded = value._tracer.recorded
    return asked(shapes) if recorded is None else recorded.compute_each(asked, shapes)


def is_tensor(value: Traced, name: str) -> bool:
    """Whether an attribute of a tensor of the value's dtype and number of axes is a tensor."""
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction():
        shown = torch.empty([1] * value.ndim, dtype=getattr(torch, value._dtype), device="meta")
        return isinstance(getattr(shown, name), torch.Tensor)


def _views(value: Traced) -> tuple[list[_View], list[Any]]:
    """How the value is made of what owns its memory; the extents of that, its strides, and the extents of each view."""
    tracer, owner, node = value._tracer, value._memory, value._tracer.node(value)
    views: list[_View] = []
    shapes: list[Any] = []
    while node != owner.node and (view := _view(tracer, node)) is not None:
        views.insert(0, view)
        shapes.insert(0, tracer.graph.shape(node))
        (node,) = tracer.graph.node(node)["arguments"]
    strides = [] if owner.strides is None else [tuple(owner.strides)]
    return views, [tracer.graph.shape(node), *strides, *shapes]


def _view(tracer: Any, node: int) -> _View | None:
    made = tracer.graph.node(node)
    op = made["op"]
    if op == "slice":
        steps = made["step"] if tracer.recorded is None else tracer.recorded.steps(node)
        return lambda tensor, shape: _sliced(tensor, shape, steps)
    if op == "transpose":
        return lambda tensor, _: tensor.permute(made["axes"])
    if op == "broadcast":
        return lambda tensor, shape: tensor.expand(shape)
    return (lambda tensor, shape: tensor.reshape(shape)) if op == "reshape" else None  # which may copy


def _sliced(tensor: Any, shape: Shape, steps: Sequence[int]) -> Any:
    """A tensor that lies as a slice, which may start anywhere. torch copies where elements come in another order."""
    if min(steps, default=1) < 0:
        return tensor.new_empty(shape)
    return tensor[tuple(slice(0, n * step, step) for n, step in zip(shape, steps, strict=True))]
