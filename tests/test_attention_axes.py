"""Around products and attention, strides tell axes apart: also where extents, or products of extents, coincide."""

from __future__ import annotations

import numpy as np
import pytest

import kfusion as kf
from cpu_products import poisoned, require_blas  # noqa: F401

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.native
require_blas()

# batches, heads, queries, keys, and the axes of an array that has as many elements as there are rows of scores
COINCIDING = [(2, 2, 3, 4, (2, 3)), (1, 4, 3, 4, (2, 3)), (3, 4, 5, 4, (0, 2, 3)), (2, 3, 4, 4, (1, 3)),
              (2, 4, 4, 4, (2, 3)), (8, 8, 8, 8, (0, 3)), (1, 3, 5, 15, (3,)), (2, 3, 1, 6, (3,))]  # fmt: skip
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def by_bytes(f):
    """By every kernel that there is, whatever it is predicted to take."""
    return kf.FusedFunction(f, {"executors": "available", "by_time": False})


def along(shape, axes):
    return tuple(e if a in axes else 1 for a, e in enumerate(shape))


def distances(of):
    """A small map that is made where it is read, along the axes of more than one element."""
    axes = [a for a, e in enumerate(of.shape) if e > 1]
    places = [torch.arange(of.shape[a]).view([-1 if d == a else 1 for d in range(of.ndim)]) for a in axes]
    return (sum(places[1:]) - 2 * places[0]).abs()


def biased(q, k, v, of, number):
    return torch.softmax(q @ k.transpose(-1, -2) - number * distances(of), -1) @ v


def reduced(q, k, v, of, number):
    scores = q @ k.transpose(-1, -2) - number * distances(of)
    return scores.amax(-1), (scores * (of + 1)).sum(-2)


def multiplied(q, k, v, of, number):
    return torch.relu(q @ k.transpose(-1, -2) + number * distances(of)) + torch.tanh(of)


@pytest.mark.parametrize("extents", COINCIDING)
@pytest.mark.parametrize("f", [biased, reduced, multiplied])
@pytest.mark.parametrize("dtype", DTYPES)
def test_small_maps(f, extents, dtype):
    b, h, s, t, axes = extents
    others = set(range(4)) - set(axes)
    shapes = (b, h, s, 8), (b, h, t, 8), (b, h, t, 8), along((b, h, s, t), axes), along((b, h, s, t), others)
    torch.manual_seed(0)
    tensors = [torch.randn(shape).to(dtype) for shape in shapes]
    want = f(*(x.double() for x in tensors))
    for run in (kf.fuse(f), by_bytes(f)):
        for got, exact in zip(*(r if isinstance(r, tuple) else (r,) for r in (run(*tensors), want)), strict=True):
            assert (got.double() - exact).abs().max() <= 16 * torch.finfo(dtype).eps * (1 + exact.abs().max())


@pytest.mark.parametrize(("heads", "keys"), [(3, 2), (2, 2), (16, 16), (32, 32)])
@pytest.mark.parametrize("times", [lambda i, j, m: (i[:, None] - j[None, :]).abs(), lambda i, j, m: m])
def test_slopes_of_heads(heads, keys, times):
    torch.manual_seed(heads)
    q, k, v = torch.randn(1, heads, keys, 32), torch.randn(1, heads, keys, 32), torch.randn(1, heads, keys, 32)
    slopes, m = torch.rand(heads) + 0.5, torch.randn(keys, keys)

    def f(q, k, v, slopes, m):
        of = times(torch.arange(keys), torch.arange(keys), m)
        return torch.softmax((q @ k.transpose(-1, -2)).to(slopes.dtype) * 0.18 - slopes[:, None, None] * of, -1) @ v

    want = f(*(x.double() for x in (q, k, v, slopes, m)))
    assert (kf.fuse(f)(q, k, v, slopes, m) - want).abs().max() < 1e-5


def test_batches_of_jax(rng):
    jax = pytest.importorskip("jax")
    shapes = (2, 2, 3, 8), (2, 2, 4, 8), (2, 2, 4, 8), (2, 2, 1, 1)
    q, k, v, number = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)

    def one(q, k, v, number):
        i, j = kf.iota((3, 4), 0), kf.iota((3, 4), 1)
        return kf.softmax(q @ k.swapaxes(-1, -2) - number * kf.absolute(i - j).astype(q.dtype)) @ v

    got = jax.vmap(jax.vmap(kf.fuse(one)))(q, k, v, number)
    assert np.abs(np.asarray(got) - one(*(a.astype(np.float64) for a in (q, k, v, number)))).max() < 1e-5


def test_positions_along_axes_of_one_element(rng):
    q, k, v = (rng.standard_normal((2, 3, 4, 8)).astype(np.float32) for _ in range(3))

    def f(q, k, v):
        of = kf.iota((1, 3, 1, 4), 0) * 3 + kf.iota((1, 3, 1, 4), 3) * 5
        return kf.softmax(q @ k.swapaxes(-1, -2) - of.astype(q.dtype)) @ v

    run = kf.fuse(f)
    assert np.abs(run(q, k, v) - f(*(a.astype(np.float64) for a in (q, k, v)))).max() < 1e-5
    assert kf.Plan.from_json(run.plan(q, k, v).to_json()).groups


@pytest.mark.parametrize("last", [lambda p: p @ p, lambda p: p @ p.swapaxes(-1, -2), lambda p: p.swapaxes(-1, -2) @ p])
def test_weights_as_both_factors(rng, last):
    q, k = rng.standard_normal((2, 3, 5, 8)), rng.standard_normal((2, 3, 5, 8))
    f = lambda q, k: last(kf.softmax(q @ k.swapaxes(-1, -2)))  # noqa: E731
    for run in (kf.fuse(f), by_bytes(f)):
        assert np.allclose(run(q, k), f(q, k), rtol=1e-12)
        assert not any(g.kind == "attention" for g in run.plan(q, k).groups)


def test_weights_as_the_second_factor(rng):
    q, k, v = (rng.standard_normal(s) for s in ((2, 5, 8), (2, 4, 8), (2, 4, 3)))
    f = lambda q, k, v: v.swapaxes(-1, -2) @ kf.softmax(q @ k.swapaxes(-1, -2)).swapaxes(-1, -2)  # noqa: E731
    for run in (kf.fuse(f), by_bytes(f)):
        assert np.allclose(run(q, k, v), f(q, k, v), rtol=1e-12)
