"""Gradients of torch's own database of its operators, where the argument is what it may not be: zeros, ties, bounds,
infinities, NaN, masked rows. Needs torch's test utilities, and what those import (expecttest).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")
pytest.importorskip("torch.testing._internal.common_methods_invocations")
import op_gradients

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of some of its operators


def wrong(entries, seed, samples):
    with op_gradients.one_thread():
        return [str(d) for op in entries for d in op_gradients.differences(op, np.random.default_rng(seed), samples, 1)]


def test_some_entries(seed):
    assert wrong(op_gradients.ENTRIES[seed % 40 :: 40], seed, 1) == []


@pytest.mark.slow
def test_all_entries(seed, rng, is_sampled):
    """In a sample of the tests a tenth of them, which is drawn."""
    some = [op for op in op_gradients.ENTRIES if rng.integers(10) == 0] if is_sampled else op_gradients.ENTRIES
    assert wrong(some, seed, 3) == []


def test_the_docs_list_what_differs():
    text = (Path(__file__).parents[1] / "docs" / "using.md").read_text().replace("\n", " ")
    for reason, _, names in op_gradients.DIFFERENT:
        assert reason in text
        assert all(f"`{name}`" in text for name in names)
