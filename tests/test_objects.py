"""Objects of the user's classes as arguments and results: caches, states, records, whatever holds arrays."""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
from typing import Any, NamedTuple

import numpy as np
import pytest

import kfusion as kf
from kfusion._tracing.trace import trace
from stateful import described
from sweeps import sweep
from tracing import counting

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
    def __init__(self, kept: Any = None) -> None:
        self.kept = kept

    def update(self, x: Any) -> Any:
        self.kept = x if self.kept is None else np.concatenate([self.kept, x])
        return self.kept


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
        assert described(mine) == described(theirs)
    (one, _), (other, _) = caches
    assert not np.shares_memory(one.layers[0].kept, other.layers[0].kept)
    assert fused._cached() == 3  # one for each length, for both caches


def test_a_failed_trace_leaves_objects_as_they_were():
    def fails(x, cache):
        cache.update(0, x)
        raise KeyError("no")

    cache = Cache()
    with pytest.raises(KeyError):
        kf.fuse(fails)(X, cache)
    assert (cache.layers, cache.calls) == ([], 0)


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

    layer = Layer(X)
    np.testing.assert_array_equal(kf.fuse(both)(X, layer, layer), (X + 1) * 2)
    np.testing.assert_array_equal(layer.kept, X + 1)


def test_keywords_in_another_order():
    def counted(x, a, b):
        a.kept, b.held = x + 1, x + 2
        return x * 2

    a, b = Layer(), Layer()
    fused = kf.fuse(counted)
    fused(X, b=b, a=a)
    np.testing.assert_array_equal([a.kept, b.held], [X + 1, X + 2])
    assert b.kept is None
    fused(X, b=a, a=a)  # met again, under the name that stands first
    np.testing.assert_array_equal(a.held, X + 2)


def test_objects_that_hold_each_other():
    one, two = Layer(X), Layer(X + 1)
    one.other, two.other = two, one

    def swapped(node):
        node.kept, node.other.kept = node.other.kept * 1, node.kept * 1
        return node.other

    assert kf.fuse(swapped)(one) is two
    np.testing.assert_array_equal([one.kept, two.kept], [X + 1, X])


def test_a_new_object_is_another_each_time():
    fused = kf.fuse(lambda x: Layer(x + 1))
    one, two = fused(X), fused(X * 2)
    assert type(one) is Layer
    assert one is not two
    np.testing.assert_array_equal([one.kept, two.kept], [X + 1, X * 2 + 1])
    inner = kf.fuse(lambda x, layer: x + layer.kept)
    np.testing.assert_array_equal(kf.fuse(lambda x: inner(x, Layer(x * 2)))(X), 3 * X)


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


# ---- records, and classes of containers ----


class Kind:
    def __init__(self, factor: float = 2.0) -> None:
        self.factor = factor


class Kinds:
    WIDE, NARROW = Kind(), Kind()


NOTHING = Kind()
SCALES = {Kinds.WIDE: 5.0}


def by_identity(x, kind, *others):
    y = x * kind.factor + 1 if kind is NOTHING else x
    return y * SCALES.get(kind, 3.0) + (Kinds.NARROW in others[0] if others else 0)


def test_objects_that_a_function_names_are_themselves():
    """A mode or a sentinel among the arguments, too: it may be compared, or be a key. Another one is another."""
    fused, slope = kf.fuse(by_identity), kf.grad(lambda x, *kinds: by_identity(x, *kinds).sum())
    calls = [(kind,) for kind in (Kind(), NOTHING, Kinds.WIDE, Kinds.NARROW, Kind(), NOTHING, Kind(4.0))]
    for call in [*calls, (Kind(), [Kinds.WIDE]), (NOTHING, (Kinds.WIDE, Kinds.NARROW)), (Kind(), {Kinds.NARROW: 1})]:
        expected = by_identity(X, *call)
        assert np.array_equal(fused(X, *call), expected)
        assert np.array_equal(fused.unfused(X, *call), expected)
        assert np.array_equal(slope(X, *call), by_identity(X + 1, *call) - expected)
        planned, plain = (
            str(f.plan(X, *c).graph)
            for f, c in ((fused, call), (kf.fuse(lambda x, call=call: by_identity(x, *call)), ()))
        )
        assert planned.partition("return")[0] == plain.partition("return")[0]
    NOTHING.factor = 7.0
    assert np.array_equal(fused(X, NOTHING), by_identity(X, NOTHING))


