"""`kfusion.fuse`: a plain function of arrays that runs as the kernels that its plan shows."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, overload

from . import _core, _running
from ._devices import device as find_device
from ._plan import Plan, pairs, plan_graph
from ._structure import leaves
from ._trace import signature_of, trace
from ._tracer import Traced

if TYPE_CHECKING:
    from ._device import Device

_WHO = "kfusion.fuse"
Pairs = Iterable[tuple[str, str]]


class FusedFunction:
    """What `kfusion.fuse` makes of a function: call it as the function itself.

    f(x, b)             the kernels of the function's plan; `out=` and `stream=` as for kfusion.fused_relu_layernorm
    f.unfused(x, b)     the same with one kernel per call inside
    f.plan(x, b)        the Plan that f(x, b) runs; nothing is computed
    f.source(x, b)      the CUDA C++ that would run; needs no GPU
    f.__wrapped__       the plain function

    It pickles by name, and works as a method.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._signature = signature_of(function)
        functools.update_wrapper(self, function)
        self._function = function
        self._options = options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result, computed by its plan's kernels."""
        if any(isinstance(leaf, Traced) for leaf in leaves((args, kwargs))):
            return self._function(*args, **kwargs)
        traced = trace(self._function, *args, **kwargs)
        return traced.returned(_core.run_graph(traced.graph, [i.array for i in traced.inputs], traced.name))

    @functools.cached_property
    def unfused(self) -> FusedFunction:
        """The function with one kernel per call inside, for comparison."""
        unfused = FusedFunction(self._function, self._options | {"fuse": False})
        unfused.__qualname__ += ".unfused"
        return unfused

    def plan(self, *args: Any, device: str | Device | None = None, **kwargs: Any) -> Plan:
        """The kernels that a call with these arguments runs, counted and priced. Nothing is computed.

        Args:
            args: as for the function itself, or specs for arrays.
            device: what to price on, as for `kfusion.plan`; None is the arrays' own device.
            kwargs: likewise.

        Returns:
            A `kfusion.Plan`.
        """
        traced = trace(self._function, *args, **kwargs)
        running = _running.device(_running.place_of(traced.inputs))
        return plan_graph(traced.name, traced.graph, running if device is None else find_device(device), self._options)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> str:
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<kfusion.fuse: {self.__qualname__}{self._signature}>"


@overload
def fuse(function: Callable[..., Any], *, allow: Pairs = (), forbid: Pairs = ()) -> FusedFunction: ...
@overload
def fuse(
    function: None = None, *, allow: Pairs = (), forbid: Pairs = ()
) -> Callable[[Callable[..., Any]], FusedFunction]: ...
def fuse(function: Callable[..., Any] | None = None, *, allow: Pairs = (), forbid: Pairs = ()) -> Any:
    """Makes a plain function of arrays run as few kernels.

    The function is traced at the first call with arguments of new shapes, dtypes or kinds, planned into kernels, and
    from then on those run: nothing of its Python is executed again. Results are of the arguments' kind of array.

    Args:
        function: of arrays (NumPy's, torch's, CuPy's, JAX's; on the CPU or a CUDA device); kf.*, NumPy's, torch's and
            CuPy's functions, operators and methods inside.
        allow: pairs of names of calls or ops, as `kfusion.plan` takes them: only these may share a kernel.
        forbid: pairs that may not.

    Returns:
        A `FusedFunction`; without a function (`@kf.fuse(forbid=...)`) a decorator that makes one.

    Raises:
        TypeError: function is not callable, or pairs are none.
        TraceError: a parameter is named `out` or `stream`, which the fused function adds itself.
    """
    options = {
        "allow": pairs("allow", allow, _WHO),
        "forbid": pairs("forbid", forbid, _WHO),
        "only_executable": True,
    }
    return (lambda f: FusedFunction(f, options)) if function is None else FusedFunction(function, options)
