"""The project's targets as a table in code, and which of them a run's results meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from kfusion import _tables

from . import cold_start, drawn, host, show, warm
from .results import YARDSTICKS, Measured, Results, Row
from .suites import EXPERIMENT_SHAPE, FEW_ROWS

Chosen = Callable[[Measured], bool]
Figure = Callable[[Measured, Results], float | None]

_ROW_SUITES = ("relu_layernorm", "norms", "softmax")
_LARGE_BYTES = 2**28  # of input


class Target(NamedTuple):
    """What is wanted of every chosen case: a figure of at least (or at most) a bound."""

    text: str
    suites: tuple[str, ...]
    chosen: Chosen
    figure: Figure
    bound: float
    at_most: bool = False

    def met(self, value: float) -> bool:
        """Whether a case's figure is as wanted."""
        return value <= self.bound if self.at_most else value >= self.bound


class Found(NamedTuple):
    """A target, how many cases were measured and how many of them are as wanted, and the worst one."""

    target: Target
    cases: int
    met: int
    worst: float
    worst_case: str


# ---- figures of a case ----------------------------------------------------------------------------------------------


def _of_copy(version: str) -> Figure:
    """The copy's time over the version's, cold."""

    def figure(case: Measured, results: Results) -> float | None:
        row = case.find(version, "cold")
        return row.of_copy if row else None

    return figure


def _times_as_fast_as(peer: str, state: str = "cold") -> Figure:
    """The peer's time over that of the fused version; drift cancels where both have a copy of their own, cold."""

    def figure(case: Measured, results: Results) -> float | None:
        fused, other = case.find("fused", state) or case.find("fused, fresh", state), case.find(peer, state)
        return _ratio(fused, other) if fused and other else None

    return figure


def _times_the_copy(isa: str) -> Figure:
    """The fused version's time over the copy's, cold, of runs with this instruction set."""

    def figure(case: Measured, results: Results) -> float | None:
        row = case.find("fused", "cold")
        return 1 / row.of_copy if results.isa == isa and row and row.of_copy else None

    return figure


def _times_the_reading(isa: str) -> Figure:
    """The fused version's time over that of reading its array, cold, of runs with this instruction set."""

    def figure(case: Measured, results: Results) -> float | None:
        fused, read = case.find("fused", "cold"), case.find("read", "cold")
        return 1 / _ratio(fused, read) if results.isa == isa and fused and read else None

    return figure


def _ratio(fused: Row, other: Row) -> float:
    if fused.state == "cold" and fused.of_copy and other.of_copy:
        return fused.of_copy / other.of_copy
    return other.median_us / fused.median_us


def _of_neighbour(case: Measured, results: Results) -> float | None:
    """GB/s over that of the nearest measured length which is a multiple of 8."""
    here = case.find("fused", "cold")
    peers = [c for c in results.cases if c.key[:2] + c.key[3:] == case.key[:2] + case.key[3:] and c.shape[-1] % 8 == 0]
    peers = [c for c in peers if c.nbytes >= 0.9 * case.nbytes]
    if here is None or not peers:
        return None
    there = min(peers, key=lambda c: abs(c.shape[-1] - case.shape[-1])).find("fused", "cold")
    return here.of_copy / there.of_copy if there and there.of_copy and here.of_copy else None


def _best_peer(case: Measured, results: Results) -> float | None:
    """The fastest peer's time over that of the fused version, hot, as the tables show them: with a fresh result, or
    into a warm one, as the peer."""
    ours = ("fused", "fused, again", "fused, fresh", "unfused", *YARDSTICKS)
    others = [row for row in case.rows if row.state == "hot" and row.version not in ours]
    pairs = [(case.find("fused" if o.version.endswith(warm.SUFFIX) else "fused, fresh", "hot"), o) for o in others]
    return min((other.median_us / fused.median_us for fused, other in pairs if fused), default=None)


def _us(state: str, scale: float = 1.0) -> Figure:
    """The time of a call."""

    def figure(case: Measured, results: Results) -> float | None:
        row = case.find("fused, fresh", state) or case.find("fused", state)
        return row.median_us / scale if row else None

    return figure


# ---- which cases ----------------------------------------------------------------------------------------------------


def _lengths(low: int, high: int) -> Chosen:
    return lambda c: c.layout == "dense" and low <= c.shape[-1] <= high and _is_large(c)


def _is_large(case: Measured) -> bool:
    return case.nbytes >= 1.8 * _LARGE_BYTES  # in and out


def _odd(case: Measured) -> bool:
    return case.shape[-1] in (257, 769, 1023, 4095, 50257, 131073) and case.layout == "dense"


