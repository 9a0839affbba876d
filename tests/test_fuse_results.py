"""`kf.fuse`: results come back in objects of the classes that the function returns."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest

import kfusion as kf
from kfusion._tracing.trace import trace
from tracing import Traces

X = np.arange(6.0).reshape(2, 3)


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
    return made


def counted(x):
    return collections.defaultdict(list, y=x + 1)


RESULTS = {
    "a named tuple": lambda x: Pair(x + 1, {"deep": Pair(x * 2)}),
    "a dataclass": lambda x: Both(x + 1, [x * 2, 3]),
    "a frozen one with slots": lambda x: Frozen(x + 1, "name"),
    "one that checks itself": lambda x: Checked(x.sum(), 3),
    "one in another": lambda x: Both(Both(x + 1), Pair(Frozen(x * 2))),
    "an ordered dict": lambda x: collections.OrderedDict(z=x + 1, a=x * 2),
    "an output": lambda x: Output(logits=x + 1),
    "an output with all": lambda x: (Output(x.sum(), x + 1), 5),
    "a dict with attributes": tagged,
    "a dict with a default": counted,
    "one array twice": lambda x: (lambda y: Both(y, y))(x + 1),
}


def state(value: Any) -> Any:
    """What an object consists of, with its classes."""
    if isinstance(value, dict):
        return type(value), [(k, state(v)) for k, v in value.items()], state(vars(value)) if vars_of(value) else None
    if isinstance(value, (tuple, list)):
        return type(value), [state(v) for v in value]
    if dataclasses.is_dataclass(value):
        names = [f.name for f in dataclasses.fields(value)]
        return type(value), [(n, state(getattr(value, n))) for n in names], sorted(vars_of(value))
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def vars_of(value: Any) -> Any:
    return getattr(value, "__dict__", {})


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_of_the_function_s_classes(name):
    f = RESULTS[name]
    fused = kf.fuse(f)
    for x in (X, X + 1, X):
        assert state(fused(x)) == state(f(x))


def test_attributes_of_results():
    fused = kf.fuse(RESULTS["an output with all"])
    one, two = fused(X)[0], fused(X + 1)[0]
    assert one.loss == one["loss"] == X.sum()
    assert list(two) == ["loss", "logits"]
    assert one is not two
    assert two.loss == (X + 1).sum()
    assert kf.fuse(tagged)(X).tag == "t"
    np.testing.assert_array_equal(kf.fuse(tagged)(X).also[0], X * 3)
    assert kf.fuse(counted)(X)["missing"] == []
    np.testing.assert_array_equal(kf.fuse(RESULTS["one that checks itself"])(X).doubled, X.sum() * 2)


def test_dataclasses_among_the_arguments():
    traces = Traces()

    def function(batch, x):
        traces()
        return batch.a * x * batch.b if isinstance(batch, Both) else None

    fused = kf.fuse(function)
    for scale in (2.0, 3.0, 0.5):  # a float in it is a number as any other
        np.testing.assert_array_equal(fused(Both(X * scale, scale), X), X * X * scale * scale)
    assert len(traces) == 1
    np.testing.assert_array_equal(fused(Both(X[:1], 1.0), X), X[:1] * X)
    np.testing.assert_array_equal(kf.fuse(lambda x: function(Both(x + 1, x), X))(X), (X + 1) * X * X)
    nodes = fused.plan(Both(X, 2.0), X).graph.to_dict()["nodes"]
    assert next(node["name"] for node in nodes if node["op"] == "input") == "batch.a"
    inner = kf.fuse(lambda batch: batch.a * 2)
    np.testing.assert_array_equal(kf.fuse(lambda x: inner(Both(x + 1)))(X), (X + 1) * 2)


def test_a_frozen_dataclass_with_slots_and_one_without_arrays():
    fused = kf.fuse(lambda frozen, config: (frozen.a * config.b, frozen, config))
    config = Both(None, 3)
    y, frozen, same = fused(Frozen(X, "n"), config)
    np.testing.assert_array_equal(y, X * 3)
    assert (type(frozen), frozen.name) == (Frozen, "n")
    np.testing.assert_array_equal(frozen.a, X)
    assert same is config


def test_an_object_without_arrays_is_itself():
    config = Both(1, [2])
    _, got = kf.fuse(lambda x: (x + 1, config))(X)
    assert got is config


def test_paths_name_fields():
    assert [o["name"] for o in trace(RESULTS["one in another"], X).graph.to_dict()["outputs"]] == ["a.a", "b.first.a"]


def test_out_in_results_of_a_class():
    into = np.empty_like(X)
    got = kf.fuse(lambda x: Both(x + 1))(X, out=into)
    assert type(got) is Both
    assert got.a is into


def test_dicts_among_the_arguments_are_of_their_class():
    def f(batch):
        assert type(batch) is Output
        return batch.logits * batch["loss"]

    np.testing.assert_array_equal(kf.fuse(f)(Output(X, X + 1)), X * (X + 1))
