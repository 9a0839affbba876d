"""Objects of the user's classes as arguments and results: caches, states, whatever holds arrays."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest

import kfusion as kf

pytestmark = pytest.mark.native
X = np.arange(6, dtype=np.float32)


class Cache:
    """Grows by what it is given; empty at first."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.calls = 0

    def update(self, number: int, x: Any) -> Any:
        if number == len(self.layers):
            self.layers.append(Layer())
        return self.layers[number].update(x)


class Layer:
    def __init__(self) -> None:
        self.kept: Any = None

    def update(self, x: Any) -> Any:
        self.kept = x if self.kept is None else np.concatenate([self.kept, x])
        return self.kept


class Slotted:
    __slots__ = ("w",)

    def __init__(self, w: Any) -> None:
        self.w = w


class Mode(enum.Enum):
    ADD = 1
    MULTIPLY = 2


def step(x, cache):
    first = cache.update(0, x)
    second = cache.update(1, x * 2)
    cache.calls += 1
    return first.sum() + second.sum(), cache


def test_a_cache_that_grows():
    fused = kf.fuse(step)
    caches = [(Cache(), Cache()) for _ in range(2)]
    for mine, theirs in caches:
        for n in range(3):
            want, _ = step(X + n, theirs)
            got, same = fused(X + n, mine)
            assert same is mine
            assert mine.calls == n + 1
            assert got == pytest.approx(want, rel=1e-6)
        for a, b in zip(mine.layers, theirs.layers, strict=True):
            assert type(a) is Layer
            assert type(a.kept) is np.ndarray
            np.testing.assert_array_equal(a.kept, b.kept)
    (one, _), (other, _) = caches
    assert not np.shares_memory(one.layers[0].kept, other.layers[0].kept)
    assert fused._cached() == 4  # the first, before it is known that calls set an int; one for each length, for both


def test_a_failed_trace_leaves_objects_as_they_were():
    def fails(x, cache):
        cache.update(0, x)
        raise KeyError("no")

    cache = Cache()
    with pytest.raises(KeyError):
        kf.fuse(fails)(X, cache)
    assert cache.layers == []
    assert cache.calls == 0


def test_attributes_decide_which_kernels_run():
    layer = Layer()

    def scaled(x, layer):
        return x * layer.kept + layer.bias

    fused = kf.fuse(scaled)
    for layer.kept, layer.bias in ((X, 1), (X + 1, 1), (X + 1, 2), (3.0, X)):
        np.testing.assert_array_equal(fused(X, layer), scaled(X, layer))
        assert len(fused.plan(X, layer).groups) == 1
    assert fused._cached() == 3  # other values of one shape are no reason to trace again


def test_an_object_that_is_given_twice():
    def both(x, a, b):
        a.kept = x + 1
        return b.kept * 2

    layer = Layer()
    layer.kept = X
    np.testing.assert_array_equal(kf.fuse(both)(X, layer, layer), (X + 1) * 2)
    np.testing.assert_array_equal(layer.kept, X + 1)


def test_keywords_in_another_order():
    def counted(x, a, b):
        a.kept, b.held = x + 1, x + 2
        return x * 2

    a, b = Layer(), Layer()
    fused = kf.fuse(counted)
    fused(X, b=b, a=a)
    np.testing.assert_array_equal(a.kept, X + 1)
    np.testing.assert_array_equal(b.held, X + 2)
    assert b.kept is None
    fused(X, b=a, a=a)  # met again, under the name that stands first
    np.testing.assert_array_equal(a.held, X + 2)


def test_objects_that_hold_each_other():
    class Node:
        def __init__(self, value: Any) -> None:
            self.value, self.other = value, self

    one, two = Node(X), Node(X + 1)
    one.other, two.other = two, one

    def swapped(node):
        node.value, node.other.value = node.other.value * 1, node.value * 1
        return node.other

    assert kf.fuse(swapped)(one) is two
    np.testing.assert_array_equal(one.value, X + 1)
    np.testing.assert_array_equal(two.value, X)


def test_lists_and_dicts_of_objects():
    layers = {"a": [Layer(), Layer()]}
    for n, layer in enumerate(layers["a"]):
        layer.kept = X + n

    def add(layers):
        layers["a"][1].kept = layers["a"][0].kept + layers["a"][1].kept
        layers["a"][0].held = {"more": [layers["a"][1].kept * 2]}

    kf.fuse(add)(layers)
    np.testing.assert_array_equal(layers["a"][1].kept, 2 * X + 1)
    np.testing.assert_array_equal(layers["a"][0].held["more"][0], 4 * X + 2)


def test_deleted_attributes():
    layer = Layer()
    layer.kept = X

    def drop(layer):
        y = layer.kept * 2
        del layer.kept
        return y

    np.testing.assert_array_equal(kf.fuse(drop)(layer), 2 * X)
    assert vars(layer) == {}


def test_a_new_object_is_another_each_time():
    def made(x):
        layer = Layer()
        layer.kept = x + 1
        return layer

    fused = kf.fuse(made)
    one, two = fused(X), fused(X * 2)
    assert type(one) is Layer
    assert one is not two
    np.testing.assert_array_equal(one.kept, X + 1)
    np.testing.assert_array_equal(two.kept, X * 2 + 1)


def test_objects_within_a_trace():
    inner = kf.fuse(lambda x, layer: x + layer.kept)

    def outer(x):
        layer = Layer()
        layer.kept = x * 2
        return inner(x, layer)

    np.testing.assert_array_equal(kf.fuse(outer)(X), 3 * X)


def test_members_of_enums_and_instances_of_methods_stay_what_they_are():
    @kf.fuse
    def applied(x, mode):
        return x + 1 if mode is Mode.ADD else x * 2

    np.testing.assert_array_equal(applied(X, Mode.ADD), X + 1)
    np.testing.assert_array_equal(applied(X, Mode.MULTIPLY), X * 2)

    class Model:
        weight = X

        @kf.fuse
        def forward(self, x):
            assert self is model
            return x * self.weight

    model = Model()
    np.testing.assert_array_equal(model.forward(X), X * X)


def test_objects_without_a_dict_are_fixed():
    np.testing.assert_array_equal(kf.fuse(lambda x, s: x * s.w)(X, Slotted(X)), X * X)
