"""What a function sets beside its results: each call sets it as the plain function does."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from stateful import Holder, described, module_of, state

pytestmark = pytest.mark.native

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
    "that of its class": "type(c).total = type(c).total + 1; return x + c.total",
    "its class's": "c.__class__.total += 1; return x + C.total",
    "a class's by a method of it": "c.bump(); return x + c.total",
    "a new one of its class": "type(c).fresh = getattr(type(c), 'fresh', 0) + 1; n = type(c).fresh; return x * n",
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
    "beside the object in the result": "c.n += 1; return x * 2, c.n, c",
    "the object in a dict": "c.n += 1; c.named['k'] = {'c': c, 'x': x}; return x * 2",
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


# ---- constants that depend on arguments ----


SETTING = """
class C: pass
class K: mode = None
c, mode = C(), None
def note(flag): c.mode = flag
def keeper():
    kept = None
    def keep(v):
        nonlocal kept
        kept = v
    return keep
keep = keeper()
"""

# Bodies of `def f(x, flag):` that set what a trace knows.
CONSTANTS = {
    "a string": "c.mode = 'train' if flag else 'eval'",
    "a flag": "c.mode = flag",
    "a function": "c.mode = np.tanh if flag else np.sin",
    "a number of axes": "c.mode = x.ndim",
    "a dtype": "c.mode = str(x.dtype)",
    "a tuple": "c.mode = (1, flag)",
    "an object": "c.mode = c if flag else None",
    "of a class": "K.mode = flag",
    "a global": "global mode; mode = flag",
    "a closure's": "keep(flag)",
    "by a function": "note(flag)",
}


@pytest.mark.parametrize(
    "reset", ["pass", "c.mode = K.mode = mode = None", "c.mode = K.mode = mode = 'x'", "vars(c).clear()"]
)
@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_are_set_in_each_call(name, reset):
    found = []
    for fuse in (lambda f: f, kf.fuse):
        scope: dict[str, Any] = {"np": np}
        exec(f"{SETTING}def f(x, flag):\n    {CONSTANTS[name]}\n    return x * 2\n", scope)
        f, c = fuse(scope["f"]), scope["c"]
        for flag in (True, True, False, False, True, False, True, True):
            f(np.ones(3) if flag else np.ones((3, 1), "float32"), flag)
            kept = scope["keep"].__closure__[0].cell_contents
            found.append([scope["mode"], scope["K"].mode, kept, {k: v is c or v for k, v in vars(c).items()}])
            exec(reset, scope)
    assert found[:8] == found[8:]


# ---- which objects are there ----


# Bodies of `def f(x, d, o):` that set arrays in a dict and an attribute of an object.
IDENTICAL = {
    "an argument": "d['a'] = x; return x * 2",
    "one in several places": "d['a'] = o.h = x; d['l'] = [x, (x, 1)]; return x * 2",
    "one that is written to": "d['a'] = x; x += 1; return x * 2",
    "one of an entry": "o.h = d['x']; return x * 2",
    "two that are swapped": "d['x'], d['y'] = d['y'], d['x']; return x * 2",
    "one that goes elsewhere": "d['a'] = d.pop('x'); return x * 2",
    "in an object that it makes": "d['o'] = type(o)(x); return x * 2",
    "one result": "y = x * 2; d['a'] = y; return y",
    "one result in several places": "y = x * 2; d['a'] = o.h = y; d['l'] = [y, {'k': y}]; return {'y': y, 'z': x + 1}",
    "one that is captured": "d['a'] = o.h = w; return x * 2",
    "with nothing computed": "d['a'] = x",
}


@pytest.mark.parametrize(
    ("name", "grad"), [(n, g) for n in IDENTICAL for g in (None, False, True) if not (g and "written" in n)]
)
def test_arrays_that_are_set_are_the_objects_themselves(name, grad):
    if grad is None:
        array = np.asarray
    else:
        torch = pytest.importorskip("torch")

        def array(values):
            return torch.tensor(values, dtype=torch.float64)

    found = []
    for fuse in (lambda f: f, kf.fuse):
        scope: dict[str, Any] = {"w": array([5.0])}
        exec(f"def f(x, d, o):\n    {IDENTICAL[name]}\n", scope)
        f = fuse(scope["f"])
        for n in (3, 3, 4, 5):
            x, o = array([float(n)] * n), Holder(None)
            if grad:
                x.requires_grad_()
            d = {"x": array([1.0]), "y": array([2.0])}
            known = {id(x): "x", id(d["x"]): "dx", id(d["y"]): "dy", id(scope["w"]): "w"}
            y = f(x, d, o)
            found.append(identities([y, d, vars(o)], known))
    assert found[:4] == found[4:]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_what_callers_write_into_a_result_is_in_what_is_set(library):
    xp = pytest.importorskip(library)

    def f(x, o):
        y = -x
        o.before, o.last = o.last, y
        return (y,)

    fused, o = kf.fuse(f), Holder(None)
    o.last = None
    for n in range(5):
        (y,) = fused(xp.full((3,), float(n)), o)
        assert y is o.last
        assert n == 0 or o.before.tolist() == [n + 76.0] * 3
        y[...] = n + 77.0
        assert o.last.tolist() == [n + 77.0] * 3


def identities(value: Any, known: dict[int, str]) -> Any:
    """Arrays by the names of objects that were known, or the numbers of others."""
    if isinstance(value, dict):
        return {key: identities(v, known) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [identities(v, known) for v in value]
    if isinstance(value, Holder):
        return identities(vars(value), known)
    return known.setdefault(id(value), f"{len(known)}") if hasattr(value, "shape") else value


# ---- gradients, modules ----


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


# ---- views of what is set, or of arguments ----


class Viewed:
    def __init__(self, library):
        self.buf, self.tail = library.zeros((2, 4)), library.zeros((2, 3))


def sets_both(x, s):
    s.buf = s.buf + x
    s.tail = s.buf[:, 1:]
    return s.buf.sum()


def sets_two_views(x, s):
    y = x * 2
    s.buf, s.tail = y[:1], y.swapaxes(0, 1)[1:]
    return y.sum()


def sets_a_view_of_an_argument(x, s):
    s.tail = x[1][1:]
    return x + 1


def sets_what_it_returns(x, s):
    s.buf = x * 2
    s.tail = s.buf[1]
    return s.buf


def sets_views_within_a_dict(x, s):
    s.buf = {"whole": x * 2}
    s.tail = [s.buf["whole"][0], s.buf["whole"][:, 2:]]
    return x + 1


def writes_through_a_view(x, s):
    s.buf = x * 2
    s.tail = s.buf[0]
    s.tail[1:] = 5
    return s.buf + 1


def arrays_of(value):
    if isinstance(value, dict):
        value = list(value.values())
    return [a for v in value for a in arrays_of(v)] if isinstance(value, list) else [value]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    "f",
    [
        sets_both,
        sets_two_views,
        sets_a_view_of_an_argument,
        sets_what_it_returns,
        sets_views_within_a_dict,
        writes_through_a_view,
    ],
)
def test_views_that_are_set_are_views(f, library):
    """Each is written to after every call: all others show that, as they do without kfusion."""
    library = pytest.importorskip(library)
    fused, states = kf.fuse(f), [Viewed(library), Viewed(library)]
    for n in range(3):
        x = [library.ones((2, 4)) * (n + 1) for _ in states]
        results = [function(*given) for function, given in zip((fused, f), zip(x, states, strict=True), strict=True)]
        np.testing.assert_array_equal(*results)
        for k in range(len(arrays_of([states[0].buf, states[0].tail]))):
            seen = []
            for given, s in zip(x, states, strict=True):
                arrays_of([s.buf, s.tail])[k][...] += 10 * k + 1
                seen.append([np.asarray(a).copy() for a in (*arrays_of([s.buf, s.tail]), given)])
            for got, want in zip(*seen, strict=True):
                np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("rows", [(2, 3, 5, 7)])
def test_views_that_are_set_of_other_sizes(rows):
    fused, s = kf.fuse(sets_both), Viewed(np)
    for n in rows:
        s.buf = np.zeros((n, 4))
        assert fused(np.ones((n, 4)), s) == n * 4
        assert np.shares_memory(s.tail, s.buf)
        np.testing.assert_array_equal(s.tail, np.ones((n, 3)))


def test_a_view_that_was_set_is_written_to():
    """By a later call, which reads the other array, too: what that would read is refused, not guessed."""

    def f(x, s):
        s.tail += 1
        total = s.buf.sum()
        sets_both(x, s)
        return total

    fused, s = kf.fuse(f), Viewed(np)
    fused(np.ones((2, 4)), s)
    with pytest.raises(ValueError, match=r"s.tail, which the function writes to, must not share memory"):
        fused(np.ones((2, 4)), s)
