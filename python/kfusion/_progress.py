"""Progress on stderr: a bar on a terminal, a line per step elsewhere."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[[float, str], None]


class Report:
    """Called with the fraction done and a word on what is being done."""

    def __init__(self, show: Show) -> None:
        self._show = show

    def __call__(self, fraction: float, what: str) -> None:
        self._show(fraction, what)

    def part(self, index: int, count: int) -> Show:
        """A report for one of `count` equal parts."""
        return lambda fraction, what: self._show((index + fraction) / count, f"{index + 1} of {count}: {what}")


@contextmanager
def reporting() -> Iterator[Report]:
    """A Report that lives as long as the block."""
    if not (sys.stderr.isatty() and importlib.util.find_spec("rich")):
        yield Report(_Lines())
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:36.36}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield Report(lambda fraction, what: bar.update(task, completed=fraction, description=what))


class _Lines:
    """One line per tenth: what a log file can take."""

    def __init__(self) -> None:
        self._tenth = -1

    def __call__(self, fraction: float, what: str) -> None:
        if int(fraction * 10) > self._tenth:
            self._tenth = int(fraction * 10)
            print(f"{fraction:4.0%}  {what}", file=sys.stderr, flush=True)
