"""What a function depends on beside its arguments: the globals and closure cells that it names."""

from __future__ import annotations

import builtins
import dis
import functools
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from .source import in_library

Guard = CellType | tuple[dict[str, Any], str]


class _Names(NamedTuple):
    globals: frozenset[str]  # read and never set
    cells: frozenset[str]


def guards(function: Any) -> list[Guard]:
    """The cells and (globals, name) pairs whose values decide what a trace of the function gives.

    Functions of the user's that it names are followed; those of libraries are taken to stay as they are. A name that
    the code itself sets is none: it is an effect.
    """
    found: list[Guard] = []
    todo, done = [function], set()
    while todo:
        value = todo.pop()
        if type(value).__module__ == "kfusion._fuse":
            value = value.__wrapped__
        if isinstance(value, functools.partial):
            todo += [value.func, *value.args, *value.keywords.values()]
        f = _plain(value)
        if f is None or f in done:
            continue
        done.add(f)
        for guard, value in _guards_of(f):
            found.append(guard)
            todo.append(value)
        todo += [*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()]
    return list({(id(g),) if isinstance(g, CellType) else (id(g[0]), g[1]): g for g in found}.values())


def _plain(value: Any) -> FunctionType | None:
    """The user's function behind a value, if there is one."""
    if not isinstance(value, (FunctionType, MethodType, type)):
        value = _called(value)
    if isinstance(value, MethodType):
        value = value.__func__
    return value if isinstance(value, FunctionType) and not in_library(value.__globals__) else None


def _called(value: Any) -> Any:
    """What calling an object runs: a module's forward, or its class's __call__."""
    return getattr(value, "forward", getattr(type(value), "__call__", value))  # noqa: B004


def _guards_of(function: FunctionType) -> Iterator[tuple[Guard, Any]]:
    names = _names(function.__code__)
    scope = function.__globals__
    for name in sorted(names.globals):
        if name in scope or not hasattr(builtins, name):
            yield (scope, name), scope.get(name)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name in names.cells:
            yield cell, _contents(cell)


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


@functools.lru_cache(maxsize=1024)
def _names(code: CodeType) -> _Names:
    """Of the code and the functions defined in it."""
    read: dict[str, set[str]] = {"GLOBAL": set(), "DEREF": set()}
    written: dict[str, set[str]] = {"GLOBAL": set(), "DEREF": set()}
    for instruction in dis.get_instructions(code):
        action, _, rest = instruction.opname.partition("_")
        kind = "GLOBAL" if rest in ("GLOBAL", "NAME") else "DEREF" if rest.endswith("DEREF") else ""
        if kind:
            (read if action == "LOAD" else written)[kind].add(instruction.argval)
    inner = [_names(c) for c in code.co_consts if isinstance(c, CodeType)]
    return _Names(
        frozenset(read["GLOBAL"].union(*(n.globals for n in inner)) - written["GLOBAL"]),
        frozenset(read["DEREF"].union(*(n.cells for n in inner)) - written["DEREF"]),
    )