def _layout(name: str, low: int, high: int) -> Chosen:
    return lambda c: c.layout == name and low <= c.shape[-1] <= high and c.dtype == "float32"


def _experiment(case: Measured) -> bool:
    return case.shape == EXPERIMENT_SHAPE and case.dtype == "float32"


def _named(name: str, layout: str, *, empty: bool = False) -> Chosen:
    return lambda c: (c.name == name or not name) and c.layout == layout and (0 in c.shape) == empty


def _chain(size: int, *sizes: int) -> Chosen:
    return lambda c: c.shape[-1] in (size, *sizes) and c.shape[0] == c.shape[-1] and c.name != "x.T + y"


def _from_memory(case: Measured) -> bool:
    return "cold" in case.states


def _cpu_of(*names: str, dtype: str = "float32") -> Chosen:
    return lambda c: _from_memory(c) and c.dtype == dtype and (c.name in names or not names)


_LIGHT = ("2x + 3y", "exp(x) y + 1", "x = x y + 0.1 k, for k = 0..9")
_TANH = ("tanh(x) y", "gelu(x y + b)")
_LOG = ("log(relu(x + y) + 1)", "sigmoid(relu((x + 1) 2) - 0.5)")
_NORMS = ("layernorm", "relu_layernorm")
# What is asked of the CPU from memory: the names of the cases, and the most for AVX-512 and for AVX2.
_CPU_BOUNDS = (
    ("light maps, exp and twenty operations", _cpu_of(*_LIGHT), 1.1, 1.2),
    ("tanh and gelu", _cpu_of(*_TANH), 1.25, 2.2),
    ("log and a chain with sigmoid", _cpu_of(*_LOG), 1.5, 2.2),
    ("softmax", _cpu_of("softmax"), 1.25, 2.0),
    ("layernorm and relu_layernorm", _cpu_of(*_NORMS), 1.25, 1.35),
    ("bfloat16", _cpu_of(dtype="bfloat16"), 1.8, 1.8),
    ("sin of float64", _cpu_of("sin(x)", dtype="float64"), 1.3, 1.3),
)
_SUM_BOUNDS = (("sum of rows", "sum over axis -1", 1.05), ("sum of columns", "sum over axis 0", 1.3))
_COMPILED = f"torch.compile{warm.SUFFIX}"

