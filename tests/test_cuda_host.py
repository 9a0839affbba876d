"""cuda/host/ on a runtime without a GPU (fake_cuda.cpp): memory and images beside captures, after errors, and when no
memory is left."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SOURCES = [
    ROOT / "tests/support/fake_cuda.cpp",
    *(ROOT / f"cuda/host/{name}.cpp" for name in ("memory", "runtime", "load")),
    *(ROOT / f"cpp/cpu/{name}.cpp" for name in ("platform", "control_group")),
]
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


def built(folder: Path, sources: list[Path]) -> Path:
    """The library that g++ makes of some of the host code and what plays the rest."""
    path = folder / "host.so"
    folders = [f"-I{folder}" for folder in (ROOT / "cpp", ROOT / "cuda", headers())]
    done = subprocess.run(["g++", *FLAGS, *folders, "-o", path, *sources, "-ldl"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return built(tmp_path_factory.mktemp("fake"), SOURCES)


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
