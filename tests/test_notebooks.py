"""The tutorials run, and are committed executed and free of machine-specific metadata. Outputs are never compared."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")

pytestmark = pytest.mark.slow
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NEED_TORCH = ("04_products_and_their_epilogues", "05_training")
CELL_FILE = r"\b\d{6,}\.py\b"  # what Jupyter compiles a cell as
# Times are not looked at here: one sample of each is enough. torch's threads sleep while they wait. If they spin, other
# tests on the same cores slow a training step down by a factor of ten and more.
QUICK = """
import os

os.environ["OMP_WAIT_POLICY"] = "passive"
from kfusion import _timing

_timing.measure = lambda *args, measure=_timing.measure, **options: measure(*args, **{**options, "repeats": 1})
del _timing, os
"""


def load_execute():
    spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def test_there_are_notebooks():
    assert [path.name for path in NOTEBOOKS] == [
        "01_relu_layernorm.ipynb",
        "02_what_fusion_saves.ipynb",
        "03_fuse_your_own.ipynb",
        "04_products_and_their_epilogues.ipynb",
        "05_training.ipynb",
    ]


# The client's own event loops and sockets are not ours to close.
@pytest.mark.filterwarnings("default::ResourceWarning", "default::DeprecationWarning", "default::RuntimeWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_without_error_or_warning(path):
    if path.stem in NEED_TORCH:
        pytest.importorskip("torch")
    before = path.read_bytes()
    notebook = load_execute().execute(path, first=QUICK)
    nbformat.validate(notebook)
    assert [o.text for o in outputs(notebook) if o.get("name") == "stderr"] == []
    assert any("image/png" in o.get("data", {}) for o in outputs(notebook))
    assert not re.search(CELL_FILE, json.dumps(notebook)), "a cell's line is named by the cell's number"
    assert path.read_bytes() == before


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_committed_as_execute_writes_it(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run python notebooks/execute.py"
    assert any("image/png" in o.get("data", {}) for o in outputs(notebook))
    assert not any(o.output_type == "error" or o.get("name") == "stderr" for o in outputs(notebook))
    assert load_execute().stripped(nbformat.from_dict(notebook)) == notebook
    text = path.read_text()
    assert not any(trace in text for trace in ("/home/", "/Users/", "/tmp/", "/root/", "site-packages"))
    assert not re.search(CELL_FILE, text)
