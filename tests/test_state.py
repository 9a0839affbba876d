"""What a function sets beside its results: each call sets it as the plain function does."""

from __future__ import annotations

import itertools
import types
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from stateful import Holder, described, module_of, state
from sweeps import sweep

pytestmark = pytest.mark.native

# Bodies of `def f(x):`, and what they name.
BODIES = {
    "a state": "c.h = np.tanh(x + c.h); return c.h",
    "a state of a method": "return c.step(x)",
    "an attribute that goes": "c.fresh = x; y = c.fresh * 2; del c.fresh; return y",
    "a counter that is compared": "c.n += 1; return x if c.n < 3 else x * 2",
    "a schedule": "c.n += 1; c.rate = 0.1 / (1 + c.n); return x * c.rate",
    "by a property": "c.twice = c.twice + 4; return x + c.n",
    "by __dict__": "c.__dict__['h'] = x * 2; return x",
    "a class's by a method of it": "c.bump(); return x + c.total",
    "a new one of its class": "type(c).fresh = getattr(type(c), 'fresh', 0) + 1; n = type(c).fresh; return x * n",
    "an array in a class": "C.kept = x * 2; return x + 1",
    "a log": "c.log.append(x * 2); return x + len(c.log)",
    "the object itself": "c.me = c; c.h = x * 2; return x + 1",
    "beside the object in the result": "c.n += 1; return x * 2, c.n, c",
    "a view": "c.last = x[1:]; return x + 1",
    "two names of one": "a = b = x * 2; c.h, c.last = a, b; return a",
    "a slot": "s.h = x + s.h; return s.h * 2",
    "a namespace": "space.n += 1; space.h = x * space.n; return x",
    "a counter of its own": "global count; count += 1; return x * count",
    "a global list": "log.append(x * 2); return x",
    "its own attribute": "f.h = x + getattr(f, 'h', 0); return f.h * 1",
    "a cache": "if c.last is None:\n        c.last = np.arange(3.0)\n    return x + c.last[0]",
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
    "an alias": "c.alias = c.log; c.alias.append(x * 1); return x * len(c.log)",
}  # fmt: skip


def test_each_call_sets_what_the_function_does(some):
    def check(name):
        plain, other = module_of(BODIES[name]), module_of(BODIES[name])
        fused = kf.fuse(other.f)
        for n in (3, 3, 3, 4, 5, 6, 6):
            for c in (plain.c, other.c):
                c.h = c.h if c.h is None or len(c.h) in (1, n) else np.zeros(n)
            for held in (plain.c.inner, other.c.inner, plain.s, other.s, plain.f, other.f):
                if hasattr(held, "h"):
                    held.h = np.zeros(1)
            x = np.linspace(-1, 1, n)
            want, got = plain.f(x), fused(x)
            assert described(got) == described(want)
            assert state(other) == state(plain)

    sweep(check, [(name,) for name in some(BODIES, 16)])


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
    "an entry that is read": "d['k'] = d.get('k', 0) + x; return d['k'] * 2",
    "an entry that goes": "d['k'] = x; return d.pop('k') + 1",
    "an entry that was there": "del d['a']; return x + 1",
    "clear": "d.clear(); h.clear(); return x + 1",
    "setdefault": "d.setdefault('a', x); d.setdefault('k', x + 1); return x * 2",
    "the order of entries": "d['a'] = d.pop('a'); return x * 1",
    "pop": "y = h.pop(); return x + y",
    "remove by index": "del h[0]; return x * 2",
    "reverse": "h.reverse(); return x * 2",
    "a slice": "h[:1] = [x, x * 2]; return x",
    "in place": "h += [x * 2]; return x",
    "times": "h *= 2; return x + 1",
    "sort": "h.sort(key=lambda a: -float(a.shape[0])); return x * 2",
    "an array in place": "h[0] += 1; return x * 2",
    "one in the other": "d['h'] = h; h.append(x); return x",
    "the result too": "d['k'] = x * 2; return d",
    "the list itself": "h.append(x + 1); return h",
    "nothing returned": "d['k'] = x * 2",
    "a number": "d['n'] = d.get('n', 0) + 1; return x * d['n']",
    "a float": "d['n'] = d.get('n', 1.0) * 0.5; return x * d['n']",
    "the length": "d[len(d)] = x * 2; return x",
    "an object": "o.held = x * 2; return x",
    "a record in a dict": "d['o'] = o; o.a = x; return x + 1",
    "a record that is returned": "o.a = x * 2; return o",
    "a frozen one": "o.held.append(x * 2); return x",
    "an ordered dict": "o['k'] = x * 2; o.move_to_end('a'); return x",
    "a default dict": "o['k'].append(x * 2); return x",
    "a namespace": "o.h = x + o.h; return o.h * 2",
    "two names of one": "o.append(x); h.append(x * 2); return x",
    "swapped": "d['a'], h[0] = h[0] * 1, d['a'] * 1; return x",
}
ONCE = ("an entry that was there", "pop", "remove by index", "clear", "swapped")
GIVEN = {
    "a record in a dict": lambda d, h: Record(np.ones(1)),
    "a record that is returned": lambda d, h: Record(np.ones(1)),
    "a frozen one": lambda d, h: Frozen([np.ones(1)]),
    "an ordered dict": lambda d, h: OrderedDict(a=np.ones(1), b=np.ones(2)),
    "a default dict": lambda d, h: defaultdict(list),
    "a namespace": lambda d, h: types.SimpleNamespace(h=np.ones(1)),
    "two names of one": lambda d, h: h,
}


