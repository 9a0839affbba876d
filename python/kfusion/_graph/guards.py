"""What a function depends on beside its arguments: the user's functions that it runs, and what they name."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Iterable, Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from .source import in_library, is_installed

_PLAIN = (FunctionType, MethodType, ModuleType, type)
_Path = tuple[str, ...]  # of a global and attributes of it: ("layers", "norm")


class Guard(NamedTuple):
    """A function, whose code, defaults and names decide what a trace gives, or a module, whose attributes do.

    `names` are the globals of a function or the attributes of a module, `cells` positions in a function's closure.
    """

    owner: FunctionType | ModuleType
    names: tuple[str, ...]
    cells: tuple[int, ...] = ()


class _Names(NamedTuple):
    globals: frozenset[_Path]  # read and never set
    cells: frozenset[str]


def guards(function: Any) -> list[Guard]:
    """What decides what a trace of the function gives.

    Functions of the user's that it names are followed, and attributes of the user's modules; those of libraries are
    taken to stay as they are. A name that the code itself sets is none: it is an effect.
    """
    found: dict[FunctionType, Guard] = {}
    attributes: dict[ModuleType, set[str]] = {}
    todo = [function]
    while todo:
        value = _unwrapped(todo.pop())
        if isinstance(value, functools.partial):
            todo += [value.func, *value.args, *value.keywords.values()]
        f = _plain(value)
        if f is None or f in found:
            continue
        names = _names(f.__code__)
        found[f] = _guard_of(f, names)
        todo += values(found[f])
        for module, name in _attributes(f, names.globals):
            attributes.setdefault(module, set()).add(name)
            todo.append(vars(module).get(name))
    return [*found.values(), *(Guard(module, tuple(sorted(names))) for module, names in attributes.items())]


def values(guard: Guard) -> Iterator[Any]:
    """What a guard's function has for defaults and its names are bound to; None where they are bound to nothing."""
    owner = guard.owner
    if isinstance(owner, FunctionType):
        yield from owner.__defaults__ or ()
        yield from (owner.__kwdefaults__ or {}).values()
    scope = owner.__globals__ if isinstance(owner, FunctionType) else vars(owner)
    yield from (scope.get(name) for name in guard.names)
    yield from (_contents(owner.__closure__[i]) for i in guard.cells)  # type: ignore[index]


def _unwrapped(value: Any) -> Any:
    """What a fused function, or one that keeps its results, was made of."""
    while not isinstance(value, _PLAIN) and (inner := inspect.getattr_static(value, "__wrapped__", None)) is not None:
        value = inner
    return value


def _plain(value: Any) -> FunctionType | None:
    """The user's function behind a value, if there is one."""
    if not isinstance(value, _PLAIN):
        value = _called(value)
    if isinstance(value, (MethodType, staticmethod, classmethod)):
        value = value.__func__
    return value if isinstance(value, FunctionType) and not in_library(value.__globals__) else None


def _called(value: Any) -> Any:
    """What calling an object runs: a module's forward, or its class's __call__. No code of the object's is run."""
    call = inspect.getattr_static(type(value), "__call__", value)
    return inspect.getattr_static(value, "forward", call)


def _guard_of(function: FunctionType, names: _Names) -> Guard:
    free = function.__code__.co_freevars
    named = sorted({path[0] for path in names.globals})
    return Guard(function, tuple(named), tuple(i for i, name in enumerate(free) if name in names.cells))


def _attributes(function: FunctionType, paths: Iterable[_Path]) -> Iterator[tuple[ModuleType, str]]:
    """The attributes of the user's own modules among the paths."""
    for first, *rest in paths:
        value = function.__globals__.get(first)
        for name in rest:
            if not isinstance(value, ModuleType) or not _is_own(value):
                break
            yield value, name
            value = vars(value).get(name)


def _is_own(module: ModuleType) -> bool:
    """Whether a module is neither of Python's library nor installed as a package."""
    is_builtin = module.__name__ in sys.builtin_module_names
    return not (is_builtin or in_library(vars(module)) or is_installed(getattr(module, "__file__", None) or ""))


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


@functools.lru_cache(maxsize=1024)
def _names(code: CodeType) -> _Names:
    """Of the code and the functions defined in it."""
    paths: set[_Path] = set()
    cells: set[str] = set()
    written: set[str] = set()
    path: _Path = ()
    for instruction in _instructions(code):
        action, _, rest = instruction.opname.partition("_")
        name = instruction.argval
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path = (*path, name)
        else:
            path = (name,) if action == "LOAD" and rest in ("GLOBAL", "NAME") else ()
        if path:
            paths.add(path)
        elif rest.endswith("DEREF") and action == "LOAD":
            cells.add(name)
        elif rest in ("GLOBAL", "NAME") or rest.endswith("DEREF"):
            written.add(name)
    return _Names(frozenset(p for p in paths if p[0] not in written), frozenset(cells - written))


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)
