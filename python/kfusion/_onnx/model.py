"""A model's file: what is in it, and what its inputs and weights are."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .library import onnx
from .refusals import refused_type
from .values import carrier

_SMALL_INTEGERS = 4096  # elements of weights that may be shapes, axes, indices: their values are known
_SMALL_FLOATS = 16
_MOST = 1 << 40  # elements of any array


class Model:
    """A model that was read. Weights in files of their own are read when `weight` asks for them."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.fsdecode(path))
        self.proto = _read(self.path)
        self.graph = self.proto.graph
        self.name = self.path.stem
        self.opsets = {domain_of(o.domain): int(o.version) for o in self.proto.opset_import}
        self.opsets.setdefault("", 1)
        self.functions = list(self.proto.functions)
        self._by_name = {(domain_of(f.domain), f.name): f for f in self.functions}
        self._weights: dict[str, np.ndarray] = {}
        self.with_weights = False
        self._given_ones: dict[tuple[str, str], Any] = {}  # weights as kernels read them, by name and device
        own = {t.name for t in self.graph.initializer}
        self.inputs = [i for i in self.graph.input if i.name not in own]
        self.defaults = {i.name: i for i in self.graph.input if i.name in own}  # weights that callers may give, too
        _require_text(self.graph)
        _require_unique([i.name for i in self.inputs], "input")
        _require_unique([o.name for o in self.graph.output], "output")
        if not self.graph.output:
            raise ValueError(f"kfusion.onnx: {self.path.name} has no outputs: it is no model, or a damaged one")
        if self.graph.sparse_initializer:
            raise refused_type(f"the weight {self.graph.sparse_initializer[0].values.name}", "a sparse tensor")

    @property
    def arguments(self) -> list[Any]:
        """What callers may give: the inputs, then weights with default values."""
        return [*self.inputs, *self.defaults.values()]

    def function(self, node: Any) -> Any:
        """The model's own function that a node calls; None where it calls none."""
        return self._by_name.get((node.domain, node.op))

    def dtype(self, info: Any, what: str) -> np.dtype[Any]:
        """The dtype of an input or output.

        Raises:
            Refused: it is no tensor.
            ValueError: it has no type.
        """
        kind = info.type.WhichOneof("value")
        if kind not in ("tensor_type", None):
            raise refused_type(f"{what} {info.name!r}", f"a {kind.removesuffix('_type').replace('_', ' ')}")
        return _dtype(info.type.tensor_type.elem_type, f"{what} {info.name!r}")

    def shape(self, info: Any) -> list[int | str] | None:
        """The extents of an input, symbols as text ("" where it has no name); None where the rank is not known."""
        if not info.type.tensor_type.HasField("shape"):
            return None
        return [_extent(d, info.name) for d in info.type.tensor_type.shape.dim]

    def initializers(self, at: Any, given: Container[str] = ()) -> dict[str, Any]:
        """The values of the weights by name: known where they are small, else inputs of at's graph.

        `given` are those that the caller has values for.
        """
        found: dict[str, Any] = {}
        for tensor in self.graph.initializer:
            if tensor.name in given:
                continue
            dtype, shape = _dtype(tensor.data_type, f"the weight {tensor.name!r}"), _dims(tensor)
            count = int(np.prod(shape, dtype=np.float64))
            if count <= (_SMALL_FLOATS if dtype.kind not in "iub" else _SMALL_INTEGERS) or dtype.kind == "O":
                found[tensor.name] = self._weight(tensor)
            else:
                carrier(dtype, f"the weight {tensor.name!r}")
                array = self._given(tensor, at) if self.with_weights else None
                found[tensor.name] = at.initializer(tensor.name, array, dtype, shape)
        return found

    def constants(self, tensors: Iterable[Any]) -> dict[str, np.ndarray]:
        """Arrays of a subgraph's own tensors, by name."""
        return {t.name: self._array(t) for t in tensors}

    def _weight(self, tensor: Any) -> np.ndarray:
        """An array of the model's own graph, read once. Subgraphs have tensors of the same names."""
        if tensor.name not in self._weights:
            self._weights[tensor.name] = self._array(tensor)
        return self._weights[tensor.name]

    def _given(self, tensor: Any, at: Any) -> Any:
        """A weight as kernels are given it, made once for a device."""
        key = tensor.name, str(at.device)
        if key not in self._given_ones:
            self._given_ones[key] = at.given(self._weight(tensor))
        return self._given_ones[key]

    def _array(self, tensor: Any) -> np.ndarray:
        try:
            array: np.ndarray = onnx().numpy_helper.to_array(tensor, str(self.path.parent))
        except Exception as error:
            where = next((e.value for e in tensor.external_data if e.key == "location"), "")
            of = f", whose data is in {where!r}" if where else ""
            raise ValueError(f"kfusion.onnx: the weight {tensor.name!r}{of} cannot be read: {error}") from error
        if array.shape != _dims(tensor):
            raise ValueError(f"kfusion.onnx: the weight {tensor.name!r} has data of shape {array.shape}")
        return array

    def sizes(self, given: Mapping[str, int], default: int | None, shapes: Mapping[str, Any]) -> dict[str, Any]:
        """The shapes of the inputs that are not in `shapes`, symbols replaced.

        Raises:
            ValueError: a symbol has no size, or a size is of no symbol; the message has their names.
        """
        symbols: dict[str, None] = {}
        missing: dict[str, None] = {}
        made = {}
        for info in self.inputs:
            dims = self.shape(info)
            symbols.update(dict.fromkeys(self._names_of(info, dims)))
            if info.name in shapes:
                continue
            if dims is None:
                raise ValueError(f"kfusion.onnx: the input {info.name!r} has no shape in the model: pass a spec for it")
            named = self._named(info, dims)
            chosen = [n if isinstance(n, int) else given.get(n, default) for n in named]
            missing.update({str(n): None for n, c in zip(named, chosen, strict=True) if c is None})
            made[info.name] = tuple(chosen)
        if missing:
            sizes = ", ".join(f'"{n}": 8' for n in missing)
            what = f"{self.path.name} has symbolic sizes: pass sizes={{{sizes}}} with yours, or default_size="
            raise ValueError(f"kfusion.onnx: {what}")
        if wrong := [n for n in given if n not in symbols]:
            known = ", ".join(symbols) or "none"
            raise ValueError(f"kfusion.onnx: {self.path.name} has no size named {wrong[0]!r}; its symbols: {known}")
        return made

    def _named(self, info: Any, dims: list[int | str]) -> list[int | str]:
        """Sizes without a name are named after their input and axis."""
        return [f"{info.name}.{i}" if n == "" else n for i, n in enumerate(dims)]

    def _names_of(self, info: Any, dims: list[int | str] | None) -> list[str]:
        return [n for n in self._named(info, dims or []) if isinstance(n, str)]


