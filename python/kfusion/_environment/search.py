"""What code can reach: functions, objects, modules and classes, and which of their names count."""

from __future__ import annotations

import abc
import builtins
import functools
import operator
import sys
import weakref
from _thread import LockType
from collections.abc import Iterable, Iterator
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple

from .._graph.source import in_library, is_installed
from .._graph.structure import ATOMS
from .._spec import is_array
from . import asked, code_names, modules, parts
from .asked import Asked
from .code_names import Names, names_of
from .functional import Functional
from .objects import Key
from .static import Static, defaults, getter, setters

PLAIN = (FunctionType, MethodType, ModuleType, type)
_CONTAINERS = (list, tuple, dict, set, frozenset)
_OF_PARTIALS = ("args", "func", "keywords")
_BUILTINS = frozenset(vars(builtins))  # Python's own
_HAVE_CODE = ("functools", "contextlib")  # whose functions run those that they were made of


class Function(NamedTuple):
    """A function of the user's that runs, what of its globals and closure count."""

    value: FunctionType
    globals: tuple[str, ...]
    cells: tuple[int, ...]


class Held(NamedTuple):
    """An object that code can reach, the names of its attributes that count, and those that were looked for."""

    value: Any
    names: set[str]
    seen: set[str]


class Search:
    """What code can reach."""

    def __init__(self) -> None:
        self.functions: dict[FunctionType, Function] = {}
        self.layers: dict[int, Any] = {}
        self.objects: dict[int, Held] = {}
        self.settings: dict[int, tuple[ModuleType, frozenset[str]]] = {}  # of torch, by its modules
        self.asked: dict[Any, Asked] = {}
        self.arrays: dict[int, Any] = {}
        self.targets: dict[Key, None] = {}  # that are arguments
        self.changes_by_itself = False  # something that is asked, such as a clock
        self._names = {*code_names.OF_TORCH, *code_names.IMPLICIT}  # attributes that code reads, or calls run
        self._maybe: set[str] = set()  # attributes that may be missing
        self.reads_any = False  # attributes by names that do not stand in the code
        self._asks_backends = self._asks_classes = False
        self._met: dict[int, Any] = {}  # by id, which stays theirs
        self._static = Static()
        self._todo: list[Any] = []

    def follow(self, roots: Iterable[Any]) -> None:
        """Adds what can be reached from these."""
        self._todo += roots
        known = -1
        while self._todo or known != len(self._names):
            while self._todo:
                self._meet(self._todo.pop())
            known = len(self._names)
            for held in list(self.objects.values()):
                self._read(held)
        if self._asks_backends:
            self._ask(asked.flags(self._names))
        for function in self.functions:
            self._ask(asked.of_function(function, self._names))
        if self._asks_classes and any(isinstance(value, abc.ABCMeta) for value in self._met.values()):
            self._ask([asked.of_classes()])
        if not self._names.isdisjoint(("locked", "acquire")):
            self._ask(Asked(lock.locked) for lock in self._met.values() if type(lock) is LockType)
        if "cache_info" in self._names:
            self._ask(Asked(value.cache_info) for value in self._met.values() if type(value) is parts.KEPT)

    def met(self) -> list[Any]:
        """All that was found."""
        return list(self._met.values())

    def _meet(self, value: Any) -> None:
        if type(value) in ATOMS or id(value) in self._met:
            return
        if type(value) in _CONTAINERS:
            self._met[id(value)] = value
            self._todo += parts.parts_of(value) or ()
            return
        if (found := asked.elements(value)) is not None:
            self._ask([found])
        if is_array(value):
            self._array(value)
            return
        self._met[id(value)] = value
        value = self._unwrapped(value)
        self.changes_by_itself = self.changes_by_itself or asked.changes_by_itself(value)
        if modules.is_module(value):
            self._layer(value)
        elif isinstance(value, ModuleType):
            self._module(value)
        elif isinstance(value, MethodType):
            self._todo.append(value.__self__)
        else:
            self._object(value)
        function = self._plain(value)
        if function is not None and function not in self.functions:
            self._run(function)

    def _array(self, array: Any) -> None:
        if id(array) not in self.arrays:
            self.arrays[id(array)] = array
            if parts.own(array):
                self._add(array)

    def _layer(self, module: Any) -> None:
        self.layers[id(module)] = module
        self._todo += modules.values(module)
        self._add(type(module))
        self._set(*modules.hooks_of_all())

    def _module(self, module: ModuleType) -> None:
        if not in_library(vars(module)):
            self._add(module)
        elif module.__name__.startswith("torch.backends."):
            self._asks_backends = True

    def _object(self, value: Any) -> None:
        kind = type(value)
        self._todo += parts.parts_of(value) or ()
        if isinstance(value, functools.partial):  # an argument is in no target that a guard reads
            self.objects.setdefault(id(value), Held(value, set(_OF_PARTIALS), set()))
        if kind in (operator.attrgetter, operator.methodcaller) or value is getattr:
            self.reads_any = True
        self._ask(asked.answer_of(value))
        if isinstance(value, type):
            if parts.is_own_class(value):
                self._add(value, code_names.OF_CLASSES)
                self._todo.append(kind)
        elif not isinstance(value, PLAIN) and not parts.is_of_library(kind):
            self._add(value if kind.__weakrefoffset__ else kind)
        elif not isinstance(value, PLAIN) and kind.__weakrefoffset__ and parts.own(value) and not _is_ours(kind):
            self._add(value)
            self._todo += parts.own(value).values()  # which the library's own code may change
        elif isinstance(value, FunctionType) and in_library(value.__globals__):
            self._todo.append(vars(value).get("__wrapped__"))

    def _unwrapped(self, value: Any) -> Any:
        """What a fused function or module, or a function that keeps its results, was made of."""
        value = modules.unfused(value)
        while not isinstance(value, PLAIN) and (inner := self._static.attribute(value, "__wrapped__")) is not None:
            if isinstance(value, Functional):
                self.targets |= dict.fromkeys(target.key for target in value.targets)
            value = inner
        return value

    def _add(self, value: Any, names: Iterable[str] = ()) -> None:
        held = self.objects.setdefault(id(value), Held(value, set(), set()))
        if names:
            self._look(held, set(names))

    def _set(self, module: ModuleType, names: frozenset[str]) -> None:
        self.settings[id(module)] = module, names
        self._todo += (vars(module).get(name) for name in names)

    def _ask(self, found: Iterable[Asked]) -> None:
        self.asked |= {(f.function, *map(id, f.arguments)): f for f in found}

    def _run(self, function: FunctionType) -> None:
        code = function.__code__
        names = names_of(code)
        is_own = not is_installed(code.co_filename)
        named = {path[0] for path in names.globals} | names.written
        if names.reads_any_global and is_own:
            named |= {n for n in function.__globals__ if not n.startswith("__")}
        free = code.co_freevars
        cells = tuple(i for i, name in enumerate(free) if name in names.cells)
        self.functions[function] = Function(function, tuple(sorted(named)), cells)
        self._names |= names.attributes | (code_names.TEXT if names.writes_text else set())
        if "type" in named:
            self._names.add("__class__")
        self._maybe |= names.stored | (names.asked if is_own else set())
        self.reads_any = self.reads_any or (names.reads_any and is_own)
        self._asks_backends = self._asks_backends or "backends" in names.attributes
        self._asks_classes = self._asks_classes or not named.isdisjoint(("isinstance", "issubclass"))
        self._todo += (function.__globals__.get(name) for name in named)
        if added := [n for n in named - function.__globals__.keys() - _BUILTINS if hasattr(builtins, n)]:
            self._add(builtins, added)
        self._todo += (parts.contents_of((function.__closure__ or ())[i]) for i in cells)
        self._todo += defaults(function)
        self._todo += self._imported(function, names)
        self._todo += asked.environment(names)
        self.changes_by_itself = self.changes_by_itself or asked.names_what_changes_by_itself(names)
        self._ask(asked.asked(names))
        if any(_is_module_of_torch(function.__globals__.get(name)) for name in (*named, *names.imports)):
            self._ask([Asked(sys.modules["torch"].get_default_dtype)])
            if (device := sys.modules.get("torch.utils._device")) is not None:
                self._set(device, frozenset({"CURRENT_DEVICE"}))

    def _imported(self, function: FunctionType, names: Names) -> Iterator[Any]:
        """The modules that a function imports when it runs, as far as they are loaded."""
        package = function.__globals__.get("__package__") or ""
        for name in names.imports:
            known = [sys.modules.get(n) for n in (f"{package}.{name}", name, name.partition(".")[0])]
            yield from known
            if not any(known):
                self._ask([Asked(asked.is_loaded, (name,))])

    def _read(self, held: Held) -> None:
        """Follows the attributes of an object that code reads and that were not looked for yet."""
        self._look(held, self._names)
        if self.reads_any and not parts.is_installed_module(held.value):
            scopes = () if isinstance(held.value, ModuleType) else map(vars, parts.classes(held.value))
            of_class = {n for scope in scopes for n in scope if not n.startswith("__")}
            self._look(held, of_class | _own(held.value).keys())
        if isinstance(held.value, type) and "__subclasses__" in self._names:
            below: list[type] = type.__subclasses__(held.value)
            self._todo += (kind for kind in below if id(kind) not in self._met)
            self._ask([Asked(asked.subclasses, (weakref.ref(held.value),))])
        maybe = self._names if "__getattr__" in held.names else self._maybe
        missing = {n for n in maybe if not n.startswith("__")} - held.names
        held.names.update(missing)
        if missing and isinstance(held.value, ModuleType):
            held.names.add("__getattr__")

    def _look(self, held: Held, wanted: set[str]) -> None:
        own = _own(held.value)
        kinds: list[type] = [] if isinstance(held.value, ModuleType) else parts.classes(held.value)
        if "__class__" in self._names:
            self._todo += [kind for kind in kinds if id(kind) not in self._met and parts.is_own_class(kind)]
        for name in sorted({n for scope in (own, *map(vars, kinds)) for n in scope.keys() & wanted} - held.seen):
            held.seen.add(name)
            if name in own and not (parts.is_installed_module(held.value) and callable(own[name])):
                held.names.add(name)
                self._todo.append(own[name])
            for kind in kinds:
                if name in vars(kind):
                    self._of_class(held, name, kind)

    def _of_class(self, held: Held, name: str, kind: type) -> None:
        found = vars(kind)[name]
        if name in code_names.OF_DATACLASSES and "__dataclass_fields__" in vars(kind) and _is_made(found):
            return
        if isinstance(found, MemberDescriptorType):
            held.names.add(name)
            self._todo.append(parts.of_slot(found, held.value))
        elif parts.is_own_class(kind):
            held.names.add(name)
            self._todo += (getter(found), *setters(found))
            if isinstance(found, classmethod):
                self._names.add("__class__")
        elif isinstance(function := getter(found), FunctionType):  # an installed one stays as it is
            self._names |= names_of(function.__code__).attributes

    def _plain(self, value: Any) -> FunctionType | None:
        """The user's function behind a value, if there is one."""
        if not isinstance(value, PLAIN):
            value = self._static.attribute(value, "forward", self._static.call(type(value)))
        if isinstance(value, (MethodType, staticmethod, classmethod)):
            value = value.__func__
        if not isinstance(value, FunctionType):
            return None
        runs_others = value.__closure__ and value.__globals__.get("__name__") in _HAVE_CODE
        return value if runs_others or not in_library(value.__globals__) else None


def _is_module_of_torch(value: Any) -> bool:
    return isinstance(value, ModuleType) and value.__name__.partition(".")[0] == "torch"


def _own(value: Any) -> dict[str, Any]:
    if isinstance(value, type):
        return {}
    return vars(value) if isinstance(value, ModuleType) else parts.own(value)


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "kfusion"


def _is_made(found: Any) -> bool:
    return isinstance(found, FunctionType) and found.__code__.co_filename == "<string>"
