"""Tables of README and PAGES, written from results/*.json between `<!-- bench:NAME -->` and `<!-- /bench -->`."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kfusion import _tables

from . import cold_start, host, models, plots, products, show, suites, targets, traffic_suite
from .results import Measured, Results, Row

_TRAFFIC = {"traffic": traffic_suite.Results.by_width, "traffic_saved": traffic_suite.Results.saved}
RUNS = ("h200", "cpu")  # results/NAME.json
OPTIONAL = {"cpu_avx2": "CPU, AVX2", "h100": "H100"}  # likewise, where it exists, and what it is called
PAGES = ("docs/performance.md", "results/README.md")  # beside the README
_REGION = re.compile(r"(<!-- bench:(\w+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
_SHOWN = ("fused", "fused, fresh", "unfused", "torch", "torch.compile", "torch.compile, warm", "triton", "cupy",
          "cupy.fuse", "jax.jit", "numpy", "numexpr", "numba, warm", "CuPy experiment, unfused",
          "CuPy experiment, fused")  # fmt: skip
_NOT_IN_THE_README = ("torch.compile", "numexpr", "numba, warm")  # so that its table is not too wide
_ROW_SUITES = ("relu_layernorm", "norms", "softmax")
_LENGTHS = (7, 64, 257, 1023, 1024, 4096, 8192, 32768, 50257, 131072, 524288, 1048576)


def update(readme: str | Path) -> list[Path]:
    """Rewrites the marked regions of a README and of PAGES beside it, and the pictures in the folder results/.

    Args:
        readme: the file; results/h200.json and results/cpu.json lie beside it.

    Returns:
        The pictures that were drawn.

    Raises:
        OSError: a file is not there.
        ValueError: a region has a name that none of the tables has, or a result is none.
    """
    readme = Path(readme)
    runs = load(readme.parent)
    pages = [page for page in (readme, *(readme.parent / name for name in PAGES)) if page.exists()]
    texts = [rewritten(page.read_text(), runs, readme.parent) for page in pages]
    pictures = [path for name in RUNS for path in plots.save_all(runs[name], readme.parent / "results", name)]
    for page, text in zip(pages, texts, strict=True):
        page.write_text(text)
    return pictures


def load(folder: Path) -> dict[str, Results]:
    """The runs whose results are in the folder results/ of this one."""
    paths = {name: folder / "results" / f"{name}.json" for name in (*RUNS, *OPTIONAL)}
    return {name: Results.load(path) for name, path in paths.items() if name in RUNS or path.exists()}


def rewritten(text: str, runs: Mapping[str, Results], folder: Path = Path()) -> str:
    """The text with its regions made anew; that of the traffic comes from the folder results/ of `folder`.

    Raises:
        ValueError: a region has a name that none of the tables has.
    """

    def region(match: re.Match[str]) -> str:
        name = match[2]
        if name in _TRAFFIC:
            return f"{match[1]}{_traffic(name, folder)}\n{match[3]}"
        if name not in REGIONS:
            raise ValueError(f"kfusion bench: a region must be one of {', '.join((*REGIONS, *_TRAFFIC))}, got {name!r}")
        return f"{match[1]}{REGIONS[name](runs)}\n{match[3]}"

    return _REGION.sub(region, text)


# ---- the regions ----------------------------------------------------------------------------------------------------


def _first(runs: Mapping[str, Results]) -> str:
    """The CuPy experiment's case, every version of it."""
    shape = suites.EXPERIMENT_SHAPE
    cases = [c for c in runs["h200"].of_suite("relu_layernorm") if (c.shape, c.dtype) == (shape, "float32")]
    lines = []
    for case in cases:
        unfused = case.find("unfused", "cold")
        for row in case.rows:
            if row.state == "cold" and unfused and unfused.of_copy and row.of_copy:
                error = "" if row.error is None else f"{row.error:.0e}"
                speedup = f"{row.of_copy / unfused.of_copy:.2f}x"
                lines.append((row.version, show.time_text(row.median_us), show.cell(row), speedup, error))
    return _markdown(("version", "time", "fraction of copy speed", "speedup", "largest error"), lines)


