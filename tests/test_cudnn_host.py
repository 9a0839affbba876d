"""cuda/host/cudnn.cpp on a cuDNN without a GPU (fake_cudnn.cpp): where it fails, and who has its handles."""

from __future__ import annotations

import ctypes
import shutil
import threading

import pytest

from test_cuda_host import ROOT, built

pytestmark = pytest.mark.slow

SOURCES = [
    *(ROOT / f"tests/support/{name}.cpp" for name in ("fake_cuda", "fake_cudnn")),
    *(ROOT / f"cuda/host/{name}.cpp" for name in ("cudnn", "memory", "runtime", "load")),
]
HEURISTICS, PLAN, GRAPH, TENSOR, START, DESCRIBE = 4, 5, 15, 17, 100, 101
CAPABILITY = 11  # of the fake device
WITHOUT_LIBRARY, WITHOUT_KERNEL = -1, -2


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return built(tmp_path_factory.mktemp("fake"), SOURCES)


@pytest.fixture
def library(file, tmp_path):
    """A copy of the file is a library of its own."""
    loaded = ctypes.CDLL(shutil.copy(file, tmp_path))
    loaded.host_make.restype = ctypes.c_int64
    loaded.fake_said.restype = ctypes.c_char_p
    loaded.host_is_unsupported.restype = loaded.fake_is_broken.restype = ctypes.c_bool
    return loaded


@pytest.mark.parametrize(
    ("what", "statuses"),
    [(DESCRIBE, [3003]), (TENSOR, [3004]), (GRAPH, [3001]), (HEURISTICS, [3000]), (PLAN, [3002] * 4)],
)
def test_what_is_not_supported_is_not_asked_for_again_on_such_a_device(library, what, statuses):
    for status in statuses:
        library.fake_fail(what, status)
    assert library.host_make(1) == WITHOUT_KERNEL
    assert library.host_is_unsupported(1, CAPABILITY)
    assert not library.host_is_unsupported(1, 90)
    assert not library.host_is_unsupported(2, CAPABILITY)
    assert library.host_make(2) > 0


def test_nothing_proposed_is_not_supported(library):
    library.fake_proposes(0)
    assert library.host_make(1) == WITHOUT_KERNEL
    assert library.host_is_unsupported(1, CAPABILITY)


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
def test_what_may_pass_is_done_without_and_asked_for_again(library, what, statuses, says):
    for status in statuses:
        library.fake_fail(what, status)
    assert library.host_make(1) == WITHOUT_LIBRARY
    assert says in library.fake_said().decode()
    assert not library.host_is_unsupported(1, CAPABILITY)
    assert library.host_make(1) > 0


def test_a_later_proposal_is_taken(library):
    for status in (4001, 3002, 3000):
        library.fake_fail(PLAN, status)
    assert library.host_make(1) > 0


def in_threads(count, function, *arguments):
    threads = [threading.Thread(target=function, args=arguments) for _ in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def test_threads_leave_their_handles_to_others(library):
    for images in range(1, 9):
        in_threads(1, library.host_make, images)
        in_threads(1, library.host_run, images)
    assert library.fake_handles() == 1


def test_threads_share_no_handle_at_a_time(library):
    library.host_make(1)
    for _ in range(5):
        in_threads(6, library.host_run, 1)
    assert library.fake_shared() == 0
    assert 1 < library.fake_handles() <= 6


def test_the_first_convolution_may_be_in_a_capture(library):
    library.fake_capture(1)
    assert library.host_make(1) > 0
    library.host_run(1)
    assert not library.fake_is_broken()
