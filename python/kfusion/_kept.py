"""`kfusion.kept_for_backward`: which arrays a backward pass reads, how large they are, and why these."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from . import _tables
from ._devices import devices, running
from ._devices.device import Device
from ._gradient_passes import BackwardPass, ForwardPass, values_of
from ._graph.seeds import Seeds
from ._graph.structure import holds_arrays, may_hold_results, picked
from ._graph.tracer import Tracer, current
from ._graph.values import Traced, place_of
from ._plans.frontends import frontend_of
from ._plans.plan import Plan, plan_graph
from ._spec import FLOATS, Spec, bytes_or_none, is_array, spec_of
from ._tracing import through_jax
from ._tracing.trace import name_of, signature_of, trace

_WHO = "kfusion.kept_for_backward"


@dataclass(frozen=True)
class KeptValue:
    """One array that a backward pass reads.

    role is "argument", "result" or "kept"; bytes are its own where it is kept, else 0: it is there anyway. saves_us is
    by how much the best choice without it, which may keep others, takes longer, as predicted; None where there is none.
    """

    name: str
    source: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    saves_us: float | None

    @property
    def why(self) -> str:
        """The reason in words."""
        if self.role == "argument":
            return "an argument: only read"
        if self.role == "result":
            return "a result: only read"
        if self.saves_us is None:
            return "a call of the library, which is not called again"
        return f"{_tables.number(self.saves_us)} us less than the best choice without it"


@dataclass(frozen=True)
class Kept(_tables.Report):
    """What the backward pass of a function reads beside the gradients of its results; `print` it, or look at values.

    forward and backward are the plans of both passes: what a call with tensors that require grad runs, and its
    `backward()`.
    """

    function: str
    device: Device
    memory: int | None
    values: tuple[KeptValue, ...]
    forward: Plan
    backward: Plan

    @property
    def bytes(self) -> int:
        """The bytes of what is stored for backward's sake: arguments and results are there anyway."""
        return sum(v.bytes for v in self.values)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "function": self.function,
            "device": self.device.name,
            "memory": self.memory,
            "bytes": self.bytes,
            "values": [asdict(v) | {"why": v.why} for v in self.values],
            "forward": self.forward.to_dict(),
            "backward": self.backward.to_dict(),
        }

    def __repr__(self) -> str:
        return f"<Kept: {self.function}: {sum(v.role == 'kept' for v in self.values)} arrays of {self.bytes} bytes>"

    def _parts(self, width: int | None) -> Iterable[_tables.Table | str]:
        unit, size = _tables.byte_unit(max((v.bytes for v in self.values), default=0))
        shapes = [f"{v.dtype}[{','.join(map(str, v.shape))}]" for v in self.values]
        rows = [
            (_tables.shorten(v.name, 28), shape, _tables.in_unit(v.bytes, size), v.why)
            for v, shape in zip(self.values, shapes, strict=True)
        ]
        limit = "" if self.memory is None else f", memory={self.memory}"
        title = f"What backward of {self.function} reads ({self.device.name}{limit})"
        yield _tables.Table(title, ("value", "array", f"{unit} kept", "why"), tuple(rows), left=(0, 1, 3))
        total_unit, total_size = _tables.byte_unit(self.bytes)
        yield f"Kept beside arguments and results: {_tables.in_unit(self.bytes, total_size)} {total_unit}.\n"
        yield _passes_table({"forward": self.forward, "backward": self.backward})


def kept_for_backward(
    function: Callable[..., Any],
    *arguments: Any,
    device: str | Device | None = None,
    memory: int | None = None,
    **keywords: Any,
) -> Kept:
    """What a call with tensors that require grad keeps for its backward pass, and why. Nothing is computed.

    It is a minimal cut of the graph of both passes: backward reads the values that together cost the least time, where
    reading costs a load, keeping what is neither argument nor result a store too, and computing again what that takes
    (cpp/kfusion/grad/joint.hpp has the prices).

    Args:
        function: of arrays, a torch module, or what `kfusion.fuse` made of one.
        arguments: its arguments: `kfusion.spec(shape, dtype)`, or arrays. Gradients are those of the tensors among them
            that require grad, of all floats where none does, and of tensors that the function names and require grad.
        device: what to price on, as for `kfusion.plan`; None is where the arrays are.
        memory: as for `kfusion.fuse`.
        keywords: the function's keyword arguments.

    Returns:
        A `Kept`.

    Raises:
        TraceError: the function does what cannot be traced.
        TypeError: the results depend on a tensor through something that has no gradient, or on no float.
        ValueError: memory is less than what cannot be computed again, or negative.

    Source: torch's AOTAutograd partitions its graphs by a minimal cut, too (H. Horace, "Min-cut recomputation with
    AOTAutograd", 2022).
    """
    if refused := frontend_of(function).without_gradients:
        raise TypeError(f"{_WHO}: function must be one of arrays or a torch module, got {refused}: it has no gradients")
    options = getattr(function, "_options", None) or getattr(getattr(function, "fused_function", None), "_options", {})
    plain = getattr(function, "__wrapped__", function) if options else function
    memory = options.get("memory") if memory is None else bytes_or_none(_WHO, memory)

    def made(function: Callable[..., Any]) -> Kept:
        explained = _Explained(function, memory, device)
        graph = trace(explained, *arguments, **keywords).graph.to_dict()
        forward, backward = _plans(explained, arguments, keywords)
        values = tuple(_values(graph, explained.found))
        return Kept(explained.__name__, explained.priced_on, memory, values, forward, backward)

    return through_jax.attempted(plain, (arguments, keywords), made, is_differentiated=True)


