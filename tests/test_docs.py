"""The pages: files that they name exist, links lead somewhere, examples print what they say; what the site has."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path

import pytest

import kfusion as kf
from tools import api, examples

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "cmake", "cpp", "cuda", "docs", "notebooks", "python", "results", "tests", "tools")
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/*.md", "results/*.md", "cpp/**/*.md", "python/**/*.md")
    for path in ROOT.glob(pattern)
)
FILES = [f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
FILES += [f"/{path.name}" for path in ROOT.iterdir() if path.is_file()] + ["/.ci/run", "/.ci/gpu"]  # not in the sdist
EXAMPLES = {"ops.json", "model.py"}  # files of users

# What in backticks is a path: names with a folder or one of our suffixes.
PATH = re.compile(r"(?:\.?[\w*-]+/)*[\w*.-]+\.(?:cpp|hpp|cu|cuh|def|py|md|json|cmake|ipynb|toml)|(?:\.?[\w-]+/)+[\w-]*")
NAMED = re.compile(r"((?:`[\w.:]+`(?:, | and )?)+) (?:of|in) `([\w./-]+\.(?:py|cpp|hpp|def|cuh))`")
COMMAND = re.compile(rf"(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]+")
TREE = re.compile(r"^ {4}( *)([\w./-]+/) ", re.MULTILINE)


def paths(text: str) -> list[str]:
    """Those named in backticks, alone or in a command, and those of a tree of folders."""
    spans = re.findall(r"`([^`\n]+)`", text)
    found = [span for span in spans if PATH.fullmatch(span) and span not in EXAMPLES]
    found += [word for span in spans for word in span.split()[1:] if COMMAND.fullmatch(word)]
    parent = ""
    for indent, folder in TREE.findall(text):
        parent = parent if indent else folder
        found.append(parent + folder if indent else folder)
    return found


def exists(path: str) -> bool:
    """Whether a file of this project has the path or ends in it, or lies in a folder that does."""
    inside = path.rstrip("/")
    return any(fnmatch(file, pattern) for pattern in (f"*/{inside}", f"*/{inside}/*") for file in FILES)


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_pages():
    """Files that they name exist, links resolve, names are in the files that pages name (`a`, `b` of `file`), lines fit
    a screen: at most 160 characters, but for rows of tables and code."""
    assert {"README.md", "docs/architecture.md", "docs/how-to.md", "cpp/README.md", "results/cpu.md"} <= set(PAGES)
    wrong = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        wrong += [(page, path) for path in paths(text) if not exists(path)]
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            name, _, anchor = target.partition("#")
            linked = (ROOT / page).parent / name if name else ROOT / page
            if not target.startswith("https://") and not (
                linked.exists() and (not anchor or anchor in anchors(linked))
            ):
                wrong.append((page, target))
        for names, path in NAMED.findall(text):
            texts = [(ROOT / file[1:]).read_text() for file in FILES if file.endswith(f"/{path}")]
            last = [re.split("[.:]+", name)[-1] for name in re.findall("`(.*?)`", names) if "NAME" not in name]
            wrong += [(page, n, path) for n in last if not any(re.search(rf"\b{n}\b", there) for there in texts)]
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        wrong += [(page, line) for line in prose.splitlines() if len(line) > 160 and not line.startswith("|")]
    assert wrong == []


def test_a_wrong_path_is_seen():
    text = "`cpp/no_such.cpp`, `no/such/`, `x / y`, `kf.fuse`, `python tests/no_such.py`\n    cpp/  a\n      b/  c\n"
    assert paths(text) == ["cpp/no_such.cpp", "no/such/", "tests/no_such.py", "cpp/", "cpp/b/"]
    assert all(map(exists, ("graph/builder.hpp", "cpp/backends/", "bind_*.cpp")))
    assert not any(map(exists, ("cpp/no_such.cpp", "no/such/", "uilder.hpp", "cpp/b/")))


def test_pages_are_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
    assert len((ROOT / "docs/architecture.md").read_text().splitlines()) <= 200
    assert "../docs/architecture.md" in "".join((ROOT / "cpp/README.md").read_text().splitlines()[:4])  # its old place
    terms = re.findall(r"^\| ([a-z].*?) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)[1:]
    assert len(terms) <= 40
    assert [re.sub(r" \(.*", "", term) for term in terms] == sorted({re.sub(r" \(.*", "", term) for term in terms})


# Comments and docstrings that leave out what they speak about; a line after a comment's line may go on with a sentence.
SUBJECTLESS = re.compile(r'(?:(?:^|\s)(?://[/<]*|#)|"""|^\s*\*) ?(?:Of|Likewise|The same)\b')
SOURCES = [path for path in FILES if path.endswith((".py", ".cpp", ".hpp", ".cu", ".cuh", ".def", ".cmake"))]


def subjectless(text: str) -> list[str]:
    """The lines that begin such a comment or docstring."""
    lines = text.splitlines()
    is_comment = [False, *(line.lstrip().startswith(("//", "#", "*")) for line in lines)]
    goes_on = map(all, pairwise(is_comment))
    return [line for line, behind in zip(lines, goes_on, strict=True) if not behind and SUBJECTLESS.search(line)]


def test_comments_begin_with_their_subject():
    found = {path: subjectless((ROOT / path[1:]).read_text()) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}
    for word in ("Of rows", "Likewise", "The same"):
        text = f'x;\n  /// {word}.\nint y;  ///< {word}\n    """{word}."""\n# Sums.\n# {word}.\n'
        assert len(subjectless(text)) == 3
        assert subjectless(text.replace(word, "Sum of rows")) == []


# ---- examples: python -m tools.examples writes what they print


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


# ---- the site, which CI builds strictly; python -m tools.api writes docs/api.md


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
