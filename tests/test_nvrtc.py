"""Compiling CUDA C++ at run time: with NVRTC alone, which needs no GPU, and launched where there is one."""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core

MANY = 8
compile_cuda = _core.testing.compile_cuda


def have_nvrtc() -> bool:
    try:
        _core.nvrtc_library()
    except kf.DeviceError:
        return False
    return True


needs_nvrtc = pytest.mark.skipif(not have_nvrtc(), reason="needs NVRTC (pip install nvidia-cuda-nvrtc)")
needs_gpu = [needs_nvrtc, pytest.mark.cuda]

SOURCE = """#include "device/reduce.cuh"

extern "C" __global__ void sum(float* p) {
  for (int lane = 1; lane < 32; lane *= 2) p[threadIdx.x] += __shfl_xor_sync(0xffffffffu, p[threadIdx.x], lane);
}
"""
BROKEN = """// line 1
__device__ int fine() { return 1; }
extern "C" __global__ void broken(float* p) {
  p[0] = fine();
  p[1] = no_such_name;
}
// line 7
// line 8
// line 9
// line 10
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where entries of the cache on disk lie; nothing is there yet."""
    monkeypatch.setenv("KFUSION_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kfusion"


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_nvrtc
class TestCompiling:
    def test_machine_code(self, folder):
        """For a GPU newer than the compiler PTX, which shows what the options ask for: no product and sum in one."""
        for capability in ((8, 0), (8, 6), (9, 0)):
            assert compile_cuda(SOURCE, "sum", capability).startswith(b"\x7fELF")
        source = 'extern "C" __global__ void f(float* p) { p[0] = p[1] * p[2] + p[3]; }'
        text = compile_cuda(source, "f", (99, 0)).decode()
        assert ".target sm_" in text
        assert "mul" in text
        assert "fma" not in text
        with pytest.raises(kf.DeviceError, match=r"knows no GPU as old as sm_20; install an older one"):
            compile_cuda(SOURCE, "sum", (2, 0))

    def test_an_error_shows_the_log_and_the_lines(self, folder):
        with pytest.raises(RuntimeError, match=r"kfusion: NVRTC [\d.]+ did not compile") as info:
            compile_cuda(BROKEN, "broken")
        text = str(info.value)
        assert not isinstance(info.value, kf.DeviceError)
        for part in ("broken", "sm_90", "bug of kfusion", "broken.cu(5)", '"no_such_name"', "> 5 |   p[1] =", "  2 | "):
            assert part in text
        assert "  8 | " in text
        assert "line 9" not in text
        assert not folder.exists()
        with pytest.raises(RuntimeError, match=r"cannot open|could not open"):  # no header but ours
            compile_cuda("#include <vector>\n", "f")

    def test_threads(self, folder):
        with concurrent.futures.ThreadPoolExecutor(MANY) as pool:
            images = list(pool.map(lambda i: compile_cuda(f"{SOURCE}// {i % 3}", "sum"), range(MANY)))
        assert all(image.startswith(b"\x7fELF") for image in images)
        assert len(list(folder.iterdir())) == 3

    def test_the_cache_on_disk(self, folder, tmp_path):
        """Another text, name, GPU and compiler make other entries; a hit is what the disk has; damage is mended."""
        image = compile_cuda(SOURCE, "sum")
        (entry,) = folder.iterdir()
        whole = entry.read_bytes()
        for damaged in (b"", whole[:-1] + bytes([whole[-1] ^ 1])):
            entry.write_bytes(damaged)
            assert compile_cuda(SOURCE, "sum") == image
            assert entry.read_bytes() == whole
        _core.testing.write_kernel(entry.stem, b"another image")
        assert compile_cuda(SOURCE, "sum") == b"another image"
        for others in ((SOURCE + " ", "sum"), (SOURCE, "total"), (SOURCE, "sum", (8, 0))):
            compile_cuda(*others)
        own = Path(_core.nvrtc_library())
        renamed = tmp_path / "libnvrtc-of-another-version.so"
        renamed.symlink_to(own)
        for builtins in own.parent.glob("libnvrtc-builtins.so.*"):
            (tmp_path / builtins.name).symlink_to(builtins)
        code = f"from kfusion import _core; _core.testing.compile_cuda({SOURCE!r}, 'sum')"
        for environment, count in (({}, 4), ({"KFUSION_NVRTC": str(renamed)}, 5)):
            run_python(code, **environment)
            assert len(list(folder.glob("*.kernel"))) == count


def test_no_compiler(tmp_path):
    code = """
from kfusion import _core
for call in (_core.nvrtc_library, lambda: _core.testing.compile_cuda("", "f")):
    try: call()
    except _core.DeviceError as e: print(e)
"""
    missing = str(tmp_path / "libnvrtc.so.13")
    message = f"kfusion: KFUSION_NVRTC must be the file of an NVRTC library, got {missing}"
    assert run_python(code, KFUSION_NVRTC=missing).splitlines() == [message] * 2
    (tmp_path / "libnvrtc.so.13").write_bytes(b"no library")
    assert "cannot be loaded" in run_python(code, KFUSION_NVRTC=missing).splitlines()[-1]

    # For a name without a folder the loader would take the library that it knows, whatever the file is.
    code = f"import os; os.chdir({str(tmp_path)!r}); from kfusion import _core; print(_core.nvrtc_library())"
    assert run_python(code, KFUSION_NVRTC="libnvrtc.so.13") == missing


def test_no_compiler_anywhere():
    """The module in a Python that has no packages: what the system itself has is all that it can find."""
    code = """
import importlib.machinery, importlib.util, numpy, sys
places = importlib.util.find_spec("kfusion").submodule_search_locations
spec = importlib.machinery.PathFinder.find_spec("_core", list(places))
sys.path[:], sys.prefix = [], "/nowhere"
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
try: print(core.nvrtc_library())
except core.DeviceError as e: print(e)
"""
    text = run_python(code, CUDA_HOME="", CUDA_PATH="", KFUSION_NVRTC="")
    if os.path.isfile(text):
        pytest.skip("this system has an NVRTC of its own")
    assert "libnvrtc.so.1" in text
    assert "pip install" in text
    assert "CUDA_HOME" in text


# ---- with a GPU -----------------------------------------------------------------------------------------------------

FILL = """
struct Parameters { float* out; long long size; float value; };
extern "C" __global__ void fill(const __grid_constant__ Parameters p) {
  extern __shared__ float shared[];
  shared[threadIdx.x] = p.value;
  __syncthreads();
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < p.size) p.out[i] = shared[blockDim.x - 1 - threadIdx.x];
}
"""
# Each block writes how many blocks its cluster has.
CLUSTER = """
struct Parameters { float* out; };
extern "C" __global__ void cluster(const __grid_constant__ Parameters p) {
  unsigned blocks;
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  if (threadIdx.x == 0) p.out[blockIdx.x] = blocks;
}
"""
BLOCK = 128


def device_array(size, device=0):
    array = kf.to_device(np.full(size, np.nan, np.float32), device)
    return array, array.__cuda_array_interface__["data"][0]


def fill(pointer, size, value, *, source=FILL, grid=None, **keywords):
    parameters = struct.pack("<Qqf4x", pointer, size, value)
    blocks = (size + BLOCK - 1) // BLOCK if grid is None else grid
    options = {"shared_bytes": 4 * BLOCK, **keywords}
    _core.testing.launch_cuda(source, "fill", parameters, grid=(blocks, 1, 1), block=(BLOCK, 1, 1), **options)


class TestLaunching:
    pytestmark = needs_gpu

    def test_a_kernel(self, folder):
        """On every device."""
        for device, size in itertools.product(range(_core.cuda_device_count()), (1, 1000, 100_000)):
            array, pointer = device_array(size, device)
            fill(pointer, size, 1.0, grid=0, device=device)
            assert np.isnan(array.numpy()).all()
            for value in (1.5, -2.0):
                fill(pointer, size, value, device=device)
                np.testing.assert_array_equal(array.numpy(), np.float32(value))

    def test_all_of_a_blocks_shared_memory(self, folder):
        most = _core.cuda_device_info()["shared_memory_per_block_bytes"]
        array, pointer = device_array(1000)
        fill(pointer, 1000, 3.0, shared_bytes=most)
        np.testing.assert_array_equal(array.numpy(), np.float32(3.0))
        with pytest.raises(kf.DeviceError, match="launching a generated kernel failed"):
            fill(pointer, 1000, 4.0, shared_bytes=most + 16)
        fill(pointer, 1000, 5.0)  # the refusal has left nothing behind
        np.testing.assert_array_equal(array.numpy(), np.float32(5.0))

    def test_clusters(self, folder):
        if float(_core.cuda_device_info()["compute_capability"]) < 9:
            pytest.skip("needs thread-block clusters")
        for blocks in (1, 2, 8, 16):
            array, pointer = device_array(32)
            options = {"grid": (32, 1, 1), "block": (64, 1, 1), "cluster": blocks}
            _core.testing.launch_cuda(CLUSTER, "cluster", struct.pack("<Q", pointer), **options)
            np.testing.assert_array_equal(array.numpy(), np.float32(blocks))

    def test_errors(self, folder):
        with pytest.raises(RuntimeError, match="no_such_name"):
            fill(0, 1, 1.0, source=FILL + "int x = no_such_name;")
        with pytest.raises(kf.DeviceError, match="looking for a kernel"):
            _core.testing.launch_cuda(FILL, "phil", b"", grid=(1, 1, 1), block=(1, 1, 1))
        with pytest.raises(kf.DeviceError, match="99"):
            fill(0, 1, 1.0, device=99)
        with pytest.raises(RuntimeError, match="too few parameters"):
            _core.testing.launch_cuda(FILL, "fill", bytes(8), grid=(1, 1, 1), block=(1, 1, 1))

    @pytest.mark.parametrize("warm", [True, False])
    def test_graphs(self, folder, warm):
        """Also the first call of a kernel can stand in a capture: it is loaded, and the graph has the launch alone."""
        torch = pytest.importorskip("torch")
        source = f"{FILL}// {warm} {time.time()}"
        x = torch.full((1000,), float("nan"), device="cuda")
        if warm:
            fill(x.data_ptr(), 1000, 0.0, source=source)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            fill(x.data_ptr(), 1000, 7.0, source=source, stream=torch.cuda.current_stream().cuda_stream)
        x.fill_(float("nan"))
        graph.replay()
        assert bool((x == 7.0).all())

    def test_threads(self, folder):
        def work(i):
            array, pointer = device_array(5000)
            for value in range(20):
                fill(pointer, 5000, value, source=f"{FILL}// {i % 2}")
            return bool((array.numpy() == 19).all())

        with concurrent.futures.ThreadPoolExecutor(MANY) as pool:
            assert all(pool.map(work, range(MANY)))
