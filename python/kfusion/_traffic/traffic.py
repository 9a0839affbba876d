"""`kfusion.measure_traffic`: the bytes that a plan predicts beside those that the GPU's counters saw."""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .. import _schema, _tables, _user_code
from .._compare import versions as _versions
from .._plans.plan import Plan
from .._plans.records import Bytes, Group
from .._plans.report import signature
from .._spec import Spec, is_array, spec_of
from . import ncu

WHO = "kfusion.measure_traffic"
TOLERANCE = 0.03


class Request(NamedTuple):
    """A function as `_user_code.load` finds it, and the arrays to run it on."""

    target: str
    specs: tuple[Spec, ...]


@dataclass(frozen=True)
class KernelTraffic:
    """One kernel of a plan, or all of a version together.

    label is the plan's name of the kernel, function the one under which the profiler saw it. compulsory and issued are
    the plan's (`Cost`). dram is what was measured between the L2 cache and the memory, l2 between the multiprocessors
    and the L2 cache.
    """

    version: str
    label: str
    function: str
    compulsory: Bytes
    issued: Bytes
    dram: Bytes
    l2: Bytes

    @property
    def ratio(self) -> float:
        """Measured over compulsory bytes: 1 is as few as possible."""
        return self.dram.total / self.compulsory.total if self.compulsory.total else 1.0


