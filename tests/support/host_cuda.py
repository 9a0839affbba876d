"""Runs generated CUDA kernels on the host: every thread of a block is a fiber (host_cuda.hpp). Slow, but the numbers
are those of the text, without a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

import kernel_loops
from kfusion import _core
from kfusion._devices import running

# One device for every machine, so that plans and texts are the same everywhere.
DEVICE = {**running.device("cpu").to_dict(), "cache_bytes": 32 << 20, "on_chip_bytes": 1 << 20, "tile_bytes": 1 << 20}
HAVE_COMPILER = shutil.which("g++") is not None
FLAGS = ["-std=c++20", "-O0", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv", "-fPIC", "-shared"]
NAMESPACE = "kfusion::device::scalar"
MOST_BLOCKS = 16  # host::kMaxBlocks
# PTX of the headers, as a host has it.
REPLACED = {
    "extern __shared__ __align__(16) char shared[];": "char* shared = host::shared;",
    'asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }" : "=f"(lo), "=f"(hi) : '
    '"r"(word));': "host::unpack_halves(word, lo, hi);",
    'asm("{ .reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h}; }"\n      : "=r"(word)\n'
    '      : "f"(lo), "f"(hi));': "word = host::pack_halves(lo, hi);",
    '"%clusterid.x", blockIdx.x': '"%clusterid.x", blockIdx.x / host::blocks',
    '"%nclusterid.x", gridDim.x': '"%nclusterid.x", gridDim.x / host::blocks',
    '"%cluster_ctarank", 0': '"%cluster_ctarank", host::rank',
    '"%cluster_nctarank", 1': '"%cluster_nctarank", host::blocks',
    "#else\n  return *p;": "#else\n  host::wait(host::State::kReady);\n  return *p;",
    "void cluster_wait() {": "void cluster_wait() { host::wait(host::State::kAtCluster);",
    "void wait_for_messages(Barrier*, u32) {": "void wait_for_messages(Barrier* b, u32 parity) { host::wait_for(b, parity);",  # noqa: E501
    "void make_barrier(Barrier*) {": "void make_barrier(Barrier* b) { b->state = 0;",
    "void make_meeting(Barrier*, u32) {": "void make_meeting(Barrier* b, u32 arrivals) { host::meet(b, arrivals);",
    "void arrive(Barrier*) {": "void arrive(Barrier* b) { host::arrive(b);",
    "void wait_for_copies(Barrier*, u32) {": "void wait_for_copies(Barrier* b, u32 parity) { host::wait_for(b, parity);",  # noqa: E501
    "void wait_for_all(Barrier*, u32) {": "void wait_for_all(Barrier* b, u32 parity) { host::wait_for(b, parity);",
    "void expect(Barrier*, u32) {": "void expect(Barrier* b, u32 bytes) { host::count(b, bytes);",
    "u32 bytes, Barrier*) { memcpy(to, from, bytes);": "u32 bytes, Barrier* b) { memcpy(to, from, bytes), host::count(b, -bytes);",  # noqa: E501
    "const Slot& message, Barrier*, u32) { *to = message;": "const Slot& message, Barrier* b, u32 rank) { host::store_to_block(to, message, rank), host::count(host::in_block(b, rank), -16);",  # noqa: E501
    "const V& value, [[maybe_unused]] u32 rank) {": "const V& value, u32 rank) { host::store_to_block(p, value, rank);",
}


def compiled(folder: Path, *parts: str) -> Any:
    """The library that g++ makes of a text, which may include the device headers as a host has them."""
    (folder / "device").mkdir(exist_ok=True)
    for name, text in _core.cuda_headers().items():
        for old, new in REPLACED.items():
            text = text.replace(old, new)
        (folder / name).write_text(text)
    (folder / "kernels.cpp").write_text("\n".join(parts))
    command = ["g++", *FLAGS, f"-I{folder}", f"-I{Path(__file__).parent}", "-o", "kernels.so", "kernels.cpp"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(folder / "kernels.so"))


class HostKernels:
    """The kernels of some graphs, each text once, compiled into one library in `folder`. `options`: of cuda_kernels(),
    and the device that they are planned for."""

    def __init__(self, graphs: list[_core.Graph], folder: Path, **options: Any) -> None:
        device = options.pop("device", DEVICE)
        device = {**device, "on_chip_bytes": options.pop("on_chip_bytes", device["on_chip_bytes"])}
        self.lowered = [_core.testing.lower(g, device, options.get("fuse", True)) for g in graphs]
        self.kernels = [_core.cuda_kernels(g, device, **{"clusters": False, "names": False, **options}) for g in graphs]
        texts = list(dict.fromkeys((k.source, k.entry) for kernels in self.kernels for k in kernels))
        library = self._compile(folder, texts)
        self.functions = [
            [library[f"host_{texts.index((k.source, k.entry))}"] for k in kernels] for kernels in self.kernels
        ]

    def run(self, i: int, inputs: list[np.ndarray]) -> list[np.ndarray]:
        pairs = iter(zip(self.functions[i], self.kernels[i], strict=True))
        return kernel_loops.run(self.lowered[i], inputs, compute=lambda k, memory: self._run(*next(pairs), k, memory))

    def _compile(self, folder: Path, texts: list[tuple[str, str]]) -> Any:
        parts = ['#include "host_cuda.hpp"', '#include "device/pointwise.cuh"', '#include "device/tiles.cuh"']
        for i, (source, entry) in enumerate(texts):
            own = source.replace(f"{entry}(const", f"run_{i}(const")
            own = own.replace(f"namespace {NAMESPACE} {{", f"namespace {NAMESPACE} {{ namespace k{i} {{")
            parts += [own.replace(f"}}  // namespace {NAMESPACE}", "}}")]
            parts += [f"KF_HOST_ENTRY(host_{i}, {NAMESPACE}::k{i}::run_{i}, {NAMESPACE}::k{i}::Parameters)"]
        return compiled(folder, *parts)

    @staticmethod
    def _run(function: Any, kernel: Any, lowered: dict[str, Any], memory: dict[int, kernel_loops.Memory]) -> None:
        def address(operand: dict[str, Any]) -> int:
            m = memory[operand["node"]]
            return m.elements.ctypes.data + m.start * m.elements.itemsize

        launch = kernel.launch

        def room(name: str, fill: int) -> np.ndarray:
            memory = np.full(launch[name] + 16, fill, np.uint8)
            return memory[-memory.ctypes.data % 16 :][: launch[name]]

        workspace, standing = room("workspace_bytes", 0xAB), room("standing_bytes", 0)
        loads, stores = (
            [address(o) for o in [*lowered["loads"], *lowered["tables"]]],
            [address(s["to"]) for s in lowered["stores"]],
        )
        parameters = kernel.parameters(loads, stores, [], workspace.ctypes.data, standing.ctypes.data)
        uint3 = ctypes.c_uint * 3
        blocks, *grid = launch["grid"]
        if launch["resident"] and "tiles<" in kernel.source:  # fewer than there would be, so that they stay
            blocks = min(blocks, 2 * launch["cluster"])
        together = blocks * grid[0] if launch["cooperative"] else launch["cluster"]
        assert together <= MOST_BLOCKS, "more blocks at the same time than the host has room for"
        function(ctypes.c_char_p(parameters), uint3(blocks, *grid), uint3(*launch["block"]), together)
        assert not standing.any(), "a kernel leaves no zeros"
