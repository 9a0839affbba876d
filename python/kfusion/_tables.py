"""Tables and paragraphs, and the three places that show them: plain text, a terminal (rich), a notebook (HTML)."""

from __future__ import annotations

import html
import importlib.util
import io
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Table:
    """Cells as text. Columns are right-justified but for those named in `left`; styles are rich's, by first cell."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...] = (0,)
    styles: Mapping[str, str] = field(default_factory=dict)

    @property
    def widths(self) -> list[int]:
        """The widths of the columns, in characters."""
        return [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]

    def gap(self, width: int | None) -> int:
        """Spaces between columns: 2, or 1 where the table would not fit the width."""
        return 2 if width is None or sum(self.widths) + 2 * (len(self.widths) - 1) <= width else 1

    def plain(self, width: int | None = None) -> str:
        """Title, header, a rule and the rows, with a blank line behind."""
        gap = " " * self.gap(width)
        header, *rows = (gap.join(self._justified(line)).rstrip() for line in (self.header, *self.rows))
        rule = "-" * (sum(self.widths) + len(gap) * (len(self.widths) - 1))
        return "\n".join((*([_printable(self.title)] if self.title else []), header, rule, *rows, ""))

    def rich(self, width: int) -> Any:
        """A rich.table.Table; its columns move together where they would not fit the width."""
        from rich import box
        from rich.table import Table as RichTable

        table = RichTable(
            title=_text(self.title) if self.title else None,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            padding=(0, self.gap(width - 2) - 1, 0, 0),
            show_edge=False,
        )
        for i, name in enumerate(self.header):
            table.add_column(_text(name), justify="left" if i in self.left else "right", no_wrap=True)
        for line in self.rows:
            table.add_row(*map(_text, line), style=self.styles.get(line[0]))
        return table

    def html(self) -> str:
        """A <table> with a caption; all text escaped."""
        head = "".join(f'<th scope="col"{self._align(i)}>{escaped(h)}</th>' for i, h in enumerate(self.header))
        body = "".join(
            "<tr>" + "".join(f"<td{self._align(i)}>{escaped(c)}</td>" for i, c in enumerate(line)) + "</tr>"
            for line in self.rows
        )
        caption = f"<caption>{escaped(self.title)}</caption>" if self.title else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _justified(self, line: Sequence[str]) -> Iterable[str]:
        for i, (cell, width) in enumerate(zip(line, self.widths, strict=True)):
            yield _printable(cell).ljust(width) if i in self.left else _printable(cell).rjust(width)

    def _align(self, column: int) -> str:
        return ' style="text-align:left"' if column in self.left else ""


class Report:
    """What is shown as tables and paragraphs: `print` (rich in a terminal), rich's own print, Jupyter."""

    def _parts(self, width: int | None) -> Iterable[Table | str]:
        """What to show, in order. `width` is what there is in characters; None means as much as is wanted."""
        raise NotImplementedError

    def __str__(self) -> str:
        width = shutil.get_terminal_size((80, 24)).columns
        if sys.stdout.isatty() and importlib.util.find_spec("rich"):
            return _rich_text(self, width)
        parts = self._parts(width)
        return "\n".join(part.plain(width) if isinstance(part, Table) else _printable(part) for part in parts)

    def __rich_console__(self, console: Any, options: Any) -> Any:
        for part in self._parts(options.max_width):
            if isinstance(part, Table):
                yield part.rich(options.max_width)
                yield ""
            else:
                yield _text(part)

    def _repr_html_(self) -> str:
        return "".join(part.html() if isinstance(part, Table) else _html_lines(part) for part in self._parts(None))


def shorten(text: str, width: int | None) -> str:
    """The text, its middle left out where it is longer than the width."""
    if width is None or len(text) <= width:
        return text
    kept = max(width - 2, 2)
    return text[: kept - kept // 2] + ".." + text[-(kept // 2) :]


def number(value: float, digits: int = 4) -> str:
    """About `digits` digits, without an exponent unless nothing would be left: "33.55", "0.2501", "134217", "4e-06"."""
    if value == 0:
        return "0"
    if abs(value) < 0.5 * 10.0**-digits:
        return f"{value:.0e}"
    decimals = digits - len(f"{abs(value):.0f}") if abs(value) >= 1 else digits
    return f"{value:.{max(decimals, 0)}f}"


def byte_unit(nbytes: float) -> tuple[str, float]:
    """The decimal unit that suits a byte count, and its bytes."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return unit, size
    return "B", 1.0


def in_unit(nbytes: float, size: float) -> str:
    """A byte count in a unit of `size` bytes; bytes themselves are whole."""
    return number(nbytes / size) if size > 1 else f"{nbytes:.0f}"


def room(column: int, header: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> int:
    """Characters that one column of a table may have where all of it is to fit the width."""
    others = [max(map(len, cells)) for i, cells in enumerate(zip(header, *rows, strict=True)) if i != column]
    return width - sum(others) - len(others)


def wrapped(text: str, width: int | None, first: str = "", then: str = "") -> str:
    """The text in lines of at most `width` characters, indented by `first` and `then`."""
    if width is None:
        return first + text
    lines = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=then, break_on_hyphens=False, break_long_words=False
    )
    return "\n".join(lines)


def counted(count: int, what: str) -> str:
    """ "1 kernel", "2 kernels"."""
    return f"{count} {what}{'s' * (count != 1)}"


def si(value: float) -> str:
    """ "12.58M": three to four digits and the prefix of a thousand."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.4g}{prefix}"
    return f"{value:.4g}"


def escaped(text: str) -> str:
    """Text for a page."""
    return html.escape(_printable(text))


def _printable(text: str) -> str:
    """Names come from anywhere, and a terminal obeys control characters."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def _text(value: str) -> Any:
    """Text that rich shows as it is: brackets are no markup."""
    from rich.text import Text

    return Text(_printable(value))


def _html_lines(part: str) -> str:
    return "<p>" + "<br>".join(escaped(line) for line in part.splitlines()) + "</p>"


def _rich_text(report: Report, width: int) -> str:
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, force_terminal=True, width=width, highlight=False).print(report)
    return text.getvalue().rstrip("\n")
