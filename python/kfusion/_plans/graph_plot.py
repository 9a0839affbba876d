"""The picture of which calls share a kernel: boxes around calls, arrows for what reads what, dashed where refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._pictures import UNFUSED_COLOUR, literal
from . import graph_layout as _layout
from .graph_layout import CALL_HEIGHT, Call, Edge, Kernel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .plan import Plan

_TINTS = ("#4477aa", "#cc6677", "#228833", "#aa7acc", "#b8962e", "#3399bb", "#ee8866", "#779933")
_SMALL = 8
_FRAME_IN, _LEAST_WIDTH_IN = 0.6, 4.0


def graph_size(plan: Plan) -> tuple[float, float]:
    """Width and height in inches at which the names fit their boxes."""
    layout = _layout.layout(plan)
    return max(layout.width + _FRAME_IN, _LEAST_WIDTH_IN), layout.height + _FRAME_IN + (0.3 if layout.note else 0.0)


def fusion_graph(plan: Plan, ax: Axes, size: tuple[float, float]) -> None:
    """Draws it on axes of that many inches, at least `graph_size`: an inch stays an inch."""
    layout = _layout.layout(plan)
    for kernel in layout.kernels:
        _draw_kernel(kernel, ax)
    for edge in layout.edges:
        _draw_edge(edge, ax)
    width, height = (inches - _FRAME_IN for inches in size)
    left = (layout.width - width) / 2
    ax.set(xlim=(left, left + width), ylim=(height, -0.05), aspect="equal", anchor="N")
    ax.set_axis_off()
    ax.set_title(f"Kernels: {len(plan.groups)} instead of {len(plan.unfused_groups)}", loc="left", fontsize=10)
    ax.text(left, height, layout.note, fontsize=_SMALL, va="bottom")


def _draw_kernel(kernel: Kernel, ax: Axes) -> None:
    tint = _TINTS[kernel.id % len(_TINTS)]
    corner, size = (kernel.x, kernel.y), (kernel.width, kernel.height)
    _box(ax, corner, size, color=tint, alpha=0.14, zorder=1)
    _box(ax, corner, size, color=tint, fill=False, zorder=1)
    behind = {"facecolor": ax.get_facecolor(), "alpha": 0.7, "edgecolor": "none", "pad": 1}
    caption = literal(kernel.caption)
    ax.text(kernel.x + 0.08, kernel.y + 0.14, caption, fontsize=7, va="center", bbox=behind, zorder=4)
    for call in kernel.calls.values():
        corner = (call.x - call.width / 2, call.y - CALL_HEIGHT / 2)
        _box(ax, corner, (call.width, CALL_HEIGHT), color=tint, zorder=3)
        ax.text(call.x, call.y, literal(call.name), fontsize=_SMALL, ha="center", va="center", color="white", zorder=4)


def _box(ax: Axes, corner: tuple[float, float], size: tuple[float, float], **style: Any) -> None:
    from matplotlib.patches import FancyBboxPatch

    ax.add_patch(FancyBboxPatch(corner, *size, "round,pad=0,rounding_size=0.08", clip_on=False, **style))


def _draw_edge(edge: Edge, ax: Axes) -> None:
    from matplotlib.patches import FancyArrowPatch

    (x0, y0), (x1, y1) = _ends(edge.start, edge.end)
    refused = not edge.is_inside
    bend = 0.25 if edge.is_bent else 0.0
    colour = UNFUSED_COLOUR if refused else "#8a8f98"
    ax.add_patch(
        FancyArrowPatch(
            (x0, y0),
            (x1, y1),
            arrowstyle="-|>" if edge.has_data else "-",
            mutation_scale=8,
            shrinkA=0,
            shrinkB=0,
            linestyle="--" if refused else "-",
            color=colour,
            connectionstyle=f"arc3,rad={bend}",
            zorder=2,
        )
    )
    if edge.reason:
        x, y = (x0 + x1 - bend * (y1 - y0)) / 2, (y0 + y1 + bend * (x1 - x0)) / 2  # the middle of the curve
        box = {"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 1}
        ax.text(x, y, edge.reason, fontsize=7, ha="center", va="center", color=colour, bbox=box, zorder=5)


def _ends(start: Call, end: Call) -> tuple[tuple[float, float], tuple[float, float]]:
    """From the lower edge of one box to the upper edge of the other, or between their sides where they are level."""
    if start.y == end.y:
        side = 1 if start.x < end.x else -1
        return (start.x + side * start.width / 2, start.y), (end.x - side * end.width / 2, end.y)
    down = 1 if start.y < end.y else -1
    return (start.x, start.y + down * CALL_HEIGHT / 2), (end.x, end.y - down * CALL_HEIGHT / 2)
