"""When a GPU's memory is given back (test_cuda_host.py has what a GPU is not needed for). Needs torch with CUDA."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import kfusion as kf

pytestmark = pytest.mark.cuda
LONG_CYCLES = 200_000_000  # some 100 ms: longer than anything that an error path does
SHAPE = (1024, 1024)
GB = 2**30


def sevens():
    return kf.to_device(np.full(SHAPE, 7, np.float32))


class TestCaptures:
    """One thread captures while another one drops arrays: the graph is whole, and the memory comes back."""

    @pytest.fixture(params=["non-blocking", "blocking"])
    def stream(self, request, torch):
        """A stream as torch makes it, and one that the legacy default stream waits for."""
        if request.param == "non-blocking":
            return torch.cuda.Stream()
        handle = ctypes.c_void_p()
        torch.cuda.cudart().cudaStreamCreate(ctypes.addressof(handle))
        return torch.cuda.ExternalStream(handle.value)

    @pytest.fixture
    def given_back(self, torch):
        """Bytes that come back of twenty arrays beside no capture: not all, where others have memory in the pool."""
        kf.empty_cache()
        arrays = [sevens() for _ in range(20)]
        arrays.clear()
        torch.cuda.synchronize()
        return kf.empty_cache()

    @pytest.fixture(params=["plain", "exported", "unused capsule", "interface"])
    def dropped(self, request, torch, given_back):
        """A list that holds the last references to memory of ours."""
        arrays = [sevens() for _ in range(20)]
        if request.param == "exported":
            return [torch.from_dlpack(a) for a in arrays]
        if request.param == "unused capsule":
            return [a.__dlpack__() for a in arrays]
        if request.param == "interface":
            assert all(a.__cuda_array_interface__ for a in arrays)
        return arrays

    @pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
    def test_arrays_are_dropped(self, torch, stream, given_back, dropped, mode):
        x = torch.ones(SHAPE, device="cuda")
        capturing, done = threading.Event(), threading.Event()

        def drop():
            assert capturing.wait(60)
            dropped.clear()
            done.set()

        other = threading.Thread(target=drop)
        other.start()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
            y = x * 2
            capturing.set()
            assert done.wait(60)
            y += 1
        other.join()
        graph.replay()
        torch.cuda.synchronize()
        assert bool((y == 3).all())
        assert kf.empty_cache() >= given_back > 0

    def test_first_use_of_all(self, torch):
        """The pool is made and the module loaded while another thread captures."""
        run("""
import threading, torch, kfusion as kf
x = torch.ones(1000, device="cuda")
rows = torch.randn(16, 1024, device="cuda")
out = torch.empty_like(rows)
stream = torch.cuda.Stream()
graph, capturing, done = torch.cuda.CUDAGraph(), threading.Event(), threading.Event()
def first():
    assert capturing.wait(60)
    with torch.cuda.stream(stream):
        kf.fused_softmax(rows, out=out)
    done.set()
other = threading.Thread(target=first)
other.start()
with torch.cuda.graph(graph):
    y = x * 2
    capturing.set()
    assert done.wait(100)
    y += 1
