"""What all pictures share: colours, files, figures. matplotlib is imported when the first one is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._files import StrPath, check_writable, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FUSED_COLOUR, UNFUSED_COLOUR = "#1b7f5c", "#c8553d"


def closed_figure_of(ax: Axes) -> Figure:
    """The figure of the caller's axes, closed, so that a notebook shows it once."""
    import matplotlib.pyplot as plt

    figure: Any = ax.get_figure(root=True) if hasattr(ax, "get_subplotspec") else ax.figure
    plt.close(figure)
    return figure  # type: ignore[no-any-return]


def check_path(path: StrPath) -> None:
    """Raises what `save` would raise for a bad path, before anything is measured.

    Raises:
        ValueError: the ending is no picture format.
        OSError: the folder does not exist or cannot be written to, or path is a folder.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    formats = FigureCanvasAgg.get_supported_filetypes()
    ending = Path(path).suffix.removeprefix(".").lower()
    if ending not in formats:
        raise ValueError(f"{path}: a picture's name must end in one of .{', .'.join(sorted(formats))}")
    check_writable(path)


def save(figure: Figure, path: StrPath) -> None:
    """Writes the picture whole or not at all: a temporary file beside it, then a rename."""
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format=Path(path).suffix.removeprefix(".").lower() or "png")


def literal(text: str) -> str:
    """Text that matplotlib shows as it is: a dollar sign begins no formula."""
    return text.replace("$", r"\$")


def time_unit(us: float) -> tuple[str, float]:
    """The unit that suits a time and what to divide microseconds by."""
    return ("us", 1.0) if us < 1000 else ("ms", 1000.0)
