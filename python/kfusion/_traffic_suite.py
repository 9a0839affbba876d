"""`kfusion traffic --suite`: every fused row and pointwise kernel at a working set far beyond the L2 cache."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from . import _primitives as p
from ._spec import ITEM_BYTES, Spec
from ._tables import Table
from ._traffic import Request, Traffic

LEAST_BYTES = 4_000_000_000  # dirty lines that stay in an L2 cache are less than 3 % of it
DTYPES = ("float32", "bfloat16")
WIDTHS = (1023, 1024, 4096, 32768, 131072, 524288)
_USUAL = 4096


def five_ops(x: Any) -> Any:
    """sigmoid(relu((x + 1) 2) - 0.5)."""
    return p.sigmoid(p.relu((x + 1.0) * 2.0) - 0.5)


def mul_add_relu(x: Any, w: Any, b: Any) -> Any:
    """relu(x w + b) 0.5."""
    return p.relu(x * w + b) * 0.5


def add_transposed(x: Any, y: Any) -> Any:
    """relu(x + y^T)."""
    return p.relu(x + y.T)


def row_sums(x: Any) -> Any:
    """The sum of each row."""
    return x.sum(-1)


def column_sums(x: Any) -> Any:
    """The sum of each column."""
    return x.sum(0)


def full_sum(x: Any) -> Any:
    """The sum of all squares."""
    return (x * x).sum()


class Case(NamedTuple):
    """A function and what it reads: "x" is a matrix, "t" a transposed one, "w" a vector of a row's length, "i" a class
    for each row. matrices counts those that are read or written.
    """

    target: str
    reads: str
    matrices: int

    @property
    def name(self) -> str:
        """Of the function."""
        return self.target.rpartition(":")[2].removeprefix("fused_")

    def request(self, cols: int, dtype: str, nbytes: int) -> Request:
        """At least `nbytes` of matrices."""
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


def _own(function: Any, reads: str, matrices: int) -> Case:
    return Case(f"{__name__}:{function.__name__}", reads, matrices)


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
    _own(five_ops, "x", 2),
    _own(mul_add_relu, "xxx", 4),
    _own(add_transposed, "xt", 3),
    _own(row_sums, "x", 1),
    _own(column_sums, "x", 1),
    _own(full_sum, "x", 1),
)


def cases() -> Iterator[tuple[Case, int, str]]:
    """All of them, with the length of a row and the dtype."""
    for case, dtype, cols in itertools.product(BY_WIDTH, DTYPES, WIDTHS):
        yield case, cols, dtype
    for case, dtype in itertools.product(OTHERS, DTYPES):
        yield case, _USUAL, dtype


def requests(nbytes: int = LEAST_BYTES) -> list[Request]:
    """What to measure, in the order of `cases`."""
    return [case.request(cols, dtype, nbytes) for case, cols, dtype in cases()]


def table(measured: Sequence[Traffic]) -> Table:
    """Measured over compulsory bytes of the fused kernels, by row length; then the cases of one length."""
    ratios = {
        (case.name, dtype, cols): f"{t.total('fused').ratio:.3f}"
        for (case, cols, dtype), t in zip(cases(), measured, strict=True)
    }
    rows = [
        (case.name, dtype, *(ratios.get((case.name, dtype, cols), "") for cols in WIDTHS))
        for case, dtype in itertools.product((*BY_WIDTH, *OTHERS), DTYPES)
    ]
    header = ("function", "dtype", *map(str, WIDTHS))
    return Table("Measured DRAM bytes / compulsory bytes, fused, by row length", header, tuple(rows), left=(0, 1))


def outside(measured: Sequence[Traffic]) -> list[str]:
    """The fused functions that did not keep to 3 %, with their ratios."""
    totals = ((t, t.total("fused")) for t in measured)
    return [f"{t.subject}: {total.ratio:.3f}" for t, total in totals if t.is_within(total) is False]
