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
    module.kf = kf
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
}  # fmt: skip


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


def test_a_partial_and_a_bound_method_are_as_they_were_traced(x):
    """What docs/using.md says of attributes and entries."""

    class Layer:
        factor = 2

        def forward(self, x):
            return x * self.factor

    layer = Layer()
    partial = functools.partial(lambda x, n: x * n, n=2)
    f, g = kf.fuse(layer.forward), kf.fuse(partial)
    np.testing.assert_array_equal(f(x) + g(x), x * 4)
    layer.factor = 3
    partial.keywords["n"] = 3
    np.testing.assert_array_equal(f(x) + g(x), x * 4)
    f.clear()
    g.clear()
    np.testing.assert_array_equal(f(x) + g(x), x * 6)


def test_the_python_library_is_not_followed():
    f = kf.fuse(lambda x: sys.modules and functools.reduce(lambda a, b: a, [x]))
    owners = {getattr(guard.owner, "__name__", "") for guard in f._guards()}
    assert owners == {"<lambda>"}
