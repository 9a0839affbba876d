"""The examples of the pages run, and print what the pages say: tools/examples.py. If not: python -m tools.examples."""

from __future__ import annotations

import importlib.util

import pytest

from tools import examples

NEED_TORCH = {"docs/start-torch.md"}


@pytest.mark.parametrize("page", examples.PAGES)
def test_examples_run_and_print_what_the_page_says(page, tmp_path, monkeypatch):
    if page in NEED_TORCH and importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    monkeypatch.chdir(tmp_path)  # examples may write files
    text = (examples.ROOT / page).read_text()
    assert "```python" in text
    assert examples.rewritten(text, str(examples.ROOT / page)) == text


def test_outputs_are_made_anew():
    page = "a\n```python\nx = 1\nprint(x)\n```\n\n```text\n2\n```\nb\n```python\nprint(x + 1)\n```\n```py\n1 / 0\n```\n"
    assert examples.rewritten(page) == page.replace("2\n```", "1\n```")
    assert examples.rewritten(examples.rewritten(page)) == examples.rewritten(page)


def test_an_error_names_the_line_of_the_page():
    with pytest.raises(ZeroDivisionError) as info:
        examples.rewritten("a\n\n```python\nx = 1\n1 / 0\n```\n", "page.md")
    trace = info.traceback[-1]
    assert (str(trace.path).endswith("page.md"), trace.lineno + 1) == (True, 5)
