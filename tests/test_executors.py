"""Executors: who is asked, who is chosen, and what one for one pattern on one device takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core

N = 24
CPU = "EPYC-9654"
MATRIX = kf.spec((N, N))
ONE_BY_ONE = ["cpu", "array_library"]  # of a product and what follows it


@dataclass
class Toy:
    """Products of two matrices with a bias and a ReLU, on the CPU."""

    us: float = 1
    name: str = "toy"
    pattern: str = "matmul"
    known: Sequence[str] = ("matmul", "add", "relu")
    roofline: list[float] = field(default_factory=list)
    ran: int = 0

    def refusal(self, ops: list[str]) -> str | None:
        return None if ops == list(self.known[: len(ops)]) else f"computes no {'+'.join(ops)}"

    def price_us(self, ops: list[str], roofline_us: float) -> float:
        self.roofline.append(roofline_us)
        return self.us

    def run(self, arguments: list[np.ndarray], results: list[np.ndarray]) -> None:
        x, w, *bias = arguments
        (result,) = results
        result[...] = np.maximum(x @ w + bias[0], 0) if bias else x @ w
        self.ran += 1


@contextlib.contextmanager
def asked(toy: Toy) -> Iterator[Toy]:
    _core.testing.add_executor(toy)
    try:
        yield toy
    finally:
        _core.testing.remove_executor(toy.name)


def layer(x, w, b):
    return kf.relu(x @ w + b)


def matrices(rng, *shapes):
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def test_executors_are_listed():
    assert list(kf.executors(CPU)) == ["cpu", "cpu_products", "array_library"]
    assert kf.executors(CPU)["cpu_products"] == ("matmul", "attention", "contraction_reduction")
    assert kf.executors("H200")["cuda"] == ("pointwise", "rows", "columns", "full_reduction", "copy")
    assert kf.executors("H200")["tensor_cores"] == ("matmul", "contraction_reduction")
    assert "tensor_cores" not in kf.executors("A100 80GB")
    assert kf.executors("A100 80GB")["cublaslt"] == kf.executors("B200")["cublaslt"] == ("matmul",)
    assert "cublaslt" not in kf.executors("T4")
    assert kf.executors("H200")["array_library"] == ("matmul", "conv2d", "library_call")
    with asked(Toy()):
        assert kf.executors(CPU)["toy"] == ("matmul",)
        assert "toy" not in kf.executors("H200")
    assert "toy" not in kf.executors(CPU)


def test_the_planner_fuses_what_an_executor_runs():
    def f(x, w, b):
        return kf.tanh(layer(x, w, b))

    specs = (MATRIX, MATRIX, kf.spec((N,)))
    with asked(Toy()) as toy:
        p = kf.plan(f, *specs, device=CPU, executors=["toy", *ONE_BY_ONE])
        assert [(g.label, g.executor) for g in p.groups] == [("matmul+add+relu", "toy"), ("tanh", "cpu")]
        (refusal,) = p.refusals
        assert refusal.reason == kf.Reason.NOT_IMPLEMENTED
        assert "toy computes no matmul+add+relu+tanh" in refusal.sentence
        assert "array_library computes a matmul alone" in refusal.sentence
        assert p.groups[0].time_us == toy.us
        assert toy.us not in toy.roofline
        on_gpu = kf.plan(f, *specs, device="H200", executors="available")
        assert [g.executor for g in on_gpu.groups] == ["array_library", "cuda"]
    without = kf.plan(f, *specs, device=CPU, executors=ONE_BY_ONE)
    assert [(g.label, g.executor) for g in without.groups] == [("matmul", "array_library"), ("add+relu+tanh", "cpu")]


def test_the_cheapest_executor_runs_a_kernel():
    """A slow one takes nothing with it."""
    for us, chosen, of_layer in ((0.001, "toy", "toy"), (1e6, "array_library", "cpu_products")):
        with asked(Toy(us)):
            (group,) = kf.plan(lambda x, w: x @ w, MATRIX, MATRIX, device=CPU, executors="available").groups
            assert group.executor == chosen
            (possible,) = kf.plan(layer, MATRIX, MATRIX, kf.spec((N,)), device=CPU).groups
            assert (possible.executor, possible.missing) == (of_layer, "")
    with asked(Toy(us=1e6)):
        groups = kf.plan(layer, MATRIX, MATRIX, kf.spec((N,)), device=CPU, executors=["toy", *ONE_BY_ONE]).groups
        assert [(g.label, g.executor) for g in groups] == [("matmul", "array_library"), ("add+relu", "cpu")]
        (alone,) = kf.plan(layer, MATRIX, MATRIX, kf.spec((N,)), device=CPU, executors=["toy"]).groups
        assert alone.executor == "toy"


def test_a_kernel_runs_by_its_executor(rng):
    x, w, b = matrices(rng, (N, N), (N, N), (N,))
    expected = kf.fuse(layer)(x, w, b)
    with asked(Toy()) as toy:
        f = kf.fuse(layer)
        assert [g.executor for g in f.plan(x, w, b).groups] == ["toy"]
        np.testing.assert_array_equal(f(x, w, b), expected)
        np.testing.assert_array_equal(f(x[::-1], w.T, b), kf.relu(x[::-1] @ w.T + b))  # views: strides of any sign
        out = np.empty((N, N), np.float32)
        assert f(x, w, b, out=out) is out
        np.testing.assert_array_equal(out, expected)
        assert toy.ran == 3


def test_values_between_executors(rng):
    """Kernels of other executors run before and after."""

    def f(x, w, b):
        return kf.softmax(layer(kf.exp(x), w, b), -1)

    x, w, b = matrices(rng, (N, N), (N, N), (N,))
    expected = kf.fuse(f)(x, w, b)
    with asked(Toy()) as toy:
        fused = kf.fuse(f)
        assert [g.executor for g in fused.plan(x, w, b).groups] == ["cpu", "toy", "cpu"]
        np.testing.assert_allclose(fused(x, w, b), expected, rtol=1e-5)  # other kernels add up rows in another order
        assert toy.ran == 1


def test_what_fails_or_is_refused(rng):
    class Failing(Toy):
        def run(self, arguments, results):
            raise ArithmeticError("toy")

    with asked(Failing()):
        f = kf.fuse(layer)
        with pytest.raises(ArithmeticError, match="toy"):
            f(*matrices(rng, (N, N), (N, N), (N,)))
    for executors, message in (
        (["cpu"], "a kernel of this plan cannot run: no executor has kernels for matmul"),
        (None, "executors must be named"),
    ):
        with pytest.raises(ValueError, match=message):
            kf.FusedFunction(lambda x, w: x @ w, {"executors": executors})(*matrices(rng, (N, N), (N, N)))
    with asked(Toy()), pytest.raises(ValueError, match="there is an executor 'toy' already"):
        _core.testing.add_executor(Toy())
    for name in ("cpu", "toy"):
        with pytest.raises(ValueError, match=f"no executor '{name}' was added"):
            _core.testing.remove_executor(name)
    with pytest.raises(ValueError, match="there is no pattern 'products'"):
        _core.testing.add_executor(Toy(pattern="products"))
