"""`kf.fuse`: whatever a function's code names is seen when it changes, and nothing that it named before stays alive."""

from __future__ import annotations

import functools
import gc
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kfusion as kf


@pytest.fixture
def x() -> np.ndarray:
    return np.arange(3.0)


def module_of(text: str) -> Any:
    module: Any = types.ModuleType("of_the_users_own")
    vars(module).update(kf=kf, np=np, functools=functools, types=types)
    exec(text, vars(module))
    return module


def now(text: str) -> Callable[[Any], None]:
    return lambda module: exec(text, vars(module))


CHANGES = {
    "a global hides a builtin": ("def f(x): return x * abs(-3)", "def abs(x): return 10"),
    "a builtin is seen again": ("def abs(x): return 10\ndef f(x): return x * abs(-3)", "del abs"),
    "a global": ("a = 2\ndef f(x): return x * a", "a = 3"),
    "a list": ("a = [2]\ndef f(x): return x * a[0]", "a = [3]"),
    "code": ("def f(x): return x + 1", "def g(x): return x + 2\nf.__code__ = g.__code__"),
    "code that names more": ("a = 5\ndef f(x): return x", "def g(x): return x * a\nf.__code__ = g.__code__"),
    "defaults": ("def f(x, a=2): return x * a", "f.__defaults__ = (3,)"),
    "no defaults": ("def f(x, a=2, *b): return x * a", "def g(x, *b): return x\nf.__code__ = g.__code__"),
    "keyword defaults": ("def f(x, *, a=2): return x * a", "f.__kwdefaults__ = {'a': 3}"),
    "a keyword default": ("def f(x, *, a=2): return x * a", "f.__kwdefaults__['a'] = 3"),
    "code of a function": (
        "def h(x): return x + 1\ndef f(x): return h(x)",
        "def g(x): return x * 7\nh.__code__ = g.__code__",
    ),
    "defaults of a function": ("def h(x, a=1): return x * a\ndef f(x): return h(x)", "h.__defaults__ = (3,)"),
    "a function in a default": (
        "def h(x): return x\ndef f(x, g=h): return g(x)",
        "h.__code__ = (lambda x: x + 1).__code__",
    ),
    "a fused function's": (
        "@kf.fuse\ndef h(x): return x\ndef f(x): return h(x)",
        "h.__wrapped__.__code__ = (lambda x: x + 1).__code__",
    ),
    "one that keeps its results": (
        "import functools\n@functools.cache\ndef h(n): return n + a\na = 1\ndef f(x): return x * h(1)",
        "a = 2\nh.cache_clear()",
    ),
    "a global of an inner function": (
        "a = 2\ndef f(x):\n    def g(y): return y * a\n    return g(x)",
        "a = 3",
    ),
    "a global of a comprehension": ("a = 2\ndef f(x): return sum([x * a for _ in range(2)])", "a = 3"),
    "a list in a default": ("def f(x, a=[2]): return x * a[0]", "f.__defaults__[0][0] = 3"),
    "a dict in a keyword default": ("def f(x, *, a={'k': 2}): return x * a['k']", "f.__kwdefaults__['a']['k'] = 3"),
    "a function's attribute": ("def f(x): return x * f.a\nf.a = 2", "f.a = 3"),
    "an entry of a dict": ("a = {'k': 2}\ndef f(x): return x * a['k']", "a['k'] = 3"),
    "another entry": ("a = {'k': 2}\ndef f(x): return x * sum(a.values())", "a['l'] = 3"),
    "the order of a dict": ("a = {'k': 2, 'l': 3}\ndef f(x): return x * [*a.values()][0]", "a['k'] = a.pop('k')"),
    "a longer list": ("a = [2]\ndef f(x): return x * len(a)", "a.append(2)"),
    "an array in a list": ("a = [np.ones(3)]\ndef f(x): return x * a[0]", "a[0] = np.full(3, 2.0)"),
    "a list in a dict": ("a = {'k': [2]}\ndef f(x): return x * a['k'][0]", "a['k'][0] = 3"),
    "a list in a tuple": ("a = ([2],)\ndef f(x): return x * a[0][0]", "a[0][0] = 3"),
    "a set": ("a = {2}\ndef f(x): return x * (2 if 3 in a else 1)", "a.add(3)"),
    "a list that is iterated": ("a = [2, 3]\ndef f(x): return sum([x * n for n in a])", "a[1] = 4"),
    "another type of list": ("a = [2]\ndef f(x): return x * len(str(a))", "a = (2,)"),
    "-0.0": ("a = 0.0\ndef f(x): return x * (2 if str(a) == '0.0' else 1)", "a = -0.0"),
    "True, which is 1": ("a = 1\ndef f(x): return x * (2 if a is True else 1)", "a = True"),
}  # fmt: skip

