"""Graphs that the tests of generated kernels build, and their texts."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from graph_runs import graph_of
from host_cuda import DEVICE
from kfusion import _core
from kinds import np_dtype

Build = Callable[..., Any]


def empty(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """An array of any size that takes no memory."""
    strides = np.cumprod([1, *shape[:0:-1]])[::-1] * np_dtype(dtype).itemsize
    return np.lib.stride_tricks.as_strided(np.empty(1, np_dtype(dtype)), shape, strides)


def sources(build: Build, *arrays: np.ndarray, **options: Any) -> list[str]:
    return [k.source for k in _core.cuda_kernels(graph_of(build, *arrays), DEVICE, **options)]


def chain(g: _core.Graph, x: int, b: int) -> int:
    return g.map("log", [g.map("add", [g.map("relu", [g.map("add", [x, b])]), g.scalar(1.5)])])


def normalized(g: _core.Graph, x: int, axis: int = 1) -> int:
    d = g.map("subtract", [x, g.reduce("mean", x, [axis], True)])
    variance = g.reduce("mean", g.map("square", [d]), [axis], True)
    return g.map("divide", [d, g.map("sqrt", [g.map("add", [variance, g.scalar(1e-5)])])])


def weighted(g: _core.Graph, x: int, weight: int, bias: int) -> int:
    """Columns, with parameters that go along them."""
    return g.map("add", [g.map("multiply", [normalized(g, x, 0), weight]), bias])


def scaled(g: _core.Graph, x: int, weight: int, bias: int | None = None) -> int:
    """Rows, with parameters that go along them."""
    y = g.map("multiply", [normalized(g, x), weight])
    return y if bias is None else g.map("add", [y, bias])


def total(g: _core.Graph, *x: int) -> int:
    return functools.reduce(lambda a, b: int(g.map("add", [a, b])), x)


def softmax(g: _core.Graph, x: int, axis: int = 1) -> int:
    e = g.map("exp", [g.map("subtract", [x, g.reduce("max", x, [axis], True)])])
    return g.map("divide", [e, g.reduce("sum", e, [axis], True)])


def softmax_of_product(g: _core.Graph, x: int, w: int) -> int:
    return softmax(g, g.map("multiply", [x, w]))


def variance(g: _core.Graph, x: int, axes: Any = None) -> int:
    d = g.map("subtract", [x, g.reduce("mean", x, axes, True)])
    return g.reduce("mean", g.map("square", [d]), axes)


def skeleton(source: str) -> str:
    return re.findall(r"  (\w+)<Fused", source)[-1]
