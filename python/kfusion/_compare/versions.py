"""What there is to compare: an operation's two versions, and the plain function that says what both compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .._fuse import FusedFunction, fuse
from .._plans.plan import Plan


class Cost(NamedTuple):
    """What a version does to memory."""

    launches: int
    moved_bytes: int


class Versions(NamedTuple):
    """Both versions take the arguments of `function`, and out= and stream=."""

    fused: FusedFunction
    unfused: FusedFunction
    function: Callable[..., Any]


def versions_of(f: Any) -> Versions:
    """Both versions of what f computes.

    Args:
        f: a named kernel, fused or unfused, a function made by `kfusion.fuse`, or a plain function, which is fused.

    Raises:
        TypeError: f is not callable.
    """
    if not callable(f):
        raise TypeError(f"kfusion.compare: f must be a function of arrays, got {type(f).__name__}")
    made: Any = f if isinstance(f, FusedFunction) else fuse(f)
    made = getattr(made, "fused_function", made)  # of a module
    if not made._options.get("fuse", True):
        made = FusedFunction(made.__wrapped__, made._options | {"fuse": True})
    return Versions(made, made.unfused, made.__wrapped__)


def costs(plan: Plan, copied_bytes: int) -> Mapping[str, Cost]:
    """Costs by the version's name, as the plan counts them."""
    totals = {"fused": plan.fused, "unfused": plan.unfused}
    moved = {name: Cost(total.launches, total.issued.total) for name, total in totals.items()}
    return moved | {"copy": Cost(1, copied_bytes)}