other.join()
graph.replay()
torch.cuda.synchronize()
assert bool((y == 3).all())
assert torch.allclose(out, rows.softmax(-1))
""")


@pytest.mark.parametrize("count", [20, 100])  # of 4 MB: less and more than waits in the list
def test_exported_memory_is_not_used_again_while_others_use_it(torch, count):
    """On a stream that was never named: only a wait for the whole device is enough."""
    side = torch.cuda.Stream()
    for _ in range(5):
        tensors = [torch.from_dlpack(sevens()) for _ in range(count)]
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG_CYCLES)
            sums = [t.sum() for t in tensors]
        tensors.clear()
        others = [kf.to_device(np.zeros(SHAPE, np.float32)) for _ in range(count)]
        torch.cuda.synchronize()
        assert all(float(s) == 7 * 2**20 for s in sums)
        del others


def test_unused_capsules_give_the_memory_back(torch):
    """Each of them: what is given back is what nobody holds any more."""
    x = np.ones(2**24, np.float32)
    for version in (None, (1, 0)):
        for _ in range(20):
            kf.to_device(x).__dlpack__(max_version=version)
            assert kf.empty_cache() >= x.nbytes


@pytest.mark.alone_on_gpu
def test_what_is_kept_for_reuse_is_given_back_for_torchs_results(torch):
    """Whose allocator cannot ask for what ours keeps."""
    kf.empty_cache()
    torch.cuda.empty_cache()
    rest = torch.empty(torch.cuda.mem_get_info()[0] - 4 * GB, dtype=torch.uint8, device="cuda")
    x = torch.ones(2**28, device="cuda")
    kf.to_device(np.zeros(int(2.5 * GB), np.bool_))
    assert bool((kf.fuse(lambda x: x * 2.0)(x) == 2).all())
    with pytest.raises(kf.DeviceError, match=rf"memory on cuda:0: {8 * GB} bytes wanted, \d+ of \d+ are free"):
        kf.to_device(np.zeros(8 * GB, np.bool_))
    del rest, x
    kf.empty_cache()
    torch.cuda.empty_cache()


class TestErrorsBetweenKernels:
    """The first kernel of a call waits on its stream when the second one fails. What the first one writes to is free
    then: whoever gets that memory must not find the kernel's values in it."""

    @staticmethod
    def asleep(torch):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG_CYCLES)
        return stream

    def test_torchs_results(self, torch):
        fails = False

        def product(y):
            if fails:
                raise RuntimeError("no product")
            return y @ y

        def doubled_and_squared(x):
            y = x * 2.0
            return y, kf.call(product, y, result=y)

        f, x = kf.fuse(doubled_and_squared), torch.ones(SHAPE, device="cuda")
        f(x)
        torch.cuda.synchronize()
        fails = True
        with pytest.raises(RuntimeError, match="no product"):
            f(x, stream=self.asleep(torch))
        others = [torch.full(SHAPE, 7.0, device="cuda") for _ in range(4)]
        torch.cuda.synchronize()
        assert all(bool((other == 7).all()) for other in others)

    def test_our_own_results(self, torch):
        """Our arrays have no product: the call fails when its first kernel is on the stream."""
        f, x = kf.fuse(lambda x: (y := x * 2.0, y @ y)), sevens()
        for stream in (lambda torch: None, self.asleep):  # the first call compiles
            with pytest.raises(kf.DeviceError, match="runs through the array library"):
                f(x, stream=stream(torch))
        others = [kf.to_device(np.full(SHAPE, 3, np.float32)) for _ in range(4)]
        torch.cuda.synchronize()
        for other in others:
            np.testing.assert_array_equal(other.numpy(), np.float32(3))


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "kfusion" not in done.stderr


class TestExit:
    """Arrays, exports and capsules that live when the interpreter ends, and deleters that are called after it."""

    START = "import sys, numpy as np, kfusion as kf\na = kf.to_device(np.ones(2**20, np.float32))\n"

    @pytest.mark.parametrize(
        "code",
        [
            "sys.kept = a",
            "sys.kept = a.__dlpack__()",
            "sys.kept = a.__dlpack__(max_version=(1, 0))",
            "sys.kept = [a]; sys.kept.append(sys.kept)",
            "import torch; sys.kept = torch.from_dlpack(a); del a",
            "import torch; sys.kept = torch.from_dlpack(a), kf.fused_softmax(torch.ones(8, 1024, device='cuda'))",
            "import atexit; atexit.register(lambda a: a.numpy(), a); del a",
        ],
    )
    def test_what_lives(self, code):
        if "torch" in code:
            pytest.importorskip("torch")
        run(self.START + code)

    @pytest.mark.parametrize("version", [None, (1, 0)])
    def test_a_deleter_after_python(self, version):
        """Another library's static destructor calls it so."""
        run(
            self.START
            + f"""
import ctypes
capsule, name = a.__dlpack__(max_version={version}), {b"dltensor" if version is None else b"dltensor_versioned"!r}
get = ctypes.pythonapi.PyCapsule_GetPointer
get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
managed = get(capsule, name)
used = ctypes.create_string_buffer(b"used_" + name)
rename = ctypes.pythonapi.PyCapsule_SetName
rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
rename(capsule, used)
sys.kept = used
deleter = ctypes.c_void_p.from_address(managed + {56 if version is None else 16}).value
del a, capsule
register = getattr(ctypes.CDLL(None), "__cxa_atexit")
register.argtypes = [ctypes.c_void_p] * 3
assert register(deleter, managed, None) == 0
"""
        )

    def test_threads_that_still_drop_arrays(self):
        run(
            self.START
            + """
import threading, time
def drop():
    while True:
        b = kf.to_device(np.ones(1000, np.float32))
        c = b.__dlpack__()
        del b, c
for _ in range(4):
    threading.Thread(target=drop, daemon=True).start()
time.sleep(0.5)
"""
        )
