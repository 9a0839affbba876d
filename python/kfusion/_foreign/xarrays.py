"""xarray's DataArrays: their dimensions and coordinates by axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import xarray


@dataclass(frozen=True)
class Dimension:
    """A dimension of an array, and its index (None where it has none)."""

    name: Any
    index: Any

    def differs_from(self, other: Dimension) -> str | None:
        """What of two axes that are one axis of a call does not agree, and what to do about it."""
        if self.name != other.name:
            return f"the names of an axis ({self.name!r} and {other.name!r}): axes are matched by place; transpose one"
        if self.index is None or other.index is None or self.index.equals(other.index):
            return None
        return f"coordinate {self.name!r}: pass the results of xarray.align"


class Labelled:
    """An argument: its array, and a `Dimension` for each axis."""

    how = "data"

    def __init__(self, who: str, name: str, x: Any) -> None:
        if not isinstance(x, xarray.DataArray):
            hint = f'its arrays one by one, {name}["variable"]' if isinstance(x, xarray.Dataset) else f"{name}.data"
            raise TypeError(f"{who}: {name} must be an array or a DataArray, got {type(x).__name__}: pass {hint}")
        self.whole = x
        self.array = x.data
        self.axes = tuple(Dimension(name, x.indexes.get(name)) for name in x.dims)


def labelled(who: str, array: Any, axes: Sequence[Dimension], given: Sequence[Labelled]) -> Any:
    """A DataArray. The coordinates of its dimensions come along, and those that have no other dimension and do not
    differ between the arguments; attributes too, of the first argument with the same dimensions.
    """
    dims = tuple(axis.name for axis in axes)
    if len(set(dims)) < len(dims):
        raise ValueError(f"{who}: a result has the dimension {max(dims, key=dims.count)!r} twice: pass x.data")
    names = {x.whole.name for x in given}
    result = xarray.DataArray(array, dims=dims, name=names.pop() if len(names) == 1 else None)
    for x in given:
        result = result.assign_coords(_coordinates(x.whole, result, given))
    alike = [x.whole for x in given if x.whole.dims == dims and x.whole.shape == result.shape]
    return result.assign_attrs(alike[0].attrs) if alike else result


def _coordinates(x: Any, result: Any, given: Sequence[Labelled]) -> Any:
    """Those of an argument that a result has."""

    def stays(name: Any, coordinate: Any) -> bool:
        if not set(coordinate.dims) <= set(result.dims) or name in result.coords:
            return False
        if any(coordinate.sizes[dim] != result.sizes[dim] for dim in coordinate.dims):
            return False
        if name in result.dims:  # known to be the same wherever it is a dimension
            return bool(name in coordinate.dims)
        others = (y.whole.coords[name] for y in given if name in y.whole.coords)
        return all(coordinate.variable.equals(other.variable) for other in others)

    dropped = [name for name, coordinate in x.coords.items() if not stays(name, coordinate)]
    return x.coords.to_dataset().drop_vars(dropped).coords
