"""A linear layer and torch's cross entropy of its results, where both become one function without the logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .._graph import heads
from .._graph.tracer import Tracer
from .._graph.values import Traced, place_of
from .._ops import linear_losses, views
from .._ops.chunk_products import bytes_of_chunk, missing_columns
from .._spec import FLOATS, HALF, INTEGERS, ITEM_BYTES

_View = Callable[[Any], Any]  # of x, as the logits were seen


class _Product(NamedTuple):
    """Logits as a product: x weight^T + bias, and the node of x weight^T."""

    x: Traced
    weight: Traced
    bias: Traced | None
    node: int


def without_logits(logits: Traced, targets: Traced, class_weight: Any, options: dict[str, Any]) -> Traced | None:
    """The loss of logits (..., classes) that are a linear layer's, where gradients are wanted and chunks pay; None for
    others, which are computed as they are written.
    """
    tracer = logits._tracer
    if not (heads.are_sought() and tracer.wants_gradients and tracer.is_differentiated_once):
        return None
    if targets.shape != logits.shape[:-1] or targets._dtype not in INTEGERS:
        return None  # which is an error
    if class_weight is not None:
        class_weight = tracer.lift(class_weight, "torch")
        if not _is_plain(tracer, class_weight, logits):
            return None
    product = _product(tracer, logits)
    if product is None or not _pays(product) or not tracer.heads.claim(product.node):
        return None
    made: Traced = linear_losses.head_loss(
        product.x, product.weight, targets, product.bias, class_weight, logits._dtype, **options, is_strict=True
    )
    return made


def _is_plain(tracer: Tracer, weight: Traced, logits: Traced) -> bool:
    """Whether what classes weigh is an array that nobody wants the gradient of."""
    known = tracer.input_of(tracer.node(weight))
    fits = weight.shape == logits.shape[-1:] and weight._dtype == logits._dtype
    return fits and known is not None and getattr(known.array, "requires_grad", True) is False


def _product(tracer: Tracer, logits: Traced) -> _Product | None:
    """What logits are views of, and casts of half types to float32; with x seen in the same way."""
    found = _seen_through(tracer, tracer.node(logits))
    if found is None:
        return None
    node, looks = found
    bias = None
    made = tracer.graph.node(node)
    if made["op"] == "add":
        node, bias = _bias(tracer, made["arguments"]) or (node, None)
    made = tracer.graph.node(node)
    if made["op"] != "matmul" or not tracer.heads.passes(node):
        return None
    x, weight = (tracer.value(n) for n in made["arguments"])
    if weight.ndim != 2 or x.ndim < 2 or not x._dtype == weight._dtype == tracer.value(node)._dtype:
        return None
    rows = _looked_at(x, tracer.value(node), looks)
    return None if rows is None else _Product(rows, _turned(tracer, weight), bias, node)


def _seen_through(tracer: Tracer, node: int) -> tuple[int, list[tuple[str, Any]]] | None:
    """The node that another one is made of by views and a cast, and the views in their order."""
    looks: list[tuple[str, Any]] = []
    casts = 0
    while tracer.heads.passes(node):
        if (view := tracer.heads.view(node)) is not None:
            node, *look = view
            looks.append((look[0], look[1]))
        elif tracer.graph.node(node)["op"] == "cast" and casts == 0:
            (of,) = tracer.graph.node(node)["arguments"]
            if tracer.graph.dtype(node) != "float32" or tracer.graph.dtype(of) not in HALF:
                return None
            node, casts = of, 1
        else:
            return node, looks[::-1]
    return None


def _bias(tracer: Tracer, arguments: list[int]) -> tuple[int, Traced] | None:
    """The node of a product in a sum, and the other one, if that is a number for each column."""
    for product, other in (arguments, arguments[::-1]):
        value, shape = tracer.value(other), tracer.graph.shape(product)
        is_product = tracer.graph.node(product)["op"] == "matmul" and len(shape) > 1
        if is_product and value.shape == tuple(shape[-1:]) and value._dtype == tracer.graph.dtype(product):
            return product, value
    return None


def _looked_at(x: Traced, product: Traced, looks: list[tuple[str, Any]]) -> Traced | None:
    """x by the views of its product, where these keep whole rows."""
    shape = product.shape
    for kind, argument in _joined(looks):
        if kind == "reshape" and argument and argument[-1] == shape[-1]:
            shape = (*argument[:-1], shape[-1])
            x = views.reshape(x, (*shape[:-1], x.shape[-1]))
        elif kind == "slice" and argument[-1][0] == 0 and argument[-1][1] == shape[-1] and argument[-1][2] == 1:
            x = x._tracer.view("slice", x, [*argument[:-1], (0, x.shape[-1], 1)])
            shape = (*x.shape[:-1], shape[-1])
        elif kind == "transpose" and argument[-1] == len(shape) - 1:
            x = x._tracer.view("transpose", x, argument)
            shape = (*x.shape[:-1], shape[-1])
        else:
            return None
    return x


def _joined(looks: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The views, where neighbouring transpositions are one."""
    joined: list[tuple[str, Any]] = []
    for kind, argument in looks:
        if kind == "transpose" and joined and joined[-1][0] == "transpose":
            before = joined.pop()[1]
            argument = [before[axis] for axis in argument]
        joined.append((kind, argument))
    return joined


def _turned(tracer: Tracer, weight: Traced) -> Traced:
    """(classes, k) of (k, classes): itself, where that is a transposed one."""
    view = tracer.heads.view(tracer.node(weight))
    if view is not None and view[1] == "transpose" and tuple(view[2]) == (1, 0):
        return tracer.value(view[0])
    return tracer.view("transpose", weight, (1, 0))


def _pays(product: _Product) -> bool:
    """Whether chunks save memory: the logits and their gradient against a chunk, the gradient of the weight and its
    padded copy. Logits that fit one chunk stay whole, unless their rows are unaligned, for which products are slow.
    """
    x, weight = product.x, product.weight
    if x._dtype not in FLOATS:
        return False
    classes, item, place = weight.shape[0], ITEM_BYTES[x._dtype], place_of(x._tracer.inputs)
    logits, chunk = math.prod(x.shape[:-1]) * classes * item, bytes_of_chunk(place)
    is_padded = missing_columns(place, x._dtype, classes) > 0
    if logits <= chunk and not is_padded:
        return False
    of_weight = max(item, 4) + (item if is_padded else 0)  # its gradient, and a copy
    return bool(2 * logits > min(logits, chunk) + math.prod(weight.shape) * of_weight)
