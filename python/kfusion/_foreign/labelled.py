"""A call with arrays that have labels (xarray, pandas, polars): of the arrays without them, and the results get theirs.

Which axis of a result is which axis of an argument follows from the traced graph: its labels are those of that axis.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from .._graph.axes import axes_of
from .._graph.structure import FOREIGN, Slot, foreign_library, may_hold_results, walk
from .._spec import dtype_name, is_array
from .calls import Operands, graph_of, lazy_spec

_MODULES = {"xarray": "xarrays", "pandas": "tables", "polars": "tables"}


def _is_labelled(value: Any) -> bool:
    return foreign_library(type(value)) in _MODULES


def _is_operand(value: Any) -> bool:
    return foreign_library(type(value)) in FOREIGN or is_array(value)


def call(fused: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The function's results, with the labels of its arguments.

    Raises:
        TypeError: an argument is no array of numbers; the message says what to pass.
        ValueError: labels differ, or an axis of a result is none of the arguments'.
    """
    operands = Operands(fused, args, kwargs, _is_operand)
    module = _module_of(next(x for x in operands.arrays if _is_labelled(x)))
    taken = {
        k: module.Labelled(operands.who, name, x)
        for k, (name, x) in enumerate(zip(operands.names, operands.arrays, strict=True))
        if _is_labelled(x)
    }
    for k, x in taken.items():  # others are no inputs of a graph, and nothing would compare their labels
        dtype_name(x.array.dtype, f"{operands.who}: {operands.names[k]}'s dtype")
    arrays = [taken[k].array if k in taken else x for k, x in enumerate(operands.arrays)]
    labels = _of_results(operands, arrays, taken)
    found = iter(labels)

    def labelled(_: str, leaf: Any) -> Any:
        of_axes = next(found)
        return leaf if of_axes is None else module.labelled(operands.who, leaf, of_axes, list(taken.values()))

    return walk(operands.called(arrays), labelled, enters=may_hold_results)


def _module_of(x: Any) -> Any:
    return importlib.import_module(f"{__package__}.{_MODULES[str(foreign_library(type(x)))]}")


def unlabelled(who: str, name: str, x: Any) -> Any:
    """The array in a labelled one; of a lazy one its kind."""
    return _in_memory(who, name, _module_of(x).Labelled(who, name, x).array)


def _of_results(operands: Operands, arrays: Sequence[Any], taken: Mapping[int, Any]) -> list[Any]:
    """For each leaf of the result, in order, the labels of its axes; None for one that is no array."""
    traced = operands.traced([_in_memory(operands.who, *pair) for pair in zip(operands.names, arrays, strict=True)])
    graph = graph_of(traced)
    axes = axes_of(graph)
    known: dict[int, tuple[str, Any]] = {}
    named: dict[Any, tuple[str, int]] = {}
    nodes = (i for i, n in enumerate(graph["nodes"]) if n["op"] == "input")
    for given, node in zip(traced.inputs, nodes, strict=True):
        if given.argument not in taken:
            continue
        of_axes = taken[given.argument].axes
        for label, axis in zip(axes.labels[node], of_axes, strict=True):
            if (same := axis.name) is not None and named.setdefault(same, (given.name, label))[1] != label:
                raise ValueError(
                    f"{operands.who}: {same!r} of {given.name} meets another axis than that of {named[same][0]}, or is "
                    "broadcast: rename it, or select one element of it"
                )
            name, other = known.setdefault(label, (given.name, axis))
            if (why := axis.differs_from(other)) is not None:
                raise ValueError(f"{operands.who}: {given.name} and {name} differ in {why}")
            if other.index is None and axis.index is not None:  # further ones must be as this
                known[label] = given.name, axis
    outputs = [o["node"] for o in graph["outputs"]]
    found: list[Any] = []

    def visit(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, Slot):
            found.append(None)
            return leaf
        labels = axes.labels[outputs[leaf.index]]
        for k, label in enumerate(labels):
            if label not in known:
                for pair in zip(operands.names, arrays, strict=True):  # the likely reason
                    dtype_name(pair[1].dtype, f"{operands.who}: {pair[0]}'s dtype")
                where = f"axis {k} of the result{' ' + path if path else ''}"
                first = operands.names[next(iter(taken))]
                how = next(iter(taken.values())).how
                raise ValueError(f"{operands.who}: {where} is no axis of a labelled argument: pass {first}.{how}")
        found.append([known[label][1] for label in labels])
        return leaf

    walk(traced.results, visit, enters=lambda value: may_hold_results(value) and not isinstance(value, Slot))
    return found


def _in_memory(who: str, name: str, x: Any) -> Any:
    """The array, or for a lazy one what stands for it in a trace."""
    return lazy_spec(who, name, x) if foreign_library(type(x)) == "dask" else x
