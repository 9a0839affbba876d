"""Functions without a row that torch makes of operators with one (einsum, kron, tensordot): torch runs them on tensors
that stand for traced values, and the operators that these meet are traced, in one stage. torch binds the arguments.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

from .._graph.memory import c_strides
from .._graph.source import NotTraced, not_traced
from .._graph.structure import leaves, walk
from .._graph.values import Traced, tracer_of
from . import aten, library_answers, library_checks, library_trials
from .dtype_names import is_complex
from .torch_functions import FUNCTIONS, is_known, torch_function
from .torch_symbols import plain, symbol

_MOST_OPERATORS = 64  # of one function; recurrent networks have some for each step


def called(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], function: Any) -> Any:
    """What torch's function, or method "Tensor.where", gives of traced values: by its row, or by its operators'."""
    short = name.removeprefix("Tensor.")
    if not is_known(name) and _may_be_composite(short, function) and _consists_of_traced(function, args, kwargs):
        build = functools.partial(_taken_apart, function, short, args, kwargs)
        with contextlib.suppress(NotTraced):
            return library_checks.compared(f"torch.{short}", function, args, kwargs, build)
    return torch_function(name, args, kwargs, function)


@functools.cache
def _may_be_composite(name: str, function: Any) -> bool:
    """Whether a function of torch's is no single operator without a row."""
    torch = sys.modules["torch"]
    if not str(getattr(function, "__module__", None) or "torch").startswith("torch"):
        return False  # somebody's, who would see the stand-ins
    if name.startswith(("_", "native_")):
        return False  # of torch's own, whose checks and further results differ by device
    found = (getattr(torch.ops.aten, prefix + name, None) for prefix in ("", "linalg_", "special_", "fft_"))
    packet = next((p for p in found if p is not None), None)
    return packet is None or name in aten.ROWS or any(_is_composite(torch, packet, o) for o in packet.overloads())


def _is_composite(torch: Any, packet: Any, overload: str) -> bool:
    name = packet._qualified_op_name + (f".{overload}" if overload != "default" else "")
    with contextlib.suppress(RuntimeError):  # of operators that take no tensors
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))
    return False


def _consists_of_traced(function: Any, args: Any, kwargs: Any) -> bool:
    """Whether the operators that the function calls on tensors without data all have ops in a graph, and none writes
    to an argument.
    """
    if any(map(is_complex, leaves((args, kwargs)))):
        return False
    met = library_trials.operators_met()
    with sys.modules["torch"]._C.DisableTorchFunction():
        try:
            stand_ins = library_answers.on_stand_ins(function, args, kwargs, within=met)[1]
        except Exception:  # which the call itself raises
            return False
        is_written = any(t._version > 1 for t in stand_ins)  # 1: they were filled
    return len(met.operators) <= _MOST_OPERATORS and not is_written and all(map(_is_known_operator, met.operators))


def _is_known_operator(op: Any) -> bool:
    name, torch = op._schema.name.partition("::")[2], sys.modules["torch"]
    if op._schema.is_mutable:
        return name[:-1] in FUNCTIONS and torch.Tag.inplace_view not in op.tags
    return name not in aten.RANDOM and aten.knows(op)


def _taken_apart(function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
    torch = sys.modules["torch"]
    tracer: Any = tracer_of(*leaves((args, kwargs)))
    library_answers.require_fitting(function, f"torch.{name}", args, kwargs)
    kind, wants_gradients = _stand_in(torch), torch.is_grad_enabled()

    def dispatched(op: Any, args: Any, kwargs: Any) -> Any:
        with torch._C._EnableTorchFunction(), torch.set_grad_enabled(wants_gradients):
            return walk(aten.called(op, *walk((args, kwargs), traced)), shown)

    def traced(_: str, leaf: Any) -> Any:
        return leaf.value if isinstance(leaf, kind) else plain(leaf)

    def shown(_: str, leaf: Any) -> Any:
        return kind(leaf, dispatched) if isinstance(leaf, Traced) else symbol(leaf)

    with tracer.stage(name), tracer.taking_apart(), torch._C.DisableTorchFunction(), torch.no_grad():
        try:
            made = walk(function(*walk(args, shown), **walk(kwargs, shown)), traced)
        except Exception as error:  # the library's call raises what the user is to see
            raise not_traced(f"torch.{name} is not traced: {error}") from None
    if not any(isinstance(v, Traced) for v in leaves(made)):
        raise not_traced(f"torch.{name} gives no tensor")
    return library_answers.settled(function, f"torch.{name}", args, kwargs, made)


@functools.cache
def _stand_in(torch: Any) -> Any:
    class StandIn(torch.Tensor):  # type: ignore[misc]
        """A tensor without data that stands for a traced value; what operators it meets is said to `dispatched`."""

        __slots__ = ("dispatched", "value")
        __torch_function__ = torch._C._disabled_torch_function_impl

        def __new__(cls, value: Any, dispatched: Any) -> Any:
            shape = tuple(map(symbol, value.shape))
            known = value._tracer.strides(value)
            strides = tuple(map(symbol, c_strides(value.shape) if known is None else known))
            dtype = getattr(torch, value._dtype)
            made = torch.Tensor._make_wrapper_subclass(cls, shape, strides, dtype=dtype, device=value.device)
            made.value, made.dispatched = value, dispatched
            return made

        @classmethod
        def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            first = next(v for v in leaves((args, kwargs)) if isinstance(v, cls))
            return first.dispatched(op, args, kwargs or {})

    return StandIn
