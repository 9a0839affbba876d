"""torch.compile into results that there are: one loop that writes them, as kfusion's out= does.

Inductor fuses the copy into the loop that computes, so no array is made between. (A sum is made apart and then copied,
which costs little: it is far smaller than what is summed.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kfusion import _arrays, _core
from kfusion._compare import libraries
from kfusion._compare.evaluate import program
from kfusion._compare.problem import Problem

from . import warm


def prepare(problem: Problem) -> Callable[[], list[Any]]:
    """The compiled function on the problem's arrays; nothing is compiled yet.

    Raises:
        TypeError: the arrays are on a GPU.
    """
    outs = [_arrays.convert(y, "torch") for y in warm.results(problem)]
    arrays = [_arrays.convert(x, "torch") for x in problem.arrays]
    torch.set_num_threads(_core.get_num_threads())
    compute = program(problem.traced, libraries.Torch(arrays[0].device))
    count = len(outs)

    def into(*given: Any) -> None:
        for out, value in zip(given[:count], compute(*given[count:]), strict=True):
            out.copy_(value)

    # Code of its own, as `program` has it, and for these very shapes, as the peer torch.compile.
    into.__code__ = into.__code__.replace(co_name=f"{problem.traced.name}_into")
    compiled = torch.compile(into, dynamic=False)

    def run() -> list[Any]:
        compiled(*outs, *arrays)
        return outs

    return run
