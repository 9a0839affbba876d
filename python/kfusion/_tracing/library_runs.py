"""Calls of torch as the steps of a plan: arrays in, results out."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .._graph.seeds import LibraryDraws
from .._graph.structure import Constant, Slot, fill, leaves
from .._spec import is_array
from . import autocast, library_arguments, library_trials
from .dtype_names import name_of_dtype
from .stored_numbers import torch_seen, torch_stored


class Run:
    """The call as the kernels' steps make it: arrays in, a list of all results out; of each tensor that is written to,
    the new one, and a number that says so. `in_place`: the new one is the old one. A call that `is_random` gives a last
    number, which the next such call takes behind its arguments: so they run in the order of the function.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        call: library_arguments.Arguments,
        new: Sequence[int] | None = None,
        written: tuple[int, ...] = (),
        copied: tuple[int, ...] = (),
        draws: LibraryDraws | None = None,
        *,
        is_random: bool = False,
    ) -> None:
        self._device = library_trials.device_of(call.values)
        self._function = function
        self._autocast = autocast.active(self._device)
        self._any_autocast = sys.modules["torch"]._C._is_any_autocast_enabled
        self._new = new
        self._written = written
        self._copied = copied
        self.draws = draws
        self.is_random = is_random
        self.in_place = False
        if hasattr(function, "gives_own"):
            self.gives_own = True  # tensors that nobody else has: they are results without a copy
        given = enumerate(zip(call.values, call.given, strict=True))
        self._views = [(i, name_of_dtype(g)) for i, (v, g) in given if v is not g]
        self._args, self._kwargs = call.structure
        # Most arguments need no search for slots at each call, and what calls cost beside the functions counts.
        self._slots = [(i, v.index) for i, v in enumerate(self._args) if isinstance(v, Slot)]
        self._names = [(k, v.index) for k, v in self._kwargs.items() if isinstance(v, Slot)]
        self._parts = [(i, v) for i, v in enumerate(self._args) if not _is_whole_or_fixed(v)]
        self._named_parts = [(k, v) for k, v in self._kwargs.items() if not _is_whole_or_fixed(v)]
        self._is_plain = new is None and not (written or copied or is_random or self._views or self._autocast)

    def __call__(self, *arrays: Any) -> list[Any]:
        if self._is_plain and not self._any_autocast():
            args, kwargs = self.filled(arrays)
            result = self._function(*args, **kwargs)
            return [torch_stored(t) for t in _tensors(result)]
        return self._called(list(arrays))

    def _called(self, given: list[Any]) -> list[Any]:
        for i, dtype in self._views:
            given[i] = torch_seen(given[i], dtype)
        for i in () if self.in_place else self._written:
            given[i] = given[i].clone()
        args, kwargs = self.filled(given)
        with autocast.as_traced(self._device, self._autocast), self.draws.first() if self.draws else _NOTHING:
            result = self._function(*args, **kwargs)
        tensors = _tensors(result)
        if self._new is not None:
            tensors = [tensors[i] for i in self._new]
        for k in self._copied:
            tensors[k] = tensors[k].clone()
        tensors += [given[i] for i in self._written]
        tensors += [_done(given[i]) for i in self._written]
        tensors += [_done(given[0])] if self.is_random else []
        return [torch_stored(t) for t in tensors]

    def filled(self, arrays: Sequence[Any]) -> Any:
        """(args, kwargs) of the function, with these arrays."""
        args = list(self._args)
        for index, i in self._slots:
            args[index] = arrays[i]
        for index, part in self._parts:
            args[index] = fill(part, list(arrays))
        if not (self._names or self._named_parts):
            return args, self._kwargs
        kwargs = self._kwargs | {k: arrays[i] for k, i in self._names}
        return args, kwargs | {k: fill(part, list(arrays)) for k, part in self._named_parts}


def _done(tensor: Any) -> Any:
    return tensor.new_zeros((), dtype=sys.modules["torch"].int64)


_NOTHING = contextlib.nullcontext()


def _tensors(result: Any) -> list[Any]:
    if is_array(result):
        return [result]
    if isinstance(result, tuple) and all(map(is_array, result)):
        return list(result)
    return [t for t in leaves(result) if is_array(t)]


def _is_whole_or_fixed(value: Any) -> bool:
    """Whether an argument is an array, or the same at each call: the function cannot change it."""
    if isinstance(value, Slot):
        return True
    return library_trials.is_hashable(value) and not any(isinstance(leaf, (Slot, Constant)) for leaf in leaves(value))
