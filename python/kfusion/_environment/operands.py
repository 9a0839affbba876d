"""Arrays of NumPy's that a function names: whether it only computes with them, or may look at their elements, too.

NumPy does not tell who reads an element. So each place in the code that reads such an array is looked at: the
instruction that takes it from there must be one at which the trace has met the array as an operand.
"""

from __future__ import annotations

import dis
import functools
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .._graph.source import Site
from .._graph.structure import ATOMS
from . import parts
from .code_names import taker
from .guards import Guard, named_values, values
from .static import defaults

_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_STATIC = {"shape", "ndim", "dtype", "size", "itemsize", "nbytes", "flags", "strides"}  # attributes but no elements
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_NAMES = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
_UNKNOWN, _NO_ELEMENT = -2, -1  # in place of the offset of an instruction
_Arrays = Mapping[int, Any]  # by id


def may_be_looked_at(found: Iterable[Guard], arrays: _Arrays, sites: Mapping[int, Collection[Site]]) -> set[int]:
    """The ids of those arrays that are not only operands at `sites`."""
    guards = list(found)
    named, looked_at = _names_of_arrays(guards, arrays)
    for guard in guards:
        for known, site in _reads(guard, arrays, named):
            if site[1] != _NO_ELEMENT and site not in sites.get(known, ()):
                looked_at.add(known)
    return looked_at


def _names_of_arrays(guards: list[Guard], arrays: _Arrays) -> tuple[dict[str, set[int]], set[int]]:
    """By which attributes arrays are known, and those that code may have from a container or as a default."""
    found = {id(v): v for guard in guards for v in (guard.owner, *values(guard))}
    objects = [v for i, v in found.items() if type(v) not in ATOMS and i not in arrays]
    attributes: dict[str, set[int]] = {}
    of_objects: set[int] = set()
    elsewhere: set[int] = set()
    for value in objects:
        own = vars(value) if isinstance(value, ModuleType) else parts.own(value)
        of_objects.add(id(own))
        for name, item in (own if isinstance(value, ModuleType) else parts.attributes(value)).items():
            if id(item) in arrays:
                attributes.setdefault(name, set()).add(id(item))
    for value in objects:
        if isinstance(value, FunctionType):
            elsewhere |= set(map(id, defaults(value)))
        elif isinstance(value, _CONTAINERS) and id(value) not in of_objects:
            elsewhere |= set(map(id, value.values() if isinstance(value, dict) else value))
    return attributes, elsewhere & arrays.keys()


def _reads(guard: Guard, arrays: _Arrays, named: Mapping[str, set[int]]) -> Iterator[tuple[int, Site]]:
    """Where a function's code reads an array, and what takes it from there."""
    if isinstance(guard.owner, FunctionType):
        bound = {name: {id(value)} for name, value in named_values(guard).items() if id(value) in arrays}
        for code, opname, name, taker in _loads(guard.owner.__code__):
            for known in (named if opname in _ATTRIBUTES else bound).get(name, ()):
                yield known, (code, taker)


@functools.lru_cache(maxsize=256)
def _loads(code: CodeType) -> list[tuple[CodeType, str, str, int]]:
    """The instructions that load a name or an attribute: their code, what they are, the name, and which takes that."""
    instructions = list(dis.get_instructions(code))
    found = [
        (code, x.opname, str(x.argval), _place(taker(instructions[number + 1 :])))
        for number, x in enumerate(instructions)
        if x.opname in (*_NAMES, *_ATTRIBUTES)
    ]
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return found + [load for each in inner for load in _loads(each)]


def _place(by: dis.Instruction | None) -> int:
    if by is None:
        return _UNKNOWN
    asks_attribute = by.opname in _ATTRIBUTES and by.argval in _STATIC
    return _NO_ELEMENT if asks_attribute or by.opname.endswith(("_NONE", "IS_OP")) else by.offset
