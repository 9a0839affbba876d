"""cuda/host/cublaslt.cpp on a cuBLASLt without a GPU (fake_cublaslt.cpp), which takes layouts as documented."""

from __future__ import annotations

import ctypes
import shutil

import numpy as np
import pytest

from test_cuda_host import ROOT, built

pytestmark = pytest.mark.slow

SOURCES = [
    *(ROOT / f"tests/support/{name}.cpp" for name in ("fake_cuda", "fake_cublaslt")),
    *(ROOT / f"cuda/host/{name}.cpp" for name in ("cublaslt", "memory", "runtime", "load")),
    *(ROOT / f"cpp/cpu/{name}.cpp" for name in ("platform", "control_group")),
]
BATCHES, ROWS, COLS, DEPTH = 3, 5, 16, 8


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return built(tmp_path_factory.mktemp("fake"), SOURCES)


@pytest.fixture
def library(file, tmp_path):
    """A copy of the file is a library of its own."""
    loaded = ctypes.CDLL(shutil.copy(file, tmp_path))
    loaded.host_product.restype = ctypes.c_int64
    loaded.fake_said.restype = ctypes.c_char_p
    loaded.fake_is_broken.restype = ctypes.c_bool
    return loaded


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


@pytest.mark.parametrize("activation", range(3))
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_products_lie_as_they_are_described(library, turned, has_bias, adds, activation):
    rng = np.random.default_rng(0)
    left = Matrix(rng, ROWS, DEPTH, turned[0], pad=8)
    right = Matrix(rng, DEPTH, COLS, not turned[1], pad=16)  # not turned: neighbours along the depth
    added, result = Matrix(rng, ROWS, COLS, pad=24), Matrix(rng, ROWS, COLS, pad=8)
    before = result.memory[:, :, COLS:].copy()
    bias = rng.standard_normal(COLS).astype(np.float16)
    workspace = library.host_product(
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


def multiply(library, depth=DEPTH):
    rng = np.random.default_rng(0)
    left, right = Matrix(rng, ROWS, depth), Matrix(rng, COLS, depth)
    result = Matrix(rng, ROWS, COLS)
    sizes = (ctypes.c_int64 * 4)(BATCHES, ROWS, COLS, depth)
    arrays = (left.address, right.address, None, None, result.address, 0)
    return library.host_product(sizes, left.fields, right.fields, result.fields, result.fields, *arrays)


def test_the_library_is_told_of_addresses_and_sums(library):
    assert multiply(library) > 0
    assert [library.fake_preference(i) for i in (5, 6, 7, 8)] == [16] * 4
    assert library.fake_preference(3) == 2  # partial sums are float32


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        (0, "starting the library failed: refused"),
        (1, "describing a product failed: refused"),
        (2, "has no kernel for a product"),
    ],
)
def test_plans_do_without_a_library_that_does_not_work(library, lacks, says):
    library.fake_lacks(lacks)
    assert multiply(library) == -1
    assert says in library.fake_said().decode()


def test_the_first_product_may_be_in_a_capture(library):
    library.fake_capture(1)
    assert multiply(library) > 0
    assert not library.fake_is_broken()
