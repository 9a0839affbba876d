"""`kf.fuse`: what a call computes, what it looks like, what it says no to."""

from __future__ import annotations

import copy
import functools
import importlib.util
import inspect
import os
import pickle
import pydoc
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from sweeps import refusals, sweep
from tracing import counting

pytestmark = pytest.mark.native
X = np.ones(3)


@kf.fuse
def chain(x, b, scale=2.0):
    """A chain of elementwise calls."""
    return kf.log(kf.relu(x + b) * scale + 1)


def add(x, b):
    return x + b


class Layer:
    def __init__(self, weight: np.ndarray) -> None:
        self.weight = weight

    @kf.fuse
    def forward(self, x):
        """Scaled and cut."""
        return kf.relu(x * self.weight)


def casts(x):
    """Each of which rounds."""
    h = (x * 1.5).astype(np.float16).astype(np.float32)
    k = (h * 1.1).astype(np.float16).astype(np.float32)
    return (k * k).astype(np.float16).astype(np.float32) + h


def waits(x):
    """Whose kernels would wait for each other if they were not kept apart."""
    c = x - x.mean(axis=0, keepdims=True)
    t = x / np.sqrt((x * x).sum())
    return c * t - t * (c * c).sum()


def test_kernels_that_were_wrong_once(place, rng):
    for f, shape, dtype, error in ((casts, (37, 129), np.float32, 0), (waits, (300, 200), np.float64, 1e-9)):
        x = rng.standard_normal(shape).astype(dtype)
        for version in (kf.fuse(f), kf.fuse(f).unfused):
            np.testing.assert_allclose(np.asarray(place.back(version(place.make(x)))), f(x), rtol=error, atol=error)


def test_it_looks_like_the_function():
    assert (chain.__name__, chain.__doc__, chain.__module__) == ("chain", "A chain of elementwise calls.", __name__)
    assert str(inspect.signature(chain)) == "(x, b, scale=2.0)"
    assert repr(chain) == "<kfusion.fuse: chain(x, b, scale=2.0)>"
    assert repr(chain.unfused) == "<kfusion.fuse: chain.unfused(x, b, scale=2.0)>"
    for f in (chain, chain.unfused, Layer.forward):
        assert pickle.loads(pickle.dumps(f)) is f


def test_a_function_whose_name_is_the_plain_ones_pickles(monkeypatch):
    fused = kf.fuse(add)
    for f in (fused, fused.unfused):
        again = pickle.loads(pickle.dumps(f))
        assert repr(again) == repr(f)
        np.testing.assert_array_equal(again(X, 2.0), add(X, 2.0))
    monkeypatch.delitem(sys.modules, "cloudpickle", raising=False)
    with pytest.raises(pickle.PicklingError, match="a lambda, or a function within a function, has no name"):
        pickle.dumps(kf.fuse(lambda x: x + 1))


class Doubled:
    """Twice its argument."""

    def __call__(self, x):
        return x * 2


def test_objects_without_a_name(rng):
    x = rng.standard_normal((4, 4))
    for function, name in ((functools.partial(add, b=2.0), "add"), (Doubled(), "Doubled")):
        f = kf.fuse(function)
        assert repr(f).startswith(f"<kfusion.fuse: {name}(x")
        assert repr(f.unfused).startswith(f"<kfusion.fuse: {name}.unfused(x")
        assert len(f.plan(x).groups) == 1
        assert "extern" in f.source(x)
        assert name in pydoc.plain(pydoc.render_doc(f))
        for again in (pickle.loads(pickle.dumps(f)), pickle.loads(pickle.dumps(f.unfused))):
            np.testing.assert_array_equal(again(x), function(x))
        kf.compare(f, x, peers=[], repeats=2, cache="hot")


