"""The names that the code of a function uses: globals, closure variables and attributes."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

Path = tuple[str, ...]  # of a global and attributes of it: ("layers", "norm")


class Names(NamedTuple):
    """What code names: globals, closure variables and attributes of whatever object; and the globals and attributes
    that it sets.
    """

    globals: frozenset[Path]
    cells: frozenset[str]
    attributes: frozenset[str]
    written: frozenset[str]
    stored: frozenset[str]


@functools.lru_cache(maxsize=1024)
def names_of(code: CodeType) -> Names:
    """The names that the code and the functions defined in it use."""
    paths: set[Path] = set()
    cells: set[str] = set()
    written: set[str] = set()
    stored: set[str] = set()
    attributes = {c for c in _constants(code) if type(c) is str and c.isidentifier()}  # for getattr, say
    path: Path = ()
    for instruction in _instructions(code):
        action, _, rest = instruction.opname.partition("_")
        name = instruction.argval
        if rest.endswith(("ATTR", "METHOD")):
            attributes.add(name)
        if instruction.opname in ("STORE_ATTR", "DELETE_ATTR"):
            stored.add(name)
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path = (*path, name)
        else:
            path = (name,) if action == "LOAD" and rest in ("GLOBAL", "NAME") else ()
        if path:
            paths.add(path)
        elif rest.endswith("DEREF"):
            cells.add(name)
        elif rest == "GLOBAL":
            written.add(name)
    return Names(frozenset(paths), frozenset(cells), frozenset(attributes), frozenset(written), frozenset(stored))


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)


def _constants(code: CodeType) -> Iterator[Any]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _constants(constant)
        else:
            yield constant
