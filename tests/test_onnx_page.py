"""docs/onnx.md is what tools/onnx_operators.py writes."""

from __future__ import annotations

import json

import pytest

onnx = pytest.importorskip("onnx")

from tools import onnx_operators  # noqa: E402 - needs onnx


def test_the_page_is_up_to_date():
    if json.loads(onnx_operators.RESULTS.read_text())["onnx"] != onnx.__version__:
        pytest.skip("the page is of another version")
    assert onnx_operators.PAGE.read_text() == onnx_operators.text()


def test_no_case_is_wrong():
    results = json.loads(onnx_operators.RESULTS.read_text())
    assert not results["failed"]
    assert results["total"]["cases"] == results["total"]["run"] + results["total"]["refused"]
