"""cuda/host/ on a runtime, a cuBLASLt and a cuDNN without a GPU (fake_*.cpp): memory and images beside captures, after
errors, and when no memory is left; layouts as cuBLASLt takes them; where cuDNN fails, and who has its handles."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeps import sweep

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FLAGS = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-fPIC", "-shared", "-pthread"]
FLAGS += ["-fno-gnu-unique", "-Wl,-Bsymbolic"]  # nothing is shared with another copy, or with a true runtime
NONE, NON_BLOCKING, BLOCKING = range(3)  # captures of another thread, by its stream
MB = 2**20
ALL = 1024 * MB  # what the fake device has


def headers() -> Path:
    """CUDA's, of a toolkit that loads images through the runtime."""
    nvcc = shutil.which("nvcc")
    if nvcc is None or shutil.which("g++") is None:
        pytest.skip("needs nvcc's headers and g++")
    dry = subprocess.run([nvcc, "--dryrun", "-c", "x.cu"], capture_output=True, text=True).stderr
    (found,) = re.findall(r'^#\$ INCLUDES="-I([^"]*?)"', dry, re.MULTILINE) or ["/usr/local/cuda/include"]
    folder = Path(found.strip())
    version = re.search(r"define CUDART_VERSION +(\d+)", (folder / "cuda_runtime_api.h").read_text())
    if version is None or int(version[1]) < 12080:
        pytest.skip("needs CUDA 12.8")
    return folder


