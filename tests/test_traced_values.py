"""Traced values: in-place operators, views, attributes, values that escape, and what they are to isinstance."""

from __future__ import annotations

import copy
import math
import pickle

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kfusion as kf
from kfusion._tracing.trace import trace
from sweeps import refusals, sweep
from tracing import run

X, V = kf.spec((5, 7)), kf.spec((7,))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_basic_index(data):
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True, max_dims=6))
    x = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    got, expected = run(lambda v: v[key] * 1, x), x[key] * 1
    assert np.shape(got) == np.shape(expected)
    np.testing.assert_array_equal(got, expected)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_any_index_array(data):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5))
    axis = data.draw(st.integers(0, len(shape) - 1))
    n = shape[axis]
    indices = data.draw(hnp.arrays(np.int64, hnp.array_shapes(max_dims=2, max_side=4), elements=st.integers(-n, n - 1)))
    key = (*data.draw(st.tuples(*[st.slices(k) for k in shape[:axis]])), indices)
    x = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    np.testing.assert_array_equal(run(lambda v: v[key] * 1, x), x[key] * 1)
    np.testing.assert_array_equal(run(lambda v, i: v[(*key[:-1], i)] * 1, x, indices), x[key] * 1)


def test_in_place_operators_change_the_value_and_its_other_names():
    def f(x):
        y = x * 1
        z = y
        y += 1
        y **= 2
        return z

    def view_changes(x):
        x = x * 2
        v = x[::2]
        v += 1
        return x

    def value_changes(x):
        v = x[::2]
        x += 1
        return v

    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    np.testing.assert_array_equal(run(f, x), (x + 1) ** 2)
    assert trace(lambda x: x.astype("float32").__iadd__(x[0]), X).graph is not None
    stale = r"shares memory with one that was changed in place \(test_traced_values.py:\d+: "
    refusals([
        (lambda: trace(lambda x, v: v.__imul__(x), X, V), kf.TraceError,
         r"x \*= y makes float32\[5, 7\] of float32\[7\]\n.*\n  write x = x \* y"),
        (lambda: trace(lambda x: x.__itruediv__(2), kf.spec((3,), "int64")), kf.TraceError,
         r"x /= y makes float64\[3\] of int64\[3\]"),
        (lambda: trace(view_changes, X), kf.TraceError, stale),
        (lambda: trace(value_changes, X), kf.TraceError, stale),
    ])  # fmt: skip


def test_a_value_that_escapes():
    values = []
    keep = values.append  # no trace looks into the list behind a method of it

    def f(x):
        keep(x)
        return x * 2

    trace(f, X)
    value = values[0]
    uses = (lambda: value + 1, lambda: kf.relu(value), lambda: value.shape, lambda: trace(f, X, 3) or 0)
    for use in uses:
        with pytest.raises(TypeError):
            use()
    with pytest.raises(kf.TraceError, match="a value of f is used outside its trace"):
        trace(lambda x: x + value, X)
    assert repr(value) == "<traced value of f>"


def test_a_trace_within_a_trace_and_behind_an_error():
    def f(x):
        assert "iota" in str(trace(lambda y: y * kf.iota(7), X).graph)
        return x + kf.iota(7, dtype="float32")

    def fails(x):
        raise RuntimeError("mine")

    assert str(trace(f, X).graph).count("iota") == 1
    np.testing.assert_array_equal(kf.iota((2, 3), axis=0), [[0] * 3, [1] * 3])
    with pytest.raises(RuntimeError, match="mine"):
        trace(fails, X)
    assert isinstance(kf.iota(3), np.ndarray)


def test_what_values_say_of_themselves():
    """isinstance takes a traced value for the array that it stands for."""
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")

    def of_numpy(x):
        assert isinstance(x * 2, np.ndarray)
        assert type(x) is not np.ndarray
        assert hasattr(x, "relu")
        assert not any(hasattr(x, name) for name in ("frobnicate", "__cuda_array_interface__"))
        assert repr(x) == str(x) == f"{x}" == "<traced float32[3]>"
        match x:
            case np.ndarray():
                return x + 1

    def of_torch(x):
        assert torch.is_tensor(x)
        assert isinstance(x.sum(), torch.Tensor)
        assert not isinstance(x, (np.ndarray, torch.nn.Parameter, torch.FloatTensor))
        assert {x: 1}[x] == 1
        assert "sum" in dir(x)
        assert x.grad is None
        assert not any(hasattr(x, name) for name in ("frobnicate", "__dlpack__"))
        return x + 1 if isinstance(x, torch.Tensor) else x

    def of_jax(x):
        assert isinstance(x, jax.Array)
        assert not isinstance(x, np.ndarray)
        return x + 1

    for f, ones in ((of_numpy, np.ones(3, np.float32)), (of_torch, torch.ones(3)), (of_jax, jax.numpy.ones(3, "f4"))):
        assert kf.fuse(f)(ones).tolist() == [2, 2, 2]
    trace(of_numpy, kf.spec((3,)))
    trace(of_torch, kf.spec((3,), like="torch"))


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_torch_never_looks_into_a_value():
    torch = pytest.importorskip("torch")

    def check(f):
        with pytest.raises(kf.TraceError):
            trace(f, torch.ones(1))

    looks = [
        lambda x: torch.tensor(x) + x, lambda x: torch.Tensor(x) + x, lambda x: torch.tensor([x, x]),
        lambda x: torch.nn.Parameter(x) + x, lambda x: torch.ones(3)[x > 0] + x,
        lambda x: torch.Tensor(3).__setitem__(0, x), lambda x: torch.Tensor(1).copy_(x), lambda x: x.numpy(),
        lambda x: x.data_ptr(), lambda x: np.asarray(x), lambda x: pickle.dumps(x),
    ]  # fmt: skip
    sweep(check, [(f,) for f in looks])


def test_copies():
    def f(x):
        return copy.copy(x) + copy.deepcopy([x])[0]

    np.testing.assert_array_equal(run(f, np.ones(3)), 2)
    assert run(f, pytest.importorskip("torch").ones(3)).tolist() == [2, 2, 2]
