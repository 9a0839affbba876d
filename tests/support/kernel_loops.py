"""Runs the loops of kernels (`_core.testing.lower`) in NumPy, element by element, and checks every rule they state."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import reference_ops
from kinds import np_dtype


@dataclass
class Memory:
    """Where an array lies: `elements[start]` is its first element."""

    elements: np.ndarray
    start: int = 0

    def at(self, extents: list[int], strides: list[int], offset: int = 0) -> np.ndarray:
        """Positions of all points of the loops."""
        positions = np.full(extents, self.start + offset)
        for axis, (extent, stride) in enumerate(zip(extents, strides, strict=True)):
            positions += (np.arange(extent) * stride).reshape([-1] + [1] * (len(extents) - axis - 1))
        assert positions.size == 0 or 0 <= positions.min() <= positions.max() < len(self.elements)
        return positions


def memory_of(array: np.ndarray) -> Memory:
    """The memory of a view whose base owns its elements in C order."""
    owner = array if array.base is None else array.base
    assert owner.flags.c_contiguous
    assert owner.dtype == array.dtype
    first = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    return Memory(owner.reshape(-1), first // array.itemsize)


def run(
    lowered: dict[str, Any],
    inputs: list[np.ndarray],
    output_strides: list[list[int]] | None = None,
    compute: Callable[[dict[str, Any], dict[int, Memory]], None] | None = None,
) -> list[Any]:
    """The outputs that the kernels make of `inputs`, which lie as the graph's inputs say; `compute` runs one kernel."""
    nodes, outputs = lowered["graph"]["nodes"], lowered["outputs"]
    given = output_strides or [[] for _ in outputs]
    strided = {o["base"] for o, strides in zip(outputs, given, strict=True) if strides}
    sources = [i for i, n in enumerate(nodes) if n["op"] == "input"]
    memory = {i: memory_of(x) for i, x in zip(sources, inputs, strict=True)}
    for kernel in lowered["kernels"]:
        for store in kernel.get("stores", ()):
            node = store["to"]["node"]
            if node in memory:  # a join, of which another part is there
                continue
            room = math.prod(lowered["computed"][node]) * (99 if node in strided else 1)
            dtype = np_dtype(nodes[node]["dtype"])
            poison = np.full(room * dtype.itemsize, 0xAB, np.uint8).view(dtype)  # what no kernel writes is seen
            memory[node] = Memory(poison, room // 2 if node in strided else 0)
        (compute or run_group)(kernel, memory)
    return [_output(o, nodes, memory, strides) for o, strides in zip(outputs, given, strict=True)]


def _output(o: dict[str, Any], nodes: list[Any], memory: dict[int, Memory], strides: list[int]) -> np.ndarray:
    nothing = Memory(np.zeros(0, np_dtype(nodes[o["base"]]["dtype"])))
    m = memory.get(o["base"], nothing)
    return m.elements[m.at(o["shape"], strides) if strides else m.at(o["shape"], o["strides"], o["offset"])]


def compute_dtype(name: str) -> np.dtype:
    return np.dtype(np.float32) if name in ("float16", "bfloat16") else np_dtype(name)


def run_group(k: dict[str, Any], memory: dict[int, Memory]) -> None:
    (run_contraction if "products" in k else run_kernel)(k, memory)


def run_contraction(k: dict[str, Any], memory: dict[int, Memory]) -> None:
    """A group around products: these, and then its epilogue."""
    batches, rows, cols, depth = k["axes"]
    assert (list(k["kept"]), list(k["reduced"])) in (
        ([batches, rows, cols], []),
        ([batches, rows], [cols]),
        ([batches, cols], [rows]),
    )
    assert k["paired_sweeps"] == 1, "elements are there once"
    products = {}
    for p in k["products"]:
        left = _factor(p["left"], [batches, rows, depth], memory)
        right = _factor(p["right"], [batches, cols, depth], memory)
        product = np.ascontiguousarray(left @ right.swapaxes(-1, -2))
        products[p["node"]] = Memory(product.astype(np_dtype(p["dtype"])).reshape(-1))
    run_kernel(k, memory, products)


def _factor(f: dict[str, Any], extents: list[int], memory: dict[int, Memory]) -> np.ndarray:
    m = memory[f["node"]]
    return m.elements[m.at(extents, [f["batch"], f["outer"], f["depth"]], f["offset"])].astype(np.float64)


def run_kernel(k: dict[str, Any], memory: dict[int, Memory], products: dict[int, Memory] | None = None) -> None:
    """`products`: what an epilogue is on."""
    extents = [*k["kept"], *k["reduced"]]
    check_rules(k, merged=products is None)
    loaded = memory | (products or {})
    values: list[np.ndarray] = []
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for s in k["steps"]:
            value = np.asarray(_value(k, s, [values[a] for a in s["arguments"]], loaded))
            values.append(value.astype(compute_dtype(s["dtype"])))
            if s["row"]:
                assert values[-1].ndim == 0 or all(e == 1 for e in values[-1].shape[len(k["kept"]) :])
    for store in k["stores"]:
        to = store["to"]
        strides = [*to["kept"], *to["reduced"]]
        if store["parts"]:
            _store_sums(k, store, np.broadcast_to(values[store["step"]], extents), memory[to["node"]])
            continue
        looped = [e if s else 1 for e, s in zip(extents, strides, strict=True)]
        where = memory[to["node"]].at(looped, strides, to["offset"])
        assert len(np.unique(where)) == where.size, "an element is stored twice"
        memory[to["node"]].elements[where] = np.broadcast_to(values[store["step"]], looped)


def _store_sums(k: dict[str, Any], store: dict[str, Any], values: np.ndarray, memory: Memory) -> None:
    to, parts = store["to"], store["parts"]
    assert not any(to["kept"])
    rows, cols = math.prod(k["kept"]), math.prod(k["reduced"])
    for p in range(parts):
        part = values.reshape([rows, *k["reduced"]])[p * rows // parts : (p + 1) * rows // parts]
        where = memory.at(k["reduced"], to["reduced"], to["offset"] + p * cols)
        memory.elements[where] = part.astype(np.float64).sum(0)


def _value(k: dict[str, Any], s: dict[str, Any], arguments: list[np.ndarray], memory: dict[int, Memory]) -> Any:
    extents, kept = [*k["kept"], *k["reduced"]], len(k["kept"])
    if s["kind"] == "constant":
        return k["constants"][s["index"]]["value"]
    if s["kind"] in ("load", "iota"):
        o = k[s["kind"] + "s"][s["index"]]
        strides = [*o["kept"], *o["reduced"]]
        looped = extents[:kept] + [e if stride else 1 for e, stride in zip(extents[kept:], strides[kept:], strict=True)]
        if s["kind"] == "iota":
            return Memory(np.zeros(2**20)).at(looped, strides, o["offset"])
        return memory[o["node"]].elements[memory[o["node"]].at(looped, strides, o["offset"])]
    if s["kind"] == "take":
        return _taken(k, k["tables"][s["index"]], arguments[0], memory)
    if s["kind"] == "cast":
        return arguments[0].astype(np_dtype(s["dtype"]))
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arguments]
    if s["kind"] == "reduce":
        full = np.broadcast_to(wide[0], extents)
        return reference_ops.REDUCTIONS[s["op"]](full, axis=tuple(range(kept, len(extents))), keepdims=True)
    return reference_ops.MAPS[s["op"]](*wide)


def _taken(k: dict[str, Any], t: dict[str, Any], index: np.ndarray, memory: dict[int, Memory]) -> Any:
    extents, strides = [*k["kept"], *k["reduced"]], [*t["kept"], *t["reduced"]]
    varies = [stride != 0 for stride in strides]
    looped = [e if v or axis < len(k["kept"]) else 1 for axis, (e, v) in enumerate(zip(extents, varies, strict=True))]
    low = 0 if t["nonnegative"] else -t["positions"]
    assert ((low <= index) & (index < t["positions"])).all()
    m = memory[t["node"]]
    first = Memory(m.elements, m.start).at(looped, strides, t["offset"])
    positions = first + np.where(index < 0, index + t["positions"], index) * t["step"]
    assert positions.size == 0 or 0 <= positions.min() <= positions.max() < len(m.elements)
    return m.elements[positions]


def check_rules(k: dict[str, Any], merged: bool = True) -> None:
    """What kernel.hpp promises to those who run a kernel; unless `merged`, its axes are those of a product."""
    steps = k["steps"]
    seconds = {second for _, _, second in k["pairs"]}
    assert k["name"].isidentifier()
    assert not merged or all(e > 1 for e in [*k["kept"], *k["reduced"]])
    assert (k["kind"] == "pointwise") == (not k["reduced"])
    assert k["kind"] != "full_reduction" or (not k["kept"] and k["sweeps"] == 1)
    for i, s in enumerate(steps):
        used = [steps[a] for a in s["arguments"]]
        assert all(a < i for a in s["arguments"])
        assert all(s["sweep"] >= a["sweep"] + (a["kind"] == "reduce") for a in used)
        assert s["paired_sweep"] <= s["sweep"]
        if i not in seconds:  # whose argument is made of the first of its pair
            assert all(s["paired_sweep"] >= a["paired_sweep"] + (a["kind"] == "reduce") for a in used)
        assert s["sweep"] <= k["sweeps"] if s["row"] and s["kind"] != "reduce" else s["sweep"] < k["sweeps"]
        if not k["reduced"]:
            assert s["row"] == (s["kind"] == "constant")
            assert s["kind"] != "reduce"
        elif s["kind"] in ("load", "iota"):
            assert s["row"] == (not any(k[s["kind"] + "s"][s["index"]]["reduced"]))
        elif s["kind"] == "take":
            assert s["row"] == (used[0]["row"] and not any(k["tables"][s["index"]]["reduced"]))
        elif used:
            assert s["row"] == (s["kind"] == "reduce" or all(a["row"] for a in used))
    for pair, first, second in k["pairs"]:
        second_ops = {"centred": ("sum", "mean"), "shifted": ("sum",), "found": ("min",)}
        first_ops = {"centred": ("mean",), "shifted": ("max",), "found": ("max", "min")}
        assert steps[second]["op"] in second_ops[pair]
        assert steps[first]["op"] in first_ops[pair]
        assert not merged or pair != "found", "loops search in sweeps of their own"
        assert steps[second]["sweep"] == steps[first]["sweep"] + 1
        assert steps[second]["paired_sweep"] == steps[first]["paired_sweep"]
    operands = [*k["loads"], *k["iotas"], *k["tables"], *(store["to"] for store in k["stores"])]
    if not merged:
        return
    for axes in ("kept", "reduced"):  # all neighbours that can be merged are
        for outer, inner in zip(range(len(k[axes])), range(1, len(k[axes])), strict=False):
            assert any(o[axes][outer] != o[axes][inner] * k[axes][inner] for o in operands)
