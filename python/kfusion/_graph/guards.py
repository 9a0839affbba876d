"""What a function depends on beside its arguments: the user's functions that it runs, what they name, and modules."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Collection, Iterable, Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from . import modules
from .source import in_library, is_installed

_PLAIN = (FunctionType, MethodType, ModuleType, type)
_Path = tuple[str, ...]  # of a global and attributes of it: ("layers", "norm")
_ABSENT = object()


class Guard(NamedTuple):
    """A function, whose code, defaults and names decide what a trace gives, or a module, whose attributes do.

    `names` are the globals of a function, the attributes of a Python module, or those attributes of a torch module that
    do not count; `cells` positions in a function's closure.
    """

    owner: Any
    names: tuple[str, ...]
    cells: tuple[int, ...] = ()


class _Names(NamedTuple):
    globals: frozenset[_Path]  # read and never set
    cells: frozenset[str]


def guards(function: Any, effects: Collection[str] = ()) -> list[Guard]:
    """What decides what a trace of the function gives.

    Functions of the user's that it names are followed, and attributes of the user's modules; those of libraries are
    taken to stay as they are. A name that the code itself sets is none: it is an effect. Of torch modules all
    attributes count, but those that are `effects`.
    """
    found: dict[FunctionType, Guard] = {}
    attributes: dict[ModuleType, set[str]] = {}
    layers: dict[int, Any] = {}
    met: dict[int, Any] = {}  # by id, which stays theirs
    static = _Static()
    todo = [function]
    while todo:
        value = todo.pop()
        if id(value) in met:
            continue
        met[id(value)] = value
        value = _unwrapped(value, static)
        if modules.is_module(value) and id(value) not in layers:
            layers[id(value)] = value
            todo += modules.children(value)
        todo += _parts(value)
        f = _plain(value, static)
        if f is None or f in found:
            continue
        names = _names(f.__code__)
        found[f] = _guard_of(f, names)
        todo += values(found[f])
        for module, name in _attributes(f, names.globals):
            attributes.setdefault(module, set()).add(name)
            todo.append(vars(module).get(name))
    ignored = (*modules.WITHOUT_EFFECT, *sorted(effects))
    of_modules = (Guard(module, tuple(sorted(names))) for module, names in attributes.items())
    return [*found.values(), *of_modules, *(Guard(layer, ignored) for layer in layers.values())]


def _parts(value: Any) -> list[Any]:
    """What a partial calls and passes, the module of a method, and modules in a list or tuple."""
    if type(value) in (list, tuple):
        return [item for item in value if modules.is_module(item)]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    return [value.__self__] if isinstance(value, MethodType) and modules.is_module(value.__self__) else []


def may_ask_for_types(found: Iterable[Guard]) -> bool:
    """Whether a function names `type`, to which nothing that stands for a number can lie."""
    return any("type" in guard.names for guard in found if isinstance(guard.owner, FunctionType))


def values(guard: Guard) -> Iterator[Any]:
    """What a guard's function has for defaults and its names are bound to (None where they are bound to nothing), or
    what a torch module has.
    """
    if modules.is_module(guard.owner):
        yield from modules.values(guard.owner)
        return
    yield from _defaults(guard.owner)
    yield from named_values(guard).values()


def named_values(guard: Guard) -> dict[str, Any]:
    """What the globals and closure variables of a guard's function, or a Python module's attributes, are bound to."""
    owner = guard.owner
    scope = owner.__globals__ if isinstance(owner, FunctionType) else vars(owner)
    named = {name: scope.get(name) for name in guard.names}
    return named | {owner.__code__.co_freevars[i]: _contents(owner.__closure__[i]) for i in guard.cells}


def named_modules(function: Any) -> dict[str, Any]:
    """The torch modules that the functions behind a function name."""
    named: dict[str, Any] = {}
    for guard in guards(function):
        if not modules.is_module(guard.owner):
            named = named_values(guard) | named
    return {name: value for name, value in named.items() if modules.is_module(value)}


def _defaults(owner: Any) -> Iterator[Any]:
    if isinstance(owner, FunctionType):
        yield from owner.__defaults__ or ()
        yield from (owner.__kwdefaults__ or {}).values()


class _Static:
    """Attributes as `inspect.getattr_static` finds them: no code of the objects' is run. Of modules it looks at each
    class only once, so it lives no longer than one search: classes change, too.
    """

    def __init__(self) -> None:
        self._in_classes: dict[tuple[type, str], Any] = {}
        self._calls: dict[type, Any] = {}

    def attribute(self, value: Any, name: str, default: Any = None) -> Any:
        """The attribute of an object that is no class."""
        found = self._in_class(type(value), name)
        if found is _ABSENT:
            return vars(value).get(name, default)
        if isinstance(found, FunctionType):
            return vars(value).get(name, found)  # an object's own goes before its class's functions
        return inspect.getattr_static(value, name, default)

    def call(self, kind: type) -> Any:
        """What calling an object of a class runs; None if it cannot be called."""
        if kind not in self._calls:
            self._calls[kind] = inspect.getattr_static(kind, "__call__", None)
        return self._calls[kind]

    def _in_class(self, kind: type, name: str) -> Any:
        """What a class of modules defines; None of other classes."""
        if (kind, name) not in self._in_classes:
            found = (vars(base)[name] for base in kind.__mro__ if name in vars(base))
            self._in_classes[kind, name] = next(found, _ABSENT) if modules.is_module_class(kind) else None
        return self._in_classes[kind, name]


def _unwrapped(value: Any, static: _Static) -> Any:
    """What a fused function or module, or a function that keeps its results, was made of."""
    value = modules.unfused(value)
    while not isinstance(value, _PLAIN) and (inner := static.attribute(value, "__wrapped__")) is not None:
        value = inner
    return value


def _plain(value: Any, static: _Static) -> FunctionType | None:
    """The user's function behind a value, if there is one."""
    if not isinstance(value, _PLAIN):
        value = static.attribute(value, "forward", static.call(type(value)))
    if isinstance(value, (MethodType, staticmethod, classmethod)):
        value = value.__func__
    return value if isinstance(value, FunctionType) and not in_library(value.__globals__) else None


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
