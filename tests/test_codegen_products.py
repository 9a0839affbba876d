"""What the generated structs of products that are reduced compute, on a host that plays the skeleton."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

import kfusion as kf
import reference_ops
from host_cuda import HAVE_COMPILER, compiled
from kfusion import _core

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAVE_COMPILER, reason="needs g++")]

# Launches that cost much: so one kernel is taken whatever its shape is.
DEVICE = {**kf.device("H200").to_dict(), "launch_us": 1e4}
ROWS, DEPTH, COLS = 9, 16, 1003


def piece(header: str, start: str, end: str) -> str:
    text = header[header.index(start) :]
    return text[: text.index(end) + len(end)]


class Run:
    """A function of float16 matrices x and w, and other arrays, as the struct of its one kernel computes it."""

    def __init__(self, folder: Path, f, *arrays: np.ndarray) -> None:
        self.arrays, graph = arrays, kf.trace(f, *arrays)
        (self.kernel,) = _core.cuda_kernels(graph, DEVICE, names=False)
        assert isinstance(self.kernel, _core.ContractionKernel)
        self.lowered = _core.testing.lower(graph, DEVICE, possible=True)
        (self.loops,) = self.lowered["kernels"]
        self.function = self.compile(folder)

    def compile(self, folder: Path):
        headers = _core.cuda_headers()
        point = piece(headers["device/contract.cuh"], "struct Point {", "};")
        elements = piece(headers["device/contract_reduced.cuh"], "template <bool kWhole, int kPairs>\nKF_DEVICE", "\n}")
        source = self.kernel.source
        struct = source[source.index("struct Parameters") : source.index("using Tiling")]
        text = f"""#include "host_cuda.hpp"
