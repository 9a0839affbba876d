"""Long rows on a GPU: what copies bring into a stage must not overtake what is read from it."""

from __future__ import annotations

import time

import pytest

import kfusion as kf
from kinds import HAVE_GPU

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not (HAVE_GPU and torch.cuda.is_available()), reason="needs an NVIDIA GPU"),
]

SECONDS = 1.0  # some thousand runs: about one in a hundred had a row with elements of the next one


def scaled(x, w, b, g):
    y = kf.softmax(x * w)
    return y, y * g - b


def summed(x, w, b, g):
    y = kf.softmax(x * w)
    return y, kf.max(y * g - b, -1)


def layernorm(x, w, b, g):
    return (kf.layernorm(x, w, b),)


@pytest.mark.parametrize("function", [scaled, summed, layernorm])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [20_000, 20_002, 65_536])
def test_runs_agree_with_float64_and_with_one_another(function, dtype, columns):
    of = getattr(torch, dtype)
    x, g = (torch.randn(600, columns, device="cuda").to(of) for _ in range(2))
    w, b = (torch.randn(columns, device="cuda").to(of) for _ in range(2))
    fused = kf.fuse(function)
    first = [t.clone() for t in fused(x, w, b, g)]
    for got, want in zip(first, function(*(t.double() for t in (x, w, b, g))), strict=True):
        tolerance = 1e-5 if dtype == "float32" else 2e-2
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance * float(want.abs().max()))
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for one, other in zip(first, fused(x, w, b, g), strict=True):
            assert torch.equal(one, other)
