"""What there is to compare: an operation's two versions, and the plain function that says what both compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .. import _core, _relu_layernorm
from .._fuse import FusedFunction, fuse
from .._ops import norms
from .._plans.plan import Plan


class Cost(NamedTuple):
    """What a version does to memory. passes: over the matrix, of operations that know no other array of its size."""

    launches: int
    moved_bytes: int
    passes: int | None = None


class Versions(NamedTuple):
    """Both versions take the arguments of `function`, and out= and stream=."""

    fused: Callable[..., Any]
    unfused: Callable[..., Any]
    function: Callable[..., Any]

    @property
    def by_hand(self) -> bool:
        """Whether the kernels are ReLU + LayerNorm's, which no plan made."""
        return self.function is norms.relu_layernorm


def versions_of(f: Any) -> Versions:
    """Both versions of what f computes.

    Args:
        f: a named kernel, fused or unfused, a function made by `kfusion.fuse`, or a plain function, which is fused.

    Raises:
        TypeError: f is not callable.
    """
    if f is _core.fused_relu_layernorm or f is _core.unfused_relu_layernorm:
        pair = _core.fused_relu_layernorm, _core.unfused_relu_layernorm
        return Versions(*pair, norms.relu_layernorm)
    if not callable(f):
        raise TypeError(f"kfusion.compare: f must be a function of arrays, got {type(f).__name__}")
    made: Any = f if isinstance(f, FusedFunction) else fuse(f)
    if not made._options.get("fuse", True):
        made = FusedFunction(made.__wrapped__, made._options | {"fuse": True})
    return Versions(made, made.unfused, made.__wrapped__)


def costs(versions: Versions, plan: Plan, matrix_bytes: int, copied_bytes: int) -> Mapping[str, Cost]:
    """By name of the version: of kernels made by hand what their page says, else what the plan counts."""
    if versions.by_hand:
        by_name = {"fused": _relu_layernorm.FUSED, "unfused": _relu_layernorm.UNFUSED, "copy": _relu_layernorm.COPY}
        return {name: Cost(c.launches, c.passes * matrix_bytes, c.passes) for name, c in by_name.items()}
    totals = {"fused": plan.fused, "unfused": plan.unfused}
    moved = {name: Cost(total.launches, total.issued.total) for name, total in totals.items()}
    return moved | {"copy": Cost(1, copied_bytes)}


def predicted(versions: Versions, plan: Plan, elements: int, itemsize: int) -> dict[str, Any]:
    """As `kfusion.savings` says it: unfused against fused bytes."""
    if versions.by_hand:
        ops: Sequence[Any] = _relu_layernorm.savings_ops(elements)
        return dict(_core.savings(ops, dtype_bytes=itemsize))
    return dict(plan.savings)
