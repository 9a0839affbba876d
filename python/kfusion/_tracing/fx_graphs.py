"""FX graphs of torch's operators, as torch.compile and torch.export make them, run on traced values."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._graph.source import trace_error
from . import aten, library_calls

# Operators that read memory by strides, whatever the shape of the tensor that lies there.
_BY_STRIDES = ("as_strided", "as_strided_copy", "as_strided_scatter", "resize")


def run(nodes: Iterable[Any], values: dict[Any, Any], constants: Mapping[str, Any], *, traces: bool = True) -> None:
    """Computes nodes in their order.

    Args:
        nodes: of an FX graph, but for placeholders and its output.
        values: by node, those of what they read; those of the nodes are entered.
        constants: the tensors that the graph names, by name.
        traces: whether values are traced ones; else torch itself computes.
    """
    for node in nodes:
        if node.op == "get_attr":
            values[node] = constants[node.target]
            continue
        if node.op != "call_function":
            raise NotImplementedError(f"kfusion: a node of {node.op} in a graph of operators")
        args, kwargs = given(node, values)
        if traces and reads_by_strides(node) and _is_made(node.args[0], values):
            values[node] = _read_by_strides(node, args, kwargs)
        elif traces and aten.is_operator(node.target):
            values[node] = aten.called(node.target, args, kwargs, only_first=_is_read_at_0(node))
        else:
            values[node] = node.target(*args, **kwargs)


def _is_read_at_0(node: Any) -> bool:
    return bool(node.users) and all(u.target is operator.getitem and u.args[1] == 0 for u in node.users)


def reads_by_strides(node: Any) -> bool:
    """Whether a node's operator reads the memory of its first argument by strides."""
    return aten.is_operator(node.target) and node.target._schema.name.removeprefix("aten::") in _BY_STRIDES


def is_view(node: Any) -> bool:
    """Whether a node is a view of its first argument, several views of it (split), or one of several."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return is_view(node.args[0])
    return aten.is_operator(node.target) and bool(node.target.is_view)


def base(node: Any) -> Any:
    """What a node is a view of, by way of other views: itself where it is none."""
    while is_view(node) and hasattr(node.args[0], "op"):
        node = node.args[0]
    return node


def has_own_memory(node: Any) -> bool:
    """Whether a node's tensor is all that lies in its memory, without gaps, as far as torch knew it."""
    value: Any = node.meta.get("val")
    if not is_tensor(value):
        return False
    sizes = (*value.shape, *value.stride(), value.storage_offset(), value.untyped_storage().nbytes())
    if not all(type(n) is int for n in sizes) or value.storage_offset() != 0 or 0 in value.shape:
        return False
    dense = 1
    for stride, extent in sorted((s, n) for s, n in zip(value.stride(), value.shape, strict=True) if n != 1):
        if stride != dense:
            return False
        dense *= extent
    return bool(value.untyped_storage().nbytes() == dense * value.element_size())


def _is_made(node: Any, values: Mapping[Any, Any]) -> bool:
    """Whether a node's value is traced, and no array that is read where it lies."""
    return node.op != "placeholder" and hasattr(type(values[node]), "__kfusion_traced__")


def _read_by_strides(node: Any, args: Any, kwargs: Any) -> Any:
    """A call of the library on a copy that lies as torch's tensor would: a traced value may lie otherwise.

    Raises:
        TraceError: torch's tensor is a part of what lies in its memory.
    """
    op, base = node.target, node.args[0]
    name = f"torch.{op._schema.name.removeprefix('aten::')}"
    if not has_own_memory(base):
        raise trace_error(f"{name} of a view reads memory of which no traced value is known", "index instead")
    shape, strides = tuple(base.meta["val"].shape), base.meta["val"].stride()

    def read(x: Any, *args: Any, **kwargs: Any) -> Any:
        return op(x.new_empty_strided(shape, strides).copy_(x), *args, **kwargs)

    return library_calls.torch_call(read, name, args, kwargs)


def given(node: Any, values: Mapping[Any, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A node's arguments, of the values of the nodes among them."""
    return tuple(_filled(a, values) for a in node.args), {k: _filled(a, values) for k, a in node.kwargs.items()}


def _filled(argument: Any, values: Mapping[Any, Any]) -> Any:
    """No function of `given`: one that calls itself would keep all tensors until a garbage collection."""
    if isinstance(argument, (tuple, list)):
        return (list if isinstance(argument, list) else tuple)([_filled(a, values) for a in argument])
    if isinstance(argument, dict):
        return {k: _filled(a, values) for k, a in argument.items()}
    if type(argument) is slice:
        return slice(*(_filled(a, values) for a in (argument.start, argument.stop, argument.step)))
    return values[argument] if hasattr(argument, "all_input_nodes") else argument


def constants(module: Any) -> dict[str, Any]:
    """The tensors, numbers and graphs that a graph module's graph names."""
    named = [n.target for n in module.graph.nodes if n.op == "get_attr"]
    return {name: operator.attrgetter(name)(module) for name in named}


def is_tensor(value: Any) -> bool:
    """Whether a node's example value (`node.meta["val"]`) is a tensor."""
    return isinstance(value, sys.modules["torch"].Tensor)


def symbols(placeholders: Sequence[Any]) -> dict[Any, tuple[int, int]]:
    """By the name of a symbolic size, which axis of which placeholder has it."""
    found: dict[Any, tuple[int, int]] = {}
    for i, node in enumerate(placeholders):
        value = node.meta.get("val")
        for axis, extent in enumerate(value.shape if is_tensor(value) else ()):
            if (name := symbol(extent)) is not None:
                found.setdefault(name, (i, axis))
    return found


def symbol(extent: Any) -> str | None:
    """The name of a symbolic size that is a symbol and no expression; None for any other."""
    expression = getattr(getattr(extent, "node", None), "expr", None)
    return str(expression) if getattr(expression, "is_symbol", False) else None


def known(size: Any) -> Any:
    """A size; of one that is a symbol, what it was when torch looked at it."""
    node = getattr(size, "node", None)
    return size if node is None else node.hint
