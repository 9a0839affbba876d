"""Pictures of a plan: the roofline, the bytes of each kernel, the calls that share one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._pictures import FUSED_COLOUR, UNFUSED_COLOUR, closed_figure_of, literal
from .._tables import byte_unit, in_unit, number, shorten, si
from .graph_plot import fusion_graph, graph_size
from .report import used_peaks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .plan import Plan
    from .records import Cost, Group

_MAX_BARS = 24  # of each kind
_MAX_LABEL = 24
_BAR_IN, _BARS_FRAME_IN, _ROOF_IN, _LEFT_IN, _PANEL_IN = 0.21, 1.0, 3.4, 6.0, 4.6
_COLOURS = {"unfused": UNFUSED_COLOUR, "fused": FUSED_COLOUR}
_SMALL = 8


@dataclass(frozen=True)
class Theme:
    """Colours of what is no data, for a light and a dark page."""

    text: str
    faint: str
    page: str

    @property
    def style(self) -> Any:
        """The style in matplotlib's parameters."""
        text = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        return dict.fromkeys(text, self.text) | dict.fromkeys(("figure.facecolor", "axes.facecolor"), self.page)


# Pages turn the one into the other in the text of a picture: LIGHT's page is not the white of labels on boxes.
LIGHT, DARK = Theme("#222222", "#8a8f98", "#fffffe"), Theme("#e6e6e6", "#9aa0a8", "#16181d")


def draw(plan: Plan) -> Figure:
    """Roofline above bytes on the left, the graph on the right; the figure is closed."""
    import matplotlib.pyplot as plt

    heights = (_ROOF_IN, _bars_height(plan))
    width, height = graph_size(plan)
    height = max(height, sum(heights))
    figure = plt.figure(figsize=(_LEFT_IN + width, height), layout="constrained")
    plt.close(figure)
    halves: Any = figure.subfigures(1, 2, width_ratios=(_LEFT_IN, width))
    upper, lower = halves[0].subplots(2, 1, height_ratios=heights)
    roofline(plan, upper)
    bytes_moved(plan, lower)
    fusion_graph(plan, halves[1].subplots(), (width, height))
    return figure


def panels(plan: Plan, theme: Theme, names: Sequence[str]) -> dict[str, Figure]:
    """Those of "roofline", "bytes" and "graph" as pictures of their own; closed."""
    import matplotlib.pyplot as plt

    makers: dict[str, Callable[[], Figure]] = {
        "roofline": lambda: _panel((_PANEL_IN, _ROOF_IN), lambda ax: roofline(plan, ax, theme)),
        "bytes": lambda: _panel((_PANEL_IN, _bars_height(plan)), lambda ax: bytes_moved(plan, ax)),
        "graph": lambda: _graph_panel(plan),
    }
    with plt.rc_context(theme.style):
        return {name: makers[name]() for name in names}


def _graph_panel(plan: Plan) -> Figure:
    size = graph_size(plan)
    return _panel(size, lambda ax: fusion_graph(plan, ax, size))


def _panel(size: tuple[float, float], draw_on: Callable[[Axes], None]) -> Figure:
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=size, layout="constrained")
    draw_on(ax)
    plt.close(figure)
    return figure


def roofline_on(plan: Plan, ax: Axes) -> Figure:
    """The roofline alone, on the caller's axes."""
    roofline(plan, ax)
    return closed_figure_of(ax)


# The roofline


def roofline(plan: Plan, ax: Axes, theme: Theme = LIGHT) -> None:
    """FLOP/s over FLOP/B: the device's roofs, small points for kernels and large ones for all together."""
    shown = {
        name: [c for c in costs if c.flop_total and c.compulsory.total]
        for name, costs in (("unfused", plan.unfused_groups), ("fused", plan.groups))
    }
    totals = {name: c for name, c in (("unfused", plan.unfused), ("fused", plan.fused)) if c.intensity}
    ax.set(xscale="log", yscale="log")
    highest = _roofs(plan, ax, [c.intensity for costs in (*shown.values(), totals.values()) for c in costs], theme)
    for name, costs in shown.items():
        ax.plot(*_points(costs), "o", color=_COLOURS[name], markersize=4, alpha=0.6)
    for name, total in totals.items():
        label = f"{name}: {si(_flops_per_s(total))}FLOP/s"
        ax.plot(*_points([total]), "o", color=_COLOURS[name], markersize=10, markeredgecolor=theme.text, label=label)
    ax.set_ylim(ax.get_ylim()[0] / 2, highest * 4)  # launch-bound kernels lie far below the roofs
    if totals:  # in the corner beneath the roofs
        ax.legend(loc="lower right", frameon=False, fontsize=_SMALL)
    without = len(plan.groups) - len(shown["fused"])
    note = f"\n{without} of {len(plan.groups)} kernels compute nothing and are not shown" if without else ""
    ax.set_xlabel(f"FLOP per byte (compulsory){note}", fontsize=_SMALL)
    ax.set_ylabel("predicted FLOP/s", fontsize=_SMALL)
    ax.set_title(literal(f"Roofline of {plan.device.name}"), loc="left", fontsize=10)
    _tidy(ax)


