"""State that functions of Python, NumPy and torch tell when they are asked, and what changes by itself."""

from __future__ import annotations

import abc
import functools
import io
import os
import re
import sys
import weakref
from collections.abc import Iterable, Iterator
from contextvars import Context
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from .._spec import is_array
from .code_names import Names
from .elements import MOST_COMPARED_BY_CALLS

# Functions without arguments that tell what is set, by their names, where they are.
_TELLS = re.compile(r"^get_?(default|float|num_|deterministic|fastpath|err|print|buf)|_enabled$|^initial_seed$")
_NOT_STATE = re.compile(r"^set|autocast|backend|file|compil")  # asked otherwise, or other while a function is traced
_AUTOCAST = re.compile(r"^(get|is)_.*autocast")  # older names of these tell the same, and some warn:
_OF_AUTOCAST = (
    ("is_autocast_cache_enabled", ()),
    *((name, (device,)) for name in ("get_autocast_dtype", "is_autocast_enabled") for device in ("cpu", "cuda")),
)
_OF_NAMESPACES = ("numpy", "torch", "torch.cuda", "torch.backends.cuda", "torch.backends.mha")
_OF_PYTHON = {
    "sys": ("getrecursionlimit",),
    "os": ("getcwd", "getpid"),
    "threading": ("get_ident", "get_native_id", "current_thread"),
    "gc": ("isenabled",),
}
# Whose functions give something else each time.
_BY_THEMSELVES = ("time", "datetime", "_datetime", "uuid", "secrets")
_BY_THEMSELVES_NAMES = ("urandom", "getrandom", "memory_allocated", "memory_reserved", "mem_get_info")


_OF_FUNCTIONS = {"__annotations__", "__doc__", "__module__", "__name__", "__qualname__"}


class Asked(NamedTuple):
    """A function whose result decides, and what to call it with."""

    function: Any
    arguments: tuple[Any, ...] = ()


@functools.lru_cache(maxsize=4)
def _tellers(loaded: tuple[str, ...]) -> dict[str, list[Asked]]:
    """By name: the functions of loaded libraries that tell what is set."""
    found: dict[str, list[Asked]] = {}
    for module in loaded:
        scope = vars(sys.modules[module])
        names = _OF_PYTHON.get(module) or [n for n in scope if _TELLS.search(n) and not _NOT_STATE.search(n)]
        for name in names:
            if _is_answered(scope.get(name)):
                found.setdefault(name, []).append(Asked(scope[name]))
    if "torch" in loaded:
        scope = vars(sys.modules["torch"])
        asks = [Asked(scope[name], arguments) for name, arguments in _OF_AUTOCAST if name in scope]
        found |= {name: asks for name in scope if _AUTOCAST.search(name)}
    return found


def _known() -> dict[str, list[Asked]]:
    return _tellers(tuple(filter(_is_imported, (*_OF_NAMESPACES, *_OF_PYTHON))))


def _is_imported(module: str) -> bool:
    """Whether a module is there, and no thread is importing it."""
    found = sys.modules.get(module)
    return found is not None and not getattr(getattr(found, "__spec__", None), "_initializing", False)


def answer_of(value: Any) -> list[Asked]:
    """A function that is one of those, by whatever name."""
    name = getattr(value, "__name__", None) if callable(value) else None
    return [a for a in _known().get(name, ()) if a.function is value] if isinstance(name, str) else []


def _is_answered(function: Any) -> bool:
    """Whether it is a function that can be called without arguments."""
    if not callable(function) or isinstance(function, type):
        return False
    try:
        function()
    except Exception:
        return False
    return True


def asked(names: Names) -> Iterator[Asked]:
    """What code asks by name."""
    used = names.attributes | {path[0] for path in names.globals}
    used |= {tells + name.removeprefix("set") for name in used if name.startswith("set") for tells in ("get", "is")}
    tellers = _known()
    for name in used & tellers.keys():
        yield from tellers[name]
    if "getcontext" in used and "decimal" in sys.modules:
        yield Asked(_decimals)


def flags(names: Iterable[str]) -> Iterator[Asked]:
    """Settings among the attributes of torch's backends."""
    for module in [m for n, m in sys.modules.items() if n.startswith("torch.backends.")]:
        for owner in (module, getattr(module, "matmul", None)):
            is_plain = owner is None or type(owner) is ModuleType
            yield from (Asked(getattr, (owner, n)) for n in names if not is_plain and _is_flag(owner, n))


