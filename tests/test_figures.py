"""The script behind results/: its functions, on small arrays. Nothing here asserts a time."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from kfusion import _figures
from kfusion._versions import versions_of


@pytest.mark.parametrize("case", [*_figures.CPU_CASES, *_figures.GPU_CASES], ids=lambda c: c.function.__name__)
def test_every_case_becomes_one_kernel(case):
    arrays = [np.ones((3, case.rows_of or 4), np.float32)] * case.arrays
    arrays += [np.ones(case.rows_of, np.float32)] * case.parameters
    versions = versions_of(case.function)
    assert len(versions.fused.plan(*arrays).groups) == 1 < len(versions.unfused.plan(*arrays).groups)
    assert case.formula


def test_the_script_writes_what_it_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(_figures, "_CPU_PEERS", ("numpy",))
    monkeypatch.setattr(_figures, "_CALLS", 2)
    out = tmp_path / "figures.json"
    _figures.main(["cpu", "--out", str(out), "--bytes", "400000", "--repeats", "1", "--commit", "abc"])
    found = json.loads(out.read_text())
    assert [case["formula"] for case in found["cases"]] == [c.formula for c in _figures.CPU_CASES]
    assert found["commit"] == "abc"
    assert found["hardware"]["cpu"]["name"]
    assert found["host_us"]["numpy"] > 0
    text = capsys.readouterr().out
    for case in found["cases"]:
        assert case["formula"] in text
        elements = sum(math.prod(json.loads(a.removeprefix("float32"))) for a in case["arguments"].values())
        assert elements * 4 >= 190000, "half of the bytes, or more, are read"
        assert {"fused", "unfused", "copy", "numpy"} <= {row["name"] for row in case["rows"]}
