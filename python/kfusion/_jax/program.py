"""A function of arrays as data: its graph, and the graphs of its transformations."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .. import _core
from .._spec import FLOATS
from . import batching
from .nodes import Nodes, built, pruned

# Gradients for which JAX has functions, by the kinds that graphs name: splitting.py calls them.
_ADJOINTS = ("take", "take_along_axis", "conv2d")


class Adjoint(NamedTuple):
    """What a gradient calls beside kernels: `numbers` are an axis, or those of a convolution; `arguments` are those of
    it whose gradients are the results.
    """

    kind: str
    numbers: tuple[int, ...]
    arguments: tuple[int, ...]


Called = Adjoint | Callable[..., Any]  # what a library_call node numbers: of a gradient, or the user's


class Program:
    """A graph from its inputs to its outputs, in the order of its input nodes and of its outputs. Equal programs are
    equal objects to JAX. Immutable. `no_gradient` says why it has none, where that is so;
    `called` are what its library_call nodes number.
    """

    def __init__(
        self,
        graph: dict[str, Any],
        stops: Sequence[int] = (),
        no_gradient: str = "",
        called: tuple[Called, ...] = (),
    ) -> None:
        self.graph = graph
        self.stops = tuple(stops)
        self.no_gradient = no_gradient
        self.called = called
        self.text = json.dumps(graph, sort_keys=True, separators=(",", ":"))
        self._known_by = (self.text, self.stops, no_gradient, called)
        self._hash = hash(self._known_by)
        nodes = graph["nodes"]
        self.inputs = [n for n in nodes if n["op"] == "input"]
        self.outputs = [nodes[o["node"]] for o in graph["outputs"]]

    @classmethod
    def of(cls, graph: Any, no_gradient: str = "", called: tuple[Called, ...] = ()) -> Program:
        """The program of a `_core.Graph` with outputs."""
        if graph.has_own_gradients():
            no_gradient = "a function inside says what its gradient is"
        as_dict = graph.to_dict()
        outputs = [o["node"] for o in as_dict["outputs"]]
        made = pruned(as_dict["nodes"], as_dict["stages"], outputs, graph.stopped(), lambda i: _is_input(as_dict, i))
        return cls(*made, no_gradient, called)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self._known_by == other._known_by

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def name(self) -> str:
        """The names of the calls inside."""
        return "+".join(dict.fromkeys(s["name"] for s in self.graph["stages"])) or "copy"

    @property
    def output_nodes(self) -> list[int]:
        """The numbers of the outputs' nodes."""
        return [o["node"] for o in self.graph["outputs"]]

    def key(self, options: str) -> int:
        """A number of 64 bits that no other program has, as far as SHA-256 tells."""
        digest = hashlib.sha256(f"{options}\n{self.text}".encode()).digest()
        return int.from_bytes(digest[:8], "little", signed=True)

    def is_float(self, output: int) -> bool:
        """Whether gradients may pass through an output."""
        return self.outputs[output]["dtype"] in FLOATS

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - programs are values
    def batched(self, flags: tuple[bool, ...], size: int) -> tuple[Program, tuple[bool, ...]]:
        """The program of inputs with a leading axis of that size, where `flags` say so, and which outputs have it."""
        graph, stops, has_axis = batching.batched(self.graph, self.stops, flags, size)
        return Program(graph, stops, self.no_gradient, self.called), has_axis

    @functools.lru_cache(maxsize=1024)  # noqa: B019
    def gradient(self, results: tuple[int, ...], wrt: tuple[int, ...]) -> Program:
        """From the inputs and a cotangent for each of results to the gradients of the inputs `wrt`.

        Raises:
            TypeError: an op on the way has no adjoint.
        """
        if self.no_gradient:
            raise TypeError(f"kfusion: {self.no_gradient}, so that there is none here: differentiate it outside")
        graph = built(self.graph, self.stops)
        inputs = [i for i, n in enumerate(self.graph["nodes"]) if n["op"] == "input"]
        outputs = [self.output_nodes[r] for r in results]
        seeds = [_cotangent(graph, self.graph["nodes"][n], f"cotangent {i}") for i, n in enumerate(outputs)]
        made, calls = graph.vjp(outputs, seeds, [inputs[w] for w in wrt], len(self.called))
        new = tuple(Adjoint(kind, tuple(numbers), tuple(arguments)) for kind, numbers, _, arguments in calls)
        if any(a.kind not in _ADJOINTS for a in new):
            raise TypeError("kfusion: a function of the array library has no gradients inside of jax.jit")
        graph.set_outputs([(str(i), n) for i, n in enumerate(made)])
        return Program.of(graph, called=self.called + new)

    @functools.lru_cache(maxsize=1024)  # noqa: B019
    def tangent(self, wrt: tuple[int, ...]) -> Program:
        """From the inputs and a tangent for each of those `wrt` to the tangents of the float outputs: the gradient, by
        its cotangents, of what the gradients give for the tangents.
        """
        results = tuple(i for i in range(len(self.outputs)) if self.is_float(i))
        pulled = self.gradient(results, wrt)
        inputs, seeds = len(self.inputs), len(results)
        twice = pulled.gradient(tuple(range(len(wrt))), tuple(range(inputs, inputs + seeds)))
        return twice.with_zeros(range(inputs, inputs + seeds))

    def with_zeros(self, inputs: range) -> Program:
        """The program with 0 for some of its inputs, on which its outputs do not depend."""
        made = Nodes(self.graph["stages"])
        count = -1
        for node in self.graph["nodes"]:
            count += node["op"] == "input"
            if node["op"] != "input" or count not in inputs:
                made.made.append(made.copy(node))
                continue
            made.made.append(_zeros(made, node, self.graph))
        made.stops = {made.made[s] for s in self.stops}
        return Program(*made.closed([made.made[o] for o in self.output_nodes]), self.no_gradient, self.called)

    @functools.lru_cache(maxsize=1024)  # noqa: B019
    def selected(self, outputs: tuple[int, ...]) -> Program:
        """The program of some of its outputs; inputs stay."""
        nodes = [self.output_nodes[o] for o in outputs]
        g = self.graph
        return Program(
            *pruned(g["nodes"], g["stages"], nodes, self.stops, lambda i: _is_input(g, i)),
            self.no_gradient,
            self.called,
        )

    @functools.lru_cache(maxsize=1024)  # noqa: B019
    def converted(self, dtypes: tuple[str, ...]) -> Program:
        """The program with its outputs cast to these dtypes."""
        made = Nodes(self.graph["stages"])
        for node in self.graph["nodes"]:
            made.made.append(made.copy(node))
        made.stops = {made.made[s] for s in self.stops}
        outputs = []
        for number, dtype in zip(self.output_nodes, dtypes, strict=True):
            node, last = self.graph["nodes"][number], made.made[number]
            stage = _some_stage(node, self.graph)
            if node["dtype"] != dtype:
                last = made.add("cast", [last], node["shape"], node | {"stage": stage}, dtype=dtype, rounds=True)
            outputs.append(last)
        return Program(*made.closed(outputs), self.no_gradient, self.called)

    def taking(self, dtypes: Sequence[str]) -> Program:
        """The program of inputs of these dtypes, which are cast to those it has."""
        made = Nodes(self.graph["stages"])
        given = iter(dtypes)
        for node in self.graph["nodes"]:
            dtype = next(given) if node["op"] == "input" else node["dtype"]
            if dtype == node["dtype"]:
                made.made.append(made.copy(node))
                continue
            narrow = made.copy(node | {"dtype": dtype, "strides": []})
            like = node | {"stage": _some_stage(node, self.graph)}
            made.made.append(made.add("cast", [narrow], node["shape"], like, rounds=True))
        made.stops = {made.made[s] for s in self.stops}
        closed = made.closed([made.made[o] for o in self.output_nodes])
        return Program(*closed, self.no_gradient, self.called)

    def in_c_order(self) -> Program:
        """The program whose outputs are no views: products, joins and maps of them may lie in any order."""
        nodes = self.graph["nodes"]

        def is_view(number: int) -> bool:
            return nodes[number]["op"] in ("transpose", "reshape", "slice")

        if not any(map(is_view, self.output_nodes)):
            return self
        made = Nodes(self.graph["stages"])
        for node in nodes:
            made.made.append(made.copy(node))
        made.stops = {made.made[s] for s in self.stops}
        outputs = []
        for o in self.output_nodes:
            op, taken = ("logical_and", 2) if nodes[o]["dtype"] == "bool" else ("positive", 1)
            given = [made.made[o]] * taken
            outputs.append(made.add(op, given, nodes[o]["shape"], nodes[o]) if is_view(o) else given[0])
        return Program(*made.closed(outputs), self.no_gradient, self.called)

    def on(self, place: str) -> Program:
        """The program of arrays at another place."""
        if place == "cpu":
            return self
        nodes: list[dict[str, Any]] = []
        for node in self.graph["nodes"]:
            is_there = node["op"] == "input" or any(nodes[a]["device"] == place for a in node["arguments"])
            nodes.append(node | {"device": place} if is_there else node)
        return Program(self.graph | {"nodes": nodes}, self.stops, self.no_gradient, self.called)


def _is_input(graph: dict[str, Any], i: int) -> bool:
    return bool(graph["nodes"][i]["op"] == "input")


def _cotangent(graph: Any, node: dict[str, Any], name: str) -> int:
    made: int = graph.input(name, node["shape"], node["dtype"], node["library"], node["device"])
    return made


def _some_stage(node: dict[str, Any], graph: dict[str, Any]) -> int:
    """A source has none: then the first one there is."""
    if node["stage"] is None and not graph["stages"]:
        graph["stages"].append({"name": "cast", "source": ""})
    return 0 if node["stage"] is None else int(node["stage"])


def _zeros(made: Nodes, node: dict[str, Any], graph: dict[str, Any]) -> int:
    constant = {"value": 0.0, "weak": False, "parameter": -1, "wide": False, "device": "cpu", "library": "numpy"}
    zero = made.add("constant", [], [], node | {"stage": None}, **constant)
    like = node | {"stage": _some_stage(node, graph), "device": "cpu"}
    return made.broadcast(zero, node["shape"], like)


def load(text: str) -> tuple[Any, dict[str, Any]]:
    """The graph and the options of a custom call's text."""
    stored = json.loads(text)
    return _core.Graph.from_dict(stored["graph"]), stored["options"]
