"""What gradients must be: torch's autograd on the same graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import kfusion as kf
import torch_graph
from kfusion import _core


def random_like(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).standard_normal(tuple(shape)))


X = random_like((4, 6), 0)
Y = random_like((4, 6), 1)
W = random_like((6, 3), 2)
V = random_like((6,), 3)
I = np.array([2, 0, -1, 2])  # noqa: E741


def vjp_of_graph(graph: kf.Graph, inputs: Sequence[np.ndarray], seeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Gradients of a graph's outputs by its float inputs, computed by kfusion; the seeds are the outputs' gradients."""
    plain = graph.to_dict()
    wanted = [i for i, n in enumerate(plain["nodes"]) if n["op"] == "input" and n["dtype"].startswith("float")]
    outputs = [o["node"] for o in plain["outputs"]]
    floats = [o for o in outputs if graph.dtype(o).startswith("float")]
    g = kf.Graph.from_dict(plain)
    cotangents = [g.input(f"g{i}", graph.shape(o), graph.dtype(o)) for i, o in enumerate(floats)]
    gradients, calls = g.vjp(floats, cotangents, wanted)
    assert not calls
    g.set_outputs([(str(i), n) for i, n in enumerate(gradients)])
    g.verify()
    return list(_core.run_graph(g, [*inputs, *seeds], "vjp"))


def vjp_in_two_passes(
    graph: kf.Graph, inputs: Sequence[np.ndarray], seeds: Sequence[np.ndarray], memory: int | None = None
) -> list[np.ndarray]:
    """Gradients by a forward pass, which keeps what a minimal cut says, and a backward pass of a graph of its own.
    Nothing where gradients need a function of the array library.
    """
    plain = graph.to_dict()
    nodes, count = plain["nodes"], len(plain["nodes"])
    wanted = [i for i, n in enumerate(nodes) if n["op"] == "input" and n["dtype"].startswith("float")]
    results = [o["node"] for o in plain["outputs"]]
    device = kf.device("H200").to_dict()
    found = kf.Graph.from_dict(plain).kept_for_backward(results, wanted, device, memory)
    kept = [node for node, _ in found if nodes[node]["op"] != "input"]
    forward = kf.Graph.from_dict(plain)
    forward.set_outputs([(str(i), n) for i, n in enumerate(kept)])
    values = list(_core.run_graph(forward, list(inputs), "forward")) if kept else []
    backward = kf.Graph()
    known = [backward.input(f"kept{i}", graph.shape(n), graph.dtype(n)) for i, n in enumerate(kept)]
    first = len(backward)
    moved = [n | {"arguments": [a + first for a in n["arguments"]]} for n in nodes]
    backward = kf.Graph.from_dict({**plain, "nodes": [*backward.to_dict()["nodes"], *moved], "outputs": []})
    floats = [r for r in results if graph.dtype(r).startswith("float")]
    cotangents = [backward.input(f"g{i}", graph.shape(r), graph.dtype(r)) for i, r in enumerate(floats)]
    assert len(backward) == first + count + len(cotangents)
    gradients, calls = backward.vjp([r + first for r in floats], cotangents, [w + first for w in wanted])
    if calls:
        return []
    backward.replace([n + first for n in kept], known)
    instead = {n + first: k for n, k in zip(kept, known, strict=True)}
    backward.set_outputs([(str(i), instead.get(n, n)) for i, n in enumerate(gradients)])
    backward.verify()
    return list(_core.run_graph(backward, [*values, *inputs, *seeds], "backward"))


def torch_vjp_of_graph(graph: kf.Graph, inputs: Sequence[np.ndarray], seeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Gradients by torch, node by node."""
    given = [torch.from_numpy(np.array(x)) for x in inputs]
    leaves = [x.requires_grad_() for x in given if x.is_floating_point()]
    outputs = [y for y in torch_graph.run(graph, given) if y.is_floating_point()]
    pairs = [(y, torch.from_numpy(np.array(g))) for y, g in zip(outputs, seeds, strict=True) if y.requires_grad]
    found: Sequence[Any] = [None] * len(leaves)
    if pairs:
        ys, gs = zip(*pairs, strict=True)
        found = torch.autograd.grad(ys, leaves, gs, allow_unused=True)
    return [np.zeros(x.shape) if g is None else g.numpy() for x, g in zip(leaves, found, strict=True)]


def seeds_of(graph: kf.Graph) -> list[np.ndarray]:
    """Gradients for the float outputs of a graph."""
    outputs = [o["node"] for o in graph.to_dict()["outputs"]]
    shapes = [graph.shape(o) for o in outputs if graph.dtype(o).startswith("float")]
    return [random_like(s, 100 + i) for i, s in enumerate(shapes)]


def require_close(got: Sequence[Any], want: Sequence[Any], rtol: float = 1e-9, *, finite_only: bool = False) -> None:
    """Within `rtol` of the largest element. `finite_only`: wherever what is wanted is finite; torch multiplies by 0, so
    that some of its gradients are NaN where others are infinite.
    """
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape, f"gradient {i}: shape {a.shape}, not {b.shape}"
        finite = b[np.isfinite(b)]
        scale = float(np.abs(finite).max(initial=1e-6))  # what cancels leaves something
        if finite_only:
            a, b = a[np.isfinite(b)], b[np.isfinite(b)]
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * scale, err_msg=f"gradient {i}")


def check(function: Callable[..., Any], *inputs: np.ndarray, rtol: float = 1e-9) -> None:
    """kfusion's gradients of a function of float64 arrays are torch's of its graph."""
    graph = kf.trace(function, *inputs)
    seeds = seeds_of(graph)
    require_close(vjp_of_graph(graph, inputs, seeds), torch_vjp_of_graph(graph, inputs, seeds), rtol)
