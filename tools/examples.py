"""Runs the examples of the pages, and writes what they print below them.

    python -m tools.examples [PAGE ...]

Of a page of PAGES every block of ```python runs, one after the other, with the names that those before have made. A
block of ```text right behind one is what it prints. Blocks of ```py do not run: they need what not every machine has,
or minutes. A test compares the pages with what this program writes.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/start-student.md",
    "docs/start-numpy.md",
    "docs/start-torch.md",
    "docs/reading-a-plan.md",
    "docs/recipes.md",
    "docs/when-not.md",
    "docs/troubleshooting.md",
)
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
_WIDTH = "80"  # of tables, in characters


def rewritten(text: str, page: str = "<page>") -> str:
    """The text of a page with the output of each block that has one made anew.

    Raises:
        Exception: whatever a block raises; its lines are numbered as in the page.
    """
    names: dict[str, Any] = {"__name__": "__main__"}

    def block(match: re.Match[str]) -> str:
        first_line = text.count("\n", 0, match.start(1))
        printed = _run("\n" * first_line + match[1], page, names)
        code = f"```python\n{match[1]}```\n"
        return code if match[2] is None else f"{code}\n```text\n{printed}```\n"

    return _BLOCK.sub(block, text)


def _run(code: str, page: str, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _WIDTH
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec", dont_inherit=True), names)
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    lines = printed.getvalue().splitlines()
    return "".join(line.rstrip() + "\n" for line in lines)


def main(arguments: list[str]) -> None:
    """Rewrites pages; all of PAGES by default."""
    for page in arguments or PAGES:
        path, before = ROOT / page, ""
        while (text := path.read_text()) != before:  # outputs name lines, which move when an output above grows
            before = text
            path.write_text(rewritten(text, str(path)))


if __name__ == "__main__":
    main(sys.argv[1:])
