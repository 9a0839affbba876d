"""The functions that have a name of the array API standard, beside array-api-strict's."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("array_api_strict")
import array_api

PAGE = Path(__file__).parents[1] / "docs" / "array-api.md"
FUNCTIONS = [row for section in array_api.SECTIONS.values() for row in array_api.rows(section)]


@pytest.mark.parametrize(("name", "cells", "missing"), FUNCTIONS, ids=[name for name, *_ in FUNCTIONS])
def test_values_are_the_standards(name, cells, missing):
    other = set(cells) - {array_api.YES, array_api.ABSENT}
    assert other == ({"float64"} if name == "round" else set())
    assert array_api.YES in cells


def test_the_page_has_these_tables():
    page = PAGE.read_text()
    if f"array-api-strict {array_api.xp.__version__}." not in page:
        pytest.skip("the page was written with another version of array-api-strict")
    assert page.partition(array_api.MARK)[2] == "\n" + array_api.tables(), (
        "run `python tests/support/array_api.py docs/array-api.md`"
    )