def test_clear_makes_the_next_call_trace_again(tmp_path):
    """What docs/using.md says of files."""
    path = tmp_path / "file"
    path.write_bytes(b"ab")
    f = counting(lambda x: x * os.path.getsize(path))
    f(X)
    f.unfused(X)
    path.write_bytes(b"abc")
    np.testing.assert_array_equal(f(X), X * 2)
    f.clear()
    np.testing.assert_array_equal(f(X), X * 3)
    np.testing.assert_array_equal(f.unfused(X), X * 3)
    assert len(f.count) == 4


def test_methods(rng):
    x = rng.standard_normal(6)
    one, two = Layer(np.full(6, 2.0)), Layer(np.full(6, 3.0))
    np.testing.assert_array_equal(one.forward(x), np.maximum(x * 2, 0))
    np.testing.assert_array_equal(two.forward(x), np.maximum(x * 3, 0))
    assert len(Layer.forward.plan(one, x).groups) == len(one.forward.plan(x).groups) == 1
    assert len(one.forward.unfused.plan(x).groups) == 2
    np.testing.assert_array_equal(two.forward.unfused(x), two.forward(x))
    assert one.forward == one.forward != two.forward
    assert len({one.forward, one.forward}) == 1
    assert (one.forward.__name__, one.forward.__doc__) == ("forward", "Scaled and cut.")
    assert str(inspect.signature(one.forward)) == "(x)"
    copies = [copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))]
    for again in (*(of(one.forward) for of in copies), copies[2](one.forward.unfused)):
        np.testing.assert_array_equal(again(x), one.forward(x))


def test_plans_and_sources(rng):
    """What runs is the plan, which is the function's own."""
    specs = kf.spec((64, 100)), kf.spec(100)
    x, b = np.ones((64, 100), np.float32), np.ones(100, np.float32)
    plan, unfused = chain.plan(x, b), chain.unfused.plan(x, b)
    assert all(g.executable for g in (*plan.groups, *unfused.groups))
    assert (len(plan.groups), len(unfused.groups)) == (1, 5)
    assert chain.plan(*specs, device="A100").device.name.startswith("A100")
    assert kf.plan(chain, *specs, device="H200").graph == kf.plan(chain.__wrapped__, *specs, device="H200").graph
    assert 'f.plan(x, device="cpu") measures them' in " ".join(str(plan).split())
    text = chain.source(*specs)
    assert text == chain.source(x, b, scale=3.0)
    assert text.count('extern "C"') == 1
    assert chain.unfused.source(*specs).count('extern "C"') == 5
    assert "array library" in kf.fuse(lambda x, b: x @ b + 1).source(*specs)


# ---- the form of arguments and results ----


def test_endless_structures_are_refused():
    once: list[Any] = []
    once.append(once)
    twice: list[Any] = []
    twice += [twice, twice]  # which has two ways into each of its levels
    for _ in range(2):
        for endless in (once, twice, {"a": twice}):
            with pytest.raises(ValueError, match="chain: x must not be nested more than 32 deep"):
                chain(endless, 1.0)
        pytest.importorskip("jax.numpy")  # whose tracers are looked for, once it is there


def test_empty_arrays():
    def check(body, *shapes):
        for x in map(np.ones, shapes):
            expected = x if "softmax" in body.__code__.co_names else body(x)
            for f in (kf.fuse(body), kf.fuse(body).unfused):
                np.testing.assert_equal(f(x), expected)

    sweep(
        check,
        [
            (lambda x: x.T * 2, (3, 0)),
            (lambda x: x.sum(0), (0, 3), (3, 0)),
            (lambda x: x.sum(), (0,)),
            (lambda x: (x + 1, x.sum(1)), (3, 0)),
            (lambda x: kf.softmax(x), (0, 3)),
            (lambda x: x @ x.T, (3, 0)),
            (lambda x: (x, x + 1, x.T), (0, 3)),
            (lambda x: (x[:, :0], (x[:, :0] @ x[:, :0].T) @ (x[:, :0] @ x[:, :0].T)), (3, 4)),
        ],
    )