def test_each_call_sets_what_the_function_does_in_arguments(some):
    def check(name):
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

    sweep(check, [(name,) for name in some(OF_ARGUMENTS, 12)])


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

# Bodies of `def f(x, flag):` that set what a trace knows, and what happens between calls.
CONSTANTS = [
    "c.mode = 'train' if flag else 'eval'",
    "c.mode = flag",
    "c.mode = np.tanh if flag else np.sin",
    "c.mode = x.ndim",
    "c.mode = str(x.dtype)",
    "c.mode = (1, flag)",
    "c.mode = c if flag else None",
    "K.mode = flag",
    "global mode; mode = flag",
    "keep(flag)",
    "note(flag)",
]
RESETS = ["pass", "c.mode = K.mode = mode = None", "c.mode = K.mode = mode = 'x'", "vars(c).clear()"]


def test_constants_are_set_in_each_call(some):
    def check(body, reset):
        found = []
        for fuse in (lambda f: f, kf.fuse):
            scope: dict[str, Any] = {"np": np}
            exec(f"{SETTING}def f(x, flag):\n    {body}\n    return x * 2\n", scope)
            f, c = fuse(scope["f"]), scope["c"]
            for flag in (True, True, False, False, True, False, True, True):
                f(np.ones(3) if flag else np.ones((3, 1), "float32"), flag)
                kept = scope["keep"].__closure__[0].cell_contents
                found.append([scope["mode"], scope["K"].mode, kept, {k: v is c or v for k, v in vars(c).items()}])
                exec(reset, scope)
        assert found[:8] == found[8:]

    sweep(check, some(itertools.product(CONSTANTS, RESETS), 16))


# ---- which objects are there ----


# Bodies of `def f(x, d, o):` that set arrays in a dict and an attribute of an object.
IDENTICAL = [
    "d['a'] = x; return x * 2",
    "d['a'] = o.h = x; d['l'] = [x, (x, 1)]; return x * 2",
    "d['a'] = x; x += 1; return x * 2",
    "o.h = d['x']; return x * 2",
    "d['x'], d['y'] = d['y'], d['x']; return x * 2",
    "d['a'] = d.pop('x'); return x * 2",
    "d['o'] = type(o)(x); return x * 2",
    "y = x * 2; d['a'] = y; return y",
    "y = x * 2; d['a'] = o.h = y; d['l'] = [y, {'k': y}]; return {'y': y, 'z': x + 1}",
    "d['a'] = o.h = w; return x * 2",
    "d['a'] = x",
]


