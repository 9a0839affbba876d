"""CUDA graphs for `mode="reduce-overhead"`: torch's trees of graphs record the passes of a compiled function and replay
them. They own the memory of results, which the next call of the function writes over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _core
from .._tracing import fx_graphs
from .._tracing.aten import RANDOM

Run = Callable[[list[Any]], Any]


class Replays:
    """What both passes of one of Dynamo's graphs share. `inputs`: how many that graph has."""

    def __init__(self, inputs: int) -> None:
        self._inputs = inputs
        self._device: int | None = None  # of the forward pass, once it is recorded

    def forward(self, run: Run, module: Any, arguments: Sequence[Any], *, is_inference: bool) -> Run:
        """A forward pass that is recorded at its third call, where that is possible: else as it is."""
        device = recordable(module)
        if device is None:
            return run
        self._device = device
        fixed = _fixed(len(arguments) - self._inputs)
        return _recorded(run, module, fixed, device, is_backward=False, is_inference=is_inference)

    def backward(self, run: Run, module: Any, arguments: Sequence[Any]) -> Run:
        """Runs the backward pass. One that is not recorded behind a forward pass that is says so to the trees."""
        if self._device is None:
            return run
        run = _announced(run, self._device)
        device = recordable(module)
        if device is None:
            return run
        saved = sum("tangents" not in n.name for n in module.graph.nodes if n.op == "placeholder")
        return _recorded(run, module, list(range(saved)), device, is_backward=True, is_inference=False)


def recordable(module: Any) -> int | None:
    """The number of the CUDA device on which all tensors of a graph lie; None where it cannot be recorded: tensors are
    elsewhere, random numbers are drawn, which the host does, or the host must know what is in a tensor.
    """
    values = [n.meta.get("val") for n in module.graph.nodes]
    devices = {v.device for v in values if fx_graphs.is_tensor(v)}
    names = {n.target._schema.name.partition("::")[2] for n in module.graph.nodes if hasattr(n.target, "_schema")}
    if len(devices) != 1 or names & RANDOM:
        return None
    device = devices.pop()
    if device.type != "cuda" or _looks_at_data(module):
        return None
    return int(device.index or 0)


def _looks_at_data(module: Any) -> bool:
    from torch._inductor import utils

    return utils.get_first_incompatible_cudagraph_node(module) is not None


def _fixed(more: int) -> list[int]:
    """The arguments that lie where they did in each call, such as parameters: they are not copied to a graph's memory.

    Args:
        more: how many arguments torch put before those of Dynamo's graph.
    """
    context = torch._guards.TracingContext.try_get()
    known = getattr(context and context.fw_metadata, "static_input_indices", None)
    return list(range(max(more, 0))) if known is None else list(known)


def _recorded(
    run: Run, module: Any, fixed: Sequence[int], device: int, *, is_backward: bool, is_inference: bool
) -> Run:
    """The first call of each choice of sizes runs as it is: it traces, compiles, and makes tensors that are kept, which
    must not lie in the memory of graphs. The trees' own first call is the second.
    """
    from torch._inductor.cudagraph_trees import cudagraphify_impl
    from torch._inductor.cudagraph_utils import get_placeholder_info

    results = next(n for n in reversed(module.graph.nodes) if n.op == "output").args[0]
    facts: Any = {
        "device_index": device,
        "is_backward": is_backward,
        "is_inference": is_inference,
        "placeholders": tuple(get_placeholder_info(module.graph)),
        "stack_traces": [getattr(r, "stack_trace", None) for r in results],
        "constants": tuple(v for v in fx_graphs.constants(module).values() if fx_graphs.is_tensor(v)),
    }
    of_thread = threading.local()  # as the trees are
    known: set[tuple[int, ...]] = set()

    def replayed(arguments: list[Any]) -> Any:
        sizes = tuple(v for v in arguments if isinstance(v, int))
        if sizes not in known:
            made = run(arguments)
            known.add(sizes)
            return made
        if not hasattr(of_thread, "replay"):
            of_thread.replay = cudagraphify_impl(_made_by_torch(run), list(arguments), fixed, **facts)
        return of_thread.replay(arguments)

    replayed._boxed_call = True  # type: ignore[attr-defined]
    return replayed


def _made_by_torch(run: Run) -> Run:
    """A run whose results have memory that is torch's in every way: the trees free it themselves."""

    def made(arguments: list[Any]) -> Any:
        before = _core.results_by_torch(True)
        try:
            return run(arguments)
        finally:
            _core.results_by_torch(before)

    return made


def _announced(run: Run, device: int) -> Run:
    def backward(arguments: list[Any]) -> Any:
        from torch._inductor.cudagraph_trees import get_manager

        manager = get_manager(device, create_if_none_exists=False)
        if manager is not None:
            manager.set_to_running_backward()
        return run(arguments)

    backward._boxed_call = True  # type: ignore[attr-defined]
    return backward


def is_wanted(mode: str | None) -> bool:
    """Whether a mode of torch.compile asks for CUDA graphs, and there is a device for them."""
    return mode == "reduce-overhead" and torch.cuda.is_available()
