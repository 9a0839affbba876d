"""Pictures of results: rates over row length, speedups, and the share of the limit as a map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfusion import _pictures

from .results import Measured, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW_SUITES = ("relu_layernorm", "norms", "softmax")
_BAR_SUITES = ("chains", "reductions", "cpu")
_COLOURS = {
    "fused": _pictures.FUSED_COLOUR,
    "unfused": _pictures.UNFUSED_COLOUR,
    "copy": "#333333",
    "torch": "#9db4d6",
    "torch.compile": "#3b6fb6",
    "torch.compile, warm": "#1f3f7a",
    "triton": "#8e5bb5",
    "cupy": "#d9b44a",
    "cupy.fuse": "#b8860b",
    "jax.jit": "#5aa7a7",
    "numpy": "#bbbbbb",
    "numexpr": "#7f7f7f",
    "numba, warm": "#4c9a52",
    "CuPy experiment, unfused": "#e8a08f",
    "CuPy experiment, fused": "#a0522d",
}
_SPEEDUP_OVER = ("unfused", "numpy", "numexpr", "torch", "torch.compile", "torch.compile, warm", "triton", "cupy",
                 "cupy.fuse", "jax.jit", "numba, warm")  # fmt: skip


def draw(results: Results) -> dict[str, Figure]:
    """The pictures that the results have something for, by name: "rows", "limit", "speedups"."""
    pictures: dict[str, Callable[[Results], Any]] = {"rows": rows, "limit": limit, "speedups": speedups}
    drawn = {name: draw_one(results) for name, draw_one in pictures.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def save_all(results: Results, folder: str | Path, stem: str) -> list[Path]:
    """Draws all into `folder`, as STEM_NAME.png; the paths."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in draw(results).items():
        path = Path(folder) / f"{stem}_{name}.png"
        _pictures.save(figure, path)
        written.append(path)
    return written


# ---- GB/s over the length of a row ----------------------------------------------------------------------------------


def rows(results: Results) -> Figure | None:
    """A panel for each function of rows and dtype: the rate of every version over the length of a row."""
    panels = _panels(results)
    if not panels:
        return None
    names = list(dict.fromkeys(name for name, _ in panels))
    dtypes = list(dict.fromkeys(dtype for _, dtype in panels))
    figure, axes = _grid(len(names), len(dtypes), 7.0 if len(dtypes) > 1 else 10.0, 3.0)
    for i, name in enumerate(names):
        for k, dtype in enumerate(dtypes):
            _rates(axes[i][k], f"{name}, {dtype}", panels.get((name, dtype), []))
    for ax in axes[-1]:
        ax.set_xlabel("elements of a row")
    _legend(figure, axes)
    about = "crosses: lengths that are no multiple of 8"
    figure.suptitle(
        f"GB/s (in and out) over the length of a row, cold cache, {results.device_name}; {about}", fontsize=10
    )
    return figure


def _panels(results: Results) -> dict[tuple[str, str], list[Measured]]:
    """Large dense cases by function and dtype, in order of length."""
    found: dict[tuple[str, str], list[Measured]] = {}
    large = [c for s in _ROW_SUITES for c in results.of_suite(s) if c.layout == "dense" and c.find("fused", "cold")]
    most = max((case.nbytes for case in large), default=0)
    for case in large:
        if case.nbytes > most / 3:
            found.setdefault((case.name, case.dtype), []).append(case)
    return {panel: sorted(cases, key=lambda c: c.shape[-1]) for panel, cases in found.items()}


def _rates(ax: Axes, heading: str, cases: Sequence[Measured]) -> None:
    for version, colour in _COLOURS.items():
        points = [(c.shape[-1], row.gbps) for c in cases if (row := c.find(version, "cold")) and row.gbps]
        even = [point for point in points if point[0] % 8 == 0 or point[0] < 8]
        odd = [point for point in points if point not in even]
        if even:
            style = "--" if version == "copy" else "-"
            width = 2.2 if version == "fused" else 1.2
            ax.plot(*zip(*even, strict=True), style, marker=".", color=colour, label=version, linewidth=width)
        if odd and version != "copy":
            ax.plot(*zip(*odd, strict=True), "x", color=colour, markersize=5)
    ax.set_xscale("log", base=2)
    ax.set_ylim(bottom=0)
    ax.set_title(heading, loc="left", fontsize=10)
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)


