"""Simple row kernels in Triton, as users write them: one program per row, in one block or, where long, in chunks."""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

_LARGEST_BLOCK = 16384  # elements of a row that one program holds; longer rows pass in chunks
_EPS = 1e-5


@triton.jit
def _norm_rows(x, y, weight, bias, stride, cols, eps, RELU: tl.constexpr, CENTRE: tl.constexpr, W: tl.constexpr,
               B: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < cols
    v = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        v = tl.maximum(v, 0.0)
    if CENTRE:
        v = tl.where(inside, v - tl.sum(v) / cols, 0.0)
    v *= 1.0 / tl.sqrt(tl.sum(v * v) / cols + eps)
    if W:
        v *= tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if B:
        v += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * cols + at, v, mask=inside)


@triton.jit
def _norm_long_rows(x, y, weight, bias, stride, cols, eps, RELU: tl.constexpr, CENTRE: tl.constexpr, W: tl.constexpr,
                    B: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    if CENTRE:
        for first in range(0, cols, BLOCK):
            at = first + tl.arange(0, BLOCK)
            v = tl.load(x + row * stride + at, mask=at < cols, other=0.0).to(tl.float32)
            if RELU:
                v = tl.maximum(v, 0.0)
            total += v
    mean = tl.sum(total) / cols
    squares = tl.zeros([BLOCK], tl.float32)
    for first in range(0, cols, BLOCK):
        at = first + tl.arange(0, BLOCK)
        v = tl.load(x + row * stride + at, mask=at < cols, other=0.0).to(tl.float32)
        if RELU:
            v = tl.maximum(v, 0.0)
        v = tl.where(at < cols, v - mean, 0.0)
        squares += v * v
    scale = 1.0 / tl.sqrt(tl.sum(squares) / cols + eps)
    for first in range(0, cols, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < cols
        v = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            v = tl.maximum(v, 0.0)
        v = (v - mean) * scale
        if W:
            v *= tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
        if B:
            v += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + row * cols + at, v, mask=inside)


@triton.jit
def _softmax_rows(x, y, stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + at, mask=at < cols, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v))
    tl.store(y + row * cols + at, e / tl.sum(e), mask=at < cols)


@triton.jit
def _softmax_long_rows(x, y, stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    highest = -float("inf")
    total = 0.0
    for first in range(0, cols, BLOCK):
        at = first + tl.arange(0, BLOCK)
        v = tl.load(x + row * stride + at, mask=at < cols, other=-float("inf")).to(tl.float32)
        new = tl.maximum(highest, tl.max(v))
        total = total * tl.exp(highest - new) + tl.sum(tl.exp(v - new))
        highest = new
    for first in range(0, cols, BLOCK):
        at = first + tl.arange(0, BLOCK)
        v = tl.load(x + row * stride + at, mask=at < cols, other=-float("inf")).to(tl.float32)
        tl.store(y + row * cols + at, tl.exp(v - highest) / total, mask=at < cols)


def of(name: str) -> Callable[..., Any]:
    """The kernel for a function of this name.

    Raises:
        TypeError: there is none.
    """
    norms = {"relu_layernorm": (True, True), "layernorm": (False, True), "rmsnorm": (False, False)}
    if name == "softmax":
        return _softmax
    if name not in norms:
        raise TypeError(f"no Triton kernel of {name} is written here")
    relu, centre = norms[name]
    return lambda x, weight=None, bias=None: _norm(x, weight, bias, relu, centre)


def _norm(x: Any, weight: Any, bias: Any, relu: bool, centre: bool) -> Any:
    y, cols, block, long = _prepared(x)
    kernel = _norm_long_rows if long else _norm_rows
    kernel[(x.shape[0],)](
        x, y, weight if weight is not None else x, bias if bias is not None else x, x.stride(0), cols, _EPS,
        RELU=relu, CENTRE=centre, W=weight is not None, B=bias is not None, BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip
    return y


def _softmax(x: Any) -> Any:
    y, cols, block, long = _prepared(x)
    kernel = _softmax_long_rows if long else _softmax_rows
    kernel[(x.shape[0],)](x, y, x.stride(0), cols, BLOCK=block, num_warps=_warps(block))
    return y


def _prepared(x: Any) -> tuple[Any, int, int, bool]:
    """The result, and how a row is taken.

    Raises:
        TypeError: the elements of a row are not contiguous.
    """
    if x.stride(-1) != 1:
        raise TypeError("these Triton kernels take rows of contiguous elements only")
    cols = x.shape[-1]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return y, cols, min(triton.next_power_of_2(cols), _LARGEST_BLOCK), cols > _LARGEST_BLOCK


def _warps(block: int) -> int:
    return min(max(block // 512, 1), 16)
