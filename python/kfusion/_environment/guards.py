"""What a function depends on beside its arguments: the user's functions that it runs, and what these can read."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Collection, Iterable, Iterator
from threading import local
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple

from .._graph.source import is_installed
from .._graph.structure import leaves
from .._spec import is_array
from . import modules, parts
from .code_names import names_of
from .objects import Key
from .parts import expanded
from .search import Search
from .static import defaults

_CALLED = (FunctionType, MethodType, functools.partial)


class Guard(NamedTuple):
    """A function, whose code, defaults and names decide what a trace gives, or an object, whose attributes do, or a
    function of a library whose answer does (`asks`).

    `names` are the globals of a function, or the attributes that are read, or what a function that is asked is called
    with. All attributes of a `whole` object, a torch module, count but those; a `whole` function's attributes do, too.
    `cells` are positions in a function's closure.
    """

    owner: Any
    names: tuple[Any, ...]
    cells: tuple[int, ...] = ()
    whole: bool = False
    asks: bool = False


def guards(function: Any, *argument: Any) -> list[Guard]:
    """What decides what a trace of the function gives; with an object among its arguments, what else does then.

    Functions of the user's that it names are followed, and objects that they can reach: by names, attributes and
    entries. An object's attributes count that are read by their name anywhere in these functions; a torch
    module's attributes all do. The code of libraries is taken to stay as it is. What is in the targets of a
    `Functional` is an argument.
    """
    search = Search()
    search.follow([function])
    found = _guards(search)
    if not argument:
        return found
    known = {(id(guard.owner), guard.names) for guard in found}
    search.follow(argument)
    return [guard for guard in _guards(search) if (id(guard.owner), guard.names) not in known]


def guarded(*arguments: Any) -> list[Any]:
    """The objects and classes among a call's arguments of which what they hold or run counts."""
    kinds = ((leaf, leaf if isinstance(leaf, type) else type(leaf)) for leaf in leaves(arguments))
    return [leaf for leaf, kind in kinds if is_guarded_type(kind) and not is_array(leaf)]


class Reached(NamedTuple):
    """What code can reach.

    `owners` are objects, classes, modules and functions in which it may set something, `sets` the names that it sets
    there, None where it may set any. `values` are all that was found but arrays. `changes_by_itself`: a clock is among
    it, or another thing that tells something else each time.
    """

    owners: list[Any]
    sets: frozenset[str] | None
    values: list[Any]
    arrays: list[Any]
    changes_by_itself: bool


def reached(roots: Iterable[Any]) -> Reached:
    """What functions among these can reach, and what they are and hold."""
    search = Search()
    search.follow(roots)
    held = [held.value for held in search.objects.values() if not parts.is_installed_module(held.value)]
    owners = [*search.functions, *search.layers.values(), *held]
    names = [names_of(function.__code__) for function in search.functions]
    sets = frozenset().union(*(n.written | n.rebound | n.stored for n in names))
    sets_any = any(n.sets_any for n in names)
    return Reached(
        owners, None if sets_any else sets, search.met(), list(search.arrays.values()), search.changes_by_itself
    )


def is_guarded_type(kind: type) -> bool:
    """Whether what an object of a class holds or runs decides what is traced, where the object is an argument; for C++.

    The class is none of a library's or Python's own, but for functions and torch's modules.
    """
    if not kind.__weakrefoffset__ or issubclass(kind, (type, ModuleType, enum.Enum)):
        return False
    return kind in _CALLED or modules.is_module_class(kind) or not parts.is_of_library(kind)


