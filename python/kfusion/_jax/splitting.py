"""Programs of which a part is left to the array library: there XLA's own functions compute it, between custom calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax

from .. import _core
from .._graph.library_adjoints import ByIndex
from . import widths
from .nodes import Node, needed, pruned
from .program import Adjoint, Called, Program

_LIBRARY = "array_library"
_MAY_BE_LEFT = ("matmul", "conv2d", "library_call")


class Step(NamedTuple):
    """Computes `results` of `reads`, which are nodes of the whole graph: by a custom call, or by XLA's functions."""

    reads: list[int]
    results: list[int]
    program: Program | None
    run: Callable[..., Any] | None = None


class Steps(NamedTuple):
    """Steps in order; `inputs` and `outputs` are nodes."""

    steps: list[Step]
    inputs: list[int]
    outputs: list[int]


def steps(program: Program, device: dict[str, Any], options: dict[str, Any]) -> Steps | None:
    """How a program runs that has parts without kernels; None where it has none."""
    if not any(n["op"] in _MAY_BE_LEFT for n in program.graph["nodes"]):
        return None
    plan = _core.make_plan(_core.Graph.from_dict(program.graph), device, options | {"executors": "available"})
    if not any(g["executor"] == _LIBRARY for g in plan["groups"]):
        return None
    return _Splitting(plan["graph"], plan["groups"], program.called).split()


class _Splitting:
    """Groups of a plan that are neighbours in its order become one custom call."""

    def __init__(self, graph: dict[str, Any], groups: Sequence[dict[str, Any]], called: Sequence[Called]) -> None:
        self._called = called
        self._graph = graph
        self._nodes: list[Node] = graph["nodes"]
        self._groups = groups
        self._outputs = [o["node"] for o in graph["outputs"]]
        self._known = {i for i, n in enumerate(self._nodes) if n["op"] == "input"}
        self._inputs = sorted(self._known)
        self._steps: list[Step] = []

    def split(self) -> Steps:
        waiting: list[int] = []
        for group in self._groups:
            if group["executor"] != _LIBRARY:
                waiting += [s["node"] for s in group["stores"]]
                continue
            results = [s["node"] for s in group["stores"]]
            self._call([*waiting, *self._views_of(results)])
            waiting = []
            for node in results:
                self._library(node)
        self._call([*waiting, *self._outputs])
        return Steps(self._steps, self._inputs, self._outputs)

    def _views_of(self, results: Sequence[int]) -> list[int]:
        """What the library reads of these."""
        return [a for r in results for a in self._nodes[r]["arguments"]]

    def _call(self, wanted: Sequence[int]) -> None:
        """One custom call for nodes that are not known yet."""
        results = sorted(set(wanted) - self._known)
        if not results:
            return
        cut = [n | {"arguments": []} if i in self._known else n for i, n in enumerate(self._nodes)]
        reads = sorted(needed(cut, results) & self._known)
        nodes = [self._input(n, i) if i in reads else n for i, n in enumerate(cut)]
        graph, _ = pruned(nodes, self._graph["stages"], results, (), lambda i: False)
        self._steps.append(Step(reads, results, widths.narrowed(Program(graph))))
        self._known |= set(results)

    def _input(self, node: Node, number: int) -> Node:
        keys = ("dtype", "shape", "library", "device")
        given = {k: node[k] for k in keys}
        return given | {
            "op": "input",
            "arguments": [],
            "stage": None,
            "name": f"v{number}",
            "captured": False,
            "strides": [],
        }

    def _library(self, number: int) -> None:
        node = self._nodes[number]
        if node["op"] == "library_result":
            return self._library(node["arguments"][0])
        if number in self._known:
            return None
        others = [i for i, n in enumerate(self._nodes) if n["op"] == "library_result" and n["arguments"] == [number]]
        results = [number, *sorted(others, key=lambda i: int(self._nodes[i]["index"]))]
        run = functools.partial(computed, node)
        if node["op"] == "library_call":
            run = functools.partial(_library_call, node["function"], self._called[node["number"]])
        self._steps.append(Step(list(node["arguments"]), results, None, run))
        self._known |= set(results)
        return None


def run(how: Steps, arrays: Sequence[Any], call: Callable[[Program, list[Any]], list[Any]]) -> list[Any]:
    """The outputs; `call` makes a custom call."""
    values = dict(zip(how.inputs, arrays, strict=True))
    for step in how.steps:
        given = [values[r] for r in step.reads]
        made = call(step.program, given) if step.program is not None else step.run(*given)  # type: ignore[misc]
        values.update(zip(step.results, made, strict=False))
    return [values[o] for o in how.outputs]


def _library_call(name: str, function: Called, *arrays: Any) -> list[Any]:
    """What a gradient calls, or a function of the user's.

    Raises:
        NotImplementedError: it cannot be called with JAX's tracers, as functions of NumPy.
    """
    if isinstance(function, Adjoint):
        return adjoint(function, *arrays)
    try:
        return list(function(*arrays))
    except jax.errors.JAXTypeError as error:
        what = f"{name} is a function of another array library than JAX"
        raise NotImplementedError(f"kfusion: {what}: call the function outside of jax.jit, on arrays") from error


def adjoint(what: Adjoint, *arrays: Any) -> list[Any]:
    """What a gradient calls, by JAX's own functions."""
    if what.kind != "conv2d":
        return ByIndex(what.kind, what.numbers[0])(*arrays)
    x, w, g = arrays
    stride, padding, dilation = (what.numbers[i : i + 2] for i in (0, 2, 4))
    node = {
        "op": "conv2d",
        "dtype": str(g.dtype),
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": what.numbers[6],
    }
    _, pull = jax.vjp(lambda a, b: computed(node, a, b)[0], x, w)
    made = pull(g)
    return [made[i] for i in what.arguments]


def computed(node: Node, x: Any, y: Any) -> list[Any]:
    """A node by XLA's own functions, half types accumulated in float32 as ours are.

    Raises:
        NotImplementedError: there is none for it.
    """
    dtype = jax.numpy.dtype(widths.narrow(node["dtype"]))
    is_half = dtype.itemsize == 2
    exact: Any = {"precision": lax.Precision.HIGHEST, "preferred_element_type": jax.numpy.float32 if is_half else dtype}
    if node["op"] == "matmul":
        return [jax.numpy.matmul(x, y, **exact).astype(dtype)]
    if node["op"] == "conv2d":
        made = lax.conv_general_dilated(
            x,
            y,
            window_strides=node["stride"],
            padding=[(p, p) for p in node["padding"]],
            rhs_dilation=node["dilation"],
            feature_group_count=node["groups"],
            **exact,
        )
        return [made.astype(dtype)]
    raise NotImplementedError(f"kfusion: {node['op']} has no kernel here: call the function outside of jax.jit")
