"""`kfusion.tune`: measures who computes the kernels of a function fastest, and keeps that for plans to come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _arrays, _core, _schema, _tables, _times, _timing
from ._devices import running
from ._devices.device import Device
from ._environment import calls
from ._fuse import FusedFunction, fuse
from ._fused_method import FusedMethod
from ._graph.values import place_of

_LEAST_SAMPLES, _MOST_SAMPLES = 5, 40
_SETTLE_S = 0.01  # in which threads of other libraries go on waiting busily
_PERCENT = 25  # of the samples that are quicker: other programs only make them longer
_BUDGET_S = 0.5  # for all executors of a kernel, beyond the least samples


@dataclass(frozen=True)
class TunedKernel:
    """One kernel that several executors run, or that only some plans have. By executor predicted_us and measured_us;
    problems are those that failed, with the reason. winner is the fastest.
    """

    label: str
    predicted_us: dict[str, float]
    measured_us: dict[str, float]
    problems: dict[str, str]
    winner: str


@dataclass(frozen=True)
class Tuned(_tables.Report):
    """What `kfusion.tune` has measured on a device, and the file that keeps it ("" where nothing is kept)."""

    function: str
    device: str
    kernels: tuple[TunedKernel, ...]
    path: str

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain dicts, lists, numbers and strings."""
        plain: dict[str, Any] = _schema.to_plain(self)
        return plain

    def __repr__(self) -> str:
        return f"<Tuned: {self.function} on {self.device}: {_tables.counted(len(self.kernels), 'kernel')}>"

    def _parts(self, width: int | None) -> Iterator[_tables.Table | str]:
        yield f"{self.function} on {self.device}\n"
        if not self.kernels:
            yield "Nothing to choose: one executor runs each kernel, and every plan has the same."
            return
        header = ("kernel", "executor", "predicted us", "measured us", "")
        yield _tables.Table("Measured, cold caches", header, tuple(self._rows()), (0, 1))
        for kernel in self.kernels:
            for executor, why in kernel.problems.items():
                yield f"{kernel.label}: {executor} could not be measured: {why}\n"
        yield (
            f"Kept in {self.path}." if self.path else "Kept nowhere: KFUSION_TUNE is off, or there is no cache folder."
        )

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for kernel in self.kernels:
            for i, (executor, us) in enumerate(kernel.measured_us.items()):
                best = "fastest" if executor == kernel.winner and len(kernel.measured_us) > 1 else ""
                predicted = _tables.number(kernel.predicted_us[executor])
                yield (kernel.label if i == 0 else "", executor, predicted, _tables.number(us), best)


def tune(function: Any, *args: Any, progress: _timing.Progress | None = None, **kwargs: Any) -> Tuned:
    """Measures the kernels of a function about which its plan has a choice, and lets plans choose by that.

    Such kernels are those that several executors run, and those that only some plans have: a product with what follows
    it, or a product and a kernel for what follows. Each is run alone, on random numbers in arrays that lie as the
    function's do, with cold caches; the lower quartile counts. The times are kept in the file times.json in the folder
    of compiled kernels (`kfusion cache`). They hold for kernels that do the same on the same device, with the same
    versions of the libraries. Functions plan again what they have planned. Results differ by the executors' rounding
    only.

    The environment's KFUSION_TUNE=off has plans ignore the file, and nothing is written to it.

    Args:
        function: a function of arrays, fused or not, or a torch module.
        args: its arguments: arrays, of which kind, shape, dtype, strides and device count, or specs.
        progress: called with the fraction done (0 to 1) and a word on what is being done.
        kwargs: its keyword arguments.

    Returns:
        A `Tuned`: print it.

    Raises:
        TraceError: the function does what cannot be traced.
        OSError: the file cannot be written.
        KeyboardInterrupt: Ctrl-C; the file is as it was.
    """
    report = progress or (lambda fraction, what: None)
    fused, first = _fused(function)
    traced = fused._planned((*first, *args), kwargs)
    place = place_of(traced.inputs)
    device = running.device(place)
    choices = _core.tuning_choices(traced.graph, device.to_dict(), fused._options)
    library = _library(traced.inputs, traced.graph)
    kernels, records = [], {}
    for i, choice in enumerate(choices):
        report(i / len(choices), choice["label"])
        kernel = _measured(choice, library, place, device)
        kernels.append(kernel)
        if kernel.measured_us:
            records[choice["key"]] = {
                "label": kernel.label,
                "times_us": kernel.measured_us,
                "predicted_us": kernel.predicted_us,
                "winner": kernel.winner,
                "versions": _times.versions(library),
            }
    path = _times.add(device.name, records) if records else _times.path()
    report(1.0, "done")
    return Tuned(traced.name, device.name, tuple(kernels), str(path or ""))


def _fused(function: Any) -> tuple[FusedFunction, tuple[Any, ...]]:
    """A fused function, and the arguments that come first."""
    if not callable(function):
        raise TypeError(f"kfusion.tune: function must be callable, got {type(function).__name__}")
    if not isinstance(function, (FusedFunction, FusedMethod)):
        function = function if hasattr(function, "fused_function") else fuse(function)
        function = getattr(function, "fused_function", function)
    return (function.__func__, (function.__self__,)) if isinstance(function, FusedMethod) else (function, ())


