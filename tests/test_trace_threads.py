"""Tracing while other threads do other things: what they do is not the function's."""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion._tracing import torch_tensors
from tracing import Traces


@contextlib.contextmanager
def meanwhile(*work: Callable[[], object]) -> Iterator[None]:
    """Other threads that do these things again and again."""
    stop = threading.Event()

    def again(once: Callable[[], object]) -> None:
        while not stop.is_set():
            once()

    threads = [threading.Thread(target=again, args=(w,)) for w in work]
    for t in threads:
        t.start()
    try:
        yield
    finally:
        stop.set()
        for t in threads:
            t.join()


def body(x, a):
    for _ in range(10):
        x = kf.sin(x) + a
    return x


def new_function():
    count = Traces()
    f = kf.fuse(lambda x, a: (count(), body(x, a))[1])
    return f, count


def draw() -> None:
    np.random.rand(3)  # noqa: NPY002
    random.random()


def draw_now_and_then() -> None:
    draw()
    time.sleep(0.0005)


@pytest.mark.slow
def test_random_numbers_of_a_thread_that_draws_always():
    """It can make a call refuse, where the machine is busy; never give a wrong result."""
    x, end, calls = np.ones(5), time.monotonic() + 4, 0
    with meanwhile(draw):
        while calls < 40 and time.monotonic() < end:
            f, count = new_function()
            calls += 1
            try:
                f(x, 0.5)
            except kf.TraceError:
                continue
            traces = len(count)
            np.testing.assert_allclose(f(x, 1.5), body(x, 1.5))
            assert len(count) == traces, "the value of the float was fixed"
    assert calls > 0


def _elsewhere(pool: ThreadPoolExecutor) -> dict[str, Callable[..., None]]:
    """Two functions as if they were a library's: at(place) draws in another thread, at one of ten places after each
    begin(), and at the next one after the next.
    """
    places = itertools.cycle(range(10))
    scope: dict[str, Any] = {"__name__": "numpy.hidden", "places": places, "pool": pool, "draw": draw, "now": [0]}
    exec("def begin(): now[0] = next(places)", scope)
    exec("def at(place):\n    if place == now[0]: pool.submit(draw).result()", scope)
    return scope


def test_random_numbers_of_other_threads():
    """Drawn at another place in each trace, they are not the function's, however long a trace takes."""
    with ThreadPoolExecutor(1) as pool:
        elsewhere, count = _elsewhere(pool), Traces()
        begin, at = elsewhere["begin"], elsewhere["at"]

        def drawn_beside(x, a):
            count()
            begin()
            for place in range(10):
                x = kf.sin(x) + a
                at(place)
            return x

        x = np.ones(5)
        for _ in range(10):
            f, before = kf.fuse(drawn_beside), len(count)
            f(x, 0.5)
            traces = len(count)
            assert traces > before + 1, "nobody has seen that numbers were drawn"
            np.testing.assert_allclose(f(x, 1.5), body(x, 1.5))
            assert len(count) == traces, "the value of the float was fixed"


@pytest.mark.parametrize("sometimes", [False, True])
def test_a_function_s_own_are_found_beside_them(sometimes):
    def f(x):
        if np.random.rand() < 0.01 and sometimes:  # noqa: NPY002
            return x
        return kf.exp(x) + (0 if sometimes else random.random())

    x = np.ones(5)
    with meanwhile(draw_now_and_then):
        for _ in range(3):
            with pytest.raises(kf.TraceError, match=r"f draws from (numpy\.)?random"):
                kf.fuse(f)(x)


def _hidden(text: str) -> Callable[[], Any]:
    """A function with a generator that nobody finds, as if it were a library's."""
    scope: dict[str, Any] = {"__name__": "numpy.hidden", "rng": np.random.default_rng(0)}
    exec(f"def draw(): return rng.{text}", scope)
    return scope["draw"]


count, order = _hidden("integers(1, 7)"), _hidden("permutation(3)")


def of_a_few_operations(x):
    for _ in range(count()):
        x = kf.sin(x)
    return kf.exp(x) * random.random()


def of_operations_in_any_order(x):
    draws = (lambda x: kf.sin(x), lambda x: kf.cos(x) * random.random(), lambda x: kf.exp(x))
    for i in order():
        x = draws[i](x)
    return x


class Late(list):
    """Draws while its elements are looked at."""

    def __iter__(self):
        random.random()
        return super().__iter__()


@pytest.mark.parametrize("f", [of_a_few_operations, of_operations_in_any_order, lambda x: Late([kf.exp(x)])])
def test_a_function_s_own_are_found_wherever_they_are(f):
    for _ in range(5):
        with pytest.raises(kf.TraceError, match="draws from random"):
            kf.trace(f, np.ones(5))
        with pytest.raises(kf.TraceError, match="draws from random"):
            kf.fuse(f)(np.ones(5))


def test_those_of_a_function_of_jax():
    jnp = pytest.importorskip("jax.numpy")
    with pytest.raises(kf.TraceError, match="draws from random"):
        kf.fuse(lambda x: jnp.sin(x) * random.random())(jnp.ones(3))


def test_two_threads_trace_at_once():
    x = np.ones(5)
    failures: list[BaseException] = []
    start = threading.Barrier(2)

    def work() -> None:
        try:
            start.wait()
            for a in range(30):
                f, _ = new_function()
                np.testing.assert_allclose(f(x, a / 8), body(x, a / 8))
                assert kf.iota(3).tolist() == [0, 1, 2]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


@pytest.mark.parametrize(
    "name", ["random", "numpy.random", "numpy.ma", "scipy.special", "torch", "jax", "cupy", "IPython", "numba.cuda"]
)
def test_a_module_that_another_thread_is_importing(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))  # there, and nothing in it yet
    np.testing.assert_array_equal(kf.fuse(lambda x: x * 2 + np.abs(x))(np.ones(3)), np.full(3, 3.0))
    np.testing.assert_array_equal(kf.relu(np.ones((2, 3))), np.ones((2, 3)))
    assert kf.plan(body, kf.spec(3), 0.5).groups
    with pytest.raises(kf.TraceError, match="branching"):
        kf.fuse(lambda x: x if x.sum() > 0 else -x)(np.ones(3))


def test_a_global_is_rebound_by_another_thread():
    scope: dict[str, object] = {"w": np.full(3, 1.0)}
    exec("def f(x): return x * w", scope)
    f, x = kf.fuse(scope["f"]), np.ones(3)
    out = np.zeros(4)[::-1][:3]
    values = {1.0, 2.0}

    def rebind() -> None:
        for value in values:
            scope["w"] = np.full(3, value)

    end = time.monotonic() + 1.5
    with meanwhile(rebind):
        while time.monotonic() < end:
            assert set(f(x).tolist()) < values
            assert set(f(x, out=out).tolist()) < values


def test_torch_compiles_until_the_last_trace_ends():
    torch = pytest.importorskip("torch")
    with torch_tensors._compiling:
        with torch_tensors._compiling:
            assert torch.compiler.is_compiling()
        assert torch.compiler.is_compiling()
    assert not torch.compiler.is_compiling()