def _roofs(plan: Plan, ax: Axes, intensities: Sequence[float], theme: Theme) -> float:
    """The bandwidth of a copy up to the peak of each unit that the plan uses; returns the highest peak."""
    bandwidth = plan.device.bandwidth
    peaks = used_peaks(plan) or {"float32 vector": plan.device.peak_flops("float32", "vector")}
    highest = max(peaks.values())
    low = min((*intensities, highest / bandwidth)) / 4
    high = max((*intensities, highest / bandwidth)) * 8
    ax.plot([low, highest / bandwidth], [low * bandwidth, highest], color=theme.faint, linewidth=1.5)
    middle = (low * highest / bandwidth) ** 0.5
    ax.annotate(
        f"{si(bandwidth)}B/s",
        (middle, middle * bandwidth),
        (-6, 4),
        textcoords="offset points",
        ha="right",
        color=theme.faint,
        fontsize=_SMALL,
    )
    for name, peak in peaks.items():
        ax.plot([peak / bandwidth, high], [peak, peak], color=theme.faint, linewidth=1.5)
        ax.annotate(
            f"{name} {si(peak)}FLOP/s",
            (high, peak),
            (0, 3),
            textcoords="offset points",
            ha="right",
            color=theme.faint,
            fontsize=_SMALL,
        )
    ax.set_xlim(low, high)
    return highest


def _points(costs: Sequence[Cost]) -> tuple[list[float], list[float]]:
    points = dict.fromkeys((float(f"{c.intensity:.4g}"), float(f"{_flops_per_s(c):.4g}")) for c in costs)
    return [x for x, _ in points], [y for _, y in points]  # those of equal layers are one


def _flops_per_s(cost: Cost) -> float:
    return cost.flop_total / (cost.time_us * 1e-6) if cost.time_us else 0.0


# The bytes


def _bars_height(plan: Plan) -> float:
    return _BAR_IN * len(_bars(plan)) + _BARS_FRAME_IN


def bytes_moved(plan: Plan, ax: Axes) -> None:
    """A bar for each unfused kernel, then for each fused one: read, and lighter, written."""
    bars = _bars(plan)
    unit, size = byte_unit(max((g.issued.total for _, g in bars), default=0))
    for position, (name, g) in enumerate(bars):
        read, written = g.issued.read / size, g.issued.written / size
        ax.barh(position, read, color=_COLOURS[name])
        ax.barh(position, written, left=read, color=_COLOURS[name], alpha=0.55)
        ax.annotate(
            number(read + written),
            (read + written, position),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=_SMALL,
        )
    ax.set_yticks(range(len(bars)), [literal(shorten(g.label, _MAX_LABEL)) for _, g in bars], fontsize=_SMALL)
    ax.set_xlabel(f"{unit} read, and lighter, written", fontsize=_SMALL)
    ax.set_title(_bytes_title(plan), loc="left", fontsize=10)
    ax.margins(x=0.15)
    ax.set_ylim(len(bars) - 0.4, -0.6)
    _tidy(ax)
    ax.tick_params(axis="y", length=0)


def _bytes_title(plan: Plan) -> str:
    unit, size = byte_unit(plan.unfused.issued.total)
    unfused, fused = (in_unit(t.issued.total, size) for t in (plan.unfused, plan.fused))
    cut = max(len(plan.unfused_groups), len(plan.groups)) > _MAX_BARS
    return f"{unit}: {unfused} unfused, {fused} fused" + (f"; first {_MAX_BARS}" if cut else "")


def _bars(plan: Plan) -> list[tuple[str, Group]]:
    groups = (("unfused", plan.unfused_groups), ("fused", plan.groups))
    return [(name, g) for name, all_groups in groups for g in all_groups[:_MAX_BARS]]


def _tidy(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=_SMALL)