OBJECT = """
class Inner: pass
class C:
    n = 2
    def __init__(self): self.w, self.inner, self.all, self.named = 2, Inner(), [2], {'k': 2}; self.inner.w = 2
    def scaled(self, x): return x * self.w
    @property
    def twice(self): return 2 * self.w
    @functools.cached_property
    def kept(self): return self.w + 1
    @staticmethod
    def fixed(x): return x * a
    def __call__(self, x): return self.scaled(x) + 1
class D(C):
    def scaled(self, x): return super().scaled(x) + self.n
class Slots:
    __slots__ = ("w", "__weakref__")
c, s, d, a = C(), Slots(), D(), 2
s.w = 2
space = types.SimpleNamespace(w=2, inner=types.SimpleNamespace(w=2))
p = functools.partial(lambda x, n: x * n, n=2)
"""
OF_OBJECTS = {
    "an attribute": ("x * c.w", "c.w = 3"),
    "an attribute of an attribute": ("x * c.inner.w", "c.inner.w = 3"),
    "an object of an attribute": ("x * c.inner.w", "c.inner = Inner(); c.inner.w = 3"),
    "a list of an attribute": ("x * c.all[0]", "c.all[0] = 3"),
    "a dict of an attribute": ("x * c.named['k']", "c.named['k'] = 3"),
    "an attribute of a method": ("c.scaled(x)", "c.w = 3"),
    "an attribute of a bound method": ("(lambda g: g(x))(c.scaled)", "c.w = 3"),
    "an attribute of __call__": ("c(x)", "c.w = 3"),
    "an attribute of a parent's method": ("d.scaled(x)", "d.w = 3"),
    "an attribute of a class": ("x * c.n", "C.n = 3"),
    "an attribute of the class itself": ("x * C.n", "C.n = 3"),
    "an attribute of a parent": ("x * d.n", "C.n = 3"),
    "one that hides the class's": ("x * c.n", "c.n = 3"),
    "one that hides a parent's": ("x * d.n", "D.n = 3"),
    "one that hid the class's": ("x * c.n", "del c.n", "c.n = 3"),
    "a method": ("c.scaled(x)", "C.scaled = lambda self, x: x * 7"),
    "a method of the object's own": ("c.scaled(x)", "c.scaled = lambda x: x * 7"),
    "code of a method": ("c.scaled(x)", "C.scaled.__code__ = (lambda self, x: x * 7).__code__"),
    "what a property reads": ("x * c.twice", "c.w = 3"),
    "a property": ("x * c.twice", "C.twice = property(lambda self: 7)"),
    "what is kept": ("x * c.kept", "c.kept = 7"),
    "a global of a static method": ("c.fixed(x)", "a = 3"),
    "by getattr": ("x * getattr(c, 'w')", "c.w = 3"),
    "by vars": ("x * vars(c)['w']", "c.w = 3"),
    "by setattr": ("x * c.w", "setattr(c, 'w', 3)"),
    "behind another name": ("(lambda o: x * o.w)(c)", "c.w = 3"),
    "an object in a list": ("sum([x * o.w for o in [c, d]])", "d.w = 3"),
    "another class": ("x * c.n", "c.__class__ = D; D.n = 3"),
    "a slot": ("x * s.w", "s.w = 3"),
    "a namespace": ("x * space.w", "space.w = 3"),
    "a namespace in a namespace": ("x * space.inner.w", "space.inner.w = 3"),
    "a partial's keywords": ("p(x)", "p.keywords['n'] = 3"),
    "an array": ("x * c.w", "c.w = np.full(3, 5.0)", "c.w = np.ones(3)"),
    "a string": ("x * (3 if c.w == 'three' else 2)", "c.w = 'three'", "c.w = 'two'"),
    "None": ("x if c.w is None else x * 2", "c.w = None"),
    "a tuple": ("x * c.w[1]", "c.w = (1, 3)", "c.w = (1, 2)"),
    "a lambda": ("c.w(x)", "c.w = lambda x: x * 3", "c.w = lambda x: x * 2"),
    "a closure of a lambda": (
        "c.w(x)",
        "c.w.__closure__[0].cell_contents = 3",
        "c.w = (lambda n: lambda x: x * n)(2)",
    ),
}  # fmt: skip
CHANGES |= {
    name: (f"{OBJECT}{(*before, '')[0]}\ndef f(x): return {text}", change)
    for name, (text, change, *before) in OF_OBJECTS.items()
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name, x):
    text, change = CHANGES[name]
    module = module_of(text)
    fused = kf.fuse(module.f)
    np.testing.assert_array_equal(fused(x), module.f(x))
    exec(change, vars(module))
    for _ in range(2):
        np.testing.assert_array_equal(fused(x), module.f(x))


