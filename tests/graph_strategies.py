"""Random graphs that compute something, each with what NumPy makes of the same inputs in float64.

Every value carries a bound on the error of a correct executor, to which `Case.check` holds whoever runs the graph.
 Operations whose results jump (comparisons) are applied only to values that are known exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import reference_ops
from conftest import DTYPES, SPACING, TINY, np_dtype
from kfusion import _core

LIMIT = 1e3  # of all values: half types hold it, and errors stay small
MAX_ELEMENTS = 20_000


@dataclass
class Value:
    node: int
    array: np.ndarray  # float64, or bool
    error: float = 0.0

    @property
    def top(self) -> float:
        return float(np.abs(self.array).max(initial=0))


@dataclass
class Case:
    graph: _core.Graph
    inputs: list[np.ndarray]
    outputs: list[Value]

    def check(self, results: list[Any]) -> None:
        """Asserts that `results` are the outputs within the error that a correct executor may make."""
        assert len(results) == len(self.outputs)
        for got, want in zip(results, self.outputs, strict=True):
            got = np.asarray(got)
            assert got.shape == want.array.shape
            assert str(got.dtype) == self.graph.dtype(want.node)
            np.testing.assert_allclose(got.astype(float), want.array.astype(float), rtol=0, atol=want.error)


# What an op makes of its arguments' errors, before it rounds.
_UNARY: dict[str, Callable[[Value], float]] = {
    "negative": lambda x: x.error,
    "absolute": lambda x: x.error,
    "relu": lambda x: x.error,
    "tanh": lambda x: x.error,
    "sigmoid": lambda x: x.error,
    "sin": lambda x: x.error,
    "arctan": lambda x: x.error,
    "square": lambda x: (2 * x.top + x.error) * x.error,
    "exp": lambda x: float(np.exp(x.top + x.error)) * x.error,
}
_BINARY: dict[str, Callable[[Value, Value], float]] = {
    "add": lambda x, y: x.error + y.error,
    "subtract": lambda x, y: x.error + y.error,
    "multiply": lambda x, y: x.top * y.error + y.top * x.error + x.error * y.error,
    "maximum": lambda x, y: max(x.error, y.error),
    "minimum": lambda x, y: max(x.error, y.error),
}
_EXACT = ("negative", "absolute", "relu", "maximum", "minimum")  # no rounding of their own
_COMPARISONS = ("less", "greater_equal", "not_equal")
_REDUCTIONS: dict[str, Callable[[Value, int], float]] = {
    "sum": lambda x, n: n * x.error,
    "mean": lambda x, n: x.error,
    "max": lambda x, n: x.error,
    "min": lambda x, n: x.error,
}


class _Builder:
    def __init__(self, draw: st.DrawFn, dtypes: tuple[str, ...]) -> None:
        self.draw, self.dtypes = draw, dtypes
        self.graph = _core.Graph()
        self.inputs: list[np.ndarray] = []
        self.values: list[Value] = []
        self.masks: list[Value] = []

    def keep(self, node: int, array: np.ndarray, error: float = 0.0, rounds: bool = True) -> Value | None:
        """A node's value, with the error of rounding it to its dtype; None where it is too large to go on with."""
        value = Value(node, np.asarray(array), error)
        if value.array.size > MAX_ELEMENTS or not value.top <= LIMIT:
            return None
        dtype = self.graph.dtype(node)
        if rounds and dtype in SPACING:
            value.error += 4 * (SPACING[dtype] * (value.top + error) + TINY[dtype])
        (self.masks if value.array.dtype == bool else self.values).append(value)
        return value

    def input(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        # Eighths: exact in every dtype, with ties and zeros among them.
        eighths = self.draw(st.lists(st.integers(-16, 16), min_size=1, max_size=7))
        array = np.resize(np.array(eighths) / 8.0, shape)
        self.inputs.append(array.astype(np_dtype(dtype)))
        self.keep(self.graph.input(name, shape, dtype), array, rounds=False)

    def pick(self) -> Value:
        return self.draw(st.sampled_from(self.values))

    def partner(self, x: Value) -> Value:
        """A value that broadcasts with x; x itself always does."""

        def fits(y: Value) -> bool:
            pairs = zip(x.array.shape[::-1], y.array.shape[::-1], strict=False)
            return all(m == n or 1 in (m, n) for m, n in pairs)

        return self.draw(st.sampled_from([y for y in self.values if fits(y)]))

    def sum_error(self, node: int, terms: int, top: float) -> float:
        """Of a sum of that many terms in any order, in float32 at least."""
        return terms * terms * top * SPACING["float64" if self.graph.dtype(node) == "float64" else "float32"]

    # Each step adds a node or two, or nothing where it would not fit.

    def unary(self) -> None:
        x, name = self.pick(), self.draw(st.sampled_from(list(_UNARY)))
        if name in ("square", "exp") and x.top > 6:
            name = "tanh"
        array = reference_ops.MAPS[name](x.array)
        self.keep(self.graph.map(name, [x.node]), array, _UNARY[name](x), name not in _EXACT)

    def binary(self) -> None:
        x = self.pick()
        y, name = self.partner(x), self.draw(st.sampled_from(list(_BINARY)))
        if self.draw(st.booleans()):
            x, y = y, x
        array = reference_ops.MAPS[name](x.array, y.array)
        self.keep(self.graph.map(name, [x.node, y.node]), array, _BINARY[name](x, y))

    def scalar(self) -> None:
        x, c = self.pick(), self.draw(st.sampled_from([2, -1, 0.5, True]))
        array, node = x.array * float(c), self.graph.map("multiply", [x.node, self.graph.scalar(c)])
        self.keep(node, array, abs(float(c)) * x.error)

    def compare(self) -> None:
        exact = [v for v in self.values if v.error == 0]
        x = self.draw(st.sampled_from(exact))
        name, c = self.draw(st.sampled_from(_COMPARISONS)), self.draw(st.sampled_from([0, 0.5, -1]))
        self.keep(self.graph.map(name, [x.node, self.graph.scalar(c)]), reference_ops.MAPS[name](x.array, c))

    def select(self) -> None:
        x = self.pick()
        y, masks = self.partner(x), [m for m in self.masks if m.array.shape == x.array.shape]
        if not masks:
            return
        m = self.draw(st.sampled_from(masks))
        array = np.where(m.array, x.array, y.array)
        self.keep(self.graph.map("where", [m.node, x.node, y.node]), array, max(x.error, y.error))

    def reduce(self) -> None:
        x, name = self.pick(), self.draw(st.sampled_from(list(_REDUCTIONS)))
        axes = (
            self.draw(st.none() | st.sets(st.sampled_from(range(x.array.ndim)), min_size=1)) if x.array.ndim else None
        )
        keepdims = self.draw(st.booleans())
        if x.array.size == 0:
            return
        node = self.graph.reduce(name, x.node, None if axes is None else sorted(axes), keepdims)
        axis = None if axes is None else tuple(sorted(axes))
        array = reference_ops.REDUCTIONS[name](x.array, axis=axis, keepdims=keepdims)
        n = x.array.size // np.size(array)
        rounding = {"sum": self.sum_error(node, n, x.top), "mean": self.sum_error(node, n, x.top) / n}.get(name, 0)
        self.keep(node, array, _REDUCTIONS[name](x, n) + rounding, rounds=name in ("sum", "mean"))

    def normalise(self) -> None:
        """A row reduction that its own rows read again: x - x.mean(axis, keepdims)."""
        x = self.pick()
        if not x.array.ndim or x.array.size == 0:
            return
        axis, name = self.draw(st.integers(0, x.array.ndim - 1)), self.draw(st.sampled_from(["mean", "max"]))
        row = self.graph.reduce(name, x.node, [axis], True)
        rows = reference_ops.REDUCTIONS[name](x.array, axis=axis, keepdims=True)
        n = x.array.shape[axis]
        r = self.keep(row, rows, x.error + self.sum_error(row, n, x.top) / n)
        if r is not None:
            self.keep(self.graph.map("subtract", [x.node, row]), x.array - rows, x.error + r.error)

    def view(self) -> None:
        x = self.pick()
        shape, ndim = x.array.shape, x.array.ndim
        name = self.draw(st.sampled_from(["transpose", "reshape", "slice", "broadcast"]))
        if name == "transpose":
            axes = self.draw(st.permutations(range(ndim)))
            node, array = self.graph.transpose(x.node, axes), x.array.transpose(axes)
        elif name == "reshape":
            to = self.draw(st.sampled_from([(-1,), shape[::-1], (1, *shape), (*shape, 1)]))
            if x.array.size == 0:
                to = shape[::-1]
            node, array = self.graph.reshape(x.node, to), x.array.reshape(to)
        elif name == "slice":
            slices = [self.draw(st.slices(n)) if n else slice(None) for n in shape]
            ranges = [s.indices(n) for s, n in zip(slices, shape, strict=True)]
            node, array = self.graph.slice(x.node, ranges), x.array[tuple(slices)]
        else:
            to = (self.draw(st.integers(1, 3)), *shape)
            node, array = self.graph.broadcast(x.node, to), np.broadcast_to(x.array, to)
        self.keep(node, array, x.error, rounds=False)

    def cast(self) -> None:
        x, dtype = self.pick(), self.draw(st.sampled_from(self.dtypes))
        self.keep(self.graph.cast(x.node, dtype), x.array, x.error)

    def count(self) -> None:
        """How often a mask is true, as integers and then as floats."""
        if not self.masks:
            return
        m = self.draw(st.sampled_from(self.masks))
        total = self.graph.reduce("sum", m.node, None, False)
        self.keep(self.graph.cast(total, "float32"), m.array.sum().astype(float), rounds=False)

    def matmul(self) -> None:
        x = self.pick()
        if x.array.ndim < 2:
            return
        n = x.array.shape[-1]
        axes = [*range(x.array.ndim - 2), x.array.ndim - 1, x.array.ndim - 2]
        node = self.graph.matmul(x.node, self.graph.transpose(x.node, axes))
        error = n * (2 * x.top + x.error) * x.error
        self.keep(node, x.array @ x.array.transpose(axes), error + self.sum_error(node, n, x.top**2))

    def take(self) -> None:
        x = self.pick()
        if not x.array.ndim or not x.array.shape[0]:
            return
        n = x.array.shape[0]
        indices = np.array(self.draw(st.lists(st.integers(-n, n - 1), max_size=4)), np.int64)
        node = self.graph.input(f"i{len(self.inputs)}", indices.shape, "int64")
        self.inputs.append(indices)
        self.keep(self.graph.take(x.node, node, 0), x.array[indices], x.error, rounds=False)


_STEPS = ("unary", "unary", "binary", "binary", "binary", "scalar", "compare", "select", "reduce", "normalise", "view",
          "view", "cast", "count")  # fmt: skip
_SHAPES = [(), (1,), (5,), (3, 5), (3, 1), (1, 5), (2, 3, 5), (0, 5), (7, 11)]


_REDUCING = ("reduce", "normalise", "count")
# Vectors and tiles with their remainders, rows that are cut, columns that are few.
LARGER_SHAPES = [(67,), (1,), (33, 67), (33, 1), (1, 67), (3, 5, 67), (2, 1030), (1030, 2), (4100,)]


@st.composite
def cases(
    draw: st.DrawFn,
    max_steps: int = 12,
    dtypes: tuple[str, ...] = DTYPES,
    contractions: bool = False,
    reductions: bool = True,
    shapes: list[tuple[int, ...]] = _SHAPES,
) -> Case:
    """Graphs over inputs of `dtypes` and `shapes`: maps, casts, reductions that are broadcast again, views, several
    outputs, shared subexpressions, random stages; with `contractions` matrix products and gathers as well."""
    b = _Builder(draw, dtypes)
    for k in range(draw(st.integers(1, 3))):
        b.input(f"x{k}", draw(st.sampled_from(shapes)), draw(st.sampled_from(dtypes)))
    steps = [s for s in _STEPS if reductions or s not in _REDUCING] + (["matmul", "take"] if contractions else [])
    for step in draw(st.lists(st.sampled_from(steps), min_size=1, max_size=max_steps)):
        staged = draw(st.integers(0, 3)) == 0
        if staged:
            b.graph.begin_stage("part", "f.py:1: y = f(x)")
        getattr(b, step)()
        if staged:
            b.graph.end_stage()
    outputs = [b.values[-1], *draw(st.lists(st.sampled_from(b.values + b.masks), max_size=2))]
    b.graph.set_outputs([(str(i), v.node) for i, v in enumerate(outputs)])
    return Case(b.graph, b.inputs, outputs)
