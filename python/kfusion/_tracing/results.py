"""What a traced function returns: outputs of its graph, what it made of sizes, and constants, each in its place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._environment.reach import reached
from .._graph.number import is_number, read
from .._graph.sizes import is_size
from .._graph.source import trace_error
from .._graph.structure import ATOMS, Constant, Fresh, Slot, copied, may_hold_results, walk
from .._graph.tracer import Tracer
from .._graph.values import Traced, Written, has_no_data
from .._spec import is_array
from . import dtype_names, numpy_stored, torch_complex

_MOST = 1_000_000  # objects in a result that are looked at


class Results:
    """The outputs of a trace, by name, as `places` meets them.

    Args:
        tracer: of the function.
        written: what it writes to.
        outside: gives what the function had before it was called, and whether that is all.
    """

    def __init__(
        self, tracer: Tracer, written: Sequence[Written], outside: Callable[[], tuple[list[Any], bool]]
    ) -> None:
        self.outputs: list[tuple[str, Traced]] = []
        self._tracer = tracer
        self._written = written
        self._outside = functools.cache(lambda: _Outside(*outside()))

    def places(self, returned: Any) -> Any:
        """The result with a `Slot`, `Fresh` or `Constant` in the place of what calls put there.

        Raises:
            TraceError: a number is where calls cannot put theirs, such as in a set: trace it as it is.
            NotTheSame: a size is there.
        """
        made = walk(returned, self._place, enters=lambda value: may_hold_results(value) and self._holds_parts(value))
        held, _ = reached([walk(made, self._made, enters=may_hold_results)], _MOST)
        if self._tracer.recorded is not None and any(map(is_size, held)):
            raise self._tracer.recorded.failed()
        if any(map(is_number, held)):
            raise trace_error(f"{self._tracer.name} returns a number within another object", "return it itself", "")
        return made

    def _made(self, _: str, leaf: Any) -> Any:
        """A leaf that the function has made; 0 for what calls put there, and for what it had before."""
        if type(leaf) in ATOMS or isinstance(leaf, Slot) or is_size(leaf):
            return 0
        return 0 if id(leaf.value if isinstance(leaf, Constant) else leaf) in self._outside().ids else leaf

    def _place(self, path: str, leaf: Any) -> Any:
        if is_array(leaf) and (known := self._tracer.stand_in(leaf)) is not None:
            leaf = known
        if type(leaf) is numpy_stored.Stored:
            return self._slot(path, *numpy_stored.result(leaf))
        if dtype_names.is_complex(leaf):
            return self._slot(path, *torch_complex.returned(leaf))
        if isinstance(leaf, Traced):
            for i, w in enumerate(self._written):
                if leaf is w.value:  # the argument itself comes back
                    return Slot(i - len(self._written))
            return self._slot(path, leaf)
        if type(leaf) in ATOMS or is_size(leaf):
            return leaf
        holds_objects = isinstance(leaf, np.ndarray) and leaf.dtype.hasobject
        return self._array(leaf) if is_array(leaf) and not holds_objects else self._other(leaf)

    def _slot(self, path: str, value: Traced, convert: Callable[[Any], Any] | None = None) -> Slot:
        self.outputs.append((path, value))
        return Slot(len(self.outputs) - 1, convert)

    def _array(self, array: Any) -> Any:
        """An array of no traced values. Callers may write to one that the function makes."""
        recorded = self._tracer.recorded
        if recorded is not None and recorded.is_made_of_sizes(array):
            place = recorded.register_of(array)
            return Fresh(place) if self._is_made(array) else Constant(place)
        if recorded is not None and not (recorded.is_constant(array) or self._is_outside(array)):
            raise recorded.failed()
        return Fresh(array) if self._is_made(array) else array

    def _is_made(self, array: Any) -> bool:
        """Whether eager code would make the array anew in each call."""
        if self._tracer.is_made(array):
            return True
        is_mutable = hasattr(array, "flags") or getattr(array, "requires_grad", None) is False  # NumPy's, torch's
        return is_mutable and not self._is_outside(array)

    def _is_outside(self, value: Any) -> bool:
        """Whether the function had the object, or an array whose memory it shares, before it was called."""
        outside = self._outside()
        if not outside.is_all or id(value) in outside.ids:
            return True
        return is_array(value) and any(_overlap_in_memory(value, known) for known in outside.arrays)

    def _other(self, leaf: Any) -> Any:
        held, is_all = reached([leaf])
        if any(isinstance(v, Traced) for v in held):
            what = f"{self._tracer.name} returns what it computes within a value of type {type(leaf).__name__}"
            raise trace_error(
                what, "return arrays, or tuples, lists, dicts and dataclasses of arrays, and make the rest outside", ""
            )
        if self._tracer.recorded is not None and (not is_all or any(map(self._is_sized, held))):
            raise self._tracer.recorded.failed()
        if is_all and self._changes(leaf, held):
            return self._copied(leaf)
        return Constant(leaf) if may_hold_results(leaf) else read(leaf)

    def _changes(self, leaf: Any, held: Sequence[Any]) -> bool:
        """Whether what callers do with an object that the function makes would be seen by the next call."""
        is_used_up = hasattr(type(leaf), "__next__") and not self._is_outside(leaf)
        return is_used_up or any(is_array(v) and self._is_made(v) for v in held)

    def _copied(self, leaf: Any) -> Fresh:
        try:
            return Fresh(copied(leaf))
        except Exception:
            what = f"{self._tracer.name} returns a {type(leaf).__name__} that it makes, of which calls have no copies"
            raise trace_error(what, "return a list, a tuple or arrays", "") from None

    def _holds_parts(self, value: Any) -> bool:
        """Whether an object holds what each call makes."""
        return any(map(self._is_part, reached([value])[0]))

    def _is_part(self, value: Any) -> bool:
        is_of_calls = isinstance(value, Traced) or is_number(value) or self._is_sized(value)
        return is_of_calls or (is_array(value) and self._is_made(value))

    def _is_sized(self, value: Any) -> bool:
        return self._tracer.recorded is not None and self._tracer.recorded.is_made_of_sizes(value)


class _Outside:
    """What a function had before it was called: all objects, whether they are all, and the arrays among them."""

    def __init__(self, objects: list[Any], is_all: bool) -> None:
        self.objects, self.is_all = objects, is_all  # which keeps the ids theirs
        self.ids = set(map(id, objects))
        self.arrays = list(filter(is_array, objects))


def _overlap_in_memory(x: Any, y: Any) -> bool:
    """Whether arrays on the CPU lie in the same memory, of whatever library they are."""
    first, end = _span(x)
    start, last = _span(y)
    return first < last and start < end


def _span(array: Any) -> tuple[int, int]:
    """The addresses of its memory; none where it has no memory of its own."""
    if isinstance(array, np.ndarray):
        first, last = np.lib.array_utils.byte_bounds(array)
        return int(first), int(last)
    if has_no_data(array):
        return 0, 0
    try:
        storage = array.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    except (AttributeError, NotImplementedError, RuntimeError):  # of another library, sparse
        return 0, 0