def _rows(runs: Mapping[str, Results]) -> str:
    """Fused row kernels: a line for each function and dtype, a column for each length; in brackets torch.compile."""
    cases = [c for c in runs["h200"].of_suite(*_ROW_SUITES) if _is_length(c)]
    found = {(c.name, c.dtype, c.shape[-1]): c for c in cases}
    lines = []
    for name, dtype in dict.fromkeys((c.name, c.dtype) for c in cases):
        of_lengths = [found.get((name, dtype, length)) for length in _LENGTHS]
        lines.append((name, dtype, *(_with_compiled(case) if case else "" for case in of_lengths)))
    return _markdown(("function", "dtype", *map(str, _LENGTHS)), lines)


def _is_length(case: Measured) -> bool:
    return case.layout == "dense" and case.shape not in (suites.EXPERIMENT_SHAPE, *suites.FEW_ROWS)


def _with_compiled(case: Measured) -> str:
    fused, compiled = (show.cell(case.find(v, "cold")) for v in ("fused", "torch.compile"))
    return f"{fused} ({compiled})" if compiled else fused


def _shapes(runs: Mapping[str, Results]) -> str:
    """Few rows, the experiment's shape, strided and transposed rows."""
    cases = [c for c in runs["h200"].of_suite(*_ROW_SUITES) if not _is_length(c) and c.dtype == "float32"]
    return _grid(cases, "cold", ("shape",), lambda c: (_about(c)[1],), lambda c: c.name)


def _chains(runs: Mapping[str, Results]) -> str:
    cases = runs["h200"].of_suite("chains")
    return _grid(cases, "cold", ("function", "dtype"), lambda c: (c.name, c.dtype), show.shape)


def _reductions(runs: Mapping[str, Results]) -> str:
    return _ratios(runs["h200"].of_suite("reductions"), "cold", skip=("fused, fresh",))


def _cpu(runs: Mapping[str, Results]) -> str:
    return _ratios(runs["cpu"].of_suite("cpu"), "cold", skip=_NOT_IN_THE_README)


def _every_cpu(run: str, state: str) -> Callable[[Mapping[str, Results]], str]:
    """All cases and versions of a run's suite for the CPU, from memory or within the caches."""

    def table(runs: Mapping[str, Results]) -> str:
        cases = runs[run].of_suite("cpu") if run in runs else []
        return _ratios(cases, state, place=_cache if state == "hot" else None)

    return table


def _cache(case: Measured) -> str:
    """That which a case of the CPU fits."""
    return min(suites.CPU_IN_CACHE, key=lambda name: abs(math.log(case.nbytes / suites.CPU_IN_CACHE[name])))


def _cpu_in_cache(runs: Mapping[str, Results]) -> str:
    """Times, a line for each function and length of rows, a column for each cache."""

    def line(case: Measured) -> tuple[str, ...]:
        return case.name, str(case.shape[-1]) if len(case.shape) > 1 else ""

    return _grid(runs["cpu"].of_suite("cpu"), "hot", ("function", "row length"), line, _cache)


def _layers(runs: Mapping[str, Results]) -> str:
    return _ratios(runs["h200"].of_suite("layers"), "cold", skip=("fused, fresh",))


def _models(runs: Mapping[str, Results]) -> str:
    """Times of whole models, and kernels of a call as planned: kfusion's, and the library's own."""
    lines = []
    for name, run in runs.items():
        for case in run.of_suite("models"):
            kernels = [str(row.launches) if row and row.launches else "" for row in map(case.find, ("fused", "torch"))]
            times = [_time(case, version, models.CALL) for version in ("fused", *models.PEERS)]
            lines.append((_machine(name), *_about(case), *times, *kernels))
    header = ("machine", "model", "input", "dtype", "fused", *models.PEERS, "kernels", "torch's kernels")
    return _markdown(header, lines)


