"""CUDA graphs for `mode="reduce-overhead"`: torch's trees of graphs record the passes of a compiled function and replay
them. They own the memory of results, which the next call of the function writes over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._tracing import fx_graphs
from .._tracing.aten import RANDOM

Run = Callable[[list[Any]], Any]


class Replays:
    """What both passes of one of Dynamo's graphs share. `inputs`: how many that graph has."""

    def __init__(self, inputs: int) -> None:
        self._inputs = inputs
        self._device: int | None = None  # of the forward pass, once it is recorded

    def forward(self, run: Run, module: Any, arguments: Sequence[Any], *, is_inference: bool) -> Run:
        """A forward pass that is recorded at its second call, where that is possible: else as it is."""
        device = recordable(module)
        if device is None:
            return run
        self._device = device
        lifted = range(max(len(arguments) - self._inputs, 0))
        return _recorded(run, module, arguments, _static(lifted), device, False, is_inference)

    def backward(self, run: Run, module: Any, arguments: Sequence[Any]) -> Run:
        """Likewise. One that is not recorded behind a forward pass that is says so to the trees."""
        if self._device is None:
            return run
        device = recordable(module)
        if device is None:
            return _announced(run, self._device)
        saved = sum("tangents" not in n.name for n in module.graph.nodes if n.op == "placeholder")
        return _recorded(run, module, arguments, range(saved), device, True, False)


def recordable(module: Any) -> int | None:
    """The number of the CUDA device on which all tensors of a graph lie; None where it cannot be recorded: tensors are
    elsewhere, or random numbers are drawn, which the host does.
    """
    devices = {n.meta["val"].device for n in module.graph.nodes if fx_graphs.is_tensor(n.meta.get("val"))}
    names = {n.target._schema.name.partition("::")[2] for n in module.graph.nodes if hasattr(n.target, "_schema")}
    if len(devices) != 1 or names & RANDOM:
        return None
    device = devices.pop()
    return int(device.index or 0) if device.type == "cuda" else None


def _static(lifted: Sequence[int]) -> Sequence[int]:
    """The arguments that stay where they are, which a replay reads in place: parameters and buffers."""
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return lifted if metadata is None else list(metadata.static_input_indices)


def _recorded(
    run: Run,
    module: Any,
    arguments: Sequence[Any],
    static: Sequence[int],
    device: int,
    is_backward: bool,
    is_inference: bool,
) -> Run:
    from torch._inductor.cudagraph_trees import cudagraphify_impl
    from torch._inductor.cudagraph_utils import get_placeholder_info

    made: Any = cudagraphify_impl(
        run,
        list(arguments),
        static,
        device_index=device,
        is_backward=is_backward,
        is_inference=is_inference,
        stack_traces=_stack_traces(module),
        placeholders=get_placeholder_info(module.graph),
    )
    made._boxed_call = True
    return made  # type: ignore[no-any-return]


def _stack_traces(module: Any) -> list[str | None]:
    """Of each result, which errors about results that were written over show."""
    (results,) = next(n for n in module.graph.nodes if n.op == "output").args
    return [getattr(r, "stack_trace", None) for r in results]


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