def _library(inputs: Iterable[Any], graph: Any) -> str:
    """The library whose arrays the function has: "numpy", "torch", ..."""
    for i in inputs:
        if i.array is not None and hasattr(i.array, "shape"):
            found = _arrays.kind(i.array)
            if found in ("numpy", "torch", "cupy", "jax"):
                return found
    nodes = graph.to_dict()["nodes"]
    return "torch" if any(node.get("library") == "torch" for node in nodes) else "numpy"


class _Alone(_core.FusedCallable):
    """A kernel as a function of the arrays that it reads, run by one executor."""

    def __init__(self, graph: Any, inputs: int, executor: str, device: Device) -> None:
        names = [f"x{i}" for i in range(inputs)]
        super().__init__("kernel", names, {"executors": [executor]}, True, False)
        self._graph, self._device, self._inputs = graph, device, inputs

    def _guards(self, *_: Any) -> list[Any]:
        return []

    def _prepare(self, *_: Any) -> calls.Prepared:
        is_single = len(self._graph.to_dict()["outputs"]) == 1
        sources: list[Any] = list(range(self._inputs))
        fill = None if is_single else tuple
        return calls.Prepared(self._graph, self._device.to_dict(), sources, [], [], [], fill, (), [], (), [])


def _measured(choice: dict[str, Any], library: str, place: str, device: Device) -> TunedKernel:
    graph = choice["graph"]
    inputs = [node for node in graph.to_dict()["nodes"] if node["op"] == "input"]
    runs: dict[str, Callable[[], Any]] = {}
    problems = {}
    arrays = None
    for executor in choice["predicted_us"]:
        try:
            if arrays is None:
                random = np.random.default_rng(0)
                arrays = [_operand(node, library, place, random) for node in inputs]
            runs[executor] = _run(graph, arrays, executor, device)
        except Exception as error:
            problems[executor] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    times = {executor: float(np.percentile(us, _PERCENT)) for executor, us in _samples(runs, place).items()}
    winner = min(times, key=times.__getitem__, default="")
    return TunedKernel(choice["label"], choice["predicted_us"], times, problems, winner)


def _run(graph: Any, arrays: list[Any], executor: str, device: Device) -> Callable[[], Any]:
    """Computes the kernel into the same results each time; it has run once."""
    planned = _core.make_plan(graph, device.to_dict(), {"executors": [executor]})["groups"]
    if len(planned) != 1 or planned[0]["executor"] != executor:
        raise ValueError("alone it would be computed otherwise")
    kernel = _Alone(graph, len(arrays), executor, device)
    results = kernel(*arrays)
    if _arrays.mutable(results if not isinstance(results, tuple) else results[0]):
        return lambda: kernel(*arrays, out=results)
    return lambda: kernel(*arrays)


def _samples(runs: dict[str, Callable[[], Any]], place: str) -> dict[str, list[float]]:
    """Microseconds of each, in turns."""
    samples: dict[str, list[float]] = {executor: [] for executor in runs}
    if not runs:
        return samples
    clock: _timing.Clock = (
        _timing.CpuClock(flush=True)
        if place == "cpu"
        else _timing.CudaClock(flush=True, device=int(place.partition(":")[2]))
    )
    end = time.perf_counter() + _BUDGET_S
    for i in range(_MOST_SAMPLES):
        if i >= _LEAST_SAMPLES and time.perf_counter() > end:
            break
        for executor, run in runs.items():
            if place == "cpu":
                time.sleep(_SETTLE_S)
            samples[executor] += clock.sample(run)
    return samples


def _operand(node: dict[str, Any], library: str, place: str, random: np.random.Generator) -> Any:
    """An array for an input of a kernel: normal numbers, or zeros of integers, which may be positions."""
    shape, dtype = tuple(node["shape"]), node["dtype"]
    strides = tuple(node.get("strides") or ())
    if not strides or 0 in shape:
        strides = tuple(int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape)))
    count = 1 + sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
    flat: Any
    if dtype == "bool":
        flat = random.random(count) < 0.5
    elif dtype.startswith("int"):
        flat = np.zeros(count, dtype)
    else:
        flat = random.standard_normal(count, np.float32)
    if library == "torch":
        import torch

        tensor = torch.from_numpy(np.asarray(flat)).to(getattr(torch, dtype)).to(place)
        return torch.as_strided(tensor, shape, strides)
    if dtype == "bfloat16":
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    array = np.asarray(flat).astype(dtype)
    if place != "cpu":
        return _on_gpu(np.ascontiguousarray(array[: int(np.prod(shape))]).reshape(shape), library, place)
    first = sum((n - 1) * -s for n, s in zip(shape, strides, strict=True) if s < 0)
    return np.lib.stride_tricks.as_strided(array[first:], shape, [s * array.itemsize for s in strides])


def _on_gpu(array: np.ndarray, library: str, place: str) -> Any:
    index = int(place.partition(":")[2])
    if library == "cupy":
        import cupy

        with cupy.cuda.Device(index):
            return cupy.asarray(array)
    return _core.to_device(array, index)
