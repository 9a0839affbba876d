"""JSON from outside: bounded, and only ValueError for whatever is wrong with it."""

from __future__ import annotations

import json
import sys
from typing import Any

MAX_CHARACTERS = 2**26


def dumps(plain: Any, indent: int | None = None) -> str:
    """Plain values as text; NaN and infinities are refused, as JSON has none."""
    return json.dumps(plain, indent=indent, allow_nan=False)


def loads(text: str, who: str) -> Any:
    """What the text says.

    Args:
        text: JSON of at most 2**26 characters.
        who: starts the messages.

    Raises:
        TypeError: text is no str.
        ValueError: it is too long, nested too deeply or no JSON; the message says where.
    """
    if not isinstance(text, str):
        raise TypeError(f"{who}: the JSON text must be a str, got {type(text).__name__}")
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"{who}: the JSON text must have at most {MAX_CHARACTERS} characters, got {len(text)}")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{who}: no valid JSON at line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise ValueError(f"{who}: the JSON is nested too deeply") from None
    except ValueError as error:  # a number with more digits than Python converts
        raise ValueError(f"{who}: no valid JSON: {error}") from None


def read(path: str, who: str) -> Any:
    """What a file says, or standard input for "-".

    Raises:
        OSError: the file cannot be read.
        ValueError: as `loads`.
    """
    if path == "-":
        return loads(sys.stdin.read(MAX_CHARACTERS + 1), who)
    with open(path, encoding="utf-8") as file:
        return loads(file.read(MAX_CHARACTERS + 1), f"{who}: {path}")