@pytest.mark.parametrize("grad", [None, False, True], ids=["NumPy", "no grad", "grad"])
def test_arrays_that_are_set_are_the_objects_themselves(grad):
    torch = None if grad is None else pytest.importorskip("torch")

    def array(values):
        return np.asarray(values) if torch is None else torch.tensor(values, dtype=torch.float64)

    def check(body):
        found = []
        for fuse in (lambda f: f, kf.fuse):
            scope: dict[str, Any] = {"w": array([5.0])}
            exec(f"def f(x, d, o):\n    {body}\n", scope)
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

    sweep(check, [(body,) for body in IDENTICAL if not (grad and "+=" in body)])


def identities(value: Any, known: dict[int, str]) -> Any:
    """Arrays by the names of objects that were known, or the numbers of others."""
    if isinstance(value, dict):
        return {key: identities(v, known) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [identities(v, known) for v in value]
    if isinstance(value, Holder):
        return identities(vars(value), known)
    return known.setdefault(id(value), f"{len(known)}") if hasattr(value, "shape") else value


# ---- plans, instances ----


def test_planning_changes_nothing():
    bodies = (
        "c.n += 1; C.total = C.total + 1; return x + c.n",
        "c.log.append(x); return x",
        "global last; last = x * 2; return x",
    )
    for body in (BODIES["a state"], *bodies):
        module = module_of(body)
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


# Bodies of `def f(x, s):`.
BOTH_SET = "s.buf = s.buf + x; s.tail = s.buf[:, 1:]; return s.buf.sum()"
VIEWS = [
    BOTH_SET,
    "y = x * 2; s.buf, s.tail = y[:1], y.swapaxes(0, 1)[1:]; return y.sum()",
    "s.tail = x[1][1:]; return x + 1",
    "s.buf = x * 2; s.tail = s.buf[1]; return s.buf",
    "s.buf = {'whole': x * 2}; s.tail = [s.buf['whole'][0], s.buf['whole'][:, 2:]]; return x + 1",
    "s.buf = x * 2; s.tail = s.buf[0]; s.tail[1:] = 5; return s.buf + 1",
]


def of_state(body):
    scope: dict[str, Any] = {}
    exec(f"def f(x, s):\n    {body}\n", scope)
    return scope["f"]


def arrays_of(value):
    if isinstance(value, dict):
        value = list(value.values())
    return [a for v in value for a in arrays_of(v)] if isinstance(value, list) else [value]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_views_that_are_set_are_views(library):
    """Each is written to after every call: all others show that, as they do without kfusion."""
    library = pytest.importorskip(library)

    def check(body):
        f = of_state(body)
        fused, states = kf.fuse(f), [Viewed(library), Viewed(library)]
        for n in range(3):
            x = [library.ones((2, 4)) * (n + 1) for _ in states]
            results = [call(*given) for call, given in zip((fused, f), zip(x, states, strict=True), strict=True)]
            np.testing.assert_array_equal(*results)
            for k in range(len(arrays_of([states[0].buf, states[0].tail]))):
                seen = []
                for given, s in zip(x, states, strict=True):
                    arrays_of([s.buf, s.tail])[k][...] += 10 * k + 1
                    seen.append([np.asarray(a).copy() for a in (*arrays_of([s.buf, s.tail]), given)])
                for got, want in zip(*seen, strict=True):
                    np.testing.assert_array_equal(got, want)

    sweep(check, [(body,) for body in VIEWS])


def test_views_that_are_set_of_other_sizes():
    fused, s = kf.fuse(of_state(BOTH_SET)), Viewed(np)
    for n in (2, 3, 5, 7):
        s.buf = np.zeros((n, 4))
        assert fused(np.ones((n, 4)), s) == n * 4
        assert np.shares_memory(s.tail, s.buf)
        np.testing.assert_array_equal(s.tail, np.ones((n, 3)))


def test_a_view_that_was_set_is_written_to():
    """By a later call, which reads the other array, too: what that would read is refused, not guessed."""

    f = of_state(f"s.tail += 1; total = s.buf.sum(); {BOTH_SET.replace('return', '_ =')}; return total")
    fused, s = kf.fuse(f), Viewed(np)
    fused(np.ones((2, 4)), s)
    with pytest.raises(ValueError, match=r"s.tail, which the function writes to, must not share memory"):
        fused(np.ones((2, 4)), s)
