"""`kfusion traffic --suite`: every fused row and pointwise kernel at a working set far beyond the L2 cache."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kfusion._spec import ITEM_BYTES, Spec
from kfusion._tables import Table, number
from kfusion._traffic.traffic import Request, Traffic, measure

from . import functions, runs

DTYPES = ("float32", "bfloat16")
WIDTHS = (1023, 1024, 4096, 32768, 131072, 524288)
_USUAL = 4096


class Case(NamedTuple):
    """A function and what it reads: "x" is a matrix, "t" a transposed one, "w" a vector of a row's length, "i" a class
    for each row. matrices counts those that are read or written.
    """

    target: str
    reads: str
    matrices: int

    @property
    def name(self) -> str:
        """The function's name."""
        return self.target.rpartition(":")[2].removeprefix("fused_")

    def request(self, cols: int, dtype: str, nbytes: int) -> Request:
        """A request for matrices of at least `nbytes`."""
        rows = -(-nbytes // (self.matrices * cols * ITEM_BYTES[dtype]))
        specs = {
            "x": Spec((rows, cols), dtype),
            "t": Spec((cols, rows), dtype),
            "w": Spec((cols,), dtype),
            "i": Spec((rows,), "int64"),
        }
        return Request(self.target, tuple(specs[kind] for kind in self.reads))


def _named(name: str, reads: str, matrices: int) -> Case:
    return Case(f"kfusion:fused_{name}", reads, matrices)


def _plain(name: str, reads: str, matrices: int) -> Case:
    return Case(f"{functions.__file__}:{name}", reads, matrices)


BY_WIDTH = (
    _named("relu_layernorm", "xww", 2),
    _named("layernorm", "xww", 2),
    _named("rmsnorm", "xw", 2),
    _named("softmax", "x", 2),
)
OTHERS = (
    _named("add_layernorm", "xxww", 4),
    _named("add_rmsnorm", "xxw", 4),
    _named("batchnorm", "xwwww", 2),
    _named("log_softmax", "x", 2),
    _named("gelu", "x", 2),
    _named("bias_relu_log", "xw", 2),
    _named("cross_entropy", "xi", 1),
    _named("mse", "xx", 2),
    _plain("five_ops", "x", 2),
    _plain("five_ops_of_two", "xx", 3),
    _plain("pointwise_chain", "xxx", 4),
    _plain("add_transposed", "xt", 3),
    _plain("sum_rows", "x", 1),
    _plain("sum_columns", "x", 1),
    _plain("sum_all", "x", 1),
)
_BY_WIDTH_NAMES = {case.name for case in BY_WIDTH}


def cases() -> Iterator[tuple[Case, int, str]]:
    """All of them, with the length of a row and the dtype."""
    for case, dtype, cols in itertools.product(BY_WIDTH, DTYPES, WIDTHS):
        yield case, cols, dtype
    for case, dtype in itertools.product(OTHERS, DTYPES):
        yield case, _USUAL, dtype


@dataclass(frozen=True)
class Measured:
    """One function at one row length."""

    name: str
    cols: int
    dtype: str
    traffic: Traffic


@dataclass(frozen=True, kw_only=True)
class Results(runs.Run):
    """A run of the suite: what was measured, on what, with which versions, by which command."""

    WRITER: ClassVar[str] = "kfusion traffic --suite --json"

    cases: tuple[Measured, ...]

    @property
    def outside(self) -> list[str]:
        """The fused functions that did not keep to 3 %, with their ratios."""
        totals = ((c.traffic, c.traffic.total("fused")) for c in self.cases)
        return [f"{t.subject}: {total.ratio:.3f}" for t, total in totals if t.is_within(total) is False]

    def by_width(self) -> Table:
        """Measured over compulsory bytes of the fused functions that are measured at several row lengths."""
        ratios = {(c.name, c.dtype, c.cols): _ratio(c) for c in self.cases if c.name in _BY_WIDTH_NAMES}
        widths = sorted({cols for _, _, cols in ratios})
        lines = dict.fromkeys((name, dtype) for name, dtype, _ in ratios)
        rows = [(*line, *(ratios.get((*line, cols), "") for cols in widths)) for line in lines]
        header = ("function", "dtype", *map(str, widths))
        return Table("Measured / compulsory DRAM bytes, fused, by row length", header, tuple(rows), left=(0, 1))

    def saved(self) -> Table:
        """Ratios at the usual row length, and GB in the first dtype: predicted and measured, fused and unfused."""
        by_dtype = {dtype: [c for c in self.cases if (c.cols, c.dtype) == (_USUAL, dtype)] for dtype in DTYPES}
        header = ("function", *DTYPES, "GB", "measured", "unfused", "measured", "saved")
        rows = [_saved_cells(same) for same in zip(*by_dtype.values(), strict=True)]
        return Table(f"Rows of {_USUAL}: measured / compulsory bytes; GB in {DTYPES[0]}", header, tuple(rows))


def _ratio(case: Measured) -> str:
    return f"{case.traffic.total('fused').ratio:.3f}"


def _saved_cells(same: Sequence[Measured]) -> tuple[str, ...]:
    """The cells of one function in all dtypes."""
    t = same[0].traffic
    moved = (bytes_.total for v in ("fused", "unfused") for bytes_ in (t.total(v).compulsory, t.total(v).dram))
    return (same[0].name, *map(_ratio, same), *(number(n / 1e9) for n in moved), f"{t.saved:.2f}x")


def run(nbytes: int, command: str, commit: str | None) -> Results:
    """Measures all cases, each with at least `nbytes` of matrices. Raises as `kfusion.measure_traffic`."""
    asked = list(cases())
    traffic = measure([case.request(cols, dtype, nbytes) for case, cols, dtype in asked])
    found = (Measured(c.name, cols, dtype, t) for (c, cols, dtype), t in zip(asked, traffic, strict=True))
    return Results(**runs.facts(command, commit, (), gpu=True), cases=tuple(found))
