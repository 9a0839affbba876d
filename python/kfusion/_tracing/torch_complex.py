"""Complex numbers in traced torch functions: pairs of floats along a last axis more, as torch.view_as_real sees them.

The pairs are a value of the graph like any other. A function of complex numbers is torch's own, on a view of the pairs
as complex numbers; a few that are no more than arithmetic are made of the pairs.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from typing import Any

from .._graph.source import not_traced
from .._graph.structure import leaves
from .._graph.values import Traced
from .._ops import joins
from .._ops import primitives as p
from .._ops.gradients import taken, with_derivatives
from .._spec import is_array
from . import dtype_names, library_calls, library_trials
from .stored_numbers import STORED, makes_numbers, numbers, torch_numbers, torch_seen
from .traced import BINARY, COMPARISONS

# Methods that say what any tensor of that shape and dtype says.
_ASKED = (
    "is_complex",
    "is_floating_point",
    "dim",
    "size",
    "numel",
    "ndimension",
    "nelement",
    "element_size",
    "__len__",
)
_OF_PLACES = ("device", "is_cpu", "is_cuda", "is_meta")
_OPERATORS = {f"__{kind}{name}__" for name in (*BINARY, "matmul") for kind in ("", "r", "i")}
_OPERATORS |= {f"__{name}__" for name in COMPARISONS}
_FORWARD = {f"__r{name}__": f"__{name}__" for name in (*BINARY, "matmul")}
_FORMULAS: dict[str, Callable[..., Any]] = {}


@makes_numbers("torch")
def made(stored: Traced, dtype: str = "complex") -> Any:
    """The numbers of a dtype that a value stands for, by default complex ones: a tensor without data."""
    torch = sys.modules["torch"]
    shown = torch_seen(library_trials.without_data(stored), dtype)
    number = torch.Tensor._make_subclass(_class(torch), shown)
    number.pairs = stored
    return number


def returned(number: Any) -> tuple[Traced, Callable[[Any], Any]]:
    """The value that a traced function returns for such numbers, and what makes numbers of that value's array.

    A kernel that copies it keeps the bits of pairs and of integers, but not of what stands for small integers as bools
    or half types: those become int32 before.
    """
    torch, dtype = sys.modules["torch"], dtype_names.name_of_dtype(number)
    if STORED[dtype] not in ("bool", "float16"):
        return number.pairs, functools.partial(torch_seen, dtype=dtype)
    wide = library_calls.torch_call(torch.Tensor.to, "torch.to", (number, torch.int32), {})
    return wide, lambda array: array.to(getattr(torch, dtype))


@functools.cache
def _class(torch: Any) -> Any:
    class ComplexTensor(torch.Tensor):  # type: ignore[misc]
        """Traced complex numbers. `pairs` is the traced value that they are made of."""

        __kfusion_traced__ = __kfusion_complex__ = True

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return _called(function, args, kwargs or {})

        def __repr__(self) -> str:
            return f"<traced {dtype_names.name_of_dtype(self)}>"

    for name in _OPERATORS & set(dir(torch.Tensor)):
        setattr(ComplexTensor, name, _operator(*(getattr(torch.Tensor, n) for n in (name, _FORWARD.get(name, name)))))
    return ComplexTensor


def _operator(function: Any, forward: Any) -> Callable[..., Any]:
    """Python's operator. torch's own would make of our TypeErrors that there is no such operator. Of a subclass Python
    asks the reflected one first, which torch does not have of two tensors: then it is `forward`.
    """

    def called(x: Any, y: Any) -> Any:
        is_reflected = forward is not function and is_array(y)
        return _called(forward, (y, x), {}) if is_reflected else _called(function, (x, y), {})

    return called


def _called(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    torch, name = sys.modules["torch"], getattr(function, "__name__", "forward")
    if name == "__get__":
        name = function.__self__.__name__
        if name in _OF_PLACES:
            return getattr(args[0].pairs, name)
        with torch._C.DisableTorchFunctionSubclass():
            shown = function(*args)
        if not isinstance(shown, torch.Tensor):
            return shown
        function, args = operator.attrgetter(name), args[:1]
    if name in _ASKED:
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)
    if name == "contiguous":  # which is a copy or not by how the tensor itself lies
        return numbers("torch", args[0].pairs.contiguous(**kwargs), dtype_names.name_of_dtype(args[0]))
    given = [leaf for leaf in leaves((args, kwargs)) if dtype_names.is_complex(leaf)]
    formula = _FORMULAS.get(name) if all(n.dtype.is_complex for n in given) else None
    found = NotImplemented if formula is None or kwargs else formula(*args)
    return library_calls.torch_call(function, f"torch.{name}", args, kwargs) if found is NotImplemented else found


def _form(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        _FORMULAS.update(dict.fromkeys(names, function))
        return function

    return enter


def _parts(z: Any) -> tuple[Any, Any]:
    return z.pairs[..., 0], z.pairs[..., 1]


def _joined(real: Any, imag: Any) -> Any:
    return made(joins.stack([real, imag], -1))


@_form("view_as_real")
def _view_as_real(z: Any) -> Any:
    return z.pairs


@_form("real")
def _real(z: Any) -> Any:
    return _parts(z)[0]


@_form("imag")
def _imag(z: Any) -> Any:
    return _parts(z)[1]


@_form("abs", "absolute", "__abs__")
def _abs(z: Any) -> Any:
    """The absolute value; unlike that of hypot, its gradient at 0 is 0."""
    y = p.MAPS["hypot"](*_parts(z))
    length = p.where(y == 0, 1.0, y) if taken(y) else y
    return with_derivatives(y, *((part, part / length) for part in _parts(z)))


@_form("conj")
def _conj(z: Any) -> Any:
    real, imag = _parts(z)
    return _joined(real, -imag)


@_form("mul", "multiply", "__mul__", "__rmul__")
def _mul(x: Any, y: Any) -> Any:
    """The product of complex numbers of one precision."""
    tracer = next(v for v in (x, y) if dtype_names.is_complex(v)).pairs._tracer
    x, y = (torch_numbers(v, tracer) if is_array(v) and v.is_complex() else v for v in (x, y))
    both = dtype_names.is_complex(x) and dtype_names.is_complex(y)
    if not both or x.pairs._dtype != y.pairs._dtype:
        return NotImplemented
    (a, b), (c, d) = _parts(x), _parts(y)
    return _joined(a * c - b * d, a * d + b * c)


def view_as_complex(input: Any) -> Any:
    """Means torch.view_as_complex."""
    if input.shape[-1:] != (2,) or input._dtype not in ("float32", "float64"):
        raise not_traced("torch.view_as_complex is of pairs of float32 or float64", "write x.float() before")
    return made(input)