def test_scalars_are_numbers_of_numpy():
    assert type(kf.fuse(lambda x: x.sum())(np.arange(6, dtype=np.float32))) is np.float32
    assert type(kf.fuse(lambda x: x + 1)(np.array(2.0))) is np.float64


def test_a_float_argument_that_becomes_an_integer():
    f = kf.fuse(lambda x, s: np.full_like(x, s) + x)
    assert [f(np.arange(3), s).tolist() for s in (1.0, 5.0, -2.9)] == [[1, 2, 3], [5, 6, 7], [-2, -1, 0]]


# ---- errors ----


@kf.fuse
def second(self, x):
    return x


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: kf.fuse(lambda x, out: x), kf.TraceError, "parameter named out"),
    (lambda: kf.fuse(lambda stream: stream), kf.TraceError, "parameter named stream"),
    (lambda: kf.fuse(3), TypeError, "function must be callable, got int"),
    (lambda: kf.fuse(allow=["relu"]), TypeError, r"kfusion\.fuse: allow must be pairs of names"),
    (lambda: kf.fuse(add, forbid=[("add", "tanh")])(X, X), ValueError, "no call or op 'tanh'"),
    (lambda: chain(np.ones(3, "M8[s]"), X), TypeError, r"kfusion\.chain: x must be float16.*got datetime64"),
    (lambda: chain(X, np.ones(4)), ValueError, r"could not be broadcast together with shapes \(3,\) \(4,\)"),
    (lambda: chain(X), TypeError, r"chain: missing a required argument: 'b'"),
    (lambda: chain(X, X, 2.0, 3), TypeError, "argument"),
    (lambda: chain(kf.spec(3), X), TypeError, r"kfusion\.chain: a spec is for planning"),
    (lambda: kf.fuse(lambda x: ())(X), kf.TraceError, "returns nothing made of its arrays"),
    (lambda: chain(X, X, stream=0), ValueError, r"kfusion\.chain: stream applies to CUDA arrays"),
    (lambda: kf.relu(X, out=X), TypeError, "unexpected keyword argument 'out'"),
    (lambda: kf.fuse(lambda x: chain(x, 1.0, out=X))(X), TypeError, "out= and stream= cannot be given inside a traced"),
    (lambda: kf.FusedFunction.__new__(kf.FusedFunction)(X), TypeError, "__init__ was not called"),
    (lambda: kf.fuse(lambda x, table: x * table["missing"])(X, {"there": 1.0}), KeyError, "missing"),
    (lambda: _core.FusedCallable("f", ["x"], {"speed": True}, True, True), ValueError, "there is no option"),
    *(
        (lambda x=x: second(Layer(X), x), TypeError, re.escape(f"kfusion.second: x must be an array, got {what}") + "$")
        for x, what in (
            ([1, 2, 3], "list; convert it with numpy.asarray(x)"),
            (1.0, "float; convert it with numpy.asarray(x)"),
            (3, "int; convert it with numpy.asarray(x)"),
            ("text", "str"),
        )
    ),
]


def test_errors():
    refusals(ERRORS)


def test_a_failed_trace_keeps_nothing():
    f = counting(lambda x: x if x.sum() > 0 else -x)
    for _ in range(2):
        with pytest.raises(kf.TraceError, match="branching on a traced value"):
            f(X)
    assert f._cached() == 0


def test_random_numbers_are_refused():
    def check(library):
        module = importlib.import_module(library)
        draw = module.random if library == "random" else lambda: float(np.asarray(module.rand(1)).item())
        message = rf"draws from {library}, .*: random numbers would be drawn once.*\n  draw them"
        with pytest.raises(kf.TraceError, match=message):
            kf.fuse(lambda x: x * draw())(X)

    sweep(check, [("random",), ("numpy.random",), *([("torch",)] if importlib.util.find_spec("torch") else [])])
    program = "import numpy as np, kfusion as kf; kf.fuse(lambda x: x + np.random.normal(size=3))(np.ones(3))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert "draws from numpy.random" in ran.stderr  # which NumPy imports when it is first asked for