def _guards(search: Search) -> list[Guard]:
    held = [held for held in search.objects.values() if held.names]
    whole = [held.value for held in held if search.reads_any and _is_whole(held.value)]
    found = [
        *(Guard(f.value, f.globals, f.cells, whole=True) for f in search.functions.values()),
        *(Guard(held.value, tuple(sorted(held.names))) for held in held),
        *(Guard(value, (), whole=True) for value in whole),
        *(Guard(owner, tuple(sorted(names))) for owner, names in search.settings.values()),
        *(Guard(layer, modules.WITHOUT_EFFECT, whole=True) for layer in search.layers.values()),
        *(Guard(asked.function, asked.arguments, asks=True) for asked in search.asked.values()),
    ]
    return [_without(guard, search.targets) for guard in found] if search.targets else found


def _is_whole(value: Any) -> bool:
    """Whether all attributes count of an object that code reads by any name, also those that it has not yet."""
    return bool(type(value).__dictoffset__) and not isinstance(value, (type, ModuleType, local, FunctionType))


def _without(guard: Guard, targets: Collection[Key]) -> Guard:
    """The guard, for which what is in targets does not count."""
    owner = guard.owner
    if guard.asks:
        return guard
    if isinstance(owner, FunctionType):
        cells = tuple(i for i in guard.cells if (id((owner.__closure__ or ())[i]), "cell") not in targets)
        scope: Any = owner.__globals__
        whole = not any((id(owner), name) in targets for name in vars(owner))
        return Guard(owner, tuple(n for n in guard.names if (id(scope), n) not in targets), cells, whole)
    scope = vars(owner) if isinstance(owner, ModuleType) else owner
    if not guard.whole:
        return guard._replace(names=tuple(n for n in guard.names if (id(scope), n) not in targets))
    return guard._replace(names=(*guard.names, *(name for of, name in targets if of == id(owner))))


def may_ask_for_types(found: Iterable[Guard], *, installed: bool = True) -> bool:
    """Whether a function names `type`, to which nothing that stands for a number can lie; one of an installed package,
    too, or only one of the user's own.
    """
    asking = (g.owner for g in found if isinstance(g.owner, FunctionType) and "type" in g.names)
    return any(installed or not is_installed(function.__code__.co_filename) for function in asking)


def values(*guards: Guard) -> Iterator[Any]:
    """What a guard's function has for defaults and its names are bound to (None where they are bound to nothing), or
    what an object has, and what is held by those that are containers.
    """
    for guard in guards:
        if guard.whole and not isinstance(guard.owner, FunctionType):
            yield from expanded(modules.values(guard.owner, guard.names))
        else:
            yield from expanded([*defaults(guard.owner), *named_values(guard).values()])


def named_values(guard: Guard) -> dict[str, Any]:
    """What the globals and closure variables of a guard's function, or an object's attributes, are bound to."""
    owner = guard.owner
    if guard.asks:
        return {}
    if isinstance(owner, FunctionType):
        named = {name: owner.__globals__.get(name) for name in guard.names}
        cells = owner.__closure__ or ()
        return named | {owner.__code__.co_freevars[i]: parts.contents_of(cells[i]) for i in guard.cells}
    if isinstance(owner, ModuleType):
        return {name: vars(owner).get(name) for name in guard.names}
    return {name: _attribute(owner, name) for name in guard.names}


def _attribute(owner: Any, name: str) -> Any:
    own = {} if isinstance(owner, type) else parts.own(owner)
    found = own[name] if name in own else inspect.getattr_static(owner, name, None)
    return parts.of_slot(found, owner) if isinstance(found, MemberDescriptorType) else found


def named_modules(function: Any) -> dict[str, Any]:
    """The torch modules that the functions behind a function name."""
    named: dict[str, Any] = {}
    for guard in guards(function):
        if not modules.is_module(guard.owner):
            named = named_values(guard) | named
    return {name: value for name, value in named.items() if modules.is_module(value)}


def named_globals(function: FunctionType) -> set[str]:
    """The globals that a function reads or sets: all, where it asks for them."""
    names = names_of(function.__code__)
    named = {path[0] for path in names.globals} | names.written
    return set(function.__globals__) if names.reads_any_global else named & function.__globals__.keys()
