"""A call of a fused function with dask arrays: lazily, as a graph of tasks on blocks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dask.array as da
from dask.array.utils import meta_from_array
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from .._foreign.block_task import task_of
from .._foreign.calls import Operands, graph_of, lazy_spec
from .._graph.axes import Axes, axes_of
from .._graph.blocks import Cut, Part
from .._spec import is_array
from .tasks import JoinTask, dtype_of, picked

_FAN_IN = 8  # states that one task of a tree joins
Keys = dict[tuple[int, ...], Any]  # of a value's blocks, by their numbers along its grid


def call(fused: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The function's results as dask arrays; nothing is computed.

    Raises:
        TypeError: it writes to arguments, or calls what cannot be split.
        ValueError: chunks of unknown sizes, or several along an axis of which a call needs all.
    """
    operands = Operands(fused, args, kwargs, lambda leaf: isinstance(leaf, da.Array) or is_array(leaf))
    traced = operands.traced(
        [lazy_spec(operands.who, *pair) for pair in zip(operands.names, operands.arrays, strict=True)]
    )
    graph = graph_of(traced)
    axes = axes_of(graph)
    given = [operands.arrays[i.argument] if i.argument >= 0 else i.array for i in traced.inputs]
    inputs = [i for i, n in enumerate(graph["nodes"]) if n["op"] == "input"]
    lazy = [a if isinstance(a, da.Array) else _one_chunk(a) for a in given]
    _require_whole(operands.who, graph, axes, dict(zip(inputs, lazy, strict=True)))
    arrays, chunks = _aligned(axes, inputs, lazy)
    split = {label: sizes for label, sizes in chunks.items() if len(sizes) > 1}
    _require_elements(operands.who, graph, axes, dict(zip(inputs, lazy, strict=True)), split)
    results = _Tasks(fused, Cut(graph, split, axes), dict(zip(inputs, arrays, strict=True)), chunks).results()
    return traced.returned(results)


def _one_chunk(x: Any) -> da.Array:
    return da.from_array(x, chunks=-1, asarray=False)


def _without_empty(x: da.Array) -> da.Array:
    """An axis of at most one element in one chunk: chunks without elements have none to meet in other arrays."""
    return x.rechunk({k: -1 for k, sizes in enumerate(x.chunks) if len(sizes) > 1 and sum(sizes) <= 1})


def _aligned(
    axes: Axes, inputs: Sequence[int], arrays: Sequence[da.Array]
) -> tuple[list[da.Array], dict[int, tuple[int, ...]]]:
    """The arrays with the same chunks along the same label, and these."""
    arrays = [_without_empty(x) for x in arrays]
    pairs = [part for i, x in zip(inputs, arrays, strict=True) for part in (x, axes.labels[i])]
    found, unified = da.unify_chunks(*pairs)
    return list(unified), {label: tuple(map(int, sizes)) for label, sizes in found.items()}


def _require_whole(who: str, graph: Mapping[str, Any], axes: Axes, arrays: Mapping[int, da.Array]) -> None:
    """Checks the arrays as they come: of axes that are the same one, only one may have several chunks."""
    for i, x in arrays.items():
        for axis, label in enumerate(axes.labels[i]):
            if x.numblocks[axis] > 1 and (why := axes.whole.get(label)) is not None:
                name = graph["nodes"][i]["name"]
                what = f"{who}: axis {axis} of {name} is in {x.numblocks[axis]} chunks, but {why}"
                raise ValueError(f"{what}: pass {name}.rechunk({{{axis}: -1}})")


def _require_elements(
    who: str,
    graph: Mapping[str, Any],
    axes: Axes,
    arrays: Mapping[int, da.Array],
    split: Mapping[int, tuple[int, ...]],
) -> None:
    for label, sizes in split.items():
        if 0 in sizes and any(label in reduced for reduced in axes.reduced.values()):
            # Among operands that share an axis, one has chunks of its own: others are cut to fit.
            i, axis = next(
                (i, k)
                for i, x in arrays.items()
                for k, n in enumerate(x.numblocks)
                if axes.labels[i][k] == label and n > 1
            )
            name = graph["nodes"][i]["name"]
            what = (
                f"{who}: axis {axis} of {name} is in {arrays[i].numblocks[axis]} chunks, one of them without elements"
            )
            raise ValueError(f"{what}, and is reduced: pass {name}.rechunk(...)")


def _key(name: str, numbers: Sequence[int]) -> tuple[Any, ...]:
    return (name, *numbers)


