"""Tuples, lists and dicts of values: the arguments and results of a traced function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Slot:
    """The place of output number `index` in a structure."""

    index: int


def walk(value: Any, visit: Callable[[str, Any], Any], path: str = "") -> Any:
    """The same structure with `visit(path, leaf)` in place of each leaf.

    Args:
        value: tuples (named ones too), lists and dicts of anything, nested.
        visit: called in order; a path is "", "0", "loss" or "0.loss".
        path: of `value` itself.
    """
    if isinstance(value, dict):
        return {key: walk(item, visit, _join(path, key)) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        fields = getattr(value, "_fields", None)
        items = [walk(v, visit, _join(path, key)) for key, v in zip(fields or range(len(value)), value, strict=True)]
        return type(value)(*items) if fields else type(value)(items)
    return visit(path, value)


def leaves(value: Any) -> Iterator[Any]:
    """The leaves in `walk`'s order."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def fill(structure: Any, values: list[Any]) -> Any:
    """The structure with values in place of its slots."""
    return walk(structure, lambda _, leaf: values[leaf.index] if isinstance(leaf, Slot) else leaf)


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
