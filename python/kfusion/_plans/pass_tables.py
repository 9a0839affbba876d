"""The passes of a plan with gradients, and what is kept between them, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .._tables import Table, byte_unit, counted, in_unit, number, room, shorten, si
from .layers import plain_label
from .passes import BACKWARD, BOTH, FORWARD

if TYPE_CHECKING:
    from .passes import KeptArray, Passes
    from .plan import Plan

SHORT = {FORWARD: "fwd", BACKWARD: "bwd", BOTH: "both"}
_MIN_NAME = 12
_LISTED = 4


def tables(plan: Plan, width: int | None, limit: int | None) -> Iterator[Table]:
    """The tables of a plan with gradients: what each pass costs, and what is kept between them."""
    if (found := plan.passes) is not None:
        yield passes_table(found)
        if (kept := kept_table(found, width, limit)) is not None:
            yield kept


def passes_table(found: Passes) -> Table:
    """What each pass costs in the fused plan."""
    unit, size = byte_unit(max((p.read + p.written for p in found.passes), default=0))
    rows = tuple(
        (p.name, str(p.launches), in_unit(p.read, size), in_unit(p.written, size), si(p.flops), number(p.us))
        for p in found.passes
    )
    return Table("Passes of the fused plan", ("", "launches", f"read {unit}", "written", "FLOPs", "us"), rows)


def kept_table(found: Passes, width: int | None, limit: int | None = None) -> Table | None:
    """What the backward pass reads of the forward pass; None where it reads nothing. What is kept itself comes first.
    Where there are more arrays than `limit`, those of one shape that are kept for one reason are a row.
    """
    if not found.kept:
        return None
    arrays = sorted(found.kept, key=lambda array: array.role != "kept")
    if limit is not None and len(arrays) > limit:
        return _folded_kept_table(found, arrays, width, limit)
    unit, size = byte_unit(max(array.bytes for array in arrays))
    header = ("value", "array", unit, "from", "for", "again us", "why")
    rows = [_kept_cells(array, size) for array in arrays]
    return Table(_kept_title(found), header, _narrowed(header, rows, width), left=(0, 1, 6))


def _folded_kept_table(found: Passes, arrays: Sequence[KeptArray], width: int | None, limit: int) -> Table:
    alike: dict[tuple[str, ...], list[int]] = {}
    for array in arrays:
        name = array.role if array.role == "argument" else plain_label(array.value)
        alike.setdefault((name, _array_text(array), array.why), []).append(array.bytes)
    unit, size = byte_unit(max(map(sum, alike.values())))
    header = ("value", "array", "x", unit, "why")
    shown = list(alike.items())[:limit]
    rows = [(name, text, str(len(each)), in_unit(sum(each), size), why) for (name, text, why), each in shown]
    more = f", the first {limit} of {counted(len(alike), 'kind')}" if len(shown) < len(alike) else ""
    return Table(_kept_title(found) + more, header, _narrowed(header, rows, width), left=(0, 1, 4))


def _narrowed(header: Sequence[str], rows: Sequence[tuple[str, ...]], width: int | None) -> tuple[tuple[str, ...], ...]:
    """The rows, their names as short as the width asks for."""
    names = None if width is None else max(room(0, header, rows, width), _MIN_NAME)
    return tuple((shorten(row[0], names), *row[1:]) for row in rows)


def _kept_title(found: Passes) -> str:
    sums = []
    for nbytes in (found.kept_bytes, found.peak_bytes):
        unit, size = byte_unit(nbytes)
        sums.append(f"{in_unit(nbytes, size)} {unit}")
    return f"Kept from forward to backward: {sums[0]} (peak memory of intermediates: {sums[1]})"


def _array_text(array: KeptArray) -> str:
    """ "float32[4096,1024]"."""
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def _kept_cells(array: KeptArray, size: float) -> tuple[str, ...]:
    by = [*map(str, array.read_by[:_LISTED]), *([".."] if len(array.read_by) > _LISTED else [])]
    return (
        array.value,
        _array_text(array),
        in_unit(array.bytes, size),
        "" if array.stored_by < 0 else str(array.stored_by),
        ",".join(by),
        "" if array.again_us is None else number(array.again_us),
        array.why,
    )
