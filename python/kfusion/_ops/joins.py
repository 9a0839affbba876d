"""Arrays behind each other, borders around them, elements moved and repeated; and the way back: parts of an array.

A join is no kernel of its own where the kernels of its parts can store straight into it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._graph.values import Traced
from .operation import Array, Arrays, Axes, operation
from .primitives import integers
from .views import axis_of, broadcast_to, expand_dims, moveaxis, positions, ravel, reshape

__all__ = ["chunk", "concatenate", "pad", "repeat", "roll", "split", "stack", "tile", "tril", "triu", "unbind"]


@operation
def concatenate(arrays: Arrays, axis: int | None = 0) -> Array:
    """Arrays behind each other along one axis.

        y[..., i, ...] = x_k[..., i - offset_k, ...]

    Args:
        arrays: a tuple or list of arrays of any dtypes, alike in all extents but that of the axis.
        axis: along which they are joined; None joins all their elements in C order.

    Returns:
        Array of the promoted dtype: one that the kernels of its parts store into, each part into its slice.

    Raises:
        ValueError: there is no array, one has no axes, no such axis, or other extents differ.
        TypeError: arrays is no tuple or list.

    Source: NumPy's `concatenate`.
    """
    return joined(arrays if axis is not None else [ravel(x) for x in arrays], 0 if axis is None else axis)


@operation
def stack(arrays: Arrays, axis: int = 0) -> Array:
    """Arrays of one shape along a new axis.

        y[..., k, ...] = x_k[..., ...]

    Args:
        arrays: a tuple or list of arrays of any dtypes and of one shape.
        axis: where the new axis stands in the result.

    Returns:
        Array of the promoted dtype.

    Raises:
        ValueError: there is no array, no such axis, or the shapes differ.
        TypeError: arrays is no tuple or list.

    Source: NumPy's `stack`.
    """
    if any(x.shape != arrays[0].shape for x in arrays):
        shapes = ", ".join(str(x.shape) for x in arrays)
        raise ValueError(f"kfusion.stack: arrays must have one shape, got {shapes}")
    return joined([expand_dims(x, axis) for x in arrays], axis)


@operation
def pad(x: Array, pad_width: Any, mode: str = "constant", constant_values: float = 0) -> Array:
    """Elements before and behind those of x along its axes.

    Args:
        x: array of any dtype.
        pad_width: how many elements: n; (before, behind); or such a pair for each axis.
        mode: what they are: "constant"; "edge", the nearest of x; "reflect" and "symmetric", x seen in a mirror,
            without and with its last element; "wrap", x repeated.
        constant_values: the value of "constant", a number.

    Returns:
        Array of x's dtype.

    Raises:
        ValueError: a width is negative, there are not as many pairs as axes, the mode is none of these, or x has too
            few elements to be seen so far beyond its border.

    Source: NumPy's `pad`.
    """
    widths = _widths(x, pad_width)
    if mode == "constant":
        return framed(x, widths, constant_like(x, constant_values))
    if mode not in _BORDERS:
        raise ValueError(f"kfusion.pad: mode must be one of constant, {', '.join(_BORDERS)}, got {mode!r}")
    return rearranged(x, [_bordered(mode, n, *w) for n, w in zip(x.shape, widths, strict=True)])


@operation
def roll(x: Array, shift: int | tuple[int, ...], axis: Axes = None) -> Array:
    """Elements moved along axes; what leaves at the end enters at the beginning.

        y[..., (i + shift) mod n, ...] = x[..., i, ...]

    Args:
        x: array of any dtype.
        shift: by how much, one number or one for each axis.
        axis: the axis or axes; None moves along all elements in C order.

    Returns:
        Array of x's shape and dtype.

    Raises:
        ValueError: no such axis, or shift and axis differ in length.

    Source: NumPy's `roll`.
    """
    shifts = integers("roll", "shift", shift)
    if axis is None:
        return reshape(_rolled(ravel(x), {0: sum(shifts)}), x.shape)
    axes = [axis_of(x, a, "roll") for a in (axis if isinstance(axis, (tuple, list)) else (axis,))]
    if 1 not in (len(axes), len(shifts)) and len(axes) != len(shifts):
        raise ValueError(f"kfusion.roll: shift and axis must be as many, got {len(shifts)} and {len(axes)}")
    moved = dict.fromkeys(axes, 0)
    count = max(len(axes), len(shifts))
    for a, s in zip(axes * (count // len(axes)), shifts * (count // len(shifts)), strict=True):
        moved[a] += s
    return _rolled(x, moved)


@operation
def repeat(x: Array, repeats: int, axis: int | None = None) -> Array:
    """Each element several times, its copies side by side.

        y[..., i, ...] = x[..., i // repeats, ...]

    Args:
        x: array of any dtype.
        repeats: how often, one number for all elements.
        axis: along which the copies stand; None repeats all elements in C order.

    Returns:
        Array of x's dtype, `repeats` times as long along the axis.

    Raises:
        ValueError: repeats is negative, or no such axis.
        TypeError: repeats is no integer: numbers for each element are not possible.

    Source: NumPy's `repeat`.
    """
    times = _integer("repeat", "repeats", repeats)
    if times < 0:
        raise ValueError(f"kfusion.repeat: repeats must not be negative, got {times}")
    x = ravel(x) if axis is None else x
    along = axis_of(x, 0 if axis is None else axis, "repeat")
    shape = x.shape
    many = broadcast_to(expand_dims(x, along + 1), (*shape[: along + 1], times, *shape[along + 1 :]))
    return reshape(many, (*shape[:along], shape[along] * times, *shape[along + 1 :]))


@operation
def tile(x: Array, reps: int | tuple[int, ...]) -> Array:
    """The whole array several times along its axes.

        y[..., i, ...] = x[..., i mod n, ...]

    Args:
        x: array of any dtype.
        reps: how often along each axis, the last ones where there are fewer numbers than axes; more add axes in front.

    Returns:
        Array of x's dtype.

    Raises:
        ValueError: a number is negative.

    Source: NumPy's `tile`.
    """
    times = integers("tile", "reps", reps)
    if min(times, default=0) < 0:
        raise ValueError(f"kfusion.tile: reps must not be negative, got {reps}")
    ndim = max(x.ndim, len(times))
    shape = (1,) * (ndim - x.ndim) + x.shape
    times = [1] * (ndim - len(times)) + times
    spread = [n for pair in zip([1] * ndim, shape, strict=True) for n in pair]
    many = [n for pair in zip(times, shape, strict=True) for n in pair]
    repeated = broadcast_to(reshape(x, tuple(spread)), tuple(many))
    return reshape(repeated, tuple(t * n for t, n in zip(times, shape, strict=True)))


@operation
def tril(x: Array, k: int = 0) -> Array:
    """The lower triangle of matrices; zeros elsewhere.

        y[..., i, j] = x[..., i, j] where j - i <= k, else 0

    Args:
        x: array of any dtype with at least two axes.
        k: the highest diagonal that is kept.

    Returns:
        Array of x's shape and dtype.

    Raises:
        ValueError: x has fewer than two axes.

    Source: NumPy's `tril`.
    """
    return _triangle("tril", x, "less_equal", k)


@operation
def triu(x: Array, k: int = 0) -> Array:
    """The upper triangle of matrices; zeros elsewhere.

        y[..., i, j] = x[..., i, j] where j - i >= k, else 0

    Args:
        x: array of any dtype with at least two axes.
        k: the lowest diagonal that is kept.

    Returns:
        Array of x's shape and dtype.

    Raises:
        ValueError: x has fewer than two axes.

    Source: NumPy's `triu`.
    """
    return _triangle("triu", x, "greater_equal", k)


@operation
def split(x: Array, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Parts of an array along one axis.

    Args:
        x: array of any dtype.
        indices_or_sections: the number of equal parts, or the positions before which to cut.
        axis: along which.

    Returns:
        List of arrays of x's dtype: slices, which move no bytes.

    Raises:
        ValueError: no such axis, or a number of parts that does not divide its extent.

    Source: NumPy's `split`.
    """
    n = x.shape[axis_of(x, axis, "split")]
    if isinstance(indices_or_sections, (tuple, list)):
        stops = [slice(0, i).indices(n)[1] for i in integers("split", "indices_or_sections", indices_or_sections)]
        return parts(x, [0, *stops, n], axis)
    sections = _integer("split", "indices_or_sections", indices_or_sections)
    if sections < 1 or n % sections:
        raise ValueError(f"kfusion.split: {n} elements along axis {axis} are no {sections} equal parts")
    return parts(x, list(range(0, n + 1, n // sections)) if n else [0] * (sections + 1), axis)


@operation
def chunk(x: Array, chunks: int, axis: int = 0) -> list[Array]:
    """At most so many parts of one extent along an axis, the last one shorter.

    Args:
        x: array of any dtype.
        chunks: how many at most.
        axis: along which.

    Returns:
        List of arrays of x's dtype: slices, which move no bytes.

    Raises:
        ValueError: no such axis, or chunks is below 1.

    Source: torch's `chunk`.
    """
    n = x.shape[axis_of(x, axis, "chunk")]
    count = _integer("chunk", "chunks", chunks)
    if count < 1:
        raise ValueError(f"kfusion.chunk: chunks must be at least 1, got {count}")
    step = -(-n // count)
    return parts(x, [*range(0, n, step), n] if n else [0] * (count + 1), axis)


@operation
def unbind(x: Array, axis: int = 0) -> list[Array]:
    """The elements along an axis, each without that axis.

    Args:
        x: array of any dtype.
        axis: along which.

    Returns:
        List of arrays of x's dtype: slices, which move no bytes.

    Raises:
        ValueError: no such axis.

    Source: torch's `unbind`.
    """
    front = moveaxis(x, axis_of(x, axis, "unbind"), 0)
    n, *shape = front.shape
    return [reshape(one, tuple(shape)) for one in parts(front, range(n + 1), 0)]


# ---- what the functions of NumPy and torch are made of too ----


def joined(arrays: Sequence[Traced], axis: int) -> Traced:
    """The node that joins; of one array, that array as a value of its own."""
    return arrays[0]._tracer.add("concatenate", list(arrays), axis)


def parts(x: Traced, bounds: Sequence[int], axis: int) -> list[Traced]:
    """The slices of x between neighbouring bounds along one axis."""
    axis = axis_of(x, axis, "split")
    ranges = [(0, n, 1) for n in x.shape]
    made = []
    for start, stop in itertools.pairwise(bounds):
        ranges[axis] = (start, max(start, stop), 1)
        made.append(x._tracer.view("slice", x, list(ranges)))
    return made


def rearranged(x: Traced, pieces: Sequence[Sequence[tuple[int, int, int]]]) -> Traced:
    """Joins of slices: along each axis the ranges (start, stop, step) of its positions, one behind the other."""

    def build(ranges: list[tuple[int, int, int]]) -> Traced:
        axis = len(ranges)
        if axis == x.ndim:
            return _sliced(x, ranges)
        made = [build([*ranges, r]) for r in pieces[axis]]
        return made[0] if len(made) == 1 else joined(made, axis)

    return build([])


def constant_like(x: Traced, value: Any) -> Traced:
    """A number as a value of x's dtype, without axes."""
    return x._tracer.add("cast", x._tracer.lift(value, x._library), x._dtype)


def framed(x: Traced, widths: Sequence[tuple[int, int]], value: Traced) -> Traced:
    """One value around x: the last axis first, so that what lies before and behind the first one is contiguous."""
    for axis in reversed(range(x.ndim)):
        shapes = [(*x.shape[:axis], width, *x.shape[axis + 1 :]) for width in widths[axis]]
        before, behind = ([broadcast_to(value, s)] if s[axis] else [] for s in shapes)
        x = joined([*before, x, *behind], axis) if before or behind else x
    return x


# ---- positions: (start, stop, step), or with a step of 0 the element `start`, `stop - start` times ----

_Range = tuple[int, int, int]


def _sliced(x: Traced, ranges: Sequence[_Range]) -> Traced:
    y = x._tracer.view("slice", x, [(a, a + 1, 1) if step == 0 else (a, b, step) for a, b, step in ranges])
    shape = tuple(b - a if step == 0 else n for (a, b, step), n in zip(ranges, y.shape, strict=True))
    return y if shape == y.shape else broadcast_to(y, shape)


def _edge(n: int, before: int, behind: int) -> list[_Range]:
    return [(0, before, 0), (0, n, 1), (n - 1, n - 1 + behind, 0)]


def _reflect(n: int, before: int, behind: int) -> list[_Range]:
    return [(before, 0, -1), (0, n, 1), (n - 2, n - 2 - behind, -1)]


def _symmetric(n: int, before: int, behind: int) -> list[_Range]:
    return [(before - 1, -1, -1), (0, n, 1), (n - 1, n - 1 - behind, -1)]


def _wrap(n: int, before: int, behind: int) -> list[_Range]:
    return [(n - before, n, 1), (0, n, 1), (0, behind, 1)]


# By mode: the ranges of an axis, and how many elements fewer than the extent it reaches at most (None: any).
_BORDERS: dict[str, tuple[Callable[[int, int, int], list[_Range]], int | None]] = {
    "edge": (_edge, None),
    "reflect": (_reflect, 1),
    "symmetric": (_symmetric, 0),
    "wrap": (_wrap, 0),
}


def _bordered(mode: str, n: int, before: int, behind: int) -> list[_Range]:
    ranges, short = _BORDERS[mode]
    most = max(before, behind)
    if most and (n == 0 or (short is not None and most > n - short)):
        raise ValueError(
            f"kfusion.pad: {mode} reaches at most {max(n - (short or 0), 0)} elements of an axis of {n}, got {most}"
        )
    return [r for r in ranges(n, before, behind) if r[0] != r[1]] or [(0, n, 1)]


def _rolled(x: Traced, shifts: Mapping[int, int]) -> Traced:
    def ranges(axis: int, n: int) -> list[_Range]:
        cut = -shifts.get(axis, 0) % n if n else 0
        return [(cut, n, 1), (0, cut, 1)] if cut else [(0, n, 1)]

    y = rearranged(x, [ranges(axis, n) for axis, n in enumerate(x.shape)])
    return x._tracer.copy(x) if y is x else y


def _widths(x: Traced, pad_width: Any) -> list[tuple[int, int]]:
    """A pair for each axis."""
    pairs = [pad_width] if isinstance(pad_width, int) or not _nested(pad_width) else list(pad_width)
    made = [tuple(integers("pad", "pad_width", p)) for p in pairs]
    made = [p * 2 if len(p) == 1 else p for p in made]
    made = made * x.ndim if len(made) == 1 else made
    if len(made) != x.ndim or any(len(p) != 2 for p in made):
        raise ValueError(f"kfusion.pad: pad_width must be a pair for each of {x.ndim} axes, got {pad_width}")
    if any(n < 0 for p in made for n in p):
        raise ValueError(f"kfusion.pad: pad_width must not be negative, got {pad_width}")
    return [(before, behind) for before, behind in made]


def _nested(pad_width: Any) -> bool:
    return any(isinstance(p, (tuple, list)) for p in pad_width)


def _integer(who: str, name: str, value: Any) -> int:
    if isinstance(value, (tuple, list)) or (type(value) is np.ndarray and value.ndim):
        raise TypeError(f"kfusion.{who}: {name} must be an integer, got {value!r}")
    return integers(who, name, value)[0]


def _triangle(name: str, x: Traced, keeps: str, k: int) -> Traced:
    if x.ndim < 2:
        raise ValueError(f"kfusion.{name}: x must have at least 2 axes, got shape {x.shape}")
    diagonal = _integer(name, "k", k)
    above = x._tracer.map("subtract", positions(x, -1), positions(x, -2))
    return x._tracer.map("where", x._tracer.map(keeps, above, diagonal), x, constant_like(x, 0))
