"""Structures of arguments and results: two ways to take them apart."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kfusion._graph.structure import ATOMS, Constant, Slot, fill, holds_arrays, leaves, mapped, may_hold_results, walk

Pair = namedtuple("Pair", "first second")


class Names(dict):
    pass


class Plain:
    def __init__(self, x: Any) -> None:
        self.x = x


@dataclass
class Record:
    x: Any
    scale: float = 2.0


X, Y = np.ones(2), np.zeros(3)
STRUCTURES = [
    X, None, 3, "text", (), (X, 1, [Y, {"a": X, 2: (Y,)}]), Pair(X, [Y]), OrderedDict(b=X, a=Y), Names(a=X),
    defaultdict(list, a=[X]), Record(X), [Record((X, Plain(Y)))], Plain([X, {"k": Y}]), SimpleNamespace(x=X),
]  # fmt: skip


def described(value: Any) -> Any:
    """Types, keys and the identity of leaves."""
    if isinstance(value, dict):
        return type(value), [(k, described(v)) for k, v in value.items()]
    if isinstance(value, (tuple, list)):
        return type(value), [described(v) for v in value]
    if isinstance(value, (Record, Plain, SimpleNamespace)):
        return type(value), described(vars(value))
    return type(value), value if type(value) in ATOMS else id(value)


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("enters", [may_hold_results, lambda _: False], ids=["enters", "stays out"])
def test_with_paths_and_without(structure: Any, enters: Any) -> None:
    seen: list[list[Any]] = [[], []]

    def visit(k: int, leaf: Any) -> Any:
        seen[k].append(leaf)
        return Slot(len(seen[k]) - 1)

    slow = walk(structure, lambda _, leaf: visit(0, leaf), enters=enters)
    fast = mapped(structure, lambda leaf: visit(1, leaf), enters)
    assert [id(leaf) for leaf in seen[0]] == [id(leaf) for leaf in seen[1]]
    same = mapped(fast, lambda s: seen[1][s.index], enters, frozenset({Slot}))
    assert described(same) == described(walk(slow, lambda _, s: seen[0][s.index], enters=enters))
    assert described(fill(fast, seen[1])) == described(same)


def test_what_is_filled_in() -> None:
    structure = (Slot(1), [Slot(0, convert=float)], {"c": Constant([Slot(0)]), "n": 5})
    filled = fill(structure, ["2", X])
    assert filled[0] is X
    assert filled[1:] == ([2.0], {"c": [Slot(0)], "n": 5})


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda s: type(s).__name__)
def test_leaves_are_those_of_walk(structure: Any) -> None:
    seen: list[Any] = []
    walk(structure, lambda _, leaf: seen.append(leaf), enters=holds_arrays)
    assert list(map(id, leaves(structure))) == list(map(id, seen))


def test_leaves_of_what_holds_itself() -> None:
    knot: list[Any] = [1]
    knot += [knot, (2, {"a": knot}), knot]
    assert [leaf if type(leaf) is int else "knot" for leaf in leaves(knot)] == [1, "knot", 2, "knot", "knot"]
    deep: Any = X
    for _ in range(5000):
        deep = [deep]
    assert [id(leaf) for leaf in leaves(deep)] == [id(X)]


def test_leaves_of_one_object_in_several_places() -> None:
    pair = (X, Y)
    assert list(map(id, leaves([pair, pair, {"a": pair}]))) == [id(X), id(Y)] * 3
