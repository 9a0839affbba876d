"""What NumPy, torch, JAX and CuPy compute a graph's nodes with: the op table's own names, and what differs.

A library's function is found under one of the names of the op's row; the few that are missing are formulas of others.
"""

from __future__ import annotations

import functools
import importlib
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from .. import _core
from .._spec import FLOATS
from .._tracing.traced import BINARY, COMPARISONS
from . import natives

Function = Callable[..., Any]

_ROWS = {row["name"]: row for row in _core.op_table() if row["kind"] in ("map", "reduce")}
# Operators as the user writes them, so that Python's numbers may stand on either side.
_OPERATORS: dict[str, Function] = {op: getattr(operator, f"__{name}__") for name, (_, op) in BINARY.items()}
_OPERATORS |= {op: getattr(operator, name) for name, op in COMPARISONS.items()}
# What NumPy and its likes lack, of what they have (m).


def _philox(module: Any) -> Function:
    """Philox 4x32-10 of int64 arrays, products of which wrap."""
    low = 2**32 - 1

    def function(x: Any, y: Any, z: Any) -> Any:
        words = [(x >> 2) & low, (x >> 34) & low, y & low, (y >> 32) & low]
        keys = [z & low, (z >> 32) & low]
        for _ in range(10):
            a, b = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
            high = [(product >> 32) & low for product in (b, a)]
            words = [high[0] ^ words[1] ^ keys[0], b & low, high[1] ^ words[3] ^ keys[1], a & low]
            keys = [(keys[0] + 0x9E3779B9) & low, (keys[1] + 0xBB67AE85) & low]
        words = [module.where(x & 1 != 0, words[i + 1], words[i]) for i in (0, 2)]
        return module.where(x & 2 != 0, words[1], words[0])

    return function


_FORMULAS: dict[str, Callable[[Any], Function]] = {
    "rsqrt": lambda m: lambda x: 1 / m.sqrt(x),
    "relu": lambda m: lambda x: m.maximum(x, 0),
    "sigmoid": lambda m: lambda x: 1 / (1 + m.exp(-x)),
    "philox": _philox,
    "cbrt": lambda m: lambda x: m.sign(x) * m.abs(x) ** (1 / 3),
}


class Library:
    """A library like NumPy."""

    _erf = "scipy.special"
    _like = "numpy"  # whose functions it can call
    _names: ClassVar[Mapping[str, str]] = {}

    def __init__(self, name: str, module: Any) -> None:
        self.name, self.module = name, module
        self.natives: Mapping[str, natives.Native] = natives.of_module(module)

    def step(self, node: Mapping[str, Any]) -> Function:
        """What computes a node from its arguments' arrays.

        Raises:
            TypeError: the library has no such function.
        """
        op = node["op"]
        if op in _ROWS:
            row = _ROWS[op]
            return self.map(op) if row["kind"] == "map" else self.reduction(op, tuple(node["axes"]), node["keepdims"])
        if not hasattr(self, op):
            raise TypeError(f"{self.name} has no {op}")
        step: Function = getattr(self, op)(node)
        return step

    def map(self, op: str) -> Function:
        """A row of KF_MAP."""
        return _OPERATORS[op] if op in _OPERATORS else self.function(op)

    def reduction(self, op: str, axes: tuple[int, ...], keepdims: bool) -> Function:
        """A row of KF_REDUCE."""
        return functools.partial(self.function(op), axis=axes, keepdims=keepdims)

    def function(self, op: str) -> Function:
        """The library's own function, or a formula."""
        for name in self._spellings(op):
            if hasattr(self.module, name):
                found: Function = getattr(self.module, name)
                return found
        if op == "erf":
            return self.erf()
        if op not in _FORMULAS:
            raise TypeError(f"{self.name} has no {op}")
        return _FORMULAS[op](self.module)

    def erf(self) -> Function:
        """The error function, which stands elsewhere."""
        try:
            found: Function = importlib.import_module(self._erf).erf
        except ImportError:
            raise TypeError(f"{self.name} has no erf ({self._erf} has, where it is installed)") from None
        return found

    def _spellings(self, op: str) -> tuple[str, ...]:
        return (self._names[op],) if op in self._names else (op, *_ROWS[op]["other_names"])

    # ---- nodes that are no expression of elements, by name ----

    def constant(self, node: Mapping[str, Any]) -> Any:
        """A number, for `add` and its likes; NaN and infinity stand in graphs as text."""
        return float(node["value"]) if isinstance(node["value"], str) else node["value"]

    def number(self, value: Any, dtype: str) -> Any:
        """A number where only an array will do."""
        return self.module.asarray(value, dtype=self.dtype(dtype))

    def dtype(self, name: str) -> Any:
        """The library's object for a dtype."""
        return self.module.dtype(name)

    def cast(self, node: Mapping[str, Any]) -> Function:
        dtype = self.dtype(node["dtype"])
        return lambda x: x.astype(dtype)

    def transpose(self, node: Mapping[str, Any]) -> Function:
        axes = tuple(node["axes"])
        return lambda x: x.transpose(axes)

    def reshape(self, node: Mapping[str, Any]) -> Function:
        shape = tuple(node["shape"])
        return lambda x: x.reshape(shape)

    def slice(self, node: Mapping[str, Any]) -> Function:
        index = _slices(node)
        return lambda x: x[index]

    def broadcast(self, node: Mapping[str, Any]) -> Function:
        shape, broadcast_to = tuple(node["shape"]), self.module.broadcast_to
        return lambda x: broadcast_to(x, shape)

    def iota(self, node: Mapping[str, Any]) -> Any:
        shape, axis = tuple(node["shape"]), node["axis"]
        column = self.module.arange(shape[axis], dtype=self.dtype(node["dtype"]))
        return self.module.broadcast_to(column.reshape((-1,) + (1,) * (len(shape) - axis - 1)), shape)

    def library_call(self, node: Mapping[str, Any]) -> Function:
        """A function of the library itself; one of another library's arrays is none of its own."""
        if node["library"] != self._like:
            raise TypeError(f"{self.name} has no {node['function']}")
        run, computed = node["run"], node["computed"]

        def call(*arrays: Any) -> Any:
            computed[:] = run(*arrays)
            return computed[0]

        return call

    def library_result(self, node: Mapping[str, Any]) -> Function:
        computed, index = node["computed"], node["index"]
        return lambda first: computed[index]

    def matmul(self, node: Mapping[str, Any]) -> Function:
        return operator.matmul

    def concatenate(self, node: Mapping[str, Any]) -> Function:
        axis, concatenate = node["axis"], self.module.concatenate
        return lambda *parts: concatenate(parts, axis)

    def take(self, node: Mapping[str, Any]) -> Function:
        before = (slice(None),) * node["axis"]

        def take(x: Any, indices: Any) -> Any:
            index = (*before, indices)
            return x[index]

        return take

    def take_along_axis(self, node: Mapping[str, Any]) -> Function:
        axis = node["axis"]
        if hasattr(self.module, "take_along_axis"):
            return lambda x, indices: self.module.take_along_axis(x, indices, axis)
        return lambda x, indices: self.module.take_along_dim(x, indices.long(), axis)


