"""What torch says of a call that kernels compute: the dtypes of its results, and which arguments share their memory.

It is asked on tensors without data, where tracing cannot know by itself: where arguments are of several dtypes, and
where a result shares an argument's memory, which torch may copy (`x.to(dtype, copy=True)`, `F.pad(x, (0, 0))`).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .._graph.memory import c_strides
from .._graph.number import is_number, value_of
from .._graph.sizes import is_size, of_call
from .._graph.source import not_traced, user_line
from .._graph.structure import leaves, walk
from .._graph.values import Traced, tracer_of
from .._spec import is_array
from . import autocast, library_trials, randomness, ranges
from .dtype_names import is_complex, name_of, name_of_dtype
from .indexing import dtype_of


class StandIns:
    """The arguments of a call with arrays made by `make` in place of traced values, and by `other` of all else."""

    def __init__(self, arguments: Any, make: Callable[[Traced], Any], other: Callable[[Any], Any]) -> None:
        self.values: list[Traced] = []
        self.arrays: list[Any] = []
        self._make = make
        self._other = other
        self.args, self.kwargs = walk(arguments, self._visit)

    def _visit(self, _: str, leaf: Any) -> Any:
        if is_number(leaf):
            return value_of(leaf)
        if is_size(leaf):
            return of_call(leaf, 0)
        if not isinstance(leaf, Traced):
            return self._other(leaf)
        known = next((a for v, a in zip(self.values, self.arrays, strict=True) if v is leaf), None)
        if known is None:
            self.values.append(leaf)
            self.arrays.append(known := self._make(leaf))
        return known


def settled(function: Any, name: str, args: Any, kwargs: Any, made: Any) -> Any:
    """`made` of function(*args, **kwargs), with memory of its own where torch copies.

    Raises:
        NotTraced: torch gives it in another dtype.
    """
    given, results = list(leaves((args, kwargs))), list(leaves(made))
    if function is None or not all(isinstance(r, Traced) for r in results) or any(map(is_complex, given)):
        return made
    shared = [v for v in given if isinstance(v, Traced) and any(r._memory is v._memory for r in results)]
    is_mixed = len({dtype_of(v) for v in given if isinstance(v, Traced) or is_array(v)}) > 1
    if not (shared or is_mixed):
        return made
    device = "cpu" if name.removeprefix("torch.") in library_trials.ONLY_OF_DATA else "meta"
    answers = [_asked(function, args, kwargs, device, order) for order in _orders(shared)]
    if any(len(a) != len(results) for a in answers):
        return made
    if autocast.active(library_trials.device_of(results)) is None:
        _require_dtypes(name, results, [dtype for dtype, _ in answers[0]])
    is_copy = {id(r): all(a[i][1] for a in answers) for i, r in enumerate(results)}
    if not any(is_copy[id(r)] and any(r._memory is v._memory for v in shared) for r in results):
        return made
    return walk(made, lambda _, r: r._tracer.copy(r) if is_copy[id(r)] else r)


def _require_dtypes(name: str, results: Sequence[Traced], wanted: Sequence[str]) -> None:
    for result, dtype in zip(results, wanted, strict=True):
        if result._dtype != dtype:
            what = f"{name} of these dtypes gives {dtype}, and kernels would compute it in {result._dtype}"
            raise not_traced(what, f"write the cast to {dtype}")


def _orders(shared: Sequence[Traced]) -> Sequence[int]:
    """The orders that arrays which lie in an unknown way are tried in: 0 has the last axis innermost, 1 the second, as
    images have it.
    """
    return (0,) if all(v._tracer.strides(v) is not None for v in shared) else (0, 1)


_NOWHERE = contextlib.nullcontext()


def _asked(function: Any, args: Any, kwargs: Any, device: str, order: int) -> list[tuple[str, bool]]:
    """The dtype of each result, and whether it is no view of an argument; nothing where torch does not say."""
    torch = sys.modules["torch"]
    with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
        found, arrays = on_stand_ins(function, args, kwargs, device, order)
        tensors = [t for t in leaves(found) if isinstance(t, torch.Tensor)]
        return [(name_of_dtype(t), not any(library_trials.shares_memory(t, a) for a in arrays)) for t in tensors]
    return []


def on_stand_ins(
    function: Any, args: Any, kwargs: Any, device: str = "meta", order: int = 0, within: Any = _NOWHERE
) -> tuple[Any, list[Any]]:
    """What function(*args, **kwargs) gives, within a context, of tensors of ones in place of traced values; and these
    tensors. It is called where torch tells nobody of its functions.
    """
    torch = sys.modules["torch"]
    tracer: Any = tracer_of(*leaves((args, kwargs)))

    def make(value: Traced) -> Any:
        shape, strides = of_call(tuple(value.shape), 0), value._tracer.strides(value)
        lying = c_strides(shape) if strides is None or 0 in shape else of_call(tuple(strides), 0)
        if strides is None and order and len(shape) > 1:
            lying = torch.empty((shape[0], *shape[2:], shape[1]), device="meta").movedim(-1, 1).stride()
        return torch.empty_strided(shape, lying, dtype=getattr(torch, value._dtype), device=device).fill_(1)

    def other(leaf: Any) -> Any:
        is_place = isinstance(leaf, (str, torch.device)) and str(leaf).partition(":")[0] in ("cpu", "cuda")
        return leaf.to(device) if is_array(leaf) else device if is_place else leaf

    with tracer.trying(), torch.no_grad():
        stand_ins = StandIns((args, kwargs), make, other)
        with within:
            return function(*stand_ins.args, **stand_ins.kwargs), stand_ins.arrays


# ---- numbers that have no place in a dtype ----

_REFUSED = ("cannot be converted to type", "must be in range [")


def require_fitting(function: Any, name: str, args: Any, kwargs: Any) -> None:
    """Raises what torch raises where it converts a number of the call to a dtype that has no place for it.

    Torch is asked on small arrays, where a number is beyond the range of an array's dtype. A number among the traced
    function's arguments is compared with that range in each call, where torch converts it.
    """
    given = list(leaves((args, kwargs)))
    plain = [v for v in given if isinstance(v, (int, float)) and not isinstance(v, bool) and not is_size(v)]
    numbers = [*filter(is_number, given), *(v for v in plain if not is_number(v))]
    if function is None or not numbers or any(map(is_complex, given)):
        return
    # Torch converts numbers to float32, too: of half types to compute with, of whole ones for a result of floats.
    named = (name_of(v) for v in given if _is_dtype(v))  # full_like(x, s, dtype=...)
    dtypes = ranges.by_range({"float32", *named, *(v._dtype for v in given if isinstance(v, Traced))})
    for number in filter(is_number, numbers):
        refusing = (d for d in dtypes if _refuses(function, name, args, kwargs, number, ranges.beyond(d)))
        if (dtype := next(refusing, None)) is not None:
            ranges.fits(number, dtype)
    if all(ranges.fits(value_of(v) if is_number(v) else v, dtypes[0]) for v in numbers):
        return
    if (error := _refusal(function, args, kwargs)) is not None:
        line = user_line()
        raise type(error)(f"kfusion.{name.removeprefix('torch.')}: {error}" + (f"\n  {line}" if line else ""))


def _is_dtype(value: Any) -> bool:
    return isinstance(value, getattr(sys.modules.get("torch"), "dtype", ()))


def _kind(value: Any) -> str:
    return str(value) if _is_dtype(value) else getattr(value, "_dtype", type(value).__name__)


_known_refusals: dict[Any, bool] = {}


def _refuses(function: Any, name: str, args: Any, kwargs: Any, number: Any, instead: float) -> bool:
    """Whether torch raises an error for another value of a number among the arguments."""
    described = walk((args, kwargs), lambda _, v: "this" if v is number else _kind(v))
    key = name, repr(described), instead
    if key not in _known_refusals:
        changed = walk((args, kwargs), lambda _, v: instead if v is number else v)
        _known_refusals[key] = _refusal(function, *changed) is not None
    return _known_refusals[key]


def _refusal(function: Any, args: Any, kwargs: Any) -> Exception | None:
    """The error that torch raises for a number of a call, if any: asked on arrays of at most two elements an axis.
    Arrays of one element are filled without that error.
    """
    torch = sys.modules["torch"]
    tracer: Any = tracer_of(*leaves((args, kwargs)))
    on_gpu = torch.cuda.is_available() and not torch.cuda.is_current_stream_capturing()

    def small(value: Any, dtype: Any) -> Any:
        device = str(value.device) if on_gpu else "cpu"
        return torch.ones([min(n, 2) for n in of_call(tuple(value.shape), 0)], dtype=dtype, device=device)

    def other(leaf: Any) -> Any:
        return small(leaf, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf

    if any(randomness.generators_among(leaves((args, kwargs)))):
        return None
    with tracer.trying(), torch._C.DisableTorchFunction(), torch.no_grad(), torch.random.fork_rng():
        try:
            stand_ins = StandIns((args, kwargs), lambda value: small(value, getattr(torch, value._dtype)), other)
            function(*stand_ins.args, **stand_ins.kwargs)
        except Exception as error:
            is_refused = isinstance(error, OverflowError) or any(text in str(error) for text in _REFUSED)
            return error if is_refused else None
    return None
