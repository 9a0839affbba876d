"""`kfusion.Device`: what a plan needs to know of a machine, each number with where it comes from."""

from __future__ import annotations

import math
import numbers
import operator
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from types import MappingProxyType
from typing import Any

from .. import _core
from .._tables import Report, Table, number

PEAKS = {
    "vector_float32": "float32",
    "vector_float64": "float64",
    "matrix_float16": "float16 matrix",
    "matrix_bfloat16": "bfloat16 matrix",
    "matrix_float32": "float32 matrix",
    "matrix_float64": "float64 matrix",
}
_RATES = ("bandwidth", "peak_bandwidth", "cache_bandwidth", "launch_us", "cost_per_hour")
_COUNTS = {"cache_bytes": 2**63, "on_chip_bytes": 2**63, "tile_bytes": 2**63, "units": 2**31}
_FLAGS = ("is_cpu", "write_allocate")
_TEXTS = ("source", "assumed")


@dataclass(frozen=True, repr=False)
class Device(Report):
    """A GPU or CPU as the planner sees it: limits and prices.

    time of a kernel = launch_us + max(bytes / bandwidth, FLOPs / peak)

    Divisions and functions (exp, sin, ...) count as one FLOP, and are priced as the many that their time is worth.

    `print(d)` shows every number; `d.to_dict()` is ready for JSON, and devices compare and pickle by it.

    Args:
        name: any text.
        bandwidth: bytes/s that a copy reaches, read plus write (> 0).
        peaks: dense FLOP/s, never with structured sparsity. "vector_float32" and "vector_float64" (> 0) are for maps
            and reductions; half types are computed in float32. "matrix_float16", "matrix_bfloat16", "matrix_float32"
            and "matrix_float64" are for contractions by stored dtype, accumulated in float32 or wider; 0 or left out
            means no such unit, and the next wider one is used. TF32 is not float32 and counts for nothing here.
        peak_bandwidth: bytes/s of the data sheet; 0 means bandwidth.
        cache_bandwidth: bytes/s that a copy reaches within the last-level cache; 0 means bandwidth.
        cache_bytes: last-level cache: L2 of a GPU, L3 of a CPU; 0 means none.
        on_chip_bytes: what one row can occupy: the shared memory of a thread-block cluster (of a block where there are
            no clusters), a core's L2 on a CPU; 0 means tile_bytes.
        tile_bytes: the shared memory that one block can have, a core's L2 on a CPU.
        units: SMs, compute units or cores.
        launch_us: microseconds that a kernel takes before the first byte: the intercept of copy times over bytes.
        is_cpu: whether it is the host.
        compute_capability: of an NVIDIA GPU, "9.0" for Hopper: some kernels need one. "" means none.
        write_allocate: whether an ordinary store reads the cache line first, as a CPU's does. Not priced: the CPU
            kernels store large results past the cache.
        cost_per_hour: what you pay for it, in any currency, for plans to price calls with; 0 means not said. The table
            has none: `dataclasses.replace(kfusion.device("H200"), cost_per_hour=4.0)`.
        source: where the numbers come from, by group: "bandwidth", "peak_bandwidth", "peaks", "cache", "on_chip",
            "launch".
        assumed: numbers that are neither measured nor published, by name, and how they were arrived at.
        note: what else a reader should know.

    Raises:
        TypeError: a value is of a wrong kind.
        ValueError: a number is out of range, or two contradict each other.
    """

    name: str
    _: KW_ONLY
    bandwidth: float
    peaks: Mapping[str, float] = field(hash=False)
    peak_bandwidth: float = 0.0
    cache_bandwidth: float = 0.0
    cache_bytes: int = 0
    on_chip_bytes: int = 0
    tile_bytes: int = 48 * 1024
    units: int = 1
    launch_us: float = 0.0
    is_cpu: bool = False
    compute_capability: str = ""
    write_allocate: bool = False
    cost_per_hour: float = 0.0
    source: Mapping[str, str] = field(default_factory=dict, hash=False)
    assumed: Mapping[str, str] = field(default_factory=dict, hash=False)
    note: str = ""

    def __post_init__(self) -> None:
        for name in ("name", "note"):
            _text(name, getattr(self, name))
        _require(bool(self.name.strip()), "name", "not be empty", self.name)
        _require(
            isinstance(self.compute_capability, str) and bool(re.fullmatch(r"(\d+\.\d)?", self.compute_capability)),
            "compute_capability", "be text like '9.0', or ''", self.compute_capability,
        )  # fmt: skip
        for name in _FLAGS:
            _require(isinstance(getattr(self, name), bool), name, "be True or False", getattr(self, name), TypeError)
        for name in _RATES:
            self._set(name, _rate(name, getattr(self, name)))
        for name, limit in _COUNTS.items():
            self._set(name, _count(name, getattr(self, name), limit))
        self._set("peaks", _peaks(self.peaks))
        for name in _TEXTS:
            self._set(name, _texts(name, getattr(self, name)))
        for name, default in (("peak_bandwidth", "bandwidth"), ("cache_bandwidth", "bandwidth")):
            self._set(name, getattr(self, name) or getattr(self, default))
        self._set("on_chip_bytes", self.on_chip_bytes or self.tile_bytes)
        self._check()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check(self) -> None:
        for name in ("bandwidth", "tile_bytes", "units"):
            _require(getattr(self, name) > 0, name, "be > 0", getattr(self, name))
        for large, small in (
            ("peak_bandwidth", "bandwidth"),
            ("cache_bandwidth", "bandwidth"),
            ("on_chip_bytes", "tile_bytes"),
        ):
            least = getattr(self, small)
            _require(getattr(self, large) >= least, large, f"be at least {small} ({least:g})", getattr(self, large))
        for name in self.assumed:
            _require(name in {f.name for f in fields(self)}, "assumed", "name fields of kfusion.Device", name)

    def peak_flops(self, dtype: str, unit: str = "matrix") -> float:
        """Dense FLOP/s for work of this dtype.

        Args:
            dtype: "float16", "bfloat16", "float32", "float64", "int32", "int64" or "bool".
            unit: "matrix" for contractions, "vector" for maps and reductions.

        Returns:
            The peak of that unit, or of the next wider one that there is.

        Raises:
            ValueError: no such dtype or unit.
        """
        return _core.peak_flops(self.to_dict(), _text("dtype", dtype), _is_matrix(unit))

    def ridge_point(self, dtype: str, unit: str = "matrix") -> float:
        """peak_flops / peak_bandwidth: the FLOP per byte from which on the units limit a kernel, not the memory.

        Args:
            dtype: as for `peak_flops`.
            unit: as for `peak_flops`.

        Returns:
            FLOP per byte.

        Raises:
            ValueError: no such dtype or unit.
        """
        return _core.ridge_point(self.to_dict(), _text("dtype", dtype), _is_matrix(unit))

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain numbers, strings and dicts; `Device.from_dict` takes it back."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return plain | {name: dict(plain[name]) for name in ("peaks", *_TEXTS)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Device:
        """The device that `to_dict` was called on; fields with defaults may be left out.

        Raises:
            TypeError: values is no mapping, or a value is of a wrong kind.
            ValueError: a key is unknown or missing, or a number is out of range.
        """
        _require(isinstance(values, Mapping), "the dict", "be a mapping", type(values).__name__, TypeError)
        known = {f.name for f in fields(cls)}
        for key in values:
            _require(key in known, "keys", f"be among {', '.join(sorted(known))}", key)
        for key in ("name", "bandwidth", "peaks"):
            _require(key in values, "the dict", f"have the key {key!r}", sorted(values))
        return cls(**values)

    def __reduce__(self) -> Any:
        return Device.from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        return (
            f"<Device {self.name}: {self.bandwidth / 1e9:.4g} GB/s, ridge {self.ridge_point('float32', 'vector'):.3g} "
            f"FLOP/B float32, {self.ridge_point('float16'):.3g} float16 matrix>"
        )

    def _parts(self, width: int | None) -> Any:
        yield Table(self.name, ("", "value", ""), tuple(self._rows()), left=(0, 2))
        sources = (f"{group}: {text}" for group, text in self.source.items())
        assumptions = (f"{name} is assumed: {text}" for name, text in self.assumed.items())
        if lines := [*filter(None, [self.note]), *sources, *assumptions]:
            yield "\n".join(lines)

    def _rows(self) -> Any:
        def mark(name: str) -> str:
            return "assumed" if name in self.assumed else ""

        for name in ("bandwidth", "peak_bandwidth", "cache_bandwidth"):
            yield name, f"{number(getattr(self, name) / 1e9)} GB/s", mark(name)
        for name in ("cache_bytes", "on_chip_bytes", "tile_bytes"):
            yield name, f"{getattr(self, name):,}", mark(name)
        yield "units", str(self.units), mark("units")
        yield "launch_us", number(self.launch_us, 3), mark("launch_us")
        if self.cost_per_hour:
            yield "cost_per_hour", f"{self.cost_per_hour:g}", ""
        for name, label in PEAKS.items():
            if self.peaks[name]:
                yield label, f"{number(self.peaks[name] / 1e12)} TFLOP/s", mark("peaks")
        yield "ridge, float32", f"{number(self.ridge_point('float32', 'vector'))} FLOP/B", ""
        yield "ridge, float16 matrix", f"{number(self.ridge_point('float16'))} FLOP/B", ""


