"""Running graphs from tests: building one from a lambda, awkward arrays, comparison with a float64 oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from kfusion import _core
from kinds import SPACING, TINY, np_dtype

# Who runs a graph: other executors take the reference interpreter's place, and its tests.
execute: Callable[[_core.Graph, list[Any], str], list[Any]] = _core.run_graph


def graph_of(build: Callable[..., Any], *arrays: np.ndarray) -> _core.Graph:
    """The graph of build(graph, ids of the inputs), for arrays that lie as these do."""
    g = _core.Graph()
    ids = [
        g.input(f"x{i}", a.shape, str(a.dtype), strides=[s // a.itemsize for s in a.strides])
        for i, a in enumerate(arrays)
    ]
    outputs = build(g, *ids)
    g.set_outputs([(str(i), n) for i, n in enumerate(outputs if isinstance(outputs, list) else [outputs])])
    return g


def run(build: Callable[..., Any], *arrays: Any, name: str = "f") -> list[Any]:
    """The results of build(graph, ids of the inputs), a node or a list of nodes."""
    g = _core.Graph()
    ids = [g.input(f"x{i}", np.shape(a), str(a.dtype)) for i, a in enumerate(arrays)]
    outputs = build(g, *ids)
    g.set_outputs([(str(i), n) for i, n in enumerate(outputs if isinstance(outputs, list) else [outputs])])
    g.verify()
    return execute(g, list(arrays), name)


def run_map(name: str, *arrays: np.ndarray) -> Any:
    return run(lambda g, *ids: g.map(name, list(ids)), *arrays)[0]


def wide(x: np.ndarray) -> np.ndarray:
    """Floats as float64."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        return x if x.dtype.kind in "bi" else x.astype(np.float64)


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """The values as dtype, rounded once; ml_dtypes goes through float32, so what becomes bfloat16 is rounded to odd
    before.
    """
    if dtype != "bfloat16" or x.dtype != np.float64:
        return x.astype(np_dtype(dtype))
    single = np.asarray(x.astype(np.float32))
    bits = single.view(np.uint32)
    inexact = np.isfinite(single) & (single != x)
    bits -= inexact & (np.abs(single) > np.abs(x))  # towards 0
    bits |= inexact
    return single.astype(ml_dtypes.bfloat16)


def draw(rng: np.random.Generator, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """Values of a few units, both signs; no zero among the integers."""
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.startswith("int"):
        return np.asarray(rng.integers(1, 12, shape) * rng.choice([-1, 1], shape), dtype)
    return np.asarray(rng.uniform(-4, 4, shape)).astype(np_dtype(dtype))


def assert_close(got: Any, want: Any, scale: Any = 0, spacings: float = 4.0) -> None:
    """Equal for integers and bools; floats within some spacings of their dtype, NaN where NaN is.

    `scale`: what the result was computed from, where that is larger than the result (the sum of the terms' sizes).
    """
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    if got.dtype.kind in "bi":
        np.testing.assert_array_equal(got, want)
        return
    name = str(got.dtype)
    with np.errstate(all="ignore"):
        exact, want = want.astype(np.float64), want.astype(got.dtype).astype(np.float64)  # overflows as the dtype does
    got = got.astype(np.float64)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        close = np.abs(got - exact) <= spacings * (SPACING[name] * np.maximum(np.abs(exact), scale) + TINY[name])
    bad = ~(same | close)
    assert not bad.any(), f"got {got[bad][:5]}, want {exact[bad][:5]}"


def unaligned(x: np.ndarray) -> np.ndarray:
    y: np.ndarray = np.ndarray(x.shape, x.dtype, bytearray(x.nbytes + 1), 1)
    y[...] = x
    return y


def read_only(x: np.ndarray) -> np.ndarray:
    x.setflags(write=False)
    return x


LAYOUTS: dict[str, Callable[[Callable[[Sequence[int]], np.ndarray]], np.ndarray]] = {
    "0-d": lambda make: make(()),
    "empty": lambda make: make((3, 0, 2)),
    "one": lambda make: make((1,)),
    "odd": lambda make: make((3, 5)),
    "strided": lambda make: make((7, 6))[::2, 1::3],
    "reversed": lambda make: make((4, 3))[::-1, ::-2],
    "transposed": lambda make: make((2, 3, 4)).transpose(2, 0, 1),
    "broadcast": lambda make: np.broadcast_to(make((3, 1)), (2, 3, 4)),
    "offset": lambda make: make((5, 5))[1:, 2:],
    "unaligned": lambda make: unaligned(make((3, 5))),
    "read-only": lambda make: read_only(make((3, 5))),
}
