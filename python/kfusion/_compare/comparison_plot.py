"""Pictures of comparisons: time and bandwidth, a bar for each version and library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._pictures import FUSED_COLOUR, UNFUSED_COLOUR, closed_figure_of, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .comparison import Comparison, Row

_COLOURS = {"fused": FUSED_COLOUR, "fused, fresh": "#7cbfa6", "unfused": UNFUSED_COLOUR, "copy": "#8a8f98"}
_PEER_COLOUR = "#9db4d6"
_LABEL_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 1}
_NOISE_ROW = "fused, again"


def draw(comparisons: Sequence[Comparison], cache: str | None = None) -> Figure:
    """One line of two panels, time and bandwidth, for each comparison; the figure is closed."""
    import matplotlib.pyplot as plt

    bars = [len(_shown(c, cache)) for c in comparisons]
    figure, axes = plt.subplots(
        len(comparisons),
        2,
        figsize=(12, sum(1.5 + 0.42 * n for n in bars)),
        gridspec_kw={"width_ratios": (3, 2), "height_ratios": bars},
        squeeze=False,
        layout="constrained",
    )
    for comparison, (left, right) in zip(comparisons, axes, strict=True):
        _times(comparison, left, cache)
        _bandwidths(comparison, right, cache)
    plt.close(figure)
    return figure


def times_on(comparison: Comparison, ax: Axes, cache: str | None) -> Figure:
    """The time panel alone, on the caller's axes."""
    _times(comparison, ax, cache)
    return closed_figure_of(ax)


def _shown(comparison: Comparison, cache: str | None) -> list[Row]:
    cache = cache or comparison.caches[0]
    return [row for row in comparison.rows if row.cache == cache and row.name != _NOISE_ROW]


def _colour(row: Row) -> str:
    return _COLOURS.get(row.name, _PEER_COLOUR)


def _times(comparison: Comparison, ax: Axes, cache: str | None) -> None:
    rows = _shown(comparison, cache)
    unit, scale = time_unit(max(row.median_us for row in rows if not row.is_peer))
    # A peer twenty times slower would leave nothing to see of the rest: its bar is cut, its number is not.
    limit = 1.25 * max(row.median_us / scale for row in rows if not row.is_peer)
    for position, row in enumerate(rows):
        middle, low, high = (us / scale for us in (row.median_us, row.p20_us, row.p80_us))
        cut = middle > limit
        ax.barh(position, min(middle, limit), color=_colour(row), hatch="//" if cut else None, edgecolor="white")
        if not cut:
            ax.plot([low, min(high, limit)], [position, position], color="#333", linewidth=1.5)
        end = min(max(middle, high), limit)
        label = f"{middle:.3g} {unit}  ({row.speedup:.2f}x)" + ("  bar cut" if cut else "")
        ax.annotate(label, (end, position), (6, 0), textcoords="offset points", va="center", bbox=_LABEL_BOX)
    ax.set_yticks(range(len(rows)), [row.name for row in rows])
    _ceiling(ax, next(row.median_us / scale for row in rows if row.name == "copy"))
    ax.set_xlim(0, 1.5 * limit)
    ax.set_xlabel(f"time ({unit}) with p20 to p80; in brackets the speedup over unfused; dashed: the copy")
    ax.set_title(comparison.title_of(rows[0].cache), loc="left", fontsize=10)
    _tidy(ax)


def _bandwidths(comparison: Comparison, ax: Axes, cache: str | None) -> None:
    rows = [row for row in _shown(comparison, cache) if row.gbps is not None]
    values = [row.gbps or 0.0 for row in rows]
    bars = ax.barh([row.name for row in rows], values, color=[_colour(r) for r in rows])
    labels = [f"{v:.1f} GB/s, {(row.moved_bytes or 0) / 1e6:.4g} MB" for v, row in zip(values, rows, strict=True)]
    ax.bar_label(bars, labels, padding=6, bbox=_LABEL_BOX)
    _ceiling(ax, next(v for v, row in zip(values, rows, strict=True) if row.name == "copy"))
    ax.set_xlim(0, max(values) * 1.75)
    ax.set_xlabel("bytes of all passes / time (GB/s); dashed: the copy")
    ax.set_title("bandwidth and bytes moved", loc="left", fontsize=10)
    _tidy(ax)


def _ceiling(ax: Axes, copy: float) -> None:
    ax.axvline(copy, color="#333", linestyle="--", linewidth=1, zorder=0)


def _tidy(ax: Axes) -> None:
    ax.invert_yaxis()
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