class Wide(Library):
    """NumPy with every float a float64: the reference."""

    def __init__(self) -> None:
        super().__init__("float64", np)
        self.natives = {}

    def dtype(self, name: str) -> Any:
        return np.dtype("float64" if name in FLOATS else name)

    def library_call(self, node: Mapping[str, Any]) -> Function:
        """A function that gives what torch's makes of float64 tensors."""
        if node["library"] != "torch":
            return super().library_call(node)
        torch = importlib.import_module("torch")
        run, computed = node["run"], node["computed"]

        def call(*arrays: Any) -> Any:
            computed[:] = [t.numpy() for t in run(*(torch.from_numpy(np.ascontiguousarray(a)) for a in arrays))]
            return computed[0]

        return call

    def erf(self) -> Function:
        try:
            return super().erf()
        except TypeError:
            return np.vectorize(math.erf, otypes=[float])


class Torch(Library):
    """torch, whose arrays take NumPy's keywords in places, and refuse numbers in others."""

    _like = "torch"
    _names: ClassVar[Mapping[str, str]] = {"equal": "eq", "max": "amax", "min": "amin"}

    def __init__(self, device: Any) -> None:
        super().__init__("torch", importlib.import_module("torch"))
        self.natives = natives.of_torch(self.module)
        self._device = device

    def dtype(self, name: str) -> Any:
        return getattr(self.module, name)

    def number(self, value: Any, dtype: str) -> Any:
        return self.module.tensor(value, dtype=self.dtype(dtype), device=self._device)

    def reduction(self, op: str, axes: tuple[int, ...], keepdims: bool) -> Function:
        if op != "prod":
            return super().reduction(op, axes, keepdims)
        prod = self.module.prod

        def one_by_one(x: Any) -> Any:
            for axis in sorted(axes, reverse=True):
                x = prod(x, axis, keepdims)
            return x

        return one_by_one

    def cast(self, node: Mapping[str, Any]) -> Function:
        dtype = self.dtype(node["dtype"])
        return lambda x: x.to(dtype)

    def transpose(self, node: Mapping[str, Any]) -> Function:
        axes = tuple(node["axes"])
        return lambda x: x.permute(axes)

    def slice(self, node: Mapping[str, Any]) -> Function:
        """Backwards is forwards and turned round: torch has no negative steps."""
        index = list(_slices(node))
        turned = [a for a, step in enumerate(node["step"]) if step < 0]
        for a in turned:
            start, step, extent = node["start"][a], node["step"][a], node["shape"][a]
            index[a] = slice(start + step * (extent - 1), start + 1, -step) if extent else slice(0, 0)
        key = tuple(index)
        return (lambda x: x[key].flip(turned)) if turned else lambda x: x[key]

    def iota(self, node: Mapping[str, Any]) -> Any:
        return super().iota(node).to(self._device)

    def conv2d(self, node: Mapping[str, Any]) -> Function:
        names = ("stride", "padding", "dilation", "groups")
        return functools.partial(self.module.nn.functional.conv2d, **{n: node[n] for n in names})


class Jax(Library):
    """jax.numpy."""

    _erf = "jax.scipy.special"
    _like = ""

    def __init__(self) -> None:
        super().__init__("jax", importlib.import_module("jax.numpy"))


class Cupy(Library):
    """CuPy."""

    _erf = "cupyx.scipy.special"

    def __init__(self) -> None:
        super().__init__("cupy", importlib.import_module("cupy"))


def takes_numbers(library: Library, op: str) -> bool:
    """Whether the library's function of this op takes Python's numbers beside arrays."""
    return not isinstance(library, Torch) or op in _OPERATORS or op in ("where", "clip")


def _slices(node: Mapping[str, Any]) -> tuple[slice, ...]:
    return tuple(_slice(*along) for along in zip(node["start"], node["step"], node["shape"], strict=True))


def _slice(start: int, step: int, extent: int) -> slice:
    if extent == 0:
        return slice(0, 0)
    end = start + step * extent
    return slice(start, None if end < 0 else end, step)
