"""What values of a trace share that are views of one array, and where their elements lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# How a view is made of what owns its memory: methods of the graph, each with its argument.
Path = tuple[tuple[str, Any], ...]
DETACHED = "detached"  # the kind of a view of all of a value, which gradients take for a constant
Range = tuple[int, int, int]


class Memory:
    """What a value and its views share: the node of the whole (None: nobody knows), how often it was written to, and
    where last. `part` is the only part of an input that was written to: a range of each axis, and its node. `strides`
    are in elements, and known of inputs only.
    """

    __slots__ = ("line", "node", "part", "strides", "version")

    def __init__(self, node: int | str) -> None:
        self.node: int | str | None = node
        self.version = 0
        self.line = ""
        self.strides: Sequence[int] | None = None
        self.part: tuple[list[Range], int] | None = None


def is_c_order(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie one behind the other, the last axis first."""
    return all(s == c for n, s, c in zip(shape, strides, c_strides(shape), strict=True) if n != 1)


def c_strides(shape: Sequence[int]) -> list[int]:
    """The strides in elements of a dense array in C order."""
    strides = [1] * len(shape)
    for i in reversed(range(len(shape) - 1)):
        strides[i] = strides[i + 1] * shape[i + 1]
    return strides


def without_ones(shape: Sequence[int]) -> list[int]:
    """The extents other than 1: moving those moves no element."""
    return [n for n in shape if n != 1]


def strides_of(path: Path, shape: Sequence[int], strides: Sequence[int]) -> Sequence[int]:
    """The strides of a view of an array."""
    for kind, argument in path:
        if kind == DETACHED:
            continue
        if kind == "slice":
            shape = [stop - start for start, stop, _ in argument]
        elif kind == "transpose":
            shape, strides = [shape[a] for a in argument], [strides[a] for a in argument]
        else:
            shape, strides = argument, _reshaped(shape, strides, argument)
    return strides


def viewed(path: Path, array: Any) -> Any:
    """That view of an array of NumPy's, torch's or CuPy's."""
    for kind, argument in path:
        if kind == "slice":
            array = array[tuple(slice(start, stop) for start, stop, _ in argument)]
        elif kind == "reshape":
            array = array.reshape(tuple(argument))
        elif kind == "transpose":
            array = array.permute(argument) if hasattr(array, "permute") else array.transpose(argument)
    return array


def _reshaped(shape: Sequence[int], strides: Sequence[int], to: Sequence[int]) -> list[int]:
    """The strides of other extents over the same elements: in C order, or with axes of extent 1 in other places."""
    if without_ones(shape) != without_ones(to):
        return c_strides(to)
    kept = [s for n, s in zip(shape, strides, strict=True) if n != 1]
    return [1 if n == 1 else kept.pop(0) for n in to]
