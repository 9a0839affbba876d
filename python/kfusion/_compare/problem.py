"""What a comparison is about: an operation on the caller's own arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import _arrays
from .._graph.structure import Slot, leaves
from .._ops.operation import bind
from .._plans.plan import Plan
from .._spec import ITEM_BYTES
from .._tracing import through_jax
from .._tracing.trace import Trace, signature_of, trace
from .versions import Versions

_PLAIN = (bool, int, float, str, type(None))
_LEGACY_STREAM = 0  # the one that cuda_time's events are on


@dataclass(frozen=True)
class Problem:
    """An operation's versions and their arguments; `traced` has the arrays among these by name."""

    versions: Versions
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]
    traced: Trace

    def call(self, version: Callable[..., Any], out: Any = None) -> Any:
        """What the version returns, computed on the stream that is timed."""
        extras = {} if out is None else {"out": out}
        extras |= {"stream": _LEGACY_STREAM} if self.cuda else {}
        return version(*self.args, **self.keywords, **extras)

    def outputs(self, result: Any) -> list[Any]:
        """The arrays of a result, in the order of the graph's outputs."""
        slots = zip(leaves(self.traced.results), leaves(result), strict=True)
        found = {slot.index: value for slot, value in slots if isinstance(slot, Slot)}
        return [found[i] for i in range(len(found))]

    @functools.cached_property
    def arguments(self) -> dict[str, Any]:
        """All arguments that were given, by name."""
        return dict(bind("kfusion.compare", signature_of(self.versions.function), self.args, self.keywords).arguments)

    @property
    def described(self) -> dict[str, str]:
        """All arguments as text: arrays by dtype and shape."""
        inputs = {i.name: f"{i.spec.dtype}[{','.join(map(str, i.spec.shape))}]" for i in self.traced.inputs}
        return {n: repr(v) for n, v in self.arguments.items() if isinstance(v, _PLAIN)} | inputs

    @property
    def subject(self) -> str:
        """Operation and arguments in one line."""
        arrays = ", ".join(f"{i.name}: {self.described[i.name]}" for i in self.traced.inputs)
        return f"{self.traced.name}({arrays})"

    @functools.cached_property
    def nodes(self) -> list[dict[str, Any]]:
        """The graph's nodes."""
        return list(self.traced.graph.to_dict()["nodes"])

    @functools.cached_property
    def output_nodes(self) -> list[int]:
        """Numbers of the results' nodes."""
        return [o["node"] for o in self.traced.graph.to_dict()["outputs"]]

    @property
    def arrays(self) -> list[Any]:
        """The arrays that are read, in the order of the graph's inputs."""
        return [i.array for i in self.traced.inputs]

    @property
    def largest(self) -> Any:
        """The largest array that is read, the first one of several."""
        return max(self.arrays, key=lambda a: math.prod(a.shape) * a.dtype.itemsize)

    @property
    def cuda(self) -> bool:
        """Whether the arrays are on a CUDA device."""
        return _arrays.on_cuda(self.largest)

    @property
    def mutable(self) -> bool:
        """Whether results can be written into arrays that there are already."""
        with_axes = all(self.nodes[o]["shape"] for o in self.output_nodes)
        return with_axes and all(_arrays.mutable(a) for a in self.arrays)

    @functools.cached_property
    def plan(self) -> Plan:
        """The kernels of both versions, counted."""
        made: Plan = self.versions.fused.plan(*self.args, **self.keywords)
        return made

    @functools.cached_property
    def moved_bytes(self) -> int:
        """Bytes of all that is read and written, each array once: what no version can do without."""
        inputs = [i for i, node in enumerate(self.nodes) if node["op"] == "input"]
        return sum(_node_bytes(self.nodes[i]) for i in {*inputs, *self.output_nodes})


def problem_of(versions: Versions, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Problem:
    """Traces the operation and refuses what cannot be compared.

    Raises:
        TypeError: an argument is of a wrong kind, or there is no array.
        ValueError: an array is empty.
    """
    traced = through_jax.attempted(versions.function, (args, keywords), lambda f: trace(f, *args, **keywords))
    if traced.is_random:
        what = f"{traced.name} draws random numbers, others in each call"
        raise TypeError(f"kfusion.compare: {what}: pass kf.dropout a seed")
    if traced.written:
        name = traced.inputs[traced.written[0].input].name
        what = f"{traced.name} writes to {name}, which every timed call would do again"
        raise TypeError(f"kfusion.compare: {what}: pass a function that returns the new value")
    for i in traced.inputs:
        if i.array is None:
            raise TypeError(f"kfusion.compare: {i.name} must be an array, got {i.spec}")
        if i.spec.size == 0:
            raise ValueError(f"kfusion.compare: {i.name} must not be empty, got shape {i.spec.shape}")
    if not traced.inputs:
        raise TypeError("kfusion.compare: at least one argument must be an array")
    return Problem(versions, args, keywords, traced)


def _node_bytes(node: Mapping[str, Any]) -> int:
    return int(math.prod(node["shape"])) * ITEM_BYTES[node["dtype"]]
