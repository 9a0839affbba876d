"""Runs of measurements as frozen records, and their JSON."""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from kfusion import _files, _json, _schema
from kfusion._devices import hardware as _hardware

SCHEMA = 1
_RARE = ("launches", "held_bytes", "tflops")  # left out of the many rows that have none
Self = TypeVar("Self", bound="Run")


@dataclass(frozen=True, kw_only=True)
class Run:
    """On what it was measured, with which versions, by which command. Subclasses add what was found, at last `cases`: a
    tuple of records, some with `rows`.
    """

    WRITER: ClassVar[str]  # the command that writes such files

    schema: int
    date: str
    command: str
    commit: str
    hardware: dict[str, Any]
    versions: dict[str, str]

    def to_json(self) -> str:
        """Text that a diff can show: a line for each fact of the run, each case and each row of a case."""
        return "".join(_lines(_schema.to_plain(self)))

    def save(self, path: _files.StrPath) -> None:
        """Writes JSON, whole or not at all."""
        with _files.replacing(path) as temporary, open(temporary, "w") as file:
            file.write(self.to_json() + "\n")

    @classmethod
    def load(cls: type[Self], path: _files.StrPath) -> Self:
        """Reads what `to_json` gave.

        Raises:
            OSError: there is no such file.
            ValueError: it is not a result of this schema.
        """
        who = " ".join(cls.WRITER.split()[:2])
        try:
            plain = _json.read(str(path), who)
            if not isinstance(plain, dict) or plain.get("schema") != SCHEMA:
                raise ValueError(f"schema {SCHEMA} is wanted")
            return _schema.from_plain(cls, plain, "results")
        except (ValueError, TypeError) as error:
            raise ValueError(f"{who}: {path} is not what `{cls.WRITER}` writes: {error}") from None


def facts(command: str, commit: str | None, modules: Sequence[str], *, gpu: bool) -> dict[str, Any]:
    """The fields of `Run`, as they are here and now.

    Args:
        command: how the run says that it was made.
        commit: what is measured; None asks git.
        modules: whose versions matter, besides the usual ones.
        gpu: whether it is on the first GPU.
    """
    return {
        "schema": SCHEMA,
        "date": datetime.date.today().isoformat(),
        "command": command,
        "commit": commit or _commit(),
        "hardware": {"cpu": _hardware.cpu()} | ({"gpu": _hardware.gpu(0)} if gpu else {}),
        "versions": _hardware.versions(modules),
    }


def _commit() -> str:
    """This source tree's commit; "unknown" where it is no repository."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return "unknown"
    command = ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    except OSError:
        return "unknown"


def _lines(plain: dict[str, Any]) -> Iterator[str]:
    cases = plain.pop("cases")
    yield "{\n"
    for name, value in plain.items():
        yield f" {json.dumps(name)}: {json.dumps(value)},\n"
    yield ' "cases": ['
    for i, case in enumerate(cases):
        yield ("," if i else "") + "\n  " + _case_text(case)
    yield "\n ]\n}"


def _case_text(case: dict[str, Any]) -> str:
    if "rows" not in case:
        return json.dumps(case)
    rows = [{k: v for k, v in row.items() if v is not None or k not in _RARE} for row in case.pop("rows")]
    head = json.dumps(case)[:-1]
    return head + ', "rows": [\n   ' + ",\n   ".join(map(json.dumps, rows)) + "]}"
