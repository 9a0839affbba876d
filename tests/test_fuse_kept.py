"""`kf.fuse`: what is kept of a call for the next one, and when a function is traced again."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from test_fuse import counting

pytestmark = pytest.mark.native


def test_a_signature_is_traced_once(rng):
    f = counting(lambda x, n=2: x * n)
    for _ in range(3):
        f(rng.standard_normal(4))
    assert len(f.count) == 1
    f(rng.standard_normal(5))  # shape
    f(rng.standard_normal(4).astype(np.float32))  # dtype
    f(rng.standard_normal(8)[::2])  # strides
    f(rng.standard_normal(4), n=3)  # a value
    f(rng.standard_normal(4), n=True)  # equal to 1, but no integer
    assert len(f.count) == 6
    f(rng.standard_normal(4), n=3)
    assert len(f.count) == 6


@pytest.mark.parametrize("f", [kf.fuse(lambda x: x * 2 + 1), kf.fused_relu_layernorm], ids=["fuse", "own"])
def test_arguments_are_not_kept(f):
    """Not even until Python looks for cycles: they may be all that a GPU holds."""

    torch = pytest.importorskip("torch")
    gc.disable()
    try:
        for _ in range(2):
            x = torch.ones(3, 4)
            alive = weakref.ref(x)
            f(x)
            del x
            assert alive() is None
    finally:
        gc.enable()


def test_floats_are_read_when_the_kernels_run(rng):
    f = counting(lambda x, a, b=0.5: x * a + b)
    x = rng.standard_normal(5)
    with np.errstate(invalid="ignore"):
        for a in (0.1, 0.2, float("nan"), float("inf"), -0.0):
            np.testing.assert_array_equal(f(x, a), x * a + 0.5)
            np.testing.assert_array_equal(f(x, a, 2 * a), x * a + 2 * a)
    assert len(f.count) == 2


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_are_rounded_to_what_they_meet(dtype, rng):
    f = counting(lambda x, a: x + a)
    x = rng.standard_normal(5).astype(dtype)
    for a in (0.1, 1 / 3, 1e-9):
        np.testing.assert_array_equal(f(x, a), x + np.dtype(dtype).type(a))
    assert len(f.count) == 1


def test_numpy_s_floats_keep_their_dtype(rng):
    f = counting(lambda x, a: x + a)
    x = rng.standard_normal(5).astype(np.float32)
    for a in (0.1, 0.7):
        assert f(x, a).dtype == np.float32
        assert f(x, np.float64(a)).dtype == np.float64
        np.testing.assert_array_equal(f(x, np.float64(a)), x + np.float64(a))
        np.testing.assert_array_equal(f(x, np.float32(a)), x + np.float32(a))
    assert len(f.count) == 3


LOOKS = {
    "compares": lambda x, a: x * 2 if a > 0 else x,
    "computes": lambda x, a: x * (1 - a),
    "converts": lambda x, a: x * float(a),
    "formats": lambda x, a: {f"{a:.1f}": x + 1}[f"{a:.1f}"],
    "calls": lambda x, a: x * np.sqrt(abs(a)),
    "powers": lambda x, a: x**a,
    "isinstance": lambda x, a: x * (2 if isinstance(a, float) else 3),
    "array": lambda x, a: x * np.full(5, a),
    "returns": lambda x, a: (x + 1, a),
    "hashes": lambda x, a: x * {0.5: 1, 2.0: 7, -1.0: 5}[a],
    "list": lambda x, a: x * sorted([a, 0.7])[0],
}


@pytest.mark.parametrize("body", LOOKS.values(), ids=LOOKS.keys())
def test_floats_that_the_function_looks_at(body, rng):
    f = counting(body)
    x = rng.uniform(1, 2, 5)
    for a in (0.5, 2.0, -1.0, 0.5, 2.0):
        np.testing.assert_equal(f(x, a), body(x, a))
    assert len(f.count) <= 2 * 3  # a trace may fail on what stands for a float first


def test_a_branch_may_look_at_more(rng):
    def body(x, a, b):
        return x * (1 + b) if a > 0 else x * b

    f, x = counting(body), rng.standard_normal(5)
    for a in (-1.0, 1.0, -2.0, 2.0):
        for b in (0.1, 0.2):
            np.testing.assert_array_equal(f(x, a, b), body(x, a, b))
    before = len(f.count)
    for a in (-1.0, 1.0):
        for b in (0.1, 0.2):
            np.testing.assert_array_equal(f(x, a, b), body(x, a, b))
    assert len(f.count) == before


def test_many_floats(rng):
    x = rng.standard_normal(3)
    f = counting(lambda x, values: x + sum((x * v for v in values), 0.0))
    for last in (1.0, 2.0):
        values = [*np.arange(70.0).tolist(), last]
        np.testing.assert_allclose(f(x, values), x + x * sum(values))


def test_a_function_forgets_what_it_has_not_used():
    f = counting(lambda x, n: x + n)
    x = np.ones(2)
    for n in range(1100):
        assert f(x, n)[0] == 1 + n
    assert f._cached() <= 512
    traced = len(f.count)
    f(x, 1099)
    assert len(f.count) == traced


def test_functions_are_collected_with_their_globals():
    scope: dict[str, Any] = {"kf": kf}
    exec("W = __import__('numpy').ones(3)\n@kf.fuse\ndef f(x):\n    return x * W", scope)
    f = scope["f"]
    f(np.ones(3))
    gone = weakref.ref(f)
    del scope, f
    gc.collect()
    assert gone() is None


def test_equal_functions_share_executables(rng):
    x = rng.standard_normal((64, 64))
    for _ in range(3):  # a notebook's cell, run again

        @kf.fuse
        def cell(x):
            return kf.softmax(x * 3) + 1

        np.testing.assert_allclose(cell(x), kf.softmax(x * 3) + 1, rtol=1e-14)


def test_eager_functions_are_traced_once(rng):
    x = rng.standard_normal((3, 4))
    for _ in range(2):
        np.testing.assert_array_equal(kf.relu(x), np.maximum(x, 0))
        np.testing.assert_allclose(kf.softmax(x, axis=0).sum(0), np.ones(4))
        np.testing.assert_array_equal(kf.add(x, 0.25), x + 0.25)
        np.testing.assert_array_equal(kf.add(0.5, x), x + 0.5)


def test_eight_threads(rng):
    xs = [rng.standard_normal((50, n)) for n in range(40, 48)]

    @kf.fuse
    def f(x, scale):
        return kf.softmax(x * scale), x.sum(0)

    expected = [(kf.softmax(x * 0.5), x.sum(0)) for x in xs]
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    def work(first: int) -> None:
        try:
            start.wait()
            for k in range(100):
                i = (first + k) % 8
                for got, want in zip(f(xs[i], 0.5), expected[i], strict=True):
                    np.testing.assert_allclose(got, want, rtol=1e-12)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
