"""torch's products of matrices and vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._ops import contractions
from .torch_functions import FUNCTIONS, named


def _product(name: str, *ndims: int) -> Callable[..., Any]:
    def product(input: Any, other: Any) -> Any:
        given = (input.ndim, other.ndim)
        if given != ndims:
            raise ValueError(f"kfusion.{name}: arguments must have {ndims[0]} and {ndims[1]} axes, got {given}")
        return contractions.matmul(input, other)

    return product


FUNCTIONS["matmul"] = lambda input, other: contractions.matmul(input, other)
for _name, _ndims in {"mm": (2, 2), "bmm": (3, 3), "mv": (2, 1), "dot": (1, 1)}.items():
    FUNCTIONS[_name] = _product(_name, *_ndims)


@named("addmm")
def _addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    product = contractions.matmul(mat1, mat2)
    return FUNCTIONS["add"](product if alpha == 1 else product * alpha, input, alpha=beta)