def _read(path: Path) -> Any:
    try:
        proto = onnx().load(str(path), load_external_data=False)
    except (OSError, ImportError):
        raise
    except Exception as error:  # the decoder's own, whose class the onnx package does not name
        raise ValueError(f"kfusion.onnx: {path.name} is no ONNX model, or a damaged one: {error}") from error
    if not proto.HasField("graph"):
        raise ValueError(f"kfusion.onnx: {path.name} is no ONNX model, or a damaged one: it has no graph")
    return proto


def domain_of(name: str) -> str:
    return "" if name == "ai.onnx" else str(name)


def _dtype(kind: int, what: str) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(onnx().helper.tensor_dtype_to_np_dtype(kind))
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"kfusion.onnx: {what} has no type that ONNX has ({kind})") from None
    return found


def _dims(tensor: Any) -> tuple[int, ...]:
    dims = tuple(int(n) for n in tensor.dims)
    if any(n < 0 for n in dims) or np.prod(dims, dtype=np.float64) > _MOST or len(dims) > 64:
        raise ValueError(f"kfusion.onnx: the weight {tensor.name!r} cannot have the shape {dims}")
    return dims


def _extent(dim: Any, name: str) -> int | str:
    if dim.HasField("dim_value"):
        if not 0 <= dim.dim_value <= _MOST:
            raise ValueError(f"kfusion.onnx: the input {name!r} cannot have the extent {dim.dim_value}")
        return int(dim.dim_value)
    return str(dim.dim_param)


def _require_text(graph: Any) -> None:
    """The decoder gives names that are no UTF-8 as bytes."""
    if wrong := [v.name for v in (*graph.input, *graph.output, *graph.initializer) if not isinstance(v.name, str)]:
        raise ValueError(f"kfusion.onnx: the model is damaged: the name {wrong[0]!r} is no text")


def _require_unique(names: list[str], what: str) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"kfusion.onnx: the model has an {what} twice")