#include "device/contract_memory.cuh"
namespace kfusion::device {{
{point}
{elements}
}}
#include "host_products.hpp"
namespace kfusion::device::scalar {{
{struct}
}}
extern "C" void run(const void* p, const float* product, int rows, int cols, int parts) {{
  host::reduce<kfusion::device::scalar::Fused>(p, product, rows, cols, parts);
}}"""
        return compiled(folder, text).run

    def __call__(self, parts: int) -> list[np.ndarray]:
        x, w = (a.astype(np.float64) for a in self.arrays[:2])
        product = x @ w.T
        _, rows, cols, _ = self.loops["axes"]
        along_rows = list(self.loops["reduced"]) == [rows]
        product = np.ascontiguousarray(product.T if along_rows else product, dtype=np.float32)
        nodes = self.lowered["graph"]["nodes"]
        given = dict(zip("xwtc", self.arrays, strict=True))
        inputs = {i: given[n["name"]] for i, n in enumerate(nodes) if n["op"] == "input"}
        results = {s["to"]["node"]: np.full(cols if along_rows else rows, 77, nodes[s["to"]["node"]]["dtype"])
                   for s in self.loops["stores"]}  # fmt: skip
        loads = [inputs[o["node"]].ctypes.data if o["node"] in inputs else 0 for o in self.loops["loads"]]
        stores = [results[s["to"]["node"]].ctypes.data for s in self.loops["stores"]]
        parameters = self.kernel.epilogue(loads, stores)
        self.function(ctypes.c_char_p(parameters), product.ctypes.data_as(ctypes.c_void_p), *product.shape, parts)
        return [results[o["base"]] for o in self.lowered["outputs"]]


def losses(y, t, weight=None, smoothing=0.0):
    log = y - y.max(-1, keepdims=True)
    log -= np.log(np.exp(log).sum(-1, keepdims=True))
    w = np.ones(y.shape[-1]) if weight is None else weight.astype(float)
    own = -log[np.arange(len(y)), np.maximum(t, 0)] * w[np.maximum(t, 0)]
    return np.where(t < 0, 0, (1 - smoothing) * own - smoothing * (log * w).mean(-1))


def dropped(y):
    bits = reference_ops.MAPS["philox"](np.arange(y.size), 0, 4).reshape(y.shape)
    return np.where(bits < 2**31, 2 * y, 0 * y)


def dropped_by_row(y, t):
    bits = reference_ops.MAPS["philox"](np.arange(y.shape[-1]), t[:, None], 4)
    return np.where(bits < 2**31, y, 0)


def product(x, w):
    return (x @ w.T).astype("float32")


def entropy(weighted, smoothing):
    return lambda x, w, t, c: kf.cross_entropy(product(x, w), t, weight=c if weighted else None, ignore_index=-100,
                                               label_smoothing=smoothing, reduction="none")  # fmt: skip


# Function, and what it gives of the product and the other arrays in float64.
CASES = {
    "argmax": (lambda x, w, t, c: kf.argmax(x @ w.T, -1), lambda y, t, c: [y.argmax(-1)]),
    "argmin": (lambda x, w, t, c: kf.argmin(x @ w.T, -1), lambda y, t, c: [y.argmin(-1)]),
    "argmax along rows": (lambda x, w, t, c: kf.argmax(x @ w.T, 0), lambda y, t, c: [y.argmax(0)]),
    "argmax of clipped": (lambda x, w, t, c: kf.argmax(kf.relu(x @ w.T), -1), lambda y, t, c: [y.clip(0).argmax(-1)]),
    "top 1": (lambda x, w, t, c: ((y := product(x, w)).max(-1), kf.argmax(y, -1)),
              lambda y, t, c: [y.max(-1), y.argmax(-1)]),
    "variance": (lambda x, w, t, c: kf.var(product(x, w), axis=-1), lambda y, t, c: [y.var(-1)]),
    "variance along rows": (lambda x, w, t, c: kf.var(product(x, w), axis=0), lambda y, t, c: [y.var(0)]),
    "around a large mean": (lambda x, w, t, c: ((y := product(x, w) + 1000).mean(-1), kf.std(y, axis=-1)),
                            lambda y, t, c: [y.mean(-1) + 1000, y.std(-1)]),
    "dropout": (lambda x, w, t, c: kf.dropout(product(x, w), 0.5, seed=4).max(-1),
                lambda y, t, c: [dropped(y).max(-1)]),
    "dropout along rows": (lambda x, w, t, c: kf.dropout(product(x, w), 0.5, seed=4).max(0),
                           lambda y, t, c: [dropped(y).max(0)]),
    "random words by row": (
        lambda x, w, t, c: kf.where(kf.philox(kf.iota((ROWS, COLS)), t[:, None], 4) < 2**31, product(x, w), 0).max(-1),
        lambda y, t, c: [dropped_by_row(y, t).max(-1)]),
    "loss": (entropy(False, 0.0), lambda y, t, c: [losses(y, t)]),
    "weighted loss": (entropy(True, 0.0), lambda y, t, c: [losses(y, t, c)]),
    "smoothed loss": (entropy(False, 0.1), lambda y, t, c: [losses(y, t, None, 0.1)]),
    "smoothed and weighted loss": (entropy(True, 0.1), lambda y, t, c: [losses(y, t, c, 0.1)]),
    "loss and hit": (
        lambda x, w, t, c: (kf.cross_entropy((y := product(x, w)), t, ignore_index=-100, reduction="none"),
                            kf.argmax(y, -1)),
        lambda y, t, c: [losses(y, t), y.argmax(-1)]),
}  # fmt: skip


def drawn(whole: bool):
    rng = np.random.default_rng(3)
    draw = (lambda *s: rng.integers(-2, 3, s)) if whole else (lambda *s: rng.standard_normal(s) / 2)
    x, w = draw(ROWS, DEPTH).astype(np.float16), draw(COLS, DEPTH).astype(np.float16)
    t = np.array([0, 1002, 5, 256, 255, 511, -100, 700, 1001])
    return x, w, t, rng.uniform(0.5, 2, COLS).astype(np.float32)


def check(case, folder, f, x, w, t, c):
    run = Run(folder, f, x, w, t, c)
    y = x.astype(np.float64) @ w.T.astype(np.float64)
    for parts in (1, 3):
        for got, want in zip(run(parts), CASES[case][1](y, t, c), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("case", CASES)
def test_numbers(case, tmp_path):
    whole = "arg" in case or case in ("top 1", "loss and hit")
    check(case, tmp_path, CASES[case][0], *drawn(whole))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("case", ["argmax", "argmin", "variance", "top 1"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_not_finite(case, value, tmp_path):
    x, w, t, c = drawn(whole=True)
    w[[300, 900], 0] = value
    x[:, 0] = [1, -1, 0, 2, 1, -2, 1, 1, 0]
    check(case, tmp_path, CASES[case][0], x, w, t, c)
