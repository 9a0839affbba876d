"""Sizes as torch's own symbols, which its C++ computes with: each step of that is one of Python's on sizes."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .._graph.memory import c_strides
from .._graph.number import read
from .._graph.sizes import is_size


def symbol(n: Any) -> Any:
    """A size as a number that torch's C++ takes, a number by its value; others as they are."""
    return sys.modules["torch"].SymInt(_Node(n)) if is_size(n) else read(n)


def plain(n: Any) -> Any:
    """The size that a symbol stands for; anything else as it is."""
    node = getattr(n, "node", None)
    return node.value if isinstance(node, _Node) else n


class _Node:
    """What torch.SymInt and its likes ask about their values, by torch's own names."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def wrap_int(self, value: Any) -> _Node:
        return _Node(value)

    wrap_float = wrap_bool = wrap_int

    def clone(self) -> _Node:
        return self

    def is_int(self) -> bool:
        return isinstance(self.value, int) and not self.is_bool()

    def is_float(self) -> bool:
        return isinstance(self.value, float)

    def is_bool(self) -> bool:
        return type(self.value) is bool

    def is_nested_int(self) -> bool:
        return False

    def has_hint(self) -> bool:
        return True

    def nested_int(self) -> None:
        return None

    def maybe_as_int(self) -> int | None:
        return None if is_size(self.value) else int(self.value)

    def int_(self) -> int:
        return operator.index(self.value)

    def bool_(self) -> bool:
        return bool(self.value)

    def guard_int(self, file: str, line: int) -> int:
        return operator.index(self.value)

    def guard_bool(self, file: str, line: int) -> bool:
        return bool(self.value)

    guard_size_oblivious = guard_or_false = guard_or_true = expect_true = guard_bool

    def expect_size(self, file: str, line: int) -> bool:
        return True

    def is_contiguous(self, sizes: Sequence[_Node], strides: Sequence[_Node]) -> _Node:
        return _Node(_lies_in_c_order(sizes, strides))

    def is_non_overlapping_and_dense(self, sizes: Sequence[_Node], strides: Sequence[_Node]) -> _Node:
        return self.is_contiguous(sizes, strides)

    def is_non_overlapping_and_dense_indicator(self, sizes: Sequence[_Node], strides: Sequence[_Node]) -> _Node:
        return _Node(int(_lies_in_c_order(sizes, strides)))

    def is_channels_last_contiguous_2d(self, sizes: Sequence[_Node], strides: Sequence[_Node]) -> _Node:
        return _Node(False)

    is_channels_last_contiguous_3d = is_channels_last_contiguous_2d
    is_channels_last_strides_2d = is_channels_last_strides_3d = is_channels_last_contiguous_2d


def _lies_in_c_order(sizes: Sequence[_Node], strides: Sequence[_Node]) -> bool:
    wanted = c_strides([s.value for s in sizes])
    return all(s.value == 1 or t.value == w for s, t, w in zip(sizes, strides, wanted, strict=True))


def _define(function: Callable[..., Any], *names: str) -> None:
    for name in names:
        setattr(_Node, name, lambda *nodes: _Node(function(*(n.value for n in nodes))))


for _name in ("str", "graph_repr", "_graph_repr"):
    setattr(_Node, _name, lambda node: "size")
for _name in ("add", "sub", "mul", "truediv", "mod", "eq", "ne", "lt", "le", "gt", "ge", "neg", "pow"):
    _define(getattr(operator, _name), _name)
_define(operator.truediv, "float_truediv", "int_truediv")
_define(operator.floordiv, "floordiv", "int_floordiv")
_define(operator.not_, "sym_not")
_define(lambda x, y: x and y, "and_", "sym_and")
_define(lambda x, y: x or y, "or_", "sym_or")
_define(lambda x, y: y if x > y else x, "sym_min")
_define(lambda x, y: x if x > y else y, "sym_max")
