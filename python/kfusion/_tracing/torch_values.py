"""Traced values that follow torch: the methods and attributes of its tensors."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .._graph.tracer import STATE, Traced
from . import autocast
from . import torch_nn as torch_nn  # enters its functions
from . import torch_views as torch_views
from .dispatch import Dispatched
from .torch_functions import FUNCTIONS, NO_METHODS, torch_function

_OPERATORS = {"equal": "eq"}  # torch.equal is another function


class TorchValue(Dispatched, library="torch"):
    """A traced torch tensor."""

    __slots__ = ()

    @classmethod
    def _made_as(cls) -> type[Traced]:
        torch = sys.modules.get("torch")
        return _WithoutTorch if torch is None else _tensor_class(torch)

    def _operation(self, op: str, *operands: Any) -> Any:
        autocast.require_unchanged(op, self)
        return FUNCTIONS[_OPERATORS.get(op, op)](*operands)

    @property
    def dtype(self) -> Any:
        """torch's dtype, or its name where torch is not imported."""
        return getattr(sys.modules.get("torch"), self._dtype, self._dtype)

    @property
    def device(self) -> Any:
        """torch's device, or its name where torch is not imported."""
        name = self._tracer.graph.node(self._tracer.node(self))["device"]
        return getattr(sys.modules.get("torch"), "device", str)(name)

    @property
    def is_cuda(self) -> bool:
        """Whether the tensor is on a CUDA device."""
        return str(self.device) != "cpu"

    @property
    def requires_grad(self) -> bool:
        """False: graphs compute forward only."""
        return False

    def size(self, dim: int | None = None) -> Any:
        """The extents (a torch.Size where torch is imported), or one of them."""
        return getattr(sys.modules.get("torch"), "Size", tuple)(self.shape) if dim is None else self.shape[dim]


def _method(name: str) -> Callable[..., Any]:
    def method(self: TorchValue, *args: Any, **kwargs: Any) -> Any:
        return torch_function(f"Tensor.{name}", (self, *args), kwargs)

    method.__name__ = name
    method.__doc__ = f"As torch.Tensor.{name}."
    return method


for _name in FUNCTIONS:
    if _name not in NO_METHODS:
        _name = _name.removeprefix("Tensor.").removeprefix("linalg_")
        if not hasattr(TorchValue, _name):
            setattr(TorchValue, _name, _method(_name))


class _WithoutTorch(TorchValue):
    __slots__ = ("__weakref__", *STATE)


def _absent(name: str, value: TorchValue) -> Any:
    return value.__getattr__(name)


@functools.cache
def _tensor_class(torch: Any) -> type[Traced]:
    """TorchValue as a torch.Tensor, so that isinstance and torch's own C++ take it for what it stands for.

    To claim the class would not do, as it does for NumPy: C++ would look for a tensor in our memory. So there is one,
    which nobody looks at. Of what torch.Tensor has and TorchValue has not, nothing is left.
    """
    nothing = torch.empty(0, device="meta")

    class Tensor(TorchValue, torch.Tensor):  # type: ignore[misc]
        __slots__ = STATE
        __hash__, __dir__ = object.__hash__, object.__dir__

        def __new__(cls) -> Any:
            return torch.Tensor._make_subclass(cls, nothing)

    for name in set(dir(torch.Tensor)) - set(dir(TorchValue)) - {"__dict__", "__torch_dispatch__", *STATE}:
        setattr(Tensor, name, property(functools.partial(_absent, name)))
    return Tensor