def test_what_held_before_holds_again(x):
    module = module_of("def f(x): return x * abs(-3)")
    fused = kf.fuse(module.f)
    for _ in range(3):
        fused(x)
        module.abs = lambda _: 10
        np.testing.assert_array_equal(fused(x), x * 10)
        del module.abs
        np.testing.assert_array_equal(fused(x), x * 3)
    assert fused._cached() <= 4  # three functions abs, and none


def test_a_deleted_global(x):
    module = module_of("a = 2\ndef f(x): return x * a")
    fused = kf.fuse(module.f)
    fused(x)
    del module.a
    with pytest.raises(NameError, match="'a' is not defined"):
        fused(x)
    module.a = 4
    np.testing.assert_array_equal(fused(x), x * 4)


def test_attributes_of_own_modules(x, monkeypatch):
    layers = module_of("eps = 1\ndef norm(x): return x * eps")
    package = module_of("")
    package.layers = layers
    module = module_of("def f(x): return layers.norm(x) + package.layers.eps")
    module.layers, module.package = layers, package
    fused = kf.fuse(module.f)
    for change in ("eps = 2", "def norm(x): return x - eps", "def g(x): return x * 9\nnorm.__code__ = g.__code__"):
        exec(change, vars(layers))
        np.testing.assert_array_equal(fused(x), module.f(x))
    package.layers = module_of("eps = 77")
    np.testing.assert_array_equal(fused(x), module.f(x))


def test_a_rebound_nonlocal(x):
    factor = 2

    def change() -> None:
        nonlocal factor
        factor = 3

    f = kf.fuse(lambda x: x * factor)
    np.testing.assert_array_equal(f(x), x * 2)
    change()
    np.testing.assert_array_equal(f(x), x * 3)


def test_a_method_of_another_class_is_seen_behind_its_function(x):
    class Layer:
        def __call__(self, x):
            return x * 2

    layer = Layer()
    f = kf.fuse(lambda x: layer(x))
    np.testing.assert_array_equal(f(x), x * 2)
    Layer.__call__.__code__ = (lambda self, x: x * 3).__code__  # as autoreload does
    np.testing.assert_array_equal(f(x), x * 3)


def test_objects_are_asked_for_nothing_when_they_are_guarded(x):
    class Proxy:
        def __getattr__(self, name):
            raise RuntimeError("no request")

    proxy: Any = Proxy()
    f = kf.fuse(lambda x: x if proxy is None else x + 1)
    np.testing.assert_array_equal(f(x), x + 1)


CELL: Any = None


def closure_of(weight: np.ndarray) -> Any:
    return lambda x: x * weight


def default_of(weight: np.ndarray) -> Any:
    return lambda x, w=weight: x * w


