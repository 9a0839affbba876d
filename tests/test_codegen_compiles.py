"""Generated CUDA C++ as nvcc compiles it: without warnings, within its registers, in whole words."""

from __future__ import annotations

import functools
import itertools
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import golden
import kfusion as kf
import reference_ops
from kernel_graphs import Build, empty, graph_of, normalized, skeleton, softmax, sources, variance
from kfusion import _core
from test_joins import rotary, rotary_in_pairs
from test_reference_ops import TABLE, takes

pytestmark = pytest.mark.slow


def nvcc(text: str, folder: Path, output: str = "-cubin", architecture: str = "sm_90") -> str:
    """What nvcc says of the resources of a text; -ptx: what it makes of it."""
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    for name, header in _core.cuda_headers().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(header)
    (folder / "kernel.cu").write_text(text)
    command = ["nvcc", output, f"-arch={architecture}", "--fmad=false", "-std=c++20", "--resource-usage", f"-I{folder}"]
    command += ["-Werror=all-warnings", "-o", str(folder / "kernel.out"), str(folder / "kernel.cu")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (folder / "kernel.out").read_text() if output == "-ptx" else done.stdout + done.stderr


def every_map(dtype: str) -> Build:
    """The sum of all maps of a value of `dtype`, so that one kernel has them all."""

    def build(g: _core.Graph, x: int) -> int:
        total = g.cast(x, "float32")
        for name in reference_ops.MAPS:
            if dtype in takes(name):
                total = g.map("add", [total, g.cast(g.map(name, [x] * TABLE[name]["arity"]), "float32")])
        return total

    return build


def spilled(text: str, folder: Path, what: str = "stores") -> int:
    return int(re.findall(rf"(\d+) bytes spill {what}", nvcc(text, folder))[0])


def first_kernel(f: Any, *specs: Any) -> str:
    return _core.cuda_kernels(kf.trace(f, *specs), kf.device("H200").to_dict())[0].source


def gradients_of_norms(x, w, g):
    h = g * w
    return h - h.mean(-1, keepdims=True) - x * (h * x).mean(-1, keepdims=True), (g * x).sum(0), g.sum(0)


def random_words_by_column(x, streams):
    """Each lane of a vector has a stream of its own."""
    return kf.where(kf.philox(kf.iota(x.shape, 0), streams, streams + 1) < 2**31, x, 0).max(0)


def kernels_that_spill_nothing() -> Iterator[tuple[str, str, str]]:
    """Their texts, skeletons and what else a text must have."""
    for dtype in ("float32", "bfloat16"):
        # Shared memory leaves L1 little: a word of local memory in each batch costs up to a quarter of the rate.
        for (f, weights), cols in itertools.product(((kf.rmsnorm, 1), (kf.layernorm, 2)), (2**16, 2**17, 2**18)):
            arrays = [kf.spec((512, cols), dtype), *[kf.spec((cols,), dtype)] * weights]
            yield kf.fuse(f).source(*arrays), "ring_rows", "start_shared"
        for cols in (32_000, 50_257, 65_536, 128_256):
            arrays = [kf.spec((8192, cols), dtype), kf.spec((8192,), "int64")]
            text = kf.value_and_grad(kf.cross_entropy).source(*arrays)
            yield text[: text.rindex("// cross_entropy_mean")], "", ""
        half = dtype == "bfloat16"
        for cols in (257, 1023, 4095, 9001) if half else (50_257, 131_073):
            arrays = [kf.spec((8192, cols), dtype), *[kf.spec((cols,), dtype)] * 2]
            yield kf.fuse(kf.layernorm).source(*arrays), "weighted_rows" if half else "ring_rows", "Planes"
        for f in (rotary, rotary_in_pairs):
            yield kf.fuse(f).source(kf.spec((8, 4096, 128), dtype), *[kf.spec((4096, 128), dtype)] * 2), "", ""
    for shape in ((8192, 4096), (4096, 32768)):
        rows, columns = (kf.spec(s, "bfloat16") for s in (shape, shape[-1:]))
        yield first_kernel(gradients_of_norms, rows, columns, rows), "summed_ring_rows", ""


class TestCompiles:
    """With nvcc, as NVRTC would: nothing is included but the embedded headers."""

    def test_what_spills_nothing(self, tmp_path):
        for name in golden.GATHERS:
            assert spilled(golden.text_of(name), tmp_path, "loads") == 0
        for text, used, part in kernels_that_spill_nothing():
            assert used in ("", skeleton(text))
            assert part in text
            assert spilled(text, tmp_path) == 0, text[:300]

    def test_every_map_and_gathers(self, tmp_path):
        for dtype in ("float16", "float32", "float64", "int32", "int64", "bool"):
            (text,) = sources(every_map(dtype), empty((64,), dtype))
            nvcc(text, tmp_path)
            x, i, j = empty((9, 64), dtype), empty((5,), "int32"), empty((9, 3), "int64")
            (text,) = sources(lambda g, x, i: g.take(x, i, 0), x, i)
            nvcc(text, tmp_path)
            (text,) = sources(lambda g, x, j: g.reduce("max", g.take_along_axis(x, j, 1, True), [1], False), x, j)
            nvcc(text, tmp_path)

    @pytest.mark.parametrize(
        ("build", "shape", "dtype", "most_registers"),
        [
            (normalized, (4096, 1024), "float32", 128),
            (softmax, (4096, 8192), "bfloat16", 128),
            (normalized, (4096, 131072), "float16", 255),
            (softmax, (8, 2**20), "float64", 255),
            (lambda g, x: [variance(g, x), g.reduce("max", x, None)], (2**20,), "bfloat16", 128),
            (lambda g, x: softmax(g, x, 0), (500, 1000), "float32", 128),
        ],
    )
    def test_reductions_fit_their_registers(self, build, shape, dtype, most_registers, tmp_path):
        for text in sources(build, empty(shape, dtype)):
            report = nvcc(text, tmp_path)
            assert int(re.findall(r"(\d+) bytes spill stores", report)[0]) <= 128
            assert int(re.findall(r"Used (\d+) registers", report)[0]) <= most_registers

    def test_kernels_that_are_rare(self, tmp_path):
        text = kf.fuse(random_words_by_column).source(kf.spec((4096, 512)), kf.spec((512,), "int64"))
        assert skeleton(text) == "columns"
        nvcc(text, tmp_path)
        weights = np.lib.stride_tricks.as_strided(np.empty(1, np.float32), (17,), (4 * 2**28,))
        (text,) = sources(lambda g, x, w: g.map("multiply", [normalized(g, x), w]), empty((4, 17)), weights)
        assert skeleton(text) == "span_rows"
        assert "using Index = i64;" in text
        nvcc(text, tmp_path)

        def many_reductions(g: _core.Graph, x: int) -> int:
            """Partial results are more words than a warp has lanes."""
            shifted = [g.map("add", [x, g.scalar(float(i))]) for i in range(12)]
            parts = [g.reduce(op, one, [1], True) for op in ("sum", "max", "min") for one in shifted]
            return g.map("subtract", [x, functools.reduce(lambda a, b: g.map("add", [a, b]), parts)])

        kernels = _core.cuda_kernels(graph_of(many_reductions, empty((4, 65536))), kf.device("h200").to_dict())
        assert "spread_rows" in [skeleton(k.source) for k in kernels]
        for k in kernels:
            nvcc(k.source, tmp_path)

    def test_elements_move_whole(self, tmp_path):
        """Also where a vector ends early, or its elements lie apart."""
        for build, arrays in (
            (lambda g, x: g.map("negative", [x]), [empty((1000,))]),
            (lambda g, x, y: g.map("add", [x, y]), [empty((64, 64)), np.empty((64, 128), np.float32)[:, ::2]]),
        ):
            for text in sources(build, *arrays):
                assert ".u8" not in nvcc(text, tmp_path, "-ptx")
