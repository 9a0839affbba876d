"""Targets that a function may set beside its results, and how to set them: no code of the user's runs for that."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any

from . import guards, parts
from .contents import ABSENT
from .objects import Key


@dataclass(frozen=True, eq=False)
class Target:
    """What may be set: an attribute, a default, a global or a closure variable. The owner is a weak reference."""

    owner: weakref.ref[Any]
    kind: str
    name: Any

    @property
    def key(self) -> Key:
        """What identifies the target while its owner lives: of an object, globals or a cell."""
        owner = self.owner()
        if owner is None:
            return 0, ""
        if self.kind == "global":
            return id(owner.__globals__), self.name
        if self.kind == "cell":
            return id(owner.__closure__[owner.__code__.co_freevars.index(self.name)]), "cell"
        if isinstance(owner, ModuleType):
            return id(vars(owner)), self.name
        return id(owner), self.name if self.kind == "attribute" else f"{self.kind} {self.name}"

    def value(self) -> Any:
        """What is there; ABSENT where nothing is, or the owner is gone."""
        owner = self.owner()
        return ABSENT if owner is None else dict(scopes(owner))[self.kind].get(self.name, ABSENT)

    def set(self, value: Any) -> None:
        """Puts a value there, or removes it. None of the owner's code runs."""
        if (owner := self.owner()) is not None:
            _SETTERS[self.kind](owner, self.name, value)


def scopes(owner: Any) -> Iterator[tuple[str, dict[Any, Any]]]:
    """The kinds of targets that an object has, and what is in them, by name."""
    if not isinstance(owner, FunctionType):
        yield "attribute", parts.attributes(owner)
        return
    code = owner.__code__
    yield "attribute", vars(owner)
    yield "global", {name: owner.__globals__[name] for name in guards.named_globals(owner)}
    cells = zip(code.co_freevars, owner.__closure__ or (), strict=True)
    yield "cell", {name: value for name, cell in cells if (value := parts.contents_of(cell, ABSENT)) is not ABSENT}
    yield "default", dict(enumerate(owner.__defaults__ or ()))
    yield "keyword default", owner.__kwdefaults__ or {}


def _set_attribute(owner: Any, name: str, value: Any) -> None:
    descriptor = inspect.getattr_static(type(owner), name, None)
    if isinstance(owner, type):
        if value is not ABSENT:
            type.__setattr__(owner, name, value)
        elif name in vars(owner):
            type.__delattr__(owner, name)
    elif isinstance(descriptor, MemberDescriptorType):
        if value is not ABSENT or name in parts.attributes(owner):
            descriptor.__delete__(owner) if value is ABSENT else descriptor.__set__(owner, value)
    else:
        _set_item(vars(owner), name, value)


def _set_item(held: Any, name: Any, value: Any) -> None:
    if value is ABSENT:
        held.pop(name, None)
    else:
        held[name] = value


def _set_cell(owner: FunctionType, name: str, value: Any) -> None:
    cell = (owner.__closure__ or ())[owner.__code__.co_freevars.index(name)]
    if value is ABSENT:
        del cell.cell_contents
    else:
        cell.cell_contents = value


def _set_default(owner: FunctionType, number: int, value: Any) -> None:
    given = owner.__defaults__ or ()
    owner.__defaults__ = (*given[:number], value, *given[number + 1 :])


_SETTERS: dict[str, Callable[[Any, Any, Any], None]] = {
    "attribute": _set_attribute,
    "global": lambda owner, name, value: _set_item(owner.__globals__, name, value),
    "cell": _set_cell,
    "default": _set_default,
    "keyword default": lambda owner, name, value: _set_item(owner.__kwdefaults__, name, value),
}
