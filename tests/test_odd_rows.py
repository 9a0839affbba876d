"""Generated kernels of rows that are no multiple of 16 bytes, or begin at none, on a host that plays the GPU. Arrays
lie between pages that cannot be touched: a read or a write outside ends the process."""

import ctypes
import mmap

import numpy as np
import pytest

import kernel_loops
from graph_runs import assert_close, draw, wide
from host_cuda import HAVE_COMPILER, HostKernels
from kernel_graphs import graph_of, scaled
from kinds import DTYPES, np_dtype

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAVE_COMPILER, reason="needs g++")]

PAGE = mmap.PAGESIZE
SENTINEL = 0x5A


class Fenced:
    """Bytes between two pages without access; an array of `room` elements lies `shift` elements behind the first fence,
    or as close before the second one."""

    def __init__(self, room, dtype, shift, at_end):
        item = np_dtype(dtype).itemsize
        pages = -(-(room + shift) * item // PAGE) + 2
        self.memory = mmap.mmap(-1, pages * PAGE)
        whole = np.frombuffer(self.memory, np.uint8)
        for fence in (whole[:PAGE], whole[-PAGE:]):
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.mprotect(ctypes.c_void_p(fence.ctypes.data), ctypes.c_size_t(PAGE), 0) == 0
        self.bytes = whole[PAGE:-PAGE]
        self.bytes[:] = SENTINEL
        last = len(self.bytes) // item - room  # the last place, moved forward to a place of that shift
        unit = max(16 // item, 1)
        self.start = last - (last - shift) % unit if at_end else shift
        self.elements = self.bytes.view(np_dtype(dtype))
        self.own = self.elements[self.start : self.start + room]

    def untouched(self):
        rest = np.delete(self.elements, np.s_[self.start : self.start + len(self.own)])
        return bool((rest.view(np.uint8) == SENTINEL).all())


def layernorm_of(x, w, b):
    with np.errstate(invalid="ignore"):
        d = x - x.mean(1, keepdims=True)
        return np.asarray(d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5) * w + b)


def run_between_fences(kernels, i, inputs, out, shifts, at_end):
    """The result of a graph of one kernel whose arrays begin `shifts` elements behind multiples of 16 bytes."""
    (kernel,), (lowered,), (function,) = kernels.kernels[i], kernels.lowered[i]["kernels"], kernels.functions[i]
    room = inputs[0].size
    arrays = [Fenced(x.size, str(x.dtype), s, at_end) for x, s in zip(inputs, shifts, strict=False)]
    arrays.append(Fenced(room, out, shifts[-1], at_end))
    for fenced, x in zip(arrays, inputs, strict=False):
        fenced.own[:] = x.reshape(-1)
    nodes = [*sorted(o["node"] for o in lowered["loads"]), lowered["stores"][0]["to"]["node"]]
    memory = {node: kernel_loops.Memory(a.elements, a.start) for node, a in zip(nodes, arrays, strict=True)}
    kernels._run(function, kernel, lowered, memory)
    assert all(a.untouched() for a in arrays)
    return arrays[-1].own.reshape(inputs[0].shape)


WIDTHS = (1, 2, 3, 7, 8, 17, 24, 33, 65, 257, 1023, 1025, 4098)


def special_rows(rng, dtype, cols):
    x = draw(rng, dtype, (7 if cols > 300 else 37 if cols > 24 else 523, cols))  # blocks of spans, warps
    x[1, cols // 2], x[3, cols - 1], x[5, 0] = np.nan, np.inf, -np.inf
    return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("aligned", [True, False])
def test_rows_at_any_address(dtype, aligned, rng, tmp_path):
    """Results, and no byte outside of the arrays; with special values in some rows, next to others."""
    inputs = [[special_rows(rng, dtype, d), draw(rng, dtype, (d,)), draw(rng, dtype, (d,))] for d in WIDTHS]
    graphs = [graph_of(lambda g, x, w, b: g.cast(scaled(g, x, w, b), dtype), x, w, b) for x, w, b in inputs]
    kernels = HostKernels(graphs, tmp_path, aligned=aligned)
    places = [[0, 0, 0, 0]] if aligned else [[1, 1, 1, 1], [0, 3, 2, 5], [3, 0, 0, 2]]
    for i, arrays in enumerate(inputs):
        want = layernorm_of(*map(wide, arrays))
        with np.errstate(invalid="ignore"):
            scale = 8 + 16 / np.sqrt(wide(arrays[0]).var(1, keepdims=True) + 1e-5)  # of values that are nearly equal
        for shifts in places:
            for at_end in (False, True):
                got = run_between_fences(kernels, i, arrays, dtype, shifts, at_end)
                assert_close(got, want, scale, spacings=8)


def test_results_of_another_dtype(rng, tmp_path):
    """Vectors of different bytes in one frame, with masks of one byte."""
    shapes = [(5, 77), (6, 1023), (3, 4097)]

    def build(g, x, mask, y):
        zero = g.cast(g.scalar(0.0), "float32")
        kept = g.map("where", [mask, x, g.broadcast(zero, g.shape(x))])
        return g.cast(g.map("subtract", [kept, g.reduce("max", g.cast(y, "float32"), [1], True)]), "bfloat16")

    inputs = [[draw(rng, d, s) for d in ("float32", "bool", "float16")] for s in shapes]
    for aligned in (True, False):
        folder = tmp_path / str(aligned)
        folder.mkdir()
        kernels = HostKernels([graph_of(build, *arrays) for arrays in inputs], folder, aligned=aligned)
        for i, (x, mask, y) in enumerate(inputs):
            want = np.where(mask, wide(x), 0) - wide(y).max(1, keepdims=True)
            for shifts in [[0, 0, 0, 0]] if aligned else [[1, 1, 1, 1], [2, 5, 3, 1]]:
                for at_end in (False, True):
                    got = run_between_fences(kernels, i, [x, mask, y], "bfloat16", shifts, at_end)
                    assert_close(got, want, 8)
