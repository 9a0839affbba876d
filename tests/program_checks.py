"""What must hold for the plans of any program, and for its results, on the CPU, on a GPU, and as generated text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

import kfusion as kf
from kfusion import _core
from programs import Program, Value

H200 = kf.device("H200").to_dict()
COMPUTES = {"map", "reduce", "cast", "contraction", "gather"}
KIND = {op["name"]: op["kind"] for op in _core.op_table()}


def total(cost: dict[str, Any]) -> int:
    return int(cost["compulsory"]["read"] + cost["compulsory"]["written"])


def check_groups(graph: dict[str, Any], groups: Sequence[dict[str, Any]], *, once: bool = True) -> None:
    """Each computing node in one group (once), each value stored once and before it is loaded, every result stored."""
    nodes = graph["nodes"]
    placed = Counter(n for g in groups for n in g["nodes"])
    if once:
        assert max(placed.values(), default=1) == 1, "a node is computed twice"
    computing = {i for i, n in enumerate(nodes) if KIND[n["op"]] in COMPUTES}
    assert computing <= set(placed), f"nodes {sorted(computing - set(placed))} are in no kernel"
    assert all(KIND[nodes[n]["op"]] == "view" for n in set(placed) - computing)  # reshapes that copy
    known = {i for i, n in enumerate(nodes) if n["op"] == "input"}
    stored: set[int] = set()
    for k, g in enumerate(groups):
        loads, stores = {load["node"] for load in g["loads"]}, {store["node"] for store in g["stores"]}
        assert loads <= known, f"kernel {k} loads {sorted(loads - known)} before they are stored"
        assert not stores & stored, "stored by two kernels"
        assert stores <= set(g["nodes"]), "stored where it is not computed"
        known |= stores
        stored |= stores
    for o in graph["outputs"]:
        assert _is_there(nodes, o["node"], known), f"no kernel stores result {o['name']!r}"


def _is_there(nodes: list[dict[str, Any]], n: int, known: set[int]) -> bool:
    """Stored or given, or a view of what is."""
    while n not in known and KIND[nodes[n]["op"]] == "view":
        (n,) = nodes[n]["arguments"]
    return n in known or nodes[n]["op"] in ("constant", "iota")


def check_plan(graph: _core.Graph, device: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    plan = _core.make_plan(graph, device, options)
    check_groups(plan["graph"], plan["groups"])
    check_groups(plan["unfused_graph"], plan["unfused_groups"], once=False)
    fused, unfused = plan["fused"], plan["unfused"]
    assert total(fused) <= total(unfused), f"fused moves {total(fused)} bytes, unfused {total(unfused)}"
    assert fused["launches"] <= unfused["launches"], f"fused {fused['launches']} launches, unfused {unfused['launches']}"
    return plan


def check_round_trip(plan: dict[str, Any]) -> None:
    again = kf.Plan.from_json(json.dumps({**_plain(plan), "function": "f"}))
    assert kf.Plan.from_json(again.to_json()) == again


def _plain(plan: dict[str, Any]) -> dict[str, Any]:
    return plan


def check_results(values: Sequence[Value], results: Sequence[Any], what: str) -> None:
    assert len(results) == len(values), f"{what}: {len(results)} results"
    for k, (v, got) in enumerate(zip(values, results, strict=True)):
        try:
            v.check(got)
        except AssertionError as e:
            raise AssertionError(f"{what}: result {k}: {e}") from None


def check_same_bits(values: Sequence[Value], fused: Sequence[Any], unfused: Sequence[Any]) -> None:
    for k, (v, a, b) in enumerate(zip(values, fused, unfused, strict=True)):
        a, b = np.asarray(a), np.asarray(b)
        if v.same_bits and a.tobytes() != b.tobytes():
            wrong = a != b
            where = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.any() else "only signs of zeros"
            raise AssertionError(
                f"result {k}: {wrong.sum()} of {a.size} elements differ fused and unfused, at {where}: "
                f"{a[where] if wrong.any() else ''!r} and {b[where] if wrong.any() else ''!r}"
            )


def poison(v: Value) -> np.ndarray:
    """Memory for a result that holds nothing like it."""
    from conftest import np_dtype

    out = np.empty(v.shape, np_dtype(v.dtype))
    out.reshape(-1).view(np.uint8)[...] = 0xAB if v.dtype != "bool" else 1
    if v.dtype == "bool" and v.array.size:
        out[...] = ~v.array
    return out


class Cpu:
    def run(self, function: Any, program: Program, values: Sequence[Value], *, into: bool) -> list[np.ndarray]:
        if into:
            outs = tuple(poison(v) for v in values)
            function(*program.inputs, out=outs)
            return list(outs)
        return [np.array(r) for r in function(*program.inputs)]


def check_program(program: Program, backend: Cpu, *, thorough: bool = False) -> None:
    values = program.values()
    values = [values[o] for o in program.outputs]
    fused = kf.fuse(program.function())
    graph = fused._planned(program.inputs, {}).graph
    plan = check_plan(graph, H200, {})
    check_plan(graph, H200, {"only_executable": True})
    if thorough:
        check_round_trip(plan)
    into, unfused = (backend.run(f, program, values, into=True) for f in (fused, fused.unfused))
    check_results(values, into, "fused, out=")
    check_results(values, unfused, "unfused, out=")
    check_same_bits(values, into, unfused)
    fresh = backend.run(fused, program, values, into=False)
    check_results(values, fresh, "fused")
    check_same_bits(values, fresh, unfused)
