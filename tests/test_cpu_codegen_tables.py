"""Generated loops of elements at positions that are data: NumPy's elements, and the interpreter's bits where maps
are promised to have them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from graph_runs import draw
from kinds import ALL_DTYPES, DTYPES
from loops_by import assert_same_bits, generated

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(find_spec("llvmlite") is None, reason="llvmlite compiles generated loops"),
]


def positions(rng: np.random.Generator, extent: int, shape: Any, dtype: str = "int64") -> np.ndarray:
    return rng.integers(-extent, extent, shape).astype(dtype)


class TestValues:
    @pytest.mark.parametrize("dtype", ALL_DTYPES)
    def test_rows(self, dtype, isa, rng):
        """One index for a row: its elements lie side by side."""
        cols, index = rng.choice([32, 63, 64, 65, 300]), rng.choice(["int32", "int64"])
        x, i = draw(rng, dtype, (9, cols)), positions(rng, 9, 20, index)
        for table in (x, x[::-2].repeat(2, 0)[:, ::-1][:9], np.asfortranarray(x)):
            n = len(table)
            got = assert_same_bits(lambda x, i: kf.take(x, i, 0), table, i % n)
            assert got.tobytes() == table[i % n].tobytes()
        assert generated(lambda x, i: kf.take(x, i, 0), x, i).tobytes() == x[i].tobytes()

    @pytest.mark.parametrize("dtype", ALL_DTYPES)
    def test_elements(self, dtype, isa, rng):
        """An index for each element, along the row, across it, and of both axes."""
        cols, index = rng.choice([33, 64, 65, 300]), rng.choice(["int32", "int64"])
        x = draw(rng, dtype, (9, 41))
        i = positions(rng, 41, (9, cols), index)
        assert_same_bits(lambda x, i: kf.take_along_axis(x, i, 1), x, i)
        assert_same_bits(lambda x, i: kf.take_along_axis(x, i, 1), x[::-1, ::-1], i[:, ::-1])
        across = positions(rng, 9, (20, 41), index)
        got = assert_same_bits(lambda x, i: kf.take_along_axis(x, i, 0), x, across)
        assert got.tobytes() == np.take_along_axis(x, across, 0).tobytes()
        one, other = positions(rng, 9, cols, index), positions(rng, 41, cols, index)
        got = assert_same_bits(lambda x, i, j: x[i, j], x, one, other)
        assert got.tobytes() == x[one, other].tobytes()

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_several_tables_with_maps_around(self, dtype, isa, rng):
        x, y, i = draw(rng, dtype, (9, 70)), draw(rng, dtype, (70, 5)), positions(rng, 9, 30)
        j = positions(rng, 5, (30, 1))
        assert_same_bits(lambda x, y, i: kf.sqrt(abs(kf.take(x, i, 0))) + kf.take(x, -1 - i, 0) * 2, x, y, i)
        assert_same_bits(lambda x, y, i: kf.take(x, i, 0) + kf.take(y, i % 5, 1).T, x, y, i)
        assert_same_bits(
            lambda x, y, i, j: kf.take_along_axis(x[:1] + x[i], kf.minimum(j + j, 69), 1) * y[:1, :1], x, y, i, j
        )

    def test_indices_of_indices(self, isa, rng):
        x, i, j = draw(rng, "float32", (9, 70)), positions(rng, 9, 12), positions(rng, 12, (30,))
        got = assert_same_bits(lambda x, i, j: kf.take(x, kf.take(i, j, 0), 0) + 1, x, i, j)
        np.testing.assert_array_equal(got, x[i[j]] + 1)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_rows_that_are_reduced(self, dtype, isa, rng):
        x, i = draw(rng, dtype, (9, 130)), positions(rng, 9, 20)
        along = positions(rng, 130, (9, 100))
        got = generated(lambda x, i: kf.take(x, i, 0).max(-1), x, i)
        np.testing.assert_array_equal(got, x[i].max(-1))
        got = generated(lambda x, i: kf.take_along_axis(x, i, 1).min(-1), np.repeat(x, 2, 0), np.repeat(along, 2, 0))
        np.testing.assert_array_equal(got, np.repeat(np.take_along_axis(x, along, 1).min(-1), 2))

    def test_an_index_that_a_reduction_gives(self, isa, rng):
        x, i = draw(rng, "float64", (20, 130)), positions(rng, 20, (20, 130))
        got = generated(lambda x, i: x + kf.take_along_axis(x, i.max(1, keepdims=True), 1), x, i)
        np.testing.assert_array_equal(got, x + np.take_along_axis(x, i.max(1, keepdims=True), 1))

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_copies_keep_all_bits_of_half_types(self, dtype, isa, rng):
        """NaN's, too."""
        x = rng.integers(0, 2**16, (9, 1000)).astype(np.uint16).view(draw(rng, dtype, 1).dtype)
        i = positions(rng, 9, 40)
        assert generated(lambda x, i: kf.take(x, i, 0), x, i).tobytes() == x[i].tobytes()

    def test_past_the_caches(self, isa, rng):
        x, i = rng.standard_normal((50, 5001), np.float32)[:, 1:], positions(rng, 50, 2000)
        assert generated(lambda x, i: kf.take(x, i, 0), x, i).tobytes() == x[i].tobytes()

    def test_threads_do_not_change_bits(self, threads, rng):
        x, i = rng.standard_normal((500, 700)).astype(np.float32), positions(rng, 700, (500, 2000))
        results = []
        for n in (1, 2, 3):
            threads(n)
            results.append(generated(lambda x, i: kf.take_along_axis(x, i, 1) * 3, x, i).tobytes())
        assert results[0] == results[1] == results[2]


