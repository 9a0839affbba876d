"""Tuples, lists, dicts and dataclasses of values: the arguments and results of a traced function."""

from __future__ import annotations

import copy
import dataclasses
import enum
import operator
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from .._spec import is_array
from .appended import Appended

_BASES: tuple[Any, ...] = (OrderedDict, defaultdict, dict, list, SimpleNamespace, object)
# Whose arrays are no memory that kernels can read: labelled, lazy, or in several processes. A call with them is split
# into calls with plain arrays, by Python.
FOREIGN = ("dask", "pandas", "polars", "xarray")
HEAP_TYPE = 1 << 9  # of a class that a program made: Py_TPFLAGS_HEAPTYPE
_MANAGED_DICT = 1 << 4  # whose instances have a __dict__ out of sight: Py_TPFLAGS_MANAGED_DICT, from Python 3.12 on


@dataclass(frozen=True)
class Slot:
    """The place of output number `index` in a structure. `convert` makes of it what stands there."""

    index: int
    convert: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class Constant:
    """An object that is itself a part of a structure, whatever it holds."""

    value: Any


@dataclass(frozen=True)
class Fresh:
    """The place of what the function made of nothing that is traced: each call returns a copy of its own."""

    value: Any


ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
_PLACES = (Slot, Constant, Fresh)
_FILLED = ATOMS | set(_PLACES)


def is_record(value: Any) -> bool:
    """Whether value is an instance of a dataclass, other than those above, or a dict, which may have attributes."""
    return isinstance(value, dict) or (_is_dataclass(value) and not isinstance(value, _PLACES))


def is_plain(value: Any) -> bool:
    """Whether value is an object whose attributes are all that it holds, and no dataclass instance."""
    kind = type(value)
    return is_plain_type(kind) and foreign_library(kind) is None and not _is_dataclass(value)


def is_plain_type(kind: Any) -> bool:
    """Whether a call with an instance is Python's to take apart, for C++ too.

    The class is written in Python, and of objects that are neither functions, modules, members of an enum, arrays nor
    anything that its base class knows how to store. Or it is one of a foreign library's.
    """
    known = _plain_types.get(kind)
    if known is None:
        known = _plain_types[kind] = foreign_library(kind) is not None or _looks_plain(kind)
    return known


def foreign_library(kind: Any) -> str | None:
    """The library of FOREIGN that a class of arrays or tables is from, "torch" for DTensor; None for others."""
    if kind not in _foreign_types:
        _foreign_types[kind] = _find_foreign(kind)
    return _foreign_types[kind]


def _find_foreign(kind: Any) -> str | None:
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        if package in FOREIGN and (hasattr(kind, "__array__") or hasattr(kind, "dtypes")):
            return str(package)
        if package == "torch" and base.__name__ == "DTensor":
            return "torch"
    return None


_foreign_types: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()
_plain_types: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def _is_python(kind: Any) -> bool:
    """Whether a class is written in Python: those in C make their objects themselves."""
    return bool(kind.__flags__ & HEAP_TYPE) and not isinstance(vars(kind).get("__new__"), BuiltinFunctionType)


def _looks_plain(kind: Any) -> bool:
    is_python = all(base is object or _is_python(base) for base in kind.__mro__) or kind is SimpleNamespace
    stores = kind.__dictoffset__ != 0 or kind.__flags__ & _MANAGED_DICT
    is_called = any("__call__" in vars(base) for base in kind.__mro__)
    is_other = issubclass(kind, (type, enum.Enum)) or kind.__module__.partition(".")[0] == "kfusion"
    return bool(is_python and stores and not is_called and not is_other and not hasattr(kind, "__dlpack__"))


def _is_dataclass(value: Any) -> bool:
    return hasattr(type(value), "__dataclass_fields__")


