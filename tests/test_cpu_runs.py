"""Long rows on the CPU that lie in runs, as a channel's elements of several images do: each run is read and written
where it lies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from graph_runs import wide
from kinds import np_dtype
from layouts import Layout, laid_out

pytestmark = pytest.mark.native

# Images, channels, elements of a run: around a tile, a chunk, and lines that runs share; the first has no runs.
SHAPES = [
    (40, 3, 255),
    (17, 2, 256),
    (19, 3, 257),
    (5, 2, 1000),
    (2, 3, 4096),
    (3, 2, 4097),
    (2, 2, 9001),
    (33, 1, 300),
]
RELATIVE = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
EPS = 1e-5


def axes_of(x: Any) -> dict[str, Any]:
    return {"axis": (0, 2), "keepdims": True}


def norm(x: Any, g: Any, w: Any) -> Any:
    centred = x - x.mean(**axes_of(x))
    return centred / np.sqrt((centred * centred).mean(**axes_of(x)) + EPS) * w


def gradient(x: Any, g: Any, w: Any) -> Any:
    """The gradient of the norm: several sums, of two arrays."""
    centred = x - x.mean(**axes_of(x))
    scale = 1 / np.sqrt((centred * centred).mean(**axes_of(x)) + EPS)
    y, given = centred * scale, g * w
    dx = scale * (given - given.mean(**axes_of(x)) - y * (given * y).mean(**axes_of(x)))
    return dx, (g * y).sum(**axes_of(x))


def softmax(x: Any, g: Any, w: Any) -> Any:
    """The sum of exponentials about each chunk's own maximum."""
    e = np.exp(x - x.max(**axes_of(x)))
    return e / e.sum(**axes_of(x)), np.tanh(x) * g


def sums(x: Any, g: Any, w: Any) -> Any:
    return (x * g).sum(**axes_of(x)), x.max(**axes_of(x)), (x + g).mean(**axes_of(x))


# The order of the axes in memory, and the step along each.
ORDERS: dict[str, Layout] = {
    "dense": ([0, 1, 2], [1, 1, 1]),
    "backwards": ([0, 1, 2], [-1, 1, 1]),
    "channels first": ([1, 0, 2], [1, 1, 1]),
    "channels last": ([0, 2, 1], [1, 1, 1]),
}
LAYOUTS = (*ORDERS, "gaps")


def of_images(x: np.ndarray, layout: str) -> np.ndarray:
    """The array, lying otherwise; with gaps behind runs, these begin at any address."""
    if layout in ORDERS:
        return laid_out(x, ORDERS[layout])
    n, c, r = x.shape
    view = np.full((n, c + 1, r + 3), 77, x.dtype)[:, 1:, 2 : r + 2]
    view[...] = x
    return view


def checked(function: Callable[..., Any], arrays: list[np.ndarray], dtype: str, **out: Any) -> None:
    with np.errstate(all="ignore"):
        want = function(*(wide(a).astype(np.float64) for a in arrays))
        got = kf.fuse(function)(*arrays, **out)
    for g, w in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
        rounded = math.sqrt(arrays[0].size / w.size)  # a sum that cancels has the roundings of all its elements
        scale = np.abs(w).max(initial=rounded, where=np.isfinite(w))
        np.testing.assert_allclose(wide(g).astype(np.float64), w, rtol=RELATIVE[dtype], atol=RELATIVE[dtype] * scale)


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    return [
        a.astype(np_dtype(dtype))
        for a in (rng.normal(2, 3, shape), rng.normal(size=shape), rng.normal(size=(shape[1], 1)))
    ]


@pytest.mark.parametrize("function", [norm, gradient, softmax, sums])
@pytest.mark.parametrize("dtype", RELATIVE)
def test_sizes(function, dtype, isa, rng):
    for shape in SHAPES:
        checked(function, drawn(rng, shape, dtype), dtype)


@pytest.mark.parametrize("function", [norm, gradient, softmax, sums])
def test_layouts(function, rng):
    for of_x in LAYOUTS:
        for of_g in LAYOUTS:
            x, g, w = drawn(rng, (7, 3, 700), "float32")
            checked(function, [of_images(x, of_x), of_images(g, of_g), w], "float32")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_into_an_array(layout, rng):
    arrays = drawn(rng, (7, 3, 700), "float32")
    out = of_images(np.full((7, 3, 700), np.nan, np.float32), layout)
    checked(norm, arrays, "float32", out=out)
    rest = out.base if out.base is not None else out
    assert np.count_nonzero(rest == 77) == rest.size - out.size


def test_in_place(rng):
    x, g, w = drawn(rng, (7, 3, 700), "float32")
    want = kf.fuse(norm)(x, g, w)
    x = of_images(x, "gaps")
    kf.fuse(norm)(x, g, w, out=x)
    np.testing.assert_array_equal(x, want)


def test_one_row_by_several_threads(rng):
    arrays = drawn(rng, (96, 1, 9001), "float32")
    checked(gradient, arrays, "float32")


def test_not_finite(rng):
    x, g, w = drawn(rng, (7, 3, 700), "float32")
    x[3, 1, 500], g[6, 2, 699] = np.nan, np.inf
    got = kf.fuse(sums)(x, g, w)
    with np.errstate(all="ignore"):
        want = sums(x.astype(np.float64), g, w)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("function", [norm, gradient, softmax, sums])
def test_the_same_bits_on_any_threads_and_among_any_channels(function, threads, rng):
    """Chunks depend on where a row's elements lie, not on threads or other rows."""
    x, g, w = drawn(rng, (9, 4, 1000), "float32")
    fused = kf.fuse(function)
    threads(1)
    whole = fused(x, g, w)
    for n in (2, 3, 5):
        threads(n)
        for c in range(3):
            both = slice(c, c + 2)
            part = fused(x[:, both], g[:, both], w[both])
            for alone, among in zip(*(r if isinstance(r, tuple) else (r,) for r in (part, whole)), strict=True):
                np.testing.assert_array_equal(alone, among[:, both])