class Pair(NamedTuple):
    first: Any
    second: Any = None


@dataclasses.dataclass
class Both:
    a: Any
    b: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: Any
    name: str = "none"


@dataclasses.dataclass
class Checked:
    total: Any
    count: int = 0

    def __post_init__(self) -> None:
        assert self.total.shape == ()
        self.doubled = self.total * 2


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """A class like transformers' ModelOutput: the fields that are not None are items, too."""

    loss: Any = None
    logits: Any = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                super().__setitem__(field.name, getattr(self, field.name))

    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("code of the user's")

    def __reduce__(self) -> Any:
        raise AssertionError("code of the user's")


class Tagged(dict):
    pass


def tagged(x):
    made = Tagged(y=x + 1)
    made.tag, made.also = "t", [x * 3]
    return made, made.tag, made.also


RESULTS = [
    lambda x: Pair(x + 1, {"deep": Pair(x * 2)}),
    lambda x: Both(x + 1, [x * 2, 3]),
    lambda x: Frozen(x + 1, "name"),
    lambda x: Checked(x.sum(), 3),
    lambda x: Both(Both(x + 1), Pair(Frozen(x * 2))),
    lambda x: collections.OrderedDict(z=x + 1, a=x * 2),
    lambda x: types.SimpleNamespace(z=x + 1, a=(x * 2,)),
    lambda x: Output(logits=x + 1),
    lambda x: (Output(x.sum(), x + 1), 5),
    tagged,
    lambda x: collections.defaultdict(list, y=x + 1),
    lambda x: (lambda y: Both(y, y))(x + 1),
    lambda x: (x + 1, "text", None),
]


def test_results_are_of_the_function_s_classes():
    def check(f):
        fused = kf.fuse(f)
        for x in (X, X + 1, X):
            assert described(fused(x)) == described(f(x))

    sweep(check, [(f,) for f in RESULTS])
    assert kf.fuse(tagged)(X)[0].tag == "t"
    assert kf.fuse(RESULTS[10])(X)["missing"] == []
    output = kf.fuse(RESULTS[8])(X)[0]
    assert output.loss == output["loss"] == X.sum()
    assert [o["name"] for o in trace(RESULTS[4], X).graph.to_dict()["outputs"]] == ["a.a", "b.first.a"]
    into = np.empty_like(X)
    got = kf.fuse(lambda x: Both(x + 1))(X, out=into)
    assert type(got) is Both
    assert got.a is into


def test_dataclasses_among_the_arguments():
    def function(batch, x):
        return batch.a * x * batch.b if isinstance(batch, Both) else None

    fused = counting(function)
    for scale in (2.0, 3.0, 0.5):  # a float in it is a number as any other
        np.testing.assert_array_equal(fused(Both(X * scale, scale), X), X * X * scale * scale)
    assert len(fused.count) == 1
    np.testing.assert_array_equal(fused(Both(X[:1], 1.0), X), X[:1] * X)
    np.testing.assert_array_equal(kf.fuse(lambda x: function(Both(x + 1, x), X))(X), (X + 1) * X * X)
    names = [n["name"] for n in kf.fuse(function).plan(Both(X, 2.0), X).graph.to_dict()["nodes"] if n["op"] == "input"]
    assert names[0] == "batch.a"
    fused = kf.fuse(lambda frozen, config: (frozen.a * config.b, frozen, config))
    config = Both(None, 3)
    y, frozen, same = fused(Frozen(X, "n"), config)
    np.testing.assert_array_equal([y, frozen.a], [X * 3, X])
    assert (type(frozen), frozen.name, same) == (Frozen, "n", config)
    assert same is config
