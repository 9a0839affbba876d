"""What the generated struct of attention's scores computes, on a host that plays the skeleton."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import kernel_loops
import kfusion as kf
from host_cuda import HAVE_COMPILER, compiled
from kfusion import _core
from test_attention_axes import COINCIDING, along
from test_codegen_products import piece

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAVE_COMPILER, reason="needs g++")]
DEVICE = kf.device("H200").to_dict()


def spec(*shape, dtype="bfloat16"):
    return kf.spec(shape, dtype, like="torch", device="cuda")


def biased(q, k, v, of, number):
    """By a small map of positions, times a number of each of the other axes."""
    axes = [a for a, e in enumerate(of.shape) if e > 1]
    traced = type(of) is not torch.Tensor  # of which torch.arange would be an array
    places = [kf.iota(of.shape, a, like="torch") if traced else torch.tensor(np.indices(of.shape)[a]) for a in axes]
    return torch.softmax(q @ k.transpose(-1, -2) - number * torch.abs(sum(places[1:], -2 * places[0])), -1) @ v


def capped(q, k, v, of, number):
    return torch.softmax(20 * torch.tanh(q @ k.transpose(-1, -2) / 20 + of * number), -1) @ v


def masked(q, k, v, of, number):
    scores = (q @ k.transpose(-1, -2) * 0.5).float() + number * torch.tanh(of)
    return torch.softmax(torch.where(of > -1, scores, -1e4), -1).to(q.dtype) @ v


CASES = [(f, extents) for f in (biased, capped, masked) for extents in COINCIDING]


def shapes_of(extents):
    b, h, s, t, axes = extents
    all_axes = (b, h, s, t)
    return (b, h, s, 8), (b, h, t, 8), (b, h, t, 8), along(all_axes, axes), along(all_axes, {0, 1, 2, 3} - set(axes))


class Kernels:
    """The structs of all cases, compiled together."""

    def __init__(self, folder: Path) -> None:
        self.graphs = [kf.trace(f, *(spec(*shape) for shape in shapes_of(e))) for f, e in CASES]
        made = [_core.cuda_kernels(g, DEVICE, names=False, aligned=False) for g in self.graphs]
        self.kernels = [next((k for k in ks if isinstance(k, _core.AttentionKernel)), None) for ks in made]
        self.library = self.compile(folder)

    def compile(self, folder: Path):
        headers = _core.cuda_headers()
        attention = headers["device/attention_memory.cuh"]
        parts = [
            '#include "host_cuda.hpp"\n#include "device/contract_memory.cuh"\n#include "device/quick.cuh"',
            "namespace kfusion::device {\nusing std::max, std::min;",
            piece(headers["device/contract.cuh"], "struct Point {", "\n};"),
            *(piece(attention, f"struct {name} {{", "\n};") for name in ("Query", "Span", "Pairs")),
            piece(attention, "namespace attention {", "kUnseen = __builtin_bit_cast(float, 0xff800000u);"),
            *(f"inline float {name}_tanh(float x) {{ return std::tanh(x); }}" for name in ("rough", "level")),
            piece(attention, "/// Two neighbours at once, or up to", "\n}\n"),
            '}\n}\n#include "host_attention.hpp"',
        ]
        for i, kernel in enumerate(self.kernels):
            if kernel is None:
                continue
            structs = [piece(kernel.source, f"struct {name} {{", "\n};") for name in ("ScoreParameters", "Scores")]
            parts += [f"namespace kfusion::device::scalar {{ namespace k{i} {{", *structs, "}}"]
            struct = f"kfusion::device::scalar::k{i}::Scores"
            parts += [
                f'extern "C" void run{i}(const void* p, const float* product, float* scores, const int* n) {{',
                f"host::score<{struct}>(p, product, scores, {{n[0], n[1], 1}}, n[2], n[3]); }}",
            ]
        return compiled(folder, *parts)

    def scores(self, i: int, product: np.ndarray, arguments: dict[str, np.ndarray]) -> np.ndarray:
        """The scores of the product's elements in float32; other kernels run in NumPy."""
        found, lowered = np.full_like(product, 77), _core.testing.lower(self.graphs[i], DEVICE)
        inputs = [arguments[n["name"]] for n in lowered["graph"]["nodes"] if n["op"] == "input"]

        def compute(loops, memory) -> None:
            if "scores" not in loops:
                return kernel_loops.run_group(loops, memory)
            for n in loops["stored"]:  # which nobody looks at
                memory[n] = kernel_loops.Memory(np.zeros(math.prod(lowered["computed"][n])))
            loads = [memory.get(o["node"]) for o in loops["scores"]["loads"]]
            addresses = [m.elements.ctypes.data + m.start * m.elements.itemsize if m else 0 for m in loads]
            arrays = (ctypes.c_void_p(a.ctypes.data) for a in (product, found))
            parameters = ctypes.c_char_p(self.kernels[i].scores(addresses))
            return getattr(self.library, f"run{i}")(parameters, *arrays, (ctypes.c_int * 4)(*product.shape))

        kernel_loops.run(lowered, inputs, compute=compute)
        return found


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return Kernels(tmp_path_factory.mktemp("attention"))


@pytest.mark.parametrize("i", range(len(CASES)))
def test_scores(kernels, i):
    f, extents = CASES[i]
    if kernels.kernels[i] is None:
        pytest.skip("no kernel of attention")
    torch.manual_seed(i)
    tensors = [torch.randn(shape).bfloat16() for shape in shapes_of(extents)]
    q, k, v, *_ = wide = [x.double() for x in tensors]
    arrays = [x.float().numpy().astype(ml_dtypes.bfloat16) for x in tensors]
    given = dict(zip(("q", "k", "v", "of", "number"), arrays, strict=True))
    scores = kernels.scores(i, (q @ k.transpose(-1, -2)).float().numpy(), given)
    got, want = torch.softmax(torch.from_numpy(scores).double(), -1) @ v, f(*wide)
    assert (got - want).abs().max() < 0.02 * (1 + want.abs().max())
