"""The pictures of a sweep: times, bytes and FLOPs per byte over a size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .._pictures import FUSED_COLOUR, UNFUSED_COLOUR, literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .sweep import Point, Sweep

_WIDTH_IN, _HEIGHT_IN = 4.2, 3.4
_SMALL = 8
_STYLES = ("-", "--", ":", "-.")
_MARKERS = "osD^v*"


def draw(sweep: Sweep) -> Figure:
    """Three panels side by side; the figure is closed."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(3 * _WIDTH_IN, _HEIGHT_IN), layout="constrained")
    plt.close(figure)
    _panel(sweep, axes[0], "ms, predicted", lambda p: p.us / 1e3, lambda p: p.unfused_us / 1e3)
    _panel(sweep, axes[1], "GB moved", lambda p: p.bytes / 1e9, lambda p: p.unfused_bytes / 1e9)
    _panel(sweep, axes[2], "FLOP per byte, fused", lambda p: p.intensity, None)
    _mark_turns(sweep, axes[2])
    axes[0].legend(frameon=False, fontsize=_SMALL)
    figure.suptitle(literal(sweep.function or "graph"), x=0.01, ha="left", fontsize=10)
    return figure


def _panel(
    sweep: Sweep,
    ax: Axes,
    label: str,
    fused: Callable[[Point], float],
    unfused: Callable[[Point], float] | None,
) -> None:
    kinds = [("fused", FUSED_COLOUR, fused)] + ([("unfused", UNFUSED_COLOUR, unfused)] if unfused else [])
    if sweep.axis is None:
        _bars(sweep, ax, kinds)
    else:
        for i, (name, points) in enumerate(sweep.series().items()):
            for kind, colour, value in kinds:
                _line(ax, sweep.axis, points, value, colour, f"{kind}, {name}", i)
        ax.set(xscale="log", yscale="log")
        ax.set_xlabel(literal(sweep.axis), fontsize=_SMALL)
        _ticks(ax, sorted({p.sizes[sweep.axis] for p in sweep.points}))
    ax.set_ylabel(label, fontsize=_SMALL)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(which="both", labelsize=_SMALL)


def _line(
    ax: Axes, axis: str, points: Sequence[Point], value: Callable[[Point], float], colour: str, label: str, number: int
) -> None:
    ax.plot(
        [p.sizes[axis] for p in points],
        [value(p) for p in points],
        color=colour,
        linestyle=_STYLES[number % len(_STYLES)],
        marker=_MARKERS[number % len(_MARKERS)],
        markersize=4,
        label=literal(label),
    )


def _bars(sweep: Sweep, ax: Axes, kinds: Sequence[tuple[str, str, Callable[[Point], float]]]) -> None:
    height = 0.8 / len(kinds)
    for i, (kind, colour, value) in enumerate(kinds):
        places = [place + i * height for place in range(len(sweep.points))]
        ax.barh(places, [value(p) for p in sweep.points], height * 0.9, color=colour, label=kind)
    ax.set_yticks(range(len(sweep.points)), [literal(p.device) for p in sweep.points])
    ax.invert_yaxis()


def _ticks(ax: Axes, values: Sequence[int]) -> None:
    from matplotlib.ticker import NullLocator

    step = -(-len(values) // 8)
    shown = [n for n in values[::step] if n > 0]
    if shown:
        ax.set_xticks(shown, [str(n) for n in shown])
        ax.xaxis.set_minor_locator(NullLocator())


def _mark_turns(sweep: Sweep, ax: Any) -> None:
    """A line between the two sizes from which on computing bounds the time to the end."""
    axis = sweep.axis
    if axis is None:
        return
    for name, points in sweep.series().items():
        turns = [(a, b) for a, b in pairwise(points) if b.bound == "compute" != a.bound]
        if turns and points[-1].bound == "compute":
            before, after = turns[-1]
            x = (before.sizes[axis] * after.sizes[axis]) ** 0.5
            ax.axvline(x, color="#8a8f98", linewidth=1, linestyle="--")
            where, place = ("data", "axes fraction"), (x, 0.03)
            said = literal(f"compute-bound, {name}")
            ax.annotate(said, place, (2, 0), where, "offset points", rotation=90, fontsize=_SMALL, color="#8a8f98")
