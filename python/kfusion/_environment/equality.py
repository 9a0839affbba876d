"""Whether two traces of a call do one thing: what their graphs hold beside nodes is compared by what it holds."""

from __future__ import annotations

import functools
import re
import sys
import weakref
from threading import local
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from .._graph.inputs import Inputs
from .._graph.structure import ATOMS, attributes
from .._spec import is_array
from .calls import Prepared

_INPUT_NAME = re.compile(r'input\("(?:[^"\\]|\\.)*"')


def do_one_thing(x: Prepared, y: Prepared) -> bool:
    """Whether two traces of one call compute and return the same. False where that cannot be told."""
    try:
        return _equal(_done(x), _done(y), set())
    except RecursionError:
        return False


def _done(x: Prepared) -> list[Any]:
    given = [i.argument if i.argument >= 0 else i.array for i in x.inputs]
    text = _INPUT_NAME.sub("input(", str(x.graph.simplify()))
    return [text, given, x.results, x.written, x.instructions, x.parameters, list(x.calls)]


def _equal(x: Any, y: Any, compared: set[tuple[int, int]]) -> bool:
    kind = type(x)
    if x is y or (id(x), id(y)) in compared:
        return True
    if type(y) is not kind or issubclass(kind, Inputs) or hasattr(kind, "__kfusion_traced__"):
        return False  # traces and their values are other ones
    if kind in ATOMS:
        return repr(x) == repr(y)  # -0.0 is not 0.0, and NaN is NaN
    if is_array(x) or isinstance(x, np.generic):
        return _are_equal_arrays(x, y)
    compared.add((id(x), id(y)))
    parts, others = _parts(x), _parts(y)
    if parts is None or others is None:
        return (x == y) is True
    return len(parts) == len(others) and all(_equal(a, b, compared) for a, b in zip(parts, others, strict=True))


def _are_equal_arrays(x: Any, y: Any) -> bool:
    if isinstance(x, (np.ndarray, np.generic)):
        return bool(x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes())
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor) or x.requires_grad or y.requires_grad or x.device != y.device:
        return False
    return x.dtype == y.dtype and bool(torch.equal(x, y) and torch.equal(x.signbit(), y.signbit()))


def _parts(value: Any) -> list[Any] | None:
    """What decides what a value is; None where that is not known."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (tuple, list)):
        return list(value)
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__code__, value.__defaults__, value.__kwdefaults__, *cells]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, weakref.ref):
        return [value()]
    held = attributes(value)
    return [*held.keys(), *held.values()] if held or isinstance(value, local) else None
