"""Writes that change the data of a tensor, and not its gradients: under no_grad, and through .detach() or .data."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import kfusion as kf
from sweeps import sweep

torch = pytest.importorskip("torch")

WRITES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "an item": lambda y, x, w: y.__setitem__(0, 7.0),
    "a row of values": lambda y, x, w: y.__setitem__(slice(1, 3), x[0]),
    "a mask": lambda y, x, w: y.__setitem__(y > 0.5, 0.25),
    "indices": lambda y, x, w: y.__setitem__([0, 2], w[:2]),
    "add_": lambda y, x, w: y.add_(1),
    "add_ of values": lambda y, x, w: y.add_(x * w),
    "+=": lambda y, x, w: y.__iadd__(w),
    "/=": lambda y, x, w: y.__itruediv__(2),
    "zero_ of a view": lambda y, x, w: y[:1].zero_(),
    "mul_ of a transposed view": lambda y, x, w: y.T[1:].mul_(x.T[1:]),
    "clamp_": lambda y, x, w: y.clamp_(max=0.5),
    "copy_": lambda y, x, w: y.copy_(w),
    "copy_ of what is rounded": lambda y, x, w: y.copy_(y.round()),
    "masked_fill_": lambda y, x, w: y.masked_fill_(x > 0, -1.0),
    "index_fill_": lambda y, x, w: y.index_fill_(0, torch.tensor([1]), 2.0),
    "erfinv_": lambda y, x, w: y.clamp_(-0.5, 0.5).erfinv_(),
    "fill_diagonal_": lambda y, x, w: y.fill_diagonal_(3.0),
    "two writes": lambda y, x, w: y.add_(w)[1:].mul_(2),
}


def off(write: Callable[..., Any], y: Any, x: Any, w: Any) -> None:
    with torch.no_grad():
        write(y, x, w)


PLACES: dict[str, Callable[..., Any]] = {
    "no_grad": off,
    "detach": lambda write, y, x, w: write(y.detach(), x.detach(), w.detach()),
    "data": lambda write, y, x, w: write(y.data, x.data, w.data),
    "a part of data": lambda write, y, x, w: write(y[:4].data[1:], x.data[1:4], w.data[1:4]),
    "no_grad and data": lambda write, y, x, w: off(write, y.data, x, w),
}


def of_results(function: Callable[..., Any], requires: tuple[bool, bool], seed: int) -> list[Any]:
    torch.manual_seed(seed)
    x, w, g = (torch.randn(5, 3, dtype=torch.float64) for _ in range(3))
    x.requires_grad_(requires[0]), w.requires_grad_(requires[1])
    y = function(x, w)
    y.backward(g)
    return [y.detach(), x.grad, w.grad]


def require_same(function: Callable[..., Any]) -> None:
    fused = kf.fuse(function)
    for seed, requires in enumerate([(True, True), (True, False), (False, True), (True, True)]):
        for got, expected in zip(of_results(fused, requires, seed), of_results(function, requires, seed), strict=True):
            assert (got is None) == (expected is None)
            if expected is not None:
                torch.testing.assert_close(got, expected)


def test_gradients_pass_to_what_was_there_before(some: Any) -> None:
    def check(place: str, write: str) -> None:
        def function(x: Any, w: Any) -> Any:
            y = torch.sin(x * w) + x
            PLACES[place](WRITES[write], y, x, w)
            return y * w + y[1:].sum(0)

        def of_a_constant(x: Any, w: Any) -> Any:
            y = torch.full((5, 3), 0.125, dtype=torch.float64)
            off(WRITES[write], y, x, w)
            return y * w + w * x

        require_same(function)
        if place == "no_grad":
            require_same(of_a_constant)

    sweep(check, some(itertools.product(PLACES, WRITES), 8))


def test_views_from_before_and_what_was_computed_before() -> None:
    def function(x: Any, w: Any) -> Any:
        y = x * w
        row, turned, fixed, before = y[0], y.T, y.detach(), y + w
        with torch.no_grad():
            y.mul_(2)
            total = turned.sum()  # which looks at the view without gradients
        return before + y * row + turned.T.exp() * fixed + total

    require_same(function)


def test_what_is_detached_stays_so_after_a_write() -> None:
    def function(x: Any, w: Any) -> Any:
        y = x * w
        fixed = y.detach()
        part = fixed[1:]
        fixed[0] = 3
        y = y + 0
        return fixed * w + part.sum() * x + y

    require_same(function)


def test_gradients_written_to_data_are_refused() -> None:
    for of in (lambda y: y.detach(), lambda y: y.data, lambda y: y.data[:2]):

        def function(x: Any, w: Any) -> Any:
            y = torch.zeros(5, 3, dtype=torch.float64) + x
            of(y).add_((x * w)[: len(of(y))])  # noqa: B023
            return y * w

        with pytest.raises(kf.TraceError, match=r"written to what .detach\(\) or .data gives"):
            of_results(kf.fuse(function), (True, True), 0)


def test_gradients_of_kfusion() -> None:
    def loss(x: Any, w: Any) -> Any:
        y = x * w
        with torch.no_grad():
            y[0] = 2
        return (y * w).sum()

    x, w = (torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    got = kf.grad(loss, argnums=(0, 1))(x.detach(), w.detach())
    for g, expected in zip(got, torch.autograd.grad(loss(x, w), (x, w)), strict=True):
        torch.testing.assert_close(g, expected)
