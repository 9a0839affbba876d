"""`kf.fuse`: what a call computes, what it keeps, what it says no to."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import pickle
import pydoc
import sys
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from tracing import Traces

pytestmark = pytest.mark.native


@kf.fuse
def chain(x, b, scale=2.0):
    """A chain of elementwise calls."""
    return kf.log(kf.relu(x + b) * scale + 1)


def chain_by_numpy(x, b, scale=2.0):
    return np.log(np.maximum(x + b, 0) * scale + 1)


def add(x, b):
    return x + b


class Layer:
    def __init__(self, weight: np.ndarray) -> None:
        self.weight = weight

    @kf.fuse
    def forward(self, x):
        """Scaled and cut."""
        return kf.relu(x * self.weight)


def counting(body: Any) -> Any:
    """The body, fused, with the number of its traces in `.count`."""
    count = Traces()

    def function(*args, **kwargs):
        count()
        return body(*args, **kwargs)

    fused = kf.fuse(function)
    fused.count = count
    return fused


def test_an_empty_result_beside_a_product_of_the_same_constant():
    def f(x):
        nothing = x[:, :0]
        zeros = nothing @ nothing.T
        return nothing, zeros @ zeros

    x = np.ones((3, 4), np.float32)
    for function in (kf.fuse(f), kf.fuse(f).unfused):
        np.testing.assert_array_equal(function(x)[1], np.zeros((3, 3)))


def test_a_cast_that_is_asked_for_always_rounds(place, rng):
    @kf.fuse
    def f(x):
        h = (x * 1.5).astype(np.float16).astype(np.float32)
        k = (h * 1.1).astype(np.float16).astype(np.float32)
        return (k * k).astype(np.float16).astype(np.float32) + h

    x = rng.standard_normal((37, 129)).astype(np.float32)
    want = f.__wrapped__(x)
    for version in (f, f.unfused):
        np.testing.assert_array_equal(np.asarray(place.back(version(place.make(x)))), want)


def test_kernels_that_would_wait_for_each_other_stay_apart(place, rng):
    @kf.fuse
    def f(x):
        c = x - x.mean(axis=0, keepdims=True)
        t = x / np.sqrt((x * x).sum())
        return c * t - t * (c * c).sum()

    x = rng.standard_normal((300, 200))
    for version in (f, f.unfused):
        np.testing.assert_allclose(
            np.asarray(place.back(version(place.make(x)))), f.__wrapped__(x), rtol=1e-9, atol=1e-9
        )


def test_it_computes_what_the_function_says(rng):
    x, b = rng.standard_normal((5, 7)), rng.standard_normal(7)
    np.testing.assert_allclose(chain(x, b), chain_by_numpy(x, b), rtol=1e-14)
    np.testing.assert_allclose(chain(x, b=b, scale=3.0), chain_by_numpy(x, b, 3.0), rtol=1e-14)
    np.testing.assert_array_equal(chain.unfused(x, b), chain(x, b))


def test_it_looks_like_the_function():
    assert chain.__name__ == "chain"
    assert chain.__doc__ == "A chain of elementwise calls."
    assert chain.__module__ == __name__
    assert str(inspect.signature(chain)) == "(x, b, scale=2.0)"
    assert repr(chain) == "<kfusion.fuse: chain(x, b, scale=2.0)>"
    assert repr(chain.unfused) == "<kfusion.fuse: chain.unfused(x, b, scale=2.0)>"


def test_it_pickles_by_name():
    for f in (chain, chain.unfused, Layer.forward):
        assert pickle.loads(pickle.dumps(f)) is f


def test_a_function_whose_name_is_the_plain_ones_pickles(rng, monkeypatch):
    fused, x = kf.fuse(add), rng.standard_normal(4)
    for f in (fused, fused.unfused):
        again = pickle.loads(pickle.dumps(f))
        assert repr(again) == repr(f)
        np.testing.assert_array_equal(again(x, 2.0), add(x, 2.0))
    monkeypatch.delitem(sys.modules, "cloudpickle", raising=False)
    with pytest.raises(pickle.PicklingError, match="a lambda, or a function within a function, has no name"):
        pickle.dumps(kf.fuse(lambda x: x + 1))


class Doubled:
    """Twice its argument."""

    def __call__(self, x):
        return x * 2


@pytest.mark.parametrize(("function", "name"), [(functools.partial(add, b=2.0), "add"), (Doubled(), "Doubled")])
def test_objects_without_a_name(function, name, rng):
    f, x = kf.fuse(function), rng.standard_normal((4, 4))
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
    f, x = counting(lambda x: x * os.path.getsize(path)), np.ones(3)
    f(x)
    f.unfused(x)
    path.write_bytes(b"abc")
    np.testing.assert_array_equal(f(x), x * 2)
    f.clear()
    np.testing.assert_array_equal(f(x), x * 3)
    np.testing.assert_array_equal(f.unfused(x), x * 3)
    assert len(f.count) == 4


def test_bound_methods_look_like_python_s():
    layer = Layer(np.ones(3))
    assert layer.forward == layer.forward != Layer(np.ones(3)).forward
    assert len({layer.forward, layer.forward}) == 1
    assert str(inspect.signature(layer.forward)) == "(x)"
    assert layer.forward.__doc__ == "Scaled and cut."
    for again in (
        copy.copy(layer.forward),
        copy.deepcopy(layer.forward),
        pickle.loads(pickle.dumps(layer.forward)),
        pickle.loads(pickle.dumps(layer.forward.unfused)),
    ):
        np.testing.assert_array_equal(again(np.full(3, 2.0)), np.full(3, 2.0))


def test_methods(rng):
    x = rng.standard_normal(6)
    one, two = Layer(np.full(6, 2.0)), Layer(np.full(6, 3.0))
    np.testing.assert_array_equal(one.forward(x), np.maximum(x * 2, 0))
    np.testing.assert_array_equal(two.forward(x), np.maximum(x * 3, 0))
    assert len(Layer.forward.plan(one, x).groups) == len(one.forward.plan(x).groups) == 1
    assert len(one.forward.unfused.plan(x).groups) == 2
    np.testing.assert_array_equal(two.forward.unfused(x), two.forward(x))
    assert one.forward.__name__ == "forward"


def test_a_name_that_fuse_adds_is_refused():
    with pytest.raises(kf.TraceError, match="parameter named out"):
        kf.fuse(lambda x, out: x)
    with pytest.raises(kf.TraceError, match="parameter named stream"):
        kf.fuse(lambda stream: stream)


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="function must be callable, got int"):
        kf.fuse(3)
    with pytest.raises(TypeError, match=r"kfusion\.fuse: allow must be pairs of names"):
        kf.fuse(allow=["relu"])


def test_the_plan_is_what_runs(rng):
    x, b = rng.standard_normal((4, 8)).astype(np.float32), np.ones(8, np.float32)
    plan, unfused = chain.plan(x, b), chain.unfused.plan(x, b)
    assert all(g.executable for g in (*plan.groups, *unfused.groups))
    assert len(plan.groups) == 1
    assert len(unfused.groups) == 5
    assert chain.plan(kf.spec((4, 8)), kf.spec(8), device="A100").device.name.startswith("A100")


def test_options_of_the_plan(rng):
    @kf.fuse(forbid=[("exp", "relu")])
    def f(x):
        return kf.relu(kf.exp(x) + 1)

    x = rng.standard_normal(5)
    assert len(kf.fuse(f.__wrapped__).plan(x).groups) == 1
    np.testing.assert_allclose(f(x), np.maximum(np.exp(x) + 1, 0), rtol=1e-15)
    with pytest.raises(ValueError, match="no call or op 'tanh'"):
        kf.fuse(f.__wrapped__, forbid=[("exp", "tanh")])(x)


def test_the_source_of_its_kernels(rng):
    x, b = kf.spec((64, 100)), kf.spec(100)
    text = chain.source(x, b)
    assert text == chain.source(np.ones((64, 100), np.float32), np.ones(100, np.float32), scale=3.0)
    assert text.count('extern "C"') == 1
    assert chain.unfused.source(x, b).count('extern "C"') == 5
    assert "array library" in kf.fuse(lambda x, b: x @ b + 1).source(x, b)


# ---- the form of arguments and results ----

Pair = namedtuple("Pair", "low high")


@pytest.mark.parametrize(
    "body",
    [
        lambda x: (x + 1, x * 2),
        lambda x: [x + 1],
        lambda x: {"a": x + 1, "b": (x * 2, 3, None)},
        lambda x: Pair(x - 1, x + 1),
        lambda x: (),
        lambda x: (x + 1, "text"),
    ],
)
def test_results_have_the_function_s_form(body, rng):
    x = rng.standard_normal(4)
    expected = body(x)
    if expected == ():
        with pytest.raises(kf.TraceError, match="returns nothing made of its arrays"):
            kf.fuse(body)(x)
        return
    f = kf.fuse(body)
    for got in (f(x), f(x)):
        assert type(got) is type(expected)
        np.testing.assert_equal(got, expected)


def test_one_value_twice_is_two_arrays(rng):
    @kf.fuse
    def f(x):
        y = x + 1
        return y, y

    a, b = f(rng.standard_normal(3))
    np.testing.assert_array_equal(a, b)
    assert not np.shares_memory(a, b)


def test_results_are_arrays_of_their_own(rng):
    x = rng.standard_normal((3, 4))
    for body in (lambda x: x, lambda x: x.T, lambda x: x[1], lambda x: np.broadcast_to(x[0], (5, 4))):
        y = kf.fuse(body)(x)
        np.testing.assert_array_equal(y, body(x))
        assert not np.shares_memory(x, y)
        assert y.flags.writeable


def test_arguments_in_structures(rng):
    x, y = rng.standard_normal((2, 4))

    @kf.fuse
    def f(parameters, *rest, **named):
        return parameters["w"] * parameters["x"][0] + rest[0] + named["bias"]

    np.testing.assert_array_equal(f({"w": x, "x": (y, 3)}, x, bias=y), x * y + x + y)


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


def test_scalars_are_numbers_of_numpy():
    x = np.arange(6, dtype=np.float32)
    total = kf.fuse(lambda x: x.sum())(x)
    assert type(total) is np.float32
    assert total == 15
    assert type(kf.fuse(lambda x: x + 1)(np.array(2.0))) is np.float64


EMPTY: list[tuple[Any, tuple[int, ...]]] = [
    (lambda x: x + 1, (0, 3)),
    (lambda x: x.T * 2, (3, 0)),
    (lambda x: x.sum(0), (0, 3)),
    (lambda x: x.sum(0), (3, 0)),
    (lambda x: x.sum(), (0,)),
    (lambda x: (x + 1, x.sum(1)), (3, 0)),
    (lambda x: kf.softmax(x), (0, 3)),
    (lambda x: x @ x.T, (3, 0)),
    (lambda x: (x, x + 1, x.T), (0, 3)),
]


@pytest.mark.parametrize(("body", "shape"), EMPTY)
def test_empty_arrays(body, shape):
    x = np.ones(shape)
    expected = x if "softmax" in body.__code__.co_names else body(x)
    for f in (kf.fuse(body), kf.fuse(body).unfused):
        np.testing.assert_equal(f(x), expected)


# ---- one function within another ----


def test_nested_functions_trace_through(rng):
    @kf.fuse
    def f(x, b):
        return chain(x, b, 0.5) + chain.unfused(x, b)

    x, b = rng.standard_normal((5, 7)), rng.standard_normal(7)
    np.testing.assert_allclose(f(x, b), chain_by_numpy(x, b, 0.5) + chain_by_numpy(x, b), rtol=1e-14)
    assert len(f.plan(x, b).groups) == 1


def test_plan_of_a_fused_function_is_that_of_the_function():
    specs = kf.spec((4, 5)), kf.spec(5)
    assert kf.plan(chain, *specs, device="H200").graph == kf.plan(chain.__wrapped__, *specs, device="H200").graph
