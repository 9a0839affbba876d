"""Traced values that follow torch: the methods and attributes of its tensors."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from typing import Any

from .._graph.source import NotTraced
from .._graph.values import STATE, Traced
from .._ops.views import reshape
from .._spec import INTEGERS
from . import aten_rows as aten_rows  # enters its operators
from . import autocast, backward_hooks, dtype_names, library_calls, refusals, torch_composites, torch_layouts
from . import torch_activations as torch_activations  # enters its functions
from . import torch_batch_norms as torch_batch_norms
from . import torch_classes as torch_classes
from . import torch_complex as torch_complex
from . import torch_dropout as torch_dropout
from . import torch_elementwise as torch_elementwise
from . import torch_joins as torch_joins
from . import torch_maps as torch_maps
from . import torch_nn as torch_nn
from . import torch_products as torch_products
from . import torch_reductions as torch_reductions
from . import torch_views as torch_views
from .dispatch import Dispatched
from .indexing import dtype_of, getitem
from .library_answers import require_fitting
from .library_checks import compared
from .torch_functions import FUNCTIONS, NO_METHODS, torch_function
from .traced import BINARY, COMPARISONS, UNARY

# Methods that say what any tensor that lies so says, whatever is in it.
_OF_ANY_SUCH = (
    "element_size",
    "is_contiguous",
    "is_conj",
    "is_inference",
    "is_neg",
    "is_signed",
    "stride",
)
# Methods that look at memory or at gradients.
_NEVER = ("apply_", "as_strided", "as_strided_", "backward", "data_ptr", "map_", "pin_memory",
          "resize_", "resize_as_", "retain_grad", "set_", "share_memory_", "storage",
          "storage_offset", "storage_type", "untyped_storage")  # fmt: skip
_OF_PYTHON = {op: name for name, (_, op) in BINARY.items()} | {op: name for name, op in (COMPARISONS | UNARY).items()}
_OF_PYTHON |= {"bitwise_and": "and_", "bitwise_or": "or_", "matmul": "matmul"}
_OPERATORS = {"equal": "eq"}  # torch.equal is another function
_FUNCTIONS = _OPERATORS | {"power": "pow", **{f"{s}_shift": f"bitwise_{s}_shift" for s in ("left", "right")}}


class TorchValue(Dispatched, library="torch"):
    """A traced torch tensor."""

    __slots__ = ()

    @classmethod
    def _made_as(cls) -> type[Traced]:
        torch = sys.modules.get("torch")
        return _WithoutTorch if torch is None else _tensor_class(torch)

    def __getattr__(self, name: str) -> Any:
        """What tensors have beyond FUNCTIONS: methods are calls of the library."""
        found = getattr(getattr(sys.modules.get("torch"), "Tensor", None), name, None)
        if name.startswith("__") or found is None or name in _NEVER or refusals.is_impossible(name):
            return super().__getattr__(name)
        if name in _OF_ANY_SUCH:
            return lambda *args, **kwargs: torch_layouts.said(self, lambda t: found(t, *args, **kwargs))
        if callable(found):
            return lambda *args, **kwargs: torch_composites.called(f"Tensor.{name}", (self, *args), kwargs, found)
        if torch_layouts.is_tensor(self, name):
            return library_calls.torch_call(operator.attrgetter(name), f"torch.Tensor.{name}", (self,), {})
        return torch_layouts.said(self, operator.attrgetter(name))

    def __getitem__(self, key: Any) -> Any:
        return compared("torch.getitem", operator.getitem, (self, key), {}, lambda: self._item(key))

    def _item(self, key: Any) -> Any:
        try:
            made = getitem(self, key)
        except NotTraced:
            return library_calls.torch_call(operator.getitem, "torch.getitem", (self, key), {})
        if any(map(_is_one_index, key if isinstance(key, tuple) else (key,))):  # of which torch makes a view
            return self._tracer.value(self._tracer.node(made), self._memory)
        return made

    def _set(self, key: Any, value: Any) -> None:
        require_fitting(operator.setitem, "torch.setitem", (self, ..., value), {})
        super()._set(key, value)

    def _assign(self, key: Any, value: Any) -> None:
        if _is_one_index(key):  # torch would look at it to make a view, and write to that
            key = reshape(self._tracer.lift(key, self._library), (1,))
            value = value.to(self.dtype) if hasattr(value, "to") else value
        library_calls.torch_call(library_calls.assign, "torch.setitem", (self, key, value), {})

    def _operation(self, op: str, *operands: Any) -> Any:
        name = _OPERATORS.get(op, op)
        if any(isinstance(v, complex) or dtype_names.is_complex(v) for v in operands):
            return getattr(sys.modules["torch"], _FUNCTIONS.get(op, op))(*operands)
        function = getattr(operator, _OF_PYTHON[op])
        return compared(f"torch.{name}", function, operands, {}, lambda: self._operated(function, op, name, operands))

    def _operated(self, function: Any, op: str, name: str, operands: Any) -> Any:
        require_fitting(function, f"torch.{name}", operands, {})
        try:
            return FUNCTIONS[name](*autocast.cast(op, dict(enumerate(operands))).values())
        except (NotTraced, OverflowError):
            return library_calls.torch_call(function, f"torch.{name}", operands, {})

    def __float__(self) -> float:
        known = torch_batch_norms.batches_so_far(self)
        return known if known is not None else super().__float__()  # type: ignore[misc]

    @property
    def shape(self) -> Any:
        """The extents: a torch.Size where torch is imported."""
        return getattr(sys.modules.get("torch"), "Size", tuple)(super().shape)

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
        return not self.is_cpu

    @property
    def is_cpu(self) -> bool:
        """Whether the tensor is on the CPU."""
        return str(self.device) == "cpu"

    @property
    def is_meta(self) -> bool:
        """False: the tensor has data where the kernels run."""
        return False

    def get_device(self) -> int:
        """The number of the CUDA device, -1 on the CPU."""
        return -1 if self.is_cpu else int(str(self.device).partition(":")[2] or 0)

    @property
    def requires_grad(self) -> bool:
        """Whether gradients pass through it."""
        return self._tracer.requires_grad(self)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """The tensor itself, which requires grad from now on: what is made of it does, too."""
        if requires_grad != self.requires_grad:
            if not requires_grad or self._tracer.is_given(self):
                raise self._refused_attribute("requires_grad_")
            self._tracer.require_grad(self)
        return self

    @property
    def data(self) -> Any:
        """The tensor itself, for gradients a constant."""
        return self._tracer.constant(self) if self._tracer.takes_gradients else self

    @property
    def grad_fn(self) -> Any:
        """What hooks are registered with; None where no gradients pass through the tensor."""
        return backward_hooks.grad_fn(self)

    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        """`hook` is called with the gradient each time that is computed, and may give another one."""
        return backward_hooks.register(self, hook)

    @property
    def grad(self) -> None:
        """None: graphs compute forward only."""
        return None

    def size(self, dim: int | None = None) -> Any:
        """The extents (a torch.Size where torch is imported), or one of them."""
        return self.shape if dim is None else self.shape[dim]


def _is_one_index(key: Any) -> bool:
    """Whether key is an integer in a tensor without axes."""
    return getattr(key, "shape", None) == () and dtype_of(key) in INTEGERS and hasattr(type(key), "__torch_function__")


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
    which nobody looks at. What torch.Tensor has and TorchValue has not is removed.
    """
    nothing = torch.empty(0, device="meta")

    class Tensor(TorchValue, torch.Tensor):  # type: ignore[misc]
        __slots__ = STATE
        __hash__, __dir__ = object.__hash__, object.__dir__

        def __new__(cls) -> Any:
            return torch.Tensor._make_subclass(cls, nothing)

        @classmethod
        def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            """Refuses functions that torch calls without asking __torch_function__ (torch.range)."""
            raise refusals.refused(f"torch.{op._schema.name.partition('::')[2]}")

    for name in set(dir(torch.Tensor)) - set(dir(TorchValue)) - {"__dict__", "__torch_dispatch__", *STATE}:
        setattr(Tensor, name, property(functools.partial(_absent, name)))
    return Tensor
