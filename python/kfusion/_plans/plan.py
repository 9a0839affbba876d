"""`kfusion.plan`: which kernels a function becomes, what they cost on a device, and why they are not fewer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _core, _json, _onnx, _schema, _tables, _times
from .._core import Graph
from .._devices import devices
from .._devices.device import Device
from .._tracing import trace as _trace
from . import explain, report
from .records import Group, Refusal, Total

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .._files import StrPath

_SCHEMA = 3
_WHO = "kfusion.Plan"
_SAVINGS = ("unfused_bytes", "fused_bytes", "savings_bytes", "savings_pct")  # what kfusion.savings always has


@dataclass(frozen=True)
class Plan(_tables.Report):
    """A function's kernels, fused and with one per call (unfused), counted and priced on a device.

    `print(plan)` shows tables, Jupyter shows them as HTML, `plan.plot()` draws, `plan.explain(a, b)` says why two calls
    do or do not share a kernel. groups number the nodes of graph, the function's without what is computed twice or for
    nothing (but what is computed in several kernels stands in it several times); unfused_groups those of unfused_graph,
    where each call computes all that it needs; library is the total of a kernel for each call of the array library,
    which has some functions as one (attention, linear). The second call of relu is named relu_2 in both; composites are
    the calls that have several stages, with these ("layernorm": "layernorm.mean", ...).
    savings has the keys of `kfusion.savings`, from issued bytes; predicted_speedup is the ratio of the predicted times.
    """

    function: str
    device: Device
    graph: Graph
    unfused_graph: Graph
    composites: dict[str, tuple[str, ...]]
    groups: tuple[Group, ...]
    unfused_groups: tuple[Group, ...]
    refusals: tuple[Refusal, ...]
    fused: Total
    unfused: Total
    library: Total
    savings: dict[str, _schema.Number]
    predicted_speedup: float

    def explain(self, a: str, b: str) -> str:
        """Why two calls do or do not share a kernel.

        Args:
            a: name of a stage or an op ("relu", "relu_2"), of an input or a result, or the beginning of one name.
            b: another.

        Returns:
            A sentence or two. Of calls that are no neighbours it names the boundaries on the way from one to the other.

        Raises:
            ValueError: nothing or more than one thing has that name; the message lists the names.
        """
        return explain.explain(self, a, b)

    def plot(self, path: StrPath | None = None, ax: Axes | None = None) -> Figure:
        """Draws the roofline with the kernels on it, the bytes of each kernel, and which calls share one.

        Args:
            path: file to write (its ending chooses the format), if any.
            ax: axes to draw the roofline into; the other two panels are left out then.

        Returns:
            The pyplot Figure, closed, so that a notebook shows it once.
        """
        from .. import _pictures
        from . import plan_plot

        figure = plan_plot.draw(self) if ax is None else plan_plot.roofline_on(self, ax)
        if path is not None:
            _pictures.save(figure, path)
        return figure

    def to_html(self) -> str:
        """One self-contained page: tables, pictures, reasons and the graph; nothing is loaded from elsewhere."""
        from . import html

        return html.page(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain dicts, lists, numbers and strings; "schema" is 3."""
        plain: dict[str, Any] = _schema.to_plain(self)
        return {"schema": _SCHEMA, **plain}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Plan:
        """The Plan that `to_dict` gave.

        Raises:
            TypeError: a value is of a wrong kind.
            ValueError: a field is missing, unknown or out of range.
        """
        if type(plain) is not dict:
            raise TypeError(f"{_WHO}: a plan must be a dict, got {type(plain).__name__}")
        if plain.get("schema") != _SCHEMA:
            raise ValueError(f"{_WHO}: schema must be {_SCHEMA}, got {str(plain.get('schema'))[:40]}")
        with _schema.collector_paused():
            plan = _schema.from_plain(cls, {k: v for k, v in plain.items() if k != "schema"}, _WHO)
            _check_references(plan)
        return plan

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict` as text."""
        return _json.dumps(self.to_dict(), indent)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The Plan that `to_json` gave; text from anywhere is safe to read.

        Raises:
            TypeError: text is no str, or a value is of a wrong kind.
            ValueError: it is no JSON, too long, or no plan.
        """
        return cls.from_dict(_json.loads(text, _WHO))

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan.from_json, (self.to_json(),)

    def __repr__(self) -> str:
        kernels = "1 kernel" if len(self.groups) == 1 else f"{len(self.groups)} kernels"
        return f"<Plan: {self.title}: {kernels} instead of {len(self.unfused_groups)}>"

    @property
    def title(self) -> str:
        """The function, its inputs and the device in one line."""
        return report.title(self)

    def _parts(self, width: int | None) -> Iterator[_tables.Table | str]:
        return report.parts(self, width)

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the function's calls, in order: "relu", and "relu_2" for the second."""
        return tuple(stage["name"] for stage in self._graph["stages"])

    @property
    def _nodes(self) -> list[dict[str, Any]]:
        nodes: list[dict[str, Any]] = self._graph["nodes"]
        return nodes

    def _is_input(self, node: int) -> bool:
        return 0 <= node < len(self._nodes) and self._nodes[node]["op"] == "input"

    @functools.cached_property
    def _graph(self) -> dict[str, Any]:
        return self.graph.to_dict()


def plan(
    function: Any,
    *arguments: Any,
    device: str | Device | None = None,
    fuse: bool = True,
    allow: Iterable[tuple[str, str]] = (),
    forbid: Iterable[tuple[str, str]] = (),
    executors: str | Iterable[str] | None = None,
    **keywords: Any,
) -> Plan:
    """Traces a function, plans it into kernels and counts what fusing them saves. Nothing is computed.

    Args:
        function: a function of arrays, a Graph, or the path of an ONNX model, of which no weights are read.
        arguments: its arguments: `kfusion.spec(shape, dtype)`, or arrays, of which only shape and dtype count. An ONNX
            model's are those that it says itself; an array is an input whose values decide on shapes.
        device: a Device or the name of one (`kfusion.devices()`). None is the first CUDA GPU of this machine, and the
            data sheet of an H200 where there is none; the report's title names it.
        fuse: False plans one kernel per call.
        allow: pairs of names, of calls as the plan shows them ("relu", "relu_2", "layernorm" for all its stages) or of
            ops, all with that name; where given, only these may share a kernel.
        forbid: pairs that may not.
        executors: who runs the kernels. None also plans kernels that nobody has written yet: what is possible.
            "available" plans what a fused function runs, a list of names (`kfusion.executors()`) what these would run.
        keywords: the function's keyword arguments; give those named like an option above by functools.partial. Of an
            ONNX model also sizes={"batch": 8}, of its symbolic sizes, and default_size, of those without one.

    Returns:
        A `Plan`: print it, `.plot()` it, `.explain(a, b)` it, `.to_dict()` it.

    Raises:
        TraceError: the function does what cannot be traced; the message says where and what to write instead.
        ValueError: a device, an option or a shape is wrong; a model is damaged, has what is refused, or a symbol
            without a size.
        TypeError: one is of a wrong kind.
    """
    name, graph = _traced(function, arguments, keywords)
    options = {
        "fuse": fuse,
        "allow": pairs("allow", allow),
        "forbid": pairs("forbid", forbid),
        "executors": executors if executors is None or isinstance(executors, str) else list(executors),
    }
    return plan_graph(name, graph, _device(device), options)


def executors(device: str | Device | None = None) -> dict[str, tuple[str, ...]]:
    """Who runs kernels on a device.

    Args:
        device: as for `kfusion.plan`.

    Returns:
        By name, in the order in which they are asked, the kinds of kernels that each runs, some of them on conditions:
        where none does, a plan's group says why.
    """
    return {name: tuple(kinds) for name, kinds in _core.executors(_device(device).to_dict())}


def trace(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Graph:
    """The operations of a function, without computing anything.

    Args:
        function: a function of arrays; kf.*, NumPy, torch and CuPy calls, operators and array methods inside. Or the
            path of an ONNX model, as for `kfusion.plan`.
        arguments: its arguments: `kfusion.spec(shape, dtype)`, or arrays, of which only shape and dtype count.
        keywords: its keyword arguments.

    Returns:
        A `Graph`: print it, `.to_json()` it, `kfusion.plan` it.

    Raises:
        TraceError: the function does what cannot be traced; the message says where and what to write instead.
    """
    return _traced(function, arguments, keywords)[1]


def plan_graph(name: str, graph: Graph, device: Device, options: dict[str, Any]) -> Plan:
    """The Plan of a function's graph; options as `_core.make_plan` takes them."""
    _times.refresh()
    return Plan.from_dict(_core.make_plan(graph, device.to_dict(), options) | {"function": name})


def _traced(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[str, Graph]:
    if _onnx.is_model(function):
        made = _onnx.traced(function, arguments, keywords, _trace.trace)
        return made.name, made.graph
    if not isinstance(function, Graph):
        traced = _trace.trace(function, *arguments, **keywords)
        return traced.name, traced.graph
    if arguments or keywords:
        raise TypeError("kfusion.plan: a Graph has its inputs and takes no arguments")
    return "", function


def _device(device: str | Device | None) -> Device:
    if isinstance(device, Device):
        return device
    if device is None:
        device = "cuda:0" if _core.cuda_device_count() > 0 else "H200"
    return devices.device(device)


def pairs(option: str, names: Iterable[tuple[str, str]], who: str = "kfusion.plan") -> list[tuple[str, str]]:
    """The list of pairs that `allow` and `forbid` take.

    Raises:
        TypeError: it is none.
    """
    wanted = f"{who}: {option} must be pairs of names, such as [('relu', 'sum')]"
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"{wanted}, got {names!r}")
    result = []
    for pair in names:
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(name, str) for name in pair):
            raise TypeError(f"{wanted}, got {pair!r}")
        result.append((pair[0], pair[1]))
    return result


def _check_references(plan: Plan) -> None:
    """Every number of a node, stage or group is one of the plan's own, and every unit one of the device's."""
    groups = range(len(plan.groups))
    for name in _SAVINGS:
        _require(name in plan.savings, f"savings must have {name!r}")
    computed = _check_groups("groups", plan.groups, plan._graph)
    _check_groups("unfused_groups", plan.unfused_groups, plan.unfused_graph.to_dict())
    for i, r in enumerate(plan.refusals):
        is_input = plan._is_input(r.producer_node)
        _require(r.consumer_node in computed, f"refusals[{i}].consumer_node must be the number of a computed node")
        _require(is_input or r.producer_node in computed, f"refusals[{i}].producer_node must be computed or an input")
        _require(r.consumer_group in groups, f"refusals[{i}].consumer_group must be the number of a group")
        _require(r.producer_group in ((-1,) if is_input else groups), f"refusals[{i}].producer_group must be a group's")
    costs = (*plan.groups, *plan.unfused_groups, plan.fused, plan.unfused)
    for dtype, unit in {(f.dtype, f.unit) for cost in costs for f in cost.flops}:
        plan.device.peak_flops(dtype, unit)


def _check_groups(name: str, groups: Iterable[Group], graph: dict[str, Any]) -> set[int]:
    """The graph's computed nodes, after checking that the groups name nothing but what the graph has."""
    nodes, stages = range(len(graph["nodes"])), {stage["name"] for stage in graph["stages"]}
    computed = {i for i, node in enumerate(graph["nodes"]) if node["stage"] is not None}
    for i, g in enumerate(groups):
        named = (*g.views, *g.deferred, *(v.node for v in g.loads), *(v.node for v in g.stores))
        _require(g.id == i, f"{name}[{i}].id must be {i}")
        _require(computed.issuperset(g.nodes), f"{name}[{i}].nodes must be numbers of computed nodes")
        _require(all(n in nodes for n in named), f"{name}[{i}] must name nodes of the graph")
        _require(stages.issuperset(g.stages), f"{name}[{i}].stages must be the graph's")
    return computed


def _require(condition: bool, rule: str) -> None:
    if not condition:
        raise ValueError(f"{_WHO}: {rule}")
