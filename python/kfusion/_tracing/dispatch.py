"""The protocols by which NumPy, torch and CuPy hand their functions over to a traced value.

`np.*` means NumPy and `torch.*` torch, whatever the library of the value. torch is never imported here.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from . import aten, library_checks, numpy_fills, numpy_functions, numpy_ufuncs, torch_composites
from .refusals import refused, refused_keyword
from .traced import Value, has_labels

# Methods of tensors that say how a tensor is, which values know themselves.
_ANSWERED = ("size", "get_device", "element_size", "is_contiguous", "stride")


class Dispatched(Value):
    """A traced value that libraries' functions take."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if any(map(has_labels, inputs)):
            return NotImplemented
        called = ufunc if method == "__call__" else getattr(ufunc, method)
        build = functools.partial(numpy_ufuncs.array_ufunc, ufunc, method, inputs, kwargs)
        return library_checks.compared(f"numpy.{ufunc.__name__}", called, inputs, kwargs, build)

    def __array_function__(self, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if numpy_fills.is_fill(function):  # like=self, which is no argument here
            return numpy_fills.filled(self, function, args, kwargs)
        if any(hasattr(kind, "__kfusion_by_place__") for kind in types):
            return NotImplemented
        return numpy_functions.array_function(function, args, kwargs)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if aten.is_operator(function):
            return aten.called(function, args, kwargs or {})
        is_method = getattr(function, "__qualname__", "").partition(".")[0] in ("Tensor", "TensorBase")
        if is_method and function.__name__ in _ANSWERED and isinstance(args[0], Value):
            return getattr(args[0], function.__name__)(*args[1:], **(kwargs or {}))
        if isinstance(function, sys.modules["torch"].ScriptMethod):
            raise refused("torch.forward of TorchScript")  # whose parameters no call names
        return torch_composites.called("Tensor." * is_method + function.__name__, args, kwargs or {}, function)

    def __cupy_override_elementwise_kernel__(self, kernel: Any, *inputs: Any, **kwargs: Any) -> Any:
        name = str(kernel.name).removeprefix("cupyx_scipy_special_").removeprefix("cupy_")
        for keyword in kwargs:
            raise refused_keyword(f"cupy.{name}", keyword)
        return numpy_ufuncs.elementwise(name, f"cupy.{name}", inputs)
