"""Custom calls on arrays that are cut among devices: each device computes its part where the program allows that."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from .program import Program
from .sharding import factors, rule

Call = Callable[[Program, Sequence[Any]], list[Any]]


def announce(primitive: Any) -> None:
    """Says that a primitive's lowering may look at the devices. JAX has no public name for that: where it has another
    one, arrays are gathered on every device.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import dispatch

        dispatch.prim_requires_devices_during_lowering.add(primitive)


def applies(context: Any, program: Program) -> bool:
    """Whether XLA cuts the arrays of what is lowered among several devices, and the program can be cut."""
    axes = context.module_context.axis_context
    devices, mesh = getattr(axes, "device_assignment", None), getattr(axes, "abstract_mesh", None)
    return bool(devices and len(devices) > 1 and mesh is not None and program.inputs and factors(program).free)


def call(program: Program, arrays: Sequence[Any], make: Call, known_by: tuple[Any, ...]) -> list[Any]:
    """What `make(program, arrays)` gives, by parts. `known_by`: what `make` depends on."""
    return list(_partitioned(program, make, known_by)(*arrays))


class _Keyed:
    """A function that is known by something else than itself."""

    def __init__(self, function: Call, known_by: tuple[Any, ...]) -> None:
        self.function = function
        self.known_by = known_by

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keyed) and self.known_by == other.known_by

    def __hash__(self) -> int:
        return hash(self.known_by)


def _partitioned(program: Program, make: Call, known_by: tuple[Any, ...]) -> Any:
    return _made(program, _Keyed(make, known_by))


@functools.lru_cache(maxsize=512)
def _made(program: Program, make: _Keyed) -> Any:
    function = custom_partitioning(lambda *arrays: tuple(make.function(program, arrays)))
    text, fixed = rule(program)

    def partition(mesh: Any, given: Sequence[Any], results: Sequence[Any]) -> Any:
        axes = _axes_of_factors(program, mesh, [*given, *results])
        inputs, outputs = (
            tuple(NamedSharding(mesh, PartitionSpec(*(axes.get(f) for f in its))) for its in every)
            for every in (factors(program).inputs, factors(program).outputs)
        )
        part = _part(program, axes, mesh)
        return mesh, lambda *arrays: tuple(make.function(part, arrays)), outputs, inputs

    function.def_partition(partition=partition, sharding_rule=text, need_replication_factors=fixed)
    return function


def specs(program: Program, avals: Sequence[Any]) -> list[Any]:
    """How the outputs are cut where JAX's types say how the inputs are."""
    mesh = getattr(getattr(avals[0], "sharding", None), "mesh", None) if avals else None
    is_cut = mesh is not None and any(axis is not None for a in avals for axis in a.sharding.spec)
    axes = _axes_of_factors(program, mesh, avals) if is_cut else {}
    return [PartitionSpec(*(axes.get(f) for f in its)) for its in factors(program).outputs] if axes else []


def cut_as(array: Any, aval: Any) -> Any:
    """The array, cut as JAX's type says, where types say how arrays are cut."""
    wanted, has = (getattr(a, "sharding", None) for a in (aval, jax.typeof(array)))
    if wanted is None or has is None or wanted.spec == has.spec or wanted.mesh.empty:
        return array
    return jax.sharding.reshard(array, wanted)


def _axes_of_factors(program: Program, mesh: Any, arrays: Sequence[Any]) -> dict[int, Any]:
    """The axes of the mesh by which the first array that has a factor cuts it, where it cuts it into equal parts. An
    axis cuts one factor.
    """
    found: dict[int, Any] = {}
    taken: set[Any] = set()
    free = factors(program).free
    for array, its in zip(arrays, [*factors(program).inputs, *factors(program).outputs], strict=False):
        spec = getattr(array.sharding, "spec", ())
        for factor, axes, extent in zip(its, spec, array.shape, strict=False):
            names = axes if isinstance(axes, tuple) else (axes,)
            is_new = factor in free and factor not in found and axes is not None and taken.isdisjoint(names)
            if is_new and extent % _parts(mesh, axes) == 0:
                found[factor] = axes
                taken |= set(names)
    return found


def _parts(mesh: Any, axes: Any) -> int:
    count = 1
    for name in axes if isinstance(axes, tuple) else (axes,):
        count *= mesh.shape[name]
    return count


def _part(program: Program, axes: Mapping[int, Any], mesh: Any) -> Program:
    every = zip([*factors(program).inputs, *factors(program).outputs], [*program.inputs, *program.outputs], strict=True)
    extents = {f: s for its, node in every for f, s in zip(its, node["shape"], strict=True)}
    return factors(program).resized({f: extents[f] // _parts(mesh, axes[f]) for f in axes})
