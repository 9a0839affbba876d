"""`kf.fuse`: globals and closures that the function names are looked at in every call."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import types
import weakref
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion._graph import guards

FACTOR: Any = 2
WEIGHT: Any = np.ones(3)
COUNT = 0


def helper(x):
    return x * FACTOR


def other_helper(x):
    return x - 1


HELPER: Any = helper


@pytest.fixture(autouse=True)
def _globals():
    before = {name: globals()[name] for name in ("FACTOR", "WEIGHT", "HELPER", "COUNT")}
    yield
    globals().update(before)


def set_global(**values: Any) -> None:
    globals().update(values)


@pytest.fixture
def x() -> np.ndarray:
    return np.arange(3.0)


def test_a_global_that_is_rebound(x):
    f = kf.fuse(lambda x: x * FACTOR)
    for factor in (2, 3, 2.5, 2):
        set_global(FACTOR=factor)
        np.testing.assert_array_equal(f(x), x * factor)


def test_values_seen_before_are_kept(x):
    f = kf.fuse(lambda x: x * FACTOR)
    for factor in (2, 3) * 5:
        set_global(FACTOR=factor)
        f(x)
    assert f._cached() == 2


def test_a_global_of_a_function_that_it_calls(x):
    f = kf.fuse(lambda x: HELPER(x) + 1)
    np.testing.assert_array_equal(f(x), x * 2 + 1)
    set_global(FACTOR=5)
    np.testing.assert_array_equal(f(x), x * 5 + 1)
    set_global(HELPER=other_helper)
    np.testing.assert_array_equal(f(x), x)
    set_global(HELPER=kf.relu)
    np.testing.assert_array_equal(f(x), x + 1)


def test_a_global_of_a_function_inside(x):
    @kf.fuse
    def f(x):
        def inner(y):
            return y + FACTOR

        return inner(x)

    np.testing.assert_array_equal(f(x), x + 2)
    set_global(FACTOR=7)
    np.testing.assert_array_equal(f(x), x + 7)


def test_a_closure_that_is_rebound(x):
    scale = 2.0

    @kf.fuse
    def f(x):
        return sum([x * scale for _ in range(1)], 0)

    np.testing.assert_array_equal(f(x), x * 2)
    scale = 3.0
    np.testing.assert_array_equal(f(x), x * 3)


class Callable:
    def __call__(self, x):
        return helper(x)


HELPERS = {
    "a partial": lambda: functools.partial(_scaled, by=1),
    "a partial of a partial": lambda: functools.partial(functools.partial(_applied, helper)),
    "an object": Callable,
    "a fused partial": lambda: kf.fuse(functools.partial(_scaled, by=1)),
}


def _scaled(x, by):
    return x * FACTOR * by


def _applied(function, x):
    return function(x)


@pytest.mark.parametrize("make", HELPERS.values(), ids=HELPERS)
def test_a_global_behind_an_object(make, x):
    inner = make()
    for f in (kf.fuse(inner), kf.fuse(lambda x: inner(x))):
        for factor in (2, 3):
            set_global(FACTOR=factor)
            np.testing.assert_array_equal(f(x), x * factor)


def test_a_global_of_a_default(x):
    f = kf.fuse(lambda x, g=helper, *, h=helper: g(x) + h(x))
    for factor in (2, 3):
        set_global(FACTOR=factor)
        np.testing.assert_array_equal(f(x), x * 2 * factor)


def test_a_global_that_is_not_there_yet(x):
    scope: dict[str, Any] = {"kf": kf}
    exec("def f(x):\n    return x + LATER", scope)
    f = kf.fuse(scope["f"])
    with pytest.raises(NameError):
        f(x)
    scope["LATER"] = 4
    np.testing.assert_array_equal(f(x), x + 4)


def test_a_captured_array_that_is_changed_in_place(x):
    weight = np.ones(3)
    f = kf.fuse(lambda x: x * weight)
    np.testing.assert_array_equal(f(x), x)
    weight[:] = 5
    np.testing.assert_array_equal(f(x), x * 5)
    assert f._cached() == 1


def test_a_captured_array_that_is_rebound(x):
    f = kf.fuse(lambda x: x * WEIGHT)
    np.testing.assert_array_equal(f(x), x)
    set_global(WEIGHT=np.full(3, 2.0, np.float32))
    np.testing.assert_array_equal(f(x), x * 2)
    set_global(WEIGHT=np.arange(6.0)[::2])
    np.testing.assert_array_equal(f(x), x * np.arange(6.0)[::2])


def test_captured_arrays_that_are_rebound_are_not_kept(x):
    f = kf.fuse(lambda x: x * WEIGHT)
    watched = []
    for i in range(5):
        set_global(WEIGHT=np.full(3, float(i)))
        watched.append(weakref.ref(WEIGHT))
        f(x)
    gc.collect()
    assert sum(r() is not None for r in watched) == 1


def test_an_array_of_an_attribute_is_read(x):
    module = types.SimpleNamespace(weight=np.ones(3))
    f = kf.fuse(lambda x: x * module.weight)
    np.testing.assert_array_equal(f(x), x)
    module.weight[:] = 2
    np.testing.assert_array_equal(f(x), x * 2)


def test_a_captured_array_that_changes_its_shape(x):
    module = types.SimpleNamespace(weight=np.ones(3))
    f = kf.fuse(lambda x: x * module.weight)
    f(x)
    module.weight.shape = (3, 1)
    np.testing.assert_array_equal(f(x), x * np.ones((3, 1)))


def test_a_counter_of_the_function_s_own(x):
    calls = 0

    @kf.fuse
    def f(x):
        nonlocal calls
        global COUNT
        calls += 1
        COUNT += 1
        return x + 1

    for _ in range(3):
        f(x)
    assert calls == COUNT == 3
    assert f._cached() == 1


def test_an_object_among_the_arguments_is_itself(x):
    f = kf.fuse(lambda module, x: x * module.weight)
    one, two = types.SimpleNamespace(weight=2), types.SimpleNamespace(weight=3)
    for _ in range(2):
        np.testing.assert_array_equal(f(one, x), x * 2)
        np.testing.assert_array_equal(f(two, x), x * 3)
    assert f._cached() == 2


def test_what_is_guarded():
    closed = 1

    def f(x):
        def inner(y):
            return y * FACTOR + closed + len(HELPER.__name__)

        return np.sum(inner(x))

    found = {guard.owner: guard for guard in guards.guards(f)}
    assert found.keys() == {f, HELPER, getattr}  # the last one for the name of HELPER
    assert set(found[f].names) == {"FACTOR", "HELPER", "len", "np"}
    assert list(guards.values(found[f]))[-1] == closed


@pytest.mark.parametrize("scope", ["vars(c)", "c.__dict__", "dir(c)"])
def test_an_attribute_that_is_looked_for_in_a_dict(scope, x):
    c = types.FunctionType((lambda: None).__code__, {})
    f = kf.fuse(eval(f"lambda x: x * (c.k if 'k' in {scope} else 1)", {"c": c}))
    other = type("C", (), {})()
    g = kf.fuse(eval(f"lambda x: x * (c.k if 'k' in {scope} else 1)", {"c": other}))
    for value in (None, 3, None, 4):
        for owner, fused in ((c, f), (other, g)):
            vars(owner).pop("k", None)
            if value is not None:
                owner.k = value
            np.testing.assert_array_equal(fused(x), x * (value or 1))


def test_threads_trace_while_functions_are_asked_for_what_is_set(x):
    memory = bytearray(1)

    def f(x):
        return x * FACTOR + memory[0] + len(np.geterr()) - 4  # both are asked by functions written in Python

    fused, interval = kf.fuse(f), sys.getswitchinterval()
    wrong: list[Any] = []

    def call(number: int) -> None:
        for i in range(150):
            if number == 0:
                set_global(FACTOR=i + 2)
            if not set(fused(np.ones(1)).tolist()) <= {float(n) for n in range(2, 152)}:
                wrong.append(i)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    np.testing.assert_array_equal(fused(x), x * 151)
