"""What a function reads and sets of Python's state: calls do what the plain function does, or an error says why they
cannot."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from state_reads import cases, differs

pytestmark = pytest.mark.native

CASES = cases() | cases("state_sets.txt")


@pytest.fixture(autouse=True)
def _no_modules():
    kept = np.geterr()
    yield
    np.seterr(**kept)
    for name in ("kf_case", "kf_case_m"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", CASES)
def test_as_the_plain_function(name):
    if "pandas" in CASES[name].text:
        pytest.importorskip("pandas")
    assert not differs(CASES[name], np.array([1.5, -2.0, 0.25]))
