"""Results that there are before a call: what a peer writes into, as kfusion does with out=."""

from __future__ import annotations

import numpy as np

from kfusion._cli.demo import numpy_dtype
from kfusion._compare.problem import Problem

SUFFIX = ", warm"  # of the names of rows whose versions write into such results


def results(problem: Problem) -> list[np.ndarray]:
    """NumPy's arrays, as kfusion's own results are, written once: all their pages are there.

    Raises:
        TypeError: the problem's arrays are on a GPU.
    """
    if problem.cuda:
        raise TypeError("it writes into results on the CPU only")
    nodes = [problem.nodes[i] for i in problem.output_nodes]
    return [np.full(node["shape"], 0, numpy_dtype(node["dtype"])) for node in nodes]
