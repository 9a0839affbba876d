"""What a plan is made of: kernels with their costs, and the reasons why they are not fewer."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import _core


class _Name(str, enum.Enum):
    def __str__(self) -> str:
        return str(self.value)


if TYPE_CHECKING:

    class Reason(_Name):
        """Made below, where the members come from the planner."""
else:
    Reason = _Name("Reason", {name.upper(): name for name in _core.refusal_reasons()}, module="kfusion")
    Reason.__doc__ = "Why two neighbours are in different kernels; each member equals its name in lower case."


@dataclass(frozen=True)
class Bytes:
    """Bytes that go through memory."""

    read: int
    written: int

    @property
    def total(self) -> int:
        """Both."""
        return self.read + self.written


class Savings:
    """What fusing saves, of a record that has the costs of both plans."""

    bytes: int
    unfused_bytes: int
    us: float
    unfused_us: float

    @property
    def saved_bytes(self) -> int:
        """Bytes that need not be moved."""
        return self.unfused_bytes - self.bytes

    @property
    def saved_us(self) -> float:
        """Time that is saved, as predicted."""
        return self.unfused_us - self.us


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of one dtype in one unit, "vector" or "matrix"."""

    dtype: str
    unit: str
    count: int


@dataclass(frozen=True)
class Load:
    """One read of a kernel: a value, and how it is seen (strides and offset in elements of it).

    every_sweep: read again in each pass over rows that do not stay on chip.
    gathered: along one axis at positions that are data; the strides are those of the other axes.
    """

    value: str
    node: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    every_sweep: bool
    gathered: bool = False


@dataclass(frozen=True)
class Store:
    """One result that a kernel leaves in memory."""

    value: str
    node: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Cost:
    """What is moved and computed, and how long that takes on the plan's device.

    compulsory: each distinct input element once, each output once. issued: what the passes load and store.
    intensity: FLOPs per compulsory byte. time_us = launch_us + max(memory_us, compute_us), and bound names the largest
    of the three.
    """

    compulsory: Bytes
    issued: Bytes
    flops: tuple[Flops, ...]
    intensity: float
    launches: int
    launch_us: float
    memory_us: float
    compute_us: float
    time_us: float
    bound: str

    @property
    def flop_total(self) -> int:
        """The FLOPs of all dtypes and units."""
        return sum(f.count for f in self.flops)


@dataclass(frozen=True)
class Total(Cost):
    """All kernels of a plan. peak_intermediate_bytes: peak memory of the results that kernels pass on.
    predicted_us: time_us without measured times."""

    peak_intermediate_bytes: int
    predicted_us: float = 0.0


@dataclass(frozen=True)
class Group(Cost):
    """One kernel.

    nodes and ops are what it computes, by number and name; stages the calls of yours that these belong to; views the
    nodes folded into its loads and stores; deferred those computed once per result, after the max that stands behind
    them. It runs over `domain`, whose axes `reduced` are reduced: rows x cols. A row that does not stay on chip is
    swept `passes` times. ridge is the intensity from which the device would compute longer than it moves. kind is its
    pattern; executor who runs it (`kfusion.executors`), and where that is nobody, "", `missing` says why; how says in
    words how it is run, where there is a choice. measured: time_us is what `kfusion.tune` has measured, and not
    predicted_us.
    """

    id: int
    kind: str
    label: str
    ops: tuple[str, ...]
    stages: tuple[str, ...]
    nodes: tuple[int, ...]
    views: tuple[int, ...]
    deferred: tuple[int, ...]
    domain: tuple[int, ...]
    reduced: tuple[int, ...]
    rows: int
    cols: int
    loads: tuple[Load, ...]
    stores: tuple[Store, ...]
    passes: int
    row_on_chip: bool
    executor: str
    missing: str
    how: str
    ridge: float
    measured: bool = False
    predicted_us: float = 0.0

    @property
    def product_tflops(self) -> float:
        """TFLOP/s of its matrix products in the predicted time; 0 where it has none."""
        flops = sum(f.count for f in self.flops if f.unit == "matrix")
        return flops / self.time_us / 1e6 if flops else 0.0

    @property
    def executable(self) -> bool:
        """Whether it has an executor."""
        return bool(self.executor)


@dataclass(frozen=True)
class Refusal:
    """Two neighbours in different kernels: stages by name, the nodes and kernels by number, the reason, your lines.

    An input in another memory than its reader's is also a producer; its kernel is -1.
    """

    producer: str
    consumer: str
    producer_node: int
    consumer_node: int
    producer_group: int
    consumer_group: int
    reason: Reason
    sentence: str
    producer_source: str
    consumer_source: str
