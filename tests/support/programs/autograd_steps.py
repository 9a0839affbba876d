"""Steps that only torch has: the user's own functions of autograd, and random numbers that torch draws. What they give
has their argument's shape."""

from __future__ import annotations

from .operations import Operation
from .values import Unfit, Value, same


def _as_given(x: Value) -> Value:
    if x.dtype != "float64" or x.array.ndim == 0 or x.array.size == 0:
        raise Unfit
    return same(x.array, [x])


IN_TORCH = {
    **{name: f"{name}({{0}})" for name in ("straight", "turned", "bounded", "in_two", "opaque", "hooked")},
    # They have one axis: torch fills memory in the order of elements there, and values of a graph may lie otherwise.
    "with_noise": "{0} + 0.1 * ({0}.reshape(-1) * 0).normal_().reshape({0}.shape)",
    "dropped": "{0} * ({0}.reshape(-1) * 0).bernoulli_(0.75).reshape({0}.shape)",
    "scaled": "{0} * ({0}.reshape(-1) * 0).uniform_(0.5, 1.5).reshape({0}.shape)",
}
OWN = {name: Operation("{0}", _as_given) for name in IN_TORCH}
