"""`kfusion.plan`: which kernels a function becomes, what they cost on a device, and why they are not fewer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import _core, _json, _schema, _tables, _times
from .._core import Graph
from .._devices import devices
from .._devices.device import Device
from . import checks, explain, fusions, layers, report, whole
from .against import Against, against
from .frontends import frontend_of
from .fusions import Fusions
from .layers import Layers
from .passes import Passes, passes_of
from .records import Group, Refusal, Total

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .._files import StrPath

_SCHEMA = 3
_WHO = "kfusion.Plan"


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
    modules: by call, the path of the torch module that makes it ("model.layers.3.self_attn"); empty without modules.
    The fused plan never moves more bytes than the unfused one, launches more kernels, or (but for `allow=`) is
    predicted to take longer.
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
    modules: dict[str, str] = field(default_factory=dict)

    def explain(self, a: str, b: str) -> str:
        """Why two calls do or do not share a kernel.

        Args:
            a: name of a stage or an op ("relu", "relu_2"), of an input or a result, or the beginning of one name.
            b: another.

        Returns:
            A sentence or two. Between calls that are no neighbours it names the boundaries on the way.

        Raises:
            ValueError: nothing or more than one thing has that name; the message lists the names.
        """
        return explain.explain(self, a, b)

    def top(self, count: int = 10, *, known: bool = True) -> Fusions:
        """The fusions that save most time, as predicted, against one kernel for each call.

        Args:
            count: how many.
            known: False leaves out what a call of the array library does alone, such as attention.

        Returns:
            `Fusions`: print it, or take its `rows`, `to_dicts()` or `to_json()`. Kernels that do the same in many
            layers are one fusion, with the sums of all.
        """
        return fusions.top(self, count, known=known)

    def by_module(self, depth: int | None = None) -> Layers:
        """What each torch module costs, fused and unfused; all rows together are the plan's totals.

        Args:
            depth: how much of a module's path counts: 1 is "model" for all of model.layers.3.mlp. None ends a path with
                its first number: model.layers.3.

        Returns:
            `Layers`: print it, or take its `rows`, `to_dicts()` or `to_json()`. A fused kernel belongs to the module of
            its last call, an unfused one to that of its only call.
        """
        return layers.by_module(self, depth)

    def against(self, other: Plan) -> Against:
        """This plan and another one side by side: of another device, dtype or size, or of another function.

        Returns:
            `Against`: print it, or take its `rows`, `to_dicts()` or `to_json()`.

        Raises:
            TypeError: other is no Plan.
        """
        if not isinstance(other, Plan):
            raise TypeError(f"{_WHO}.against: other must be a Plan, got {type(other).__name__}")
        return against(self, other)

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
        """Everything as plain dicts, lists, numbers and strings; "schema" is 3. "passes" is what `passes` finds, where
        there are gradients.
        """
        plain: dict[str, Any] = _schema.to_plain(self)
        found = {} if self.passes is None else {"passes": self.passes.to_dict()}
        return {"schema": _SCHEMA, **plain, **found}

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
            plan = _schema.from_plain(cls, {k: v for k, v in plain.items() if k not in ("schema", "passes")}, _WHO)
            checks.check_references(plan, _WHO)
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
        kernels = _tables.counted(len(self.groups), "kernel")
        return f"<Plan: {self.title}: {kernels} instead of {len(self.unfused_groups)}>"

    @property
    def title(self) -> str:
        """The function, its inputs and the device in one line."""
        return report.title(self)

    def _parts(self, width: int | None) -> Iterator[_tables.Table | str]:
        found = whole.folds_of(self)
        return whole.parts(self, found, width) if found else report.parts(self, width)

    @functools.cached_property
    def passes(self) -> Passes | None:
        """The passes of a function with gradients in it: which kernels are the forward and which the backward pass,
        what is kept between them with bytes and why, and the peak memory of intermediates. None without gradients.
        """
        return passes_of(self)

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


def executors(device: str | Device | None = None) -> dict[str, tuple[str, ...]]:
    """Who runs kernels on a device.

    Args:
        device: as for `kfusion.plan`.

    Returns:
        By name, in the order in which they are asked, the kinds of kernels that each runs, some of them on conditions:
        where none does, a plan's group says why.
    """
    return {name: tuple(kinds) for name, kinds in _core.executors(device_of(device).to_dict())}


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
    return frontend_of(function).traced(arguments, keywords)[1]


def plan_graph(name: str, graph: Graph, device: Device, options: dict[str, Any], modules: Sequence[str] = ()) -> Plan:
    """The Plan of a function's graph; options as `_core.make_plan` takes them, modules by the graph's stages."""
    _times.refresh()
    made = _core.make_plan(graph, device.to_dict(), options)
    return Plan.from_dict(made | {"function": name, "modules": layers.of_stages(graph, modules)})


def device_of(device: str | Device | None) -> Device:
    """The device that is meant: None is this machine's GPU, or else an H200."""
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
