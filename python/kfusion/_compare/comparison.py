"""What `compare` returns: the measurements, and the ways to look at them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .. import _pictures, _tables
from . import comparison_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .._files import StrPath

_FUSE_TOO = {"numexpr", "torch.compile", "jax.jit", "cupy.fuse"}
_NO_VERSIONS = ("copy", "fused, again", "fused, fresh")  # the yardstick, and fused once more
_STYLES = {"fused": "bold green", "copy": "dim"}
# Short enough for a terminal of 80 columns.
_HEADER = ("version", "time", "+-", "launches", "by bytes", "MB", "GB/s", "% copy", "speedup", "error")
_LEGEND = (
    "by bytes: the time of a version's bytes at the copy's rate. "
    "fused, again: the noise of this measurement. fused, fresh: without out=, so a new result each time. "
    "+-: half of p20 to p80. % copy: 100 x copy's time / time, the copy being the one timed just before; speedup: the "
    "ratio of two such numbers, so drift cancels. error: the largest, against float64."
)


@dataclass(frozen=True)
class Row:
    """One version in one state of the caches.

    launches, moved_bytes and gbps (GB = 1e9 bytes) are None for peers: what they issue is their own affair.
    predicted_us: moved_bytes at the copy's rate. copy_pct is 100 * (time of a copy of the same bytes) / time, the
    median over neighbouring samples, so that drift cancels. speedup is this copy_pct over that of kfusion's own unfused
    version: on a quiet machine the ratio of the medians, and on a noisy one better. max_abs_error is against float64,
    None for the copy.
    """

    name: str
    cache: str
    median_us: float
    p20_us: float
    p80_us: float
    samples: int
    launches: int | None
    moved_bytes: int | None
    predicted_us: float | None
    gbps: float | None
    copy_pct: float
    speedup: float
    max_abs_error: float | None
    is_peer: bool


@dataclass(frozen=True)
class Comparison(_tables.Report):
    """Fused, unfused, copy and peers, checked and measured on the same data.

    subject is the operation with its arguments, shape and dtype are those of the largest array. max_difference is the
    largest between fused and unfused, of what was checked.

    `print(c)` shows tables, Jupyter shows them as HTML, `c.plot()` draws, `c.to_dict()` is ready for JSON.
    """

    operation: str
    subject: str
    shape: tuple[int, ...]
    dtype: str
    array: str
    device: str
    arguments: dict[str, str]
    predicted: dict[str, Any]
    max_difference: float
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    hardware: dict[str, Any]
    versions: dict[str, str]

    @property
    def caches(self) -> tuple[str, ...]:
        """The states measured, "cold" first."""
        return tuple(dict.fromkeys(row.cache for row in self.rows))

    def row(self, name: str, cache: str | None = None) -> Row:
        """The row of one version.

        Args:
            name: as in the table: "fused", "unfused", "copy", "numpy", ...
            cache: "cold" or "hot"; the first one measured by default.

        Raises:
            KeyError: nothing of this name was measured.
        """
        cache = cache or self.caches[0]
        for row in self.rows:
            if (row.name, row.cache) == (name, cache):
                return row
        raise KeyError(f"no row {name!r} with {cache} cache; there are {[r.name for r in self._of(cache)]}")

    @property
    def speedup(self) -> float:
        """How often faster fused is than unfused (see `Row`), cold unless only hot was measured."""
        return self.row("fused").speedup

    @property
    def predicted_speedup(self) -> float:
        """Unfused bytes / fused bytes, as `kfusion.savings` has them."""
        return float(self.predicted["speedup_estimate"])

    def fastest(self, cache: str | None = None) -> Row:
        """The row of the fastest version, the first one measured among equals; the copy is none.

        Args:
            cache: "cold" or "hot"; the first one measured by default.
        """
        return self._ranking(cache or self.caches[0])[0]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain dicts, lists, numbers and strings."""
        plain = asdict(self) | {"speedup": self.speedup, "predicted_speedup": self.predicted_speedup}
        return plain | {k: list(plain[k]) for k in ("shape", "rows", "notes")}

    def plot(self, path: StrPath | None = None, ax: Axes | None = None, *, cache: str | None = None) -> Figure:
        """Draws the times and, beside them, the bandwidth with the copy as the ceiling.

        Args:
            path: file to write (its ending chooses the format), if any.
            ax: axes to draw the times into; the bandwidth is left out then.
            cache: "cold" or "hot"; the first one measured by default.

        Returns:
            The pyplot Figure, closed, so that a notebook shows it once.
        """
        figure = comparison_plot.times_on(self, ax, cache) if ax is not None else comparison_plot.draw([self], cache)
        if path is not None:
            _pictures.save(figure, path)
        return figure

    def __repr__(self) -> str:
        return f"<Comparison: {self.title}: fused is {self.speedup:.2f}x as fast as unfused>"

    def _parts(self, width: int | None) -> Iterator[_tables.Table | str]:
        for cache in self.caches:
            header, *rows = self.cells(cache)
            yield _tables.Table(self.title_of(cache), header, tuple(rows), styles=_STYLES)
        yield self._summary(width)

    @property
    def title(self) -> str:
        """Operation, arguments and device in one line."""
        return f"{self.subject} on {self.device_name}"

    @property
    def device_name(self) -> str:
        """The name of the CPU or GPU that ran it, where the system says."""
        return str(self.hardware["gpu" if self.device == "cuda" else "cpu"].get("name") or self.device)

    def title_of(self, cache: str) -> str:
        """The title of one table or picture."""
        return f"{self.title}, {cache} cache"

    def cells(self, cache: str) -> list[tuple[str, ...]]:
        """The table of one cache state as text, header first."""
        unit, scale = _pictures.time_unit(self.row("fused", cache).median_us)
        header = tuple(f"time ({unit})" if h == "time" else h for h in _HEADER)
        return [header, *(_row_cells(row, scale) for row in self._of(cache))]

    def _of(self, cache: str) -> list[Row]:
        return [row for row in self.rows if row.cache == cache]

    def _summary(self, width: int | None) -> str:
        measured = ", ".join(f"{self.row('fused', c).speedup:.2f}x with {c} cache" for c in self.caches)
        lines = (
            f"Speedup of fused over unfused: {measured}; "
            f"predicted from the bytes (kfusion.plan): {self.predicted_speedup:.2f}x. "
            f"Largest difference between the two: {self.max_difference:.0e}.",
            *map(self._verdict, self.caches),
            *self.notes,
            _LEGEND,
        )
        return "\n".join(_tables.wrapped(line, width) for line in lines)

    def _verdict(self, cache: str) -> str:
        """Who is the fastest, and whether fusing pays."""
        first, second, *_ = ranking = self._ranking(cache)
        fused = self.row("fused", cache)
        other = second if first is fused else fused
        ratio = first.speedup / other.speedup
        text = f"Fastest with {cache} cache: {first.name}, {ratio:.2f}x as fast as {other.name}."
        faster = [row.name for row in ranking[: ranking.index(fused)]]
        return text if set(faster) <= _FUSE_TOO else text + " Fusing does not pay here."

    def _ranking(self, cache: str) -> list[Row]:
        return sorted((r for r in self._of(cache) if r.name not in _NO_VERSIONS), key=lambda r: -r.speedup)


def _row_cells(row: Row, scale: float) -> tuple[str, ...]:
    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    big = (row.moved_bytes or 0) / 1e6
    predicted = None if row.predicted_us is None else row.predicted_us / scale
    return (
        row.name,
        _time(row.median_us / scale),
        f"{50 * (row.p80_us - row.p20_us) / row.median_us:.0f}%",
        number(row.launches, "d"),
        "-" if predicted is None else _time(predicted),
        number(None if row.moved_bytes is None else row.moved_bytes / 1e6, ".2f" if big < 1e3 else ".0f"),
        number(row.gbps, ".1f"),
        number(row.copy_pct, ".0f"),
        f"{row.speedup:.2f}x",
        number(row.max_abs_error, ".0e"),
    )


def _time(value: float) -> str:
    return format(value, ".1f" if value >= 100 else ".2f" if value >= 1 else ".3f")
