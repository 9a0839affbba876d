"""Tracing while other threads do other things: what they do is not the function's."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import kfusion as kf
from tracing import Traces

X = np.ones(5)


@contextlib.contextmanager
def meanwhile(once):
    """Another thread does this again and again."""
    stop = threading.Event()

    def again():
        while not stop.is_set():
            once()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(again)
        try:
            yield
        finally:
            stop.set()
    done.result()


def body(x, a):
    for _ in range(10):
        x = kf.sin(x) + a
    return x


def draw():
    np.random.rand(3)  # noqa: NPY002
    random.random()


def hidden(text, **names):
    """A function as if it were a library's: no trace looks at what it has."""
    scope = {"__name__": "numpy.hidden", **names}
    exec(text, scope)
    return scope["f"]


def test_random_numbers_of_other_threads():
    """Drawn at another place in each trace, they are not the function's, however long a trace takes."""
    count, now = Traces(), [0]
    begin = hidden("def f(): now[0] = next(places)", places=itertools.cycle(range(10)), now=now)
    with ThreadPoolExecutor(1) as pool:
        at = hidden("def f(place):\n if place == now[0]: pool.submit(draw).result()", now=now, pool=pool, draw=draw)

        def drawn_beside(x, a):
            count()
            begin()
            for place in range(10):
                x = kf.sin(x) + a
                at(place)
            return x

        for _ in range(10):
            f, before = kf.fuse(drawn_beside), len(count)
            f(X, 0.5)
            traces = len(count)
            assert traces > before + 1, "nobody has seen that numbers were drawn"
            np.testing.assert_allclose(f(X, 1.5), body(X, 1.5))
            assert len(count) == traces, "the value of the float was fixed"


def sometimes(x):
    return x if np.random.rand() < 0.01 else kf.exp(x)  # noqa: NPY002


count = hidden("def f(): return rng.integers(1, 7)", rng=np.random.default_rng(0))
order = hidden("def f(): return rng.permutation(3)", rng=np.random.default_rng(0))


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


def test_a_function_s_own_are_found_beside_them_and_wherever_they_are():
    says = r"draws from (numpy\.)?random"
    with meanwhile(lambda: (draw(), time.sleep(0.0005))):
        for f in (sometimes, lambda x: kf.exp(x) + random.random()) * 3:
            with pytest.raises(kf.TraceError, match=says):
                kf.fuse(f)(X)
    for f in (of_a_few_operations, of_operations_in_any_order, lambda x: Late([kf.exp(x)])) * 5:
        for call in (kf.fuse(f), lambda x, f=f: kf.trace(f, x)):
            with pytest.raises(kf.TraceError, match=says):
                call(X)
    jnp = pytest.importorskip("jax.numpy")
    with pytest.raises(kf.TraceError, match=says):
        kf.fuse(lambda x: jnp.sin(x) * random.random())(jnp.ones(3))


def test_threads_trace_at_once():
    start = threading.Barrier(3)

    def work(_):
        start.wait()
        for a in range(20):
            np.testing.assert_allclose(kf.fuse(lambda x, a: body(x, a))(X, a / 8), body(X, a / 8))
            assert kf.iota(3).tolist() == [0, 1, 2]

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))


IMPORTING = """
import sys, types, numpy as np, kfusion as kf
for name in ("random", "numpy.random", "numpy.ma", "scipy.special", "torch", "jax", "cupy", "IPython", "numba.cuda"):
    before = sys.modules.get(name)
    sys.modules[name] = types.ModuleType(name)  # there, and nothing in it yet
    assert (kf.fuse(lambda x: x * 2 + np.abs(x))(np.ones(5)) == 3).all()
    assert (kf.relu(np.ones((2, 3))) == 1).all()
    assert kf.plan(lambda x: kf.sin(x) + 0.5, kf.spec(3)).groups
    try:
        kf.fuse(lambda x: x if x.sum() > 0 else -x)(np.ones(5))
    except kf.TraceError as error:
        assert "branching" in str(error)
    else:
        raise AssertionError(name)
    if before is None:
        del sys.modules[name]
    else:
        sys.modules[name] = before
"""


AFTERWARDS = """
class Double(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: x * 2)
    backward = staticmethod(lambda ctx, g: g * 5)
x = torch.ones(3, requires_grad=True)
kf.fuse(lambda x: Double.apply(x) + 1)(x).sum().backward()
assert x.grad.tolist() == [5.0] * 3, x.grad
"""


def test_a_module_that_another_thread_is_importing():
    """What comes after it is as if it had not been."""
    text = IMPORTING
    if importlib.util.find_spec("torch"):
        text = "import torch\n" + IMPORTING + AFTERWARDS
    subprocess.run([sys.executable, "-c", text], check=True)


class Named:
    w = np.full(3, 1.0)


REBOUND = {
    "global": "def f(x): return x * w",
    "attribute": "def f(x): return x * named.w",
    "class": "def f(x): return x * Named.w",
    "closure": "def made():\n w = named.w\n def f(x): return x * w\n return f\nf = made()",
}


@pytest.mark.parametrize("where", REBOUND)
def test_what_another_thread_rebinds_is_not_set_by_the_function(where):
    scope = {"w": np.full(3, 1.0), "named": Named(), "Named": Named}
    scope["named"].w = scope["w"]
    exec(REBOUND[where], scope)
    function = scope["f"]
    f, x, out, values = kf.fuse(function), np.ones(3), np.zeros(4)[::-1][:3], {1.0, 2.0}
    f(x)

    def rebind():
        for value in values:
            scope["w"] = scope["named"].w = Named.w = np.full(3, value)
            if function.__closure__:
                function.__closure__[0].cell_contents = scope["w"]

    end = time.monotonic() + 1
    with meanwhile(rebind):
        while time.monotonic() < end:
            assert set(f(x).tolist()) < values
            assert set(f(x, out=out).tolist()) < values
            assert set(kf.fuse(function)(x).tolist()) < values
