"""What tracing needs to know of an array: shape, dtype, whose rules it follows, where it lies."""

from __future__ import annotations

import contextlib
import math
import operator
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np

from . import _arrays, _core

ITEM_BYTES = {"bool": 1, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
DTYPES = tuple(ITEM_BYTES)
HALF = ("float16", "bfloat16")
FLOATS = (*HALF, "float32", "float64")
INTEGERS = ("int32", "int64")
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_MAX_DIMS = 64


@dataclass(frozen=True)
class Spec:
    """An array without data. Made by `kfusion.spec`."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    like: str = "numpy"
    device: str = "cpu"

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * ITEM_BYTES[self.dtype]

    def __repr__(self) -> str:
        extras = f", like={self.like!r}" * (self.like != "numpy") + f", device={self.device!r}" * (self.device != "cpu")
        return f"spec({self.shape}, {self.dtype!r}{extras})"


def spec(
    shape: SupportsIndex | Iterable[SupportsIndex], dtype: Any = "float32", *, like: str = "numpy", device: Any = "cpu"
) -> Spec:
    """Describes an array that need not exist, for planning.

    Args:
        shape: extents, or one integer for a vector; 0 is allowed.
        dtype: bool, int32, int64, float16, bfloat16, float32 or float64: a name, or NumPy's or torch's own object.
        like: "numpy" or "torch": whose methods and dtype rules the array follows (int64 / 7 is float64 in NumPy and
            float32 in torch; x.var() is biased in NumPy and unbiased in torch).
        device: "cpu", "cuda" or "cuda:1".

    Returns:
        A frozen, hashable `Spec`.

    Raises:
        ValueError: a negative extent, more than 64 axes, more than 2**63 - 1 bytes, an unknown library or device.
        TypeError: an extent that is no integer, or a dtype that is none of the seven.
    """
    extents = tuple(_extent(n) for n in (shape if isinstance(shape, Iterable) else (shape,)))
    if len(extents) > _MAX_DIMS:
        raise ValueError(f"kfusion.spec: shape must have at most {_MAX_DIMS} axes, got {len(extents)}")
    if like not in ("numpy", "torch"):
        raise ValueError(f'kfusion.spec: like must be "numpy" or "torch", got {like!r}')
    if not _DEVICE.fullmatch(str(device)):
        raise ValueError(f'kfusion.spec: device must be "cpu" or "cuda:0", "cuda:1", ..., got {str(device)!r}')
    place = "cuda:0" if str(device) == "cuda" else str(device)
    made = Spec(extents, dtype_name(dtype, "kfusion.spec: dtype"), like, place)
    if made.nbytes >= 2**63:
        raise ValueError(f"kfusion.spec: the array must have at most 2**63 - 1 bytes, got {made.nbytes}")
    return made


def _extent(n: Any) -> int:
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise TypeError(f"kfusion.spec: an extent must be an integer, got {n!r}")
    if (extent := operator.index(n)) < 0:
        raise ValueError(f"kfusion.spec: an extent must be >= 0, got {extent}")
    return extent


def dtype_name(dtype: Any, what: str = "kfusion: dtype") -> str:
    """The name of a dtype given as a name, a Python type, or NumPy's, ml_dtypes' or torch's own object.

    Args:
        dtype: the dtype; `what` names it in the message.

    Raises:
        TypeError: it is none of the seven.
    """
    name = dtype if isinstance(dtype, str) else str(dtype).rpartition(".")[2]  # "torch.float32"
    if name not in ITEM_BYTES and dtype is not None:
        with contextlib.suppress(TypeError):
            name = np.dtype(dtype).name
    if name not in ITEM_BYTES:
        raise TypeError(f"{what} must be one of {', '.join(ITEM_BYTES)}, got {name}")
    return name


def is_array(value: Any) -> bool:
    """Whether value is an array of some library. NumPy's scalars are not; traced values only claim to be one."""
    kind = type(value)
    if hasattr(kind, "__kfusion_traced__"):
        return False
    return issubclass(kind, np.ndarray) or hasattr(kind, "__dlpack__") or hasattr(kind, "__cuda_array_interface__")


def spec_of(array: Any, what: str) -> Spec:
    """The spec of an array of any library.

    Args:
        array: the array; `what` names it in messages.

    Raises:
        TypeError: a masked array, a matrix, or a dtype that is none of the seven.
    """
    require_plain(array, what)
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        function, _, argument = what.removeprefix("kfusion.").partition(": ")
        shape, dtype, place = _core.array_spec(array, function, argument)
        return Spec(shape, dtype, device=place)
    like = "torch" if _arrays.kind(array) == "torch" else "numpy"
    dtype = dtype_name(_arrays.dtype_name(array), f"{what}'s dtype")
    return Spec(tuple(map(int, array.shape)), dtype, like, _device(array))


def require_plain(array: Any, what: str) -> None:
    """Refuses what looks like an array and is none, or follows other rules than an array.

    Raises:
        TypeError: naming the conversion.
    """
    # Nobody has a masked array before numpy.ma is imported, which takes 25 ms; another thread may be about it.
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())
    if isinstance(array, masked):
        raise TypeError(f"{what} must be a plain array, got {type(array).__name__}; fill it first: x.filled(value)")
    if isinstance(array, np.ndarray) and type(array) not in (np.ndarray, np.memmap):
        raise TypeError(f"{what} must be a plain array, got {type(array).__name__}; convert it with numpy.asarray(x)")
    if not is_array(array):
        raise TypeError(f"{what} must be an array, got {described(array, what.rpartition(' ')[2])}")


def conversion_of(value: Any, name: str) -> str | None:
    """How a table, a labelled or a lazy array (pandas, xarray, dask) becomes a plain one; None for what is no array."""
    if hasattr(type(value), "to_numpy"):
        return f"{name}.to_numpy()"
    is_foreign = hasattr(type(value), "__array__") and not is_array(value) and not isinstance(value, np.generic)
    return f"numpy.asarray({name})" if is_foreign else None


def described(value: Any, name: str) -> str:
    """What a value is that is no array, and what to pass instead, for messages."""
    if isinstance(value, type):
        return f"the class {value.__name__}; pass an instance of it"
    kind = value.__class__.__name__  # of what stands for a float, float
    if isinstance(value, (list, tuple, int, float)):
        return f"{kind}; convert it with numpy.asarray({name})"
    if isinstance(value, Mapping):
        return f"{kind}; pass its arrays one by one"
    if hasattr(type(value), "__dask_graph__"):
        return f"{kind}; pass it to a fused function: kfusion.fuse(f)({name})"
    conversion = conversion_of(value, name)
    return f"{kind}; convert it with {conversion}" if conversion else kind


def _device(array: Any) -> str:
    if isinstance(array, np.ndarray):
        return "cpu"
    return f"cuda:{_arrays.cuda_index(array)}" if _arrays.on_cuda(array) else "cpu"


def bytes_or_none(who: str, memory: Any) -> int | None:
    """What `memory` is as a number of bytes."""
    if memory is None:
        return None
    if isinstance(memory, bool) or not hasattr(memory, "__index__"):
        raise TypeError(f"{who}: memory must be a number of bytes, got {memory!r}")
    if (count := operator.index(memory)) < 0:
        raise ValueError(f"{who}: memory must be a number of bytes, got {count}")
    return count