# ---- share of the limit ---------------------------------------------------------------------------------------------


def limit(results: Results) -> Figure | None:
    """A map of 100 x copy's time / time of the fused version: functions and dtypes over the length of a row."""
    panels = _panels(results)
    if not panels:
        return None
    lengths = sorted({case.shape[-1] for cases in panels.values() for case in cases})
    figure, ((ax,),) = _grid(1, 1, max(8.0, 2.2 + 0.45 * len(lengths)), 1.6 + 0.36 * len(panels))
    shares = [[_share(cases, length) for length in lengths] for cases in panels.values()]
    ax.imshow([[s if s is not None else float("nan") for s in line] for line in shares], cmap="RdYlGn", vmin=50,
              vmax=100, aspect="auto")  # fmt: skip
    for i, line in enumerate(shares):
        for k, share in enumerate(line):
            ax.text(k, i, "" if share is None else f"{share:.0f}", ha="center", va="center", fontsize=8)
    ax.set_xticks(range(len(lengths)), [str(n) for n in lengths], rotation=60, ha="right", fontsize=8)
    ax.set_yticks(range(len(panels)), [f"{name}, {dtype}" for name, dtype in panels])
    ax.set_title(
        f"Fused, % of the copy's rate over the length of a row, {results.device_name}", loc="left", fontsize=10
    )
    ax.spines[:].set_visible(False)
    return figure


def _share(cases: Sequence[Measured], length: int) -> float | None:
    row = next((c.find("fused", "cold") for c in cases if c.shape[-1] == length), None)
    return 100 * row.of_copy if row and row.of_copy else None


# ---- speedups -------------------------------------------------------------------------------------------------------


def speedups(results: Results) -> Figure | None:
    """Bars: how often faster the fused version is than each other one; of each function its largest case."""
    largest: dict[str, Measured] = {}
    for case in results.of_suite(*_BAR_SUITES):
        if case.find("fused", "cold") and case.nbytes > largest.get(case.name, case).nbytes - 1:
            largest[case.name] = case
    cases = list(largest.values())
    versions = [v for v in _SPEEDUP_OVER if any(case.find(v, "cold") for case in cases)]
    if not versions:
        return None
    figure, ((ax,),) = _grid(1, 1, 10.0, 1.4 + 0.22 * len(cases) * (len(versions) + 1))
    for k, version in enumerate(versions):
        places, values = [], []
        for i, case in enumerate(cases):
            fused, other = case.find("fused", "cold"), case.find(version, "cold")
            if fused and other and fused.of_copy and other.of_copy:
                places.append(i * (len(versions) + 1) + k)
                values.append(fused.of_copy / other.of_copy)
        # From 1, so that where the other is faster its bar goes the other way.
        lengths = [v - 1 for v in values]
        bars = ax.barh(places, lengths, left=1, color=_COLOURS[version], label=f"over {version}")
        ax.bar_label(bars, [f"{v:.2f}x" if v < 10 else f"{v:.0f}x" for v in values], padding=3, fontsize=7)
    middle = (len(versions) - 1) / 2
    ax.set_yticks(
        [i * (len(versions) + 1) + middle for i in range(len(cases))],
        [_pictures.literal(f"{case.name}\n{' x '.join(map(str, case.shape))}") for case in cases],
        fontsize=8,
    )
    ax.margins(y=0.01)
    ax.invert_yaxis()
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, place: f"{value:g}x")
    ax.axvline(1, color="#333", linestyle="--", linewidth=1)
    ax.set_title(f"Speedup of the fused version, cold cache, {results.device_name}", loc="left", fontsize=10)
    ax.legend(loc="lower right", fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


# ---- all ------------------------------------------------------------------------------------------------------------


def _grid(lines: int, columns: int, width: float, height: float) -> tuple[Figure, Any]:
    """A closed figure of panels of this size in inches."""
    import matplotlib.pyplot as plt

    size = (width * columns, height * lines)
    figure, axes = plt.subplots(lines, columns, figsize=size, sharex=True, squeeze=False, layout="constrained")
    plt.close(figure)
    return figure, axes


def _legend(figure: Figure, axes: Any) -> None:
    """One for all panels, of every version that any of them shows."""
    handles = {label: h for ax in axes.flat for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6, fontsize=8)
