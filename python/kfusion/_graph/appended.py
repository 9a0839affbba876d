"""Lists that a function only appends to, such as a log: what they hold already is no argument of its calls."""

from __future__ import annotations

from typing import Any, NoReturn


class ReadsItems(BaseException):
    """A function reads the list of this number, to which it was thought to append. No code of the user's handles it."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Before:
    """Stands for all that a list held before. C code that reads lists past their methods meets it."""

    def __init__(self, of: Appended) -> None:
        self.of = of


class Appended(list[Any]):
    """Stands for such a list while the function is traced: one item for those before, and what is appended."""

    __slots__ = ("is_read", "number")

    def __init__(self, number: int) -> None:
        super().__init__([_Before(self)])
        self.number, self.is_read = number, False


def _reads(self: Any, *_: object, **__: object) -> NoReturn:
    self.is_read = True  # the function may handle what is raised
    raise ReadsItems(self.number)


def _reads_first(self: _Before, *_: object) -> NoReturn:
    _reads(self.of)


_COMPARED = ("__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__")
_OTHERS = ("__bool__", "__copy__", "__deepcopy__", "__radd__", "__reduce__", "__reduce_ex__", "__reversed__", "__str__")
_APPENDS = ("__iadd__", "append", "extend")
_OF_OBJECTS = ("__class_getitem__", "__delattr__", "__doc__", "__getattribute__", "__init__", "__new__", "__setattr__")

for _name in _COMPARED:
    setattr(_Before, _name, _reads_first)
for _name in {*vars(list), *_OTHERS} - {*_APPENDS, *_OF_OBJECTS}:
    setattr(Appended, _name, _reads)
