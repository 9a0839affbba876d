"""Runs a traced function with another library, one call after the other, as its users would write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .._graph.values import Alternative, Call, Node
from .._tracing.trace import Trace
from .libraries import Library, takes_numbers

Program = Callable[..., list[Any]]


class _Step(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[int, ...]
    result: int
    finished: tuple[int, ...]  # values that no later step reads


class _Planned(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[int, ...]
    result: int


def program(
    trace: Trace,
    library: Library,
    nodes: Sequence[Mapping[str, Any]] | None = None,
    alternatives: Sequence[Alternative] = (),
) -> Program:
    """A function of the trace's input arrays, as `library` has them, that returns the graph's outputs.

    A composite that the library has as one function (`Library.natives`) is one call, all else is one call for each
    node of the graph as it was written. Values are let go after their last use. `nodes` may stand in for the graph's,
    with other extents; `alternatives` are functions of the library that the user called.

    Raises:
        TypeError: the library lacks an operation.
    """
    graph = trace.graph.to_dict()
    nodes = _with_functions(trace, graph["nodes"] if nodes is None else nodes)
    outputs = tuple(o["node"] for o in graph["outputs"])
    values: list[Any] = [None] * len(nodes)
    natives = _natives(trace, library, nodes) | {f.result: _of_alternative(f) for f in alternatives}
    planned = _planned(natives, library, nodes, outputs, values)
    steps = _with_lifetimes(planned, {*outputs})
    inputs = tuple(i for i, node in enumerate(nodes) if node["op"] == "input")

    def run(*arrays: Any) -> list[Any]:
        v = list(values)
        for slot, array in zip(inputs, arrays, strict=True):
            v[slot] = array
        for function, arguments, result, finished in steps:
            v[result] = function(*[v[a] for a in arguments])
            for slot in finished:
                v[slot] = None
        return [v[o] for o in outputs]

    # Code of its own: torch.compile keeps what it made by code object, and of one object only a few versions.
    run.__code__ = run.__code__.replace(co_name=trace.name)
    return run


def _with_functions(trace: Trace, nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The nodes; those of library calls with their function, and a list of its own for each call's results."""
    found: list[Mapping[str, Any]] = []
    for node in nodes:
        if node["op"] == "library_call":
            node = {**node, "run": trace.library_calls[node["number"]], "computed": []}
        elif node["op"] == "library_result":
            node = {**node, "computed": found[node["arguments"][0]]["computed"]}
        found.append(node)
    return found


def _planned(
    natives: Mapping[int, _Planned], library: Library, nodes: Any, outputs: Sequence[int], values: list[Any]
) -> list[_Planned]:
    """What to compute, arguments first; from the outputs back, so that what a native replaces is not looked at."""
    planned: dict[int, _Planned] = {}
    done = {i for i, node in enumerate(nodes) if node["op"] == "input"}
    stack = list(outputs)[::-1]
    while stack:
        i = stack[-1]
        if i in done:
            stack.pop()
            continue
        if i not in planned:
            planned[i] = natives.get(i) or _operation(library, nodes, i, values)
        waiting = [a for a in planned[i].arguments if a not in done and a < len(nodes)]
        stack += waiting[::-1]
        if not waiting:
            done.add(stack.pop())
            planned[i] = planned.pop(i)  # in order of completion
    return [p for p in planned.values() if p.function is not None]


def _natives(trace: Trace, library: Library, nodes: Any) -> dict[int, _Planned]:
    """Planned calls by the node that they compute; for one result, the outermost call."""
    found = {call.result: _native(call, library, nodes) for call in trace.calls if call.name in library.natives}
    return {result: native for result, native in found.items() if native}


def _of_alternative(alternative: Alternative) -> _Planned:
    axes = sorted(range(len(alternative.order)), key=alternative.order.__getitem__)
    run = (
        (lambda *given: alternative.run(*given)[0].permute(axes))
        if axes
        else (lambda *given: alternative.run(*given)[0])
    )
    return _Planned(run, alternative.arguments, alternative.result)


def _native(call: Call, library: Library, nodes: Any) -> _Planned | None:
    arrays = {name: a.id for name, a in call.arguments.items() if isinstance(a, Node)}
    run = library.natives[call.name](call.arguments | {name: nodes[i] for name, i in arrays.items()})
    if run is None:
        return None
    names = tuple(arrays)
    return _Planned(lambda *given: run(**dict(zip(names, given, strict=True))), tuple(arrays.values()), call.result)


def _operation(library: Library, nodes: Any, i: int, values: list[Any]) -> _Planned:
    """One node; constants among its arguments become values at once, as numbers where the library takes them."""
    node = nodes[i]
    if node["op"] in ("constant", "iota"):
        values[i] = getattr(library, node["op"])(node)
        return _Planned(None, (), i)  # type: ignore[arg-type]
    arguments = list(node["arguments"])
    for k, a in enumerate(arguments):
        if nodes[a]["op"] == "constant" and not takes_numbers(library, node["op"]):
            arguments[k] = len(values)
            values.append(library.number(library.constant(nodes[a]), nodes[a]["dtype"]))
    return _Planned(library.step(node), tuple(arguments), i)


def _with_lifetimes(planned: list[_Planned], kept: set[int]) -> list[_Step]:
    last = {a: k for k, p in enumerate(planned) for a in p.arguments}
    made = {p.result for p in planned}
    return [
        _Step(*p, tuple(a for a in dict.fromkeys(p.arguments) if last[a] == k and a in made - kept))
        for k, p in enumerate(planned)
    ]
