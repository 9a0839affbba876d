"""Functions in C++ that are called wrongly: they say so as all others do, without pybind11's lists of C++ types."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core

X = np.ones(3, np.float32)
WRONG: dict[str, Callable[[], Any]] = {
    "kfusion.savings: missing a required argument: 'ops'": lambda: kf.savings(),
    "kfusion.savings: too many positional arguments": lambda: kf.savings([], 2, 3),
    "kfusion.savings: got an unexpected keyword argument 'bytes'": lambda: kf.savings([], bytes=2),
    "kfusion.set_num_threads: n must be an integer, got str": lambda: kf.set_num_threads("4"),
    "kfusion.set_num_threads: n must be an integer, got float": lambda: kf.set_num_threads(2.5),
    "kfusion.set_num_threads: n is out of range: 1099511627776": lambda: kf.set_num_threads(2**40),
    "kfusion.get_num_threads: too many positional arguments": lambda: kf.get_num_threads(1),
    "kfusion.empty_cache: too many positional arguments": lambda: kf.empty_cache(1),
    "kfusion.to_device: device must be an integer, got str": lambda: kf.to_device(X, "cuda:0"),
    "kfusion.trace: relu_layernorm: missing a required argument: 'x'": lambda: kf.fused_relu_layernorm(),
    "kfusion.trace: relu_layernorm: too many positional arguments": lambda: kf.fused_relu_layernorm(X, X, X, 1e-5),
    "kfusion.trace: relu_layernorm: got an unexpected keyword argument 'esp'": lambda: kf.unfused_relu_layernorm(
        X, esp=1
    ),
    "kfusion.Graph: too many positional arguments": lambda: kf.Graph(1),
    "kfusion.Graph.node: id must be an integer, got str": lambda: kf.Graph().node("a"),
    "kfusion.Graph.input: missing a required argument: 'shape'": lambda: kf.Graph().input("x"),
    "kfusion.Graph.map: op must be a str, got int": lambda: kf.Graph().map(1, []),
    "kfusion.Graph.set_outputs: outputs must be a sequence, got int": lambda: kf.Graph().set_outputs(1),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong(message):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        WRONG[message]()


def functions() -> list[Callable[..., Any]]:
    modules = (_core, _core.testing)
    found = [f for module in modules for name in dir(module) if inspect.isbuiltin(f := getattr(module, name))]
    for cls in (kf.Graph, kf.DeviceArray):
        found += [getattr(cls, name) for name, m in vars(cls).items() if callable(m) and not name.startswith("_")]
    return found


@pytest.mark.parametrize("f", functions(), ids=lambda f: f.__name__)
def test_no_function_lists_types(f):
    for arguments in [(object(),) * 9, (), (object(),)]:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            f(*arguments, no_such_argument=1)
        assert "incompatible" not in str(caught.value)
