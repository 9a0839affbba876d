"""Frozen dataclasses as plain values and back: a record's annotated fields are its schema, read strictly."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import gc
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
Number = int | float
Location = tuple[Any, Any]  # where a value stands: the outer location, and its name or index there
Reader = Callable[[Any, Location], Any]

_INT64 = 2**63
_LARGEST = 1e300


def to_plain(record: Any) -> dict[str, Any]:
    """A record's fields as dicts, lists, numbers and strings; what has a `to_dict` of its own is asked for it."""
    kind: Any = type(record)
    return {name: _plain(getattr(record, name)) for name in _hints(kind)}


def from_plain(kind: type[T], value: Any, who: str) -> T:
    """A record of this kind.

    Args:
        kind: a dataclass whose fields are of type bool, int, float, Number (whichever of the two it is), str, an Enum,
            a dataclass, a class with `from_dict`, dict[str, ...] or tuple[..., ...] of these, one of them or None, or
            Any, which is not looked at.
        value: a dict with exactly these fields.
        who: names the value in messages.

    Raises:
        TypeError: a value is of a wrong kind.
        ValueError: a field is missing or unknown, a number is not finite or beyond 64 bits, a name is no Enum's.
    """
    result: T = _record_reader(kind)(value, (None, who))
    return result


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses the collector while a large record is read: many small values, none of them garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return to_plain(value)
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@functools.cache
def _reader(kind: Any) -> Reader:
    """The function that reads a value of this annotation."""
    if kind is Any:
        return lambda value, location: value
    if typing.get_origin(kind) is types.UnionType and types.NoneType in typing.get_args(kind):
        (inner,) = (_reader(k) for k in typing.get_args(kind) if k is not types.NoneType)
        return lambda value, location: None if value is None else inner(value, location)
    if kind == Number:
        return lambda value, location: (_read_float if type(value) is float else _read_int)(value, location)
    if kind in _SCALARS:
        return _SCALARS[kind]
    if typing.get_origin(kind) is tuple:
        return _tuple_reader(_reader(typing.get_args(kind)[0]))
    if typing.get_origin(kind) is dict:
        return _dict_reader(_reader(typing.get_args(kind)[1]))
    if hasattr(kind, "from_dict"):
        return lambda value, location: kind.from_dict(_exactly(dict, value, location))
    return _name_reader(kind) if issubclass(kind, enum.Enum) else _record_reader(kind)


def _record_reader(kind: Any) -> Reader:
    readers = {name: _reader(hint) for name, hint in _hints(kind).items()}
    missing = dataclasses.MISSING
    needed = {f.name for f in dataclasses.fields(kind) if f.default is missing and f.default_factory is missing}

    def read(value: Any, location: Location) -> Any:
        if _exactly(dict, value, location).keys() != readers.keys():
            for name in needed - value.keys():
                raise ValueError(f"{_text(location)} must have the field {name!r}")
            if unknown := list(value.keys() - readers.keys()):
                raise ValueError(f"{_text(location)} must not have the fields {unknown}"[:300])
        given = ((name, reader) for name, reader in readers.items() if name in value)
        return kind(**{name: reader(value[name], (location, name)) for name, reader in given})

    return read


def _tuple_reader(item: Reader) -> Reader:
    return lambda value, location: tuple(
        [item(v, (location, i)) for i, v in enumerate(_exactly(list, value, location))]
    )


def _dict_reader(item: Reader) -> Reader:
    return lambda value, location: {
        _read_str(k, location): item(v, (location, k)) for k, v in _exactly(dict, value, location).items()
    }


def _name_reader(kind: type[enum.Enum]) -> Reader:
    names = {member.value: member for member in kind}

    def read(value: Any, location: Location) -> enum.Enum:
        if _read_str(value, location) not in names:
            raise ValueError(f"{_text(location)} must be one of {', '.join(names)}, got {value[:40]!r}")
        return names[value]

    return read


def _read_bool(value: Any, location: Location) -> bool:
    return _exactly(bool, value, location)


def _read_int(value: Any, location: Location) -> int:
    if not -_INT64 <= _exactly(int, value, location) < _INT64:
        raise ValueError(f"{_text(location)} must fit in 64 bits")
    return int(value)


def _read_float(value: Any, location: Location) -> float:
    if type(value) is int:
        value = _read_int(value, location)
    elif not -_LARGEST < _exactly(float, value, location) < _LARGEST:  # NaN is neither
        raise ValueError(f"{_text(location)} must be a finite number")
    return float(value)


def _read_str(value: Any, location: Location) -> str:
    _exactly(str, value, location).encode()  # a lone surrogate is a UnicodeEncodeError, which is a ValueError
    return str(value)


_SCALARS: dict[Any, Reader] = {bool: _read_bool, int: _read_int, float: _read_float, str: _read_str}


def _exactly(kind: type[T], value: Any, location: Location) -> T:
    if type(value) is not kind:
        raise TypeError(f"{_text(location)} must be of type {kind.__name__}, got {type(value).__name__}")
    return value


def _text(location: Location) -> str:
    """ "kfusion.Plan.groups[3].kind"."""
    outer, name = location
    if outer is None:
        return str(name)
    return f"{_text(outer)}[{name}]" if isinstance(name, int) else f"{_text(outer)}.{str(name)[:60]}"