def built(folder: Path, *fakes: str) -> Path:
    """The library that g++ makes of some of the host code and what plays the rest."""
    path = folder / "host.so"
    host = [*(name.removeprefix("fake_") for name in fakes), "memory", "runtime", "load"]
    sources = [ROOT / f"tests/support/{name}.cpp" for name in ("fake_cuda", *fakes)]
    sources += [ROOT / f"cuda/host/{name}.cpp" for name in host]
    if "fake_cudnn" not in fakes:  # which plays these, too
        sources += [ROOT / f"cpp/cpu/{name}.cpp" for name in ("platform", "control_group")]
    folders = [f"-I{folder}" for folder in (ROOT / "cpp", ROOT / "cuda", headers())]
    done = subprocess.run(["g++", *FLAGS, *folders, "-o", path, *sources, "-ldl"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return built(tmp_path_factory.mktemp("fake"))


@pytest.fixture(scope="module")
def cublaslt_file(tmp_path_factory):
    return built(tmp_path_factory.mktemp("fake"), "fake_cublaslt")


@pytest.fixture(scope="module")
def cudnn_file(tmp_path_factory):
    return built(tmp_path_factory.mktemp("fake"), "fake_cudnn")


def loaded(file: Path, folder: Path, **results: Any) -> ctypes.CDLL:
    """A copy of the file is a library of its own."""
    own = ctypes.CDLL(shutil.copy(file, folder))
    for name, result in {"fake_said": ctypes.c_char_p, "fake_is_broken": ctypes.c_bool, **results}.items():
        getattr(own, name).restype = result
    return own


@pytest.fixture
def cublaslt(cublaslt_file, tmp_path):
    return loaded(cublaslt_file, tmp_path, host_product=ctypes.c_int64)


@pytest.fixture
def cudnn(cudnn_file, tmp_path):
    return loaded(cudnn_file, tmp_path, host_make=ctypes.c_int64, host_is_unsupported=ctypes.c_bool)


class Host:
    """The library's functions. A copy of its file is a library of its own."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        for name in ("host_allocate", "host_empty_cache", "fake_used", "fake_waits", "fake_images"):
            getattr(self.library, name).restype = ctypes.c_size_t
        for name in ("fake_is_broken", "host_load"):
            getattr(self.library, name).restype = ctypes.c_bool
        self.capture, self.load = self.library.fake_capture, self.library.host_load
        self.used, self.waits, self.images = self.library.fake_used, self.library.fake_waits, self.library.fake_images
        self.empty_cache = self.library.host_empty_cache

    def allocate(self, nbytes: int, stream: int = 0) -> int:
        error = ctypes.create_string_buffer(500)
        at = self.library.host_allocate(ctypes.c_size_t(nbytes), ctypes.c_size_t(stream), error, ctypes.c_size_t(500))
        if not at:
            raise MemoryError(error.value.decode())
        return int(at)

    def drop(self, at: int, nbytes: int, *, exported: bool = False) -> None:
        self.library.host_deallocate_array(ctypes.c_size_t(at), ctypes.c_size_t(nbytes), exported)

    def whole(self) -> bool:
        """Whether no capture was broken."""
        return not self.library.fake_is_broken()


@pytest.fixture
def host(library, tmp_path):
    """A device that nobody has used."""
    return Host(shutil.copy(library, tmp_path))


def test_arrays_are_dropped_beside_any_capture(host):
    blocks = [(host.allocate(MB), exported) for exported in (False, True, False, True)]
    for capture, (at, exported) in zip((NON_BLOCKING, NON_BLOCKING, BLOCKING, BLOCKING), blocks, strict=True):
        host.capture(capture)
        host.drop(at, MB, exported=exported)
    assert host.whole()
    assert host.waits() == 0
    host.capture(NONE)
    assert host.empty_cache() == 4 * MB
    assert host.used() == 0


def test_exported_memory_is_not_used_again_before_the_device_was_waited_for(host):
    at = host.allocate(MB)
    host.drop(at, MB, exported=True)
    assert host.waits() == 0
    taken = [host.allocate(MB) for _ in range(10)]
    assert at not in taken
    host.drop(taken[0], MB)
    assert host.allocate(MB) == taken[0]  # in the order of its stream
    host.empty_cache()
    assert host.waits() > 0


def test_exported_memory_does_not_pile_up(host):
    for _ in range(1000):
        host.drop(host.allocate(10 * MB), 10 * MB, exported=True)
        assert host.used() <= 300 * MB
    assert 0 < host.waits() < 100


def test_no_memory_is_tried_again_with_what_was_kept(host):
    for exported in (False, True):
        blocks = [host.allocate(200 * MB) for _ in range(5)]
        for at in blocks:
            host.drop(at, 200 * MB, exported=exported)
        large = host.allocate(900 * MB)
        host.drop(large, 900 * MB)
        host.empty_cache()
        assert host.used() == 0


def test_no_memory_says_what_was_wanted_and_what_is_free(host):
    host.allocate(1000 * MB)
    for _ in range(2):
        with pytest.raises(MemoryError, match=rf"out of memory on cuda:0: {25 * MB} .* wanted, {24 * MB} of {ALL} are"):
            host.allocate(25 * MB)
    host.allocate(24 * MB)


def test_no_memory_beside_a_capture_that_can_be_seen_breaks_nothing(host):
    host.drop(host.allocate(600 * MB), 600 * MB)
    host.capture(BLOCKING)
    with pytest.raises(MemoryError):
        host.allocate(700 * MB, stream=64)
    assert host.whole()
    host.capture(NONE)
    host.allocate(700 * MB, stream=64)


def test_the_first_use_of_all_can_be_beside_a_capture(host):
    host.capture(NON_BLOCKING)
    host.drop(host.allocate(MB), MB)
    assert host.load()
    assert host.whole()


def test_an_image_without_its_kernel_is_unloaded(host):
    host.library.fake_has_kernel(False)
    for _ in range(3):
        assert not host.load()
    assert host.images() == 0
    host.library.fake_has_kernel(True)
    assert host.load()
    assert host.images() == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
def test_nothing_is_given_back_in_a_forked_child(host):
    at = host.allocate(MB)
    if os.fork() == 0:
        host.capture(NON_BLOCKING)
        host.drop(at, MB)
        host.drop(at, MB, exported=True)
        os._exit(not (host.empty_cache() == 0 and host.used() == MB and host.whole()))
    assert os.wait()[1] == 0


# ---- cuBLASLt

BATCHES, ROWS, COLS, DEPTH = 3, 5, 16, 8


class Matrix:
    """Batches of a matrix with `pad` elements behind each line; the lines are its columns where it is turned."""

    def __init__(self, rng, rows, cols, turned=False, pad=0):
        lines, size = (cols, rows) if turned else (rows, cols)
        self.memory = rng.standard_normal((BATCHES, lines, size + pad)).astype(np.float16)
        values = self.memory[:, :, :size]
        self.values = values.transpose(0, 2, 1) if turned else values
        step = size + pad
        self.fields = (ctypes.c_int64 * 3)(step, lines * step, turned)

    @property
    def address(self):
        return ctypes.c_void_p(self.memory.ctypes.data)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = [lambda x: x, lambda x: np.maximum(x, 0), gelu]


def test_products_lie_as_they_are_described(cublaslt):
    sweep(
        functools.partial(check_product, cublaslt),
        itertools.product([*itertools.product([False, True], repeat=2)], [False, True], [False, True], range(3)),
    )


def check_product(cublaslt, turned, has_bias, adds, activation):
    rng = np.random.default_rng(0)
    left = Matrix(rng, ROWS, DEPTH, turned[0], pad=8)
    right = Matrix(rng, DEPTH, COLS, not turned[1], pad=16)  # not turned: neighbours along the depth
    added, result = Matrix(rng, ROWS, COLS, pad=24), Matrix(rng, ROWS, COLS, pad=8)
    before = result.memory[:, :, COLS:].copy()
    bias = rng.standard_normal(COLS).astype(np.float16)
    workspace = cublaslt.host_product(
        (ctypes.c_int64 * 4)(BATCHES, ROWS, COLS, DEPTH),
        left.fields,
        (ctypes.c_int64 * 3)(right.fields[0], right.fields[1], turned[1]),
        added.fields,
        result.fields,
        left.address,
        right.address,
        added.address if adds else None,
        ctypes.c_void_p(bias.ctypes.data) if has_bias else None,
        result.address,
        activation,
    )
    want = left.values.astype(np.float64) @ right.values.astype(np.float64)
    want += added.values if adds else 0
    want += bias if has_bias else 0
    np.testing.assert_allclose(result.values, ACTIVATIONS[activation](want), rtol=2e-3, atol=2e-3)
    np.testing.assert_array_equal(result.memory[:, :, COLS:], before)
    assert workspace == 1024


def multiply(cublaslt, depth=DEPTH):
    rng = np.random.default_rng(0)
    left, right = Matrix(rng, ROWS, depth), Matrix(rng, COLS, depth)
    result = Matrix(rng, ROWS, COLS)
    sizes = (ctypes.c_int64 * 4)(BATCHES, ROWS, COLS, depth)
    arrays = (left.address, right.address, None, None, result.address, 0)
    return cublaslt.host_product(sizes, left.fields, right.fields, result.fields, result.fields, *arrays)


def test_the_library_is_told_of_addresses_and_sums(cublaslt):
    cublaslt.fake_capture(1)  # where the first product may be
    assert multiply(cublaslt) > 0
    assert not cublaslt.fake_is_broken()
    assert [cublaslt.fake_preference(i) for i in (5, 6, 7, 8)] == [16] * 4
    assert cublaslt.fake_preference(3) == 2  # partial sums are float32


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        (0, "starting the library failed: refused"),
        (1, "describing a product failed: refused"),
        (2, "has no kernel for a product"),
    ],
)
def test_plans_do_without_a_library_that_does_not_work(cublaslt, lacks, says):
    cublaslt.fake_lacks(lacks)
    assert multiply(cublaslt) == -1
    assert says in cublaslt.fake_said().decode()


# ---- cuDNN

HEURISTICS, PLAN, GRAPH, TENSOR, START, DESCRIBE = 4, 5, 15, 17, 100, 101
CAPABILITY = 11  # of the fake device
WITHOUT_LIBRARY, WITHOUT_KERNEL = -1, -2


@pytest.mark.parametrize(
    ("what", "statuses"),
    [(DESCRIBE, [3003]), (TENSOR, [3004]), (GRAPH, [3001]), (HEURISTICS, [3000]), (PLAN, [3002] * 4)],
)
def test_what_is_not_supported_is_not_asked_for_again_on_such_a_device(cudnn, what, statuses):
    for status in statuses:
        cudnn.fake_fail(what, status)
    assert cudnn.host_make(1) == WITHOUT_KERNEL
    assert cudnn.host_is_unsupported(1, CAPABILITY)
    assert not cudnn.host_is_unsupported(1, 90)
    assert not cudnn.host_is_unsupported(2, CAPABILITY)
    assert cudnn.host_make(2) > 0


@pytest.mark.parametrize(
    ("what", "statuses", "says"),
    [
        (START, [1001], "starting failed: refused: for a reason"),
        (START, [3005], "starting failed"),
        (DESCRIBE, [2000], "describing a kernel failed"),
        (GRAPH, [4003], "describing a kernel failed"),
        (HEURISTICS, [1008], "describing a kernel failed"),
        (PLAN, [4004] * 4, "no such kernel"),
        (PLAN, [3002, 3002, 4001, 3002], "no such kernel"),
        (PLAN, [3008] * 4, "no such kernel"),
    ],
)
def test_what_may_pass_is_done_without_and_asked_for_again(cudnn, what, statuses, says):
    for status in statuses:
        cudnn.fake_fail(what, status)
    assert cudnn.host_make(1) == WITHOUT_LIBRARY
    assert says in cudnn.fake_said().decode()
    assert not cudnn.host_is_unsupported(1, CAPABILITY)
    assert cudnn.host_make(1) > 0


def test_proposals(cudnn):
    """A later one is taken; where there is none a convolution is not supported."""
    for status in (4001, 3002, 3000):
        cudnn.fake_fail(PLAN, status)
    assert cudnn.host_make(1) > 0
    cudnn.fake_proposes(0)
    assert cudnn.host_make(2) == WITHOUT_KERNEL
    assert cudnn.host_is_unsupported(2, CAPABILITY)


def in_threads(count, function, *arguments):
    threads = [threading.Thread(target=function, args=arguments) for _ in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def test_threads_leave_their_handles_to_others(cudnn):
    for images in range(1, 9):
        in_threads(1, cudnn.host_make, images)
        in_threads(1, cudnn.host_run, images)
    assert cudnn.fake_handles() == 1


def test_threads_share_no_handle_at_a_time(cudnn):
    cudnn.host_make(1)
    for _ in range(5):
        in_threads(6, cudnn.host_run, 1)
    assert cudnn.fake_shared() == 0
    assert 1 < cudnn.fake_handles() <= 6


def test_the_first_convolution_may_be_in_a_capture(cudnn):
    cudnn.fake_capture(1)
    assert cudnn.host_make(1) > 0
    cudnn.host_run(1)
    assert not cudnn.fake_is_broken()