def _is_flag(owner: Any, name: str) -> bool:
    try:
        return not name.startswith("__") and isinstance(getattr(owner, name), (bool, int, str))
    except Exception:
        return False


def environment(names: Names) -> list[Any]:
    """The environment variables, where code asks for them by a function."""
    used = names.attributes | {path[0] for path in names.globals}
    return [os.environ] if used & {"getenv", "environ", "environb", "expandvars"} else []


def changes_by_itself(value: Any) -> bool:
    """Whether something gives something else each time it is asked, such as a clock."""
    of = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    is_pythons = isinstance(value, (ModuleType, type)) or callable(value)
    return is_pythons and of in _BY_THEMSELVES


def names_what_changes_by_itself(names: Names) -> bool:
    """Whether code names such a thing."""
    used = names.attributes | {path[0] for path in names.globals}
    return not used.isdisjoint(_BY_THEMSELVES_NAMES) or not names.imports.isdisjoint(_BY_THEMSELVES)


def subclasses(kind: Any) -> Any:
    """Those of a class, by a weak reference to it."""
    found = kind()
    return found and found.__subclasses__()


def is_loaded(module: str) -> bool:
    """Whether a module of that name is there."""
    return module in sys.modules


def of_function(function: Any, names: Iterable[str]) -> Iterator[Asked]:
    """What a function says of itself, where code asks for it."""
    return (Asked(getattr, (function, name)) for name in _OF_FUNCTIONS & set(names))


def of_classes() -> Asked:
    """What changes where a class is registered as one of another, abstract one."""
    return Asked(abc.get_cache_token)


# ---- what is compared by elements ----


def elements(value: Any) -> Asked | None:
    """What an array of objects, memory that Python's own classes have, or a finalizer holds; None of others."""
    if issubclass(type(value), np.ndarray):  # a trace's values say that they are: another thread may trace
        return Asked(_objects, (weakref.ref(value),)) if value.dtype.hasobject else None
    if is_table(value):
        return Asked(_table, (weakref.ref(value),))
    if isinstance(value, (io.StringIO, io.BytesIO, Context)):
        return Asked(_held, (weakref.ref(value),))
    if isinstance(value, weakref.finalize):
        return Asked(_of_finalizer, (value,))
    if isinstance(value, (bytes, np.generic)) or is_array(value) or not _is_memory(value):
        return None
    return Asked(_bytes, (weakref.ref(value) if type(value).__weakrefoffset__ else value,))


def _is_memory(value: Any) -> bool:
    if isinstance(value, (bytearray, memoryview)):
        return True
    array, ctypes = sys.modules.get("array"), sys.modules.get("_ctypes")
    is_array = array is not None and isinstance(value, array.array)
    return is_array or (ctypes is not None and isinstance(value, (ctypes._SimpleCData, ctypes.Structure, ctypes.Array)))


def _objects(array: Any) -> Any:
    found = array()
    return None if found is None else found.tolist()


def _of_finalizer(value: Any) -> Any:
    return value.alive, value.atexit


def _bytes(value: Any) -> Any:
    found = value() if isinstance(value, weakref.ref) else value
    return None if found is None else bytes(memoryview(found))


def is_table(value: Any) -> bool:
    """Whether it is a table or column of pandas, which keeps its arrays where no names lead."""
    kind = type(value)
    return kind.__module__.partition(".")[0] == "pandas" and hasattr(kind, "iloc")


def of_table(table: Any) -> list[Any]:
    """A table's labels, and its arrays: small ones by their elements."""
    arrays = [block.values for block in table._mgr.blocks]
    by_value = (type(a) is np.ndarray and not a.dtype.hasobject and a.nbytes <= MOST_COMPARED_BY_CALLS for a in arrays)
    return [*table._mgr.axes, *(a.tobytes() if small else a for a, small in zip(arrays, by_value, strict=True))]


def _table(value: Any) -> Any:
    found = value()
    return found if found is None else of_table(found)


def _held(value: Any) -> Any:
    """What a file in memory or a context holds."""
    found = value()
    if found is None or isinstance(found, Context):
        return found and list(found.items())
    return None if found.closed else found.getvalue()


def _decimals() -> str:
    return repr(sys.modules["decimal"].getcontext())
