"""`kfusion.for_each`: a function of one set of arrays, for many sets at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ._fuse import FusedFunction
from ._tracing.trace import name_of

_WHO = "kfusion.for_each"


class ForEach:
    """What `kfusion.for_each` makes of a function: call it with lists in the place of arrays.

    f(xs, ys, lr)       f of each x and y; `stream=` as for a fused function
    f.clear()           forgets the traces
    f.__wrapped__       the plain function
    """

    __wrapped__: Callable[..., Any]
    __name__: str

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._one = FusedFunction(function, {}, each=True)
        self._names = tuple(self._one.__signature__.parameters)

    def __call__(self, *args: Any, stream: Any = None, **kwargs: Any) -> Any:
        columns = (*args, *kwargs.values())
        count = self._count(args, kwargs)
        rows = zip(*(c if isinstance(c, (list, tuple)) else (c,) * count for c in columns), strict=True)
        return self._one._each(list(rows), tuple(kwargs), stream)

    def clear(self) -> None:
        """Forgets all traces, so that the next call traces again, as that of a fused function does."""
        self._one.clear()

    def _count(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        who = f"kfusion.{self._one.__name__}"
        names = [*self._names[: len(args)], *[f"argument {i + 1}" for i in range(len(self._names), len(args))], *kwargs]
        lengths = {
            name: len(column)
            for name, column in zip(names, (*args, *kwargs.values()), strict=True)
            if isinstance(column, (list, tuple))
        }
        if not lengths:
            raise TypeError(f"{who}: a function for each of many takes lists of arrays, got none")
        first, count = next(iter(lengths.items()))
        for name, length in lengths.items():
            if length != count:
                raise ValueError(f"{who}: {name} must have as many items as {first} ({count}), got {length}")
        return count

    def __repr__(self) -> str:
        return f"<kfusion.for_each: {name_of(self.__wrapped__)}{self._one.__signature__}>"


def for_each(function: Callable[..., Any]) -> ForEach:
    """A function that does to each of many sets of arrays what `function` does to one, in one kernel.

    for_each(f)(xs, ys, lr) is [f(x, y, lr) for x, y in zip(xs, ys)]: lists and tuples have an item for each call, all
    else is the same in all calls. Where f is elementwise and writes into its arguments (an optimizer's step), all calls
    with the same dtypes and numbers are one kernel, whatever the shapes. What is not elementwise, gives new arrays, or
    has arrays that lie in different ways, runs one call after the other.

    Args:
        function: of arrays and numbers, as for `fuse`. A decorator, too.

    Returns:
        A function. It returns the list of results, or None where all of them are None.

    Raises:
        ValueError: by the call, before anything is written: lists of different lengths; arrays that are read-only, or
            share memory with another one that is written.
        TypeError: by the call: there is no list, or arrays of several libraries or devices.
    """
    if not callable(function):
        raise TypeError(f"{_WHO}: function must be callable, got {type(function).__name__}")
    return ForEach(function)