def _require(holds: bool, what: str, wanted: str, got: Any, error: type[Exception] = ValueError) -> None:
    if not holds:
        raise error(f"kfusion.Device: {what} must {wanted}, got {got!r}")


def _rate(name: str, value: Any) -> float:
    _require(isinstance(value, numbers.Real) and not isinstance(value, bool), name, "be a number", value, TypeError)
    _require(math.isfinite(value) and value >= 0, name, "be a finite number >= 0", value)
    return float(value)


def _count(name: str, value: Any, limit: int) -> int:
    whole = hasattr(value, "__index__") and not isinstance(value, bool)
    _require(whole, name, "be an integer", value, TypeError)
    _require(0 <= operator.index(value) < limit, name, f"be >= 0 and below {limit}", value)
    return operator.index(value)


def _peaks(peaks: Any) -> Mapping[str, float]:
    _require(isinstance(peaks, Mapping), "peaks", "be a mapping of FLOP/s", peaks, TypeError)
    for name in peaks:
        _require(name in PEAKS, "peaks", f"have keys among {', '.join(PEAKS)}", name)
    checked = {name: _rate(f"peaks[{name!r}]", peaks.get(name, 0.0)) for name in PEAKS}
    for name in ("vector_float32", "vector_float64"):
        _require(checked[name] > 0, f"peaks[{name!r}]", "be > 0", checked[name])
    return MappingProxyType(checked)


def _texts(name: str, texts: Any) -> Mapping[str, str]:
    _require(isinstance(texts, Mapping), name, "be a mapping of texts", texts, TypeError)
    for key, value in texts.items():
        _require(isinstance(key, str) and isinstance(value, str), name, "map text to text", (key, value), TypeError)
        _text(name, key + value)
    return MappingProxyType(dict(texts))


def _text(name: str, value: Any) -> str:
    _require(isinstance(value, str), name, "be text", value, TypeError)
    is_unicode = not any("\ud800" <= letter <= "\udfff" for letter in value)
    _require(is_unicode, name, "be text without half characters (surrogates)", value)
    return str(value)


def _is_matrix(unit: Any) -> bool:
    _require(unit in ("matrix", "vector"), "unit", "be 'matrix' or 'vector'", unit)
    return bool(unit == "matrix")
