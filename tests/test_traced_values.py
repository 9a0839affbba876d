"""Traced values: in-place operators, views, unknown attributes, values that escape, threads."""

from __future__ import annotations

import copy
import math
import pickle
import threading

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kfusion as kf
from kfusion._tracing.trace import trace
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

    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    np.testing.assert_array_equal(run(f, x), (x + 1) ** 2)
    with pytest.raises(kf.TraceError, match=r"x \*= y makes float32\[5, 7\] of float32\[7\]\n.*\n  write x = x \* y"):
        trace(lambda x, v: v.__imul__(x), X, V)
    with pytest.raises(kf.TraceError, match=r"x /= y makes float64\[3\] of int64\[3\]"):
        trace(lambda x: x.__itruediv__(2), kf.spec((3,), "int64"))


def test_views_of_a_value_changed_in_place_are_stale():
    def view_changes(x):
        x = x * 2
        v = x[::2]
        v += 1
        return x

    def value_changes(x):
        v = x[::2]
        x += 1
        return v

    for f in (view_changes, value_changes):
        with pytest.raises(
            kf.TraceError, match=r"shares memory with one that was changed in place \(test_traced_values.py:\d+: "
        ):
            trace(f, X)
    assert trace(lambda x: x.astype("float32").__iadd__(x[0]), X).graph is not None


def test_unknown_attributes_are_attribute_errors():
    def f(x):
        assert not hasattr(x, "frobnicate")
        assert getattr(x, "__cuda_array_interface__", None) is None
        assert hasattr(x, "relu")
        with pytest.raises(kf.TraceError, match=r"numpy arrays have no \.unsqueeze, torch's have"):
            x.unsqueeze(0)
        return x * 2

    trace(f, X)


def test_values_print():
    def f(x):
        assert repr(x) == str(x) == f"{x}" == "<traced float32[5, 7]>"
        return x * 2

    trace(f, X)


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


def test_a_trace_within_a_trace():
    def f(x):
        inner = trace(lambda y: y * kf.iota(7), X).graph
        assert "iota" in str(inner)
        return x + kf.iota(7, dtype="float32")

    assert str(trace(f, X).graph).count("iota") == 1
    np.testing.assert_array_equal(kf.iota((2, 3), axis=0), [[0] * 3, [1] * 3])


def test_threads_trace_at_once():
    def f(x):
        for i in range(40):
            x = x * i + kf.iota(7, dtype="float32")
        return x

    expected = trace(f, X).graph
    graphs = []

    def work():
        for _ in range(5):
            graphs.append(trace(f, X).graph)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(graphs) == 30
    assert all(g == expected for g in graphs)


def test_the_tracer_is_gone_after_an_error():
    def f(x):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        trace(f, X)
    assert isinstance(kf.iota(3), np.ndarray)


class TestWhatAValueIs:
    """isinstance takes a traced value for the array that it stands for."""

    def test_numpy(self):
        def f(x):
            assert isinstance(x, np.ndarray)
            assert isinstance(x * 2, np.ndarray)
            assert type(x) is not np.ndarray
            match x:
                case np.ndarray():
                    return x + 1

        np.testing.assert_array_equal(kf.fuse(f)(np.ones(3)), 2)
        trace(f, V)

    def test_torch(self):
        torch = pytest.importorskip("torch")

        def f(x):
            assert torch.is_tensor(x)
            assert isinstance(x.sum(), torch.Tensor)
            assert not isinstance(x, (np.ndarray, torch.nn.Parameter, torch.FloatTensor))
            assert {x: 1}[x] == 1
            assert "sum" in dir(x)
            assert x.grad is None
            assert not hasattr(x, "frobnicate")
            assert not hasattr(x, "__dlpack__")
            return x + 1 if isinstance(x, torch.Tensor) else x

        assert kf.fuse(f)(torch.ones(3)).tolist() == [2, 2, 2]
        trace(f, kf.spec((3,), like="torch"))

    def test_jax(self):
        jax = pytest.importorskip("jax")

        def f(x):
            assert isinstance(x, jax.Array)
            assert not isinstance(x, np.ndarray)
            return x + 1

        assert kf.fuse(f)(jax.numpy.ones(3)).tolist() == [2, 2, 2]

    @pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
    @pytest.mark.parametrize(
        "f",
        [
            lambda torch, x: torch.tensor(x) + x,
            lambda torch, x: torch.Tensor(x) + x,
            lambda torch, x: torch.tensor([x, x]),
            lambda torch, x: torch.nn.Parameter(x) + x,
            lambda torch, x: torch.ones(3)[x > 0] + x,
            lambda torch, x: torch.Tensor(3).__setitem__(0, x),
            lambda torch, x: torch.Tensor(1).copy_(x),
            lambda torch, x: x.numpy(),
            lambda torch, x: x.data_ptr(),
            lambda torch, x: np.asarray(x),
            lambda torch, x: pickle.dumps(x),
        ],
    )
    def test_torch_never_looks_into_a_value(self, f):
        torch = pytest.importorskip("torch")
        with pytest.raises(kf.TraceError):
            trace(lambda x: f(torch, x), torch.ones(1))

    def test_copies(self):
        def f(x):
            return copy.copy(x) + copy.deepcopy([x])[0]

        np.testing.assert_array_equal(run(f, np.ones(3)), 2)
        torch = pytest.importorskip("torch")
        assert run(f, torch.ones(3)).tolist() == [2, 2, 2]
