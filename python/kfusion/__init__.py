"""kfusion: what kernel fusion saves, proved by measuring, and the fused kernel itself.

import kfusion as kf

kf.savings(ops)                  # the calculator: bytes and predicted speedup of a chain of operations
kf.fused_relu_layernorm(x)       # one kernel, one pass in and one out; NumPy, torch, CuPy, JAX, CPU or CUDA
kf.unfused_relu_layernorm(x)     # the same as five kernels, for comparison
kf.compare(kf.fused_relu_layernorm, x)   # both checked and measured on your data
kf.relu(x), kf.softmax(x), ...   # on arrays at once; in a traced function, nodes of its graph
kf.elementwise("x, y: x * exp(-y) + 1")   # a function of arrays from an expression
kf.fuse(f)                       # f as few kernels: y = kf.fuse(f)(x); a decorator, too
kf.for_each(f)(ps, gs, lr)       # f of each p and g, written in place by one kernel; kf.optim: torch optimizers so
kf.grad(f), kf.value_and_grad(f)  # the gradient of f by its first argument, fused like any other function
kf.cross_entropy_(z, t)          # a loss whose gradient takes the memory of the logits
kf.register_torch_ops()          # the named kernels as torch.ops.kfusion.*; torch.compile(m, backend="kfusion")
kf.call(g, x, result=spec)       # inside f: any function g of arrays, run as it is between f's kernels
kf.plan(f, kf.spec((4096, 1024)))   # which kernels f becomes, what that saves and why they are not fewer
kf.sweep(f, kf.spec(("n", 1024)), n=[1, 8, 64])   # plans over sizes and devices; kf.plan(module, ...).top()
kf.measure_traffic(f, kf.spec((65536, 8192)))   # predicted bytes beside those of the GPU's counters (needs ncu)
kf.devices(); kf.device("H200")  # bandwidths, peaks and limits of GPUs and CPUs, each with its source
"""

from . import _core, _functions, _llvm, _named
from ._compare.compare import compare
from ._consuming import cross_entropy_
from ._core import (
    DeviceArray,
    DeviceError,
    Graph,
    __version__,
    empty_cache,
    get_num_threads,
    savings,
    set_num_threads,
    to_device,
)
from ._devices.device import Device
from ._devices.device_table import DeviceTable
from ._devices.devices import device, devices
from ._devices.measure import measure_device
from ._each import ForEach, for_each
from ._functions import *
from ._fuse import FusedFunction, fuse
from ._grad import grad, stop_gradient, value_and_grad, vjp
from ._graph.source import TraceError
from ._kept import Kept, KeptValue, kept_for_backward
from ._library_call import call
from ._named import *
from ._ops.expressions import elementwise
from ._plans.each_plan import EachPart, EachPlan
from ._plans.mesh import Exchange, Mesh, MeshPlan
from ._plans.plan import Plan, executors, trace
from ._plans.planned import plan
from ._plans.records import Group, Reason, Refusal
from ._plans.sweep import Sweep
from ._plans.sweeping import sweep
from ._spec import Spec, spec
from ._torch_operators import register_torch_ops
from ._traffic.traffic import KernelTraffic, Traffic, measure_traffic
from ._tune import Tuned, TunedKernel, tune

__all__ = [
    "Device",
    "DeviceArray",
    "DeviceError",
    "DeviceTable",
    "EachPart",
    "EachPlan",
    "Exchange",
    "ForEach",
    "FusedFunction",
    "Graph",
    "Group",
    "Kept",
    "KeptValue",
    "KernelTraffic",
    "Mesh",
    "MeshPlan",
    "Plan",
    "Reason",
    "Refusal",
    "Spec",
    "Sweep",
    "TraceError",
    "Traffic",
    "Tuned",
    "TunedKernel",
    "__version__",
    "call",
    "compare",
    "cross_entropy_",
    "device",
    "devices",
    "elementwise",
    "empty_cache",
    "executors",
    "for_each",
    "fuse",
    "get_num_threads",
    "grad",
    "kept_for_backward",
    "measure_device",
    "measure_traffic",
    "plan",
    "register_torch_ops",
    "savings",
    "set_num_threads",
    "spec",
    "stop_gradient",
    "sweep",
    "to_device",
    "trace",
    "tune",
    "value_and_grad",
    "vjp",
]
__all__ += [name for name in vars(_functions) if not name.startswith("_")]
__all__ += _named.__all__


_core.set_compiler(_llvm.compile_object, _llvm.identity)


def __getattr__(name: str) -> object:
    if name != "optim":
        raise AttributeError(f"module 'kfusion' has no attribute {name!r}")
    from importlib import import_module  # it needs torch, which kfusion does not

    return import_module("kfusion.optim")
