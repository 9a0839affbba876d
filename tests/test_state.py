"""What a function sets beside its results: each call sets it as the plain function does. No trace leaves anything."""

from __future__ import annotations

import contextlib
import inspect
import sys
import textwrap
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion._graph.contents import set_contents
from kfusion._graph.objects import Functional, TakenApart

pytestmark = pytest.mark.native

OBJECTS = """
class Inner: pass
class C:
    total = 0
    def __init__(self):
        self.n, self.h, self.last, self.log, self.named = 0, np.zeros(1), None, [], {}
        self.inner = Inner()
        self.inner.h = np.zeros(1)
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

# Bodies of `def f(x):`, and what they name.
BODIES = {
    "a state": "c.h = np.tanh(x + c.h); return c.h",
    "a state of a method": "return c.step(x)",
    "a state of an object in an object": "c.inner.h = x + c.inner.h; return c.inner.h * 2",
    "a new attribute": "c.fresh = x * 2; return x + 1",
    "an attribute that goes": "c.fresh = x; y = c.fresh * 2; del c.fresh; return y",
    "a counter": "c.n += 1; c.last = x * 2; return x + c.n",
    "a counter that nothing reads": "c.n += 1; return x + 1",
    "a counter that is compared": "c.n += 1; return x if c.n < 3 else x * 2",
    "two numbers": "c.n, c.m = c.n + 2, c.n; return x * c.n",
    "a float": "c.n = (c.n + 0.5) * 1.5; return x * c.n",
    "a schedule": "c.n += 1; c.rate = 0.1 / (1 + c.n); return x * c.rate",
    "by a property": "c.twice = c.twice + 4; return x + c.n",
    "by setattr": "setattr(c, 'n', c.n + 1); return x * c.n",
    "by __dict__": "c.__dict__['h'] = x * 2; return x",
    "a class's": "C.total = C.total + 1; return x + C.total",
    "an array in a class": "C.kept = x * 2; return x + 1",
    "a log": "c.log.append(x * 2); return x + len(c.log)",
    "a log of constants": "c.log.append(1); return x",
    "a log of shapes": "c.log.append(x.shape); return x + 1",
    "a list of two": "c.log[:] = [x, *c.log][:2]; return x * 1",
    "a dict": "c.named['k'] = x + c.named.get('k', 0); return x",
    "a dict in a dict": "c.named.setdefault('k', {})['l'] = x * 3; return x + 1",
    "a dict that is replaced": "c.named = {**c.named, 'k': x * 1}; return x + 1",
    "a list in a list": "c.log.append([x * 2]); c.log[0].append(x + 1); return x",
    "an object that it makes": "c.last = C(); c.last.h = x * 2; return x + 1",
    "the object itself": "c.me = c; c.h = x * 2; return x + 1",
    "the argument": "c.last = x; return x + 1",
    "a view": "c.last = x[1:]; return x + 1",
    "a constant array": "c.last = np.arange(3.0); return x + 1",
    "None": "c.h = None if c.h is not None else x * 2; return x + 1",
    "two names of one": "a = b = x * 2; c.h, c.last = a, b; return a",
    "a slot": "s.h = x + s.h; return s.h * 2",
    "a namespace": "space.n += 1; space.h = x * space.n; return x",
    "a global": "global last; last = x * 2; return x + 1",
    "a counter of its own": "global count; count += 1; return x * count",
    "a global list": "log.append(x * 2); return x",
    "a global dict": "table[len(table)] = x * 2; return x",
    "its own attribute": "f.h = x + getattr(f, 'h', 0); return f.h * 1",
    "its own counter": "f.n = getattr(f, 'n', 0) + 1; return x * f.n",
    "a cache": "if c.last is None:\n        c.last = np.arange(3.0)\n    return x + c.last[0]",
    "a shape": "c.last = x.shape; return x + 1",
    "a size": "c.last = x.shape[0]; return x * c.last",
    "a size that is added": "c.n = c.n + x.shape[0]; return x * 2",
    "and back again": "h = c.h; c.h = x; y = c.h * 2; c.h = h; return y",
    "and nothing returned": "c.h = x * 2",
    "a state in a condition": "c.last = x * 2 if c.last is None else None; return x if c.last is None else c.last",
    "a first call": "if c.last is None:\n        c.last = 1\n        return x\n    return x * 2",
    "a first call that makes a state": (
        "if c.last is None:\n        c.last, c.h = 1, x * 1\n    else:\n        c.h = 0.5 * (c.h + x)\n    return c.h"
    ),
    "a first call that makes a counter": (
        "if c.last is None:\n        c.last, c.made = 1, 10\n    c.made += 1\n    return x * c.made"
    ),
    "a first call that returns a number": (
        "if c.last is None:\n        c.last = 1\n        return x * 2, 1\n    return x * 2, 2"
    ),
    "a first call of another function": (
        "if c.last is None:\n        c.last = 1\n        return np.partition(x, 1)\n    return np.partition(x, 2)"
    ),
    "hits and misses": (
        "k = x.shape\n    if k in c.named:\n        c.n += 1\n    else:\n        c.m = getattr(c, 'm', 0) + 1"
        "\n        c.named[k] = float(k[0])\n    return x * c.named[k]"
    ),
    "a table": "c.named.setdefault(x.shape, np.arange(3.0)); return x + c.named[x.shape][0] + np.ones(1)",
    "a cache beside a counter": "c.n += 1; c.last = c.last or 3; return x * c.last * c.n",
    "a list that is emptied": "log.append(x * 1); y = log.pop(); return y + 1",
    "an alias": "c.alias = c.log; c.alias.append(x * 1); return x * len(c.log)",
}  # fmt: skip


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


@pytest.mark.parametrize("name", BODIES)
def test_each_call_sets_what_the_function_does(name):
    plain, other = module_of(BODIES[name]), module_of(BODIES[name])
    fused = kf.fuse(other.f)
    for n in (3, 3, 3, 4, 5, 6, 6):
        x = np.linspace(-1, 1, n)
        plain.c.h = plain.c.h if plain.c.h is None or len(plain.c.h) in (1, n) else np.zeros(n)
        other.c.h = other.c.h if other.c.h is None or len(other.c.h) in (1, n) else np.zeros(n)
        for held in (plain.c.inner, other.c.inner, plain.s, other.s, plain.f, other.f):
            if hasattr(held, "h"):
                held.h = np.zeros(1)
        if "k" in plain.c.named and isinstance(plain.c.named["k"], np.ndarray):
            plain.c.named.clear()
            other.c.named.clear()
        want, got = plain.f(x), fused(x)
        assert described(got) == described(want)
        assert state(other) == state(plain)


# ---- what is set in arguments ----


@dataclass
class Record:
    a: Any
    n: int = 0


@dataclass(frozen=True)
class Frozen:
    held: Any


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


# Bodies of `def f(x, d, h, o):` with a dict, a list, and what `GIVEN` says.
OF_ARGUMENTS = {
    "an entry": "d['k'] = x * 2; return x",
    "an entry that is read": "d['k'] = d.get('k', 0) + x; return d['k'] * 2",
    "an entry that goes": "d['k'] = x; return d.pop('k') + 1",
    "an entry that was there": "del d['a']; return x + 1",
    "pop with a default": "d.pop('no', None); d['b'] = d.pop('a') * 2; return x",
    "clear": "d.clear(); h.clear(); return x + 1",
    "update": "d.update(k=x, l=x * 2); return x",
    "setdefault": "d.setdefault('a', x); d.setdefault('k', x + 1); return x * 2",
    "the order of entries": "d['a'] = d.pop('a'); return x * 1",
    "append": "h.append(x * 2); return x",
    "extend": "h.extend([x, x * 2]); return x + 1",
    "insert": "h.insert(0, x * 2); return x",
    "pop": "y = h.pop(); return x + y",
    "remove by index": "del h[0]; return x * 2",
    "reverse": "h.reverse(); return x * 2",
    "a slice": "h[:1] = [x, x * 2]; return x",
    "an item": "h[0] = h[0] + x; return h[0] * 1",
    "in place": "h += [x * 2]; return x",
    "times": "h *= 2; return x + 1",
    "sort": "h.sort(key=lambda a: -float(a.shape[0])); return x * 2",
    "an array in place": "h[0] += 1; return x * 2",
    "one in the other": "d['h'] = h; h.append(x); return x",
    "the result too": "d['k'] = x * 2; return d",
    "the list itself": "h.append(x + 1); return h",
    "nothing returned": "d['k'] = x * 2",
    "a nested dict": "d.setdefault('in', {})['k'] = x; d['in']['l'] = x * 2; return x",
    "a nested list": "h.append([x]); h[-1].append(x * 2); return x",
    "a tuple": "d['t'] = (x, x * 2, 3); return x",
    "a number": "d['n'] = d.get('n', 0) + 1; return x * d['n']",
    "a float": "d['n'] = d.get('n', 1.0) * 0.5; return x * d['n']",
    "the argument": "d['k'] = x; return x + 1",
    "the length": "d[len(d)] = x * 2; return x",
    "a shape": "d['s'] = x.shape; return x * 2",
    "a size": "d['s'] = x.shape[0]; return x * 2",
    "a constant": "d['c'] = np.arange(3.0); return x * 2",
    "an object": "o.held = x * 2; return x",
    "what an object holds": "o.held.append(x); return x * 2",
    "a record": "o.a = o.a + x; o.n += 1; return o.a * 1",
    "a new attribute": "o.new = x; return x + 1",
    "a record in a dict": "d['o'] = o; o.a = x; return x + 1",
    "a record that is returned": "o.a = x * 2; return o",
    "a frozen one": "o.held.append(x * 2); return x",
    "an ordered dict": "o['k'] = x * 2; o.move_to_end('a'); return x",
    "a default dict": "o['k'].append(x * 2); return x",
    "a namespace": "o.h = x + o.h; return o.h * 2",
    "two names of one": "o.append(x); h.append(x * 2); return x",
    "swapped": "d['a'], h[0] = h[0] * 1, d['a'] * 1; return x",
}
ONCE = ("an entry that was there", "pop", "pop with a default", "remove by index", "clear", "swapped")
GIVEN = {
    "what an object holds": lambda d, h: Holder([]),
    "a record": lambda d, h: Record(np.ones(1)),
    "a record in a dict": lambda d, h: Record(np.ones(1)),
    "a record that is returned": lambda d, h: Record(np.ones(1)),
    "a frozen one": lambda d, h: Frozen([np.ones(1)]),
    "an ordered dict": lambda d, h: OrderedDict(a=np.ones(1), b=np.ones(2)),
    "a default dict": lambda d, h: defaultdict(list),
    "a namespace": lambda d, h: types.SimpleNamespace(h=np.ones(1)),
    "two names of one": lambda d, h: h,
}


@pytest.mark.parametrize("name", OF_ARGUMENTS)
def test_each_call_sets_what_the_function_does_in_arguments(name):
    scope: dict[str, Any] = {"np": np}
    exec(f"def f(x, d, h, o):\n    {OF_ARGUMENTS[name]}\n", scope)
    plain, fused = scope["f"], kf.fuse(scope["f"])
    for n in (3, 3, 4, 5, 6):
        x = np.linspace(-1, 1, n)
        calls = []
        for f in (plain, fused):
            d, h = {"a": np.ones(n), "b": np.full(2, 3.0)}, [np.full(n, 5.0)]
            o = GIVEN.get(name, lambda d, h: Holder(None))(d, h)
            kept = x.copy()
            results = [f(x, d, h, o) for _ in range(1 if name in ONCE else 2)]
            np.testing.assert_array_equal(x, kept)
            calls.append(described([results, d, h, o]))
        assert calls[0] == calls[1]


# ---- gradients, modules, errors ----


def of_torch(body: str) -> tuple[Any, Any]:
    """A function of x, d and a module m, plain and fused."""
    torch = pytest.importorskip("torch")
    made = []
    for _ in range(2):
        torch.manual_seed(0)

        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 4))
                self.register_buffer("mean", torch.zeros(4))
                self.seen, self.log, self.calls = None, [], 0

        scope: dict[str, Any] = {"torch": torch, "m": Net()}
        exec(f"def f(x, d):\n    {body}\n", scope)
        made.append((scope["f"], scope["m"]))
    (plain, m), (other, n) = made
    return (plain, m), (kf.fuse(other), n)


OF_MODULES = {
    "a result": "m.seen = torch.tanh(x * m.weight); return m.seen * 2",
    "a detached one": "y = torch.tanh(x * m.weight); m.seen = y.detach(); return y",
    "a buffer": "m.mean = m.mean * 0.9 + x.detach().mean(0) * 0.1; return (x - m.mean) * m.weight",
    "a buffer in place": "m.mean.mul_(0.9).add_(x.detach().mean(0)); return x * m.weight",
    "a buffer by an operator": "m.mean += x.detach().mean(0); return x * m.weight",
    "a counter": "m.calls += 1; return x * m.weight * m.calls",
    "a log": "m.log.append((x * m.weight).sum()); return x * 2 * m.weight",
    "an entry": "d['y'] = torch.sin(x * m.weight); return x * m.weight",
    "an entry that is made of others": "d['y'] = d.get('y', 0) + x * m.weight; return torch.sin(d['y'])",
    "an entry only": "d['y'] = torch.sin(x * m.weight)",
}


@pytest.mark.parametrize("name", OF_MODULES)
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
def test_with_gradients(name, grad):
    import torch

    results = []
    for f, m in of_torch(OF_MODULES[name]):
        seen: list[Any] = []
        for n in (2, 2, 3, 4):
            x = torch.linspace(-1, 1, 4 * n).reshape(n, 4).requires_grad_(grad)
            m.zero_grad()
            d: dict[str, Any] = {}
            with torch.set_grad_enabled(grad):
                y = [f(x, d) for _ in range(2)]
                held = [v for v in (*y, m.seen, *d.values()) if v is not None]
                if grad:
                    held = [h for h in held if h.requires_grad]
                    sum((h * h).sum() for h in held).backward()
            seen += [[h.detach().clone() for h in held], x.grad, m.weight.grad, m.mean.clone(), m.calls]
            seen += [[h.detach() for h in m.log]]
            m.seen = None
            m.log.clear()
            assert type(m.mean) is torch.Tensor
        results.append(seen)
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)


FAILING = {
    "an exception": "c.h = x * 2; c.log.append(x); raise KeyError('no')",
    "what cannot be traced": "c.h = x * 2; c.log.append(x); c.named['k'] = x; return float(x[0])",
    "a deque": "q.append(x * 2); return x",
    "a set": "held.add(C()); held.add(1); c.last = {x.sum() > 0} if False else (x * 2); raise KeyError('no')",
    "a global": "global last; last = x * 2; raise KeyError('no')",
    "a closure": "keep(x * 2); raise KeyError('no')",
}


@pytest.mark.parametrize("name", FAILING)
def test_a_trace_that_fails_changes_nothing(name):
    module = module_of(FAILING[name])
    exec(
        "from collections import deque\nq, held = deque(), set()\ndef keeper():\n    kept = None\n"
        "    def keep(v):\n        nonlocal kept\n        kept = v\n    return keep\nkeep = keeper()\n",
        vars(module),
    )
    before = state(module)
    with pytest.raises((KeyError, TypeError)):
        kf.fuse(module.f)(np.ones(3))
    assert state(module) == before
    assert not module.q
    assert not module.held
    assert module.keep.__closure__[0].cell_contents is None


class Items(list):
    pass


class Slots:
    __slots__ = ("h", "n")

    def __init__(self) -> None:
        self.h, self.n = None, 0


@dataclass(slots=True)
class SlottedRecord:
    h: Any = None
    n: int = 0


def _of_none() -> Any:
    return np.array([None] * 3, dtype=object)


# What calls cannot set anything in: what makes it, what sets a number there, what puts an array there.
FIXED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "a counter": (Counter, "o['k'] += 1", "o['k'] = x * 2"),
    "a class of a list": (Items, "o.append(1)", "o.append(x * 2)"),
    "a list's attribute": (Items, "o.n = getattr(o, 'n', 0) + 1", "o.h = x * 2"),
    "a deque": (deque, "o.append(1)", "o.append(x * 2)"),
    "a set": (set, "o.add(len(o))", "o.add(Inner(x))"),
    "slots": (Slots, "o.n += 1", "o.h = x * 2"),
    "a list in slots": (Slots, "o.h = [o.h]", "o.h = [x * 2]"),
    "a record with slots": (SlottedRecord, "o.n += 1", "o.h = x * 2"),
    "one of an array": (lambda: SlottedRecord(np.ones(3)), "o.n += 1", "o.h = o.h + x"),
    "an array of objects": (_of_none, "o[0] = (o[0] or 0) + 1", "o[0] = Inner(x * 2)"),
    "a thread's": (threading.local, "o.n = getattr(o, 'n', 0) + 1", "o.h = x * 2"),
    "a context's": (lambda: ContextVar("o", default=0), "o.set(o.get() + 1)", "o.set(x * 2)"),
    "a context's, set before": (lambda: _set_before(), "o.set(o.get() + 1)", "o.set(x * 2)"),
}


def _set_before() -> ContextVar[int]:
    variable = ContextVar("o", default=0)
    variable.set(5)
    return variable


def held_by(o: Any) -> Any:
    if isinstance(o, ContextVar):
        return o.get()
    held = [getattr(o, name) for name in getattr(type(o), "__slots__", ())]
    if hasattr(o, "__len__"):
        held = list(o.items() if isinstance(o, dict) else o)
    return held, dict(getattr(o, "__dict__", {}))


@pytest.mark.parametrize("where", ["global", "closure", "argument", "attribute", "entry"])
@pytest.mark.parametrize("what", ["number", "array"])
@pytest.mark.parametrize("name", FIXED)
def test_what_calls_cannot_set_is_refused(name, what, where):
    make, *bodies = FIXED[name]
    o = make()
    scope: dict[str, Any] = {"Inner": Holder, "o": o}
    body = bodies[what == "array"] + "; return x + 1"
    given, first = {
        "global": ((), "def f(x):"),
        "closure": ((), "def f(x):"),
        "argument": ((o,), "def f(x, o):"),
        "attribute": ((Holder(o),), "def f(x, h):\n    o = h.held"),
        "entry": (({"o": [o]},), "def f(x, h):\n    o = h['o'][0]"),
    }[where]
    text = f"{first}\n    {body}\n"
    if where == "closure":
        text = f"def outer(o):\n{textwrap.indent(text, '    ')}\n    return f\nf = outer(o)"
    exec(text, scope)
    before, fused = held_by(o), kf.fuse(scope["f"])
    for _ in range(2):
        with pytest.raises(TypeError, match=r"f (sets|puts) .*calls cannot set|must be .*float16"):
            fused(np.ones(3), *given)
        assert str(held_by(o)) == str(before)
    with contextlib.suppress(TypeError):  # one trace does not tell a counter from a cache
        kf.plan(scope["f"], np.ones(3), *given)
    assert str(held_by(o)) == str(before)


def test_planning_changes_nothing():
    for name in ("a state", "a counter", "a log", "a global", "a class's"):
        module = module_of(BODIES[name])
        before, fused = state(module), kf.fuse(module.f)
        for _ in range(2):
            fused.plan(np.ones(3))
            kf.plan(module.f, kf.spec((3,), "float64"), device="H200")
            assert state(module) == before
            fused(np.ones(3))
            before = state(module)


def test_instances_take_turns():
    class Filter:
        def __init__(self) -> None:
            self.h, self.n = np.zeros(3), 0.0

        @kf.fuse
        def step(self, x):
            self.h = 0.5 * self.h + x
            self.n += 1
            return self.h * self.n

    filters = [Filter() for _ in range(4)]
    for n in range(1, 4):
        for i, each in enumerate(filters):
            each.step(np.full(3, float(i)))
            np.testing.assert_allclose(each.h, i * sum(0.5**k for k in range(n)))
            assert each.n == n
    assert Filter.step._cached() == 1


def test_counters_are_no_reason_to_trace_again():
    module = module_of("c.n += 1; c.h = np.tanh(c.h + x); return c.h * c.n")
    fused = kf.fuse(module.f)
    module.c.h = np.zeros(3)
    for n in range(1, 8):
        fused(np.ones(3))
        assert module.c.n == n
    assert fused._cached() == 1


CACHES = {
    "a mask": "c.last = np.arange(3.0) if c.last is None else c.last; return x * c.last + np.ones(3)",
    "a table": "c.named.setdefault(x.shape, [np.arange(3.0), 2]); return x * c.named[x.shape][0]",
    "a flag": "c.last = 'warned'; return x * 2, 'a', 1.5",
    "a set": "seen.add(x.shape); return x * 2",
    "beside a call of the library": "c.last = c.last or 1; return np.partition(x, c.last) * 2",
    "beside a number": "c.last = c.last or 1; return x * a",
}


@pytest.mark.parametrize("name", CACHES)
def test_caches_cost_one_trace(name):
    module = module_of(CACHES[name])
    exec(f"seen = set()\ndef f(x, a):\n    {CACHES[name]}\n", vars(module))
    fused = kf.fuse(module.f)
    for a in (0.5, 1.5, 2.5):
        x = np.linspace(-a, a, 3)
        assert described(fused(x, a)) == described(module.f(x, a))
    assert fused._cached() == 1
    assert not fused._places.are_known


def test_a_first_call_that_differs_by_a_set_is_refused():
    module = module_of("pass")
    exec("seen = set()\ndef f(x):\n    if 1 in seen: return x\n    seen.add(1)\n    return x * 2\n", vars(module))
    with pytest.raises(kf.TraceError, match="f sets `seen`, a set"):
        kf.fuse(module.f)(np.ones(3))
    assert not module.seen


# ---- several threads ----


@pytest.mark.parametrize("is_object", [True, False], ids=["object", "dict"])
def test_what_stays_is_there_all_the_time(is_object):
    """A destructor, which runs when what is replaced goes, sees what another thread would."""
    seen = []

    class Seer:
        def __del__(self):
            seen.append(list(held))

    o = Holder(Seer())
    held = vars(o) if is_object else {"held": o.held}
    target = o if is_object else held
    del o
    held["other"] = "stays"
    set_contents(target, {"held": 1, "other": held["other"], "new": 2})
    assert held == {"held": 1, "other": "stays", "new": 2}
    assert len(seen) == 1
    assert "other" in seen[0]


@pytest.mark.parametrize("body", ["o.new, o.held = 1, 2; del o.gone", "o.held = 3", "o.gone = vars(o).pop('held')"])
def test_what_other_threads_set_during_a_call_stays(body):
    scope: dict[str, Any] = {}
    exec(f"def f(o):\n    {body}\n", scope)
    plain, other = Holder(0), Holder(0)
    plain.gone = other.gone = "there"
    scope["f"](plain)
    apart = TakenApart(inspect.signature(scope["f"]), [other], {})
    returned = Functional(scope["f"], "f", inspect.signature(scope["f"]))(*apart.args)
    other.fresh = "of another thread"
    apart.put_back(returned)
    assert vars(other) == {**vars(plain), "fresh": "of another thread"}


@pytest.mark.parametrize("repeat", range(3))
def test_first_calls_of_several_threads(repeat):
    """Each count is one that the plain function could have found, nothing of a trace is seen, and nobody fails."""
    module = module_of("c.n += 1; c.h = x * 2; return x * 1 + np.zeros(len(x))")
    fused, failed = kf.fuse(module.f), []
    barrier = threading.Barrier(4)

    def work():
        try:
            barrier.wait()
            for n in (3, 4, 5):
                np.testing.assert_array_equal(fused(np.ones(n)), np.ones(n))
        except BaseException as error:
            failed.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failed
    assert 0 < module.c.n <= 12
    assert type(module.c.n) is int
    np.testing.assert_array_equal(module.c.h, 2 * np.ones(len(module.c.h)))