@pytest.mark.slow
@pytest.mark.parametrize("make", [closure_of, default_of])
def test_closures_are_not_kept(make, x):
    global CELL
    f = kf.fuse(lambda x: CELL(x))
    weights = []
    for i in range(300):
        weight = np.full(3, float(i))
        weights.append(weakref.ref(weight))
        CELL = make(weight)
        del weight
        np.testing.assert_array_equal(f(x), x * i)
    gc.collect()
    assert sum(w() is not None for w in weights) == 1
    assert f._cached() <= 2
    CELL = None
    f.clear()
    gc.collect()
    assert not any(w() is not None for w in weights)


def test_tuples_that_were_bound_before_are_forgotten(x):
    module = module_of("def f(x): return x * weights[0]")
    fused = kf.fuse(module.f)
    refs = []
    for _ in range(5):
        weight = np.ones(3)
        refs.append(weakref.ref(weight))
        module.weights = (weight,)
        fused(x)
    del weight, module.weights
    fused.clear()
    gc.collect()
    assert not any(r() is not None for r in refs)


def test_a_function_in_its_own_globals_is_collected(x):
    module = module_of("table = {}\ndef f(x): return x * len(table)")
    fused = module.table["f"] = kf.fuse(module.f)
    fused(x)
    gone = weakref.ref(fused)
    del module, fused
    gc.collect()
    assert gone() is None


OF_ARGUMENTS = {
    "what a function names": ("lambda x, g: g(x)", "lambda x: x * a", "a = 3"),
    "a closure": ("lambda x, g: g(x)", "(lambda n: lambda x: x * n)(2)", "arg.__closure__[0].cell_contents = 3"),
    "a default": ("lambda x, g: g(x)", "lambda x, n=[2]: x * n[0]", "arg.__defaults__[0][0] = 3"),
    "a partial": ("lambda x, g: g(x)", "p", "p.keywords['n'] = 3"),
    "an object that is called": ("lambda x, g: g(x)", "c", "c.w = 3"),
    "the instance of a method": ("lambda self, x: self.scaled(x)", "c", "c.w = 3"),
    "the class of an instance": ("lambda self, x: x * self.n", "c", "C.n = 3"),
    "an object in a list": ("lambda x, all: all[0](x)", "[c]", "c.w = 3"),
    "a namespace": ("lambda x, s: x * s.w", "space", "space.w = 3"),
    "slots": ("lambda x, s: x * s.w", "s", "s.w = 3"),
}


@pytest.mark.parametrize("name", OF_ARGUMENTS)
def test_changes_of_arguments(name, x):
    text, argument, change = OF_ARGUMENTS[name]
    module = module_of(f"{OBJECT}\nf = {text}\narg = {argument}")
    fused = kf.fuse(module.f)
    args = (module.arg, x) if "self" in text else (x, module.arg)
    for _ in range(3):
        np.testing.assert_array_equal(fused(*args), module.f(*args))
        exec(change, vars(module))


def test_each_argument_is_guarded_by_itself(x):
    """Changes of one object are no reason to trace for another."""
    module = module_of(OBJECT)
    fused = kf.fuse(lambda self, x: self.scaled(x))
    objects = [module.C() for _ in range(3)]
    for _ in range(2):
        for n, each in enumerate(objects):
            each.w = n
            np.testing.assert_array_equal(fused(each, x), x * n)
    assert fused._cached() == 3


def test_a_partial_and_a_bound_method(x):
    module = module_of(OBJECT)
    f, g = kf.fuse(module.c.scaled), kf.fuse(module.p)
    for n in (3, 4, 3, 4):
        module.c.w = module.p.keywords["n"] = n
        np.testing.assert_array_equal(f(x) + g(x), x * 2 * n)
    assert f._cached() == g._cached() == 2


def test_values_of_attributes_that_were_seen_before_are_kept(x):
    module = module_of(f"{OBJECT}\ndef f(x): return x * c.w + c.all[0] + c.inner.w")
    fused = kf.fuse(module.f)
    for n in [*range(4)] * 3:
        module.c.w, module.c.all, module.c.inner.w = n, [n], float(n)
        np.testing.assert_array_equal(fused(x), module.f(x))
    assert fused._cached() == 4


def test_the_python_library_is_not_followed():
    f = kf.fuse(lambda x: sys.modules and functools.reduce(lambda a, b: a, [x]))
    owners = {getattr(guard.owner, "__name__", "") for guard in f._guards()}
    assert owners == {"<lambda>", "sys"}