TARGETS = (
    Target("rows of 1024 to 32768, of the copy's rate", _ROW_SUITES, _lengths(1024, 32768), _of_copy("fused"), 0.97),
    Target("rows of 1024 to 32768, times as fast as torch.compile", _ROW_SUITES, _lengths(1024, 32768),
           _times_as_fast_as("torch.compile"), 1.0),
    Target("rows of 131072", _ROW_SUITES, _lengths(131072, 131072), _of_copy("fused"), 0.92),
    Target("rows of 262144 to 1048576", _ROW_SUITES, _lengths(262144, 1048576), _of_copy("fused"), 0.87),
    Target("rows of 1 to 512", _ROW_SUITES, _lengths(1, 512), _of_copy("fused"), 0.92),
    Target("odd widths, of the neighbouring multiple of 8", _ROW_SUITES, _odd, _of_neighbour, 0.95),
    Target("1 x 8192, 16 x 8192, 8 x 1M, of the copy's rate", _ROW_SUITES, lambda c: c.shape in FEW_ROWS[:3],
           _of_copy("fused"), 1 / 1.3),
    Target("1 x 1M, of the copy's rate", _ROW_SUITES, lambda c: c.shape == FEW_ROWS[3], _of_copy("fused"), 1 / 1.6),
    Target("4096 x 1024 float32, of the copy's rate", _ROW_SUITES, _experiment, _of_copy("fused"), 1.0),
    Target("4096 x 1024, times as fast as the experiment unfused", ("relu_layernorm",), _experiment,
           _times_as_fast_as("CuPy experiment, unfused"), 12.0),
    Target("4096 x 1024, times as fast as the experiment fused", ("relu_layernorm",), _experiment,
           _times_as_fast_as("CuPy experiment, fused"), 1.5),
    Target("strided rows to 14000, float32", _ROW_SUITES, _layout("strided", 1, 14000), _of_copy("fused"), 0.85),
    Target("transposed input, rows to 14000, float32", _ROW_SUITES, _layout("transposed", 1, 14000),
           _of_copy("fused"), 0.85),
    Target("strided rows beyond 14000, float32", _ROW_SUITES, _layout("strided", 14001, 2**40), _of_copy("fused"), 0.6),
    Target("transposed input, rows beyond 14000, float32", _ROW_SUITES, _layout("transposed", 14001, 2**40),
           _of_copy("fused"), 0.6),
    Target("chains at 1024 x 1024, of the copy's rate", ("chains",), _chain(1024), _of_copy("fused"), 1.0),
    Target("chains at 4096 and 16384", ("chains",), _chain(4096, 16384), _of_copy("fused"), 0.97),
    *(
        Target(f"{name}, from memory, {of}, in times of the copy", ("cpu",), chosen, _times_the_copy(isa), bound, True)
        for of, chosen, *bounds in _CPU_BOUNDS
        for name, isa, bound in zip(("AVX-512", "AVX2"), ("avx512", "avx2"), bounds, strict=True)
    ),
    *(
        Target(f"{name}, from memory, {of}, in times of reading", ("cpu",), _cpu_of(case), _times_the_reading(isa),
               bound, True)
        for of, case, bound in _SUM_BOUNDS
        for name, isa in (("AVX-512", "avx512"), ("AVX2", "avx2"))
    ),
    Target("CPU, from memory, times as fast as torch.compile into a warm result", ("cpu",), _from_memory,
           _times_as_fast_as(_COMPILED), 1.0),
    Target("CPU, within the caches, times as fast as torch.compile into a warm result", ("cpu",),
           lambda c: "hot" in c.states, _times_as_fast_as(_COMPILED, "hot"), 1.0),
    Target("CPU, within the caches, times as fast as the best peer", ("cpu",), lambda c: "hot" in c.states,
           _best_peer, 1.0),
    Target("drawn functions, in times of the faster of unfused and the library", ("drawn",), lambda c: True,
           lambda case, results: case.slowdown, drawn.BOUND, True),
    Target("a call with a torch tensor on the GPU, us", ("host",),
           lambda c: c.layout == "torch" and c.dtype == "float32" and 0 not in c.shape, _us(host.CALL), 4.0, True),
    Target("a product's call with a torch tensor on the GPU, us", ("host",),
           lambda c: c.layout == "torch" and c.dtype == "bfloat16", _us(host.CALL), 6.0, True),
    Target("a call with a torch tensor on the CPU, us", ("host",), _named("", "torch cpu"), _us(host.CALL), 4.0, True),
    Target("a call with a NumPy array of 16 x 256, us", ("host",), _named("", "numpy"), _us(host.CALL), 3.0, True),
    Target("a call with an empty array, us", ("host",), lambda c: 0 in c.shape, _us(host.CALL), 1.0, True),
    Target("first call with an empty cache, ms", ("cold_start",), lambda c: c.dtype == "float32",
           _us(cold_start.EMPTY, 1e3), 100.0, True),
    Target("first call of a product with an empty cache, ms", ("cold_start",), lambda c: c.dtype == "bfloat16",
           _us(cold_start.EMPTY, 1e3), 1000.0, True),
    Target("first call from the disk cache, ms", ("cold_start",), lambda c: True,
           _us(cold_start.FROM_DISK, 1e3), 5.0, True),
)  # fmt: skip


def found(results: Results) -> list[Found]:
    """The targets that the results say something about."""
    return [f for target in TARGETS if (f := _found(target, results)) is not None]


def _found(target: Target, results: Results) -> Found | None:
    cases = [case for case in results.of_suite(*target.suites) if target.chosen(case)]
    values = [(v, case) for case in cases if (v := target.figure(case, results)) is not None]
    if not values:
        return None
    worst, case = (max if target.at_most else min)(values, key=lambda pair: pair[0])
    return Found(target, len(values), sum(target.met(v) for v, _ in values), worst, show.title(case))


class Targets(_tables.Report):
    """Which targets hold, each with its worst case."""

    def __init__(self, runs: Sequence[Results]) -> None:
        self._found = [f for run in runs for f in found(run)]

    def _parts(self, width: int | None) -> Iterator[_tables.Table | str]:
        if not self._found:
            yield "No target is about what was measured."
            return
        yield _tables.Table("Targets", HEADER, tuple(map(cells, self._found)), left=(0, 5))
        holding = sum(f.met == f.cases for f in self._found)
        yield f"{holding} of {len(self._found)} targets hold in all cases."


HEADER = ("target", "wanted", "holds", "cases", "worst", "where")


def cells(f: Found) -> tuple[str, ...]:
    """One line of the table."""
    sign = "<=" if f.target.at_most else ">="
    holds = "yes" if f.met == f.cases else "no"
    wanted = f"{sign} {round(f.target.bound, 2):g}"
    return f.target.text, wanted, holds, f"{f.met} of {f.cases}", _tables.number(f.worst, 3), f.worst_case
