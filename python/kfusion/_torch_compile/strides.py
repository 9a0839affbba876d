"""How results of a graph lie in memory: as eager torch's would, which tensors without data tell."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from .._tracing import fx_graphs

Strides = tuple[int, ...]
_CHANNELS_LAST = (0, 2, 3, 1)


class Layouts:
    """The strides that eager torch gives the results of a graph.

    Args:
        results: nodes of the graph.
        placeholders: its placeholders, whose extents symbolic strides are made of.
    """

    def __init__(self, results: Sequence[Any], placeholders: Sequence[Any]) -> None:
        values = [n.meta.get("val") for n in results]
        self._orders = [_order(v) for v in values]
        self._strides = [v.stride() if fx_graphs.is_tensor(v) else None for v in values]
        symbolic = [s for strides in self._strides for s in strides or () if type(s) is not int]
        self._sizes = _Sizes(symbolic, placeholders) if symbolic else None

    def turned(self, values: Sequence[Any]) -> list[Any]:
        """Traced results with their axes in the order of memory: kernels then store them as they are to lie."""
        return [v if o is None else v.permute(o) for v, o in zip(values, self._orders, strict=True)]

    def sizes(self, given: Mapping[Any, Any]) -> Mapping[Any, int | None]:
        """What symbolic strides are of the graph's arguments, which are given by placeholder."""
        return self._sizes.values(given) if self._sizes is not None else {}

    def laid(self, turned: Sequence[Any], sizes: Mapping[Any, int | None]) -> list[Any]:
        """The results as eager torch's lie."""
        made = [v if o is None else v.permute(_back(o)) for v, o in zip(turned, self._orders, strict=True)]
        return [v if s is None else self._laid(v, s, sizes) for v, s in zip(made, self._strides, strict=True)]

    @staticmethod
    def _laid(value: Any, strides: Sequence[Any], known: Mapping[Any, int | None]) -> Any:
        if not known:
            return laid(value, tuple(strides))
        found = [s if type(s) is int else known[s.node.expr] for s in strides]
        sizes = tuple(s for s in found if s is not None)
        return laid(value, sizes) if len(sizes) == len(found) else value


def _order(value: Any) -> tuple[int, ...] | None:
    """The order of a tensor's axes in memory; None where they lie in their own order, or share memory. On a GPU results
    of convolutions, whose channels lie last, lie as they should by themselves.
    """
    if not fx_graphs.is_tensor(value) or value.is_complex():
        return None
    strides = [fx_graphs.known(s) for s in value.stride()]
    order = tuple(sorted(range(value.ndim), key=lambda a: -strides[a]))
    if order == _CHANNELS_LAST and value.device.type != "cpu":
        return None
    return None if order == tuple(range(value.ndim)) or 0 in strides else order


@functools.cache
def _back(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


class _Sizes:
    """The values of expressions of sizes, from the extents of arguments."""

    def __init__(self, sizes: Sequence[Any], placeholders: Sequence[Any]) -> None:
        self._expressions = {s.node.expr for s in sizes}
        named: dict[str, tuple[Any, int | None]] = {}
        for node in placeholders:
            value = node.meta.get("val")
            if fx_graphs.is_tensor(value):
                named |= {s: (node, a) for a, n in enumerate(value.shape) if (s := fx_graphs.symbol(n)) is not None}
            elif (name := fx_graphs.symbol(value)) is not None:
                named[name] = node, None
        used = sorted({s for e in self._expressions for s in e.free_symbols}, key=str)
        self._symbols = [s for s in used if str(s) in named]
        self._from = [named[str(s)] for s in self._symbols]
        self._of = functools.lru_cache(maxsize=64)(self._evaluated)

    def values(self, given: Mapping[Any, Any]) -> Mapping[Any, int | None]:
        """The values by expression; None where one is made of sizes that no argument has."""
        return self._of(*[int(given[n]) if axis is None else given[n].shape[axis] for n, axis in self._from])

    def _evaluated(self, *sizes: int) -> dict[Any, int | None]:
        found = dict(zip(self._symbols, sizes, strict=True))
        values = {e: e.xreplace(found) for e in self._expressions}
        return {e: int(v) if getattr(v, "is_number", True) else None for e, v in values.items()}


def laid(value: Any, strides: Strides) -> Any:
    """A tensor of these elements and strides: the same one where it lies so already."""
    if value.stride() == strides:
        return value
    shape = value.shape
    if 0 in shape or all(n == 1 or s == t for n, s, t in zip(shape, value.stride(), strides, strict=True)):
        return value.as_strided(shape, strides)
    if any(s == 0 and n > 1 for n, s in zip(shape, strides, strict=True)):
        parts = tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)
        return laid(value[parts], strides).as_strided(shape, strides)
    if _overlap(shape, strides):
        return value
    return value.new_empty_strided(shape, strides).copy_(value)


def _overlap(shape: Sequence[int], strides: Strides) -> bool:
    """Whether elements of a tensor may share memory."""
    last = 0
    for stride, extent in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride <= last:
            return True
        last += stride * (extent - 1)
    return False


def bases(results: Sequence[Any]) -> set[Any]:
    """The nodes that results are views of, which the results then share as they do in eager torch. A base of which a
    result is a smaller part is left out, unless several results are views of it: it need not be computed.
    """
    found: dict[Any, list[Any]] = {}
    for node in results:
        if fx_graphs.is_view(node):
            found.setdefault(fx_graphs.base(node), []).append(node)
    return {base for base, views in found.items() if len(views) > 1 or _count(base) <= _MOST * _count(views[0])}


_MOST = 2  # elements of a base for each one of a view


def _count(node: Any) -> int:
    value = node.meta.get("val")
    return int(fx_graphs.known(value.numel())) if fx_graphs.is_tensor(value) else 0
