"""How a function of torch's that is made of primitives enters: one stage, in the dtypes in which torch computes it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from .._graph.values import is_weak, tracer_of
from .._spec import FLOATS
from .promoted import narrow, rounded, together
from .torch_functions import dtype_of, named

Tensor: TypeAlias = Any
"""Annotates the parameters that are tensors and promote among themselves."""

_WANTED = {"floats": "floats"} | dict.fromkeys(("numbers", "numbers made floats"), "numbers other than bools")


def computed(*names: str, takes: str = "floats", same: bool = False, method: bool = False) -> Callable[..., Any]:
    """Enters a function of a library's parameters under torch's names for it.

    The function sees tensors of one dtype; half types are float32 there, and the results are rounded to them once, as
    in torch's own kernels.

    Args:
        names: torch's names; the first is the stage's.
        takes: "floats", "numbers" (not bools alone), "anything", "made floats" (integers and bools become float32), or
            "numbers made floats" (no bools at all).
        same: whether all tensors must have one dtype.
        method: whether tensors have a method of that name.
    """

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)
        annotations = {n: str(v.annotation) for n, v in signature.parameters.items()}
        tensors = [n for n, annotation in annotations.items() if annotation.startswith("Tensor")]
        numbers = [n for n in tensors if annotations[n].endswith("| float")]  # which torch takes as they are

        @functools.wraps(function)
        def computed_function(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            given = {n: bound.arguments[n] for n in tensors if bound.arguments.get(n) is not None}
            _require_dtypes(names[0], given, takes, same)
            tracer = tracer_of(*given.values())
            assert tracer is not None
            lifted = {n: tracer.lift(v, "torch", f"{n} of torch.{names[0]}") for n, v in given.items()}
            cast = [n for n in lifted if n not in numbers or not (is_weak(lifted[n]) or lifted[n].ndim == 0)]
            lifted |= zip(cast, rounded([lifted[n] for n in cast], floats="made floats" in takes), strict=True)
            with tracer.stage(names[0]):
                same_dtype, dtype = together(list(lifted.values()), floats="made floats" in takes)
                bound.arguments |= dict(zip(lifted, same_dtype, strict=True))
                return narrow(function(*bound.args, **bound.kwargs), dtype)

        return named(*names, method=method)(computed_function)

    return enter


def _require_dtypes(name: str, given: Mapping[str, Any], takes: str, same: bool) -> None:
    dtypes = [dtype_of(v) for v in given.values()]
    arrays = dict.fromkeys(d for d in dtypes if d not in ("int", "float"))
    if same and len(arrays) > 1:
        raise TypeError(f"kfusion.{name}: torch wants tensors of one dtype, got {' and '.join(arrays)}")
    is_one = {"floats": any(d in FLOATS for d in dtypes), "numbers": any(d != "bool" for d in dtypes)}
    fits = is_one.get(takes, "bool" not in dtypes)
    if takes in _WANTED and not fits:
        raise TypeError(f"kfusion.{name}: torch wants {_WANTED[takes]}, got {' and '.join(dict.fromkeys(dtypes))}")
