"""What objects hold, themselves or through others."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from .._graph.number import is_number
from .._graph.sizes import is_size
from .._graph.structure import ATOMS
from .._spec import is_array

_MOST = 20_000


def reached(roots: Iterable[Any], most: int = _MOST) -> tuple[list[Any], bool]:
    """All objects behind the roots, these too, and whether these are all: the search ends after `most`.

    Items, attributes and the variables of closures are followed. Classes, modules, globals, arrays of numbers, and what
    stands for values while they are traced, are not looked into.
    """
    found = {id(value): value for value in roots}
    todo = list(found.values())
    while todo and len(found) <= most:
        for value in _held(todo.pop()):
            if type(value) not in ATOMS and id(value) not in found:
                found[id(value)] = value
                todo.append(value)
    return list(found.values()), not todo


def _held(value: Any) -> Sequence[Any]:
    if hasattr(type(value), "__kfusion_traced__") or is_size(value) or is_number(value):
        return []
    if isinstance(value, FunctionType):
        return [*(value.__closure__ or ()), *(value.__defaults__ or ()), value.__kwdefaults__, vars(value)]
    if isinstance(value, np.ndarray):
        return list(value.flat) if value.dtype == object else []
    return [] if is_array(value) or isinstance(value, (type, ModuleType)) else gc.get_referents(value)
