"""What `kfusion demo` prints: the result in the first line, then why, the tables, and what to try next."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence

from .. import _pictures, _tables
from .._compare.comparison import Comparison, Row

_NAMES = {"numpy": "NumPy", "jax": "JAX", "cupy": "CuPy", "unfused": "one kernel for each step"}
_NOISY = 0.25  # half of p20 to p80, of the median
_NEXT = (
    ("kfusion plan softmax --shape 4096x4096 --device H200", "on another machine"),
    ("kfusion demo --full", "larger arrays, all libraries"),
    ("kfusion --help", "all commands"),
)
_OWN = "Your own function, in Python: kfusion.compare(f, x) measures it, kfusion.fuse(f) runs it."


def text(comparisons: Sequence[Comparison], picture: str, *, full: bool) -> str:
    """All that goes to stdout; the first line, or one for each shape, is the result."""
    width = shutil.get_terminal_size().columns
    of = len(comparisons) > 1
    lines = [(f"{c.dtype}{list(c.shape)}: " if of else "") + headline(c) for c in comparisons]
    for c in comparisons:
        lines += ["", *(_tables.wrapped(line, width) for line in why(c)), "", str(c) if full else _table(c)]
    lines += ["", f"Picture: {picture}", "", "Next:"]
    lines += [f"  {command}  # {about}" for command, about in _NEXT if not (full and "--full" in command)]
    return "\n".join([*lines, "", _tables.wrapped(_OWN, width)])


def headline(c: Comparison) -> str:
    """ "NumPy 29.7 ms, fused 1.8 ms: 16 x", of the medians; beside the first library measured, else unfused."""
    other, fused = _other(c), c.row("fused")
    ratio = other.median_us / fused.median_us
    return f"{_name(other)} {_time(other.median_us)}, fused {_time(fused.median_us)}: {_tables.number(ratio, 2)} x"


def why(c: Comparison) -> Iterator[str]:
    """What explains the result, in the order of importance."""
    fused, unfused, copy = (c.row(name) for name in ("fused", "unfused", "copy"))
    yield f"{c.title_of(c.caches[0])}. Largest error of fused against float64: {fused.max_abs_error or 0:.0e}."
    yield (
        f"Why: a kernel for each step (the row unfused: {unfused.launches} kernels) moves {_megabytes(unfused)}, since "
        f"each reads its input from memory and writes its result back. The fused kernel reads the array once and "
        f"writes the result once: {_megabytes(fused)}. A copy of that many bytes takes {_time(copy.median_us)}; "
        f"fused is at {fused.copy_pct:.0f} % of the copy's rate."
    )
    if (spread := (fused.p80_us - fused.p20_us) / 2 / fused.median_us) > _NOISY:
        yield f"The times vary by +-{spread:.0%}: other programs seem to be running. Try again when it is quiet."


def _table(c: Comparison) -> str:
    header, *rows = c.cells(c.caches[0])
    return _tables.Table("", header, tuple(rows)).plain(shutil.get_terminal_size().columns).rstrip()


def _other(c: Comparison) -> Row:
    """What a reader would have used."""
    return next((row for row in c.rows if row.is_peer and row.cache == c.caches[0]), c.row("unfused"))


def _name(row: Row) -> str:
    return _NAMES.get(row.name, row.name)


def _time(us: float) -> str:
    unit, scale = _pictures.time_unit(us)
    return f"{_tables.number(us / scale, 3)} {unit}"


def _megabytes(row: Row) -> str:
    return f"{_tables.number((row.moved_bytes or 0) / 1e6)} MB"