def walk(
    value: Any,
    visit: Callable[[str, Any], Any],
    path: str = "",
    *,
    enters: Callable[[Any], bool] = lambda _: False,
    is_leaf: Callable[[Any], bool] = lambda _: False,
) -> Any:
    """A structure with `visit(path, leaf)` in place of each leaf.

    Args:
        value: tuples (named ones too), lists and dicts of anything, nested, of classes of the user's too. No code of
            those classes is run to make others of them.
        visit: called in order; a path is "", "0", "loss" or "0.loss".
        path: of `value` itself.
        enters: whether the attributes of a dataclass instance, a dict or another object are parts of the structure. An
            object of which they are not is a leaf.
        is_leaf: whether a value is not taken apart, whatever it is.
    """

    def parts(named: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        return {key: walk(item, visit, _join(path, key), enters=enters, is_leaf=is_leaf) for key, item in named}

    if is_leaf(value):
        return visit(path, value)
    if type(value) is dict:
        return parts(value.items())
    if isinstance(value, dict):
        items = parts(value.items())
        known = {id(item): items[key] for key, item in value.items()}
        own = attributes(value)
        others = {name: v for name, v in own.items() if id(v) not in known}
        others = parts(others.items()) if enters(value) else others
        return _remade(value, items, {name: others.get(name, known.get(id(v))) for name, v in own.items()})
    if isinstance(value, (tuple, list)):
        fields = getattr(value, "_fields", None)
        made = parts(zip(fields or range(len(value)), value, strict=True)).values()
        kind: Any = getattr(value, "__kfusion_stands_for__", type(value))
        return tuple.__new__(kind, made) if fields else kind(made)
    return _remade(value, {}, parts(attributes(value).items())) if enters(value) else visit(path, value)


def picked(value: Any, is_meant: Callable[[Any], bool], enters: Callable[[Any], bool] = lambda _: False) -> list[Any]:
    """Those leaves, in `walk`'s order."""
    meant: list[Any] = []

    def visit(_: str, leaf: Any) -> Any:
        if is_meant(leaf):
            meant.append(leaf)
        return leaf  # torch.Size takes nothing but ints

    walk(value, visit, enters=enters)
    return meant


def mapped(
    value: Any, visit: Callable[[Any], Any], enters: Callable[[Any], bool], leaf_types: frozenset[type] = ATOMS
) -> Any:
    """What `walk` makes where leaves need no path, in a fraction of its time. `leaf_types`: of leaves in any case."""
    kind = type(value)
    if kind in leaf_types:
        return visit(value)
    if kind is tuple or kind is list:
        return kind([visit(v) if type(v) in leaf_types else mapped(v, visit, enters, leaf_types) for v in value])
    if kind is dict:
        return {key: mapped(item, visit, enters, leaf_types) for key, item in value.items()}
    return walk(value, lambda _, leaf: visit(leaf), enters=enters)


def attributes(value: Any) -> dict[str, Any]:
    """Those that a dataclass declares, slots too, and those that the instance has."""
    declared = [f.name for f in dataclasses.fields(value)] if _is_dataclass(value) else []
    return {name: getattr(value, name) for name in declared if hasattr(value, name)} | getattr(value, "__dict__", {})


def _remade(like: Any, items: Mapping[Any, Any], attributes: Mapping[str, Any]) -> Any:
    """Another object of its class, without that class's `__init__`."""
    base = _base(type(like))
    made = blank(type(like))
    for key, item in items.items():
        base.__setitem__(made, key, item)
    if base is defaultdict:
        made.default_factory = like.default_factory
    for name, value in attributes.items():
        object.__setattr__(made, name, value)
    return made


def blank(kind: Any) -> Any:
    """An empty object of a class, without that class's `__init__`."""
    return _base(kind).__new__(kind)


def _base(kind: Any) -> Any:
    return next(base for base in _BASES if issubclass(kind, base))


def leaves(value: Any) -> Iterator[Any]:
    """The leaves of an argument in `walk`'s order. What holds itself is a leaf within itself."""
    inside = {0}  # the ids of what is taken apart
    stack: list[tuple[int, Iterator[Any]]] = [(0, iter((value,)))]
    while stack:
        for item in stack[-1][1]:
            parts = _parts(item)
            if parts is None or id(item) in inside:
                yield item
            else:
                inside.add(id(item))
                stack.append((id(item), iter(parts)))
                break
        else:
            inside.remove(stack.pop()[0])


def has_plain(value: Any) -> bool:
    """Whether a leaf of an argument is an object that is Python's to take apart."""
    parts = _parts(value)
    return is_plain_type(type(value)) if parts is None else any(map(has_plain, parts))


def containers(value: Any, inside: Sequence[int] = ()) -> Iterator[Any]:
    """The lists, dicts and dataclass instances of which an argument's leaves are the parts."""
    parts = _parts(value)
    if parts is None or id(value) in inside:
        return
    if not isinstance(value, tuple):
        yield value
    for part in parts:
        yield from containers(part, (*inside, id(value)))


def _parts(value: Any) -> Iterable[Any] | None:
    """What an argument holds; None for a leaf."""
    if type(value) is Appended:
        return None
    if isinstance(value, dict):
        return tuple(value.values())
    return value if isinstance(value, (tuple, list)) else parts_of(value) or None


def holds_arrays(value: Any) -> bool:
    """Whether an argument is a dataclass instance that is taken apart: an attribute is an array, or stands for one."""
    return bool(parts_of(value))


def parts_of(value: Any) -> list[Any]:
    """The attributes of such an argument, for C++ too; of others, which are themselves, none."""
    if not _is_dataclass(value) or isinstance(value, dict) or callable(value) or _is_own(value):
        return []
    parts = list(attributes(value).values())
    return parts if any(is_array(v) or hasattr(type(v), "__kfusion_traced__") or _is_own(v) for v in parts) else []


def _is_own(value: Any) -> bool:
    """Whether a class of kfusion's own stands for an array."""
    return _is_dataclass(value) and type(value).__module__.partition(".")[0] == "kfusion"


def filler(structure: Any) -> Callable[[list[Any]], Any]:
    """From values to the structure with them in place of its slots: what holds none, and cannot change, is itself."""
    made = _constant(structure)
    return _filler(structure) if made is None else lambda _: made.value


def fill(structure: Any, values: list[Any]) -> Any:
    """The structure with values in place of its slots."""
    return mapped(structure, lambda leaf: _filled(leaf, values), may_hold_results, _FILLED)


def _constant(structure: Any) -> Constant | None:
    """What a structure is, filled with whatever values; None where that depends on them, or is made anew each time."""
    kind = type(structure)
    if kind is Constant or kind in ATOMS:
        return structure if kind is Constant else Constant(structure)
    if kind is tuple and all(type(part) in ATOMS for part in structure):
        return Constant(structure)
    holds = isinstance(structure, (tuple, list, dict, Slot, Fresh)) or may_hold_results(structure)
    return None if holds else Constant(structure)


def _filler(structure: Any) -> Callable[[list[Any]], Any]:
    kind = type(structure)
    if kind is Slot and structure.convert is None:
        return operator.itemgetter(structure.index)
    if kind is tuple:
        parts = [filler(part) for part in structure]
        return lambda values: tuple([part(values) for part in parts])
    if kind is dict:
        named = [(key, filler(part)) for key, part in structure.items()]
        return lambda values: {key: part(values) for key, part in named}
    return lambda values: fill(structure, values)


def may_hold_results(value: Any) -> bool:
    """Whether another object of value's class can be made with other attributes, as is done of one in results."""
    return is_record(value) or (is_plain(value) and not isinstance(value, _PLACES))


def _filled(leaf: Any, values: list[Any]) -> Any:
    if isinstance(leaf, Slot):
        value = values[leaf.index]
        return value if leaf.convert is None else leaf.convert(value)
    if isinstance(leaf, Fresh):
        return copied(leaf.value)
    return leaf.value if isinstance(leaf, Constant) else leaf


def copied(value: Any) -> Any:
    """A copy of an array, where it lies and as it lies, or of an object with all that it holds."""
    if not is_array(value) or getattr(value, "requires_grad", False) is True:  # such as torch's parameters
        return copy.deepcopy(value)
    return value.clone() if hasattr(value, "clone") else value.copy("K")


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