def _products(suite: str) -> Callable[[Mapping[str, Results]], str]:
    """TFLOP/s of products with what follows them, the library's bare products at last."""

    def table(runs: Mapping[str, Results]) -> str:
        lines = []
        for name, run in runs.items():
            for case in run.of_suite(suite):
                kernels = case.find("fused", products.STATE)
                rates = [_rate(case.find(version, products.STATE)) for version in products.VERSIONS]
                time = _time(case, "fused", products.STATE)
                launches = str(kernels.launches) if kernels and kernels.launches else ""
                lines.append((_machine(name), *_about(case), time, launches, *rates))
        return _markdown(("machine", "function", "shape", "dtype", "time", "kernels", *products.VERSIONS), lines)

    return table


def _rate(row: Row | None) -> str:
    text = _tables.number(row.tflops, 3) if row and row.tflops else ""
    return f"**{text}**" if row and row.version == "fused" and text else text


def _host(runs: Mapping[str, Results]) -> str:
    return _both(runs, "host", host.CALL)


def _cold_start(runs: Mapping[str, Results]) -> str:
    tables = []
    for name, run in runs.items():
        for case in run.of_suite("cold_start"):
            for row in case.rows:
                if row.state == cold_start.EMPTY:
                    times = [case.find(row.version, state) for state in cold_start.STATES]
                    texts = [show.time_text(r.median_us) if r else "" for r in times]
                    tables.append((_machine(name), case.name, row.version, *texts))
    return _markdown(("machine", "function", "", *cold_start.STATES), tables)


def _both(runs: Mapping[str, Results], suite: str, state: str) -> str:
    """Times of a suite on both machines, a line for each case."""
    cases = [(_machine(name), case) for name, run in runs.items() for case in run.of_suite(suite)]
    versions = show.versions_of([case for _, case in cases])
    lines = [
        (machine, case.name, show.shape(case), case.layout, *(_time(case, version, state) for version in versions))
        for machine, case in cases
    ]
    return _markdown(("machine", "function", "shape", "arrays", *versions), lines)


def _targets(runs: Mapping[str, Results]) -> str:
    lines = [(_machine(name), *targets.cells(f)) for name, run in runs.items() for f in targets.found(run)]
    return _markdown(("machine", *targets.HEADER), lines)


def _machine(name: str) -> str:
    return OPTIONAL.get(name, name.upper())


def _pictures(runs: Mapping[str, Results]) -> str:
    """Links to the pictures, from a page in a folder beside results/."""
    about = {
        "rows": "Rates of row kernels over the length of a row",
        "limit": "Share of the copy's rate over the length of a row",
        "speedups": "Speedups of fused functions",
    }
    names = [(stem, name) for stem in RUNS for name in plots.draw(runs[stem])]
    return "\n\n".join(f"![{about[n]} on {runs[stem].device_name}](../results/{stem}_{n}.png)" for stem, n in names)


def _machines(runs: Mapping[str, Results]) -> str:
    """Where, when and with what the tables were measured."""
    lines = []
    for name, run in runs.items():
        versions = ", ".join(f"{n} {v}" for n, v in run.versions.items() if n != "kfusion")
        lines.append((_machine(name), run.device_name, f"`results/{name}.json`", run.date, _commits(run), versions))
    return _markdown(("", "machine", "results", "date", "commits", "versions"), lines)


def _commits(run: Results) -> str:
    """Which suites were measured at which commit; of those at several, how many cases."""
    found: dict[str, Counter[str]] = {}
    for case in run.cases:
        found.setdefault((case.commit or run.commit)[:7], Counter())[case.suite] += 1
    commits = Counter(suite for of in found.values() for suite in of)

    def text(suite: str, cases: int) -> str:
        return f"{suite} ({cases} cases)" if commits[suite] > 1 else suite

    return "; ".join(f"{commit}: {', '.join(text(*item) for item in of.items())}" for commit, of in found.items())


