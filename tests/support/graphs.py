"""Random graphs for property tests, and a plain NumPy evaluator of graphs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kfusion import _core
from kinds import np_dtype

DTYPES = ("bool", "int32", "int64", "float16", "bfloat16", "float32", "float64")
SHAPES = [(), (1,), (3,), (5,), (1, 5), (3, 1), (3, 5), (2, 3, 5), (0, 5)]
UNARY = ("relu", "exp", "floor", "negative", "logical_not", "isnan", "invert", "absolute")
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "less", "equal", "logical_and", "bitwise_xor", "fmin")
TERNARY = ("where", "clip")
SCALARS = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.integers(-9, 9), st.floats(width=32))


@st.composite
def graphs(draw: st.DrawFn, library: str | None = None, steps: int = 16) -> _core.Graph:
    """A graph of random calls, some of which are refused, which must not leave a trace."""
    g = _core.Graph()
    values = []
    for k in range(draw(st.integers(1, 3))):
        kind = library or draw(st.sampled_from(["numpy", "torch"]))
        device = draw(st.sampled_from(["cpu", "cpu", "cuda:1"]))
        values.append(g.input(f"x{k}", draw(st.sampled_from(SHAPES)), draw(st.sampled_from(DTYPES)), kind, device))
    open_stages = 0
    for _ in range(draw(st.integers(0, 3) | st.integers(8, steps))):
        before = len(g), len(g.to_dict()["stages"])
        try:
            values.append(_call(draw, g, values))
        except (TypeError, ValueError, OverflowError):
            assert (len(g), len(g.to_dict()["stages"])) == before
        change = draw(st.integers(0, 9))
        if change == 0:
            g.begin_stage(draw(st.sampled_from(["norm", "gate"])), "f.py:1: y = f(x)")
            open_stages += 1
        elif change == 1 and open_stages:
            g.end_stage()
            open_stages -= 1
    ids = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    g.set_outputs([(str(i), v) for i, v in enumerate(ids)])
    return g


def _call(draw: st.DrawFn, g: _core.Graph, values: list[int]) -> int:
    pick = st.sampled_from(values)
    x = draw(pick)
    shape = g.shape(x)
    axes = st.lists(st.integers(-3, 2), max_size=3)
    name = draw(
        st.sampled_from(["scalar", "iota", "cast", "unary", "binary", "ternary", "reduce", "view", "view", "view"])
    )
    if name == "scalar":
        return g.scalar(draw(SCALARS))
    if name == "iota":
        return g.iota(draw(st.sampled_from(SHAPES)), draw(st.integers(-2, 2)), draw(st.sampled_from(DTYPES)))
    if name == "cast":
        return g.cast(x, draw(st.sampled_from(DTYPES)))
    if name == "reduce":
        op = draw(st.sampled_from(["sum", "prod", "mean", "max", "min", "any", "all"]))
        return g.reduce(op, x, draw(st.none() | axes), draw(st.booleans()))
    if name != "view":
        op = draw(st.sampled_from({"unary": UNARY, "binary": BINARY, "ternary": TERNARY}[name]))
        return g.map(op, [x, *(draw(pick) for _ in range(("unary", "binary", "ternary").index(name)))])
    name = draw(
        st.sampled_from(["transpose", "reshape", "slice", "broadcast", "matmul", "take", "take_along_axis", "join"])
    )
    if name == "transpose":
        return g.transpose(x, draw(st.permutations(range(len(shape)))))
    if name == "reshape":
        return g.reshape(x, draw(st.sampled_from([(-1,), (1, -1), (5, -1), (3, 5), shape[::-1]])))
    if name == "slice":
        return g.slice(x, [slice(*draw(_SLICE)).indices(n) for n in shape])
    if name == "broadcast":
        return g.broadcast(x, draw(st.sampled_from([(3, *shape), (2, 3, 5), (4, 2, 3, 5)])))
    if name == "join":
        others = draw(st.lists(pick, max_size=2))
        return g.concatenate([x, *others, x], draw(st.integers(-3, 2)))
    if name in ("take", "take_along_axis"):
        return getattr(g, name)(x, draw(pick), draw(st.integers(-2, 2)), draw(st.booleans()))
    return g.matmul(x, draw(pick))


_BOUND = st.none() | st.integers(-6, 6)
_SLICE = st.tuples(_BOUND, _BOUND, st.sampled_from([1, 2, 3, -1, -2]))


def evaluate(g: _core.Graph, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """All outputs, node by node, each rounded to its dtype; `take` wraps its indices."""
    values: list[Any] = []
    queue = iter(inputs)
    d = g.to_dict()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing
        for n in d["nodes"]:
            arguments = [values[a] for a in n["arguments"]]
            result = next(queue) if n["op"] == "input" else _value(n, arguments)
            values.append(np.asarray(result).astype(np_dtype(n["dtype"])))
            assert values[-1].shape == tuple(n["shape"]), n
    return [values[o["node"]] for o in d["outputs"]]


def _value(n: dict[str, Any], a: list[np.ndarray]) -> Any:
    op, shape = n["op"], tuple(n["shape"])
    if op == "constant":
        return np.array(float(n["value"]) if isinstance(n["value"], str) else n["value"])
    if op == "iota":
        column = np.arange(shape[n["axis"]]).reshape([-1] + [1] * (len(shape) - n["axis"] - 1))
        return np.broadcast_to(column, shape)
    if op == "cast":
        return a[0]
    if op == "transpose":
        return a[0].transpose(n["axes"])
    if op == "reshape":
        return a[0].reshape(shape)
    if op == "broadcast":
        return np.broadcast_to(a[0], shape)
    if op == "slice":
        positions = [s + np.arange(e) * k for s, k, e in zip(n["start"], n["step"], shape, strict=True)]
        return a[0][np.ix_(*positions)] if shape else a[0]
    if op == "concatenate":
        return np.concatenate(a, n["axis"])
    if op == "take":
        return np.take(a[0], a[1], n["axis"], mode="wrap")
    if op == "take_along_axis":
        return np.take_along_axis(a[0], a[1] % max(a[0].shape[n["axis"]], 1), n["axis"])
    wide = [v.astype(np.float64) if v.dtype.kind not in "bi" else v for v in a]
    if op == "relu":
        return np.maximum(wide[0], 0)
    if "axes" in n:
        return getattr(np, op)(wide[0], axis=tuple(n["axes"]), keepdims=n["keepdims"])
    return getattr(np, op)(*wide)
