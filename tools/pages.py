"""Hooks of mkdocs.yml: the site's pages are files of the source tree, in their places there; notebooks become pages.

Links from a page to a file that is no page (a source file, a test) lead nowhere on the site, so they become plain text.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "results/*.md", "notebooks/*.ipynb")
_OTHERS = ("results/*.png", "results/*.json", "CITATION.cff")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Headings get the anchors that GitHub gives them, which the pages' links use."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = lambda text, separator: anchor(text)
    config.watch += [str(ROOT / name) for name in ("README.md", "notebooks", "results")]
    return config


def anchor(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the site, by their paths in the source tree; the theme's stay."""
    kept = [file for file in files if not file.src_uri.endswith(".md")]
    for pattern in (*_PAGES, *_OTHERS):
        for path in sorted(ROOT.glob(pattern)):
            uri = path.relative_to(ROOT).as_posix()
            if path.suffix == ".ipynb":
                kept.append(File.generated(config, f"{uri}.md", content=notebook_page(json.loads(path.read_text()))))
            else:
                kept.append(File.generated(config, uri, abs_src_path=str(path)))
    return Files(kept)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to notebooks lead to their pages, those to files that are no pages become text."""
    folder = posixpath.dirname(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        text, target, fragment = match[1], match[2], match[3] or ""
        uri = posixpath.normpath(posixpath.join(folder, target))
        if uri.endswith(".ipynb"):
            return f"[{text}]({target}.md{fragment})"
        return match[0] if files.get_file_from_path(uri) else text

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)  # no links in code
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


# ---- notebooks ------------------------------------------------------------------------------------------------------


def notebook_page(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown: text, code, and what was committed as its output."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _cell(cell))


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
    elif cell["cell_type"] == "code" and source.strip():
        yield _fenced(source, "python")
        for output in cell.get("outputs", ()):
            yield _output(output)


def _output(output: dict[str, Any]) -> str:
    """The richest form that a page can show."""
    if "text" in output:
        return _fenced(_ANSI.sub("", "".join(output["text"])), "text")
    data = {kind: "".join(value) for kind, value in output.get("data", {}).items() if isinstance(value, (str, list))}
    if "image/png" in data:
        return f'<img alt="output" src="data:image/png;base64,{data["image/png"].strip()}">'.replace("\n", "")
    if "text/markdown" in data:
        return data["text/markdown"].replace("][", "]\\[")  # an index, no reference
    if "text/html" in data:
        return "<div>" + re.sub(r"\n\s*\n", "\n", data["text/html"]) + "</div>"
    return _fenced(data.get("text/plain", ""), "text")


def _fenced(text: str, language: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"
