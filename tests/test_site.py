"""The site: what its hooks make of files, and that docs/api.md has every public name. CI builds it, strictly."""

from __future__ import annotations

import json
import re
import sys

import pytest

import kfusion as kf
from test_docs import PAGES, ROOT, anchors
from tools import api


def test_the_api_page_is_up_to_date():
    """If not: python -m tools.api."""
    text = api.text()
    for name in kf.__all__:
        known = rf"[.`/ ]{re.escape(name)}[`(\n]|### {re.escape(name)}\n"
        assert re.search(known, text) or re.match("(un)?fused_|__version__", name), name
    if sys.version_info[:2] == (3, 11):  # signatures are written differently by each Python
        assert api.PAGE.read_text() == text


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [page for page in PAGES if not page.startswith(("cpp/", "python/"))]
    notebooks = [f"notebooks/{path.name}.md" for path in (ROOT / "notebooks").glob("*.ipynb")]
    assert [page for page in (*pages, *notebooks) if f": {page}\n" not in navigation] == []


def test_hooks():
    pytest.importorskip("mkdocs")
    from tools import pages

    heading = "The way of a call: `kf.fuse(f)`, 2"
    page = ROOT / "docs" / "using.md"
    assert {pages.anchor(h) for h in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)} == anchors(page)
    assert pages.anchor(heading) == "the-way-of-a-call-kffusef-2"
    notebook = json.loads((ROOT / "notebooks" / "01_relu_layernorm.ipynb").read_text())
    text = pages.notebook_page(notebook)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert text.count("````python\n") == len(code)
    assert "data:image/png;base64," in text
    assert "\x1b" not in text


def test_the_citation_is_of_this_version():
    assert f"\nversion: {kf.__version__}\n" in (ROOT / "CITATION.cff").read_text()
