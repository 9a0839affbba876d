"""What objects and classes have, found without running their code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from . import modules

_ABSENT = object()


def getter(value: Any) -> Any:
    """The function that an attribute of a class runs when it is read; else the attribute."""
    kinds = ((property, "fget"), (functools.cached_property, "func"), (functools.partialmethod, "func"))
    for kind, name in kinds:
        if isinstance(value, kind):
            return getattr(value, name)
    return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value


def setters(value: Any) -> tuple[Any, ...]:
    """The functions that a property runs when it is set or deleted."""
    return (value.fset, value.fdel) if isinstance(value, property) else ()


def defaults(owner: Any) -> Iterator[Any]:
    """A function's defaults and attributes."""
    if isinstance(owner, FunctionType):
        yield from owner.__defaults__ or ()
        yield from (owner.__kwdefaults__ or {}).values()
        yield from vars(owner).values()


class Static:
    """Attributes as `inspect.getattr_static` finds them: no code of the objects' is run. It looks at each class of a
    module only once, so it lives no longer than one search: classes change, too.
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
