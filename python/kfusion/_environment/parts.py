"""What values hold: containers, objects, classes and modules. No code of theirs is run to find out.

`cpp/python/fuse/guards.cpp` compares the same parts in each call.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from threading import local
from types import BuiltinFunctionType, CellType, MemberDescriptorType, ModuleType
from typing import Any
from weakref import CallableProxyType, ProxyType, ref

from .._graph.appended import Appended
from .._graph.source import in_library, is_installed
from .._graph.structure import ATOMS, HEAP_TYPE

_CONTAINERS = (list, tuple, dict, set, frozenset)
_OF_PYTHON = ("_io", "io", "logging")  # whose objects decide nothing: a file's change when it is written to
_BY_PYTHON = ("__slotnames__", "__annotations_cache__")  # what copy and others note in classes
_HAS_GC = 1 << 14  # of a class whose objects say what they refer to: Py_TPFLAGS_HAVE_GC
KEPT = type(functools.lru_cache(lambda: None))


def parts_of(value: Any) -> list[Any] | None:
    """What a container holds, or an object to which there are no weak references; None of others."""
    kind = type(value)
    if kind is Appended or value is sys.modules:
        return None
    if isinstance(value, _CONTAINERS):
        return _items(value)
    if isinstance(value, ref):
        return [ref.__call__(value)]
    if kind in (ProxyType, CallableProxyType):
        return [_behind(value)]
    if kind is ContextVar:
        return [value.get(None)]
    if isinstance(value, BuiltinFunctionType):
        return None if isinstance(value.__self__, (ModuleType, type)) else [value.__self__]
    if isinstance(value, (deque, functools.partial)) or (not kind.__weakrefoffset__ and _is_open(kind)):
        return gc.get_referents(value)
    return None


def _items(value: Any) -> list[Any]:
    items = list(value.values() if isinstance(value, dict) else value)
    made_by = [value.default_factory] if isinstance(value, defaultdict) else []
    return items + made_by + list(() if type(value).__weakrefoffset__ else own(value).values())


def _is_open(kind: type) -> bool:
    is_python = bool(kind.__flags__ & HEAP_TYPE)
    is_opaque = in_library({"__name__": kind.__module__}) or (not is_python and hasattr(kind, "__get__"))
    return bool(kind.__flags__ & _HAS_GC) and not is_opaque


def _behind(proxy: Any) -> Any:
    """The object of a weak proxy, which passes on what it is asked."""
    with contextlib.suppress(ReferenceError, AttributeError):
        return proxy.__init__.__self__
    return None


def expanded(found: Iterable[Any]) -> Iterator[Any]:
    """Values and what they hold, within containers, each container once."""
    met: dict[int, Any] = {}
    todo = list(found)[::-1]
    while todo:
        value = todo.pop()
        yield value
        if type(value) not in ATOMS and id(value) not in met and (held := parts_of(value)) is not None:
            met[id(value)] = value
            todo += held[::-1]


def attributes(value: Any) -> dict[str, Any]:
    """Those that an object, a class or a module has itself, in slots too."""
    if isinstance(value, (type, ModuleType)):
        return {name: held for name, held in vars(value).items() if name not in _BY_PYTHON}
    slots = {n: d for kind in classes(value) for n, d in vars(kind).items() if isinstance(d, MemberDescriptorType)}
    return own(value) | {n: of_slot(d, value) for n, d in slots.items() if _is_set(d, value)} if slots else own(value)


def own(value: Any) -> dict[str, Any]:
    """An object's attributes in its __dict__: no code of the object's is run."""
    try:
        found = vars(value) if isinstance(value, local) else object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def of_slot(descriptor: MemberDescriptorType, value: Any) -> Any:
    """What an object has in a slot of its class; None where that is not set."""
    try:
        return value if isinstance(value, type) else descriptor.__get__(value)
    except AttributeError:
        return None


def _is_set(descriptor: MemberDescriptorType, value: Any) -> bool:
    try:
        descriptor.__get__(value)
    except AttributeError:
        return False
    return True


def contents_of(cell: CellType, default: Any = None) -> Any:
    """What a closure variable is bound to."""
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return default


# ---- whose it is ----


def is_of_library(kind: type) -> bool:
    """Whether a class is built in or a library's, so that its objects have no attributes that count."""
    is_built_in = not kind.__flags__ & HEAP_TYPE  # code without a module says that its classes are of "builtins"
    is_pythons = kind.__module__.partition(".")[0] in _OF_PYTHON
    return is_built_in or is_pythons or in_library({"__name__": kind.__module__})


def classes(value: Any) -> list[type]:
    """Those that say what an object's attributes are, but for those of libraries and Python's."""
    kind = value if isinstance(value, type) else type(value)
    return [k for k in kind.__mro__ if not is_of_library(k)]


def is_own_class(kind: type) -> bool:
    """Whether a class is the user's: neither a library's nor installed."""
    module = sys.modules.get(kind.__module__)
    return not is_of_library(kind) and (module is None or kind.__module__ == "builtins" or is_own_module(module))


def is_installed_module(value: Any) -> bool:
    """Whether it is a module whose functions and classes stay as they are."""
    return isinstance(value, ModuleType) and not is_own_module(value)


def is_own_module(module: ModuleType) -> bool:
    """Whether it is neither of Python's library nor installed as a package."""
    is_builtin = module.__name__ in sys.builtin_module_names
    return not (is_builtin or in_library(vars(module)) or is_installed(vars(module).get("__file__") or ""))
