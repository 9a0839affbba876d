"""Tensors and arrays of outside whose elements decide what is traced: a change of them is noticed."""

from __future__ import annotations

import numpy as np
import pytest

import kfusion as kf
from tracing import Traces


def _holds(function, x, array, fill, values=(1, 3, 1)):
    fused = kf.fuse(function)
    for value in values:
        fill(array, value)
        for _ in range(2):
            np.testing.assert_array_equal(np.asarray(fused(x)), np.asarray(function(x)))


def _of_torch(torch):
    def copied(x, t):
        own = torch.zeros(2)
        own.copy_(t)
        return x * own.sum()

    return {
        "if": lambda x, t: x * 2 if t[0] > 1.5 else x,
        "float": lambda x, t: x * float(t[0]),
        "item": lambda x, t: x * t[1].item(),
        "tolist": lambda x, t: x * t.tolist()[0],
        "computed": lambda x, t: x * (t * 2).sum(),
        "copied": copied,
        "contains": lambda x, t: x * 2 if 3 in t else x,
        "slice": lambda x, t: x[t[0].long() :],
        "narrow": lambda x, t: torch.narrow(x, 0, t[0].long(), 2),
        "nonzero": lambda x, t: x * (t > 2).nonzero().shape[0],
        "all": lambda x, t: x * 2 if (t > 2).all() else x,
        "operand": lambda x, t: x * t[0] * 2 if t[0] > 1.5 else x * t[0],
    }


@pytest.mark.parametrize("name", _of_torch(None))
def test_an_element_of_a_tensor_that_decides(name):
    torch = pytest.importorskip("torch")
    t, ask = torch.ones(2), _of_torch(torch)[name]
    _holds(lambda x: ask(x, t), torch.randn(6), t, lambda t, value: t.fill_(value))


@pytest.mark.parametrize("trains", [False, True])
def test_a_buffer_that_decides(trains):
    torch = pytest.importorskip("torch")

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3), requires_grad=trains)
            self.register_buffer("scale", torch.tensor(1.0))

        def forward(self, x):
            return x * self.weight * 2 if self.scale > 1.5 else x * self.weight

    module = Scaled()
    fused, x = kf.fuse(module), torch.randn(3)
    for value in (1.0, 3.0, 1.0, 2.0):
        if value == 2.0:
            module.load_state_dict({"weight": torch.randn(3), "scale": torch.tensor(value)})
        else:
            module.scale.fill_(value)
        torch.testing.assert_close(fused(x), module(x))
        if trains:
            (got,) = torch.autograd.grad(fused(x).sum(), module.weight)
            torch.testing.assert_close(got, x * 2 if value > 1.5 else x)


_OF_NUMPY = {
    "if": lambda x, a: x * 2 if a[0] > 1.5 else x,
    "int": lambda x, a: x * int(a[0]),
    "max": lambda x, a: x * a.max(),
    "slice": lambda x, a: x[int(a[0]) :],
    "reshape": lambda x, a: x.reshape(a.astype(int).tolist()[0], -1),
    "computed": lambda x, a: x[:2] * (a * 2),
    "scalar and operand": lambda x, a: x[:2] * a * a.max(),
}


@pytest.mark.parametrize("name", _OF_NUMPY)
def test_an_element_of_an_array_of_numpys_that_decides(name):
    a, ask = np.ones(2), _OF_NUMPY[name]
    _holds(lambda x: ask(x, a), np.random.default_rng().normal(size=6), a, lambda a, value: a.fill(value))


def test_operands_are_read_without_another_trace():
    traces, a, x = Traces(), np.ones(4), np.random.default_rng().normal(size=4)

    @kf.fuse
    def scaled(x):
        traces()
        return x * a

    scaled(x)
    first = len(traces)
    for value in (1.0, 3.0, 1.0):
        a.fill(value)
        np.testing.assert_array_equal(scaled(x), x * value)
    assert len(traces) == first


def test_a_size_among_the_arguments_is_no_number():
    torch = pytest.importorskip("torch")
    f = kf.fuse(lambda x, b: torch.nn.functional.layer_norm(x + b, b.shape))
    x, b = torch.randn(3, 5), torch.randn(5)
    torch.testing.assert_close(f(x, b), torch.nn.functional.layer_norm(x + b, b.shape))
