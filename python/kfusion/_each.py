"""`kfusion.for_each`: a function of one set of arrays, for many sets at once."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from . import _core
from ._devices import running
from ._devices.device import Device
from ._devices.devices import device as find_device
from ._fuse import FusedFunction
from ._graph.values import place_of
from ._plans.each_plan import EachPart, EachPlan
from ._plans.plan import Plan, plan_graph
from ._spec import Spec, is_array, spec_of
from ._tracing.trace import name_of

_WHO = "kfusion.for_each"


class ForEach:
    """What `kfusion.for_each` makes of a function: call it with lists in the place of arrays.

    f(xs, ys, lr)       f of each x and y; `stream=` as for a fused function
    f.plan(xs, ys, lr)  the kernels that such a call runs; nothing is computed
    f.clear()           forgets the traces
    f.__wrapped__       the plain function
    """

    __wrapped__: Callable[..., Any]
    __name__: str

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._one = FusedFunction(function, {}, each=True)
        self._names = tuple(self._one.__signature__.parameters)

    def __call__(self, *args: Any, stream: Any = None, **kwargs: Any) -> Any:
        return self._one._each(self._rows(args, kwargs), tuple(kwargs), stream)

    def plan(self, *args: Any, device: str | Device | None = None, **kwargs: Any) -> EachPlan:
        """The kernels that a call with these arguments runs, counted and priced. Nothing is computed.

        Args:
            args: as for the call itself, or specs for arrays.
            device: what to price on, as for `kfusion.plan`; None is where the arrays are, not measured.
            kwargs: likewise.

        Returns:
            An `EachPlan`. Its parts are calls that are alike, those of one kernel first. It takes arrays for aligned.
        """
        rows, names = self._rows(args, kwargs), tuple(kwargs)
        priced_on = None if device is None else find_device(device)
        known: dict[Any, _Call] = {}
        counts: Counter[Any] = Counter()
        for row in rows:
            key = tuple(map(_looks, row))
            if key not in known:
                behind = len(row) - len(names)
                known[key] = _Call(self._one, row[:behind], dict(zip(names, row[behind:], strict=True)))
            counts[key] += 1
        return _planned(name_of(self.__wrapped__), [(known[key], n) for key, n in counts.items()], priced_on)

    def _rows(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Any, ...]]:
        """The arguments of each call, those by name last."""
        columns = (*args, *kwargs.values())
        count = self._count(args, kwargs)
        return list(zip(*(c if isinstance(c, (list, tuple)) else (c,) * count for c in columns), strict=True))

    def clear(self) -> None:
        """Forgets all traces, so that the next call traces again, as that of a fused function does."""
        self._one.clear()

    def _count(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        who = f"kfusion.{self._one.__name__}"
        names = [*self._names[: len(args)], *[f"argument {i + 1}" for i in range(len(self._names), len(args))], *kwargs]
        lengths = {
            name: len(column)
            for name, column in zip(names, (*args, *kwargs.values()), strict=True)
            if isinstance(column, (list, tuple))
        }
        if not lengths:
            raise TypeError(f"{who}: a function for each of many takes lists of arrays, got none")
        first, count = next(iter(lengths.items()))
        for name, length in lengths.items():
            if length != count:
                raise ValueError(f"{who}: {name} must have as many items as {first} ({count}), got {length}")
        return count

    def __repr__(self) -> str:
        return f"<kfusion.for_each: {name_of(self.__wrapped__)}{self._one.__signature__}>"


def _looks(value: Any) -> Any:
    """What two arguments have in common where calls with them are the same to a plan."""
    if not isinstance(value, Spec) and not is_array(value):
        return type(value), repr(value)
    spec = value if isinstance(value, Spec) else spec_of(value, _WHO)
    return spec, str(getattr(value, "strides", None) or (value.stride() if hasattr(value, "stride") else ""))


class _Call:
    """One call, and the kernel that it has with others."""

    def __init__(self, function: FusedFunction, args: Any, kwargs: Any) -> None:
        self.function = function
        self.traced = function._planned(args, kwargs)
        self.key = self._kernel()

    @property
    def elements(self) -> int:
        """The elements of each array, where it is elementwise."""
        return math.prod(self.traced.inputs[0].spec.shape)

    def _kernel(self) -> tuple[str, str] | None:
        """The text of the kernel that it may share with calls of other shapes, and where; None: there is none."""
        t = self.traced
        outputs = len(t.graph.to_dict()["outputs"])
        is_own = any(i.captured for i in t.inputs) or any(w.part or w.in_place for w in t.written)
        if not t.written or outputs != len(t.written) or t.library_calls or is_own:
            return None
        try:
            kernel = _core.each_kernel(t.graph, find_device("H200").to_dict(), [w.input for w in t.written])
        except ValueError:
            return None  # it is not elementwise
        return kernel.source, place_of(t.inputs)

    def plan(self, device: Device) -> Plan:
        """The plan of this call alone."""
        return plan_graph(self.traced.name, self.traced.graph, device, self.function._options)

    def plan_of_all(self, device: Device, elements: int) -> Plan:
        """The plan of all calls with its kernel, which have so many elements together."""
        shape = list(self.traced.inputs[0].spec.shape)
        graph = self.traced.graph.to_dict()
        for node in graph["nodes"]:
            if node["op"] != "constant" and node["shape"] == shape:
                node["shape"] = [elements]
            if node["op"] == "input":
                node["strides"] = []
        return plan_graph(self.traced.name, _core.Graph.from_dict(graph), device, self.function._options)


def _planned(name: str, calls: list[tuple[_Call, int]], device: Device | None) -> EachPlan:
    priced_on = device or running.device(place_of(calls[0][0].traced.inputs) if calls else "cpu")
    shared: dict[Any, list[tuple[_Call, int]]] = {}
    for call, count in calls:
        if call.key is not None:
            shared.setdefault(call.key, []).append((call, count))
    parts = []
    for alike in shared.values():
        widest = max((call for call, _ in alike), key=lambda c: (c.elements, len(c.traced.inputs[0].spec.shape)))
        elements = sum(call.elements * count for call, count in alike)
        parts.append(EachPart(sum(n for _, n in alike), True, widest.plan_of_all(priced_on, elements)))
    parts += [EachPart(n, False, call.plan(priced_on)) for call, n in calls if call.key is None]
    return EachPlan(name, priced_on, tuple(parts))


def for_each(function: Callable[..., Any]) -> ForEach:
    """A function that does to each of many sets of arrays what `function` does to one, in one kernel.

    for_each(f)(xs, ys, lr) is [f(x, y, lr) for x, y in zip(xs, ys)]: lists and tuples have an item for each call, all
    else is the same in all calls. Where f is elementwise and writes into its arguments (an optimizer's step), all calls
    with the same dtypes and numbers are one kernel, whatever the shapes. What is not elementwise, gives new arrays, or
    has arrays that lie in different ways, runs one call after the other.

    Args:
        function: of arrays and numbers, as for `fuse`. A decorator, too.

    Returns:
        A function. It returns the list of results, or None where all of them are None.

    Raises:
        ValueError: by the call, before anything is written: lists of different lengths; arrays that are read-only, or
            share memory with another one that is written.
        TypeError: by the call: there is no list, or arrays of several libraries or devices.
    """
    if not callable(function):
        raise TypeError(f"{_WHO}: function must be callable, got {type(function).__name__}")
    return ForEach(function)
