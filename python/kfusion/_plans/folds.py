"""Repeated layers: modules of one kind whose kernels are the same, shown once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import layers

if TYPE_CHECKING:
    from .layers import Layer
    from .plan import Plan
    from .records import Group

_LONG = 40  # kernels of a block, from which on what repeats is looked for
_MOST_PERIOD = 200  # kernels of a layer, where no modules say what the layers are


@dataclass(frozen=True)
class Fold:
    """Blocks of a model that are alike: `blocks` are their paths, `kernels` for each block its kernels in order, and
    `unfused` likewise. All of a plan's folds together have each kernel once.
    """

    blocks: tuple[str, ...]
    kernels: tuple[tuple[Group, ...], ...]
    unfused: tuple[tuple[Group, ...], ...]

    @property
    def name(self) -> str:
        """ "layers.1..78"."""
        return ranged(self.blocks)

    @property
    def layer(self) -> Layer:
        """The sums over all blocks."""
        fused = [g for block in self.kernels for g in block]
        return layers.made(self.name, len(self.blocks), fused, [g for block in self.unfused for g in block])


def folds(plan: Plan) -> list[Fold]:
    """The plan's blocks in the order in which they run, those that are alike as one."""
    fused: dict[str, list[Group]] = defaultdict(list)
    unfused: dict[str, list[Group]] = defaultdict(list)
    remainders: dict[int, str] = {}
    for group in plan.groups:
        path = layers.module_of(plan, group)
        block = layers.block_of(path)
        fused[block].append(group)
        remainders[group.id] = path.removeprefix(block)
    for group in plan.unfused_groups:
        unfused[layers.block_of(layers.module_of_unfused(plan, group))].append(group)
    alike: dict[Hashable, list[str]] = defaultdict(list)
    for block in dict.fromkeys((*fused, *unfused)):
        kernels = tuple((remainders[g.id], signature(g), cost(g)) for g in fused[block])
        before = sorted(cost(g) for g in unfused[block])
        alike[layers.starred(block), kernels, tuple(before)].append(block)
    made = [
        Fold(tuple(blocks), *(tuple(tuple(by[b]) for b in blocks) for by in (fused, unfused)))
        for blocks in alike.values()
    ]
    replaced = layers.replaced(plan)[0] if any(map(_is_long, made)) else []
    made = [part for fold in made for part in (_by_repeats(fold, replaced) if _is_long(fold) else [fold])]
    return sorted(made, key=_first)


def _is_long(fold: Fold) -> bool:
    return len(fold.blocks) == 1 and len(fold.kernels[0]) > _LONG


def _first(fold: Fold) -> int:
    """Where it begins: the unfused kernels stand in the order of the calls."""
    return min((g.id for block in fold.unfused for g in block), default=0)


def signature(group: Group) -> Hashable:
    """What is the same of kernels that do the same to other arrays of the same shapes."""
    loads = tuple((v.shape, v.strides, v.offset, v.every_sweep, v.gathered) for v in group.loads)
    stores = tuple((v.shape, v.dtype) for v in group.stores)
    calls = tuple(map(layers.plain_label, group.stages))
    what = (group.kind, calls, group.ops, group.domain, group.reduced, group.executor)
    return (*what, loads, stores)


def cost(group: Group) -> tuple[float | int, ...]:
    """Times are sums of what depends on the kernels before, such as what is in the cache: equal up to rounding."""
    moved = (group.issued.read, group.issued.written, group.compulsory.read, group.compulsory.written)
    return (*moved, group.flop_total, float(f"{group.time_us:.6g}"))


def ranged(paths: Sequence[str]) -> str:
    """ "model.layers.1..78" of consecutive numbers, "layers.1..5, 7..9" of others."""
    if len(paths) == 1:
        return paths[0]
    stem = paths[0].rpartition(".")[0]
    numbers = sorted(int(path.rpartition(".")[2]) for path in paths)
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    listed = ", ".join(str(a) if a == b else f"{a}..{b}" for a, b in runs)
    return f"{stem}.{listed}" if stem else listed


def _by_repeats(fold: Fold, replaced: Sequence[Sequence[Group]]) -> list[Fold]:
    """A block of many kernels cut where they repeat, since nothing says what its layers are: the longest stretch of
    repeats, and what is before and behind it. What no kernel of the block replaces goes with the first. Times may
    differ, as what is in the cache does, and so may what is replaced: one kernel makes the totals of several layers.
    """
    (name,), (kernels,), (unfused,) = fold.blocks, fold.kernels, fold.unfused
    ids = {g.id for g in unfused}
    before = [[u for u in replaced[g.id] if u.id in ids] for g in kernels]
    start, period, count = _longest_repeat([signature(g) for g in kernels])
    if count == 0:
        return [fold]
    left = ids - {u.id for groups in before for u in groups}
    lost = tuple(u for u in unfused if u.id in left)
    end = start + period * count

    def part(first: int, last: int) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
        return tuple(kernels[first:last]), tuple(u for groups in before[first:last] for u in groups)

    stem = f"{name}." if name else ""
    begin, rest = part(0, start), part(end, len(kernels))
    repeats = [part(start + i * period, start + (i + 1) * period) for i in range(count)]
    names = tuple(f"{stem}repeat.{i}" for i in range(count))
    made = [Fold(names, tuple(p[0] for p in repeats), tuple(p[1] for p in repeats))]
    if start or lost:
        made.append(Fold((f"{stem}begin",), (begin[0],), (begin[1] + lost,)))
    if not rest[0]:
        return made
    behind = Fold((f"{stem}end",), (rest[0],), (rest[1],))
    return [*made, *(_by_repeats(behind, replaced) if _is_long(behind) else [behind])]


def _longest_repeat(items: Sequence[Hashable]) -> tuple[int, int, int]:
    """Where the longest stretch of repeats begins, how long one is, and how many there are: (0, 0, 0) for none."""
    numbers: dict[Hashable, int] = {}
    named = [numbers.setdefault(item, len(numbers)) for item in items]
    best, covered = (0, 0, 0), 0
    for period in range(1, min(_MOST_PERIOD, len(named) // 2) + 1):
        start = 0
        for i in range(period, len(named) + 1):
            if i < len(named) and named[i] == named[i - period]:
                continue
            count = (i - start) // period
            if count > 1 and count * period > covered:
                best, covered = (start, period, count), count * period
            start = i - period + 1
    return best
