"""What a function depends on beside its arguments: the user's functions that it runs, and what these can read."""

from __future__ import annotations

import enum
import functools
import inspect
import sys
from collections.abc import Collection, Iterable, Iterator
from types import (
    CellType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

from .._spec import is_array
from . import modules
from .appended import Appended
from .code_names import Names, Path, names_of
from .objects import Functional, Key
from .source import in_library, is_installed
from .structure import ATOMS, HEAP_TYPE, leaves

_PLAIN = (FunctionType, MethodType, ModuleType, type)
_CALLED = (FunctionType, MethodType, functools.partial)
_ABSENT = object()
_CONTAINERS = (list, tuple, dict, set, frozenset)
_MOST_ITEMS, _DEEPEST = 1024, 8  # of containers that are taken apart, as guards.cpp has them
_OF_PARTIALS = ("args", "func", "keywords")
_OF_PYTHON = ("_io", "io", "logging")  # whose objects decide nothing: a file's change when it is written to
_ASKED = ("is_grad_enabled", "is_inference_mode_enabled")


class Guard(NamedTuple):
    """A function, whose code, defaults and names decide what a trace gives, or an object, whose attributes do, or a
    function of the library whose result does.

    `names` are the globals of a function, or the attributes that are read. Of a `whole` object, a torch module, all
    count but those; of a `whole` function its attributes do, too. `cells` are positions in a function's closure.
    """

    owner: Any
    names: tuple[str, ...]
    cells: tuple[int, ...] = ()
    whole: bool = False


def guards(function: Any, *argument: Any) -> list[Guard]:
    """What decides what a trace of the function gives; with an object among its arguments, what else does then.

    Functions of the user's that it names are followed, and objects that they can reach: by names, attributes and
    entries. Of an object those attributes count that are read by their name anywhere in these functions; of torch
    modules all. Libraries are taken to stay as they are. What is in the places of a `Functional` is an argument.
    """
    search = _Search()
    search.follow([function])
    found = search.guards()
    if not argument:
        return found
    known = {(id(guard.owner), guard.names) for guard in found}
    search.follow(argument)
    return [guard for guard in search.guards() if (id(guard.owner), guard.names) not in known]


def guarded(*arguments: Any) -> list[Any]:
    """The objects among a call's arguments of which what they hold or run counts."""
    return [leaf for leaf in leaves(arguments) if is_guarded_type(type(leaf)) and not is_array(leaf)]


def owners(roots: Iterable[Any]) -> list[Any]:
    """The objects, classes, modules and functions that code can reach, which it may set something in."""
    search = _Search()
    search.follow(roots)
    return search.owners()


def reachable(*roots: Any) -> list[Any]:
    """What functions among these can reach, and what they are and hold."""
    search = _Search()
    search.follow(roots)
    return search.met()


def is_guarded_type(kind: type) -> bool:
    """Whether what an object of a class holds or runs decides what is traced, where the object is an argument; for C++.

    The class is none of a library's or Python's own, but for functions and torch's modules.
    """
    if not kind.__weakrefoffset__ or issubclass(kind, (type, ModuleType, enum.Enum)):
        return False
    return kind in _CALLED or modules.is_module_class(kind) or not _is_of_library(kind)


class _Held(NamedTuple):
    """An object that code can reach, the names of its attributes that count, and those that were looked for."""

    value: Any
    names: set[str]
    seen: set[str]


class _Search:
    """What code can reach."""

    def __init__(self) -> None:
        self._functions: dict[FunctionType, Guard] = {}
        self._modules: dict[ModuleType, set[str]] = {}
        self._layers: dict[int, Any] = {}
        self._objects: dict[int, _Held] = {}
        self._asked: dict[Any, None] = {}  # functions of the library whose results count
        self._names = {"forward", "__call__"}  # attributes that code reads, or calls run
        self._stored: set[str] = set()  # of these, those that it sets: where there is none, that counts, too
        self._met: dict[int, Any] = {}  # by id, which stays theirs
        self._static = _Static()
        self._todo: list[Any] = []
        self._places: dict[Key, None] = {}  # that are arguments

    def follow(self, roots: Iterable[Any]) -> None:
        """Adds what can be reached from these."""
        self._todo += roots
        while self._todo:
            while self._todo:
                self._meet(self._todo.pop())
            for held in list(self._objects.values()):
                self._read(held)

    def guards(self) -> list[Guard]:
        """The guards of all that was found."""
        named = [*self._modules.items(), *((held.value, held.names) for held in self._objects.values())]
        found = [
            *self._functions.values(),
            *(Guard(owner, tuple(sorted(names))) for owner, names in named if names),
            *(Guard(layer, modules.WITHOUT_EFFECT, whole=True) for layer in self._layers.values()),
            *(Guard(function, ()) for function in self._asked),
        ]
        return [_without(guard, self._places) for guard in found] if self._places else found

    def owners(self) -> list[Any]:
        """What it may set something in."""
        return [
            *self._functions,
            *self._modules,
            *self._layers.values(),
            *(held.value for held in self._objects.values()),
        ]

    def met(self) -> list[Any]:
        """All that was found."""
        return list(self._met.values())

    def _meet(self, value: Any) -> None:
        if type(value) in ATOMS or id(value) in self._met or is_array(value):
            return
        self._met[id(value)] = value
        value = self._unwrapped(value)
        if modules.is_module(value):
            self._layers[id(value)] = value
            self._todo += modules.values(value)
            self._add(type(value))
            owner, names = modules.hooks_of_all()
            self._modules[owner] = set(names)
            self._todo += (vars(owner)[name] for name in names)
        elif isinstance(value, functools.partial):
            self._add(value, _OF_PARTIALS)
            self._todo += [value.func, value.args, value.keywords]
        elif isinstance(value, MethodType):
            self._todo.append(value.__self__)
        elif (parts := _parts(value)) is not None:
            self._todo += parts
        elif _has_attributes(value):
            self._add(value)
        function = _plain(value, self._static)
        if function is not None and function not in self._functions:
            self._run(function)

    def _unwrapped(self, value: Any) -> Any:
        """What a fused function or module, or a function that keeps its results, was made of."""
        value = modules.unfused(value)
        while not isinstance(value, _PLAIN) and (inner := self._static.attribute(value, "__wrapped__")) is not None:
            if isinstance(value, Functional):
                self._places |= dict.fromkeys(place.key for place in value.places)
            value = inner
        return value

    def _add(self, value: Any, names: Iterable[str] = ()) -> None:
        self._objects.setdefault(id(value), _Held(value, set(names), set(names)))

    def _run(self, function: FunctionType) -> None:
        names = names_of(function.__code__)
        guard = self._functions[function] = _guard_of(function, names)
        self._names |= names.attributes
        self._stored |= names.stored
        if any(path[0] == "type" for path in names.globals):
            self._names.add("__class__")
        self._todo += values(guard)
        for module, name in _attributes(function, names.globals):
            self._modules.setdefault(module, set()).add(name)
            self._todo.append(vars(module).get(name))
        self._asked |= dict.fromkeys(_asked(function, names))

    def _read(self, held: _Held) -> None:
        """Follows the attributes of an object that code reads and that were not looked for yet."""
        own = {} if isinstance(held.value, type) else _own(held.value)
        kinds = _classes(held.value)
        held.names.update(self._stored)
        if "__class__" in self._names:
            self._todo += [kind for kind in kinds if id(kind) not in self._met and _is_own_class(kind)]
        for name in sorted({n for scope in (own, *map(vars, kinds)) for n in scope.keys() & self._names} - held.seen):
            held.seen.add(name)
            if name in own:
                held.names.add(name)
                self._todo.append(own[name])
            for kind in kinds:
                if name in vars(kind):
                    self._of_class(held, name, kind)

    def _of_class(self, held: _Held, name: str, kind: type) -> None:
        found = vars(kind)[name]
        if isinstance(found, MemberDescriptorType):
            held.names.add(name)
            self._todo.append(_of_slot(found, held.value))
        elif _is_own_class(kind):
            held.names.add(name)
            self._todo.append(_getter(found))
            if isinstance(found, classmethod):
                self._names.add("__class__")
        elif isinstance(function := _getter(found), FunctionType):  # an installed one stays as it is
            self._names |= names_of(function.__code__).attributes


def _without(guard: Guard, places: Collection[Key]) -> Guard:
    """The guard, for which what is in places does not count."""
    owner = guard.owner
    if isinstance(owner, FunctionType):
        cells = tuple(i for i in guard.cells if (id((owner.__closure__ or ())[i]), "cell") not in places)
        scope: Any = owner.__globals__
        whole = not any((id(owner), name) in places for name in vars(owner))
        return Guard(owner, tuple(n for n in guard.names if (id(scope), n) not in places), cells, whole)
    scope = vars(owner) if isinstance(owner, ModuleType) else owner
    if not guard.whole:
        return guard._replace(names=tuple(n for n in guard.names if (id(scope), n) not in places))
    return guard._replace(names=(*guard.names, *(name for of, name in places if of == id(owner))))


def _parts(value: Any) -> Iterable[Any] | None:
    """What a container holds, or an object to which there are no weak references; None of others."""
    if isinstance(value, _CONTAINERS) and type(value) is not Appended:
        held = value.values() if isinstance(value, dict) else value
        return tuple(held) if len(value) <= _MOST_ITEMS else ()
    kind = type(value)
    return tuple(_own(value).values()) if kind.__dictoffset__ and not kind.__weakrefoffset__ else None


def _has_attributes(value: Any) -> bool:
    """Whether it is a class of the user's, or an object with a life of its own, neither a library's nor Python's."""
    kind = type(value)
    if isinstance(value, type):
        return _is_own_class(value)
    return not isinstance(value, (*_PLAIN, enum.Enum)) and bool(kind.__weakrefoffset__) and not _is_of_library(kind)


def _is_of_library(kind: type) -> bool:
    is_built_in = not kind.__flags__ & HEAP_TYPE  # code without a module says that its classes are of "builtins"
    is_pythons = kind.__module__.partition(".")[0] in _OF_PYTHON
    return is_built_in or is_pythons or in_library({"__name__": kind.__module__})


def attributes(value: Any) -> dict[str, Any]:
    """Those that an object, a class or a module has itself, in slots too."""
    if isinstance(value, (type, ModuleType)):
        return dict(vars(value))
    slots = {n: d for kind in _classes(value) for n, d in vars(kind).items() if isinstance(d, MemberDescriptorType)}
    return (
        _own(value) | {n: _of_slot(d, value) for n, d in slots.items() if _is_set(d, value)} if slots else _own(value)
    )


def _own(value: Any) -> dict[str, Any]:
    """An object's attributes in its __dict__: no code of the object's is run."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _of_slot(descriptor: MemberDescriptorType, value: Any) -> Any:
    try:
        return value if isinstance(value, type) else descriptor.__get__(value)
    except AttributeError:  # it is not set
        return None


def _is_set(descriptor: MemberDescriptorType, value: Any) -> bool:
    try:
        descriptor.__get__(value)
    except AttributeError:
        return False
    return True


def _classes(value: Any) -> list[type]:
    """Those that say what an object's attributes are, but for those of libraries and Python's."""
    kind = value if isinstance(value, type) else type(value)
    return [k for k in kind.__mro__ if not _is_of_library(k)]


def _is_own_class(kind: type) -> bool:
    """Whether a class is the user's: neither a library's nor installed."""
    module = sys.modules.get(kind.__module__)
    return not _is_of_library(kind) and (module is None or kind.__module__ == "builtins" or _is_own(module))


def _getter(value: Any) -> Any:
    """The function that an attribute of a class runs when it is read; else the attribute."""
    for kind, name in ((property, "fget"), (functools.cached_property, "func")):
        if isinstance(value, kind):
            return getattr(value, name)
    return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value


def _asked(function: FunctionType, names: Names) -> Iterator[Any]:
    """Functions of torch whose results decide what the function's calls of torch do, or that it asks itself."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for name in _ASKED:
        if name in names.attributes or any(path[0] == name for path in names.globals):
            yield getattr(torch, name)
    named = (function.__globals__.get(path[0]) for path in names.globals)
    if any(isinstance(value, ModuleType) and value.__name__.partition(".")[0] == "torch" for value in named):
        yield torch.get_default_dtype


def expanded(found: Iterable[Any], depth: int = _DEEPEST) -> Iterator[Any]:
    """Values and what they hold, within containers."""
    for value in found:
        yield value
        if depth and type(value) not in ATOMS and (parts := _parts(value)):
            yield from expanded(parts, depth - 1)


def may_ask_for_types(found: Iterable[Guard], *, installed: bool = True) -> bool:
    """Whether a function names `type`, to which nothing that stands for a number can lie; one of an installed package,
    too, or only one of the user's own.
    """
    asking = (g.owner for g in found if isinstance(g.owner, FunctionType) and "type" in g.names)
    return any(installed or not is_installed(function.__code__.co_filename) for function in asking)


def values(guard: Guard) -> Iterator[Any]:
    """What a guard's function has for defaults and its names are bound to (None where they are bound to nothing), or
    what an object has, and what is held by those that are containers.
    """
    if guard.whole and not isinstance(guard.owner, FunctionType):
        return expanded(modules.values(guard.owner, guard.names))
    return expanded([*_defaults(guard.owner), *named_values(guard).values()])


def named_values(guard: Guard) -> dict[str, Any]:
    """What the globals and closure variables of a guard's function, or an object's attributes, are bound to."""
    owner = guard.owner
    if isinstance(owner, FunctionType):
        named = {name: owner.__globals__.get(name) for name in guard.names}
        return named | {owner.__code__.co_freevars[i]: contents_of((owner.__closure__ or ())[i]) for i in guard.cells}
    if isinstance(owner, ModuleType):
        return {name: vars(owner).get(name) for name in guard.names}
    return {name: _attribute(owner, name) for name in guard.names}


def _attribute(owner: Any, name: str) -> Any:
    found = inspect.getattr_static(owner, name, None)
    return _of_slot(found, owner) if isinstance(found, MemberDescriptorType) else found


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
        yield from vars(owner).values()


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


def _plain(value: Any, static: _Static) -> FunctionType | None:
    """The user's function behind a value, if there is one."""
    if not isinstance(value, _PLAIN):
        value = static.attribute(value, "forward", static.call(type(value)))
    if isinstance(value, (MethodType, staticmethod, classmethod)):
        value = value.__func__
    return value if isinstance(value, FunctionType) and not in_library(value.__globals__) else None


def _guard_of(function: FunctionType, names: Names) -> Guard:
    free = function.__code__.co_freevars
    named = sorted({path[0] for path in names.globals} | names.written)
    cells = tuple(i for i, name in enumerate(free) if name in names.cells)
    return Guard(function, tuple(named), cells, whole=True)


def _attributes(function: FunctionType, paths: Iterable[Path]) -> Iterator[tuple[ModuleType, str]]:
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


def contents_of(cell: CellType, default: Any = None) -> Any:
    """What a closure variable is bound to."""
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return default


def named_globals(function: FunctionType) -> set[str]:
    """The globals that a function reads or sets: all, where it asks for them."""
    names = names_of(function.__code__)
    named = {path[0] for path in names.globals} | names.written
    return set(function.__globals__) if "globals" in named else named & function.__globals__.keys()
