"""The memory of arrays that a function can reach, as it is before and after a trace: what NumPy alone writes there, and
what reaches a tensor past torch, no trace sees.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .. import _core

MOST_COMPARED_BY_CALLS = 1 << 20  # bytes of an array of NumPy's that calls compare with what a trace has seen
_MOST_COPIED = 1 << 24  # that can be put back
_MOST_COMPARED = 1 << 30
_WRITTEN = ("bool", "int32", "int64", "float16", "float32", "float64")  # dtypes of arguments that calls write to
_MOST_OF_TENSORS = 1 << 16  # of larger ones torch's count of changes is compared


class Changed(NamedTuple):
    """An array that a trace has changed. `may_be_kept`: calls compare what is in it, so that a trace may set it once.
    `as_argument`: each call can do the same to it as an argument of its own.
    """

    array: Any
    may_be_kept: bool
    as_argument: bool


class Elements:
    """What is in arrays now."""

    def __init__(self, arrays: Iterable[Any]) -> None:
        with as_they_are():
            made = (_Numpys(a) if isinstance(a, np.ndarray) else _Torchs(a) for a in arrays if _is_compared(a))
            self._before: list[_Numpys | _Torchs] = list(made)

    def changed(self) -> dict[int, Changed]:
        """Those in which something else is now, by id."""
        with as_they_are():
            return {id(before.array): before.change() for before in self._before if before.is_other()}

    def restore(self) -> None:
        """Puts back what was there, as far as it is known."""
        with as_they_are():
            for before in self._before:
                if before.is_other():
                    before.restore()

    @contextlib.contextmanager
    def again(self, who: str) -> Iterator[None]:
        """A context in which they have the elements that they had.

        Raises:
            RuntimeError: those of a large array are not known. `who` begins the message.
        """
        now = Elements(before.array for before in self._before)
        self.restore()
        try:
            if not all(before.is_back() for before in self._before):
                raise RuntimeError(f"{who}: a large array that it names was changed in place after the forward pass")
            yield
        finally:
            now.restore()


def as_they_are() -> contextlib.AbstractContextManager[Any]:
    """Where another trace looks at tensors, it does not see that we do."""
    torch = sys.modules.get("torch._C")  # another thread may be importing torch
    return getattr(torch, "DisableTorchFunction", contextlib.nullcontext)()


def _is_compared(array: Any) -> bool:
    if isinstance(array, np.ndarray):
        return not array.dtype.hasobject and array.dtype.kind != "T"  # strings of NumPy's lie elsewhere
    return type(array) is getattr(sys.modules.get("torch"), "Tensor", None) or type(array) is _parameter()


def _parameter() -> Any:
    return getattr(sys.modules.get("torch.nn.parameter"), "Parameter", None)


class _Numpys:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self._shape, self._strides, self._is_writeable = array.shape, array.strides, array.flags.writeable
        own = _plain(array)
        self._bytes = own.tobytes() if array.nbytes <= _MOST_COPIED else None
        self._digest = _core.digest(own) if _MOST_COPIED < array.nbytes <= _MOST_COMPARED else None

    def change(self) -> Changed:
        """What is to be known of the change."""
        is_plain = type(self.array) is np.ndarray and self.array.dtype.name in _WRITTEN and not self._looks_other()
        return Changed(self.array, self.array.nbytes <= MOST_COMPARED_BY_CALLS, is_plain and self._bytes is not None)

    def is_other(self) -> bool:
        if self._looks_other():
            return True
        own = _plain(self.array)
        if self._bytes is not None:
            return own.tobytes() != self._bytes
        return self._digest is not None and _core.digest(own) != self._digest

    def restore(self) -> None:
        array = self.array
        if array.shape != self._shape:
            array.shape = self._shape
        if self._bytes is not None and (own := _plain(array)).tobytes() != self._bytes:
            array.flags.writeable = True
            own[...] = np.frombuffer(self._bytes, own.dtype).reshape(own.shape)
        array.flags.writeable = self._is_writeable

    def is_back(self) -> bool:
        """Whether that was all."""
        return not self.is_other()

    def _looks_other(self) -> bool:
        array = self.array
        return (array.shape, array.strides, array.flags.writeable) != (self._shape, self._strides, self._is_writeable)


class _Torchs:
    def __init__(self, tensor: Any) -> None:
        self.array = tensor
        self._gradient = tensor.grad if tensor.is_leaf else None  # which keeps its id
        self._state, self._bytes = _state(tensor), _bytes(tensor)

    def change(self) -> Changed:
        """A trace knows what calls of torch write: this was no such call."""
        return Changed(self.array, may_be_kept=True, as_argument=False)

    def is_other(self) -> bool:
        return _state(self.array) != self._state or _bytes(self.array) != self._bytes

    def restore(self) -> None:
        if self._bytes is not None and _bytes(self.array) not in (None, self._bytes):
            ctypes.memmove(self.array.data_ptr(), self._bytes, len(self._bytes))

    def is_back(self) -> bool:
        """Whether that was all, but for torch's count of changes."""
        is_known = self._bytes is not None and self.array.shape == self._state[1]
        return _bytes(self.array) == self._bytes if is_known else _state(self.array) == self._state


def _plain(array: np.ndarray) -> np.ndarray:
    return array if type(array) is np.ndarray else array.view(np.ndarray)


def _state(tensor: Any) -> Any:
    """What torch knows of a tensor. One of inference mode has no count of changes."""
    try:
        version = 0 if tensor.is_inference() else tensor._version
        gradient = tensor.grad if tensor.is_leaf else None
        return version, tensor.shape, tensor.data_ptr(), tensor.requires_grad, id(gradient)
    except RuntimeError:  # it has no memory of its own: torch transforms a function with it
        return None


def of_tensor(tensor: Any) -> np.ndarray | None:
    """A tensor's elements for NumPy, in its memory; None where there are many, or NumPy cannot read them."""
    torch = sys.modules["torch"]
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.nbytes > _MOST_OF_TENSORS:
        return None
    own = tensor.detach()
    try:
        return (own.view(torch.int16) if own.dtype is torch.bfloat16 else own).numpy()  # type: ignore[no-any-return]
    except (TypeError, RuntimeError):
        return None


def _bytes(tensor: Any) -> bytes | None:
    """A small tensor's memory. NumPy is not asked: a tensor that it has seen cannot be resized any more."""
    if tensor.device.type != "cpu" or tensor.layout is not sys.modules["torch"].strided or not tensor.is_contiguous():
        return None
    size = tensor.numel() * tensor.element_size()
    return ctypes.string_at(tensor.data_ptr(), size) if size <= _MOST_OF_TENSORS and _state(tensor) else None