def _plans(explained: _Explained, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Plan, Plan]:
    """The plans of both passes, as `kfusion.fuse` runs them."""
    device, options, seeds = explained.priced_on, {"executors": "available"}, Seeds()
    call, wanted = (arguments, keywords), tuple(_wanted_arguments(arguments, keywords))
    forward = _Forward(explained, seeds)
    first = trace(forward, call, (), wanted)
    backward = BackwardPass(explained.__wrapped__, explained.__name__, seeds)
    captured = tuple(id(t) for t in forward.captured())
    second = trace(backward, call, forward.cotangents, wanted, captured, *forward.told)
    made = (plan_graph(t.name, t.graph, device, options, t.modules) for t in (first, second))
    return next(made), next(made)


class _Forward(ForwardPass):
    """A forward pass of specs, and what its backward pass is given."""

    told: tuple[Any, ...]
    cotangents: list[Spec | None]

    def __init__(self, explained: _Explained, seeds: Seeds) -> None:
        super().__init__(
            explained.__wrapped__, explained.__name__, seeds, explained.memory, explained.priced_on.to_dict()
        )

    def __call__(self, call: Any, captured: Any, wanted: Sequence[bool]) -> Any:
        answer = super().__call__(call, captured, wanted)
        result, _, _, computed, kept, turned, _, named, frozen = answer
        values = values_of(result)
        specs = {k: _spec_of(values[v] if isinstance(v, int) else v) for k, v in kept.items()}
        self.told = computed, specs, turned, named, frozen
        self.cotangents = [_spec_of(y) if isinstance(y, Traced) and y._dtype in FLOATS else None for y in values]
        return answer


def _spec_of(value: Traced) -> Spec:
    return Spec(value.shape, value._dtype, value._library, place_of(value._tracer.inputs))


def _wanted_arguments(arguments: Any, keywords: Any) -> Iterator[bool]:
    """Says of each array whether its gradient is wanted."""
    given = picked((arguments, keywords), _is_given, holds_arrays)
    some = any(getattr(x, "requires_grad", False) is True for x in given)
    for x in given:
        dtype = x.dtype if isinstance(x, Spec) else spec_of(x, _WHO).dtype
        yield dtype in FLOATS and (not some or getattr(x, "requires_grad", False) is True)


def _is_given(leaf: Any) -> bool:
    return isinstance(leaf, Spec) or is_array(leaf)


def _passes_table(plans: dict[str, Plan]) -> _tables.Table:
    unit, size = _tables.byte_unit(max(p.fused.issued.total for p in plans.values()))
    rows = tuple(
        (
            name,
            str(p.fused.launches),
            _tables.in_unit(p.fused.issued.read, size),
            _tables.in_unit(p.fused.issued.written, size),
            _tables.number(p.fused.time_us),
        )
        for name, p in plans.items()
    )
    return _tables.Table("Both passes", ("", "launches", f"read {unit}", "written", "us"), rows)


class _Explained:
    """The function, that also remembers what its gradients need."""

    found: list[tuple[int, int, int, float]]
    priced_on: Device

    def __init__(self, function: Callable[..., Any], memory: int | None, device: str | Device | None) -> None:
        self.__wrapped__ = function
        self.__signature__ = signature_of(function)
        self.__name__ = name_of(function)
        self.memory = memory
        self._device = device

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tracer = current.get()
        assert tracer is not None
        with tracer.differentiated([tracer.value_of_input(n) for n in _wanted(tracer)]):
            made = self.__wrapped__(*args, **kwargs)
        results = picked(made, lambda leaf: isinstance(leaf, Traced), may_hold_results)
        if not any(y._dtype in FLOATS for y in results):
            raise TypeError(f"{_WHO}: {self.__name__} must return an array of floats")
        self.priced_on = _device(tracer, self._device)
        values = [tracer.value_of_input(n) for n in _wanted(tracer)]
        self.found = tracer.explain_kept(results, values, self.priced_on.to_dict(), self.memory)
        return made


def _device(tracer: Tracer, device: str | Device | None) -> Device:
    if isinstance(device, Device):
        return device
    return running.device(place_of(tracer.inputs)) if device is None else devices.device(device)


def _wanted(tracer: Tracer) -> list[int]:
    """The inputs that gradients are wanted of."""
    requires = [getattr(i.array, "requires_grad", False) is True for i in tracer.inputs]
    is_asked = any(r and not i.captured for r, i in zip(requires, tracer.inputs, strict=True))
    floats = [i.spec.dtype in FLOATS for i in tracer.inputs]
    return [n for n, i in enumerate(tracer.inputs) if floats[n] and (requires[n] or not (i.captured or is_asked))]


def _values(graph: dict[str, Any], found: list[tuple[int, int, int, float]]) -> Iterator[KeptValue]:
    for node_id, result, nbytes, seconds in found:
        node = graph["nodes"][node_id]
        is_argument = node["op"] == "input"
        stage = {"name": "", "source": ""} if node["stage"] is None else graph["stages"][node["stage"]]
        name = node["name"] if is_argument else stage["name"]
        if not is_argument and node["op"] not in (*name.split("."), "library_call", "library_result"):
            name += f": {node['op']}"
        if node["op"] == "library_result":
            name += f", result {node['index'] + 1}"
        role = "argument" if is_argument else "result" if result >= 0 else "kept"
        us = None if math.isinf(seconds) else seconds * 1e6
        yield KeptValue(name, stage["source"], role, node["dtype"], tuple(node["shape"]), nbytes, us)