class TestPositionsThatThereAreNot:
    @pytest.mark.parametrize("bad", [9, -10, 2**40, 2**62, -(2**63), 2**63 - 1])
    def test_each_is_reported(self, bad, isa, threads, rng):
        place = rng.choice([0, 15, 16, 63, 64, 99, -1])
        x = rng.standard_normal((9, 100)).astype(np.float32)
        rows, elements = positions(rng, 9, 100), positions(rng, 9, (30, 100))
        rows[place], elements[place % 30, place] = bad, bad
        message = f"take: index {bad} is out of bounds for axis 0 with size 9"
        for n in (1, 2):
            threads(n)
            for i in (rows, elements):
                for f in (lambda x, i: kf.take(x, i, 0) + 1, lambda x, i: kf.take(x[:, 0], i, 0) + 1):
                    with pytest.raises(IndexError, match=message):
                        generated(f, x, i)
            with pytest.raises(IndexError, match=message):
                generated(lambda x, i: kf.take(x, i, 0).max(-1), x, rows)
            with pytest.raises(IndexError, match=message.replace("take", "take_along_axis")):
                generated(lambda x, i: kf.take_along_axis(x, i, 0).max(-1), x, elements)

    def test_the_first_of_a_row_is_named(self, isa, rng):
        x, i = rng.standard_normal(9), positions(rng, 9, 200)
        i[[70, 71, 150]] = [-100, 50, 60]
        with pytest.raises(IndexError, match="index -100 is"):
            generated(lambda x, i: kf.take(x, i, 0), x, i)

    def test_negative_ones_where_they_must_not_be(self, isa):
        torch = pytest.importorskip("torch")
        x, i = torch.randn(9, 100), torch.tensor([3, -1] * 40)
        with pytest.raises(IndexError, match=r"embedding: index -1 is out of bounds .* must not be negative"):
            generated(lambda x, i: torch.nn.functional.embedding(i, x), x, i)
        with pytest.raises(IndexError, match=r"gather: index -1 is out of bounds .* must not be negative"):
            generated(lambda x, i: torch.gather(x, 0, i[:, None] * torch.ones(1, 100, dtype=torch.int64)) + 1, x, i)

    def test_nothing_is_read_there(self, isa):
        """Before and behind the table are pages that nobody may read."""
        mmap, ctypes = pytest.importorskip("mmap"), pytest.importorskip("ctypes")
        page = mmap.PAGESIZE
        memory = mmap.mmap(-1, 3 * page)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        protect = ctypes.CDLL(None).mprotect
        for guard in (begin, begin + 2 * page):
            assert protect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0
        try:
            for dtype in ("float32", "float64", "int8"):
                whole = np.frombuffer(memory, np.uint8, page, page).view("bool" if dtype == "int8" else dtype)
                x = whole.reshape(4, -1)
                for bad in (4, -5, 1 << 33):
                    i = np.array([0, 3, bad] * 30)
                    for index in (i, i[:, None] + np.zeros((1, x.shape[1]), int)):
                        f = kf.take if index.ndim == 1 else kf.take_along_axis
                        with pytest.raises(IndexError, match=f"index {bad} is"):
                            generated(lambda x, i, f=f: f(x, i, 0), x, index)
                n = len(whole)
                for bad in (n, -n - 1):
                    with pytest.raises(IndexError, match=f"index {bad} is"):
                        generated(lambda x, i: kf.take(x, i, 0), whole, np.array([n - 1, -n, bad] * 30))
                assert generated(lambda x, i: kf.take(x, i, 0), whole, np.array([n - 1, -n] * 33)).shape == (66,)
        finally:
            for guard in (begin, begin + 2 * page):
                protect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 3)
