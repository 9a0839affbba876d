"""What a function reads of Python's state: calls after a change do what the plain function does, or an error says why
they cannot."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from state_reads import cases, differs

pytestmark = pytest.mark.native

CASES = cases()


@pytest.fixture(autouse=True)
def _no_modules():
    yield
    for name in ("kf_case", "kf_case_m"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", CASES)
def test_as_the_plain_function(name):
    assert not differs(CASES[name], np.array([1.5, -2.0, 0.25]))
