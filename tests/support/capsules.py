"""DLPack producers that export whatever they are told to, made with ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

FLOAT32 = (2, 32, 1)  # type code, bits, lanes

_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


def _numbers(values: Sequence[int] | None) -> Any:
    return None if values is None else (ctypes.c_int64 * max(len(values), 1))(*values)


class Producer:
    """The memory of `array`, exported as the keywords say; `says` are its attributes (shape, dtype, device)."""

    def __init__(self, array: np.ndarray, says: dict[str, Any] | None = None, **export: Any) -> None:
        says = says or {}
        self.array = array
        self.shape = says.get("shape", array.shape)
        self.dtype = says.get("dtype", array.dtype)
        self.device = says.get("device", (1, 0))
        self.export = export
        self.exports = 0
        self._alive: list[Any] = []  # capsules are borrowed until the test is over

    def next_export(self) -> dict[str, Any]:
        """What the next capsule holds."""
        return self.export

    def __dlpack__(self, **keywords: Any) -> Any:
        self.exports += 1
        e = {
            "data": self.array.ctypes.data,
            "device": (1, 0),
            "dtype": FLOAT32,
            "shape": self.array.shape,
            "strides": None,
            "byte_offset": 0,
        } | self.next_export()
        ndim = e.get("ndim", len(e["shape"] or ()))
        shape, strides = _numbers(e["shape"]), _numbers(e["strides"])
        tensor = _Tensor(e["data"], *e["device"], ndim, *e["dtype"], shape, strides, e["byte_offset"])
        managed = _Managed(tensor, None, None)
        self._alive += [managed, shape, strides]
        return _new(ctypes.addressof(managed), b"dltensor", None)

    def __dlpack_device__(self) -> Any:
        return self.device


class Changing(Producer):
    """Exports one layout after the other, and then the last one for ever."""

    def __init__(self, array: np.ndarray, *exports: dict[str, Any], says: dict[str, Any] | None = None) -> None:
        super().__init__(array, says)
        self.layouts = list(exports)

    def next_export(self) -> dict[str, Any]:
        """The next layout."""
        return self.layouts[min(self.exports, len(self.layouts)) - 1]
