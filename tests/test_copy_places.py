"""Copies from any place of a page to any other."""

from __future__ import annotations

import numpy as np
import pytest

from kfusion import _core

pytestmark = pytest.mark.native

PAGE = 4096


@pytest.mark.parametrize("elements", [1, 511, 512, 513, 1025, 50_000])
def test_copies_between_places_of_a_page(rng, elements):
    """Where the target lies just behind the source in its page, the copy is made by pieces."""
    source = rng.standard_normal(elements + PAGE, np.float32)
    around = np.empty(elements + 4 * PAGE, np.float32)
    same_place = (source.ctypes.data - around.ctypes.data) % PAGE // 4 + 64
    for ahead in (*range(-17, 18), 500, 1000):
        around[:] = 7
        begin = same_place + ahead
        target = around[begin : begin + elements]
        _core.copy(source[:elements], out=target)
        assert np.array_equal(target, source[:elements])
        assert (around[:begin] == 7).all()
        assert (around[begin + elements :] == 7).all()