class _Tasks:
    """The tasks of a call.

    Args:
        fused: the function.
        cut: its graph in parts.
        arrays: the arrays, by the graph's input nodes.
        chunks: sizes of blocks by label.
    """

    def __init__(
        self, fused: Any, cut: Cut, arrays: Mapping[int, da.Array], chunks: Mapping[int, tuple[int, ...]]
    ) -> None:
        self._fused, self._cut, self._arrays, self._chunks = fused, cut, arrays, chunks
        self._nodes = cut.graph["nodes"]
        self._layers: dict[str, dict[Any, Any]] = {}
        self._needs: dict[str, set[str]] = {}
        self._layer_of: dict[int, str] = {}  # by node, where a value's blocks are made
        self._keys: dict[int, Keys] = {}
        # Keys do not depend on lines; whatever else tells nodes apart is in the token.
        nodes = [{k: v for k, v in n.items() if k != "stage"} for n in self._nodes]
        text = json.dumps([nodes, cut.graph["outputs"], fused._options], sort_keys=True)
        self._token = tokenize(text, [(a.name, a.chunks) for a in arrays.values()])

    def results(self) -> list[da.Array]:
        for i, x in self._arrays.items():
            self._keys[i] = {cell: _key(x.name, self._places(i, cell)) for cell in self._cells(self._cut.grid(i))}
            self._layer_of[i] = x.name
        for part in self._cut.parts:
            self._add(part)
        return [self._array(number, node) for number, node in enumerate(self._cut.outputs)]

    # ---- blocks ----

    def _cells(self, grid: Sequence[int]) -> Iterator[tuple[int, ...]]:
        return itertools.product(*(range(len(self._chunks[label])) for label in grid))

    def _places(self, node: int, cell: Sequence[int]) -> tuple[int, ...]:
        """The block's number along each axis of a node."""
        at = dict(zip(self._cut.grid(node), cell, strict=True))
        return tuple(at.get(label, 0) for label in self._cut.axes.labels[node])

    def _name(self, what: str) -> str:
        """What the dashboard shows, and a number that tells calls apart."""
        return f"kfusion-{self._fused.__name__}{what}-{self._token}"

    def _new_layer(self, what: str, needs: set[str]) -> tuple[str, dict[Any, Any]]:
        name = self._name(what)
        if name in self._layers:
            name = f"{self._name(f'{what}-{len(self._layers)}')}"
        self._layers[name], self._needs[name] = {}, needs
        return name, self._layers[name]

    # ---- parts and trees ----

    def _add(self, part: Part) -> None:
        task = task_of(self._fused, self._cut.function(part, self._fused.__name__).text)
        name, layer = self._new_layer("", {self._layer_of[i] for i in part.inputs})
        cells: Keys = {}
        for cell in self._cells(part.grid):
            at = dict(zip(part.grid, cell, strict=True))
            # Any block will do of what only tells extents, along other labels.
            blocks = [self._keys[i][tuple(at.get(label, 0) for label in self._cut.grid(i))] for i in part.inputs]
            cells[cell] = _key(name, cell)
            layer[cells[cell]] = (task, *blocks)
        several = len(part.outputs) + len(part.states) > 1
        for number, node in enumerate((*part.outputs, *part.states)):
            made, keys = (self._picked(number, name, cells)) if several else (name, cells)
            if number < len(part.outputs):
                self._keys[node], self._layer_of[node] = keys, made
            else:
                self._add_tree(node, part.grid, keys, made)

    def _picked(self, number: int, source: str, cells: Keys) -> tuple[str, Keys]:
        name, layer = self._new_layer("-result", {source})
        for cell, key in cells.items():
            layer[_key(name, cell)] = (picked, key, number)
        return name, {cell: _key(name, cell) for cell in cells}

    def _add_tree(self, node: int, grid: Sequence[int], states: Keys, source: str) -> None:
        join, kept = self._cut.joins[node], self._cut.grid(node)
        name, layer = self._new_layer(f"-{join.op}", {source})
        groups: dict[tuple[int, ...], list[Any]] = {}
        for cell, key in states.items():
            groups.setdefault(tuple(cell[list(grid).index(label)] for label in kept), []).append(key)
        between, last = JoinTask(join.op, None, ""), JoinTask(join.op, join, join.dtype)
        for cell, keys in groups.items():
            level = 0
            while len(keys) > _FAN_IN:
                joined = []
                for k in range(0, len(keys), _FAN_IN):
                    key = (name, f"level{level}", *cell, k // _FAN_IN)
                    layer[key] = (between, keys[k : k + _FAN_IN])
                    joined.append(key)
                keys, level = joined, level + 1
            layer[_key(name, cell)] = (last, keys)
        self._keys[node], self._layer_of[node] = {cell: _key(name, cell) for cell in groups}, name

    # ---- results ----

    def _array(self, number: int, node: int) -> da.Array:
        n, labels = self._nodes[node], self._cut.axes.labels[node]
        if (x := self._arrays.get(node)) is not None:
            return x
        source = self._layer_of[node]
        grid = self._cut.grid(node)
        if len(grid) == len(labels) and grid == labels:
            name = source
        else:  # its keys have a number for every axis
            name, layer = self._new_layer(f"-{number}", {source})
            for cell, key in self._keys[node].items():
                layer[_key(name, self._places(node, cell))] = key
        sizes = [
            self._chunks[label] if label in self._cut.split else (extent,)
            for label, extent in zip(labels, n["shape"], strict=True)
        ]
        meta = meta_from_array(next(iter(self._arrays.values()))._meta, ndim=len(sizes), dtype=dtype_of(n["dtype"]))
        graph = HighLevelGraph.from_collections(name, {}, dependencies=list(self._arrays.values()))
        graph = HighLevelGraph({**graph.layers, **self._layers}, {**graph.dependencies, **self._needs})
        return da.Array(graph, name, chunks=tuple(sizes), meta=meta, dtype=meta.dtype)
