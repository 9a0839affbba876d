"""The backend of torch.compile: Dynamo's graphs, through AOTAutograd, as fused functions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

from torch._dynamo.backends.common import aot_autograd

from . import cuda_graphs, donation, overlaps
from .compiled import Compiled
from .decompositions import table
from .library import register
from .partition import partition

_numbers = itertools.count()


def backend(module: Any, inputs: Sequence[Any], *, mode: str | None = None, options: Any = None) -> Any:
    """What `torch.compile(model, backend="kfusion")` calls with each graph.

    Args:
        module: a graph of Dynamo's.
        inputs: examples of its arguments, without data.
        mode: of torch.compile. "reduce-overhead" replays CUDA graphs; other modes change nothing.
        options: of torch.compile: none are known.

    Returns:
        A function of the same arguments.

    Raises:
        ValueError: options has a name that is not known.
    """
    if options:
        raise ValueError(f"kfusion: torch.compile's options has no names for this backend, got {sorted(options)}")
    register()
    number = next(_numbers)
    replays = cuda_graphs.Replays(len(inputs)) if cuda_graphs.is_wanted(mode) else None

    def forward(graph: Any, arguments: Sequence[Any], name: str = "forward") -> Any:
        infers = name == "inference"
        run = Compiled(graph, f"compiled_{number}_{name}", infers=infers).boxed()
        return replays.forward(run, graph, arguments, is_inference=infers) if replays else run

    def backward(graph: Any, arguments: Sequence[Any]) -> Any:
        name = f"compiled_{number}_backward"
        if replays is not None:  # a graph that is recorded reads its arguments where they lie
            donation.refuse()
            return replays.backward(Compiled(graph, name).boxed(), graph, arguments)
        run = Compiled(graph, name, donated=donation.indices())
        if not run.consumes:
            donation.refuse()
        return run.boxed()

    run = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=functools.partial(forward, name="inference"),
        decompositions=table(),
        partition_fn=partition,
    )(module, inputs)
    return overlaps.guarded(module, inputs, run)
