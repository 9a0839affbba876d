"""Sweeps: one test that checks every row of a table, and says all that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def sweep(check: Callable[..., None], rows: Iterable[tuple[Any, ...]]) -> None:
    """Calls check(*row) for every row; at least one there is."""
    failures, count = [], 0
    for row in rows:
        count += 1
        try:
            check(*row)
        except Exception as error:
            failures.append(f"{row}: {type(error).__name__}: {str(error)[:300]}")
    assert count
    assert not failures, f"{len(failures)} of {count} rows fail\n" + "\n".join(failures[:20])


def texts(table: str) -> list[str]:
    """The expressions of a table, which " ; " and ends of lines separate."""
    return [text.strip() for line in table.splitlines() for text in line.split(" ; ") if text.strip()]


def refusals(rows: Iterable[tuple[Callable[[], object], type[BaseException], str]]) -> None:
    """Every call raises its exception, with a message in which its pattern is found."""

    def check(call: Callable[[], object], error: type[BaseException], pattern: str) -> None:
        with pytest.raises(error, match=pattern):
            call()

    sweep(check, rows)
