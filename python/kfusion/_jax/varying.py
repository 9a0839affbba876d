"""What jax.shard_map asks of a primitive: by which axes of the mesh its arguments vary, and its results with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax


def _axes(aval: Any) -> frozenset[Any]:
    """The axes of the mesh by which an array varies; none outside of shard_map."""
    kind = getattr(aval, "manual_axis_type", None)
    found = getattr(aval, "vma", None) if kind is None else kind.varying
    return frozenset(found or ())


def alike(arrays: Sequence[Any]) -> list[Any]:
    """The arrays, all of which vary by what one of them does."""
    axes = [_axes(jax.typeof(a)) for a in arrays]
    every = frozenset().union(*axes)
    return [
        a if its == every else _varying(a, tuple(sorted(every - its, key=str)))
        for a, its in zip(arrays, axes, strict=True)
    ]


def _varying(array: Any, axes: tuple[Any, ...]) -> Any:
    cast = getattr(jax.lax, "pcast", None)
    return jax.lax.pvary(array, axes) if cast is None else cast(array, axes, to="varying")


def like(avals: Sequence[Any], shape: tuple[int, ...], dtype: Any, spec: Any = None) -> Any:
    """An abstract array of that shape that varies as the others do, and is replicated but for `spec`."""
    first = avals[0]
    sharding = getattr(first, "sharding", None)
    if sharding is None:
        return first.update(shape=shape, dtype=dtype, weak_type=False)
    spec = jax.sharding.PartitionSpec(*[None] * len(shape)) if spec is None else spec
    return first.update(
        shape=shape, dtype=dtype, weak_type=False, sharding=jax.sharding.NamedSharding(sharding.mesh, spec)
    )
