"""What tracing needs to know of an array: shape, dtype, whose rules it follows, where it lies."""

from __future__ import annotations

import ast
import contextlib
import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, overload

import numpy as np

from . import _arrays, _core

ITEM_BYTES = {"bool": 1, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
DTYPES = tuple(ITEM_BYTES)
HALF = ("float16", "bfloat16")
FLOATS = (*HALF, "float32", "float64")
INTEGERS = ("int32", "int64")
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_MAX_DIMS = 64
_MAX_TEXT = 200  # of an extent


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
        return _text(self)


@dataclass(frozen=True)
class SymbolicSpec:
    """A `Spec` some of whose extents are texts of named sizes. Made by `kfusion.spec`."""

    shape: tuple[int | str, ...]
    dtype: str = "float32"
    like: str = "numpy"
    device: str = "cpu"

    @property
    def names(self) -> frozenset[str]:
        """The sizes that it names."""
        return frozenset().union(*(_names(n) for n in self.shape if isinstance(n, str)))

    def filled(self, sizes: Mapping[str, int]) -> Spec:
        """The Spec with numbers for the names.

        Raises:
            ValueError: a size has no number, or an extent is none: negative, or divided by 0.
        """
        require_sizes([self], sizes, "kfusion.spec")
        shape = [_extent(_computed(n, sizes)) if isinstance(n, str) else n for n in self.shape]
        return spec(shape, self.dtype, like=self.like, device=self.device)

    def __repr__(self) -> str:
        return _text(self)


def require_sizes(specs: Sequence[SymbolicSpec], sizes: Mapping[str, int], who: str) -> None:
    """Raises a ValueError that names all sizes of specs without a number."""
    lacking = [s for s in specs if s.names - sizes.keys()]
    if lacking:
        whose = f"{lacking[0]!r} needs numbers for its" if len(lacking) == 1 else "the specs need numbers for their"
        missing = sorted(frozenset().union(*(s.names for s in lacking)) - sizes.keys())
        raise ValueError(f"{who}: {whose} sizes: sizes={{{', '.join(f'{n!r}: 8' for n in missing)}}}")


def _text(spec: Spec | SymbolicSpec) -> str:
    extras = f", like={spec.like!r}" * (spec.like != "numpy") + f", device={spec.device!r}" * (spec.device != "cpu")
    return f"spec({spec.shape}, {spec.dtype!r}{extras})"


_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def _parsed(text: str) -> ast.expr:
    """An expression of names, integers, +, -, * and //.

    Raises:
        ValueError: it is another one.
    """
    wrong = ValueError(f'kfusion.spec: an extent must be a number, or names as in "batch" or "2 * seq", got {text!r}')
    try:
        tree = ast.parse(text[:_MAX_TEXT].strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise wrong from None
    for node in ast.walk(tree):
        is_number = isinstance(node, ast.Constant) and type(node.value) is int
        is_sum = isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC
        if not (is_number or is_sum or isinstance(node, (ast.Name, ast.operator, ast.expr_context))):
            raise wrong
    return tree


def _names(text: str) -> frozenset[str]:
    return frozenset(node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name))


def _computed(text: str, sizes: Mapping[str, int]) -> int:
    def value(node: Any) -> int:
        if isinstance(node, ast.BinOp):
            return _ARITHMETIC[type(node.op)](value(node.left), value(node.right))
        return _extent(sizes[node.id] if isinstance(node, ast.Name) else node.value)

    try:
        return value(_parsed(text))
    except ZeroDivisionError:
        raise ValueError(f"kfusion.spec: the extent {text!r} divides by 0") from None


@overload
def spec(  # type: ignore[overload-overlap]
    shape: SupportsIndex | Iterable[SupportsIndex], dtype: Any = ..., *, like: str = ..., device: Any = ...
) -> Spec: ...
@overload
def spec(
    shape: str | Iterable[SupportsIndex | str], dtype: Any = ..., *, like: str = ..., device: Any = ...
) -> SymbolicSpec: ...
def spec(shape: Any, dtype: Any = "float32", *, like: str = "numpy", device: Any = "cpu") -> Spec | SymbolicSpec:
    """Describes an array that need not exist, for planning.

    Args:
        shape: extents, or one integer for a vector; 0 is allowed. A text names a size, "batch", or is made of such
            names and integers by +, -, * and //, "2 * seq": `kfusion.plan(..., sizes={"batch": 8})` and
            `kfusion.sweep` give them numbers.
        dtype: bool, int32, int64, float16, bfloat16, float32 or float64: a name, or NumPy's or torch's own object.
        like: "numpy" or "torch": whose methods and dtype rules the array follows (int64 / 7 is float64 in NumPy and
            float32 in torch; x.var() is biased in NumPy and unbiased in torch).
        device: "cpu", "cuda" or "cuda:1".

    Returns:
        A frozen, hashable `Spec`; with names of sizes a `SymbolicSpec`, of which `filled(sizes)` makes one.

    Raises:
        ValueError: a negative extent, more than 64 axes, more than 2**63 - 1 bytes, an unknown library or device.
        TypeError: an extent that is no integer, or a dtype that is none of the seven.
    """
    given = shape if isinstance(shape, Iterable) and not isinstance(shape, str) else (shape,)
    extents = tuple(_symbolic(n) if isinstance(n, str) else _extent(n) for n in given)
    if len(extents) > _MAX_DIMS:
        raise ValueError(f"kfusion.spec: shape must have at most {_MAX_DIMS} axes, got {len(extents)}")
    if like not in ("numpy", "torch"):
        raise ValueError(f'kfusion.spec: like must be "numpy" or "torch", got {like!r}')
    if not _DEVICE.fullmatch(str(device)):
        raise ValueError(f'kfusion.spec: device must be "cpu" or "cuda:0", "cuda:1", ..., got {str(device)!r}')
    place = "cuda:0" if str(device) == "cuda" else str(device)
    kind = dtype_name(dtype, "kfusion.spec: dtype")
    if any(isinstance(n, str) for n in extents):
        return SymbolicSpec(extents, kind, like, place)
    made = Spec(extents, kind, like, place)  # type: ignore[arg-type]
    if made.nbytes >= 2**63:
        raise ValueError(f"kfusion.spec: the array must have at most 2**63 - 1 bytes, got {made.nbytes}")
    return made


def _symbolic(text: str) -> int | str:
    """The text of an extent, or the number that it is without names."""
    return text if _names(text) else _extent(_computed(text, {}))


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
        module = ".".join(type(value).__module__.split(".")[:2])
        run, plan = f"kfusion.fuse(f)({name})", f"kfusion.fuse(f).plan({name})"
        spec = f"kfusion.spec({name}.shape, {name}.dtype)"
        return f"{module}.{kind}; pass it to a fused function: {run}, or to plan: {plan}, or {spec}"
    conversion = conversion_of(value, name)
    return f"{kind}; convert it with {conversion}" if conversion else kind


def _device(array: Any) -> str:
    if isinstance(array, np.ndarray) or getattr(array, "is_meta", False) is True:  # torch's meta tensors are nowhere
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