def _traffic(name: str, folder: Path) -> str:
    """Bytes by the GPU's counters."""
    table = _TRAFFIC[name](traffic_suite.Results.load(folder / "results" / "traffic_h200.json"))
    return _markdown(table.header, table.rows)


REGIONS: dict[str, Callable[[Mapping[str, Results]], str]] = {
    "first": _first,
    "rows": _rows,
    "shapes": _shapes,
    "chains": _chains,
    "reductions": _reductions,
    "cpu": _cpu,
    "cpu_cold": _every_cpu("cpu", "cold"),
    "cpu_hot": _every_cpu("cpu", "hot"),
    "cpu_avx2_cold": _every_cpu("cpu_avx2", "cold"),
    "cpu_avx2_hot": _every_cpu("cpu_avx2", "hot"),
    "cpu_in_cache": _cpu_in_cache,
    "layers": _layers,
    "models": _models,
    "products": _products("products"),
    "attention": _products("attention"),
    "convolutions": _products("convolutions"),
    "host": _host,
    "cold_start": _cold_start,
    "targets": _targets,
    "pictures": _pictures,
    "machines": _machines,
}

# ---- Markdown -------------------------------------------------------------------------------------------------------


def _ratios(
    cases: Sequence[Measured],
    state: str,
    skip: Sequence[str] = (),
    place: Callable[[Measured], str] | None = None,
) -> str:
    """The copy's time over each version's, and the copy's own time; `place` says where the data is."""
    cases = [case for case in cases if state in case.states]
    versions = [v for v in _SHOWN if v in show.versions_of(cases) and v not in skip]
    header = ("function", "shape", "dtype", "in", *versions, "copy")
    lines = [
        (*_about(c), place(c) if place else "", *(_ratio(c, v, state) for v in versions), _time(c, "copy", state))
        for c in cases
    ]
    return _markdown(header, lines)


def _grid(
    cases: Sequence[Measured],
    state: str,
    header: Sequence[str],
    line: Callable[[Measured], tuple[str, ...]],
    column: Callable[[Measured], str],
) -> str:
    """A line for what `line` says of cases, under `header`, and a column for what `column` says."""
    found = {(line(c), column(c)): _against_best(c, state) for c in cases if c.find("fused", state)}
    columns = dict.fromkeys(c for _, c in found)
    lines = [(*of, *(found.get((of, c), "") for c in columns)) for of in dict.fromkeys(of for of, _ in found)]
    return _markdown((*header, *columns), lines)


def _against_best(case: Measured, state: str) -> str:
    """ "fused / unfused (the fastest of the peers)": the copy's time over each one's, within the caches the times."""
    text = show.cell if state == "cold" else _median
    peers = [row for row in case.rows if row.state == state and row.version in _SHOWN[3:]]
    best = min(peers, key=lambda row: row.median_us, default=None)
    own = " / ".join(text(case.find(version, state)) for version in ("fused", "unfused"))
    return f"{own} ({text(best)})" if best else own


def _about(case: Measured) -> tuple[str, str, str]:
    layout = "" if case.layout == "dense" else f", {case.layout}"
    return case.name, show.shape(case) + layout, case.dtype


def _ratio(case: Measured, version: str, state: str) -> str:
    row, copy = case.find(version, state), case.find("copy", state)
    text = show.cell(row)
    if state == "hot" and row and copy:  # by medians: a copy right after another library's threads is a slow one
        text = _tables.number(copy.median_us / row.median_us, 2)
    return f"**{text}**" if version == "fused" and text else text


def _time(case: Measured, version: str, state: str) -> str:
    return _median(case.find(version, state))


def _median(row: Row | None) -> str:
    return show.time_text(row.median_us) if row else ""


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table; columns that are empty in all lines are left out."""
    if not lines:
        return "Not measured."
    kept = [i for i, _ in enumerate(header) if i == 0 or any(line[i] for line in lines)]
    rule = ["---"] * len(kept)
    rows = ([header[i] for i in kept], rule, *([line[i] for i in kept] for line in lines))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)
