"""docs/functions.md is what tools/functions.py writes."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tools import functions  # noqa: E402 - needs torch


def test_the_page_is_up_to_date():
    said = functions.PAGE.read_text()
    versions = f"with NumPy {functions._release(np.__version__)} and torch {functions._release(torch.__version__)}"
    if versions not in said:
        pytest.skip("the page is of other versions")
    assert said == functions.text()


@pytest.mark.skipif(importlib.util.find_spec("tools") is None, reason="not in a checkout")
def test_kinds_share_no_name():
    rows = [line for line in functions.text().replace("\n", " ").split("**") if line.startswith(" (")]
    numpy, others = rows[:4], rows[7:11]
    for of_library in (numpy, others):
        names = [set(row.split(": ", 1)[1].split(";")[0].split("`")[1::2]) for row in of_library]
        assert all(names)
        assert sum(map(len, names)) == len(set.union(*names))
