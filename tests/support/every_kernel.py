"""Runs every GPU kernel once on small arrays, for tools that watch each access (compute-sanitizer); see .ci/gpu.

`python tests/support/every_kernel.py 3/8` runs the third of eight shares, so that as many processes can work at once.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

import kfusion as kf
import reference

# Part of a warp, a warp, a block, a cluster and chunks of a cluster; whole slots of 16 bytes and not.
WIDTHS = (1, 3, 8, 17, 33, 64, 256, 1000, 1024, 1023, 4096, 9000, 40000, 131072, 600_000)
HOPPER = kf.device("cuda").compute_capability == "9.0"
WIDTHS_GENERATED = (1, 7, 17, 33, 256, 1023, 4096, 40000, 50257, 600_000)


@kf.fuse
def elements(x, p):
    return kf.gelu(x * p + 1), x > p


@kf.fuse
def rows(x, p):
    return kf.softmax(x + p), kf.layernorm(x, p), (x * p).sum(-1)


@kf.fuse
def weighted(x, p, q):
    return (kf.layernorm(x, p, q),)


@kf.fuse
def both(x, y):
    return kf.softmax(x * y), kf.layernorm(x + y)


@kf.fuse
def columns(x):
    return x - x.mean(0), kf.var(x, 0), x.max(0)


@kf.fuse
def across(x):
    return kf.softmax(x.T), kf.relu_layernorm(x.T, eps=1) * 2  # of few elements: a smaller eps would scale rounding up


@kf.fuse
def tiles(x, y):
    return kf.relu(x + y.T), y.T.sum(-1), y.T.max(0), kf.layernorm(x.T, y[0], y[0], eps=1)


@kf.fuse
def everything(x):
    return kf.sqrt((x * x).sum()), x.min(), (x > 0).all()


@kf.fuse
def joined(x, p):
    half = x.shape[-1] // 2
    turned = kf.concatenate((-x[:, half:], x[:, :half]), -1)
    return x + turned, kf.stack((x, x * p), -1), kf.concatenate((kf.softmax(x), kf.softmax(x, 0), p[None]))


# ---- products and attention ---------------------------------------------------------------------------------------


def activated(x, v, w, p):
    return kf.gelu(x @ w.T * p - p)


def with_results(x, v, w, p):
    y = x @ w.T
    return kf.relu(y), y + p, kf.where(p > 0, y, p)


def gates(x, v, w, p):
    return kf.silu(x @ v.T) * (x @ w.T)


def beside(x, v, w, p):
    return x @ v.T, kf.relu(x @ w.T)


def of_rows(x, v, w, p):
    y = x @ w.T
    return y.max(-1), kf.logsumexp(y, -1), kf.argmax(y, -1)


def of_columns(x, v, w, p):
    return kf.log1p(kf.relu(x @ w.T + p)).max(0)


def attended(q, k, v, b):
    return kf.softmax(q @ k.swapaxes(-1, -2) * 0.125) @ v


def capped(q, k, v, b):
    return kf.softmax(20 * kf.tanh(q @ k.swapaxes(-1, -2) / 20) + b) @ v


def causal(q, k, v, b):
    s = q @ k.swapaxes(-1, -2)
    i, j = kf.iota(s.shape[-2:], 0), kf.iota(s.shape[-2:], 1)
    return kf.softmax(kf.where(j <= i, s * 0.125, float("-inf"))) @ v


PRODUCTS = (activated, with_results, gates, beside, of_rows, of_columns)
ATTENTION = (attended, capped, causal)


def multiplied(dtype: type, extents: tuple[int, ...], function: Callable[..., Any]) -> None:
    """By the tensor cores, held to float64 on the CPU."""
    rng = np.random.default_rng()
    if function in ATTENTION:
        heads, queries, keys, numbers = extents
        shapes: tuple[tuple[int, ...], ...] = (
            (heads, queries, numbers), (heads, keys, numbers), (heads, keys, numbers), (heads, queries, keys),
        )  # fmt: skip
    else:
        rows, depth, cols = extents
        shapes = (rows, depth), (cols, depth), (cols, depth), (cols,)
    arrays = [rng.standard_normal(s).astype(dtype) for s in shapes]
    run = kf.FusedFunction(function, {"executors": ["tensor_cores", "tensor_core_attention", "cuda"]})
    got, want = run(*map(kf.to_device, arrays)), kf.fuse(function).unfused(*(a.astype(np.float64) for a in arrays))
    for one, wanted in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
        if one.dtype != "int64":  # of two numbers that are nearly alike either may be the largest
            close(run, dtype, extents, one.numpy(), np.asarray(wanted))


def relu_layernorm(dtype: type, cols: int, rows: int) -> None:
    rng = np.random.default_rng()
    x = rng.standard_normal((rows, cols)).astype(dtype)
    p = rng.standard_normal(cols).astype(dtype)
    for parameters in ((), (p, p.astype(np.float32))):
        want = reference.relu_layernorm(x, *parameters)
        for f in (kf.fused_relu_layernorm, kf.unfused_relu_layernorm):
            got = f(kf.to_device(x), *(kf.to_device(a) for a in parameters)).numpy().astype(np.float64)
            error = np.abs(got - want).max()
            assert error <= 100 * float(ml_dtypes.finfo(dtype).eps), (f.__name__, dtype, x.shape, error)


def generated(dtype: type, cols: int, height: int, f: kf.FusedFunction, arguments: str) -> None:
    """A function by the skeletons of cuda/device, held to what the CPU's executor makes of the same arrays."""
    rng = np.random.default_rng()
    x, y = (rng.standard_normal((height, cols)).astype(dtype) for _ in range(2))
    named = {"x": x, "y": y, "t": x.T, "p": rng.standard_normal(cols).astype(dtype)}
    named["q"] = rng.standard_normal(cols).astype(dtype)
    arrays = [named[a] for a in arguments]
    for version in (f, f.unfused):
        for got, want in zip(version(*map(kf.to_device, arrays)), version(*arrays), strict=True):
            close(f, dtype, x.shape, got.numpy(), np.asarray(want))