@dataclass(frozen=True)
class Traffic(_tables.Report):
    """What a function's kernels moved, fused and unfused, beside what the plan says that they must.

    `print(t)` shows tables, `t.to_dict()` is ready for JSON. Each kernel began with an empty cache of cache_bytes.
    Results that still lay in it at a kernel's end are not counted, so a kernel is judged only where that is less than
    the tolerance of 3 %.
    """

    subject: str
    device: str
    cache_bytes: int
    kernels: tuple[KernelTraffic, ...]

    def total(self, version: str) -> KernelTraffic:
        """All kernels of "fused" or "unfused" together."""
        kernels = [k for k in self.kernels if k.version == version]
        summed = (_sum(getattr(k, name) for k in kernels) for name in ("compulsory", "issued", "dram", "l2"))
        count = "1 kernel" if len(kernels) == 1 else f"{len(kernels)} kernels"
        return KernelTraffic(version, count, "", *summed)

    def is_within(self, kernel: KernelTraffic) -> bool | None:
        """Whether a kernel moved its compulsory bytes to within 3 %; None where it is too small to say."""
        if self.cache_bytes > TOLERANCE * kernel.compulsory.total:
            return None
        return abs(kernel.ratio - 1) <= TOLERANCE

    @property
    def saved(self) -> float:
        """Measured bytes unfused over measured bytes fused."""
        return self.total("unfused").dram.total / max(self.total("fused").dram.total, 1)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain dicts, lists, numbers and strings."""
        return _schema.to_plain(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Traffic:
        """The Traffic that `to_dict` gave.

        Raises:
            TypeError: a value is of a wrong kind.
            ValueError: a field is missing, unknown or out of range.
        """
        return _schema.from_plain(cls, plain, "kfusion.Traffic")

    def __repr__(self) -> str:
        return f"<Traffic: {self.subject} on {self.device}: {self.total('fused').ratio:.3f} of the compulsory bytes>"

    def _parts(self, width: int | None) -> Iterator[_tables.Table | str]:
        yield _tables.wrapped(f"{self.subject} on {self.device}", width) + "\n"
        unit, size = _tables.byte_unit(max(k.compulsory.total for k in self.kernels))
        header = ("version", "kernel", f"read {unit}", "measured", "written", "measured", "ratio", "within 3%")
        totals = [self.total(version) for version in ("unfused", "fused")]
        rows = [self._cells(k, size) for k in (*self.kernels, *totals)]
        label_width = None if width is None else max(_tables.room(1, header, rows, width), 12)
        cells = tuple((row[0], _tables.shorten(row[1], label_width), *row[2:]) for row in rows)
        yield _tables.Table("Predicted (compulsory) and measured DRAM traffic", header, cells, left=(0, 1))
        yield "\n".join(_tables.wrapped(line, width) for line in self._summary())

    def _cells(self, k: KernelTraffic, size: float) -> tuple[str, ...]:
        read, written = (
            (_tables.in_unit(getattr(k.compulsory, way), size), _tables.in_unit(getattr(k.dram, way), size))
            for way in ("read", "written")
        )
        within = {True: "yes", False: "no", None: "-"}[self.is_within(k)]
        return (k.version, k.label, *read, *written, f"{k.ratio:.3f}", within)

    def _summary(self) -> Iterator[str]:
        fused, unfused = (self.total(version) for version in ("fused", "unfused"))
        unit, size = _tables.byte_unit(unfused.dram.total)
        saved, of = (_tables.in_unit(n, size) for n in (unfused.dram.total - fused.dram.total, unfused.dram.total))
        predicted = unfused.compulsory.total / max(fused.compulsory.total, 1)
        yield f"Fusing saved {saved} of {of} {unit}, measured: {self.saved:.2f}x; predicted: {predicted:.2f}x."
        if any(self.is_within(k) is None for k in self.kernels):
            least = self.cache_bytes / TOLERANCE
            unit, size = _tables.byte_unit(least)
            yield (
                f"- where more than 3 % of a kernel's bytes may stay in the L2 cache ({self.cache_bytes / 1e6:.0f} MB) "
                f"uncounted: kernels are judged from {_tables.in_unit(least, size)} {unit} on."
            )


def measure_traffic(f: Callable[..., Any], *specs: Any, device: int = 0) -> Traffic:
    """Runs a function's kernels, fused and unfused, under the GPU's hardware counters and compares bytes.

    ratio = (DRAM bytes read + written) / (compulsory bytes: each distinct input element once, each output once)

    The profiler ncu (NVIDIA Nsight Compute) runs another Python process, which imports the function and calls it on
    random numbers: once to compile, then once counted. Nothing of this process's arrays is touched.

    Args:
        f: a function of arrays at the top level of a module or script, plain, made by `kfusion.fuse`, or a named kernel
            (`kfusion.fused_softmax` or `kfusion.unfused_softmax`, either means both).
        specs: its arguments: `kfusion.spec(shape, dtype)`, or arrays, of which only shape and dtype count.
        device: index of the CUDA device.

    Returns:
        A `Traffic`: print it, `.to_dict()` it.

    Raises:
        ValueError: f cannot be imported by another process.
        TypeError: an argument is neither a spec nor an array.
        TraceError: f does what cannot be traced.
        FileNotFoundError: there is no ncu.
        PermissionError: the driver does not let this user read the counters; the message says what to do.
        kfusion.DeviceError: there is no such GPU.
        RuntimeError: ncu or the function failed.
    """
    request = Request(target_of(f), tuple(_spec(a, i) for i, a in enumerate(specs)))
    return measure([request], device)[0]


def measure(requests: Sequence[Request], device: int = 0) -> list[Traffic]:
    """The traffic of several functions, run by one process. Raises as `measure_traffic`."""
    ncu.find(WHO)
    plans = [_plan_of(request, f"cuda:{device}") for request in requests]
    plain = [(r.target, [(s.shape, s.dtype) for s in r.specs]) for r in requests]
    command = [sys.executable, "-m", "kfusion._traffic.profiled", json.dumps({"device": device, "requests": plain})]
    launches = ncu.count(command, WHO)
    wanted = sum(p.fused.launches + p.unfused.launches for p in plans)
    if len(launches) != wanted:
        seen = ", ".join(launch.function for launch in launches) or "none"
        raise RuntimeError(f"{WHO}: the plans have {wanted} kernels, but ncu saw {len(launches)}: {seen[:500]}")
    left = iter(launches)
    return [_traffic(p, left) for p in plans]


def target_of(f: Any) -> str:
    """ "module:function" or "script.py:function", as another process can import it.

    Raises:
        ValueError: it cannot.
    """
    module = sys.modules.get(getattr(f, "__module__", None) or "")
    path = getattr(module, "__file__", None)
    for name in (getattr(f, attribute, "") for attribute in ("__qualname__", "__name__")):
        if path and _found(module, name) is f:
            return f"{path if module.__name__ == '__main__' else module.__name__}:{name}"  # type: ignore[union-attr]
    raise ValueError(f"{WHO}: f must be at the top level of a module or script, where others can import it; got {f!r}")


def _found(module: Any, name: str) -> Any:
    try:
        return operator.attrgetter(name)(module)
    except AttributeError:
        return None


def _spec(argument: Any, i: int) -> Spec:
    if isinstance(argument, Spec):
        return argument
    if not is_array(argument):
        raise TypeError(f"{WHO}: argument {i} must be a kfusion.spec or an array, got {type(argument).__name__}")
    return spec_of(argument, f"{WHO}: argument {i}")


def _plan_of(request: Request, place: str) -> Plan:
    """The kernels that the child will run: those for the machine's own GPU."""
    versions = _versions.versions_of(_user_code.load(request.target, WHO))
    specs = [dataclasses.replace(s, like="numpy", device=place) for s in request.specs]
    made: Plan = versions.fused.plan(*specs)
    return made


def _traffic(p: Plan, launches: Iterator[ncu.Launch]) -> Traffic:
    kernels = [
        _kernel(version, group, next(launches))
        for version, groups in (("unfused", p.unfused_groups), ("fused", p.groups))
        for group in groups
        if group.launches
    ]
    return Traffic(signature(p), p.device.name, p.device.cache_bytes, tuple(kernels))


def _kernel(version: str, group: Group, launch: ncu.Launch) -> KernelTraffic:
    c = launch.counts
    dram = Bytes(c[ncu.DRAM_READ], c[ncu.DRAM_WRITTEN])
    l2 = Bytes(c[ncu.L2_READ] * ncu.SECTOR_BYTES, c[ncu.L2_WRITTEN] * ncu.SECTOR_BYTES)
    return KernelTraffic(version, group.label, launch.function, group.compulsory, group.issued, dram, l2)


def _sum(moved: Iterable[Bytes]) -> Bytes:
    return functools.reduce(lambda a, b: Bytes(a.read + b.read, a.written + b.written), moved, Bytes(0, 0))
