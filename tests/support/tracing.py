"""Helpers for tests of tracing: a traced function executed, and compared with the function itself."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import kfusion as kf
from kfusion import _core
from kfusion._tracing.trace import trace


def run(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """f's result on arrays, computed by the reference interpreter from f's graph."""
    traced = trace(f, *args, **kwargs)
    traced.graph.verify()
    return traced.returned(_core.run_graph(traced.graph, [i.array for i in traced.inputs], traced.name))


class Traces:
    """Counts the traces of a function that calls it, in a file, which no trace looks into."""

    def __init__(self) -> None:
        self._file, name = tempfile.mkstemp()
        os.unlink(name)

    def __call__(self) -> None:
        os.write(self._file, b".")

    def __len__(self) -> int:
        return os.fstat(self._file).st_size

    def __del__(self) -> None:
        os.close(self._file)


def counting(body: Any) -> Any:
    """The body, fused, with the number of its traces in `.count`."""
    count = Traces()

    def function(*args: Any, **kwargs: Any) -> Any:
        count()
        return body(*args, **kwargs)

    fused: Any = kf.fuse(function)
    fused.count = count
    return fused


def plain(x: Any) -> np.ndarray:
    """Any array, bfloat16 ones too, as a NumPy array of a dtype that holds its values."""
    if type(x).__module__.partition(".")[0] == "torch":
        return x.detach().double().numpy() if x.dtype.is_floating_point else x.detach().numpy()
    return x


def assert_same(got: Any, expected: Any, rtol: float = 1e-5) -> None:
    """Requires one structure, kinds of array, dtypes and shapes, and values within rtol."""
    assert type(got) is type(expected) or isinstance(got, np.generic | np.ndarray)
    if isinstance(expected, (tuple, list)):
        assert len(got) == len(expected)
        for g, e in zip(got, expected, strict=True):
            assert_same(g, e, rtol)
    elif isinstance(expected, (bool, int, float, str)):
        assert got == expected
    else:
        assert got.dtype == expected.dtype
        assert tuple(got.shape) == tuple(expected.shape)
        np.testing.assert_allclose(plain(got), plain(expected), rtol=rtol, atol=rtol)