CALLS = (
    *((elements, "xp"), (rows, "xp"), (columns, "x"), (everything, "x"), (columns, "t")),
    *((across, "x"), (across, "t"), (tiles, "xt"), (joined, "xp")),
)


def close(f: kf.FusedFunction, dtype: type, shape: tuple[int, ...], got: np.ndarray, want: np.ndarray) -> None:
    if want.dtype == bool:
        assert (got == want).mean() > 0.99, (f, dtype, shape)
        return
    error = np.abs(got.astype(np.float64) - want.astype(np.float64)).max()
    scale = max(1.0, float(np.abs(want.astype(np.float64)).max()))
    assert error <= 100 * scale * float(ml_dtypes.finfo(dtype).eps), (f, dtype, shape, error)


def cases() -> Iterator[tuple[Callable[..., None], tuple]]:
    for case in itertools.product((np.float16, ml_dtypes.bfloat16, np.float32, np.float64), WIDTHS, (1, 3)):
        yield relu_layernorm, case
    for dtype, cols, (f, arguments) in itertools.product(
        (ml_dtypes.bfloat16, np.float32, np.float64), WIDTHS_GENERATED, CALLS
    ):
        yield generated, (dtype, cols, 3 if cols > 9000 else 33 if cols > 17 else 300, f, arguments)
    # So many rows of odd width that blocks keep their weights.
    for dtype, cols in itertools.product((np.float16, ml_dtypes.bfloat16), (101, 257, 1029, 1537, 4001)):
        yield generated, (dtype, cols, 2051, weighted, "xpq")
    for cols in (20_001, 50_257, 131_073):
        yield generated, (np.float32, cols, 150, weighted, "xpq")
    # So many long rows that blocks stay for several of them (not of 20 000 bfloat16, nor on the largest GPUs).
    for dtype, cols, f in itertools.product(
        (ml_dtypes.bfloat16, np.float32), (20_000, 50_000, 70_000, 131073), (rows, both)
    ):
        yield generated, (dtype, cols, 150, f, "xp" if f is rows else "xy")
    for dtype in (np.float16, ml_dtypes.bfloat16) if HOPPER else ():
        for shape, f in itertools.product(((1, 8, 8), (16, 512, 1000), (130, 72, 264), (300, 136, 520)), PRODUCTS):
            yield multiplied, (dtype, shape, f)
        for shape, f in itertools.product(((2, 65, 127, 64), (3, 1, 2300, 128), (1, 300, 304, 96)), ATTENTION):
            yield multiplied, (dtype, shape, f)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("share", nargs="?", default="1/1", help="K/N: the K-th of N shares (default: all)")
    k, n = map(int, parser.parse_args().share.split("/"))
    mine = list(itertools.islice(cases(), k - 1, None, n))
    for run, case in mine:
        run(*case)
    print(f"every kernel of {len(mine)} cases ran")


if __name__ == "__main__":
    main()
