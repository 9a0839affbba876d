"""Modules with state for functions that set some, and what describes it."""

from __future__ import annotations

import types
from typing import Any

import numpy as np

import kfusion as kf

OBJECTS = """
class Inner: pass
class C:
    total = 0
    def __init__(self):
        self.n, self.h, self.last, self.log, self.named = 0, np.zeros(1), None, [], {}
        self.inner = Inner()
        self.inner.h = np.zeros(1)
    @classmethod
    def bump(cls): cls.total += 1
    def step(self, x):
        self.h = np.tanh(x + self.h)
        return self.h
    @property
    def twice(self): return 2 * self.n
    @twice.setter
    def twice(self, n): self.n = n // 2
class Slots:
    __slots__ = ("h", "__weakref__")
c, s = C(), Slots()
space = types.SimpleNamespace(n=0, h=None)
s.h = np.zeros(1)
last, count, log, table = None, 0, [], {}
"""


def module_of(body: str) -> Any:
    module: Any = types.ModuleType("of_the_users_own")
    vars(module).update(np=np, kf=kf, types=types)
    exec(f"{OBJECTS}\ndef f(x):\n    {body}\n", vars(module))
    return module


def described(value: Any, seen: dict[int, int] | None = None) -> Any:
    """Arrays by their elements, objects by what they hold; what is met again by its number."""
    seen = {} if seen is None else seen
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.round(12).tolist()
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        return type(value), value
    if isinstance(value, (types.FunctionType, property, type(Slotted.w), types.ModuleType)):
        return "other"
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = len(seen)
    assert not hasattr(type(value), "__kfusion_traced__")
    if isinstance(value, dict):
        return type(value), [(key, described(v, seen)) for key, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [described(v, seen) for v in value]
    held = dict(vars(value)) if hasattr(value, "__dict__") else {}
    held |= {name: getattr(value, name, None) for name in getattr(type(value), "__slots__", ())}
    kind = value.__qualname__ if isinstance(value, type) else type(value).__qualname__
    return kind, [(n, described(v, seen)) for n, v in held.items() if n not in ("__weakref__", "__dict__")]


class Slotted:
    __slots__ = ("w",)


def state(module: Any) -> Any:
    names = ("c", "C", "s", "space", "last", "count", "log", "table")
    own = dict(vars(module.f))
    return described([*(getattr(module, n) for n in names), own])


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held
