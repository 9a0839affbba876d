"""`kfusion.plan` itself: the plan of a function on a device, on several, or on a mesh of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, overload

from .._core import Graph
from .._devices.device import Device
from .._graph import heads
from . import sweep as _sweep
from .frontends import frontend_of
from .plan import Plan, device_of, pairs, plan_graph
from .sweep import Sweep

if TYPE_CHECKING:
    from .mesh import Mesh, MeshPlan


@overload
def plan(
    function: Any,
    *arguments: Any,
    device: str | Device | None = ...,
    devices: None = ...,
    sizes: Mapping[str, int] | None = ...,
    fuse: bool = ...,
    allow: Iterable[tuple[str, str]] = ...,
    forbid: Iterable[tuple[str, str]] = ...,
    executors: str | Iterable[str] | None = ...,
    mesh: None = ...,
    **keywords: Any,
) -> Plan: ...
@overload
def plan(
    function: Any,
    *arguments: Any,
    device: None = ...,
    devices: Iterable[str | Device],
    sizes: Mapping[str, int] | None = ...,
    fuse: bool = ...,
    allow: Iterable[tuple[str, str]] = ...,
    forbid: Iterable[tuple[str, str]] = ...,
    executors: str | Iterable[str] | None = ...,
    mesh: None = ...,
    **keywords: Any,
) -> Sweep: ...
@overload
def plan(
    function: Any,
    *arguments: Any,
    device: str | Device | None = ...,
    devices: None = ...,
    sizes: Mapping[str, int] | None = ...,
    fuse: bool = ...,
    allow: Iterable[tuple[str, str]] = ...,
    forbid: Iterable[tuple[str, str]] = ...,
    executors: str | Iterable[str] | None = ...,
    mesh: Mesh,
    **keywords: Any,
) -> MeshPlan: ...
def plan(
    function: Any,
    *arguments: Any,
    device: str | Device | None = None,
    devices: Iterable[str | Device] | None = None,
    sizes: Mapping[str, int] | None = None,
    fuse: bool = True,
    allow: Iterable[tuple[str, str]] = (),
    forbid: Iterable[tuple[str, str]] = (),
    executors: str | Iterable[str] | None = None,
    mesh: Mesh | None = None,
    **keywords: Any,
) -> Plan | Sweep | MeshPlan:
    """Traces a function, plans it into kernels and counts what fusing them saves. Nothing is computed.

    Args:
        function: a function of arrays, a torch module, a program of `torch.export.export`, the path of an ONNX model,
            or a Graph. Modules and programs need no data: they may be on torch's meta device, or made under its
            FakeTensorMode. An ONNX model's weights are not read.
        arguments: its arguments: `kfusion.spec(shape, dtype)`, or arrays, of which only shape and dtype count. A
            module's specs follow torch. An exported program's are its tensors in their order; without any, those that
            it was exported with. An ONNX model's are those that it says itself; an array is an input whose values
            decide on shapes.
        device: a Device or the name of one (`kfusion.devices()`). None is the first CUDA GPU of this machine, and the
            data sheet of an H200 where there is none; the report's title names it.
        devices: several of them, for a table of totals.
        sizes: numbers for the sizes that specs, or an ONNX model, name: {"batch": 8} for
            `kfusion.spec(("batch", 4096))`.
        fuse: False plans one kernel per call.
        allow: pairs of names, of calls as the plan shows them ("relu", "relu_2", "layernorm" for all its stages) or of
            ops, all with that name; where given, only these may share a kernel.
        forbid: pairs that may not.
        executors: who runs the kernels. None also plans kernels that nobody has written yet: what is possible.
            "available" plans what a fused function runs, a list of names (`kfusion.executors()`) what these would run.
        mesh: how many devices share the arrays, and how (`kfusion.Mesh`): the plan of each of them.
        keywords: the function's keyword arguments; give those named like an option above by functools.partial. An ONNX
            model has default_size, for its symbolic sizes that `sizes` does not name.

    Returns:
        A `Plan`: print it, `.plot()` it, `.explain(a, b)` it, `.to_dict()` it; of gradients, `.passes` says
        what is kept between both passes. A `Sweep` for `devices`. With a mesh a `MeshPlan`: what each rank runs
        and sends, and how much faster that is than one device.

    Raises:
        TraceError: the function does what cannot be traced; the message says where and what to write instead.
        ValueError: a device, an option or a shape is wrong, or a size has no number; a model is damaged or has what is
            refused.
        TypeError: one is of a wrong kind.
    """
    frontend = frontend_of(function)
    arguments, keywords = frontend.filled(arguments, keywords, sizes or {})
    options = {
        "fuse": fuse,
        "allow": pairs("allow", allow),
        "forbid": pairs("forbid", forbid),
        "executors": executors if executors is None or isinstance(executors, str) else list(executors),
    }
    places = [device] if devices is None else _sweep.require_devices(devices)
    if devices is not None and (device is not None or mesh is not None):
        raise TypeError("kfusion.plan: devices is given without device and mesh")
    found = [device_of(place) for place in places]
    with heads.of_options(options):
        name, graph, modules = frontend.traced(arguments, keywords)
    if mesh is not None:
        return _of_mesh(name, graph, found[0], options, mesh)
    if devices is None:
        return plan_graph(name, graph, found[0], options, modules)
    plans = (plan_graph(name, graph, place, options, modules) for place in found)
    return Sweep(name, tuple(_sweep.point_of(made, sizes or {}) for made in plans))


def _of_mesh(name: str, graph: Graph, device: Device, options: dict[str, Any], mesh: Any) -> MeshPlan:
    from .mesh import Mesh, plan_mesh

    if not isinstance(mesh, Mesh):
        raise TypeError(f"kfusion.plan: mesh must be a kfusion.Mesh, got {type(mesh).__name__}")
    return plan_mesh(name, graph, device, options, mesh)
