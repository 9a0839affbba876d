"""torch's functions of sizes, where the graph is recorded for calls with other sizes: `torch.arange(x.shape[1])`.

Outside of that sizes are ints, and what torch makes of them are constants.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from .._graph.memory import c_strides
from .._graph.sizes import RecordedGraph, is_int, is_size, length
from .._graph.structure import leaves, walk
from .._graph.tracer import Traced, Tracer, place_of
from .._ops import views
from .._spec import dtype_name, is_array

FILLED: dict[str, Any] = {"zeros": 0.0, "ones": 1.0, "empty": 0.0}  # what is in an empty tensor is anybody's guess
_SAYS_NOTHING = {"requires_grad": False, "pin_memory": False, "out": None, "layout": None, "names": None}


def computes(tracer: Tracer, name: str, args: Any, kwargs: Any) -> bool:
    """Whether a function has sizes, and no traced values, to compute with."""
    if tracer.recorded is None:
        return False
    given = list(leaves((args, kwargs)))
    return any(map(_is_of_sizes, given)) and not any(isinstance(v, Traced) for v in given)


def _is_of_sizes(leaf: Any) -> bool:
    return is_size(leaf) or (isinstance(leaf, slice) and any(map(is_size, (leaf.start, leaf.stop, leaf.step))))


def computed(tracer: Tracer, function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
    """What it gives, a traced value.

    Raises:
        NotTheSame: it takes sizes for what they are.
    """
    recorded = tracer.recorded
    assert recorded is not None
    if name.startswith("new_"):  # of a tensor that is no traced value
        given = {"dtype": args[0].dtype, "device": args[0].device} | kwargs
        return _made(recorded, tracer, name.removeprefix("new_"), args[1:], given)
    if not any(map(is_array, leaves((args, kwargs)))):
        return _made(recorded, tracer, name, args, kwargs)
    lifted = walk((args, kwargs), lambda _, leaf: tracer.lift(leaf, "torch") if is_array(leaf) else leaf)
    if name.startswith("__"):
        return getattr(lifted[0][0], name)(*lifted[0][1:], **lifted[1])
    return function(*lifted[0], **lifted[1])


def _made(recorded: RecordedGraph, tracer: Tracer, name: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
    options = {k: v for k, v in kwargs.items() if k not in _SAYS_NOTHING or v != _SAYS_NOTHING[k]}
    dtype, device = options.pop("dtype", None), options.pop("device", None)
    if str(device or "cpu").removesuffix(":0") != place_of(tracer.inputs).removesuffix(":0"):
        raise recorded.failed()
    try:
        if name == "arange":
            return _arange(tracer, dtype, *args, **options)
        if name == "tensor":
            return full(tracer, dtype, (), *args, **options)
        if name == "full":
            return full(tracer, dtype, *args, **options)
        if name in FILLED:
            size = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
            return full(tracer, dtype, options.pop("size", size), FILLED[name], **options)
    except TypeError:  # of other parameters
        pass
    raise recorded.failed()


def _arange(tracer: Tracer, dtype: Any, start: Any, end: Any = None, step: Any = 1) -> Any:
    start, end = (0, start) if end is None else (start, end)
    if not all(map(is_int, (start, end, step))):
        raise TypeError("torch.arange of floats")
    x = tracer.of_library(tracer.add("iota", [length(start, end, step)], 0, "int64", "torch"), "torch")
    x = x if step == 1 else x * step
    x = x if start == 0 else x + start
    return x if dtype is None else views.astype(x, dtype)


def full(tracer: Tracer, dtype: Any, size: Any, fill_value: Any) -> Any:
    """A tensor of one value, no memory; dtype None: what torch makes of the value."""
    torch = sys.modules["torch"]
    if dtype is None:
        is_bool = isinstance(fill_value, bool)
        dtype = torch.bool if is_bool else torch.int64 if is_int(fill_value) else torch.get_default_dtype()
    scalar = tracer.add("cast", tracer.lift(fill_value, "torch"), dtype_name(dtype))
    shape = list(size) if isinstance(size, (tuple, list)) else [size]
    made = tracer.of_library(tracer.view("broadcast", scalar, shape), "torch")
    made._memory.strides = c_strides(shape)
    return made
