"""xarray's DataArrays: while a function is traced they are xarray's own, which hold a traced value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import xarray

from .._graph.source import trace_error
from .._graph.values import Traced


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


class Given:
    """An argument: its array, and what it is an array with."""

    library = "xarray"

    def __init__(self, who: str, name: str, x: Any) -> None:
        if not isinstance(x, xarray.DataArray):
            hint = f'its arrays one by one, {name}["variable"]' if isinstance(x, xarray.Dataset) else f"{name}.data"
            raise TypeError(f"{who}: {name} must be an array or a DataArray, got {type(x).__name__}: pass {hint}")
        self.array = x.data
        self._labels = _Labels.of(x)

    def is_like(self, other: Given) -> bool:
        """Whether the other has the same labels."""
        mine, theirs = self._labels, other._labels
        return (mine.dims, mine.name) == (theirs.dims, theirs.name) and _are_identical(mine.rest, theirs.rest)

    def join(self, others: Sequence[Given]) -> None:
        """Nothing is shared between arguments."""

    def wrapped(self, value: Any) -> Any:
        """What stands for the argument while the function is traced."""
        return self._labels.on(value)


@dataclass(frozen=True)
class _Labels:
    """What is known of an array without its elements: `rest` has its coordinates and attributes."""

    dims: tuple[Any, ...]
    name: Any
    rest: Any

    @classmethod
    def of(cls, x: Any) -> _Labels:
        return cls(x.dims, x.name, x.coords.to_dataset().assign_attrs(x.attrs))

    def on(self, array: Any) -> Any:
        """An array with these labels."""
        return xarray.DataArray(array, coords=self.rest.coords, dims=self.dims, name=self.name, attrs=self.rest.attrs)


def _are_identical(x: Any, y: Any) -> bool:
    """Whether two sets of coordinates are the same; lazy ones are not compared by elements."""
    if x.variables.keys() != y.variables.keys() or x.attrs.keys() != y.attrs.keys():
        return False
    pairs = [(x.variables[name], y.variables[name]) for name in x.variables]
    if any(a is not b and (_is_lazy(a) or _is_lazy(b)) for a, b in pairs):
        return False
    return bool(all(a is b for a, b in pairs) and x.attrs is y.attrs) or bool(x.identical(y))


def _is_lazy(variable: Any) -> bool:
    return hasattr(variable._data, "dask")


def is_labelled(value: Any) -> bool:
    """Whether a value has labels while a function is traced."""
    if isinstance(value, xarray.Dataset):
        raise trace_error("a Dataset is returned, which is not traced", "return its arrays one by one")
    return isinstance(value, xarray.DataArray) and isinstance(value.variable._data, Traced)


def taken_off(value: Any) -> tuple[Any, Callable[[Any], Any]]:
    """A result's traced value, and what makes the result of its array."""
    for name, coordinate in value.coords.items():
        if isinstance(coordinate.variable._data, Traced):
            hint = f"return it beside the array: x.drop_vars({name!r})"
            raise trace_error(f"coordinate {name!r} of a result is computed, which is not traced", hint)
    return value.data, _Labels.of(value).on


class Placed:
    """A labelled value among the arguments of a function of kfusion."""

    def __init__(self, x: Any) -> None:
        self.value, self.whole = x.data, x
        self.axes = tuple(Dimension(name, x.indexes.get(name)) for name in x.dims)

    def labelled(self, value: Any, axes: Sequence[Dimension], given: Sequence[Placed]) -> Any:
        """A DataArray. The coordinates of its dimensions come along, and those that have no other dimension and do not
        differ between the arguments; attributes too, of the first argument with the same dimensions.
        """
        dims = tuple(axis.name for axis in axes)
        if len(set(dims)) < len(dims):
            return value
        names = {x.whole.name for x in given}
        result = xarray.DataArray(value, dims=dims, name=names.pop() if len(names) == 1 else None)
        for x in given:
            result = result.assign_coords(_coordinates(x.whole, result, given))
        alike = [x.whole for x in given if x.whole.dims == dims and x.whole.shape == result.shape]
        return result.assign_attrs(alike[0].attrs) if alike else result


def _coordinates(x: Any, result: Any, given: Sequence[Placed]) -> Any:
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
