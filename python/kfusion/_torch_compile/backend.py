"""The backend of torch.compile: Dynamo's graphs, through AOTAutograd, as fused functions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from .compiled import Compiled
from .decompositions import table
from .library import register

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

    def compiler(stage: str) -> Any:
        def compiled(graph: Any, arguments: Sequence[Any]) -> Any:
            return Compiled(graph, f"compiled_{number}{stage}").boxed()

        return compiled

    return aot_autograd(
        fw_compiler=compiler("_forward"),
        bw_compiler=compiler("_backward"),
        inference_compiler=compiler(""),
        decompositions=table(),
        partition_fn=min_cut_rematerialization_partition,
    )(module, inputs)
